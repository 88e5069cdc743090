"""Timeline in Chrome's trace event format, for the Perfetto UI and chrome://tracing.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Ranges, launches and GPU activities are complete events (``X``). Crossing ranges are asynchronous events (``b``, ``e``).
Arrows are flow events of version 2 (`bind_id`), because one launch can lead to many kernels. Times are µs since the
start of the profile, with three decimals to keep ns exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import polars as pl

from annot.analyze.trace_events import Events
from annot.util.progress import tell

__all__ = ["write_trace"]

_ARGS: Final = ("layer", "module", "phase", "shapes", "gpu_ns")


def write_trace(events: Events, meta: dict[str, Any], write: Callable[[bytes], Any]) -> None:
    """Write a timeline, block by block.

    Args:
        events: events of the timeline.
        meta: metadata of the file, written to ``otherData``.
        write: called with consecutive bytes of the file.
    """
    other = json.dumps(meta | {"start_ns": events.zero})
    write(f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n'.encode())
    started, done = False, 0
    for block in events.blocks():
        done += block.height
        tell("writing the trace", done, unit="events")
        groups = {track.number: track.group.number for track in events.tracks.all()}
        for lines in (_complete(block, groups), _asynchronous(block, groups)):
            if lines:
                write((",\n" if started else "").encode() + lines)
                started = True
    lines = b",\n".join(json.dumps(event).encode() for event in _names(events))
    write((b",\n" if started and lines else b"") + lines + b"\n]}\n")


def _complete(block: pl.DataFrame, groups: dict[int, int]) -> bytes:
    rows = block.filter(pl.col("kind") != "crossing")
    side = pl.when(pl.col("arrow_out").is_null()).then(pl.lit("in")).otherwise(pl.lit("out"))
    bound = pl.format(',"bind_id":"{}","flow_{}":true', pl.coalesce("arrow_out", "arrow_in"), side).fill_null("")
    parts = (*_head("X", "start", groups), pl.lit(',"dur":'), _us("length"), bound, pl.lit(","), _fields())
    return _lines(rows.select(pl.concat_str(*parts)).to_series())


def _asynchronous(block: pl.DataFrame, groups: dict[int, int]) -> bytes:
    """Start and end of each crossing range, matched by id, category and name."""
    rows = block.filter(pl.col("kind") == "crossing")
    identity = pl.concat_str(pl.lit(',"id":'), pl.col("start").rank("ordinal"), pl.lit(","))
    begins = pl.concat_str(*_head("b", "start", groups), identity, _fields())
    ends = pl.concat_str(*_head("e", "end", groups), identity, _fields(args=False))
    rows = rows.with_columns(end=pl.col("start") + pl.col("length"))
    return _lines(rows.select(pl.concat_list(begins, ends).alias("line")).explode("line").to_series())


def _head(kind: str, time: str, groups: dict[int, int]) -> tuple[pl.Expr, ...]:
    group = pl.col("track").replace_strict(groups, default=0, return_dtype=pl.Int32)
    return (
        pl.lit(f'{{"ph":"{kind}","pid":'), group, pl.lit(',"tid":'), pl.col("track"), pl.lit(',"ts":'), _us(time)
    )  # fmt: skip


def _us(name: str) -> pl.Expr:
    """A time in µs as decimal text: a double cannot represent every ns of a long profile."""
    ns = pl.col(name)
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    rest = (ns.abs() % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(sign, ns.abs() // 1000, pl.lit("."), rest)


def _fields(*, args: bool = True) -> pl.Expr:
    """Name, category and args of an event as JSON, without the opening brace."""
    fields = [pl.col("name"), pl.col("kind").alias("cat"), *([pl.struct(*_ARGS).alias("args")] if args else [])]
    return pl.struct(*fields).struct.json_encode().str.slice(1)


def _lines(lines: pl.Series) -> bytes:
    return ",\n".join(lines).encode()


def _names(events: Events) -> Iterable[dict[str, Any]]:
    """Metadata events: names of processes and tracks, and their order (processes before devices)."""
    for group in events.tracks.groups():
        place = {"pid": group.number, "tid": 0, "ph": "M"}
        yield place | {"name": "process_name", "args": {"name": group.name}}
        yield place | {"name": "process_sort_index", "args": {"sort_index": group.number + 1000 * bool(group.device)}}
    for track in events.tracks.all():
        place = {"pid": track.group.number, "tid": track.number, "ph": "M"}
        yield place | {"name": "thread_name", "args": {"name": track.name}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": track.number}}
