"""Time one layer of a running PyTorch program between two steps, without and with changes.

The layer is called with the arguments of its call in the training, and the gradients that reached its outputs then.
Its parameters are those of the training. Gradients are returned by `torch.autograd.grad`, which leaves those of the
parameters as they are. `annot.live.layer_state` puts back all other state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from annot.live.layer_alternatives import ALTERNATIVES, Alternative
from annot.live.layer_calls import Layer, RecordedCall
from annot.live.layer_state import kept
from annot.live.layer_tensors import StoredTensor, device_of, difference, restored, tensors_of
from annot.live.request import AlternativeTimes, LayerRequest, LayerTimes
from annot.live.session import first_line
from annot.torch.module_paths import class_name

_PLAIN: Final = Alternative()
_SHARDED: Final = ("FSDPModule", "FullyShardedDataParallel", "DistributedDataParallel", "DeepSpeedEngine", "DTensor")


def time_layer(layer: Layer, request: LayerRequest) -> LayerTimes:
    """Return the times of a layer alone.

    Args:
        layer: the layer, with a recorded call.
        request: the alternatives, and how often each is timed.
    """
    call, module = layer.call, layer.module
    times = LayerTimes(path=layer.path, kind=class_name(module), layers=len(layer.modules), calls=layer.calls)
    if call is None:
        times.skipped = layer.problem or "it was not called in the step in which calls are recorded"
    elif _is_sharded(module):
        times.skipped = "other processes take part in each of its calls"
    if times.skipped or call is None:
        return times
    times.inputs, hooks = call.text, 0
    try:
        with kept(module) as hooks:
            call.set_training(module)
            _time(_Subject(module, call, request.memory), request, times)
    except Exception as error:
        times.skipped = first_line(error)
    if hooks:
        times.notes.append(f"{hooks} hooks of the program do not run." if hooks > 1 else "A hook does not run.")
    return times


def _is_sharded(module: torch.nn.Module) -> bool:
    objects: Sequence[object] = (*module.modules(), *module.parameters())
    return any(base.__name__ in _SHARDED for value in objects for base in type(value).__mro__)


class _Subject:
    """A layer with a recorded call."""

    def __init__(self, module: torch.nn.Module, call: RecordedCall, memory: int) -> None:
        self.module, self.call = module, call
        self.device = device_of(self.arguments(StoredTensor.tensor), module)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.most_copies = max(memory // max(sum(tensor.nbytes for tensor in call.tensors), 1), 1)
        self.draws = False
        """Whether a call draws random numbers."""

    def arguments(self, replace: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of positional and keyword arguments."""
        return restored(self.call.stored, replace)

    def wait(self) -> None:
        """Wait until the device has completed all work."""
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize(self.device)

    def random_state(self) -> list[torch.Tensor]:
        """Return the states of the random number generators that operators of the layer use."""
        on_cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *on_cuda]


