"""The threads that autograd has for devices: it runs the nodes of each accelerator on a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["are_there", "device_of", "visit"]

_ENGINE: Final = torch._C._ImperativeEngine()
_accelerator: Final[Callable[[], torch.device]] = getattr(torch._C, "_get_accelerator", lambda: torch.device("cpu"))

_NEXT: Final = (1 << 64) - 2
"""The number of a node that goes before all that are waiting, except those that accumulate gradients."""
_PATIENCE: Final = 1.0
"""For how many seconds a visit is waited for: the node that runs on the thread may wait for the caller."""


def are_there() -> bool:
    """Return whether a backward may run on such threads."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    return _accelerator().type not in ("cpu", "cuda")


def device_of(node: Any) -> torch.device | None:
    """Return the device on whose thread the engine runs a node; None if that is the CPU."""
    devices = (one.device for one in getattr(node, "_input_metadata", ()))
    return next((device for device in devices if device.type != "cpu"), None)


class _Visit(torch.autograd.Function):
    """A node that launches nothing on its device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        ctx.work()
        return None, None


def visit(tasks: list[tuple[torch.device, Callable[[], object]]]) -> None:
    """Run functions, each on the thread of a device, and wait for them.

    The only way to such a thread is a backward. It starts from a thread of its own: there, no mode of the caller sees
    its operations, it takes no sequence number of the caller, and its stream is no stream of the caller's.
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
    thread.join(_PATIENCE)
