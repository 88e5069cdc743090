"""Builder for small profiles, row by row."""

from __future__ import annotations

from random import Random
from typing import Any

import polars as pl

from annot.analyze.tensor_cores import by_op_type
from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer, by_module, by_op, by_phase
from annot.profile import COPIES, KERNELS, LAUNCHES, RANGES, Profile, Schema

MAIN, ENGINE = 101, 102
"""Two threads of process 1. The process of a thread is its number divided by 100."""


class Rows:
    """Builder that collects the rows of a profile."""

    def __init__(self) -> None:
        self._ranges: list[dict[str, Any]] = []
        self._launches: list[dict[str, Any]] = []
        self._kernels: list[dict[str, Any]] = []
        self._copies: list[dict[str, Any]] = []

    def range(self, text: str, start: int, end: int | None, thread: int = MAIN, **more: Any) -> Rows:
        """Add a range."""
        row = {"id": len(self._ranges), "process": thread // 100, "thread": thread, "domain": "", "kind": "push"}
        self._ranges.append(row | {"text": text, "start": start, "end": end} | more)
        return self

    def kernel(self, at: int | None, gpu: tuple[int, int], thread: int = MAIN, name: str = "k", **more: Any) -> Rows:
        """Add a kernel that ran from `gpu[0]` to `gpu[1]`, launched at `at`, or without a known launch."""
        correlation = len(self._kernels) + 1
        process = {"process": thread // 100}
        if at is not None:
            call = {"thread": thread, "start": at, "end": at, "correlation": correlation, "name": "cudaLaunchKernel"}
            self._launches.append(process | call)
        row = {"device": 0, "stream": 7, "start": gpu[0], "end": gpu[1], "correlation": correlation, "name": name}
        self._kernels.append(process | row | more)
        return self

    def build(self, **meta: Any) -> Profile:
        """Return the profile."""
        return Profile.build(
            meta, ranges=_table(self._ranges, RANGES), launches=_table(self._launches, LAUNCHES),
            kernels=_table(self._kernels, KERNELS), copies=_table(self._copies, COPIES),
        )  # fmt: skip


def _table(rows: list[dict[str, Any]], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(schema), orient="row") if rows else pl.DataFrame(schema=dict(schema))


def disordered(details: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `annot.analyze.layer_details.by_detail` with a mean outside minimum and maximum."""
    bad = [
        (pl.col(f"{of}_min_ns") > pl.col(f"{of}_mean_ns")) | (pl.col(f"{of}_mean_ns") > pl.col(f"{of}_max_ns"))
        for of in ("host", "gpu")
    ]
    return details.filter(pl.any_horizontal(bad).fill_null(False))


def check_modules_and_operations(attribution: Attribution) -> None:
    """Check that rows by module and by operation add up to the total, the latter to the rows by phase."""
    rows = by_module(attribution), by_op_type(attribution), by_op(attribution)
    times, (modules, types, operations) = ("host_self_ns", "gpu_self_ns", "kernels", "copies"), rows
    whole = attribution.nodes.select(pl.col(times).sum()).row(0)
    known = modules.height > 0
    assert known == bool((by_layer(attribution).filter(pl.col("layer") != UNATTRIBUTED)["module"] != "").any())
    assert modules.select(pl.col(times).sum()).row(0) == (whole if known else (0,) * 4)
    assert types.select(pl.col("host_ns").sum()).item() == (whole[0] if known else 0)
    assert types.select(pl.col("gpu_ns").sum()).item() == (whole[1] if known and whole[2] + whole[3] else 0)
    assert set(types["module"]) == set(modules["module"])
    if operations.height:
        phases = by_phase(attribution).rename({"host_ns": times[0], "gpu_ns": times[1]})
        assert _by_phase(operations, times) == _by_phase(phases, times)


def _by_phase(rows: pl.DataFrame, times: tuple[str, ...]) -> list[tuple[Any, ...]]:
    sums = rows.group_by("phase").agg(pl.col(times).sum().cast(pl.Int64)).sort("phase")
    return sums.filter(pl.any_horizontal(pl.col(times) != 0)).rows()


def many_kernels(events: int) -> Profile:
    """Return a profile of kernels of 1 to 7 ns, one every 10 ns."""
    number = pl.int_range(events, eager=True)
    kernels = pl.DataFrame({"start": number * 10, "length": 1 + number % 7}).with_columns(
        process=pl.lit(1, pl.Int64), device=pl.lit(0, pl.Int64), stream=pl.lit(7, pl.Int64),
        end=pl.col("start") + pl.col("length"), name=pl.format("k{}", pl.col("start") % 5),
    )  # fmt: skip
    return Profile.build({}, kernels=kernels.drop("length"))


def busy_steps(steps: int, *, device: bool) -> Profile:
    """Return steps of four blocks with three layers each, of random lengths, and idle time between the steps.

    Layers launch a kernel each on one of two streams, on which kernels of different layers may run at once.
    """
    rows, random, clock = Rows(), Random(7), 0
    for step in range(steps):
        begin = clock
        for block in range(4):
            for layer in range(3):
                start = clock + 50 + 300 * layer
                rows.range(f"net.{block}.{layer} Linear |fwd", start, start + random.randint(20, 250))
                at = start + random.randint(5, 600)
                if device:
                    end = at + random.randint(5, random.choice((60, 60, 60, 900)))
                    rows.kernel(start + 5, (at, end), name=f"k{layer}", stream=random.choice((7, 8)))
            rows.range(f"net.{block} Block |fwd", clock, clock + 1000)
            clock += 1000 + random.randint(0, 100)
        rows.range(f"Batch {step} |step", begin, clock)
        clock += random.randint(0, 3000)
    return rows.build()
