"""Breakdown of step time: GPU activities by kind and by name, and idle time by what the CPU does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import polars as pl

from annot.analyze.cpu_parts import COMPUTED, going_on_without_gpu
from annot.analyze.gpu_activities import attributed_blocks
from annot.analyze.idle import SAME, idle_intervals
from annot.analyze.overlap import exclusive, merged
from annot.analyze.part_names import CPU_PARTS, GPU_PARTS, IDLE, OTHER, OUTSIDE, PartName
from annot.analyze.step_parts import (
    WORK,
    Device,
    Intervals,
    StepInputs,
    by_device,
    intervals_of,
    shares_of_devices,
    step_inputs,
)
from annot.analyze.tensor_cores import matrix_units
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.util.weak_keys import once_for_each

__all__ = ["part_names", "shares_of_steps", "step_time", "step_work"]


@once_for_each
def step_time(attribution: Attribution, inputs: StepInputs | None = None) -> pl.DataFrame:
    """Return the breakdown of step time into disjoint shares that add up exactly.

    The step time is that of `annot.analyze.step_parts.step_inputs`, without warm-up. Each device of a process has a
    breakdown of the whole step time of the process.

    The columns are process; device (null: the process uses no device); share: one of
    `annot.analyze.part_names.GPU_PARTS`, or of `CPU_PARTS` for a process without GPU activities; ns: time of the share;
    hidden_ns: time overlapped by an earlier share, such as copies and collectives behind kernels; wall_ns: step time,
    the sum of ns over the shares of a device. All are Int64 except share.
    """
    return shares_of_steps(attribution, inputs or step_inputs(attribution))


def shares_of_steps(attribution: Attribution, inputs: StepInputs) -> pl.DataFrame:
    """Return the table of `step_time` of the windows of `inputs`."""
    causes = idle_intervals(attribution, inputs)
    rows = shares_of_devices(inputs, partial(_going_on, attribution, causes))
    on_cpu = (pl.col("share") == COMPUTED[0]).any().over("process", "device")
    rest = IDLE[-1] if known(attribution.meta) else "unrecorded"
    named = pl.when(pl.col("share") == "idle").then(pl.when(on_cpu).then(pl.lit(OUTSIDE)).otherwise(pl.lit(rest)))
    share = named.otherwise(pl.col("share").replace(SAME if rest == IDLE[-1] else dict.fromkeys(SAME, rest)))
    # Other ranges contain the phases. Nothing is hidden behind idle time.
    hides = ~pl.col("share").is_in([OTHER, *IDLE[1:]])
    sums = rows.with_columns(share.alias("share")).with_columns(hidden_ns=pl.when(hides).then("hidden_ns").otherwise(0))
    keys = ("process", "device", "share")
    sums = sums.group_by(keys, maintain_order=True).agg(pl.col("ns", "hidden_ns").sum(), pl.col("wall_ns").first())
    return sums.select(rows.columns)


def part_names(attribution: Attribution) -> dict[str, PartName]:
    """Return the parts of the step time of a profile in order of precedence, with the name of its matrix units."""
    present = set(step_time(attribution)["share"])
    used = [names for names in (GPU_PARTS, CPU_PARTS) if present & (names.keys() - _SHARED)] or [GPU_PARTS]
    units = matrix_units(attribution.meta)
    named = {
        key: [text.replace("Tensor Cores", units) for text in texts] for names in used for key, texts in names.items()
    }
    return {key: PartName(*texts) for key, texts in named.items()}


_SHARED: Final = GPU_PARTS.keys() & CPU_PARTS.keys()


def _going_on(
    attribution: Attribution, causes: Callable[[Device], dict[str, Intervals]], inputs: StepInputs, device: Device
) -> dict[str, Intervals]:
    """The intervals of each share of one device, or of the process if it uses no device."""
    here = inputs.of_device(device)
    if here.is_empty():
        return going_on_without_gpu(attribution, inputs, device[0])
    busy: dict[str, Intervals] = {share: partial(_intervals_of_share, here, share) for share in WORK}
    return busy | causes(device)


def _intervals_of_share(work: pl.DataFrame, share: str) -> pl.DataFrame:
    return intervals_of(work.filter(pl.col("share") == share))


def step_work(
    attribution: Attribution, windows: pl.DataFrame | None = None, groups: pl.Series | None = None
) -> pl.DataFrame:
    """Return the GPU activities of the steps with their exclusive time.

    The columns are node, name, kernel, pinned (see `annot.profile.COPIES`), calls (started) and wall_ns.

    Where activities overlap on a device, the time counts to the one that started first. The times of a device add up to
    its busy time. Removing an activity shortens the steps by at most its time. `windows` are those of
    `annot.analyze.step_parts.StepInputs`. With `groups`, a number for each range of the tree, `node` is the group of
    the range, -1 outside any range.
    """
    spans = step_inputs(attribution).windows if windows is None else windows
    of_device = spans.partition_by("process", "device", as_dict=True)
    codes: dict[str, int] = {}
    blocks = [] if attribution.source is None else attributed_blocks(attribution)
    work = by_device(_coded(_grouped(block, groups), codes) for block in blocks)
    tables = [pl.DataFrame(schema=_EXCLUSIVE)]
    for key in list(work):
        rows = pl.concat(work.pop(key))
        if key in of_device:
            tables.append(_exclusive(rows, merged(of_device[key])))
    activities = pl.concat(tables).group_by(list(_GROUPS), maintain_order=True)
    sums = activities.agg(pl.col("calls", "wall_ns").sum())
    return sums.with_columns(pl.Series("name", list(codes), pl.String).gather(sums["name"]))


_GROUPS: Final = {"node": pl.Int32, "name": pl.Int32, "kernel": pl.Boolean, "pinned": pl.Boolean}
_EXCLUSIVE: Final = {
    **_GROUPS,
    "calls": pl.Int64,
    "wall_ns": pl.Int64,
}


def _grouped(block: pl.DataFrame, groups: pl.Series | None) -> pl.DataFrame:
    """The activities with their group as the node."""
    if groups is None:
        return block
    return block.with_columns(groups.gather(column_ops.known(block["range"])).fill_null(column_ops.NONE).alias("node"))


def _coded(block: pl.DataFrame, codes: dict[str, int]) -> pl.DataFrame:
    """The activities with known times, with a code (Int32) instead of the name. New names are added to the codes."""
    rows = block.drop_nulls(["start", "end"])
    texts = rows["name"].cast(pl.String).fill_null("")
    for name in texts.unique():
        codes.setdefault(name, len(codes))
    ids = [pl.col(name) if name in rows.columns else pl.lit(None).alias(name) for name in ("process", "device")]
    pinned = (pl.col("pinned") if "pinned" in rows.columns else pl.lit(None)).cast(pl.Boolean).alias("pinned")
    times = pl.col("start", "end").cast(pl.Int64)
    name = texts.replace_strict(codes, return_dtype=pl.Int32).alias("name")
    return rows.select(
        *(column.cast(pl.Int64) for column in ids), times, pl.col("node").cast(pl.Int32), "kernel", pinned, name
    )


def _exclusive(rows: pl.DataFrame, window: pl.DataFrame) -> pl.DataFrame:
    """The GPU activities of one device: a row per node and name."""
    rows = exclusive(rows, window)
    sums = rows.group_by(list(_GROUPS), maintain_order=True).agg(pl.col("calls", "wall_ns").sum())
    return sums.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0)).select(list(_EXCLUSIVE))
