"""Private functions of CUDA builds of TensorFlow: its own NVTX ranges, and the CUDA profiler API.

TensorFlow enables its ranges, one per operation in the domain ``TSL``, for its own tracer only and offers no public
switch. CUDA builds export the private function ``tsl::profiler::AnnotationStack::Enable(bool)``: 2.21 does, 2.16 and
older do not. This module calls it by its mangled name. If the library does not export it, `without_ranges` returns an
explanation and nothing changes. The profiler API is that of the CUDA runtime that TensorFlow has loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from annot.emit import client
from annot.emit.pausable import NO_CUDA

_SYMBOL: Final = "_ZN3tsl8profiler15AnnotationStack6EnableEb"


def without_ranges() -> str | None:
    """Return why TensorFlow's operations cannot have NVTX ranges, as one sentence; None: they can."""
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return f"TensorFlow {tf.__version__} was built without CUDA, so its operations do not emit NVTX ranges"
    if _range_switch() is None:
        return (
            f"TensorFlow {tf.__version__} does not export the switch for the NVTX ranges of its operations ({_SYMBOL})"
        )
    return None


def switch_ranges(on: bool) -> None:
    """Switch the NVTX ranges of TensorFlow's operations in graphs on or off, if `without_ranges` returns None."""
    function = _range_switch()
    if function is not None:
        function(on)


@functools.cache
def _range_switch() -> Any:
    """Return the function from TensorFlow's libraries; None if they do not export it."""
    for path in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_*.so*")):
        try:
            function = getattr(ctypes.CDLL(str(path)), _SYMBOL)
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = [ctypes.c_bool], None
        return function
    return None


def tell_cuda(what: str) -> None:
    """Call ``cudaProfilerStart`` (``start``) or ``cudaProfilerStop`` (``stop``); a failure is a warning."""
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
    major = str(tf.sysconfig.get_build_info().get("cuda_version", "")).partition(".")[0]
    for name in (f"libcudart.so.{major}", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)  # returns the library of this name that is already loaded
    return None
