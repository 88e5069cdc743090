"""Time that several things share out among each other: the first that is going on has the moment."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

__all__ = ["shares"]


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


def _edges(intervals: pl.DataFrame, place: int) -> pl.DataFrame:
    """Where intervals begin and end: time, part, change (1 or -1)."""
    longer = intervals.filter(pl.col("end") > pl.col("start"))
    sides = [longer.select(time=pl.col(name), change=pl.lit(change)) for name, change in (("start", 1), ("end", -1))]
    return pl.concat(sides).select("time", pl.lit(place).alias("part"), "change")


def _hidden(place: int) -> pl.Expr:
    return pl.col(f"on{place}") & (pl.col("first") != place)


def _sum(stretches: pl.DataFrame, which: pl.Expr) -> int:
    return int(stretches.filter(which)["ns"].sum())
