"""Attribution of all host and GPU time of a profile to ranges and layers.

Host times are null in profiles without a host clock, such as those of Nsight Compute. With the host time outside any
range, the rows of a profile without GPU activity add up to 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import FARTHEST, Account, Attributor, Reach, memory_of
from annot.attribution.graphs import grow_captured
from annot.attribution.ingest import EPOCH, IngestedRanges, overlap
from annot.attribution.launches import Launches
from annot.attribution.range_trees import Forest, calls_in_graphs, grow, runs_of_graphs
from annot.attribution.steps import Steps, find_steps, time_in, time_outside_steps, without_steps, worker_processes
from annot.errors import AnnotError
from annot.profile import Source

_TIMED: Final = ("host", "host_self", "start", "step", "data", "forward", "backward", "optimizer")
_COLUMNS: Final = (*(f"{name}_ns" for name in _TIMED), "warmup")


def known(meta: Mapping[str, Any]) -> bool:
    """Return whether the profile with this `meta` has host times."""
    return meta.get("host_times", True) is not False


def without_unknown(rows: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows, with null host times if the profile lacks host times."""
    if known(meta):
        return rows
    return rows.with_columns(pl.lit(None, rows.schema[name]).alias(name) for name in _COLUMNS if name in rows.columns)


def process_spans(forest: Forest) -> pl.DataFrame:
    """Return process (code), start and end (ns), first and last instant in ranges; without processes that load data."""
    rows = forest.every_range()
    spans = rows.group_by("thread").agg(pl.col("start").min(), pl.col("end").max())
    process = forest.threads.table["process_code"].gather(spans["thread"]).alias("process")
    spans = spans.select(process, "start", "end").filter(~process.is_in(worker_processes(forest).implode()))
    return spans.group_by("process").agg(pl.col("start").min(), pl.col("end").max())


def outside_ranges_ns(whole: Forest, forest: Forest, steps: Steps) -> int:
    """Return the time (ns) in which no thread of a process is in a range, added up over processes.

    Args:
        whole: the ranges of all steps.
        forest: the ranges of the selected steps.
        steps: the steps. The time of the selected steps counts, or of the whole run.
    """
    spans = process_spans(whole)
    if steps.choice is not None:
        spans = steps.table if steps.spans is None else steps.spans
        spans = spans.filter(steps.selected(spans["step"]))
    covered = _merged(forest)
    until, since = (time_in(covered, spans["process"], spans[name]) for name in ("end", "start"))
    return int((spans["end"] - spans["start"] - until + since).sum())


def _merged(forest: Forest) -> pl.DataFrame:
    """Return process, start, length and until (running sum of the lengths) of the times in ranges, by start."""
    top = forest.tree.lazy().filter(pl.col("parent") == NONE).select("thread", "start", "end").collect()
    process = forest.threads.table["process_code"].gather(top["thread"]).alias("process")
    rows = top.select(process, "start", "end").sort("start")
    earlier = pl.col("end").cum_max().shift(1).over("process")
    rows = rows.with_columns(pl.max_horizontal("start", earlier)).filter(pl.col("end") > pl.col("start"))
    length = pl.col("end") - pl.col("start")
    return rows.select("process", "start", length=length, until=length.cum_sum().over("process"))


STEADY: Final = "steady"
"""Value of `steps` for the steps without warm-up, or the whole profile without known steps."""