class _Prepared(NamedTuple):
    """Arguments of a call, and the leaf tensors among them that have gradients."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: list[torch.Tensor]


class _Results(NamedTuple):
    outputs: list[torch.Tensor]
    gradients: Sequence[torch.Tensor | None]


class _Way:
    """A way to call the layer: without a change, or under an alternative."""

    def __init__(self, subject: _Subject, alternative: Alternative, *, exact_random: bool = False) -> None:
        self._subject, self._alternative = subject, alternative
        self._target: Any = subject.module
        if alternative.compiled is not None:
            self._target = _compiled(subject.module, alternative.compiled, exact_random)
        self._shared: _Prepared | None = None
        self._reaching: dict[int, torch.Tensor] | None = None
        self.first_ns = 0

    def prepared(self, calls: int) -> list[_Prepared]:
        """Return the arguments of several calls: the same, unless a call changes them."""
        if self._subject.call.changes_arguments is not False:
            return [self._prepare() for _ in range(calls)]
        self._shared = self._shared or self._prepare()
        return [self._shared] * calls

    @contextmanager
    def block(self) -> Iterator[None]:
        """Set what holds for several calls."""
        with ExitStack() as stack:
            stack.enter_context(self._alternative.block())
            if self._alternative.channels_last:
                stack.enter_context(_channels_last(self._subject.module))
            yield

    def run(self, prepared: _Prepared) -> _Results:
        """Call the layer, and compute the gradients of its inputs and parameters."""
        subject = self._subject
        if self._alternative.compiled is not None and subject.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with subject.call.contexts(), self._alternative.each(subject.device.type):
            outputs = tensors_of(self._target(*prepared.args, **prepared.kwargs))
        if self._reaching is None:
            self._reaching = _reaching(outputs, subject.call)
        sources = [*prepared.sources, *subject.parameters]
        if not self._reaching or not sources:
            return _Results(outputs, [])
        reached = [outputs[number] for number in self._reaching]
        gradients = torch.autograd.grad(reached, sources, list(self._reaching.values()), allow_unused=True)
        return _Results(outputs, gradients)

    def probe(self) -> _Results:
        """Return the results of the first call, with the random numbers and state of the program."""
        with kept(self._subject.module), self.block():
            prepared = self._prepare()
            self._subject.wait()
            start = time.perf_counter_ns()
            outputs, gradients = self.run(prepared)
            self._subject.wait()
            self.first_ns = time.perf_counter_ns() - start
            return _Results([*map(_copy, outputs)], [*map(_copy, gradients)])

    def time(self, calls: int) -> float:
        """Return the time (ns) of forward and backward in several calls.

        On a CPU it is the median of the calls, because other programs interrupt some of them. A GPU also works between
        calls: the time is that of all of them between two waits.
        """
        prepared, times = self.prepared(calls), []
        with self.block():
            self._subject.wait()
            start = time.perf_counter_ns()
            for arguments in prepared:
                self.run(arguments)
                times.append(time.perf_counter_ns() - start)
            self._subject.wait()
            whole = time.perf_counter_ns() - start
        if self._subject.device.type != "cpu":
            return whole / calls
        return float(median(after - before for before, after in pairwise([0, *times])))

    def _prepare(self) -> _Prepared:
        sources: list[torch.Tensor] = []

        def replace(stored: StoredTensor) -> torch.Tensor:
            tensor = stored.tensor()
            if self._alternative.channels_last and tensor.dim() == 4:
                tensor = tensor.detach().contiguous(memory_format=torch.channels_last)
                tensor.requires_grad_(stored.requires_grad)
            if tensor.requires_grad:
                sources.append(tensor)
            # An operator cannot change a leaf of the graph in place.
            copies = tensor.requires_grad and self._subject.call.changes_arguments is not False
            return tensor.clone() if copies else tensor

        return _Prepared(*self._subject.arguments(replace), sources)


def _copy(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().clone()


def _compiled(module: torch.nn.Module, arguments: Any, exact_random: bool) -> Any:
    """Return a compiled wrapper of a layer; with `exact_random` it draws the random numbers of the layer."""
    if not exact_random:
        return torch.compile(module, **arguments)
    mode = arguments.get("mode")
    options = torch._inductor.list_mode_options(mode) if mode else {}
    return torch.compile(module, options={**options, "fallback_random": True})


def _reaching(outputs: Sequence[torch.Tensor], call: RecordedCall) -> dict[int, torch.Tensor]:
    """Return the gradients that reach the outputs, by number: as recorded, or random ones if these are too large."""
    with_gradient = {number: output for number, output in enumerate(outputs) if output.requires_grad}
    if call.too_large:
        return {number: _random_like(output) for number, output in with_gradient.items()}
    return {
        number: call.gradients[number].tensor().detach().to(output.dtype)
        for number, output in with_gradient.items()
        if number in call.gradients
    }


def _random_like(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(tensor.device).manual_seed(0)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


@contextmanager
def _channels_last(module: torch.nn.Module) -> Iterator[None]:
    before = [(parameter, parameter.data) for parameter in module.parameters() if parameter.dim() == 4]
    try:
        for parameter, data in before:
            parameter.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def _time(subject: _Subject, request: LayerRequest, times: LayerTimes) -> None:
    """Fill `times` of a layer."""
    plain = _Way(subject, _PLAIN)
    reference = _first_calls(subject, plain, times)
    ways = {"": plain}
    for name in request.alternatives:
        alternative = AlternativeTimes(name=name)
        times.alternatives.append(alternative)
        way = _changed(subject, alternative, reference)
        if way is not None:
            ways[name] = way
    calls = max(math.ceil(request.block_ms * 1e6 / plain.time(1)), 1)
    times.calls_per_block = min(calls, subject.most_copies) if subject.call.changes_arguments else calls
    measured = _rounds(ways, times, request)
    times.times_ns = measured.pop("")
    for alternative in times.alternatives:
        alternative.times_ns = measured.get(alternative.name, [])


def _first_calls(subject: _Subject, plain: _Way, times: LayerTimes) -> _Results:
    """Return the results of the layer without a change, and note what its calls do."""
    with kept(subject.module):
        prepared = plain.prepared(1)[0]
        tensors = [tensor for tensor in tensors_of(prepared[:2]) if not tensor.is_inference()]
        versions, state = [tensor._version for tensor in tensors], subject.random_state()
        plain.run(prepared)
        in_place = versions != [tensor._version for tensor in tensors]
        subject.draws = not all(map(torch.equal, state, subject.random_state()))
    subject.call.changes_arguments = in_place or not subject.call.is_plain
    reference, again = plain.probe(), plain.probe()
    times.repeats = all(found is not None and found.same_bits for found in map(difference, reference, again))
    times.backward = bool(reference.gradients)
    if not times.backward:
        times.notes.append("Only the forward is timed: no gradient reached its outputs in the training.")
    elif subject.call.too_large:
        times.notes.append("The gradients of its outputs are random numbers: those of the training are too large.")
    return reference


def _changed(subject: _Subject, times: AlternativeTimes, reference: _Results) -> _Way | None:
    """Return a way to call the layer under an alternative, and note its first call and numbers; None: it fails."""
    alternative = ALTERNATIVES.get(times.name)
    if alternative is None:
        times.skipped = "it does not act on a single layer"
        return None
    arguments = tensors_of(subject.arguments(StoredTensor.tensor))
    times.skipped = alternative.misfit(subject.module, arguments, subject.device.type)
    if times.skipped:
        return None
    try:
        with kept(subject.module):  # the next alternative starts with the same random numbers
            way = _Way(subject, alternative)
            results = way.probe()
            times.first_ns = way.first_ns
            if subject.draws and alternative.compiled is not None:
                results = _Way(subject, alternative, exact_random=True).probe()
            way.time(1)
    except Exception as error:
        times.skipped = first_line(error)
        return None
    times.outputs, times.gradients = map(difference, results, reference)
    times.numbers = _verdict(times, reference, subject.call, alternative)
    return way


def _verdict(times: AlternativeTimes, reference: _Results, call: RecordedCall, alternative: Alternative) -> str:
    """Return the value of `AlternativeTimes.numbers`.

    A rounding error changes the last digits. If half the digits differ, something other than rounding changes them.
    """
    differences = (times.outputs, times.gradients)
    if any(found is None for found in differences):
        return "differ"
    if all(found is not None and found.same_bits for found in differences):
        return "same bits"
    dtypes = {tensor.dtype for tensor in reference.outputs if tensor.is_floating_point()} | set(call.autocast.values())
    if alternative.dtype is not None:
        dtypes.add(alternative.dtype)
    limit = math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0))
    relative = [found.relative for found in differences if found is not None]
    return "rounding" if all(value is not None and value <= limit for value in relative) else "differ"


def _rounds(ways: dict[str, _Way], times: LayerTimes, request: LayerRequest) -> dict[str, list[float]]:
    """Return the times of each way, in rounds. Every other round has the reversed order."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way.time(times.calls_per_block)
    deadline = time.monotonic() + request.seconds
    for number in range(request.rounds):
        if number >= request.rounds / 2 and time.monotonic() > deadline:
            break
        for name in list(ways)[:: -1 if number % 2 else 1]:
            measured[name].append(ways[name].time(times.calls_per_block))
    return measured
