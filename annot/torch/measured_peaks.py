"""Peaks of a CPU or GPU, measured with matrix multiplications, copies and attention in PyTorch.

Each benchmark grows until a call takes `_LONG` seconds or the memory is used up, so that its size follows from the
speed of the device. A peak is the work of a call over the shortest time of several calls, at the best of the sizes. The
first call of a size chooses and loads the kernels, and does not count.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from annot.emit.machine import cpu_name
from annot.labels.marks import cpu_model

_LONG: Final = 0.02
"""Time in seconds of a call that is long enough: a thousand times the launch of a kernel, and several times the time in
which a memory fills the largest caches of CPUs (1 GB at 460 GB/s)."""
_SECONDS: Final = 0.15
_CALLS: Final = 3
"""Minimum total time in seconds and number of the timed calls of a size."""
_ROOM: Final = 0.25
"""Share of the free memory that the tensors of a benchmark may take."""
_TENSOR: Final = " tensor"
_HEADS: Final = 16
_HEAD: Final = 128
"""Heads and head size of the attention."""

_Call: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Work of a size that can grow.

    Args:
        first: the smallest size.
        amount: FLOPs or bytes of a call with a size.
        memory: bytes of its tensors.
        prepare: returns the call.
        caches: whether small sizes are faster because they fit into caches.
    """

    first: int
    amount: Callable[[int], int]
    memory: Callable[[int], int]
    prepare: Callable[[int], _Call]
    caches: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured peaks of a device.

    Args:
        device: name of the GPU, or model of the CPU.
        threads: threads that PyTorch uses on a CPU; None: a GPU.
        flops: FLOP/s of matrix multiplications by precision, as in `annot.analyze.peaks.Peaks`.
        bandwidth: bytes/s of copies, bytes read and bytes written.
        attention: FLOP/s of a forward `scaled_dot_product_attention` by precision.
    """

    device: str
    threads: int | None
    flops: dict[str, float]
    bandwidth: float
    attention: dict[str, float]


def measure_peaks(device: str = "cpu") -> Measurement:
    """Measure the peaks of a device, in a few seconds.

    Measured peaks are lower than those of a data sheet: clocks fall under load, and kernels leave units idle.

    Args:
        device: ``cpu`` or ``cuda`` (also AMD GPUs), with an index if needed.

    Raises:
        RuntimeError: PyTorch cannot run the benchmarks, for example because memory is short.
        ValueError: PyTorch cannot use the device on this machine.

    Example:
        >>> measure_peaks("cpu").bandwidth > 1e8  # doctest: +SKIP
        True
    """
    where = _device(device)
    precisions = dict(_precisions(where))
    attends: str = next(name for name in ("bf16 tensor", "f16 tensor", "f32 tensor", "f32") if name in precisions)
    with torch.no_grad():
        flops = {name: _gemm_rate(name, dtype, where) for name, dtype in precisions.items()}
        bandwidth = _rate(copy(where), where)
        attended = {attends: _rate(attention(precisions[attends], where), where)}
    return Measurement(*device_name(device), flops, bandwidth, attended)


def device_name(device: str) -> tuple[str, int | None]:
    """Return the name of a GPU and None, or the model of the CPU and the threads that PyTorch uses.

    Raises:
        ValueError: PyTorch cannot use the device on this machine.

    Example:
        >>> device_name("cpu")[1] == torch.get_num_threads()
        True
    """
    where = _device(device)
    if where.type == "cpu":
        return cpu_model(cpu_name()) or platform.machine(), torch.get_num_threads()
    return torch.cuda.get_device_name(where), None


def gemm(dtype: torch.dtype, device: torch.device) -> Benchmark:
    """Return the multiplication of two square matrices. Its size is their width n: 2n³ FLOPs, three matrices.

    The numbers are random, because GPUs multiply zeros and ones at higher clocks.
    """

    def prepare(width: int) -> _Call:
        left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=out)

    return Benchmark(256, lambda width: 2 * width**3, lambda width: 3 * width**2 * dtype.itemsize, prepare)


def copy(device: torch.device) -> Benchmark:
    """Return a copy of memory. Its size is in bytes, of which each is read once and written once."""

    def prepare(size: int) -> _Call:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return Benchmark(1 << 24, lambda size: 2 * size, lambda size: 2 * size, prepare, caches=True)


def attention(dtype: torch.dtype, device: torch.device) -> Benchmark:
    """Return the forward pass of attention without a mask.

    Its size is the length n of the sequence: n² products of queries with keys, and as many of probabilities with
    values, of 128 multiply-adds, in 16 heads. Memory is that of the method that stores the probabilities, in float32.
    """

    def prepare(length: int) -> _Call:
        query, key, value = (torch.randn(1, _HEADS, length, _HEAD, device=device).to(dtype) for _ in range(3))
        return lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value)

    def memory(length: int) -> int:
        return _HEADS * length * (4 * _HEAD * dtype.itemsize + 4 * length)

    return Benchmark(256, lambda length: 4 * _HEADS * length**2 * _HEAD, memory, prepare)


def _device(device: str) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError:
        where = torch.device("meta")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if where.type != "cpu" and not (where.type == "cuda" and (where.index or 0) < gpus):
        raise ValueError(f"device must be cpu or one of the {gpus} GPUs (cuda:N) that PyTorch sees, got {device!r}")
    return where


def _precisions(device: torch.device) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the precisions of matrix multiplications, in which the device is not merely emulated, and their dtypes."""
    units = _matrix_units(device)
    half = [("f16", torch.float16), ("bf16", torch.bfloat16)]
    if device.type == "cuda":
        half = [(name, dtype) for name, dtype in half if name in units or name == "f16"]
    single = [("f32", torch.float32), *([("tf32", torch.float32)] if "tf32" in units else [])]
    for name, dtype in (("f64", torch.float64), *single, *half):
        if _supports(dtype, device):
            yield name + _TENSOR * (name in units), dtype


