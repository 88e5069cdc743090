"""Layers that are timed alone: the calls are those of the training, and the training does not notice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np
import torch
from measured_layers import measured
from torch import nn

from annot.live import layer_alone
from annot.live.layer_alone import time_layer
from annot.live.layer_alternatives import ALTERNATIVES, Alternative
from annot.live.layer_calls import Layer
from annot.live.request import LayerRequest, LayerTimes

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++")


class Everything(nn.Module):
    """Layer with state, hooks, random numbers, a convolution, recurrence and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("average", torch.zeros(8))
        self.calls = 0
        self.means: list[float] = []

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = nn.functional.relu(self.norm(self.conv(x)), inplace=True).flatten(2)
        y, _ = self.lstm(self.spectral(y))
        y = self.drop(self.attention(y, y, y, need_weights=False)[0])
        if random.random() < 0.5:
            y = y * float(np.random.random())
        with torch.no_grad():
            self.average.lerp_(y.float().mean((0, 1)), 0.1)
        self.means.append(float(self.average.sum()))
        return y


def train(between: Callable[[nn.Module, Any], None] | None) -> list[Any]:
    """Train for some steps and return everything that may differ; `between` runs between two steps."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    layer, hooks = Everything(), []
    model = nn.Sequential(layer, nn.Linear(8, 1))
    layer.register_forward_hook(lambda module, args, output: hooks.append(float(output.detach().sum())))
    layer.conv.weight.register_hook(lambda gradient: hooks.append(float(gradient.sum())))
    frozen = layer.spectral.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []

    def step() -> None:
        loss = model(torch.randn(3, 2, 2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if between is None:
        for _ in range(4):
            step()
    else:
        measured_layer = measured(model, ["0"], step)[0]  # four steps
        between(model, measured_layer)
    for number in range(3):
        model.train(number < 2)
        step()
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    generators = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
    moments = [entry["exp_avg_sq"].tolist() for entry in optimizer.state.values()]
    strides = [parameter.stride() for parameter in model.parameters()]
    return [losses, hooks, layer.calls, layer.means, state, generators, moments, strides, frozen.grad]


def timed(found: list[LayerTimes], *alternatives: str, **options: Any) -> Callable[[nn.Module, Any], None]:
    request = LayerRequest(patterns=[], alternatives=list(alternatives), rounds=2, block_ms=0.001, **options)
    return lambda model, layer: found.append(time_layer(layer, request))


def test_training_goes_on_with_the_same_bits() -> None:
    found: list[LayerTimes] = []
    names = ["bf16", "fp16", "channels-last", "sdpa-math", "tf32", "fused"]
    assert train(timed(found, *names)) == train(None)
    times = found[0]
    assert times.skipped == ""
    assert times.backward
    assert times.notes == ["2 hooks of the program do not run."]
    assert {a.name: a.skipped for a in times.alternatives if a.skipped} == {
        "tf32": "it acts only on CUDA devices, and the layer runs on cpu",
        "fused": "it does not act on a single layer",
    }
    assert [len(a.times_ns) for a in times.alternatives] == [2, 2, 2, 2, 0, 0]
    assert len(times.times_ns) == 2


@needs_compiler
@pytest.mark.slow
def test_training_goes_on_with_the_same_bits_after_compilation() -> None:
    found: list[LayerTimes] = []
    assert train(timed(found, "compile")) == train(None)
    assert found[0].alternatives[0].skipped == ""
    assert found[0].alternatives[0].first_ns > max(found[0].times_ns)


@pytest.mark.slow
def test_training_goes_on_after_an_alternative_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> Any:
        raise RuntimeError("no kernel\nfor this")

    alternatives = {**ALTERNATIVES, "bf16": Alternative(each=fail)}
    monkeypatch.setattr(layer_alone, "ALTERNATIVES", alternatives)
    found: list[LayerTimes] = []
    assert train(timed(found, "bf16", "channels-last")) == train(None)
    assert [a.skipped for a in found[0].alternatives] == ["RuntimeError: no kernel", ""]


def time_one(layer: nn.Module, step: Callable[[], Any], *alternatives: str) -> LayerTimes:
    found: list[LayerTimes] = []
    timed(found, *alternatives)(layer, measured(layer, ["**"], step)[0])
    return found[0]


def way_of(layer: Layer) -> layer_alone._Way:
    assert layer.call is not None
    layer.call.changes_arguments = True
    return layer_alone._Way(layer_alone._Subject(layer.module, layer.call, 2**20), Alternative())


def test_gradients_are_those_of_the_training() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 2))
    head, inputs, before = nn.Linear(2, 1), torch.randn(8, 4), torch.get_rng_state()

    def step() -> None:
        torch.set_rng_state(before)
        layer.zero_grad()
        head(layer(inputs)).square().mean().backward()

    found = measured(layer, [""], step)[0]
    torch.set_rng_state(before)
    results = way_of(found).probe()
    expected = [parameter.grad for parameter in layer.parameters()]
    assert len(expected) == len(results.gradients) == 4
    assert all(torch.equal(a, b) for a, b in zip(results.gradients, expected, strict=True) if a is not None)


def test_numbers() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4), nn.Dropout(0.5))
    times = time_one(layer, lambda: layer(torch.randn(2, 3, 8, 8)).sum().backward(), "bf16", "sdpa-math")
    assert times.repeats
    bf16, math = times.alternatives
    assert (bf16.numbers, math.numbers) == ("rounding", "same bits")
    assert bf16.outputs is not None
    assert 0 < (bf16.outputs.relative or 0) < 0.01


class Doubling(nn.Module):
    """Layer that computes something else under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return x * self.factor * (1.5 if torch.is_autocast_enabled("cpu") else 1.0)


