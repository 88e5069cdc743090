"""Steps of a PyTorch program, and the hooks with which changes reach its models, optimizers and data loaders.

Training: a step ends with a step of the first optimizer that has stepped, also if a `GradScaler` leaves it out. If
hooks see no optimizer, because torch.compile compiles its step, a step ends with the next backward. Inference: it ends
with a call of the first model. A model is the outermost module with parameters that is called.

The session wraps `torch.nn.Module.__call__` only until the warm-up is over. A model that was called by then keeps a
wrapper around all its calls, in its attribute `_compiled_call_impl`, as `Module.compile` does. Copies and pickles of
the model lack it.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Final

import torch
import wrapt
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from annot.emit import guard
from annot.emit.patches import Patches
from annot.emit.shapes import tensors_in
from annot.live.environment import leave_environment
from annot.live.request import Request
from annot.live.session import Session
from annot.torch import dynamo
from annot.torch.internals import current_node, is_compiling, is_tracing
from annot.torch.module_paths import is_keras
from annot.torch.optimizer import wrap_closure

_SKIPPED: Final = (
    *("annot.emit.guard", "annot.emit.patches", "annot.live.builtin_calls"),
    *("annot.live.session", "annot.live.torch_amp", "annot.live.torch_session"),
)
"""Modules whose functions torch.compile would compile after a graph break."""
_UNSEEN: Final = "the program {} outside functions that torch.compile compiles"
Backward = Callable[[Callable[..., Any], Any], Any]


def start(request: Request) -> TorchSession:
    """Set the seed, install the hooks, and return the session."""
    if request.seed is not None:
        torch.manual_seed(request.seed)
        if request.losses:
            wrapt.register_post_import_hook(_draw_as_uncompiled, "torch._inductor.config")
    session = TorchSession(request)
    session.install()
    return session


def _draw_as_uncompiled(config: Any) -> None:
    """Let compiled code draw the random numbers of uncompiled code, so that losses of both can be compared."""
    config.fallback_random = True


# Globals, because torch.compile compiles again when the closure of a traced function is gone.
_session: TorchSession
_original: Callable[..., Any]


def patched_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Patch of `torch.nn.Module.__call__`. PyTorch's profiler reads the local variable `self` by name."""
    if not is_compiling():  # torch.compile must see only the original
        _session.find(self)
    return _original(self, *args, **kwargs)


class _Thread(threading.local):
    """State of one thread."""

    inside = False
    """Whether it is inside a call of a model."""
    stepped = False
    """Whether an optimizer has stepped since the call of a `GradScaler`."""


