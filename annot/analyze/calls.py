"""API calls by their ids, for analyses that ask when the launch of a piece of work was."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import polars as pl

from annot.correlate import Attribution
from annot.correlate.host_times import known

__all__ = ["Calls", "calls_of"]

_COLUMNS: Final = {"correlation": pl.Int64, "start": pl.Int64, "ns": pl.Int64}


class Calls:
    """The call of each process and correlation id, the earliest if there are several.

    Sorted by id, so that a call is found without a hash table, which is most of what a join of millions of calls takes.
    What names no process has no call.

    Args:
        blocks: rows of `annot.profile.LAUNCHES`; those without an id are left out.

    Example:
        >>> call = {"process": [7, 7], "correlation": [5, 3], "start": [10, 20], "end": [14, 21]}
        >>> calls = Calls(pl.DataFrame(call)).settle()
        >>> calls.rows(pl.Series([7, 7, 8]), pl.Series([3, 4, 5])).to_list(), calls.start.to_list(), calls.ns.to_list()
        ([0, None, None], [20, 10], [1, 4])
    """

    def __init__(self, *blocks: pl.DataFrame) -> None:
        self._parts: dict[int, list[pl.DataFrame]] = defaultdict(list)
        for block in blocks:
            self.add(block)

    def add(self, block: pl.DataFrame) -> None:
        """Take note of further calls; to be done before any is asked for."""
        ns = (pl.col("end") - pl.col("start")).alias("ns")
        rows = block.select("process", "correlation", "start", ns).cast(pl.Int64).drop_nulls(["process", "correlation"])
        for (process,), part in rows.partition_by("process", as_dict=True, include_key=False).items():
            self._parts[process].append(part)

    def settle(self) -> Calls:
        """Sort what was added, and return self."""
        nothing = pl.DataFrame(schema=_COLUMNS)
        self._ids: dict[int, tuple[int, pl.Series]] = {}
        columns: dict[str, list[pl.Series]] = {"start": [nothing["start"]], "ns": [nothing["ns"]]}
        first = 0
        for process in list(self._parts):
            table = _sorted(pl.concat(self._parts.pop(process)))
            self._ids[process] = first, table["correlation"]
            first += table.height
            for name, column in columns.items():
                column.append(table[name])
        self.start, self.ns = (pl.concat(columns[name], rechunk=True) for name in ("start", "ns"))
        return self

    def rows(self, process: pl.Series, correlation: pl.Series) -> pl.Series:
        """Return the row in `start` and `ns` (Int64) of the call with each id; null: it is not known."""
        ids = pl.DataFrame({"process": process.cast(pl.Int64), "id": correlation.cast(pl.Int64)})
        found = pl.Series("row", [None], pl.Int64).new_from_index(0, ids.height)
        for one in ids["process"].unique():
            if one is None or one not in self._ids:
                continue
            first, there = self._ids[one]
            place = there.search_sorted(ids["id"]).cast(pl.Int64).clip(upper_bound=len(there) - 1)
            hit = ((ids["process"] == one) & (there.gather(place) == ids["id"])).fill_null(False)
            found = (place + first).zip_with(hit, found)
        return found.alias("row")


def _sorted(calls: pl.DataFrame) -> pl.DataFrame:
    """One process's calls by id, of those with the same the earliest."""
    if not calls["start"].is_sorted(nulls_last=True):
        calls = calls.sort("start", nulls_last=True, maintain_order=True)
    if not calls["correlation"].is_sorted():
        calls = calls.sort("correlation", maintain_order=True)
    again = calls["correlation"] == calls["correlation"].shift(1)
    return calls.filter(~again.fill_null(False)) if again.any() else calls.rechunk()


def calls_of(attribution: Attribution) -> Calls:
    """Return the calls of a profile; none, if it does not know when they were made."""
    calls = Calls()
    if attribution.source is not None and known(attribution.meta):
        for block in attribution.source.launch_blocks():
            calls.add(block)
    return calls.settle()
