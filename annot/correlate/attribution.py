"""Give every nanosecond on the host and on the devices to one range and one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.account import FARTHEST, Account, Places, Reach
from annot.correlate.forest import Forest, grow
from annot.correlate.intake import Intake
from annot.correlate.launches import Launches, read_launches
from annot.correlate.memory import memory_of
from annot.correlate.range_work import range_work
from annot.correlate.shared_ranges import overlap
from annot.correlate.steps import Steps, find_steps
from annot.correlate.threads import Threads
from annot.errors import AnnotError
from annot.profile import Source

__all__ = ["Attribution", "attribute", "self_times"]

_MOST_NAMED: Final = 8
_SLICE: Final = 1 << 20
"""Ranges that are looked at in one go: a column of all of them would weigh on what else is in memory."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """A profile whose ranges have parents, layers and times.

    Args:
        whole: the ranges of all steps.
        forest: those that take part.
        steps: the steps of the run.
        nodes: a row per node of `forest.nodes`: parent, key, calls, start (of its first range; null: none),
            host_self_ns, host_overlap_ns, gpu_self_ns, kernels, copies, gpu_by_time_ns, gpu_by_sequence_ns; what
            belongs to the node and to none below it. What lies below takes longer than the node's own calls by
            host_overlap_ns, since it ran at the same time. Those of `annot.correlate.account.REASONS` hold what belongs
            to no range.
        names: node, name, kernel, calls, gpu_ns, min_ns, max_ns: a row per node and name of work.
        busy: key, process, device, busy_ns, first_ns, last_ns: a row per layer and device, with what lies below.
        device_busy: process, device, busy_ns, first_ns, last_ns: a row per device.
        step_work: process_code, step, gpu_ns, kernels, copies: the device work launched in each step.
        range_work: reads the work once more, and gives of each range of the tree gpu_self_ns, gpu_by_time_ns,
            kernels, copies.
        loose_gpu_ns: device time launched inside each range outside the tree.
        guessed_ns: device time launched while several ranges of its process were open, none in another.
        left_out: pieces of work that belong to no step that was asked for.
        meta: that of the profile.
        places: tells of further work where it belongs.
        memory: what layers took of it, as `annot.correlate.memory.memory_of` gives it; None: nobody says.
        source: what was attributed, for those who look at single pieces of work; None: a table made by hand.
        of_steps: attributes the same ranges of some steps only.
    """

    whole: Forest
    forest: Forest
    steps: Steps
    nodes: pl.DataFrame
    names: pl.DataFrame
    busy: pl.DataFrame
    device_busy: pl.DataFrame
    step_work: pl.DataFrame
    range_work: Callable[[], pl.DataFrame]
    loose_gpu_ns: pl.Series
    guessed_ns: int
    left_out: int
    meta: dict[str, Any]
    places: Places
    memory: pl.DataFrame | None = None
    source: Source | None = None
    of_steps: Callable[[slice], Attribution] | None = None

    def ranges(self) -> pl.DataFrame:
        """Return the ranges that nest: a row each, a parent before its children.

        Returns:
            id, process, thread, start, end, parent (row in this table, null at the top), depth, domain, text,
            layer, module, phase, shapes, number, host_ns, host_self_ns, gpu_ns (with what lies inside),
            gpu_self_ns, kernels, copies (innermost only), gpu_by_time_ns (the part of gpu_self_ns that was
            launched on other threads). The ranges of threads come first, then those of processes.
        """
        tree = self.forest.tree
        length = (tree["end"] - tree["start"]).alias("host_ns")
        own = self.range_work()
        parent = pl.when(pl.col("parent") != sweep.NONE).then("parent").cast(pl.Int64)
        inclusive = sweep.fold(tree["parent"], own["gpu_self_ns"]).alias("gpu_ns")
        times = (length, self_times(self.forest), inclusive, *own.get_columns())
        return self._spoken(tree).with_columns(parent.alias("parent"), _depths(self.forest), *times)

    def loose_ranges(self) -> pl.DataFrame:
        """Return the ranges outside the tree: as `ranges`, without places in it and without times of their own."""
        loose = self.forest.loose
        length = (loose["end"] - loose["start"]).alias("host_ns")
        return self._spoken(loose).with_columns(length, self.loose_gpu_ns.alias("gpu_ns"))

    def _spoken(self, ranges: pl.DataFrame) -> pl.DataFrame:
        said = self.forest.says.select("domain", "text", "layer", "module", "phase", "shapes", "number")
        where = self.forest.threads.table.select("process", "thread")[ranges["thread"]]
        return pl.concat([ranges.drop("thread", "says"), where, said[ranges["says"]]], how="horizontal")


def attribute(
    source: Source, *, domain: str | None = None, steps: slice | None = None, step_range: str | None = None
) -> Attribution:
    """Nest the ranges and give each piece of device work to the innermost range around its launch.

    Launches of other threads that lie in no range there belong to the layer that a sequence number leads to,
    else to the range of another thread of the process that was innermost at the time. Where layers have ranges of
    the process, as in a TensorFlow graph, a launch that lies in no layer of its own thread belongs to the innermost
    one that is open: see `annot.correlate.shared_ranges` and `annot.correlate.shared_launches`.

    Args:
        source: what was recorded.
        domain: only ranges of this NVTX domain take part ("" is the default domain); None: all do.
        steps: only steps with these numbers take part; None: all, and what lies in no step.
        step_range: text of the ranges that are the steps, ``#`` for any number; None: they are found.

    Raises:
        AnnotError: times add up to more than 64 bits of nanoseconds hold, as only those of a damaged profile do.
        ValueError: there are no steps to choose from, or no range has the text of a step, or is of the domain.
    """
    whole, forest, found = _grown(source, domain, steps, step_range)
    _check_lengths(source, forest)
    host = _host_times(forest)
    launches = _launches(source, forest, found)
    places = Places(forest, launches, whole)
    account = _account(source, forest, launches, places)

    def per_range() -> pl.DataFrame:
        return range_work(source.work_blocks(), places, forest.tree.height)

    def of_steps(chosen: slice) -> Attribution:
        return attribute(source, domain=domain, steps=chosen, step_range=step_range)

    return Attribution(
        whole, forest, found, _node_table(forest, account, host), account.of_names(), account.busy(),
        account.device_busy(), account.of_steps(), per_range, launches.loose.gpu_ns(), account.guessed_ns,
        account.left_out, dict(source.meta), places, memory_of(source, forest), source, of_steps,
    )  # fmt: skip


def _grown(
    source: Source, domain: str | None, steps: slice | None, step_range: str | None
) -> tuple[Forest, Forest, Steps]:
    """The ranges of all steps, those that take part, and the steps of all."""
    forest = _forest(source, domain)
    found = find_steps(forest, step_range, steps)
    if step_range is not None and found.table.is_empty():
        raise ValueError(f"{source.meta.get('source', '')} has no range {step_range!r}")
    if steps is None:
        return forest, forest, found
    if found.table.is_empty():
        raise ValueError(f"{source.meta.get('source', '')} has no steps to choose from")
    return forest, _forest(source, domain, forest.threads, found), found


def _forest(source: Source, domain: str | None, threads: Threads | None = None, steps: Steps | None = None) -> Forest:
    """The ranges of a domain, and of steps that were asked for."""
    intake, reached, any_open, domains = Intake(threads), list[int](), False, set[str]()
    for ranges in source.range_blocks():
        if ranges["start"].null_count() or ranges["thread"].null_count():  # a reader of somebody else's
            ranges = ranges.drop_nulls(["start", "thread"])
        latest = ranges["start"].max(), ranges["end"].max()
        reached += [instant for instant in latest if isinstance(instant, int)]
        any_open |= bool(ranges["end"].null_count())
        if domain is not None:
            domains.update(ranges["domain"].unique().cast(pl.String).drop_nulls())
            ranges = ranges.filter(pl.col("domain") == domain)
        if threads is not None and steps is not None:
            process = threads.table["process_code"].gather(threads.codes(ranges["thread"]))
            ranges = ranges.filter(steps.wanted(steps.at(process, ranges["start"])))
        intake.add(ranges)
    if domain is not None and domain not in domains:
        raise ValueError(f"{source.meta.get('source', '')} has no range in {_domains(domain, domains)}")
    if any_open:  # it lasts to the last instant that the host is known to have reached
        latest_call = source.last_launch()
        reached += [] if latest_call is None else [latest_call]
    return grow(intake, max(reached, default=0), source.meta.get("scopes", ()))


def _domains(wanted: str, there: set[str]) -> str:
    """Name the NVTX domain that is not there, and those that are."""
    named = f"only in {', '.join(map(repr, sorted(there)[:_MOST_NAMED]))}" if there else "and in no other"
    return f"the domain {wanted!r}, {named}{', ...' if len(there) > _MOST_NAMED else ''}"


def _check_lengths(source: Source, forest: Forest) -> None:
    reach = Reach()
    for ranges in (forest.tree, forest.loose):
        for part in ranges.iter_slices(_SLICE):
            reach.add(part)
    if reach.too_far:
        raise _too_long(source, "ranges")


def _too_long(source: Source, what: str) -> AnnotError:
    years = round(FARTHEST / (365 * 86400 * 10**9))
    return AnnotError(f"{source.meta.get('source', '')} has {what} that take more than {years} years in all")


def _launches(source: Source, forest: Forest, steps: Steps) -> Launches:
    launches = read_launches(source.launch_blocks(), forest, steps)
    if launches.in_order:
        return launches
    blocks = list(source.launch_blocks())
    return read_launches(iter([pl.concat(blocks, how="diagonal").sort("start", maintain_order=True)]), forest, steps)


def _account(source: Source, forest: Forest, launches: Launches, places: Places) -> Account:
    """Add up the work, again if chains of layers turned up on the way, and once more in order if it was in none."""
    for sort in (False, False, True):
        account = Account(forest, launches, places)
        for block in _in_order(source.work_blocks()) if sort else source.work_blocks():
            account.add(block)
            if account.reach.too_far:
                raise _too_long(source, "kernels and copies")
        if account.settled:
            return account
    raise AssertionError("work in order, with all chains known, is settled")


def _in_order(blocks: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    yield pl.concat(list(blocks), how="diagonal").sort("start", maintain_order=True)


def self_times(forest: Forest) -> pl.Series:
    """Return the host time of each range of the tree that lies in no range inside it (Int64)."""
    tree = forest.tree
    length = tree["end"] - tree["start"]
    inside = sweep.Sums(tree.height)
    inside.add(tree["parent"], length)
    again = _overlaps(forest)
    outside = length - inside.result()
    return outside.scatter(again["row"], outside.gather(again["row"]) + again["overlap_ns"]).alias("host_self_ns")


def _overlaps(forest: Forest) -> pl.DataFrame:
    if forest.trunk == forest.tree.height:  # what nests never overlaps
        return pl.DataFrame(schema={"row": pl.Int32, "overlap_ns": pl.Int64})
    return overlap(forest.tree, forest.trunk)


def _depths(forest: Forest) -> pl.Series:
    """How many ranges lie around each."""
    trunk = forest.tree.head(forest.trunk)
    _, depth = sweep.parents(trunk["thread"], trunk["end"])
    depths = depth.to_list() if forest.trunk < forest.tree.height else []
    for parent in forest.tree["parent"].slice(forest.trunk):
        depths.append(0 if parent == sweep.NONE else depths[parent] + 1)
    return pl.Series("depth", depths, pl.Int32) if depths else depth.alias("depth")


_HOST_TIMES: Final = {
    "node": pl.Int32, "start": pl.Int64, "calls": pl.Int64, "host_self_ns": pl.Int64, "host_overlap_ns": pl.Int64,
}  # fmt: skip


def _host_times(forest: Forest) -> pl.DataFrame:
    """Return of each node with ranges: node, start (of the first), calls, host_self_ns and host_overlap_ns.

    A range that adds nothing to the chain of the one around it, as an operation does, is part of that one's call.
    """
    tree = forest.tree
    parts = [pl.DataFrame(schema=_HOST_TIMES)]
    for piece in tree.iter_slices(_SLICE):
        around = tree["path"].gather(
            pl.select(pl.when(piece["parent"] != sweep.NONE).then(piece["parent"])).to_series()
        )
        rows = piece.select("start", node="path", around=around, ns=pl.col("end") - pl.col("start"))
        first, calls = pl.col("start").min(), pl.col("node").ne_missing(pl.col("around")).sum().cast(pl.Int64)
        parts.append(rows.group_by("node").agg(first, calls.alias("calls"), host_self_ns=pl.col("ns").sum()))
        inside = rows.drop_nulls("around").group_by(node="around").agg(host_self_ns=-pl.col("ns").sum())
        parts.append(inside)
    again = _overlaps(forest)
    ns = again["overlap_ns"]
    parts.append(pl.DataFrame({"node": tree["path"].gather(again["row"]), "host_self_ns": ns, "host_overlap_ns": ns}))
    added = pl.concat(parts, how="diagonal").group_by("node")
    return added.agg(pl.col("start").min(), pl.col("calls", "host_self_ns", "host_overlap_ns").sum())


def _node_table(forest: Forest, account: Account, host: pl.DataFrame) -> pl.DataFrame:
    parent, key = forest.nodes.columns()
    table = (
        pl.DataFrame({"parent": parent, "key": key}).with_row_index("node").with_columns(pl.col("node").cast(pl.Int32))
    )
    for part in (host, account.of_nodes()):
        table = table.join(part, on="node", how="left", maintain_order="left")
    led = pl.col("node").is_in(sorted(forest.matched))
    counted = pl.exclude("parent", "key", "node", "start").fill_null(0)
    return (
        table.with_columns(counted)
        .with_columns(gpu_by_sequence_ns=pl.when(led).then("gpu_self_ns").otherwise(0))
        .drop("node")
    )
