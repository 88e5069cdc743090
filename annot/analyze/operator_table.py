"""Operators of a profile by argument shape, with their GPU time, kernels and work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.gpu_activities import attributed_blocks
from annot.analyze.kernel_kinds import MATRIX, with_classes
from annot.analyze.peak_sources import default_peaks
from annot.analyze.roofline import precision_of, under_roof
from annot.analyze.roofs import Peaks
from annot.analyze.work.call import Work
from annot.analyze.work.operator_calls import work_of_labels
from annot.attribution import UNATTRIBUTED, Attribution, column_ops
from annot.attribution.attribute import self_times
from annot.attribution.dense_ids import Numbers
from annot.attribution.layer_tables import NO_OPERATION, phases_of_nodes
from annot.attribution.range_trees import Forest, inside_engine_range
from annot.labels.tag import parse
from annot.util.weak_keys import once_for_each

__all__ = ["OperatorTable", "by_op_roofline", "by_op_work", "operator_table"]

_ROLES: Final = ("operator", "backward")
_WORK: Final = ("flops", "bytes_read", "bytes_written")
_KEYS: Final = ("op", "inputs", "phase")
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """The operators of a profile.

    Operators are nested: ``aten::linear`` calls ``aten::addmm``, which launches the kernel. The outermost operator with
    known work counts with all that it calls. An operator outside such operators counts with its own launches only. So
    no time and no work counts twice.

    Args:
        rows: a row per operator, call and phase: group (its number), op, call (as in `annot.profile.RANGES`, null:
            unknown), inputs (shapes and dtypes of its tensors, null: unknown), phase, calls, host_self_ns, and flops,
            bytes_read and bytes_written of all calls (null: unknown). Other ranges are the operation
            ``(no operation)``, and unattributed GPU activities ``(unattributed)``.
        kernels: a row per group and name of a GPU activity: group, name, kernel, calls, gpu_ns.
        groups: the group of each range of the tree (Int32).
    """

    rows: pl.DataFrame
    kernels: pl.DataFrame
    groups: pl.Series


@once_for_each
def operator_table(attribution: Attribution) -> OperatorTable:
    """Return the operators of a profile. A profile without operators has no rows."""
    forest = attribution.forest
    works = work_of_labels(forest)
    sums, groups = _grouped(forest, works)
    outside_ns = attribution.nodes["host_self_ns"][attribution.attributor.outside] or 0
    lost = pl.DataFrame(
        [(column_ops.NONE, UNATTRIBUTED, outside_ns), (column_ops.NONE, "other", 0)],
        schema={"label": pl.Int32, "phase": pl.String, "host_self_ns": sums.schema["host_self_ns"]},
        orient="row",
    )
    sums = pl.concat([sums, lost.join(sums, on=["label", "phase"], how="anti")], how="diagonal").with_row_index("group")
    keys = sums.select("label", "phase", pl.col("group").cast(pl.Int32))
    outside = {name: keys.filter(label=column_ops.NONE, phase=name)["group"][0] for name in (UNATTRIBUTED, "other")}
    rows = pl.DataFrame([_row(attribution, works, *row) for row in sums.iter_rows()], schema=_SCHEMA, orient="row")
    if not forest.labels["role"].is_in(_ROLES).gather(forest.tree["label"]).any():
        rows = rows.clear()
    return OperatorTable(rows, _kernels(attribution, groups, outside), groups)


def _grouped(forest: Forest, works: list[Work | None]) -> tuple[pl.DataFrame, pl.Series]:
    """Return label, phase, calls and host_self_ns of each group, and the group of each range of the tree."""
    tree, labels = forest.tree, forest.labels
    is_operator = labels["role"].is_in(_ROLES)
    has_work = pl.Series([work is not None for work in works], dtype=pl.Boolean).gather(tree["label"])
    top = column_ops.outermost(tree["parent"], column_ops.inside(has_work, tree["parent"]))
    # The phase is a number: texts, or a join by label and phase, take much memory with millions of ranges.
    phases = phases_of_nodes(forest)
    names = pl.concat([phases, pl.Series(["other"])]).unique(maintain_order=True)
    number, other = phases.cast(pl.Enum(names)).to_physical().cast(pl.Int64), names.to_list().index("other")
    first = ~inside_engine_range(tree, labels) & (top == pl.int_range(tree.height, dtype=pl.Int32, eager=True))
    ranges = pl.DataFrame({"top": top, "calls": first, "host_self_ns": self_times(forest)})
    del top, first  # may have millions of rows
    keys, groups, tables = Numbers(), [pl.Series("group", dtype=pl.Int32)], list[pl.DataFrame]()
    for block in ranges.iter_slices(_SLICE):
        label, path = (tree[name].gather(block["top"]) for name in ("label", "path"))
        label = pl.select(pl.when(is_operator.gather(label)).then(label).otherwise(column_ops.NONE)).to_series()
        phase = number.gather(column_ops.known(path)).fill_null(other)
        groups.append(keys.of((label.cast(pl.Int64) + 1) * len(names) + phase).alias("group"))
        tables.append(block.select("calls", "host_self_ns", groups[-1]).group_by("group").agg(pl.all().sum()))
    sums = pl.concat(tables or [ranges.select("calls", "host_self_ns", group="top")])
    sums = sums.group_by("group").agg(pl.all().sum()).sort("group")
    label = (keys.known // len(names) - 1).cast(pl.Int32).alias("label")
    phase = names.gather(keys.known % len(names)).alias("phase")
    return sums.select(label, phase, "calls", "host_self_ns"), pl.concat(groups)


_SCHEMA: Final = {
    "group": pl.Int32, "op": pl.String, "call": pl.String, "inputs": pl.String, "phase": pl.String,
    **dict.fromkeys(("calls", "host_self_ns", *_WORK), pl.Int64),
}  # fmt: skip


def _row(
    attribution: Attribution,
    works: list[Work | None],
    group: int,
    label: int,
    phase: str,
    calls: int | None,
    host: int | None,
) -> tuple[object, ...]:
    if label == column_ops.NONE:
        name = UNATTRIBUTED if phase == UNATTRIBUTED else NO_OPERATION
        return group, name, None, None, phase, 0, host or 0, *[None] * 3
    name, call = attribution.forest.labels.select("layer", "call").row(label)
    tag, work, count = parse(call) if call else None, works[label], calls or 0
    shapes = " ".join(map(str, tag.tensors)) if tag and tag.phase != "collective" else None
    # Copies and views have no known work: the formulas of layers do not count what they move.
    sums = (
        [None] * 3 if work is None or not work.bytes_read else [min(getattr(work, of) * count, _MOST) for of in _WORK]
    )
    return group, name, call, shapes or None, phase, count, host or 0, *sums


_MOST: Final = 2**63 - 1


def _kernels(attribution: Attribution, groups: pl.Series, outside: dict[str, int]) -> pl.DataFrame:
    reasons = attribution.attributor.reasons
    schema = {"group": pl.Int32, "name": pl.String, "kernel": pl.Boolean, "calls": pl.Int64, "gpu_ns": pl.Int64}
    tables = [pl.DataFrame(schema=schema)]
    for block in () if attribution.source is None else attributed_blocks(attribution):
        without = pl.when(block["node"].is_in(reasons)).then(outside[UNATTRIBUTED]).otherwise(outside["other"])
        group = pl.coalesce(groups.gather(column_ops.known(block["range"])), without).cast(pl.Int32)
        rows = block.select("name", "kernel", "gpu_ns", group=group).group_by("group", "name", "kernel")
        sums = rows.agg(calls=pl.len().cast(pl.Int64), gpu_ns=pl.col("gpu_ns").sum())
        tables.append(sums.select(pl.col(name).cast(of) for name, of in schema.items()))
    return pl.concat(tables).group_by("group", "name", "kernel").agg(pl.all().sum())


def by_op_work(attribution: Attribution) -> pl.DataFrame:
    """Return the work of operators by argument shape, the longest first. The times add up to those of `by_op`.

    Returns:
        op, inputs, phase, calls, gpu_self_ns, host_self_ns, flops, bytes (read and written), bytes_read, bytes_written,
        flops_per_s, kernels, copies; see `OperatorTable`.
    """
    rows = _timed_operators(attribution)
    time = pl.col("gpu_self_ns") if rows["gpu_self_ns"].sum() else pl.col("host_self_ns")
    speed = pl.when(time > 0).then(pl.col("flops") * 1e9 / time).alias("flops_per_s")
    return rows.select(
        *_KEYS, "calls", "gpu_self_ns", "host_self_ns", "flops", "bytes", "bytes_read", "bytes_written", speed,
        "kernels", "copies",
    )  # fmt: skip


def by_op_roofline(attribution: Attribution, peaks: Peaks | None = None) -> pl.DataFrame:
    """Return the roofline of operators by argument shape, the longest first; `peaks` are those of the device.

    Returns:
        op, inputs, phase, calls, time_ns (GPU time, or host time without a GPU), time_share (0 to 1), flops, bytes,
        intensity, flops_per_s, bytes_per_s, precision, roof_share and bound of `annot.analyze.roofline.layer_roofline`.
    """
    rows, unknown = _timed_operators(attribution), pl.lit(None, pl.Int64)
    time = pl.col("gpu_self_ns") if rows["gpu_self_ns"].sum() else pl.col("host_self_ns")
    rows = rows.with_columns(time_ns=time, gpu_idle_ns=unknown, gpu_launch_ns=unknown)
    rows = under_roof(rows, peaks or default_peaks(attribution))
    share = pl.col("time_ns") / pl.col("time_ns").sum()
    return rows.select(
        *_KEYS, "calls", "time_ns", share.fill_nan(None).alias("time_share"), "flops", "bytes", "intensity",
        "flops_per_s", "bytes_per_s", "precision", "roof_share", "bound",
    )  # fmt: skip


def _timed_operators(attribution: Attribution) -> pl.DataFrame:
    """The rows of `OperatorTable` by `_KEYS` with GPU times, bytes and precision."""
    table = operator_table(attribution)
    kernels = table.kernels.group_by("group").agg(
        gpu_self_ns=pl.col("gpu_ns").sum(),
        kernels=pl.col("calls").filter("kernel").sum(),
        copies=pl.col("calls").filter(~pl.col("kernel")).sum(),
    )
    matrix = with_classes(table.kernels.filter("kernel")).filter(pl.col("kind").is_in(MATRIX))
    longest = matrix.sort("gpu_ns", "name", descending=[True, False]).group_by("group").agg(pl.col("name").first())
    rows = table.rows.join(kernels, on="group", how="left").join(longest, on="group", how="left")
    rows = rows.with_columns(pl.col("gpu_self_ns", "kernels", "copies").fill_null(0))
    precision = [precision_of(name, shapes) for name, shapes in rows.select("name", "inputs").iter_rows()]
    rows = rows.with_columns(pl.Series("precision", precision, pl.String))
    worked = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in _WORK]
    counts = pl.col("calls", "host_self_ns", "gpu_self_ns", "kernels", "copies").sum()
    rows = (
        rows.sort("gpu_self_ns", descending=True)
        .group_by(_KEYS, maintain_order=True)
        .agg(counts, *worked, pl.col("precision").first())
    )
    rows = rows.with_columns(bytes=pl.col("bytes_read") + pl.col("bytes_written"))
    rows = rows.filter(pl.any_horizontal(pl.col("calls", "kernels", "copies", "host_self_ns") > 0))
    last = pl.col("op").replace_strict({NO_OPERATION: 1, UNATTRIBUTED: 2}, default=0)
    return rows.sort(last, -pl.col("gpu_self_ns"), -pl.col("host_self_ns"), *_KEYS, nulls_last=True)