_MOST_NAMED: Final = 8
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Attribution:
    """A profile whose ranges have parents, layers and times.

    Args:
        whole: the ranges of all steps.
        forest: the ranges of the selected steps.
        steps: the steps of the run.
        nodes: a row per node of `forest.nodes`, with self times: parent, key, calls, start (of its first range, null
            without ranges), host_self_ns, host_overlap_ns, gpu_self_ns, kernels, copies, gpu_by_time_ns,
            gpu_by_sequence_ns. The child nodes together take host_overlap_ns longer than the calls of the node,
            because they overlap in time. The nodes of `annot.attribution.gpu_time.REASONS` hold the unattributed GPU
            activities, that of `OUTSIDE_RANGES` the host time outside ranges of a profile without GPU activity.
        names: a row per node and name of a GPU activity: node, name, kernel, calls, gpu_ns, min_ns, max_ns,
            gpu_by_time_ns, and gpu_guessed_ns, launched while several ranges of the process were innermost.
        busy: a row per layer and device, including the layers inside: key, process, device, busy_ns, first_ns, last_ns.
        device_busy: a row per device: process, device, busy_ns, first_ns, last_ns.
        step_work: the GPU activities of the run by step, -1 outside the steps: process_code, step, gpu_ns, launched_ns
            (with a known launch), kernels, copies, first_ns (the first start) and last_ns (the last end).
        crossing_gpu_ns: GPU time launched inside each crossing range.
        meta: `meta` of the profile.
        attributor: returns the range and the node of further GPU activities.
        memory: memory of the layers (see `annot.attribution.gpu_time.memory_of`), or None if it was not recorded.
        source: the profile, for reports on individual GPU activities. None for tables built by hand.
        of_steps: returns the attribution of the same ranges with other steps selected.
    """

    whole: Forest
    forest: Forest
    steps: Steps
    nodes: pl.DataFrame
    names: pl.DataFrame
    busy: pl.DataFrame
    device_busy: pl.DataFrame
    step_work: pl.DataFrame
    crossing_gpu_ns: pl.Series
    meta: dict[str, Any]
    attributor: Attributor
    memory: pl.DataFrame | None = None
    source: Source | None = None
    of_steps: Callable[[slice], Attribution] | None = None

    def activity_blocks(self) -> Iterator[pl.DataFrame]:
        """Read the GPU activities of the selected steps again, in blocks with the columns of `Attributor.of`.

        An attribution without its source has no blocks.
        """
        for block in () if self.source is None else self.source.work_blocks():
            yield self.attributor.of(block).filter(~pl.col("left_out"))

    @property
    def left_out(self) -> int:
        """Number of GPU activities outside the selected steps."""
        if self.steps.choice is None:
            return 0
        rows = self.step_work.filter(~self.steps.selected(self.step_work["step"]))
        return int(rows.select(pl.col("kernels", "copies").sum()).sum_horizontal().item())

    def range_work(self, *names: str) -> pl.DataFrame:
        """Return the GPU activities of each range of the tree.

        Args:
            names: some of gpu_self_ns, gpu_by_time_ns, kernels and copies; none: all of them.

        Returns:
            These columns (Int64).
        """
        sums = {name: column_ops.Sums(self.forest.tree.height) for name in names or _RANGE_WORK}
        for block in self.activity_blocks():
            for name, total in sums.items():
                which, number = _RANGE_WORK[name]
                total.add(*block.filter(which).select("range", number=number).get_columns())
        return pl.DataFrame([sums.pop(name).result().alias(name) for name in list(sums)])

    def range_times(self) -> pl.DataFrame:
        """Return a row per range of the tree.

        The columns are host_ns, host_self_ns, gpu_ns (total time), gpu_self_ns, kernels, copies (of this range only),
        gpu_by_time_ns (the part of gpu_self_ns launched on other threads).
        """
        tree, own = self.forest.tree, self.range_work().cast(dict.fromkeys(("kernels", "copies"), pl.UInt32))
        length = (tree["end"] - tree["start"]).alias("host_ns")
        inclusive = column_ops.fold(tree["parent"], own["gpu_self_ns"]).alias("gpu_ns")
        return pl.DataFrame([length, self_times(self.forest), inclusive, *own.get_columns()])


