"""Expected work of real modules, against PyTorch's own counter, parameters and outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import nets
import polars as pl
import pytest
import torch
from captured import capture
from matrices import every_third
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from annot import emit_ranges, load, record
from annot.analyze.work.formulas import expected
from annot.analyze.work.layer_work import layer_work, not_counted
from annot.attribution.attribute import attribute
from annot.labels.tag import Tag, parse

PRODUCTS = "Conv|Linear|Bilinear|LSTM|GRU|RNN|Attention"
"""What PyTorch's counter counts."""


def counted(run: Callable[[], torch.Tensor]) -> tuple[int, int]:
    """PyTorch's count of forward and backward; without what it does not look into."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH)
        with whole[0], whole[1], FlopCounterMode(display=False) as counter:
            loss = run()
            forward = counter.get_total_flops()
            loss.backward()  # type: ignore[no-untyped-call]
    return forward, counter.get_total_flops() - forward


def layers_of(path: Path, model: nn.Module, run: Callable[[], torch.Tensor], *, ops: bool = False) -> pl.DataFrame:
    """The work of the layers in one step."""
    with record(path), emit_ranges(model, ops=ops):
        run().backward()  # type: ignore[no-untyped-call]
    return layer_work(attribute(load(path)))


RECURRENT = ("lstm", "ptb_lstm", "paradnn")
OTHERS = {*RECURRENT, "gpt", "mobilenetv2", "transformer"}


@pytest.mark.parametrize("name", every_third(name for name in nets.MATRIX if name not in OTHERS))
def test_samples_agree_with_the_counter_of_pytorch(name: str, tmp_path: Path) -> None:
    """FLOPs of forward and backward, the first layer's missing gradient included, and parameters, all exactly."""
    net = nets.MATRIX[name]()
    work = layers_of(tmp_path / "r.annot", net.model, net.loss)
    products = work.filter(pl.col("module").str.contains(PRODUCTS))
    sums = dict(products.group_by("phase").agg(pl.col("flops").sum()).iter_rows())
    assert (sums["forward"], sums["backward"]) == counted(net.loss)
    assert not_counted(work)[0] == []
    params = work.filter(phase="forward")["params"].sum()
    assert params == sum(parameter.numel() for parameter in net.model.parameters())


@pytest.mark.parametrize(
    ("name", "pairs", "masked"),
    [
        ("gpt", 4 * 4 * 4 * 2 * (16 + 16), 256 - 136),  # blocks, batch, heads, both products
        ("transformer", 2 * 2 * 2 * (32 + 32), 64 - 36),  # decoder layers, batch, both products of all heads
    ],
)
def test_causal_models_agree_but_for_the_mask(name: str, pairs: int, masked: int, tmp_path: Path) -> None:
    """PyTorch's counter has all pairs of places, annot those that the mask leaves."""
    net = nets.MATRIX[name]()
    work = layers_of(tmp_path / "r.annot", net.model, net.loss, ops=True)
    forward, backward = counted(net.loss)
    rows = work.filter(pl.col("module").str.contains("Linear|Attention"))
    sums = dict(rows.group_by("phase").agg(pl.col("flops").sum()).iter_rows())
    assert forward - sums["forward"] == masked * pairs
    assert backward - sums["backward"] == 2 * masked * pairs
    assert work.filter(pl.col("module") == "Attention")["counted"].all()


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_agree_but_for_the_first_state(name: str, tmp_path: Path) -> None:
    """In the backward, PyTorch spares the products with the first state, which needs no gradient and is zero."""
    net = nets.MATRIX[name]()
    work = layers_of(tmp_path / "r.annot", net.model, net.loss)
    forward, backward = counted(net.loss)
    rows = work.filter(pl.col("module").str.contains(PRODUCTS))
    sums = dict(rows.group_by("phase").agg(pl.col("flops").sum()).iter_rows())
    assert sums["forward"] == forward
    cells = next(module for module in net.model.modules() if isinstance(module, nn.RNNBase))
    gates, batch = {"LSTM": 4, "GRU": 3}.get(cells.mode, 1), net.make_batch(0)[0].shape[0 if cells.batch_first else 1]
    assert sums["backward"] - backward == cells.num_layers * batch * 2 * gates * cells.hidden_size**2


def test_a_model_of_grouped_convolutions_agrees_in_forward(tmp_path: Path) -> None:
    """In the backward of a grouped convolution PyTorch's counter takes every channel for every group."""
    net = nets.MATRIX["mobilenetv2"]()
    work = layers_of(tmp_path / "r.annot", net.model, net.loss)
    rows = work.filter(pl.col("module").str.contains(PRODUCTS))
    sums = dict(rows.group_by("phase").agg(pl.col("flops").sum()).iter_rows())
    assert sums["forward"] == counted(net.loss)[0]
    first = rows.filter(layer="features.0.0", phase="forward")["flops"].item()
    assert sums["backward"] == 2 * sums["forward"] - first  # images need no gradient


