"""The CUDA profiler API, called in the CUDA runtime that TensorFlow has loaded. TensorFlow does not wrap it."""

from __future__ import annotations

import contextlib
import ctypes
import functools

import tensorflow as tf

from annot.emit import client
from annot.emit.capture_window import NO_CUDA

__all__ = ["tell_cuda"]


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` or ``cudaProfilerStop``; a failure is a warning.

    Args:
        what: ``start`` or ``stop``.
    """
    if not tf.config.list_physical_devices("GPU"):
        client.warn_once(NO_CUDA)
        return
    runtime = _runtime()
    if runtime is None:
        client.warn_once("capture=True: the CUDA runtime library was not found, so the collector does not start")
        return
    code = getattr(runtime, f"cudaProfiler{what.capitalize()}")()
    if code:
        client.warn_once(f"capture=True: the CUDA profiler did not {what} (CUDA error {code})")


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    version = str(tf.sysconfig.get_build_info().get("cuda_version", ""))
    major = version.partition(".")[0]
    for name in (f"libcudart.so.{major}", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)  # returns the library of this name that is already loaded
    return None
