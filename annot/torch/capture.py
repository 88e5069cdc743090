"""The profiler API of CUDA, as PyTorch reaches it."""

from __future__ import annotations

import torch

from annot import emit
from annot.capture import NO_CUDA

__all__ = ["tell_cuda"]


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` or ``cudaProfilerStop``, by ``start`` and ``stop``; what goes wrong is a warning."""
    if not torch.cuda.is_available():
        emit.warn_once(NO_CUDA)
        return
    try:
        getattr(torch.cuda.profiler, what)()
    except Exception as error:
        emit.warn_once(f"capture=True: the CUDA profiler did not {what}: {error}")
