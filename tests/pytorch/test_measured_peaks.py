"""Benchmarks of `annot calibrate`: their FLOPs and bytes, their sizes, and what counts as the peak."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from annot.torch import measured_peaks  # noqa: E402
from annot.torch.measured_peaks import Benchmark, attention, copy, device_name, gemm, measure_peaks  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_work_of_a_call(dtype: torch.dtype) -> None:
    """FLOPs are those that PyTorch counts and a count by hand; a call computes what it should."""
    for benchmark, size, by_hand in ((gemm(dtype, CPU), 48, 2 * 48 * 48 * 48), (attention(dtype, CPU), 32, 8388608)):
        call = benchmark.prepare(size)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            call()
        assert benchmark.amount(size) == counter.get_total_flops() == by_hand
    assert 8388608 == 16 * (2 * 32 * 128 * 32 + 2 * 32 * 32 * 128)  # heads of query · key and probabilities · value
    assert gemm(dtype, CPU).memory(48) == 3 * 48 * 48 * torch.empty(1, dtype=dtype).element_size()


def test_bytes_of_a_copy() -> None:
    """Each byte is read and written; the copy takes place."""
    benchmark = copy(CPU)
    assert (benchmark.amount(1000), benchmark.memory(1000)) == (2000, 2000)
    target = benchmark.prepare(1000)()
    assert isinstance(target, torch.Tensor)
    assert (target.dtype, target.numel(), int(target.sum())) == (torch.uint8, 1000, 1000)


class Device:
    """Device that computes 1600 a second, and 6400 at size 4. Its first call of a size is short, others vary."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.calls = 0

    def prepare(self, size: int) -> Callable[[], object]:
        self.sizes.append(size)
        self.calls = 0
        return lambda: size

    def time(self, *_: object) -> float:
        self.calls += 1
        factor = 0.001 if self.calls == 1 else 1 + self.calls % 3
        return factor * self.sizes[-1] / (6400 if self.sizes[-1] == 4 else 1600)


@pytest.mark.parametrize(
    ("caches", "memory", "largest", "rate"),
    [
        (False, 1 << 40, 32, 6400),  # 32 takes 20 ms
        (True, 1 << 40, 32, 1600),  # small sizes are in caches
        (True, 64, 16, 1600),  # a quarter of the memory is 16
        (True, 63, 8, 1600),
    ],
)
def test_sizes_follow_from_the_device(
    monkeypatch: pytest.MonkeyPatch, caches: bool, memory: int, largest: int, rate: float
) -> None:
    """A benchmark ends with long calls or where memory ends. The shortest call counts, but no first call."""
    device = Device()
    monkeypatch.setattr(measured_peaks, "_seconds", device.time)
    monkeypatch.setattr(measured_peaks, "_free_memory", lambda _: memory)
    benchmark = Benchmark(1, lambda size: size, lambda size: size, device.prepare, caches)
    assert measured_peaks._rate(benchmark, CPU) == pytest.approx(rate)
    assert device.sizes == [1 << power for power in range(largest.bit_length())]


def test_memory_and_name_of_this_machine() -> None:
    """The free memory is that of the machine; a missing limit is none."""
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    assert 1 << 24 < measured_peaks._free_memory(CPU) <= total
    assert measured_peaks._numbers("/nonexistent", "", 7, 1) == 7
    name, threads = device_name("cpu")
    assert name
    assert threads == torch.get_num_threads()
    for wrong in ("xla", "cuda:99", "no device"):
        with pytest.raises(ValueError, match=f"got '{wrong}'"):
            measure_peaks(wrong)


@pytest.mark.slow
def test_this_cpu() -> None:
    """Between what any CPU reaches and what none does; matrix multiplications need float32 as it was set before."""
    torch.set_float32_matmul_precision("high")
    try:
        measured = measure_peaks("cpu")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert {"f32", "f64"} <= measured.flops.keys()
    assert all(1e8 < rate < 1e15 for rate in (*measured.flops.values(), *measured.attention.values()))
    assert 1e8 < measured.bandwidth < 1e13
    assert (measured.device, measured.threads) == device_name("cpu")
