"""Ranges around collectives and point-to-point messages.

All callers of `torch.distributed` (scripts, FSDP, hooks) end up in methods of `ProcessGroup`, so these methods are
patched. The functions of `torch.distributed` are left alone, because torch.compile recognizes them. Functional
collectives, as used by DTensor, bypass these methods and are patched as Python functions.

A range covers the launch of a collective. `Work.wait` has a separate range. The reducer of DistributedDataParallel
launches and awaits its collectives in C++, during the backward of a layer and at the end of the whole backward. Python
code does not see them unless the user has registered a communication hook. On a CPU, the wait at the end of the whole
backward has a range: `awaited` returns its event, and `annot.torch.autograd_engine` opens it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from annot.emit import client, guard
from annot.emit.shapes import specs_of, tensors_in
from annot.labels import tag
from annot.torch.module_sites import is_tensor
from annot.torch.patches import Patches

# Names of the operations by method of ProcessGroup, over all releases of PyTorch.
_METHODS: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
    **{name: name for name in ("reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced", "broadcast", "gather")},
    **{name: name for name in ("scatter", "all_to_all_single", "send", "recv", "barrier", "monitored_barrier")},
}
_FUNCTIONS: Final = (
    *("all_gather_single", "all_gather_single_coalesced", "all_reduce", "all_reduce_coalesced", "all_to_all_single"),
    *("broadcast", "permute_tensor", "reduce_scatter_single", "reduce_scatter_single_coalesced", "wait_tensor"),
)
"""Functional collectives. Methods of the same name have the same operation."""

_OLD_FUNCTIONS: Final = (  # later releases deprecate these, and they call the functions above
    *("all_gather_tensor", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor"),
    "reduce_scatter_tensor_coalesced",
)
_OPERATIONS: Final = _METHODS | {"all_gather_tensor": "all_gather_into_tensor", "wait_tensor": "wait"}
_c10d: Any = sys.modules.get("torch._C._distributed_c10d")
_FUNCTIONAL: Final = "torch.distributed._functional_collectives"
_KIND: Final = "collective"
_MAX_EVENTS: Final = 4096


def install(patches: Patches) -> None:
    """Open a range around every collective that is called from Python."""
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    events = _Events()
    for name, operation in _METHODS.items():
        patches.surround(distributed.ProcessGroup, name, _KIND, events.method_events(operation))
    patches.surround(distributed, "_broadcast_coalesced", _KIND, events.method_events("broadcast_coalesced"))
    patches.surround(distributed.Work, "wait", _KIND, events.wait_event)
    parallel = torch.nn.parallel.DistributedDataParallel
    patches.surround(parallel, "_post_forward", "reducer", events.await_reducer)
    functional = sys.modules.get(_FUNCTIONAL)
    if functional is not None:
        old = () if hasattr(functional, "all_gather_single") else _OLD_FUNCTIONS
        for name in (*_FUNCTIONS, *old):
            patches.surround(functional, name, _KIND, events.function_events(_OPERATIONS.get(name, name)))


def awaited() -> Any:
    """Return the event of the reducer's wait at the end of this thread's next backward, or None. Resets it to None."""
    event = getattr(_thread, "awaited", None)
    _thread.awaited = None
    return event


_thread: Final = threading.local()


class _Events:
    """Cache of the events by operation, group, and shapes and dtypes of the tensors."""

    def __init__(self) -> None:
        self._cache: dict[Any, Any] = {}

    def method_events(self, operation: str) -> Callable[..., Any]:
        """Return the event function of a ProcessGroup method. Its first two arguments may contain tensors."""
        return lambda group, *args, **kwargs: self._event(operation, group, _larger([*args, *kwargs.values()][:2]))

    def function_events(self, operation: str) -> Callable[..., Any]:
        """Return the event function of a functional collective. Its first argument is or contains the tensors."""

        def make(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return self._event(operation, _group_among((*args, *kwargs.values())), _larger([tensors]))

        return make

    def await_reducer(self, model: Any, *_: Any) -> None:
        """Record that the next backward waits for the reducer of a model. The call itself does not need a range."""
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            _thread.awaited = self._event("all_reduce.wait", model.process_group, [])

    def wait_event(self, work: Any, *_: Any, **__: Any) -> Any:
        """Return the event of a wait for `work`."""
        # Some releases and backends do not implement _get_op_type.
        number = guard.attempt(lambda: work._get_op_type(), otherwise=None)
        event = self._cache.get(number)
        if event is None:
            # OpType may differ between releases.
            name = guard.attempt(lambda: _c10d.OpType(number).name.lower(), otherwise="unknown")
            name = f"{_METHODS.get(name, name)}.wait" if name != "unknown" else "wait"
            event = self._cache[number] = _make(name, "", [])
        return event

    def _event(self, operation: str, group: Any, tensors: list[Any]) -> Any:
        event = guard.attempt(self._find, operation, group, tensors, otherwise=None)
        return event if event is not None else _make(operation, "", [])

    def _find(self, operation: str, group: Any, tensors: list[Any]) -> Any:
        key = operation, _name(group), tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
        event = self._cache.get(key)
        if event is None:
            if len(self._cache) >= _MAX_EVENTS:
                self._cache.clear()
            event = self._cache[key] = _make(operation, key[1], tensors)
        return event


def _make(operation: str, group: str, tensors: list[Any]) -> Any:
    tagged = tag.Tag("", operation + group, "collective", *specs_of(tensors))
    size = sum(tensor.nbytes for tensor in tensors)
    return client.event(tag.format(tagged), category=_KIND, payload=size if tensors else None)


def _larger(sides: list[Any]) -> list[Any]:
    """Return the larger of the sent and the received tensors, by number of elements: the whole message."""
    messages = [tensors_in((side,), {}, is_tensor) for side in sides]
    return max(messages, key=lambda tensors: sum(tensor.numel() for tensor in tensors), default=[])


def _name(group: Any) -> str:
    """Return name and size of a process group, such as ``@default_pg:8``."""
    if group is None:
        return ""
    described = getattr(group, "group_desc", "")
    return f"@{described if described not in ('', 'undefined') else group.group_name}:{group.size()}"


def _group_among(values: tuple[Any, ...]) -> Any:
    """Return the process group in the arguments of a functional collective, given as a group or a mesh."""
    for value in values:
        # Fails for a list of ranks and for a mesh of several dimensions.
        group = guard.attempt(_group_of, value, otherwise=None)
        if group is not None:
            return group
    return None


def _group_of(value: Any) -> Any:
    mesh, *dimension = value if isinstance(value, tuple) else (value,)
    return mesh if hasattr(mesh, "group_name") else mesh.get_group(*dimension)
