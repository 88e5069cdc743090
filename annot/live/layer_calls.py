"""Calls of the layers of a running program: which take the most time, and what their arguments are."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from annot.emit import guard
from annot.emit.layer_filter import Choice, choose
from annot.emit.patches import Patches
from annot.emit.shapes import spec_of
from annot.live.layer_tensors import StoredTensor, device_of, leaves, tensors_of
from annot.live.session import first_line
from annot.torch.internals import current_node, is_compiling, is_tracing
from annot.torch.module_paths import class_name, join, paths

_NOTE: Final = "a layer is not timed alone"


@dataclass(slots=True)
class Layer:
    """Layers of a model of the same class, with the same parameters and arguments. The first one called stands for all.

    Args:
        path: dotted path in the model.
        module: the layer.
    """

    path: str
    module: torch.nn.Module
    modules: set[int] = field(default_factory=set)
    """Identities of all these layers."""
    steps: list[list[float]] = field(default_factory=lambda: [[]])
    """Time (ns) of each forward in each step, the current one last."""
    call: RecordedCall | None = None
    """A call of this layer; None: none was recorded."""
    problem: str = ""
    """Why no call was recorded, a clause."""

    @property
    def step_ns(self) -> float:
        """Mean time (ns) of all forwards of a complete step. The first step is left out if there are others."""
        return fmean(map(sum, self.steps[1:-1] or self.steps[:1]))

    @property
    def calls(self) -> float:
        """Mean number of calls in these steps."""
        return fmean(map(len, self.steps[1:-1] or self.steps[:1]))


@dataclass(slots=True)
class RecordedCall:
    """A call of a layer in the training."""

    stored: tuple[tuple[Any, ...], dict[str, Any]]
    """Positional and keyword arguments, with a `StoredTensor` for each tensor."""
    text: str
    """Shapes and dtypes of the tensors."""
    training: list[bool]
    """``training`` of each module of the layer."""
    autocast: dict[str, torch.dtype]
    """Dtype of autocast by type of device; empty: it was off."""
    has_gradients: bool
    """Whether gradients were enabled."""
    is_inference: bool
    """Whether inference mode was on."""
    changes_arguments: bool | None = None
    """Whether a call changes its arguments, so that the next one needs new ones; None: not known yet."""
    gradients: dict[int, StoredTensor] = field(default_factory=dict)
    """Gradient of each output tensor that has reached it, by number."""
    too_large: bool = False
    """Whether the gradients are too large to be recorded."""

    @property
    def is_plain(self) -> bool:
        """Whether all arguments are tensors and values that a call cannot change."""
        args, kwargs = self.stored
        return all(map(_is_plain, (*args, *kwargs.values())))

    def contexts(self) -> ExitStack:
        """Return a context with autocast and the mode of gradients of the call."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self.is_inference))
        stack.enter_context(torch.set_grad_enabled(self.has_gradients))
        for device, dtype in self.autocast.items():
            stack.enter_context(torch.autocast(device, dtype))
        return stack

    def set_training(self, module: torch.nn.Module) -> None:
        """Set ``training`` of the layer and its submodules as in the call; `annot.live.layer_state.kept` undoes it."""
        for submodule, training in zip(module.modules(), self.training, strict=True):
            vars(submodule)["training"] = training

    @property
    def tensors(self) -> list[StoredTensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in leaves(self.stored) if isinstance(leaf, StoredTensor)]


_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (StoredTensor, *_PLAIN)) or callable(value)


