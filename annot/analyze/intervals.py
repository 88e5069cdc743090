"""Time that several things share out among each other: the first that is going on has the moment."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

__all__ = ["merged", "shares", "within"]


def shares(window: pl.DataFrame, going_on: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return how the time in a window is shared out, exactly.

    Args:
        window: start, end (ns, Int64): the time that is shared out; intervals may overlap.
        going_on: the same of each thing; where several go on at once, the first named has the moment.

    Returns:
        share: the names, and last ``idle``; ns: how long each had, which adds up to the window; hidden_ns: how long
        it went on besides, while another had the moment. All Int64.

    Example:
        >>> span = lambda start, end: pl.DataFrame({"start": [start], "end": [end]})
        >>> shares(span(0, 10), {"work": span(2, 6), "wait": span(5, 9)}).rows()
        [('work', 4, 0), ('wait', 3, 1), ('idle', 3, 0)]
    """
    parts = [window, *going_on.values()]
    edges = pl.concat([_edges(part, place) for place, part in enumerate(parts)]).sort("time")
    count = pl.col("change")
    on = [(count * (pl.col("part") == place)).cum_sum().alias(f"on{place}") > 0 for place in range(len(parts))]
    length = (pl.col("time").shift(-1) - pl.col("time")).fill_null(0).alias("ns")
    stretches = edges.select(length, *on).filter("on0")
    first = pl.coalesce(
        *(pl.when(f"on{place}").then(pl.lit(place)) for place in range(1, len(parts))), pl.lit(len(parts))
    )
    stretches = stretches.with_columns(first.alias("first"))
    rows = [
        (name, _sum(stretches, pl.col("first") == place), _sum(stretches, _hidden(place)))
        for place, name in enumerate(going_on, 1)
    ]
    rows.append(("idle", _sum(stretches, pl.col("first") == len(parts)), 0))
    return pl.DataFrame(rows, schema={"share": pl.String, "ns": pl.Int64, "hidden_ns": pl.Int64}, orient="row")


def merged(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return intervals (start, end, Int64) of which those that touch are one, by start; empty ones are none.

    Example:
        >>> merged(pl.DataFrame({"start": [7, 0, 2], "end": [9, 3, 5]})).rows()
        [(0, 5), (7, 9)]
    """
    rows = intervals.select("start", "end").filter(pl.col("end") > pl.col("start")).sort("start")
    begins = (pl.col("start") > pl.col("end").cum_max().shift(1)).fill_null(True)
    runs = rows.group_by(begins.cum_sum().alias("run"), maintain_order=True)
    return runs.agg(pl.col("start").first(), pl.col("end").max()).drop("run")


def within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Return how much of some spans lies before each of some times (ns).

    Args:
        times: Int64.
        spans: what `merged` returned.

    Example:
        >>> within(pl.Series([-1, 4, 6, 20]), merged(pl.DataFrame({"start": [0, 10], "end": [5, 12]}))).to_list()
        [0, 4, 5, 7]
    """
    if spans.is_empty():
        return pl.Series("within", [0], pl.Int64).new_from_index(0, times.len())
    before = (spans["end"] - spans["start"]).cum_sum().shift(1, fill_value=0)
    row = spans["start"].search_sorted(times, side="right").cast(pl.Int64) - 1
    last = row.clip(0)
    columns = {
        "row": row, "before": before.gather(last), "start": spans["start"].gather(last),
        "end": pl.select(pl.min_horizontal(spans["end"].gather(last), times)).to_series(),
    }  # fmt: skip
    inside = pl.when(pl.col("row") >= 0).then(pl.col("before") + pl.col("end") - pl.col("start")).otherwise(0)
    return pl.DataFrame(columns).select(inside.alias("within")).to_series()


def _edges(intervals: pl.DataFrame, place: int) -> pl.DataFrame:
    """Where intervals begin and end: time, part, change (1 or -1)."""
    longer = intervals.filter(pl.col("end") > pl.col("start"))
    sides = [longer.select(time=pl.col(name), change=pl.lit(change)) for name, change in (("start", 1), ("end", -1))]
    return pl.concat(sides).select("time", pl.lit(place).alias("part"), "change")


def _hidden(place: int) -> pl.Expr:
    return pl.col(f"on{place}") & (pl.col("first") != place)


def _sum(stretches: pl.DataFrame, which: pl.Expr) -> int:
    return int(stretches.filter(which)["ns"].sum())
