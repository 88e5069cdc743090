"""Private objects of PyTorch that annot uses: the only list of them.

PyTorch may change them in any release. So annot looks them up with `internal`, and the last column says what it does
without one. `make test-matrix` checks the first two columns with each release. `annot.torch.compiled` has the list of
the methods of Inductor that it patches, and `annot.torch.dynamo` tests the functions of torch.compile before it uses
them. Methods of nodes of the autograd graph and attributes of modules are not in the list.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch


class Internal(NamedTuple):
    """Private object of PyTorch."""

    name: str
    releases: tuple[str, str]
    """First and last release that has it; empty: from the first, or up to the last release that annot supports."""
    use: str
    without: str
    """What annot does in a release without it."""


_ALL: Final = ("", "")
_NO_RANGES: Final = "no ranges of PyTorch, and a warning"

INTERNALS: Final = (
    Internal("torch._C.DisableTorchFunction", _ALL, "reads of shapes of tensor subclasses", _NO_RANGES),
    Internal("torch._C._FunctionBase", _ALL, "nodes of the autograd graph that are written in Python", _NO_RANGES),
    Internal("torch._C._ImperativeEngine", _ALL, "visits to the threads of devices", _NO_RANGES),
    Internal("torch._C._current_autograd_node", _ALL, "the node that the engine runs", _NO_RANGES),
    Internal("torch._C._get_tracing_state", _ALL, "torch.jit.trace, which records reads of shapes", _NO_RANGES),
    Internal("torch._C._is_any_autocast_enabled", _ALL, "the dtype of autocast", _NO_RANGES),
    Internal("torch._guards.TracingContext.try_get", _ALL, "backwards that torch.compile traces", _NO_RANGES),
    Internal("torch.autograd.Variable._execution_engine", _ALL, "ranges of backwards", _NO_RANGES),
    Internal("torch.autograd._get_sequence_nr", _ALL, "the layer of a node", _NO_RANGES),
    Internal("torch.nn.Module._wrapped_call_impl", _ALL, "ranges of calls", _NO_RANGES),
    Internal("torch.nn.modules.loss._Loss", _ALL, "losses that are called outside a model", _NO_RANGES),
    Internal("torch.nn.Module._replicate_for_data_parallel", _ALL, "layers of DataParallel", _NO_RANGES),
    Internal("torch.autograd.profiler._enable_profiler", _ALL, "torch.profiler with stacks", _NO_RANGES),
    Internal("torch.autograd.profiler._is_profiler_enabled", _ALL, "torch.profiler with stacks", _NO_RANGES),
    Internal("torch.optim.Optimizer._patch_step_function", _ALL, "ranges of optimizer steps", _NO_RANGES),
    Internal("torch.optim.optimizer._global_optimizer_pre_hooks", _ALL, "ranges of optimizer steps", _NO_RANGES),
    Internal("torch.optim.optimizer._global_optimizer_post_hooks", _ALL, "ranges of optimizer steps", _NO_RANGES),
    Internal("torch.utils.data.dataloader._BaseDataLoaderIter", _ALL, "the wait for a batch", _NO_RANGES),
    Internal("torch.overrides._get_current_function_mode_stack", _ALL, "ops=True", _NO_RANGES),
    Internal("torch.overrides._pop_mode", _ALL, "ops=True", _NO_RANGES),
    Internal("torch.overrides._push_mode", _ALL, "ops=True", _NO_RANGES),
    Internal("torch._C._len_torch_function_stack", _ALL, "ops=True, memory=True", _NO_RANGES),
    Internal("torch._C._dynamo.eval_frame.set_eval_frame", _ALL, "ops=True, tests of the marks", _NO_RANGES),
    Internal(
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        ("2.7", ""),
        "functions that torch.compile skips",
        "skip_code and torch.compiler.disable, or a warning",
    ),
    Internal(
        "torch._C._dynamo.eval_frame.skip_code",
        ("", "2.6"),
        "functions that torch.compile skips",
        "set_code_exec_strategy, or a warning",
    ),
    Internal("torch._ops.OpOverload", _ALL, "names of custom operators", "they have no library"),
    Internal("torch._ops.OpOverloadPacket", _ALL, "names of custom operators", "they have no library"),
    Internal(
        "torch.utils._python_dispatch._disable_current_modes",
        _ALL,
        "formulas of custom operators",
        "their FLOPs are unknown",
    ),
    Internal("torch._C._get_accelerator", _ALL, "threads of devices other than CUDA", "they count as the CPU"),
    Internal("torch._C._profiler._RecordFunctionFast", _ALL, "ranges in torch.profiler", "it gets no ranges"),
    Internal("torch.utils.data._utils.worker._worker_loop", _ALL, "fetches of workers", "they have no ranges"),
    Internal("torch.Tensor.__dlpack_c_exchange_api__", ("2.10", ""), "shapes, read in C", "shapes are read in Python"),
)


def internal(name: str) -> Any:
    """Return an object of the table, or None if this release of PyTorch lacks it."""
    value: Any = torch
    path = "torch"
    for word in name.split(".")[1:]:
        path = f"{path}.{word}"
        value = getattr(value, word, sys.modules.get(path))  # torch.optim deletes its attribute `optimizer`
    return value


@functools.cache
def missing() -> tuple[str, ...]:
    """Return the names of objects that this release lacks and that ranges need."""
    return tuple(entry.name for entry in INTERNALS if entry.without == _NO_RANGES and internal(entry.name) is None)


is_compiling: Final = torch.compiler.is_dynamo_compiling
"""Return whether torch.compile traces this call."""
is_tracing: Final[Callable[[], Any]] = internal("torch._C._get_tracing_state")
"""Return the state of torch.jit.trace, or None if it does not trace."""
is_autocast: Final[Callable[[], bool]] = internal("torch._C._is_any_autocast_enabled")
"""Return whether autocast is enabled for a device."""
mode_count: Final[Callable[[], int]] = internal("torch._C._len_torch_function_stack")
"""Return the number of torch function modes of this thread."""
next_number: Final[Callable[[], int]] = internal("torch.autograd._get_sequence_nr")
"""Return the sequence number of the next node that this thread creates."""
current_node: Final[Callable[[], Any]] = internal("torch._C._current_autograd_node")
"""Return the node that the engine runs on this thread, or None."""
tracing_context: Final[Callable[[], Any]] = internal("torch._guards.TracingContext.try_get")
"""Return what torch.compile stores for the frame that it compiles, or None."""