def _matrix_units(device: torch.device) -> frozenset[str]:
    """Return the precisions that matrix multiplications compute on Tensor Cores (AMD: Matrix Cores).

    NVIDIA: architecture white papers from Volta to Blackwell. AMD: ISA guides of CDNA to CDNA 4, and of RDNA 3.
    """
    if device.type != "cuda":
        return frozenset()
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        chip = str(properties.gcnArchName).partition(":")[0]
        kinds = {
            "f16 bf16": True,
            "f32": chip.startswith(("gfx908", "gfx90a", "gfx94", "gfx95")),
            "f64": chip.startswith(("gfx90a", "gfx94", "gfx95")),
            "tf32": chip.startswith("gfx94"),
        }
    else:
        capability = (properties.major, properties.minor)
        kinds = {
            "f16": capability >= (7, 0),
            "bf16 tf32": capability >= (8, 0),
            "f64": capability in ((8, 0), (9, 0), (10, 0)),
        }
    return frozenset(name for names, has in kinds.items() if has for name in names.split())


def _supports(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether PyTorch multiplies matrices of a dtype; CPUs gained float16 in PyTorch 2.2."""
    try:
        torch.mm(*(torch.ones(16, 16, dtype=dtype, device=device) for _ in range(2)))
    except RuntimeError:
        return False
    return True


def _gemm_rate(precision: str, dtype: torch.dtype, device: torch.device) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision.startswith("tf32") else "highest")
    try:
        return _rate(gemm(dtype, device), device)
    finally:
        torch.set_float32_matmul_precision(before)


def _rate(benchmark: Benchmark, device: torch.device) -> float:
    """Return the best FLOP/s or bytes/s of a benchmark: of all its sizes, or of the largest if `caches` is true."""
    best, size, room = 0.0, benchmark.first, _ROOM * _free_memory(device)
    while True:
        call = benchmark.prepare(size)
        _seconds(call, device)  # the first call chooses and loads kernels
        shortest = _shortest(call, device)
        rate = benchmark.amount(size) / shortest
        best = rate if benchmark.caches else max(best, rate)
        if shortest >= _LONG or benchmark.memory(2 * size) > room:
            return max(best, benchmark.amount(size) / _shortest(call, device))
        size *= 2


def _shortest(call: _Call, device: torch.device) -> float:
    """Return the shortest time of several calls in seconds. Other programs can only make a call longer."""
    times: list[float] = []
    while len(times) < _CALLS or sum(times) < _SECONDS:
        times.append(_seconds(call, device))
    return min(times)


def _seconds(call: _Call, device: torch.device) -> float:
    """Return the time of a call in seconds, until the device has finished it."""
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _free_memory(device: torch.device) -> int:
    """Return the free memory in bytes; of a CPU within the limit of the cgroup (version 2)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _numbers("/proc/meminfo", "MemAvailable:", 1 << 30, 1024)
    limit, used = (_numbers(f"/sys/fs/cgroup/memory.{name}", "", 1 << 62, 1) for name in ("max", "current"))
    return max(min(free, limit - (used if limit < 1 << 62 else 0)), 0)


def _numbers(path: str, head: str, otherwise: int, unit: int) -> int:
    """Return the number after a word in a file of the kernel; `otherwise` if it has none."""
    try:
        with open(path, encoding="ascii") as file:
            words = next(line.removeprefix(head).split() for line in file if line.startswith(head))
        return int(words[0]) * unit
    except (OSError, ValueError, IndexError, StopIteration):  # no cgroup v2, or "max": no limit
        return otherwise