def attribute(
    source: Source,
    *,
    domain: str | None = None,
    steps: slice | Literal["steady"] | None = None,
    step_range: str | None = None,
    step_kind: str | None = None,
    whole: Forest | None = None,
) -> Attribution:
    """Nest the ranges and attribute each GPU activity to the innermost range around its launch.

    The launches of a backward operation belong to the layer of the forward operation with the same sequence number. A
    launch outside any range of its own thread belongs to the range that is innermost on another thread of the process
    at that time. If layers have ranges of processes, as in a TensorFlow graph, a launch outside the layers of its own
    thread belongs to the innermost open range of the process (see `annot.attribution.ingest` and
    `annot.attribution.launches`).

    Args:
        source: the profile.
        domain: NVTX domain of the ranges to use ("" is the default domain), or None for all domains.
        steps: numbers of the steps to use, or None for the whole profile, including time outside steps. `STEADY` uses
            the steps after the warm-up, or the whole profile if its steps are unknown. Of steps of several kinds, it
            uses the most frequent kind. Without selected steps, those that contain less than half of the GPU time do
            not count as the steps of the run.
        step_range: text of the ranges that are the steps, with ``#`` for any number. None detects the steps.
        step_kind: kind of the steps to use, such as ``decode``, or None for all kinds.
        whole: `Attribution.whole` of another attribution of the same source and domain, so that its ranges are not
            nested again.

    Returns:
        The ranges with their parents, layers and times.

    Raises:
        AnnotError: the sum of all times exceeds 64 bits of nanoseconds, as in a damaged profile.
        ValueError: the profile lacks steps, the selected steps, ranges with the text of `step_range`, steps of the
            kind, or ranges in the domain.
    """

    def of_steps(chosen: slice) -> Attribution:
        return attribute(
            source, domain=domain, steps=chosen, step_range=step_range, step_kind=selected.kind, whole=every_range
        )

    every_range = _forest(source, domain) if whole is None else whole
    forest, selected = _select_steps(source, every_range, domain, steps, step_range, step_kind)
    attribution = _attribute(source, every_range, forest, selected, of_steps)
    if isinstance(steps, slice) or step_range is not None or selected.kinds["kind"].count():
        return attribution
    work = attribution.step_work
    outside_ns, total_ns = int(work.filter(step=NONE)["launched_ns"].sum()), int(work["gpu_ns"].sum())
    if selected.table.is_empty() or 2 * outside_ns <= total_ns:
        return attribution
    return _attribute(source, every_range, every_range, selected.minor(1 - outside_ns / total_ns), of_steps)


def _attribute(
    source: Source, whole: Forest, forest: Forest, steps: Steps, of_steps: Callable[[slice], Attribution]
) -> Attribution:
    reach = Reach()
    for block in (*forest.tree.iter_slices(_SLICE), *forest.crossing.iter_slices(_SLICE)):
        reach.add(block)
    if reach.too_far:
        raise _too_long(source, "ranges")
    host = _host_times(forest, steps)
    launches = Launches(forest, steps, source.launch_blocks())
    if not launches.in_order:
        launches = Launches(forest, steps, _sorted_block(source.launch_blocks()))
    captured = None if source.captured.is_empty() else grow_captured(source.captured)
    attributor = Attributor(forest, launches, whole, captured)
    account = _account(source, forest, launches, attributor)
    names, busy = account.of_names(), account.busy()
    nodes = _node_table(forest, names, host)
    on_gpu = nodes.select(pl.col("kernels", "copies").sum()).sum_horizontal().item()
    if known(source.meta) and not (on_gpu or source.meta.get("totals")):
        nodes[attributor.outside, "host_self_ns"] = outside_ranges_ns(whole, forest, steps)
    return Attribution(
        whole=whole,
        forest=forest,
        steps=steps,
        nodes=nodes,
        names=names,
        busy=busy.drop_nulls("key"),
        device_busy=busy.filter(pl.col("key").is_null()).drop("key"),
        step_work=account.of_steps(),
        crossing_gpu_ns=launches.crossing.gpu_ns(),
        meta=dict(source.meta),
        attributor=attributor,
        memory=memory_of(source, forest),
        source=source,
        of_steps=of_steps,
    )


