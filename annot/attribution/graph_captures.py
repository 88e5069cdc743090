"""Graphs in the profiles of their capture: the calls that became nodes, and the layers around these calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.dense_ids import Numbers
from annot.attribution.ingest import IngestedRanges
from annot.attribution.range_trees import Forest, grow
from annot.labels.tag import DOMAIN
from annot.profile import RANGES, Profile
from annot.read.text import listed

__all__ = ["COPY", "MEMSET", "Captures", "grow_captured"]

COPY: Final = "(copy)"
"""Name of a node that copies memory."""
MEMSET: Final = "(memset)"
"""Name of a node that sets memory."""

_BEGIN, _END = "StreamBeginCapture", "StreamEndCapture"
_LAUNCH: Final = r"Launch\w*Kernel"
_COPY: Final = r"^(cuda|cu|hip)Memcpy"
_MEMSET: Final = r"^(cuda|cu|hip)Memset"
_COMPILED: Final = "GraphModule"
_THREADS: Final = ("thread", "end_thread", "forward_thread")
_NODES: Final = {"graph": pl.Int64, "name": pl.String, "grid": pl.String, "thread": pl.Int64, "start": pl.Int64}


@dataclass(frozen=True)
class Captures:
    """The captured graphs of profiles, in the order of their capture.

    Args:
        files: the name of the file of each graph.
        nodes: a row per node, by graph and launch: graph, name (null: unknown), grid (as in `annot.profile.LAUNCHES`),
            thread, start (ns).
        ranges: the ranges around the nodes (`annot.profile.RANGES`). Threads have numbers below 0.
        notes: sentences about profiles without usable graphs.
    """

    files: list[str]
    nodes: pl.DataFrame
    ranges: pl.DataFrame
    notes: list[str]

    @classmethod
    def of(cls, profiles: Iterable[Profile]) -> Captures:
        """Return the graphs that the profiles captured."""
        files, empty, unnamed, threads, first_id = list[str](), list[str](), Counter[str](), 0, 0
        nodes, ranges = [pl.DataFrame(schema=_NODES)], [pl.DataFrame(schema=dict(RANGES))]
        for number, profile in enumerate(profiles):
            name = Path(str(profile.meta["source"])).name
            graphs = _graphs(profile.launches)
            calls = _node_calls(profile, graphs)
            if calls.is_empty():
                empty.append(name)
                continue
            if without_name := calls["name"].null_count():
                unnamed[name] += without_name
                continue
            numbers = Numbers()
            around = _ranges_in(profile.ranges, graphs)
            graph = pl.col("graph").rank("dense").cast(pl.Int64) - 1
            calls = calls.with_columns(_renumbered(calls["thread"], numbers, threads), graph + len(files))
            renumbered = (_renumbered(around[column], numbers, threads) for column in _THREADS)
            around = around.with_columns(
                *renumbered,
                process=pl.lit(-1 - number, pl.Int64),
                id=pl.col("id").rank("ordinal").cast(pl.Int64) + first_id,
            )
            nodes.append(calls.select(list(_NODES)))
            ranges.append(around.select(list(RANGES)))
            files += [name] * calls["graph"].n_unique()
            threads, first_id = threads + len(numbers.known), first_id + around.height
        return cls(files, pl.concat(nodes), pl.concat(ranges), list(_problems(empty, unnamed)))

    @cached_property
    def paths(self) -> pl.Series:
        """The layers around each node, as a number that is equal for equal layers; -1 outside any range."""
        forest = self._forest
        thread = forest.threads.codes(self.nodes["thread"])
        owner = forest.of_threads().owners(thread, self.nodes["start"], self.nodes["start"])
        return forest.tree["path"].gather(column_ops.known(owner)).fill_null(column_ops.NONE)

    @cached_property
    def compiled(self) -> set[int]:
        """The `paths` whose innermost module is the module of a graph that torch.compile made."""
        nodes, names = self._forest.nodes, self._forest.keys.names
        modules = {path: [names[key][1] for key in nodes.chain(path)] for path in set(self.paths)}
        return {path for path, classes in modules.items() if [*filter(None, classes)][-1:] == [_COMPILED]}

    @cached_property
    def _forest(self) -> Forest:
        return grow_captured(self.ranges)


def grow_captured(ranges: pl.DataFrame) -> Forest:
    """Return the forest of `annot.profile.Source.captured`."""
    ingested = IngestedRanges()
    ingested.add(ranges)
    ends = ranges.select(pl.max_horizontal(pl.col("start", "end").max())).to_series()
    return grow(ingested, max(ends.drop_nulls(), default=0))


def _graphs(calls: pl.DataFrame) -> pl.DataFrame:
    """Return process, thread, begin and stop (ns) of each capture. It begins and ends on one thread."""
    ends = calls.filter(pl.col("name").str.contains(_END)).select("thread", stop="start").sort("stop")
    begins = calls.filter(pl.col("name").str.contains(_BEGIN)).sort("start")
    begins = begins.select("process", "thread", begin="start").join_asof(
        ends, left_on="begin", right_on="stop", by="thread", strategy="forward", coalesce=False, check_sortedness=False
    )
    return begins.drop_nulls("stop")


def _node_calls(profile: Profile, graphs: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that became nodes, with graph, name and grid, by graph and start.

    A captured call launches nothing, so a call with a GPU activity became no node. A call belongs to the capture on its
    thread, else to the capture on another thread of the process, such as that of a backward pass.
    """
    call = pl.col("name")
    name = (
        pl.when(call.str.contains(_COPY)).then(pl.lit(COPY)).when(call.str.contains(_MEMSET)).then(pl.lit(MEMSET))
        .otherwise("kernel")
    )  # fmt: skip
    is_node = pl.col("kernel").is_not_null() | call.str.contains(f"{_LAUNCH}|{_COPY}|{_MEMSET}")
    keys = ["process", "correlation"]
    ran = pl.concat([profile.kernels.select(keys), profile.copies.select(keys)])
    calls = profile.launches.filter(is_node).join(ran, on=keys, how="anti").sort("start")
    inside = pl.when(pl.col("start") < pl.col("stop")).then("graph")
    matches = [
        calls.join_asof(
            graphs.with_row_index("graph").select(by, "begin", "stop", "graph"),
            left_on="start", right_on="begin", by=by, check_sortedness=False,
        ).select(inside.cast(pl.Int64).alias(by))
        for by in ("thread", "process")
    ]  # fmt: skip
    graph = pl.concat(matches, how="horizontal").select(graph=pl.coalesce("thread", "process"))
    calls = calls.with_columns(name.alias("name"), graph.to_series()).drop_nulls("graph")
    return calls.sort("graph", "start", maintain_order=True)


