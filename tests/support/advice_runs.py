"""Runs of a few steps of a small model on a GPU, and what advice says of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from tables import Rows

from annot.analyze.advice import Advice, advise
from annot.attribution.attribute import attribute
from annot.profile import COPIES, LAUNCHES, Profile

US = 1000
TENSOR = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
SINGLE = "ampere_sgemm_128x64_tn"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float>()"
CONV = "net.conv Conv2d [64,3,224,224]bf16 |fwd"
CONV_KERNEL = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn"
V100 = {"name": "Tesla V100-SXM2-16GB", "computeMajor": 7, "computeMinor": 0, "numSms": 80}
P100 = {"name": "Tesla P100-SXM2-16GB", "computeMajor": 6, "computeMinor": 0, "numSms": 56}


@dataclass
class Run:
    """Steps of a millisecond of a model of one layer, whose kernels leave no gap."""

    kernels: list[tuple[str, int]] = field(default_factory=lambda: [(TENSOR, 900)])
    """Names, and how long they run (µs)."""
    steps: int = 4
    text: str = "net.a Linear [64,1024]bf16 |fwd"
    wait: int = 0
    """Between steps for data, µs."""
    gap: int | tuple[int, ...] = 0
    """Before each kernel, µs."""
    slower: int = 0
    """How much longer (µs) the kernels of every other step run."""
    lengths: tuple[int, ...] = ()
    """Of steps, µs, instead of what the kernels take."""
    first: list[tuple[str, int]] = field(default_factory=list)
    """Further kernels of the first step."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Names and lengths (µs) of further API calls in each step."""
    copy: int = 0
    """Length (µs) of a copy to the device before the kernels of each step, beside which nothing runs."""
    pinned: bool | None = False
    """Whether these copies are from pinned memory; None: unknown."""
    optimizer: int = 0
    """Kernels of the optimizer in each step, of 1 µs."""
    devices: tuple[int, ...] = (0,)
    slow: float = 1
    """How many times as long kernels run on the last device."""
    meta: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Profile:
        """Return the profile."""
        rows, copies, calls, at = Rows(), list[dict[str, Any]](), list[dict[str, Any]](), 10_000
        for step in range(self.steps):
            begin = at
            if self.wait:
                rows.range("Data |data", at * US, (at + self.wait) * US)
                begin = at = at + self.wait
            if self.copy:
                copies.append(
                    {
                        "process": 1,
                        "device": 0,
                        "stream": 9,
                        "start": at * US,
                        "end": (at + self.copy) * US,
                        "kind": "HtoD",
                        "bytes": 1,
                        "pinned": self.pinned,
                    }
                )
                at += self.copy
            kernels = self.kernels + (self.first if step == 0 else [])
            gaps = self.gap if isinstance(self.gap, tuple) else (self.gap,) * len(kernels)
            for (name, length), gap in zip(kernels, gaps, strict=True):
                at += gap
                length += self.slower * (step % 2)
                launched = at - 4 if gap > 1000 else begin + 3  # a launched kernel starts soon on an idle device
                self._launch(rows, at, name, length, launched)
                at += round(length * self.slow)
            rows.range(self.text, (begin + 1) * US, (at - 1) * US)
            layer_end = at
            for _ in range(self.optimizer):
                rows.kernel(at * US, (at * US, (at + 1) * US), name=ELEMENTWISE)
                at += 1
            if self.optimizer:
                rows.range("Optimizer Adam |opt", layer_end * US, (at + 1) * US)
            for name, length in self.calls:
                calls.append(
                    {
                        "process": 1,
                        "thread": 101,
                        "start": (begin + 2) * US,
                        "end": (begin + 2 + length) * US,
                        "name": name,
                    }
                )
            at = max(at, begin + self.lengths[step]) if self.lengths else at + 2
            rows.range(f"Batch {step} |step", begin * US, at * US)
        built = rows.build(**self.meta)
        launches = pl.concat([built.launches, pl.DataFrame(calls, schema=dict(LAUNCHES), orient="row")])
        copied = pl.DataFrame(copies, schema=dict(COPIES), orient="row")
        return Profile.build(built.meta, ranges=built.ranges, launches=launches, kernels=built.kernels, copies=copied)

    def _launch(self, rows: Rows, at: int, name: str, length: int, launched: int) -> None:
        for device in self.devices:
            longer = round(length * (self.slow if device == self.devices[-1] else 1))
            rows.kernel(launched * US, (at * US, (at + longer) * US), name=name, device=device)


def advice_on(run: Run | Profile) -> dict[str, Advice]:
    """Return the advice on a run by its rule."""
    profile = run.build() if isinstance(run, Run) else run
    return {advice.rule: advice for advice in advise(attribute(profile))}


def lost_kernels() -> Profile:
    """Return a profile with most GPU time outside of all ranges."""
    return (
        Rows().kernel(10, (20, 900)).range("net.a Linear [8,8]f32 |fwd", 1000, 1100).kernel(1010, (1020, 1100)).build()
    )


def without_steps(run: Run) -> Profile:
    """Return the profile of a run whose steps have no ranges."""
    profile = run.build()
    return replace(profile, ranges=profile.ranges.filter(~pl.col("text").str.ends_with("|step")))
