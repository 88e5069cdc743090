"""Device threads of autograd: the engine runs the nodes of each accelerator on a separate thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["device_of", "in_use", "visit"]

_ENGINE: Final = torch._C._ImperativeEngine()
_accelerator: Final[Callable[[], torch.device]] = getattr(torch._C, "_get_accelerator", lambda: torch.device("cpu"))

_NEXT: Final = (1 << 64) - 2
"""Sequence number that runs a node before all queued ones except AccumulateGrad nodes."""
_TIMEOUT: Final = 1.0
"""Timeout of a visit (s). The node that runs on the device thread may itself be waiting for the caller."""


def in_use() -> bool:
    """Return whether a backward may use device threads."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    return _accelerator().type not in ("cpu", "cuda")


def device_of(node: Any) -> torch.device | None:
    """Return the device whose thread runs a node, or None for the CPU."""
    devices = (one.device for one in getattr(node, "_input_metadata", ()))
    return next((device for device in devices if device.type != "cpu"), None)


class _Visit(torch.autograd.Function):
    """Node that calls `work` in its backward and launches nothing on the device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        ctx.work()
        return None, None


def visit(tasks: list[tuple[torch.device, Callable[[], object]]]) -> None:
    """Run functions, each on the thread of its device, and wait up to `_TIMEOUT` seconds.

    Code can only reach a device thread through a backward. It starts from a new thread, to be independent of the
    caller's modes, sequence numbers and streams.
    """

    def run() -> None:
        for device, work in tasks:
            with contextlib.suppress(Exception):
                x = torch.empty(0, device=device, requires_grad=True)
                root: Any = _Visit.apply(x, work)  # type: ignore[no-untyped-call]
                root.grad_fn._set_sequence_nr(_NEXT)
                _ENGINE.run_backward((root,), (root.detach(),), False, False, (), True, True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