def _problems(empty: Sequence[str], unnamed: Counter[str]) -> Iterator[str]:
    """Yield sentences about files without captures, and about files whose captured launches have no kernel names."""
    if empty:
        yield f"{listed(empty)} {'contain' if len(empty) > 1 else 'contains'} no capture of a graph."
    if unnamed:
        lack, launches = "lack" if len(unnamed) > 1 else "lacks", f"{unnamed.total():,} captured launches"
        yield (f"{listed(unnamed)} {lack} the kernel names of {launches}, so annot cannot match them with replays.")


def _ranges_in(ranges: pl.DataFrame, graphs: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that overlap a capture, without annotations of others that began before it.

    These describe the capture itself, such as ``capture_32_DECODE``.
    """
    rows = ranges.with_row_index("row").sort("start")
    before = rows.join_asof(graphs, left_on="start", right_on="begin", by="process", check_sortedness=False)
    after = rows.join_asof(
        graphs, left_on="start", right_on="begin", by="process", strategy="forward", check_sortedness=False
    )
    inside = before["start"] < before["stop"]
    layered = (rows["role"] != "annotation") | (rows["domain"] == DOMAIN)
    around = (after["begin"] < after["end"]) & layered
    return ranges[rows["row"].filter((inside | around).fill_null(False)).sort()]


def _renumbered(threads: pl.Series, numbers: Numbers, used: int) -> pl.Series:
    """Return numbers below 0 that no other profile uses."""
    number = numbers.of(threads).cast(pl.Int64).alias(threads.name)
    return pl.select(pl.when(threads.is_not_null()).then(-1 - used - number).alias(threads.name)).to_series()
