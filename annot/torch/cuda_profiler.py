"""CUDA profiler API of PyTorch."""

from __future__ import annotations

import torch

from annot.emit import client, guard
from annot.emit.capture_window import NO_CUDA

__all__ = ["tell_cuda"]


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` (``start``) or ``cudaProfilerStop`` (``stop``). A failure is a warning."""
    if not torch.cuda.is_available():
        client.warn_once(NO_CUDA)
        return
    note = f"capture=True: the CUDA profiler did not {what}"
    guard.attempt(getattr(torch.cuda.profiler, what), otherwise=None, note=note)
