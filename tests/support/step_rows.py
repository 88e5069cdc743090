"""Profile of steps as rows, for reference implementations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from annot.profile import COPIES, KERNELS, LAUNCHES, RANGES, Profile

GEMM, TENSOR, ALL_REDUCE = "ampere_sgemm_64x64_nn", "ampere_fp16_s16816gemm_fp16_64x64_nn", "ncclDevKernel_AllReduce"


@dataclass
class Rows:
    """Builder of a profile that also keeps the rows. An interval is its start and end."""

    ranges: list[dict[str, Any]] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)

    def range(self, text: str, start: int, end: int, process: int = 1, thread: int = 0) -> Rows:
        row = {"id": len(self.ranges), "process": process, "thread": process * 10 + thread, "domain": "", "text": text}
        self.ranges.append(row | {"kind": "push", "start": start, "end": end})
        return self

    def work(self, name: str, launched: int | None, start: int, end: int, process: int = 1, device: int = 0) -> Rows:
        number = len(self.kernels) + len(self.copies) + 1
        row = {"process": process, "device": device, "stream": 7, "start": start, "end": end, "correlation": number}
        if name == "copy":
            self.copies.append(row | {"kind": "HtoD", "bytes": 8})
        else:
            self.kernels.append(row | {"name": name})
        if launched is not None:
            call = {"process": process, "thread": process * 10, "start": launched, "end": launched + 1}
            self.launches.append(call | {"correlation": number, "name": "cudaLaunchKernel"})
        return self

    def build(self, **meta: Any) -> Profile:
        def table(rows: list[dict[str, Any]], schema: Any) -> pl.DataFrame:
            return pl.DataFrame(rows, schema=dict(schema), orient="row")

        return Profile.build(
            meta, ranges=table(self.ranges, RANGES), launches=table(self.launches, LAUNCHES),
            kernels=table(self.kernels, KERNELS), copies=table(self.copies, COPIES),
        )  # fmt: skip
