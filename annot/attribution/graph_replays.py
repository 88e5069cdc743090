"""Replays of GPU graphs get the layers under which another profile captured the graph.

A replay matches a captured graph if all of its GPU activities, by start, have the names of the nodes, by launch, and
the grids where both profiles have them. Profilers can miss the last activities of a replay: a replay without such a
graph matches a graph that begins with its activities, if these are most of the nodes. A replay that matches several
graphs with different layers, such as pieces of a model with the same kernels, gets its graph from the replays around
it, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeAlias

import polars as pl

from annot.attribution import column_ops
from annot.attribution.bit_layout import pair
from annot.attribution.graph_captures import COPY, MEMSET, Captures
from annot.profile import Profile
from annot.read.text import counted, listed

__all__ = ["has_replays", "with_captures"]

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