def _select_steps(
    source: Source,
    forest: Forest,
    domain: str | None,
    steps: slice | Literal["steady"] | None,
    step_range: str | None,
    step_kind: str | None,
) -> tuple[Forest, Steps]:
    """Return the ranges of the selected steps, and all steps, of the ranges of all steps."""
    choice = None if steps == STEADY else steps
    if step_range is None and source.meta.get("totals"):
        selected = without_steps("each range of the profile stands for all its calls", choice)
    else:
        selected = find_steps(forest, step_range, choice)
    if step_range is not None and selected.table.is_empty():
        raise ValueError(f"{source.meta.get('source', '')} has no range {step_range!r}")
    if step_kind is not None or (steps == STEADY and selected.kinds.height > 1):
        selected = _select_kind(selected, step_kind or selected.kinds["kind"][0], source)
    if steps == STEADY:
        selected = replace(selected, choice=selected.after_warmup(forest, source.last_launch()))
    if selected.choice is None:
        return forest, selected
    if selected.table.is_empty():
        raise ValueError(f"{source.meta.get('source', '')} has no steps to select from")
    if selected.steady().is_empty():
        raise ValueError(
            f"{source.meta.get('source', '')} has no such steps, only 0 to {selected.table['step'].max()!r}"
        )
    selected = selected.with_waits(forest)
    return _forest(source, domain, forest, selected), selected


def _select_kind(steps: Steps, kind: str, source: Source) -> Steps:
    if kind not in steps.kinds["kind"]:
        kinds = ", ".join(steps.kinds["kind"].drop_nulls())
        others = f"only {kinds}" if kinds else "because the kinds of its steps are unknown"
        raise ValueError(f"{source.meta.get('source', '')} has no {kind} steps, {others}")
    return steps.of_kind(kind)


def _forest(source: Source, domain: str | None, whole: Forest | None = None, steps: Steps | None = None) -> Forest:
    """Return the ranges of a domain, and of the selected steps of a whole profile. Steps contain no epochs."""
    threads = None if whole is None else whole.threads
    epochs = None if whole is None else whole.labels.filter(pl.col("layer") == EPOCH, "loop")["text"]
    ingested, timestamps, any_open, domains = IngestedRanges(threads), list[int](), False, set[str]()
    for ranges in source.range_blocks():
        if ranges["start"].null_count() or ranges["thread"].null_count():  # possible with third-party readers
            ranges = ranges.drop_nulls(["start", "thread"])
        latest = ranges["start"].max(), ranges["end"].max()
        timestamps += [instant for instant in latest if isinstance(instant, int)]
        any_open |= bool(ranges["end"].null_count())
        if domain is not None:
            domains.update(ranges["domain"].unique().cast(pl.String).drop_nulls())
            ranges = ranges.filter(pl.col("domain") == domain)
        if threads is not None and steps is not None:
            process = threads.table["process_code"].gather(threads.codes(ranges["thread"]))
            ranges = ranges.filter(steps.selected(steps.at(process, ranges["start"])))
            if epochs is not None and epochs.len():
                ranges = ranges.filter(~pl.col("text").cast(pl.String).is_in(epochs.implode()).fill_null(False))
        ingested.add(ranges)
    if domain is not None and domain not in domains:
        named = (
            f"only in {', '.join(map(repr, sorted(domains)[:_MOST_NAMED]))}" if domains else "nor in any other domain"
        )
        more = ", ..." if len(domains) > _MOST_NAMED else ""
        raise ValueError(f"{source.meta.get('source', '')} has no range in the domain {domain!r}, {named}{more}")
    if any_open:  # open ranges end at the last known host timestamp
        latest_call = source.last_launch()
        timestamps += [] if latest_call is None else [latest_call]
    return grow(ingested, max(timestamps, default=0), source.meta.get("scopes", ()))


def _too_long(source: Source, what: str) -> AnnotError:
    years = round(FARTHEST / (365 * 86400 * 10**9))
    return AnnotError(f"{source.meta.get('source', '')} has {what} that take more than {years} years in all")


def _account(source: Source, forest: Forest, launches: Launches, attributor: Attributor) -> Account:
    """Sum up the GPU activities. Repeat if new layer paths appeared, and sort the blocks if they were out of order."""
    for sort in (False, False, True):
        account = Account(forest, launches, attributor)
        for block in _sorted_block(source.work_blocks()) if sort else source.work_blocks():
            account.add(block)
            if account.reach.too_far:
                raise _too_long(source, "kernels and copies")
        if account.settled:
            return account
    raise AssertionError("the account of sorted blocks with known paths is settled")