class TorchSession(Session):
    """Measurements of a PyTorch program.

    A change is a function of the session. It registers functions with the methods ``on_…`` and ``around_…``. If such
    a function raises an exception, the change counts as skipped.
    """

    framework: ClassVar[str] = "torch"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.patches = Patches()
        """Patches of changes. They stay to the end of the process."""
        self._search = Patches()
        self._thread = _Thread()
        self._around_calls: list[Callable[[Any], AbstractContextManager[Any]]] = []
        self._before_backward: list[Callable[[], object]] = []
        self._backward: tuple[str, Backward] | None = None
        self._before_step: list[Callable[[Any], object]] = []
        self._after_step: list[Callable[[Any], object]] = []
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._counted: weakref.ref[Any] | None = None  # the optimizer or model whose steps or calls count
        self._call_start: int | None = None
        self._scaled: tuple[weakref.ref[Any], Any] | None = None
        self._random: list[bytes] | None = None  # states of generators before the current step
        self._hooked = False  # whether hooks have seen a step of an optimizer
        self._weight: weakref.ref[Any] | None = None  # shows the steps that hooks do not see
        self._version = 0

    # ---------------------------------------------------------------- for changes

    on_model = functools.partialmethod(Session.on, "model")
    """Call a function with each model before its first call."""
    on_inputs = functools.partialmethod(Session.on, "inputs")
    """Replace the arguments of each call of a model by the result of ``change(model, args, kwargs)``."""
    on_optimizer = functools.partialmethod(Session.on, "optimizer")
    """Call a function with each optimizer before its first step."""
    on_loader = functools.partialmethod(Session.on, "loader")
    """Call a function with each data loader before its first iterator."""

    def around_calls(self, enter: Callable[[torch.nn.Module], AbstractContextManager[Any]]) -> None:
        """Enter the context manager ``enter(model)`` around each call of a model."""
        self._around_calls.append(enter)

    def before_backward(self, call: Callable[[], object]) -> None:
        """Call a function before each backward."""
        self._before_backward.append(call)

    def replace_backward(self, run: Backward) -> None:
        """Run each backward as ``run(backward, root)``, where ``backward(root)`` is the original."""
        self._backward = self.installing, run

    def around_steps(self, before: Callable[[Optimizer], object], after: Callable[[Optimizer], object]) -> None:
        """Call functions before each step of an optimizer, if it has a closure after that, and after the step."""
        self._before_step.append(before)
        self._after_step.append(after)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count no call of a model on this thread in the block, and change none."""
        before, self._thread.inside = self._thread.inside, True
        try:
            yield
        finally:
            self._thread.inside = before

    @property
    def models(self) -> list[torch.nn.Module]:
        """The models that were called, in the order of their first calls."""
        return [model for reference in self._models if (model := reference()) is not None]

    # ---------------------------------------------------------------- hooks

    def install(self) -> None:
        """Hook into PyTorch."""
        global _original, _session
        _original, _session = torch.nn.Module.__call__, self
        self._search.replace(torch.nn.Module, "__call__", patched_call)
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ends)
        self.patches.wrap(torch.autograd, "backward", self._run_backward)
        self.patches.wrap(torch.amp.GradScaler, "step", self._step_scaled)
        self.patches.wrap(DataLoader, "__iter__", self._iterate)
        wrapt.register_post_import_hook(lambda _: dynamo.skip_modules(_SKIPPED), "torch._dynamo")
        if self.request.losses:
            self.patches.wrap(torch.amp.GradScaler, "scale", self._scale)

    def find(self, module: torch.nn.Module) -> None:
        """Apply the changes to a module that is called, if it is a new model."""
        if self._search.live and not self._thread.inside and self._is_model(module):
            guard.attempt(self._meet, module, otherwise=None)

    def _is_model(self, module: torch.nn.Module) -> bool:
        """Return whether this call is that of an outermost module with parameters which is called for the first time.

        A module that is called in a backward is one that activation checkpointing runs again.
        """
        return not (
            is_tracing() is not None
            or current_node() is not None
            or next(module.parameters(), None) is None
            or is_keras(module)
            or any(reference() is module for reference in self._models)
        )

    def _meet(self, model: torch.nn.Module) -> None:
        """Apply the changes of models, and wrap the calls of a model."""
        self._models = [*(reference for reference in self._models if reference() is not None), weakref.ref(model)]
        dynamo.skip_modules(_SKIPPED)
        self.happens("model", model)
        inner = vars(model).get("_compiled_call_impl") or model._call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return inner(*args, **kwargs)
            return self._call_model(model, inner, args, kwargs)

        call.inner = inner  # type: ignore[attr-defined]
        vars(model)["_compiled_call_impl"] = call

    def _call_model(self, model: torch.nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        thread = self._thread
        if thread.inside or current_node() is not None:
            return inner(*args, **kwargs)
        if not self.result.trains:
            self._call_start = time.perf_counter_ns() if torch.is_grad_enabled() else None
        self.begin()
        if self.keeps_loss and self._random is None:  # before the first model of the step
            self._random = guard.attempt(self._random_states, otherwise=None)
        for name, change in self._changes["inputs"]:
            args, kwargs = self.try_change(name, change, model, args, kwargs) or (args, kwargs)
        thread.inside = True
        try:
            with ExitStack() as stack:
                for enter in self._around_calls:
                    stack.enter_context(enter(model))
                result = inner(*args, **kwargs)
        finally:
            thread.inside = False
        if not self.result.trains:
            self._call_ends(model, result)
        return result

    def _call_ends(self, model: torch.nn.Module, output: Any) -> None:
        """Count a call, because the program may be one of inference. Its loss is the size of the output."""
        if self._counts(model):
            self.note_loss(functools.partial(_mean_size, output))
            self._complete_step()

    def _counts(self, counted: Any) -> bool:
        """Return whether this object is the first one of its kind, or the first one is gone."""
        if self._counted is None or self._counted() is None:
            self._counted = weakref.ref(counted)
        return self._counted() is counted

    def _train(self) -> None:
        """Note that the program trains: calls of models before the first backward and step are no steps."""
        if not self.result.trains:
            self.result.trains = True
            self.result.draws = False
            self._counted = None
            if self.result.step_ns:
                self.restart(self._call_start)

    def _run_backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or current_node() is not None:  # in a backward: activation checkpointing
            return original(tensors, *args, **kwargs)
        self._train()
        self.begin()
        root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if not self._hooked:
            self._complete_unseen_step(root)
        for call in self._before_backward:
            call()
        self.note_loss(functools.partial(self._loss, root))
        if self._backward is None or root is not tensors:
            return original(tensors, *args, **kwargs)
        return self._backward[1](lambda root: original(root, *args, **kwargs), root)

    def _loss(self, root: Any) -> float:
        """Return the value of a loss, also where the program has scaled it."""
        if self._scaled is not None and self._scaled[0]() is root:
            root = self._scaled[1]
        return float(root.detach().double().mean())

    def _scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if isinstance(result, torch.Tensor):
            self._scaled = weakref.ref(result), outputs.detach()
        return result

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_compiling():
            return None
        self._hooked = True
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.happens("optimizer", optimizer)
        if not self._before_step:
            return None

        def prepare() -> None:
            for call in self._before_step:
                call(optimizer)

        wrapped = wrap_closure(args, kwargs, lambda: None, prepare)
        if wrapped is None:
            prepare()
        return wrapped

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        self._thread.stepped = True
        for call in self._after_step:
            call(optimizer)
        self._train()
        if self._counts(optimizer):
            self._complete_step()

    def _step_scaled(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the step of an optimizer also if the scaler leaves it out, because gradients are infinite."""
        self._thread.stepped = False
        result = original(scaler, optimizer, *args, **kwargs)
        if not self._thread.stepped and not is_compiling():
            self._train()
            # The optimizer may wrap the one that hooks will see: the first step that is done tells which one counts.
            if self._counted is None or self._counted() in (None, optimizer):
                self._complete_step()
        return result

    def _complete_unseen_step(self, root: Any) -> None:
        """Count the step before this backward of `root`, if compiled code has changed weights since the last one."""
        weight = self._weight() if self._weight is not None else None
        if weight is not None and weight._version != self._version and self.compiled_graphs():
            self._skip_unseen()
            self._complete_step()
        if weight is None and isinstance(root, torch.Tensor):
            weight = _parameter_of(root.grad_fn)
        if weight is not None:
            self._weight, self._version = weakref.ref(weight), weight._version

    def _skip_unseen(self) -> None:
        """Note the changes of objects that only compiled code calls."""
        names = [name for name, _ in self._changes["optimizer"]] + ([self._backward[0]] if self._backward else [])
        for name in names:
            self.withdraw(name, _UNSEEN.format("steps no optimizer"))
        if not self._models:
            for name, _ in (*self._changes["model"], *self._changes["inputs"]):
                self.withdraw(name, _UNSEEN.format("calls no model"))

    def _complete_step(self) -> None:
        """Count a step, and note whether it has drawn random numbers."""
        before, self._random = self._random, None
        if before is not None:
            after = guard.attempt(self._random_states, otherwise=before)
            self.result.draws = self.result.draws or after != before
        self.end_step()

    def _iterate(self, original: Any, loader: Any) -> Any:
        if loader not in self._loaders:
            self._loaders.add(loader)
            leave_environment()
            self.happens("loader", loader)
        return original(loader)

    def _open_window(self) -> None:
        if self.result.step_ns and self.may_end():  # before the window: it scans the heap
            self._search.undo()
        super()._open_window()

    # ---------------------------------------------------------------- what the session says

    def may_end(self) -> bool:
        """Return whether the program trains, or has no optimizer. An evaluation may come before the training."""
        return self.result.trains or not any(issubclass(type(instance), Optimizer) for instance in gc.get_objects())

    def wait(self) -> None:
        """Wait until all devices of the models have completed all work."""
        for device in self._devices():
            getattr(torch, device.type).synchronize(device)

    def device(self) -> str:
        """Return the type of the device of the models, such as ``cpu`` or ``cuda``."""
        return next((device.type for device in self._devices()), "cpu")

    def peak_bytes(self) -> int:
        """Return the most memory that PyTorch has allocated on the GPUs, or the resident memory of the process."""
        devices = self._devices()
        if not devices:
            return super().peak_bytes()
        return sum(getattr(torch, device.type).max_memory_allocated(device) for device in devices)

    def compiled_graphs(self) -> int:
        """Return the number of graphs of torch.compile."""
        utils = sys.modules.get("torch._dynamo.utils")
        return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])

    def hash_parameters(self) -> str:
        """Return the SHA-256 of the parameters and buffers of the models, by name."""
        if not self.models:
            return ""
        digest = hashlib.sha256()
        for model in self.models:
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            for _, tensor in sorted(tensors.items()):
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _random_states(self) -> list[bytes]:
        """Return the states of PyTorch's generators of random numbers for the devices in use."""
        states = [torch.get_rng_state(), *(getattr(torch, each.type).get_rng_state(each) for each in self._devices())]
        return [state.numpy().tobytes() for state in states]

    def _devices(self) -> list[torch.device]:
        """Return the devices of the models other than the CPU."""
        devices = {tensor.device for model in self.models for tensor in model.parameters()}
        if self._weight is not None and (weight := self._weight()) is not None:
            devices.add(weight.device)
        devices.discard(torch.device("cpu"))
        return [device for device in devices if hasattr(getattr(torch, device.type, None), "max_memory_allocated")]


def _parameter_of(node: Any) -> torch.nn.Parameter | None:
    """Return a parameter that a backward from a node gives a gradient, or None."""
    pending, seen = [node], {None}
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            variable = getattr(node, "variable", None)
            if isinstance(variable, torch.nn.Parameter):
                return variable
            pending.extend(following for following, _ in node.next_functions)
    return None


def _mean_size(output: Any) -> float:
    """Return the mean size of the numbers of an output. The loss of inference: it shows whether outputs change."""
    with torch.no_grad():
        tensors = [tensor for tensor in tensors_in((output,), {}, torch.is_tensor) if tensor.is_floating_point()]
        sizes = [float(tensor.double().abs().mean()) for tensor in tensors if tensor.numel()]
    return sum(sizes) / len(sizes) if sizes else 0.0
