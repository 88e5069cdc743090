"""CUDA graphs: the GPU activities of a replay get the layers around the calls that the capture recorded as nodes.

The capture can be in another profile than the replay.

A replay matches a captured graph if all of its GPU activities, by start, have the names of the nodes, by launch, and
the grids where both profiles have them. Profilers can miss the last activities of a replay: a replay without such a
graph matches a graph that begins with its activities, if these are most of the nodes. A replay that matches several
graphs with different layers, such as pieces of a model with the same kernels, gets its graph from the replays around
it, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeAlias

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import Numbers, pair
from annot.attribution.ingest import IngestedRanges
from annot.attribution.range_trees import Forest, grow
from annot.labels.tag import DOMAIN
from annot.profile import RANGES, Profile
from annot.read.text import counted, listed

COPY: Final = "(copy)"
"""Name of a node that copies memory."""
MEMSET: Final = "(memset)"
"""Name of a node that sets memory."""

_BEGIN, _END = "StreamBeginCapture", "StreamEndCapture"
LAUNCH: Final = r"Launch\w*Kernel"
"""Pattern of the names of the API calls that launch a kernel."""
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
        files, empty, unnamed, threads = list[str](), list[str](), Counter[str](), 0
        first_id = 0
        nodes, ranges = [pl.DataFrame(schema=_NODES)], [pl.DataFrame(schema=dict(RANGES))]
        for number, profile in enumerate(profiles):
            name = Path(str(profile.meta["source"])).name
            graphs = capture_spans(profile.launches)
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


def capture_spans(calls: pl.DataFrame) -> pl.DataFrame:
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
    others = {_COPY: COPY, _MEMSET: MEMSET}
    name = pl.coalesce(*(pl.when(call.str.contains(text)).then(pl.lit(of)) for text, of in others.items()), "kernel")
    is_node = pl.col("kernel").is_not_null() | call.str.contains(f"{LAUNCH}|{_COPY}|{_MEMSET}")
    keys = ["process", "correlation"]
    ran = pl.concat([profile.kernels.select(keys), profile.copies.select(keys)])
    calls = profile.launches.filter(is_node).join(ran, on=keys, how="anti").sort("start")
    inside = pl.when(pl.col("start") < pl.col("stop")).then("graph")
    spans = graphs.with_row_index("graph").select("thread", "process", "stop", "graph", start="begin")
    matches = [
        calls.join_asof(spans, on="start", by=by, check_sortedness=False).select(inside.cast(pl.Int64).alias(by))
        for by in ("thread", "process")
    ]
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


_GRAPH_LAUNCH: Final = "GraphLaunch"
_LONGEST_NAME: Final = 60
_GRID: Final = (1 << 32) - 1
_UNCHANGED: Final = "Such replays keep the layers of their launch."
_Codes: TypeAlias = tuple[int, ...]
"""Name (high half) and grid (low half, 0 if unknown) of each GPU activity."""


def has_replays(profile: Profile) -> bool:
    """Return whether a profile launches graphs."""
    return bool(profile.launches["name"].str.contains(_GRAPH_LAUNCH).any())


def with_captures(profile: Profile, captures: Iterable[Profile]) -> Profile:
    """Return a profile whose graph replays have the layers of captures. Its notes say which.

    Args:
        profile: the profile with the replays.
        captures: profiles with captures of graphs. An iterator needs the memory of one at a time.
    """
    captured = Captures.of(captures)
    work = _work(profile)
    match = _Match(captured, work)
    notes = list(match.notes()) if work.height else ["The profile contains no replays of graphs for the captures."]
    meta = profile.meta | {"notes": [*profile.meta["notes"], *captured.notes, *notes]}
    return replace(match.applied(profile), meta=meta)


def _work(profile: Profile) -> pl.DataFrame:
    """Return replay, process, name, grid, kernel and row (in its table) of each GPU activity of a replay.

    Replays are by process and launch, their GPU activities by start.
    """
    keys = ["process", "correlation"]
    launches = profile.launches.filter(pl.col("name").str.contains(_GRAPH_LAUNCH)).drop_nulls("correlation")
    launches = launches.unique(keys, keep="first", maintain_order=True).sort("process", "start")
    copy = pl.when(pl.col("kind") == "memset").then(pl.lit(MEMSET)).otherwise(pl.lit(COPY))
    tables = (
        profile.kernels.select(*keys, "start", "name", "grid", kernel=True),
        profile.copies.select(*keys, "start", name=copy, grid=pl.lit(None, pl.String), kernel=False),
    )
    work = pl.concat(table.with_row_index("row") for table in tables)
    work = work.join(launches.select(keys).with_row_index("replay"), on=keys, how="inner")
    return work.sort("replay", "start", maintain_order=True).with_columns(pl.col("replay").rank("dense") - 1)


class _Match:
    """The captured graph of each replay."""

    def __init__(self, captures: Captures, work: pl.DataFrame) -> None:
        self._captures, self._work = captures, work
        both = pl.concat([captures.nodes.select("name", "grid"), work.select("name", "grid")])
        self._names, self._grids = (both[name].drop_nulls().unique() for name in ("name", "grid"))
        self._nodes, self._first = _lists(self._codes(captures.nodes), captures.nodes["graph"])
        self._paths, _ = _lists(captures.paths, captures.nodes["graph"])
        replayed, self._starts = _lists(self._codes(work), work["replay"])
        kinds: dict[_Codes, int] = {}
        self._kind = [kinds.setdefault(codes, len(kinds)) for codes in replayed]
        self._kernels = list(kinds)
        by_names: dict[_Codes, list[int]] = {}
        for graph, nodes in enumerate(self._nodes):
            by_names.setdefault(_names_of(nodes), []).append(graph)
        self._fitting = [
            [graph for graph in by_names.get(_names_of(kernels), ()) if _fits(kernels, self._nodes[graph])]
            or [graph for graph, nodes in enumerate(self._nodes) if _begins(nodes, kernels)]
            for kernels in self._kernels
        ]
        """The graphs that each kind of replay matches."""
        self._graphs = self._resolved()

    def applied(self, profile: Profile) -> Profile:
        """Return the profile with the thread and the time of the capture of each matched GPU activity."""
        first = pl.Series([None if graph is None else self._first[graph] for graph in self._graphs], dtype=pl.Int64)
        replay = self._work["replay"]
        position = pl.int_range(self._work.height, eager=True) - pl.Series(self._starts).gather(replay)
        placed = self._work.select("row", "kernel", node=first.gather(replay) + position).drop_nulls("node")
        origins = self._captures.nodes.select(origin_thread="thread", origin_start="start")
        if placed.is_empty():
            return profile
        placed = placed.hstack(origins[placed["node"]])
        kernels, copies = placed.filter("kernel"), placed.filter(~pl.col("kernel"))
        return replace(
            profile,
            kernels=_add_origins(profile.kernels, kernels),
            copies=_add_origins(profile.copies, copies),
            captured=pl.concat([profile.captured, self._captures.ranges]),
        )

    def notes(self) -> Iterator[str]:
        """Yield sentences about the replays with layers and about those without."""
        matches = ((kind, graph) for kind, graph in zip(self._kind, self._graphs, strict=True) if graph is not None)
        if used := Counter(matches):
            yield from self._used(used)
            yield from self._cut(used)
        without = [kind for kind, graph in zip(self._kind, self._graphs, strict=True) if graph is None]
        several = [kind for kind in without if self._fitting[kind]]
        if several:
            yield f"Several captured graphs with different layers match {_replays(several)}. {_UNCHANGED}"
        if self._nodes and len(several) < len(without):
            none = [kind for kind in without if not self._fitting[kind]]
            yield f"No captured graph matches {_replays(none)}: {self._difference(none[0])}. {_UNCHANGED}"

    def _used(self, used: Counter[tuple[int, int]]) -> Iterator[str]:
        """Yield sentences about the layers of replays. `used` counts them by kind and graph."""
        files = listed(dict.fromkeys(self._captures.files[graph] for _, graph in sorted(used, key=itemgetter(1))))
        total = sum(len(self._kernels[kind]) * times for (kind, _), times in used.items())
        what = f"{counted(total, 'GPU activity')} in {counted(used.total(), 'graph replay')}"
        yield f"The layers of {what} come from {files}."
        compiled, unknown = (
            sum(sum(path in paths for path in self._paths_of(*match)) * times for match, times in used.items())
            for paths in (self._captures.compiled, {column_ops.NONE})
        )
        if compiled:
            yield f"{compiled:,} of them are in a GraphModule of torch.compile, whose layers {files} does not name."
        if unknown:
            yield f"{unknown:,} of them were captured in no range of {files}, and keep the layers of their launch."

    def _cut(self, used: Counter[tuple[int, int]]) -> Iterator[str]:
        """Yield a sentence about the replays that lack the last nodes of their graph."""
        cut = Counter({match: times for match, times in used.items() if self._missing(*match)})
        if not cut:
            return
        missing = sorted({self._missing(*match) for match in cut})
        kind, graph = next(iter(cut))
        last = f"the last {counted(missing[-1], 'GPU activity')}".replace("last 1 ", "last ")
        last = last.replace("last ", f"last {missing[0]:,} to ") if len(missing) > 1 else last
        yield (
            f"The profile lacks {last} of {counted(cut.total(), 'graph replay')}: in {self._captures.files[graph]}, "
            f"{self._text(self._nodes[graph][len(self._kernels[kind])])} comes next."
        )

    def _missing(self, kind: int, graph: int) -> int:
        return len(self._nodes[graph]) - len(self._kernels[kind])

    def _paths_of(self, kind: int, graph: int) -> tuple[int, ...]:
        """Return the layers of each GPU activity of a kind of replay, if it is a replay of this graph."""
        return self._paths[graph][: len(self._kernels[kind])]

    def _difference(self, kind: int) -> str:
        """Return where a replay first differs from the captured graph with which it has most in common."""
        replayed = self._kernels[kind]
        shared = [_shared(replayed, nodes) for nodes in self._nodes]
        graph = max(range(len(shared)), key=shared.__getitem__)
        at, nodes = shared[graph], self._nodes[graph]
        theirs, ours = (self._text(codes[at]) if at < len(codes) else "missing" for codes in (nodes, replayed))
        return (
            f"GPU activity {at + 1:,} of {max(len(replayed), len(nodes)):,} is {ours} in the replay and {theirs} in "
            f"{self._captures.files[graph]}"
        )

    def _text(self, code: int) -> str:
        name, grid = str(self._names[code >> 32]) if code >= 0 else "a kernel without name", code & _GRID
        short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
        return f"{short} (grid {self._grids[grid - 1]})" if grid else short

    def _codes(self, table: pl.DataFrame) -> pl.Series:
        name, grid = (
            table[column].cast(pl.Enum(categories)).to_physical().cast(pl.Int64)
            for column, categories in (("name", self._names), ("grid", self._grids))
        )
        return pair(name.fill_null(-1), grid.fill_null(-1) + 1)

    def _resolved(self) -> list[int | None]:
        """Return the graph of each replay.

        If several graphs fit and differ in their layers, a replay between two replays with known graphs gets the graph
        between theirs, provided that as many graphs were captured there as were replayed, and that each fits.
        """
        graphs = [self._fitting[kind][0] if self._alike(kind, self._fitting[kind]) else None for kind in self._kind]
        process = self._work["process"].gather(self._starts).to_list()
        resolved = [replay for replay, graph in enumerate(graphs) if graph is not None]
        sequences: dict[tuple[int, ...], int | None] = {}
        for first, last in pairwise(resolved):
            if last == first + 1 or process[first] != process[last]:
                continue
            kinds = tuple(self._kind[first : last + 1])
            if kinds not in sequences:
                sequences[kinds] = self._sequence(kinds)
            if (start := sequences[kinds]) is not None:
                graphs[first : last + 1] = range(start, start + len(kinds))
        return graphs

    def _sequence(self, kinds: tuple[int, ...]) -> int | None:
        """Return the first of consecutive graphs of a file that fit; None: there are none, or their layers differ."""
        files, fitting = self._captures.files, [set(self._fitting[kind]) for kind in kinds]
        starts = [
            start
            for start in self._fitting[kinds[0]]
            if all(start + number in graphs for number, graphs in enumerate(fitting))
            and files[start] == files[start + len(kinds) - 1]
        ]
        alike = all(self._alike(kind, [start + number for start in starts]) for number, kind in enumerate(kinds))
        return starts[0] if starts and alike else None

    def _alike(self, kind: int, graphs: Sequence[int]) -> bool:
        """Return whether there are graphs, and the GPU activities of a kind of replay have the same layers in each."""
        return len({self._paths_of(kind, graph) for graph in graphs}) == 1


def _replays(kinds: Sequence[int]) -> str:
    return counted(len(kinds), "graph replay")


def _lists(values: pl.Series, group: pl.Series) -> tuple[list[_Codes], list[int]]:
    """Return the values of each group, which are in one place, and the row of the first."""
    rows = pl.DataFrame({"value": values, "group": group}).with_row_index("row")
    lists = rows.group_by("group", maintain_order=True).agg("value", pl.col("row").first().cast(pl.Int64))
    return [tuple(codes.to_list()) for codes in lists["value"]], lists["row"].to_list()


def _names_of(codes: _Codes) -> _Codes:
    return tuple(code >> 32 for code in codes)


def _fits(replayed: Iterable[int], nodes: Iterable[int]) -> bool:
    """Return whether the names are equal, and the grids where both are known."""
    return all(
        code == other or (code >> 32 == other >> 32 and not (code & _GRID and other & _GRID))
        for code, other in zip(replayed, nodes, strict=True)
    )


def _begins(nodes: _Codes, replayed: _Codes) -> bool:
    """Return whether a graph begins with the GPU activities of a replay, which are more than half of its nodes."""
    count = len(replayed)
    return count < len(nodes) < 2 * count and _shared(replayed, nodes) == count


def _shared(replayed: _Codes, nodes: _Codes) -> int:
    """Return the number of GPU activities before the first difference."""
    together = zip(replayed, nodes, strict=False)
    different = (at for at, (code, other) in enumerate(together) if not _fits((code,), (other,)))
    return next(different, min(len(replayed), len(nodes)))


def _add_origins(table: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """Return kernels or copies with the origins of the rows that `placed` has."""
    columns = ("origin_thread", "origin_start")
    return table.with_columns(table[name].scatter(placed["row"], placed[name]) for name in columns)
