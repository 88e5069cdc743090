"""Calls of layers: which take the most time, and copies of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from measured_layers import measured
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from annot.live.layer_calls import RecordedCall
from annot.live.layer_tensors import StoredTensor, difference, leaves, restored, tensors_of


class Block(nn.Module):
    """Repeated layer."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Any, scale: float = 1.0, mask: Any = None) -> Any:
        return x + scale * self.fc(x)


class Net(nn.Module):
    """Blocks, and a wide one that takes more time."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.wide = Block(1024)
        self.checkpoints = checkpoints

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x, scale=0.5)
        return x.sum() + self.wide(torch.ones(64, 1024)).sum()


def test_repeated_layers_are_one() -> None:
    net = Net()
    layers = measured(net, ["blocks.*", "wide"], lambda: net(torch.ones(2, 4)).backward())
    assert [(layer.path, len(layer.modules), layer.calls) for layer in layers] == [("wide", 1, 1), ("blocks.0", 3, 3)]
    assert layers[0].step_ns > layers[1].step_ns > 0
    assert layers[1].call is not None
    assert layers[1].call.text == "[2,4]f32"


def test_calls_of_a_backward_do_not_count() -> None:
    net = Net(checkpoints=True)
    with set_checkpoint_early_stop(False):
        layers = measured(net, ["blocks.*"], lambda: net(torch.ones(2, 4)).backward())
    assert [layer.calls for layer in layers] == [3]


def test_only_the_longest_layers_are_recorded() -> None:
    net = Net()
    layers = measured(net, ["**"], lambda: net(torch.ones(2, 4)).backward(), most=2)
    assert [layer.call is not None for layer in layers] == [True, True, False, False, False, False][: len(layers)]


def test_patterns_with_the_class_of_the_model() -> None:
    net = Net()
    layers = measured(net, ["Net.first"], lambda: net(torch.ones(2, 4)))
    assert [layer.path for layer in layers] == ["first"]


def test_the_patch_is_gone() -> None:
    before = nn.Module.__call__
    measured(nn.Linear(2, 2), ["**"], lambda: None)
    assert nn.Module.__call__ is before


@dataclass
class Cache:
    """Argument that holds tensors of the graph, such as keys and values."""

    keys: list[Any]


class Reader(nn.Module):
    """Layer with arguments of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, query: Any, key: Any, cache: Any = None, **options: Any) -> Any:
        cache.keys.append(self.fc(key))
        return self.fc(query) + options["rows"].sum()


def recorded_reader() -> tuple[RecordedCall, list[Any]]:
    layer, made = Reader(), []

    def step() -> None:
        x = layer.fc(torch.randn(3, 4))
        rows = torch.arange(12.0).view(4, 3).t()[:, ::2]
        arguments = {"cache": Cache([x * 2]), "rows": rows, "repeated": torch.ones(4, 1).expand(4, 6), "text": "x"}
        made[:] = [x, arguments, x.detach().clone()]
        layer(x, x, **arguments).sum().backward()

    call = measured(layer, ["**"], step)[0].call
    assert call is not None
    return call, made


def test_arguments_are_copied_as_they_are() -> None:
    call, _ = recorded_reader()
    args, kwargs = restored(call.stored, StoredTensor.tensor)
    assert args[0] is args[1], "the query of self-attention is its key"
    assert args[0].is_leaf
    assert args[0].requires_grad
    assert kwargs["rows"].stride() == (1, 6)
    assert kwargs["rows"].tolist() == [[0, 6], [1, 7], [2, 8]]
    assert not kwargs["rows"].requires_grad
    assert kwargs["repeated"].stride() == (1, 0)
    assert kwargs["text"] == "x"
    assert len(kwargs["cache"].keys) == 1
    assert kwargs["cache"].keys[0].requires_grad
    assert not call.is_plain


def test_arguments_are_those_before_the_call() -> None:
    """The next call of the program does not change them either."""
    relu = nn.ReLU(inplace=True)
    layers = measured(relu, ["**"], lambda: relu(torch.full((2,), -1.0)))
    assert layers[0].call is not None
    args, _ = restored(layers[0].call.stored, StoredTensor.tensor)
    assert args[0].tolist() == [-1, -1]


def test_gradients_of_outputs_are_recorded() -> None:
    layer = nn.Linear(2, 2)
    call = measured(layer, ["**"], lambda: (3 * layer(torch.ones(1, 2))).sum().backward())[0].call
    assert call is not None
    assert call.gradients[0].tensor().tolist() == [[3, 3]]


@pytest.mark.parametrize(("memory", "recorded"), [(32, True), (31, False)])
def test_large_arguments_are_not_copied(memory: int, recorded: bool) -> None:
    layer = nn.Linear(4, 1)
    found = measured(layer, ["**"], lambda: layer(torch.ones(2, 4)), memory=memory)[0]
    assert (found.call is not None) == recorded
    assert recorded or found.problem == "its arguments have 0 MiB, more than the limit of annot"


def test_sparse_arguments_are_not_copied() -> None:
    layer = nn.Linear(4, 1)
    layer.forward = lambda x: x.to_dense().sum()  # type: ignore[method-assign]
    found = measured(layer, ["**"], lambda: layer(torch.eye(2).to_sparse()))[0]
    assert found.problem.startswith("its arguments cannot be copied: TypeError: a Tensor with layout torch.sparse_coo")


def test_autocast_and_modes_are_recorded() -> None:
    layer = nn.Linear(2, 2)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            layer(torch.ones(1, 2))

    call = measured(layer, ["**"], step)[0].call
    assert call is not None
    with call.contexts():
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_tensors_in_containers() -> None:
    x, y = torch.ones(1), torch.ones(2)
    assert tensors_of([x, {"a": (x, None, 3)}, Cache([y])]) == [x, y]
    assert list(leaves({"a": [1, (2,)]})) == [1, 2]


def test_differences() -> None:
    one, nan = torch.tensor([3.0, 4.0]), torch.tensor([3.0, float("nan")])
    same, rounded = difference([one, None], [one.clone(), None]), difference([one.bfloat16()], [one])
    assert same is not None
    assert same.same_bits
    assert rounded is not None
    assert (rounded.same_bits, rounded.largest) == (False, 0)
    assert difference([one], [torch.ones(3)]) is None
    both = difference([nan], [nan])
    assert both is not None
    assert both.same_bits
    assert both.relative is None
