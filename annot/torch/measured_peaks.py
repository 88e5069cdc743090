"""Peak FLOP/s and bandwidth of a CPU or GPU, measured with matrix multiplications and copies in PyTorch."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Final

import torch

__all__ = ["measure_peaks"]

_WIDTH: Final = {"cpu": 1024, "cuda": 8192}
_COPIED: Final = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Size of a copy (bytes), larger than the caches."""
_SECONDS: Final = 0.2
_MIN_CALLS: Final = 3
_PRECISIONS: Final = (
    ("f64", torch.float64, False),
    ("f32", torch.float32, False),
    ("tf32 tensor", torch.float32, True),
    ("f16 tensor", torch.float16, True),
    ("bf16 tensor", torch.bfloat16, True),
)


def measure_peaks(device: str = "cpu") -> tuple[str, dict[str, float], float, str]:
    """Measure peak FLOP/s with matrix multiplications and peak bandwidth with copies, in about two seconds.

    A copy of n bytes counts as 2n bytes: n read and n written. Measured peaks are lower than those of a data sheet.

    Args:
        device: ``cpu`` or ``cuda``, with an index if needed.

    Returns:
        Name of the device, peak FLOP/s by precision, peak bytes/s, and a description of the source: the fields of
        `annot.analyze.roofs.Peaks`.

    Raises:
        ValueError: PyTorch cannot use the device on this machine.

    Example:
        >>> measure_peaks("cpu")[2] > 1e8
        True
    """
    kind = torch.device(device).type
    if kind not in _WIDTH or (kind == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device {device!r} is not available in PyTorch on this machine: use cpu or cuda")
    precisions = _PRECISIONS if kind == "cuda" else _PRECISIONS[:2]
    flops = {name: _matmul_flops(device, kind, dtype, tensor_cores) for name, dtype, tensor_cores in precisions}
    name = torch.cuda.get_device_name(device) if kind == "cuda" else _processor()
    threads = "" if kind == "cuda" else f" on {torch.get_num_threads()} threads"
    source = f"measured on this machine with PyTorch {torch.__version__}{threads}: matrix multiplications, copies"
    return name, flops, _copy_bandwidth(device, kind), source


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def _matmul_flops(device: str, kind: str, dtype: torch.dtype, tensor_cores: bool) -> float:
    width = _WIDTH[kind]
    one, other = (torch.ones(width, width, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(one)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tensor_cores
    try:
        return 2 * width**3 / _shortest(lambda: torch.mm(one, other, out=out), kind)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _copy_bandwidth(device: str, kind: str) -> float:
    size = _COPIED[kind]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _shortest(lambda: target.copy_(source), kind)


def _shortest(work: Callable[[], object], kind: str) -> float:
    """Return the shortest time (s) of several calls, after one warmup call."""
    times: list[float] = []
    began = time.perf_counter()
    with torch.no_grad():
        while len(times) <= _MIN_CALLS or time.perf_counter() - began < _SECONDS:
            begin = time.perf_counter()
            work()
            if kind == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return min(times[1:])
