"""State that a call of a layer changes is put back, to the bit."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np
import torch
from torch import nn

from annot.live.layer_state import kept


class Stateful(nn.Module):
    """Layer whose forward changes all kinds of state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(3.0).view(3, 1).expand(3, 5))
        self.register_buffer("nothing", None)
        self.hidden = torch.zeros(2)
        self.count = 0
        self.seen: list[int] = [1]
        self.latest: deque[int] = deque([1, 2], maxlen=2)
        self.names = {"a"}
        self.by_name: OrderedDict[str, list[int]] = OrderedDict(b=[2], a=[1])
        self.array = np.zeros(3)
        self.own = torch.Generator().manual_seed(3)
        self.of_numpy = np.random.default_rng(3)
        self.of_python = random.Random(3)
        self.config = Config()
        self.pair = ([5], "x")

    def forward(self, x: Any) -> Any:
        self.count += 1
        self.seen.append(self.count)
        self.latest.append(self.count)
        self.names.add(str(self.count))
        self.by_name["b"].append(3)
        self.by_name.move_to_end("b")
        self.by_name["c"] = []
        self.array += 1
        self.pair[0].append(6)
        self.config.steps += 1
        self.config.history.append(1)
        self.added = object()
        self.hidden += 1
        self.norm.training = False
        with torch.no_grad():
            self.fc.weight.mul_(0.5)
            self.table[:, :1] += 1
        self.fc.bias = nn.Parameter(torch.ones(4))
        torch.rand(1, generator=self.own)
        self.of_numpy.random()
        self.of_python.random()
        random.random()
        np.random.random()
        return self.fc(self.norm(x)) + torch.rand(4)


class Config:
    """Object of the program."""

    def __init__(self) -> None:
        self.steps = 0
        self.history = [0]


def state_of(layer: Stateful) -> list[Any]:
    return [
        {name: tensor.tolist() for name, tensor in layer.state_dict().items()},
        [(id(tensor), tensor._version, tensor.requires_grad) for tensor in (*layer.parameters(), *layer.buffers())],
        [layer.hidden.tolist(), layer.hidden._version, layer.count, layer.seen, list(layer.latest), layer.names],
        [list(layer.by_name.items()), layer.array.tolist(), layer.pair, layer.config.steps, layer.config.history],
        [layer.own.get_state().tolist(), str(layer.of_numpy.bit_generator.state), layer.of_python.getstate()],
        [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()],
        [(name, list(vars(module)), module.training) for name, module in layer.named_modules()],
    ]


def test_all_state_is_put_back() -> None:
    layer = Stateful()
    before = repr(state_of(layer))
    lists = [layer.seen, layer.by_name, layer.config.history]
    with kept(layer):
        for _ in range(2):
            layer(torch.randn(3, 4))
        assert repr(state_of(layer)) != before
    assert repr(state_of(layer)) == before
    assert [id(value) for value in lists] == [id(layer.seen), id(layer.by_name), id(layer.config.history)]
    layer(torch.randn(3, 4))
    assert repr(state_of(layer)) != before


def test_state_is_put_back_after_an_exception() -> None:
    layer = nn.BatchNorm1d(2)
    version = layer.num_batches_tracked._version
    with pytest.raises(KeyboardInterrupt), kept(layer):
        layer(torch.ones(4, 2))
        raise KeyboardInterrupt
    assert int(layer.num_batches_tracked) == 0
    assert layer.num_batches_tracked._version == version


@pytest.mark.parametrize("gradient", [None, torch.full((2, 2), 3.0)])
def test_gradients_are_put_back(gradient: Any) -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.grad = gradient
    with kept(layer):
        layer(torch.ones(1, 2)).sum().backward()
        layer.weight.grad.mul_(2)
    assert layer.weight.grad is gradient
    assert gradient is None or gradient.tolist() == [[3, 3], [3, 3]]


def test_the_memory_of_a_parameter_is_put_back() -> None:
    layer = nn.Conv2d(3, 4, 3)
    pointer, strides, version = layer.weight.data_ptr(), layer.weight.stride(), layer.weight._version
    with kept(layer):
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last) + 1
        assert layer.weight.stride() != strides
    assert (layer.weight.data_ptr(), layer.weight.stride(), layer.weight._version) == (pointer, strides, version)


def test_hooks_of_the_program_do_not_run() -> None:
    calls: list[str] = []
    layer = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer[0].register_forward_pre_hook(lambda *_: calls.append("pre"))
    layer[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    layer[0].weight.register_hook(lambda _: calls.append("tensor"))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append("global"))

    def run() -> None:
        layer(torch.ones(1, 2, requires_grad=True)).sum().backward()

    with kept(layer) as hooks:
        run()
        assert calls == []
        assert hooks == 5
    run()
    assert sorted(set(calls)) == ["backward", "forward", "global", "pre", "tensor"]
    handle.remove()
    calls.clear()
    run()
    assert "global" not in calls


def test_hooks_of_pytorch_run() -> None:
    """Weight norm computes the weight in a hook: without it, the second backward would fail."""
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(2, 2))
    layer(torch.ones(1, 2)).sum().backward()
    weight = layer.weight
    with kept(layer) as hooks:
        for _ in range(2):
            layer(torch.ones(1, 2)).sum().backward()
    assert hooks == 0
    assert layer.weight is weight


def test_objects_of_other_packages_are_left_alone() -> None:
    """Another thread may change them at any time."""
    layer = nn.Linear(1, 1)
    layer.shared = SimpleNamespace(steps=0)
    with kept(layer):
        layer.shared.steps = 1
    assert layer.shared.steps == 1
