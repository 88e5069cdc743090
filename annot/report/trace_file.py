"""A timeline as a file of Chrome's trace event format, which the Perfetto UI and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Ranges, launches and work are complete events (``X``), ranges that cross others asynchronous ones (``b``, ``e``), and
arrows flow events of version 2 (`bind_id`), because one launch may lead to many kernels. Times are µs from the
first instant on, with three decimals, so that every ns is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import polars as pl

from annot.analyze.events import Events
from annot.progress import tell

__all__ = ["write_trace"]

_ARGS: Final = ("layer", "module", "phase", "shapes", "gpu_ns")


def write_trace(events: Events, meta: dict[str, Any], write: Callable[[bytes], Any]) -> None:
    """Write a timeline, block by block.

    Args:
        events: what happened.
        meta: what is said of all of them, under ``otherData``.
        write: takes the bytes of the file one after the other.
    """
    other = json.dumps(meta | {"start_ns": events.zero})
    write(f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n'.encode())
    begun, done = False, 0
    for block in events.blocks():
        done += block.height
        tell("writing the trace", done, unit="events")
        groups = {track.number: track.group for track in events.tracks.all()}
        for lines in (_complete(block, groups), _asynchronous(block, groups)):
            if lines:
                write((",\n" if begun else "").encode() + lines)
                begun = True
    lines = b",\n".join(json.dumps(event).encode() for event in _names(events))
    write((b",\n" if begun and lines else b"") + lines + b"\n]}\n")


def _complete(block: pl.DataFrame, groups: dict[int, int]) -> bytes:
    rows = block.filter(pl.col("kind") != "loose")
    arrow = pl.coalesce("arrow_out", "arrow_in")
    bound = pl.concat_str(
        pl.lit(',"bind_id":"'), arrow, pl.lit('","flow_'), pl.when(pl.col("arrow_out").is_null()).then(pl.lit("in"))
        .otherwise(pl.lit("out")), pl.lit('":true'),
    ).fill_null("")  # fmt: skip
    parts = (*_head("X", "start", groups), pl.lit(',"dur":'), _us("length"), bound, pl.lit(","), _said())
    return _lines(rows.select(pl.concat_str(*parts)).to_series())


def _asynchronous(block: pl.DataFrame, groups: dict[int, int]) -> bytes:
    """Begin and end of each range, bound to each other by a number; the end repeats category and name."""
    rows = block.filter(pl.col("kind") == "loose")
    identity = pl.concat_str(pl.lit(',"id":'), pl.col("start").rank("ordinal"), pl.lit(","))
    begins = pl.concat_str(*_head("b", "start", groups), identity, _said())
    ends = pl.concat_str(*_head("e", "end", groups), identity, _said(args=False))
    rows = rows.with_columns(end=pl.col("start") + pl.col("length"))
    return _lines(rows.select(pl.concat_list(begins, ends).alias("line")).explode("line").to_series())


def _head(kind: str, time: str, groups: dict[int, int]) -> tuple[pl.Expr, ...]:
    group = pl.col("track").replace_strict(groups, default=0, return_dtype=pl.Int32)
    return (
        pl.lit(f'{{"ph":"{kind}","pid":'), group, pl.lit(',"tid":'), pl.col("track"), pl.lit(',"ts":'), _us(time)
    )  # fmt: skip


def _us(name: str) -> pl.Expr:
    """A time in µs as decimal text: no number of floating point holds every ns of a day."""
    ns = pl.col(name)
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    rest = (ns.abs() % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(sign, ns.abs() // 1000, pl.lit("."), rest)


def _said(*, args: bool = True) -> pl.Expr:
    """The texts of an event as JSON without the brace that opens it."""
    fields = [pl.col("name"), pl.col("kind").alias("cat"), *([pl.struct(*_ARGS).alias("args")] if args else [])]
    return pl.struct(*fields).struct.json_encode().str.slice(1)


def _lines(lines: pl.Series) -> bytes:
    return ",\n".join(lines).encode()


def _names(events: Events) -> Iterable[dict[str, Any]]:
    """What groups and tracks are called, and their order: processes before devices, as they turned up."""
    for group in events.tracks.groups():
        place = {"pid": group.number, "tid": 0, "ph": "M"}
        yield place | {"name": "process_name", "args": {"name": group.name}}
        yield place | {"name": "process_sort_index", "args": {"sort_index": group.number + 1000 * group.is_device}}
    for track in events.tracks.all():
        place = {"pid": track.group, "tid": track.number, "ph": "M"}
        yield place | {"name": "thread_name", "args": {"name": track.name}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": track.number}}