def _sorted_block(blocks: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    yield pl.concat(list(blocks), how="diagonal").sort("start", maintain_order=True)


def self_times(forest: Forest) -> pl.Series:
    """Return the host self time of each range of the tree (ns, Int64)."""
    tree = forest.tree.select("parent", length=pl.col("end") - pl.col("start"))
    inside = column_ops.Sums(tree.height)
    inside.add(*tree.get_columns())
    again = overlap(forest.tree, forest.thread_range_count)
    outside = tree.drop_in_place("length") - inside.result()
    if again.height:  # a copy of all ranges
        outside = outside.scatter(again["row"], outside.gather(again["row"]) + again["overlap_ns"])
    return outside.alias("host_self_ns")


_HOST_TIMES: Final = {"node": pl.Int32} | dict.fromkeys(("start", "calls", "host_self_ns", "host_overlap_ns"), pl.Int64)


def _host_times(forest: Forest, steps: Steps) -> pl.DataFrame:
    """Return node, start (of the first range), calls, host_self_ns and host_overlap_ns of each node with ranges.

    A range with the same node as its parent, such as an operation, is part of the parent's call. A run of a compiled
    graph calls each layer in it once. Time outside the selected steps does not count.
    """
    tree = forest.tree
    runs = runs_of_graphs(tree, forest.labels)
    tables = [pl.DataFrame(schema=_HOST_TIMES), calls_in_graphs(tree, runs, forest.nodes)]
    for block in tree.iter_slices(_SLICE):
        parent = column_ops.known(block["parent"])
        around, apart = tree["path"].gather(parent), runs.gather(parent).is_null()
        rows = block.select("start", node="path", around=around, apart=apart, ns=pl.col("end") - pl.col("start"))
        first = pl.col("start").min()
        calls = (pl.col("node").ne_missing(pl.col("around")) & pl.col("apart")).sum().cast(pl.Int64)
        tables.append(rows.group_by("node").agg(first, calls.alias("calls"), host_self_ns=pl.col("ns").sum()))
        inside = rows.drop_nulls("around").group_by(node="around").agg(host_self_ns=-pl.col("ns").sum())
        tables.append(inside)
    again = overlap(forest.tree, forest.thread_range_count)
    ns = again["overlap_ns"]
    tables.append(pl.DataFrame({"node": tree["path"].gather(again["row"]), "host_self_ns": ns, "host_overlap_ns": ns}))
    outside = time_outside_steps(forest, steps)
    outside_ns, around = outside["outside_ns"], tree["parent"].gather(outside["row"])
    for row, ns in ((outside["row"], -outside_ns), (column_ops.known(around), outside_ns)):
        tables.append(pl.DataFrame({"node": tree["path"].gather(row), "host_self_ns": ns}).drop_nulls("node"))
    added = pl.concat(tables, how="diagonal").group_by("node")
    return added.agg(pl.col("start").min(), pl.col("calls", "host_self_ns", "host_overlap_ns").sum())


def _node_table(forest: Forest, names: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    gpu = names.group_by("node").agg(
        gpu_self_ns=pl.col("gpu_ns").sum(),
        kernels=pl.col("calls").filter("kernel").sum(),
        copies=pl.col("calls").filter(~pl.col("kernel")).sum(),
        gpu_by_time_ns=pl.col("gpu_by_time_ns").sum(),
    )
    table = pl.DataFrame(forest.nodes.columns()).with_columns(node=pl.int_range(pl.len(), dtype=pl.Int32))
    for times in (host, gpu):
        table = table.join(times, on="node", how="left", maintain_order="left")
    by_sequence = pl.col("node").is_in(sorted(forest.matched))
    counted = pl.exclude("parent", "key", "node", "start").fill_null(0)
    table = table.with_columns(counted)
    return table.with_columns(gpu_by_sequence_ns=pl.when(by_sequence).then("gpu_self_ns").otherwise(0)).drop("node")


_RANGE_WORK: Final = {
    "gpu_self_ns": (pl.lit(True), pl.col("gpu_ns")),
    "gpu_by_time_ns": (pl.col("by_time"), pl.col("gpu_ns")),
    "kernels": (pl.col("kernel"), pl.lit(1, pl.Int64)),
    "copies": (~pl.col("kernel"), pl.lit(1, pl.Int64)),
}
"""The GPU activities that count in each column of `Attribution.range_work`, and the number to sum."""
