"""The profiler API of CUDA, as PyTorch reaches it."""

from __future__ import annotations

import torch

from annot import emit, own
from annot.capture import NO_CUDA

__all__ = ["tell_cuda"]


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` or ``cudaProfilerStop``, by ``start`` and ``stop``; what goes wrong is a warning."""
    if not torch.cuda.is_available():
        emit.warn_once(NO_CUDA)
        return
    note = f"capture=True: the CUDA profiler did not {what}"
    own.attempt(getattr(torch.cuda.profiler, what), otherwise=None, note=note)
