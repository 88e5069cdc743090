"""Work of layers from the operators of torch.profiler, against hand counts and PyTorch's own counter."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from shared_data import shared
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from annot import load
from annot.analyze.roofline import by_bottleneck
from annot.analyze.work.call import Work
from annot.analyze.work.layer_work import by_work, layer_work
from annot.analyze.work.operators import operator_work
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.layer_tables import by_layer
from annot.labels.tag import parse
from annot.read.kineto.operator_calls import SIGNATURES

RESNET = "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"
BERT = "kineto/tracelens_h100_bert_small_nnmodule.json.gz"
STEPS, BATCH = 5, 512

# ResNet-18 at 224 x 224: input channels, output channels, kernel, output height and width, number of such convolutions.
CONVOLUTIONS = [
    (3, 64, 7, 112, 1), (64, 64, 3, 56, 4), (64, 128, 3, 28, 1), (128, 128, 3, 28, 3), (64, 128, 1, 28, 1),
    (128, 256, 3, 14, 1), (256, 256, 3, 14, 3), (128, 256, 1, 14, 1), (256, 512, 3, 7, 1), (512, 512, 3, 7, 3),
    (256, 512, 1, 7, 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def resnet() -> Attribution:
    return attribute(load(shared(RESNET)))


def by_hand() -> list[int]:
    """FLOPs of each of the 20 convolutions in all steps."""
    return sorted(
        2 * STEPS * BATCH * out * size * size * inputs * kernel * kernel
        for inputs, out, kernel, size, count in CONVOLUTIONS
        for _ in range(count)
    )


def test_convolutions_of_resnet(resnet: Attribution) -> None:
    """The 20 convolutions have the FLOPs of the definition, and twice as many in the backward, except the first."""
    work = layer_work(resnet).filter(pl.col("module") == "Conv2d")
    flops = {
        phase: dict(work.filter(phase=phase).select("layer", "flops").iter_rows()) for phase in ("forward", "backward")
    }
    assert sorted(flops["forward"].values()) == by_hand()
    excess = {layer: flops["backward"][layer] - 2 * forward for layer, forward in flops["forward"].items()}
    assert excess.pop("Conv2d_0") == -flops["forward"]["Conv2d_0"]  # the image needs no gradient
    # The first convolution of each of the eight blocks adds the gradient of the shortcut to that of its input.
    sizes = {64: 56, 128: 28, 256: 14, 512: 7}
    added = {STEPS * BATCH * channels * size * size for channels, size in sizes.items()}
    assert {one for one in excess.values() if one} <= added
    assert sum(one > 0 for one in excess.values()) == 8


def test_convolutions_stand_in_the_roofline(resnet: Attribution) -> None:
    """Each convolution has a bound, a precision and a share of the roof, forward and backward."""
    rows = by_bottleneck(resnet).filter(pl.col("module") == "Conv2d")
    assert rows.height == 40
    assert set(rows["precision"]) == {"bf16 tensor"}
    assert rows["roof_share"].is_between(0, 1, closed="none").all()
    assert rows["bound"].null_count() == rows["flops"].null_count() == 0


def test_every_layer_of_resnet_is_counted(resnet: Attribution) -> None:
    """The trace has the inputs of all operators, so the work of all layers is known."""
    work = layer_work(resnet).filter(pl.col("phase") != "optimizer")
    assert work.filter(~pl.col("counted")).is_empty()
    linear = work.filter(module="Linear")
    rows, inner, out = BATCH, 512, 1000
    gemm = 2 * STEPS * rows * inner * out
    assert linear.filter(phase="forward")["flops"].to_list() == [gemm]
    # two GEMMs, and the sum over the rows for the bias
    assert linear.filter(phase="backward")["flops"].to_list() == [2 * gemm + STEPS * rows * out]
    params = work.filter(pl.col("phase") == "forward", pl.col("module").is_in(["Conv2d", "Linear", "BatchNorm2d"]))
    assert params["params"].sum() == 11_689_512  # of ResNet-18


def test_bytes_of_a_convolution(resnet: Attribution) -> None:
    """Each tensor is moved once: the input, the weights and the output of the first convolution, in bfloat16."""
    row = layer_work(resnet).filter(layer="Conv2d_0", phase="forward").to_dicts()[0]
    read = BATCH * 3 * 224 * 224 + 64 * 3 * 7 * 7
    assert (row["bytes_read"], row["bytes_written"]) == (2 * STEPS * read, 2 * STEPS * BATCH * 64 * 112 * 112)


def test_shapes_are_those_of_the_operators(resnet: Attribution) -> None:
    rows = {
        (layer, phase): shapes
        for layer, phase, shapes in by_layer(resnet).select("layer", "phase", "shapes").iter_rows()
    }
    assert rows["Conv2d_0", "forward"] == ["[512,3,224,224]bf16 [64,3,7,7]bf16"]
    assert rows["MaxPool2d_0", "forward"] == ["[512,64,112,112]bf16"]
    assert rows["Conv2d_0", "backward"] == ["[512,64,112,112]bf16 [512,3,224,224]bf16 [64,3,7,7]bf16"]


def test_containers_without_own_time_have_no_roof(resnet: Attribution) -> None:
    """The time of a block contains its convolutions, its own work does not."""
    rows = by_bottleneck(resnet).filter(pl.col("module").is_in(["BasicBlock", "Sequential", "ResNet"]))
    assert rows["flops"].null_count() == rows.height > 0


def test_bert() -> None:
    """26 linear layers and 4 attentions of the inference trace, counted from its JSON."""
    work = by_work(attribute(load(shared(BERT))))
    linear = work.filter(module="Linear")
    tokens, width, feed, words = 141, 512, 2048, 30522
    products = Counter({2 * tokens * width * width: 17, 2 * tokens * width * feed: 8, 2 * tokens * width * words: 1})
    assert Counter(linear["flops"]) == products
    attention = work.filter(module="BertSdpaSelfAttention")
    assert attention["flops"].to_list() == [4 * 8 * tokens * tokens * 64] * 4


def event(name: str, start: int, end: int, inputs: Any = None, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    args = more | ({"Input Dims": inputs, "Input type": ["float"] * len(inputs)} if inputs else {})
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start, "args": args}


def of_layer(folder: Path, *events: dict[str, Any], kernels: tuple[int, ...] = ()) -> dict[str, Any]:
    """The work of a layer of 100 µs with these events, and kernels launched at these times."""
    launches = [event("cudaLaunchKernel", at, at + 1, cat="cuda_runtime", correlation=at) for at in kernels]
    ran = [event("k", at, at + 5, cat="kernel", correlation=at, device=0, stream=7) for at in kernels]
    module = event("nn.Module: Foo_0", 0, 100, cat="python_function", **{"Python id": 1})
    (folder / "t.json").write_text(json.dumps({"traceEvents": [module, *events, *launches, *ran]}))
    return layer_work(attribute(load(folder / "t.json"))).filter(module="Foo").to_dicts()[0]


MM = [[2, 3], [3, 4]]


def test_nested_operators_count_once(tmp_path: Path) -> None:
    """The outermost known operator counts; below an unknown one, the known ones inside it do."""
    nested = [event("aten::matmul", 1, 9, MM), event("aten::mm", 2, 8, MM)]
    assert of_layer(tmp_path, *nested, kernels=(4,))["flops"] == 48
    inside = [event("my::fused", 1, 29), event("aten::mm", 2, 8, MM), event("aten::mm", 12, 18, MM)]
    assert of_layer(tmp_path, *inside, kernels=(4, 14))["flops"] == 96


def test_kernels_outside_known_operators_make_the_work_unknown(tmp_path: Path) -> None:
    """A kernel of an unknown operator, or of Python code of the layer, is work that nobody counted."""
    known = event("aten::mm", 2, 8, MM)
    assert of_layer(tmp_path, known, event("my::fused", 10, 19), kernels=(4, 12))["counted"] is False
    assert of_layer(tmp_path, known, kernels=(4, 50))["counted"] is False
    assert of_layer(tmp_path, known, event("my::view", 10, 19), kernels=(4,))["flops"] == 48
    assert of_layer(tmp_path, known, event("aten::copy_", 10, 19), kernels=(4, 12))["flops"] == 48


def test_without_a_gpu_unknown_operators_make_the_work_unknown(tmp_path: Path) -> None:
    known = event("aten::mm", 2, 8, MM)
    assert of_layer(tmp_path, known, event("aten::empty", 10, 19))["flops"] == 48
    assert of_layer(tmp_path, known, event("my::fused", 10, 19))["counted"] is False


def work_of(text: str) -> Work | None:
    tag = parse(f"aten {text} |op")
    assert tag is not None
    return operator_work(tag)


CONVOLUTION = "bias_sizes=0, stride=2,2 padding=1,1 dilation=1,1 transposed=False output_padding=0,0 groups=1"


@pytest.mark.parametrize(
    ("mask", "gradients"), [("True,True,False", 2), ("False,True,True", 1), ("True,False,False", 1)]
)
def test_output_mask_names_the_gradients(mask: str, gradients: int) -> None:
    work = work_of(f"convolution_backward [2,4,5,5]f32 [2,3,9,9]f32 [4,3,3,3]f32 {CONVOLUTION} output_mask={mask}")
    assert work is not None
    assert work.flops == gradients * 2 * 2 * 4 * 25 * 27


@pytest.mark.parametrize(
    "text",
    [
        "conv2d [1,3,8,8]f32 [4,3,3,3]f32", "conv2d [1,3,8,8]f32 [4,3,3,3]f32 stride=1,1 padding=0,0 dilation=1,1",
        "convolution_backward [2,4,5,5]f32 [2,3,9,9]f32 [4,3,3,3]f32 stride=1,1", "mm [2,3]f32", "mm [2,3]f32 [4,5]f32",
        "scaled_dot_product_attention [1,2,3,4]f32 [1,2,3,4]f32 [1,2,3,4]f32", "layer_norm [2,3]f32", "foo [2]f32",
        "dropout [2]f32", "max_pool2d [1,2,8,8]f32 kernel=2,2", "mm [2,3]what [3,4]what", "mse_loss [2]f32 [2]f32",
    ],
)  # fmt: skip
def test_missing_arguments_are_not_guessed(text: str) -> None:
    assert work_of(text) is None


def test_every_operator_that_is_read_has_a_formula() -> None:
    from annot.analyze.work import operators

    assert set(operators._OPERATORS) == set(SIGNATURES)


class Net(nn.Module):
    """Convolutions with strides, groups and transposition, normalisation, attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(torch.relu(self.grouped(self.norm(self.first(x)))))
        mixed = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        out: torch.Tensor = self.head(mixed[:, :, :, :16].permute(0, 2, 1, 3).flatten(2))
        return out


@pytest.mark.slow
def test_flops_are_those_of_the_counter_of_pytorch(tmp_path: Path) -> None:
    """A real training step on the CPU: FLOPs of each layer with matrix multiplications, forward and backward."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 16, 16)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, with_stack=True, with_modules=True
    ) as profiler:
        model(x).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    work = layer_work(attribute(load(tmp_path / "t.json")))
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    counts = {name.removeprefix("Net."): sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
    names = {"Conv2d_0": "first", "ConvTranspose2d_0": "up"}
    for layer, name in names.items():
        rows = work.filter(layer=layer)
        assert rows["counted"].to_list() == [True, True]
        assert rows["flops"].sum() == counts[name], layer
    # PyTorch's counter ignores the groups of a convolution in the backward.
    grouped = dict(work.filter(layer="Conv2d_1").select("phase", "flops").iter_rows())
    forward = 2 * 2 * 8 * 64 * 2 * 9
    assert grouped == {"forward": forward, "backward": 2 * forward}
    bias = 2 * 16 * 10
    assert work.filter(layer="Linear_0")["flops"].sum() == counts["head"] + bias