@pytest.mark.parametrize(("relative", "verdict"), [(0.08, "rounding"), (0.09, "differ")])
def test_half_of_the_digits_are_the_limit(relative: float, verdict: str) -> None:
    """The square root of the precision of bfloat16 is 0.088."""
    layer = Doubling()
    layer.forward = lambda x: (  # type: ignore[method-assign]
        x * layer.factor * (1 + relative if torch.is_autocast_enabled("cpu") else 1)
    )
    times = time_one(layer, lambda: layer(torch.ones(4)).sum().backward(), "bf16")
    assert times.alternatives[0].numbers == verdict


def test_a_layer_that_changes_its_arguments() -> None:
    relu = nn.ReLU(inplace=True)
    found = measured(relu, ["**"], lambda: relu(torch.randn(4, requires_grad=True) * 2).sum().backward())[0]
    found_times: list[LayerTimes] = []
    timed(found_times, "bf16")(relu, found)
    assert found_times[0].skipped == ""
    assert found_times[0].backward
    assert found.call is not None
    assert found.call.changes_arguments is True


def test_a_layer_without_gradients() -> None:
    layer = nn.Linear(4, 4)
    times = time_one(layer, lambda: layer(torch.ones(2, 4)))
    assert not times.backward
    assert times.notes == ["Only the forward is timed: no gradient reached its outputs in the training."]


def test_a_sharded_layer_is_skipped() -> None:
    class FSDPModule(nn.Linear):
        pass

    layer = FSDPModule(2, 2)
    assert time_one(layer, lambda: layer(torch.ones(1, 2))).skipped == "other processes take part in each of its calls"


@needs_compiler
@pytest.mark.slow
def test_compiled_dropout_is_compared_with_the_same_random_numbers() -> None:
    layer = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    times = time_one(layer, lambda: layer(torch.randn(8, 16)).square().sum().backward(), "compile")
    assert times.alternatives[0].skipped == ""
    assert times.alternatives[0].numbers in ("same bits", "rounding")
