"""Index of API calls by correlation id, to find the launch of a GPU activity."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import polars as pl

from annot.attribution import Attribution
from annot.attribution.attribute import known

__all__ = ["Calls", "calls_of"]

_COLUMNS: Final = {"correlation": pl.Int64, "start": pl.Int64, "ns": pl.Int64}


class Calls:
    """API calls by process and correlation id; the earliest call if several share an id.

    The calls are sorted by id and found by binary search: the hash table of a join takes most of the memory with
    millions of calls. Rows of `annot.profile.LAUNCHES` without an id are skipped, and without a process do not match.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[pl.DataFrame]] = defaultdict(list)

    def add(self, block: pl.DataFrame) -> None:
        """Add calls; call it before `settle`."""
        ns = (pl.col("end") - pl.col("start")).alias("ns")
        rows = block.select("process", "correlation", "start", ns).cast(pl.Int64).drop_nulls(["process", "correlation"])
        for (process,), calls in rows.partition_by("process", as_dict=True, include_key=False).items():
            self._parts[process].append(calls)

    def settle(self) -> Calls:
        """Sort the added calls and return self."""
        self._ids: dict[int, tuple[int, pl.Series]] = {}
        times, first = [pl.DataFrame(schema=_COLUMNS).select("start", "ns")], 0
        for process in list(self._parts):
            table = _sorted(pl.concat(self._parts.pop(process)))
            self._ids[process] = first, table["correlation"]
            first += table.height
            times.append(table.select("start", "ns"))
        self.start, self.ns = pl.concat(times, rechunk=True).get_columns()
        return self

    def rows(self, process: pl.Series, correlation: pl.Series) -> pl.Series:
        """Return the row (Int64) in `start` and `ns` of the call with each id; null: unknown."""
        ids = pl.DataFrame({"process": process.cast(pl.Int64), "id": correlation.cast(pl.Int64)})
        row = pl.Series("row", [None], pl.Int64).new_from_index(0, ids.height)
        for process_id in ids["process"].unique():
            if process_id is None or process_id not in self._ids:
                continue
            first, sorted_ids = self._ids[process_id]
            index = sorted_ids.search_sorted(ids["id"]).cast(pl.Int64).clip(upper_bound=len(sorted_ids) - 1)
            hit = ((ids["process"] == process_id) & (sorted_ids.gather(index) == ids["id"])).fill_null(False)
            row = (index + first).zip_with(hit, row)
        return row.alias("row")


def _sorted(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of one process by id; the earliest call of each id."""
    if not calls["start"].is_sorted(nulls_last=True):
        calls = calls.sort("start", nulls_last=True, maintain_order=True)
    if not calls["correlation"].is_sorted():
        calls = calls.sort("correlation", maintain_order=True)
    repeated = calls["correlation"] == calls["correlation"].shift(1)
    return calls.filter(~repeated.fill_null(False)) if repeated.any() else calls.rechunk()


def calls_of(attribution: Attribution) -> Calls:
    """Return the API calls of a profile; empty if their times are unknown."""
    calls = Calls()
    if attribution.source is not None and known(attribution.meta):
        for block in attribution.source.launch_blocks():
            calls.add(block)
    return calls.settle()
