"""The profiler API of CUDA, which TensorFlow has no function for: that of the CUDA runtime it has loaded itself."""

from __future__ import annotations

import contextlib
import ctypes
import functools

import tensorflow as tf

from annot import emit
from annot.capture import NO_CUDA

__all__ = ["tell_cuda"]


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` or ``cudaProfilerStop``, by ``start`` and ``stop``; what goes wrong is a warning."""
    if not tf.config.list_physical_devices("GPU"):
        emit.warn_once(NO_CUDA)
        return
    runtime = _runtime()
    if runtime is None:
        emit.warn_once("capture=True: the library of the CUDA runtime was not found: nothing starts a collector")
        return
    code = getattr(runtime, f"cudaProfiler{what.capitalize()}")()
    if code:
        emit.warn_once(f"capture=True: the CUDA profiler did not {what}: error {code} of the CUDA runtime")


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    version = str(tf.sysconfig.get_build_info().get("cuda_version", ""))
    major = version.partition(".")[0]
    for name in (f"libcudart.so.{major}", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)  # the one that is loaded already, if its name is this
    return None