def _shapes(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, stride=2, dilation=2), _shapes((2, 4, 17))),
    "conv2d": lambda: (nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 0)), _shapes((2, 3, 12, 11))),
    "conv2d same": lambda: (nn.Conv2d(3, 8, 3, padding="same", bias=False), _shapes((2, 3, 9, 9))),
    "conv2d unbatched": lambda: (nn.Conv2d(3, 8, 3), _shapes((3, 9, 9))),
    "conv3d": lambda: (nn.Conv3d(2, 4, 2, padding=1), _shapes((1, 2, 5, 6, 7))),
    "transposed": lambda: (nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), _shapes((2, 4, 5, 6))),
    "transposed 1d": lambda: (nn.ConvTranspose1d(4, 6, 4, dilation=2, bias=False), _shapes((2, 4, 9))),
    "linear": lambda: (nn.Linear(7, 5), _shapes((2, 3, 7))),
    "rnn": lambda: (nn.RNN(5, 7), _shapes((6, 2, 5))),
    "gru": lambda: (nn.GRU(5, 7, 2, bidirectional=True, batch_first=True), _shapes((2, 6, 5))),
    "lstm": lambda: (nn.LSTM(5, 8, 2, proj_size=3, bias=False), _shapes((6, 2, 5))),
    "lstm cell": lambda: (nn.LSTMCell(5, 7), _shapes((2, 5))),
    "gru cell": lambda: (nn.GRUCell(5, 7, bias=False), _shapes((2, 5))),
    "attention": lambda: (nn.MultiheadAttention(12, 3), _shapes((7, 2, 12), (5, 2, 12), (5, 2, 12))),
    "attention batch": lambda: (
        nn.MultiheadAttention(12, 3, kdim=8, vdim=4, batch_first=True), _shapes((2, 7, 12), (2, 5, 8), (2, 5, 4)),
    ),
    "attention extra": lambda: (
        nn.MultiheadAttention(12, 3, add_bias_kv=True, add_zero_attn=True), _shapes((7, 2, 12), (5, 2, 12), (5, 2, 12)),
    ),
}  # fmt: skip


def texts_of(tmp_path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Tag]:
    """What the ranges of one call of a module say, forward then backward."""

    def body() -> None:
        with emit_ranges(model):
            out = model(*inputs)
            (out[0] if isinstance(out, tuple) else out).sum().backward()

    tags = [parse(text) for text in capture(tmp_path, body).texts]
    return [tag for tag in tags if tag is not None and tag.phase in ("forward", "backward") and tag.module]


@pytest.mark.parametrize("name", CASES)
def test_layers_agree_with_pytorch(name: str, tmp_path: Path) -> None:
    """FLOPs by its counter, the number of parameters, and the size of the output."""
    model, inputs = CASES[name]()
    forward = expected(texts_of(tmp_path, model, inputs)[0])
    assert forward is not None
    outputs: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        out = model(*inputs)
        outputs.append(out[0] if isinstance(out, tuple) else out)
        return outputs[-1].sum()

    assert forward.flops == counted(run)[0]
    assert forward.params == sum(parameter.numel() for parameter in model.parameters())
    assert forward.bytes_written == 4 * outputs[0].numel()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_groups_share_the_work(groups: int, transposed: bool, tmp_path: Path) -> None:
    """With g groups a convolution costs a g-th, and has as many parameters as PyTorch's."""
    model = (nn.ConvTranspose2d if transposed else nn.Conv2d)(4, 8, 3, groups=groups)
    forward = expected(texts_of(tmp_path, model, _shapes((2, 4, 9, 9)))[0])
    assert forward is not None
    places = 81 if transposed else 49
    assert forward.flops == 2 * 2 * places * 4 * 8 * 9 // groups
    assert forward.params == sum(parameter.numel() for parameter in model.parameters())