class LayerCalls:
    """Measurement of the calls of layers, between `start` and `stop`.

    Args:
        patterns: patterns of dotted paths, as in `annot.emit_ranges`.
        memory: most bytes of arguments that are copied.
    """

    def __init__(self, patterns: Sequence[str], memory: int) -> None:
        self._choice: Choice = choose(patterns)
        self._memory = memory
        self._patches = Patches()
        self._paths: dict[int, str] = {}
        self._layers: dict[Hashable, Layer] = {}
        self._pending: set[Hashable] = set()
        self._events: list[tuple[Layer, Any, Any]] = []

    def add_model(self, model: torch.nn.Module) -> None:
        """Add the layers of a model. Patterns also match paths that begin with the class of the model."""
        for path, module in paths(model):
            full = join(class_name(model), path)
            if self._choice.takes(path, module) or self._choice.takes(full, module):
                self._paths.setdefault(id(module), path or full)

    def forget(self) -> None:
        """Forget all calls so far."""
        self._layers.clear()
        self._pending.clear()

    def problem(self) -> str:
        """Return why there are no layers, a clause."""
        if not self._paths:
            return "no layer of a model has a path that matches the pattern"
        return "the layers were not called one by one in the warm-up, as in a model that torch.compile has compiled"

    def start(self) -> None:
        """Measure the calls from now on."""
        self._patches.wrap(torch.nn.Module, "__call__", self._around)

    def stop(self) -> None:
        """Measure no further calls."""
        self._patches.undo()

    def end_step(self) -> None:
        """Note the end of a step."""
        for layer, start, end in self._events:
            end.synchronize()
            layer.steps[-1].append(start.elapsed_time(end) * 1e6)
        self._events.clear()
        for layer in self._layers.values():
            layer.steps.append([])

    def layers(self) -> list[Layer]:
        """Return the layers that steps call, those with the most time in a step first."""
        return [layer for layer in self._by_time() if layer.calls]

    def record(self, most: int) -> None:
        """Record the next call of each of the layers that take the most time."""
        longest = [id(layer) for layer in self._by_time()[:most]]
        self._pending = {key for key, layer in self._layers.items() if id(layer) in longest}

    def _by_time(self) -> list[Layer]:
        return sorted(self._layers.values(), key=lambda layer: layer.step_ns, reverse=True)

    def _around(self, original: Callable[..., Any], module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # torch.compile traces this function. A call in a backward recomputes a forward.
        if is_compiling() or id(module) not in self._paths or is_tracing() is not None or current_node() is not None:
            return original(module, *args, **kwargs)
        key = guard.attempt(_signature, module, args, kwargs, otherwise=None)
        layer = self._layers.get(key)
        if layer is None:
            layer = self._layers[key] = Layer(self._paths[id(module)], module)
        layer.modules.add(id(module))
        records = key in self._pending and layer.module is module
        if records:
            self._pending.discard(key)
            layer.call = guard.attempt(self._recorded, layer, args, kwargs, otherwise=None, note=_NOTE)
        device = device_of((args, kwargs), module)
        start = _now(device)
        outputs = original(module, *args, **kwargs)
        self._note(layer, start, _now(device))
        if records and layer.call is not None:
            guard.attempt(_record_gradients, outputs, layer.call, self._memory, otherwise=None, note=_NOTE)
        return outputs

    def _note(self, layer: Layer, start: Any, end: Any) -> None:
        if isinstance(start, int):
            layer.steps[-1].append(end - start)
        elif start is not None:
            self._events.append((layer, start, end))

    def _recorded(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None:
        tensors = tensors_of((args, kwargs))
        size = sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided)
        if size > self._memory:
            layer.problem = f"its arguments have {size / 2**20:,.0f} MiB, more than the limit of annot"
            return None
        try:
            with _Storing():
                stored = copy.deepcopy((args, kwargs))
        except Exception as error:
            layer.problem = f"its arguments cannot be copied: {first_line(error)}"
            return None
        return RecordedCall(
            stored=stored,
            text=" ".join(str(spec_of(tensor)) for tensor in tensors),
            training=[submodule.training for submodule in layer.module.modules()],
            autocast=_autocast({*(tensor.device.type for tensor in tensors), "cpu"}),
            has_gradients=torch.is_grad_enabled(),
            is_inference=torch.is_inference_mode_enabled(),
        )


class _Storing(TorchFunctionMode):
    """Lets `copy.deepcopy` replace tensors, those inside objects included, by `StoredTensor`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") == "__deepcopy__":
            return StoredTensor(args[0])
        return func(*args, **kwargs or {})


def _signature(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return what calls of repeated layers have in common."""
    parameters = tuple((name, parameter.shape, parameter.dtype) for name, parameter in module.named_parameters())
    tensors = tuple((t.shape, t.dtype, t.requires_grad) for t in tensors_of((args, kwargs)))
    return type(module), module.training, torch.is_grad_enabled(), parameters, tensors


def _now(device: torch.device) -> Any:
    """Return the time (ns), on a GPU an event of its current stream; None: a graph is captured."""
    if device.type != "cuda":
        return time.perf_counter_ns()
    if torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _autocast(devices: set[str]) -> dict[str, torch.dtype]:
    """Return the dtype of autocast on each device where it is on."""
    return {
        device: torch.get_autocast_dtype(device)
        for device in devices
        if torch.amp.autocast_mode.is_autocast_available(device) and torch.is_autocast_enabled(device)
    }


def _record_gradients(outputs: Any, call: RecordedCall, memory: int) -> None:
    """Record the gradients that reach the outputs. The hooks leave the gradients as they are."""

    def keep(number: int, gradient: torch.Tensor) -> None:
        if number not in call.gradients:
            guard.attempt(_store, call, number, gradient, otherwise=None)

    tensors = tensors_of(outputs)
    call.too_large = sum(tensor.nbytes for tensor in tensors) > memory
    for number, tensor in enumerate(() if call.too_large else tensors):
        if tensor.requires_grad:
            tensor.register_hook(functools.partial(keep, number))  # type: ignore[no-untyped-call]


def _store(call: RecordedCall, number: int, gradient: torch.Tensor) -> None:
    call.gradients[number] = StoredTensor(gradient)