OTHERS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "bilinear": lambda: (nn.Bilinear(3, 4, 5), _shapes((2, 3), (2, 4))),
    "embedding": lambda: (nn.Embedding(50, 6), (torch.randint(50, (3, 4)),)),
    "bag": lambda: (nn.EmbeddingBag(50, 6, mode="sum"), (torch.randint(50, (3, 4)),)),
    "batch norm": lambda: (nn.BatchNorm2d(3), _shapes((2, 3, 4, 4))),
    "batch norm plain": lambda: (nn.BatchNorm1d(3, affine=False), _shapes((2, 3))),
    "instance norm": lambda: (nn.InstanceNorm2d(3, affine=True), _shapes((2, 3, 4, 4))),
    "group norm": lambda: (nn.GroupNorm(2, 4), _shapes((2, 4, 5))),
    "layer norm": lambda: (nn.LayerNorm((4, 5), bias=False), _shapes((2, 4, 5))),
    "rms norm": lambda: (nn.RMSNorm(5), _shapes((2, 4, 5))),
    "local response": lambda: (nn.LocalResponseNorm(3), _shapes((2, 4, 5, 5))),
    "max pool": lambda: (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), _shapes((2, 3, 10, 11))),
    "dropped window": lambda: (nn.MaxPool1d(2, 3, padding=1, ceil_mode=True), _shapes((2, 3, 5))),
    "dilated pool": lambda: (nn.MaxPool1d(2, dilation=3), _shapes((2, 3, 10))),
    "average pool": lambda: (nn.AvgPool3d(2), _shapes((2, 3, 4, 5, 6))),
    "adaptive": lambda: (nn.AdaptiveAvgPool2d((None, 3)), _shapes((2, 3, 5, 6))),
    "adaptive max": lambda: (nn.AdaptiveMaxPool1d(3), _shapes((2, 3, 9))),
    "prelu": lambda: (nn.PReLU(3), _shapes((2, 3))),
    "upsample": lambda: (nn.Upsample(scale_factor=(2, 1.5), mode="bilinear"), _shapes((2, 3, 4, 6))),
    "upsample size": lambda: (nn.Upsample(size=(7, 5)), _shapes((2, 3, 4, 6))),
    "cross entropy": lambda: (nn.CrossEntropyLoss(), (*_shapes((4, 5)), torch.randint(5, (4,)))),
    "loss each": lambda: (nn.MSELoss(reduction="none"), _shapes((4, 5), (4, 5))),
    "gelu": lambda: (nn.GELU(), _shapes((4, 5))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_have_the_parameters_and_outputs_of_pytorch(name: str, tmp_path: Path) -> None:
    """What the formula says of parameters and of the output is what the module has and gives."""
    model, inputs = OTHERS[name]()
    forward, *backward = texts_of(tmp_path, model, inputs)
    work = expected(forward)
    assert work is not None
    assert work.params == sum(parameter.numel() for parameter in model.parameters())
    assert work.bytes_written == 4 * model(*inputs).numel()
    assert work.bytes_read >= sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    assert [expected(tag) is not None for tag in backward] == [True]


class Derived(nn.Conv2d):
    """Computes as its base does."""


class Different(nn.Conv2d):
    """May compute anything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def test_a_class_of_ones_own_says_whose_work_it_does(tmp_path: Path) -> None:
    """One without a forward of its own is its base; one with its own is not known."""
    (x,) = _shapes((1, 3, 8, 8))
    derived, _ = texts_of(tmp_path, Derived(3, 4, 3), (x,))
    assert str(derived) == "Forward Derived [1,3,8,8]f32 base=Conv2d out=4 kernel=3,3 |fwd"
    different, _ = texts_of(tmp_path, Different(3, 4, 3), (x,))
    assert str(different) == "Forward Different [1,3,8,8]f32 |fwd"
    assert expected(different) is None


def test_backward_says_which_gradients_it_computes(tmp_path: Path) -> None:
    """None of the inputs' for the first layer, none of the weights' for a frozen one, both in between."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    model[1].requires_grad_(False)  # type: ignore[no-untyped-call]
    tags = {tag.layer: str(tag) for tag in texts_of(tmp_path, model, (torch.ones(2, 3),)) if tag.phase == "backward"}
    assert tags["0"] == "0 Linear [2,3]f32 out=4 grad=weight |bwd"
    assert tags["1"] == "1 Linear [2,4]f32 out=5 grad=input |bwd"
    assert tags["2"] == "2 Linear [2,5]f32 out=2 |bwd"


def test_parametrized_weights_are_not_computed_for_a_text(tmp_path: Path) -> None:
    """Looking at hyper-parameters runs nothing of the user's: a power iteration more would change the results."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))

    plain, seen = build(), build()
    (x,) = _shapes((2, 3))
    forward = texts_of(tmp_path, seen, (x,))[0]
    plain(x).sum().backward()
    assert "base=Linear out=4" in str(forward)
    for left, right in zip(plain.state_dict().values(), seen.state_dict().values(), strict=True):
        assert torch.equal(left, right)
