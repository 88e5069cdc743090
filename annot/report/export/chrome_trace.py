"""Timeline in Chrome's trace event format, for the Perfetto UI and chrome://tracing.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Ranges, launches and GPU activities are complete events (``X``). Crossing ranges are asynchronous events (``b``, ``e``).
Arrows are flow events of version 2 (`bind_id`), because one launch can lead to many kernels. Times are µs since the
start of the profile, with three decimals to keep ns exact.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import polars as pl

from annot.analyze.trace_events import Events
from annot.attribution.attribute import Attribution
from annot.attribution.summary import summarize
from annot.util.progress import tell
from annot.util.whole_files import created

_ARGS: Final = ("layer", "module", "phase", "shapes", "gpu_ns")
_SLICE: Final = 1 << 14
"""Events per slice. Slices keep temporary columns small."""


def write_trace_file(attribution: Attribution, source: str, path: Path, *, force: bool) -> None:
    """Write a timeline in Chrome's trace event format, compressed if the name ends in .gz.

    `source` is the name of the profile for the metadata; `force` replaces an existing file.

    Raises:
        OSError: the file exists, or cannot be written.
    """
    meta = summarize(attribution) | {"source": source}
    with created(path, force=force) as file:
        if path.suffix != ".gz":
            write_trace(Events(attribution), meta, file.write)
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            write_trace(Events(attribution), meta, cast(BinaryIO, packed).write)


def write_trace(events: Events, meta: dict[str, Any], write: Callable[[bytes], Any]) -> None:
    """Write a timeline, block by block: call `write` with consecutive bytes. `meta` is written to ``otherData``."""
    other = json.dumps(meta | {"start_ns": events.zero})
    write(f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n'.encode())
    separator = b""
    for lines in _lines(events):
        write(separator + ",\n".join(lines).encode())
        separator = b",\n"
    write(b"\n]}\n")


def _lines(events: Events) -> Iterator[Iterable[str]]:
    """The events as JSON, in parts that are not empty."""
    done = 0
    for block in events.blocks():
        done += block.height
        tell("writing the trace", done, unit="events")
        groups = {track.number: track.group.number for track in events.tracks.all()}
        block = block.with_columns(group=pl.col("track").replace_strict(groups, default=0, return_dtype=pl.Int32))
        crossing = pl.col("kind") == "crossing"
        nested, others = block.filter(~crossing), block.filter(crossing)
        yield from (rows.select(_complete())["line"].explode() for rows in nested.iter_slices(_SLICE))
        if others.height:
            yield others.select(_begin_and_end())["line"].explode()
    if names := [json.dumps(event) for event in _names(events)]:
        yield names


def _complete() -> pl.Expr:
    side = pl.when(pl.col("arrow_out").is_null()).then(pl.lit("in")).otherwise(pl.lit("out"))
    bound = pl.format(',"bind_id":"{}","flow_{}":true', pl.coalesce("arrow_out", "arrow_in"), side).fill_null("")
    head = '"ph":"X","pid":{},"tid":{},"ts":{},"dur":{}{},{}'
    line = "{" + pl.format(head, "group", "track", _us(pl.col("start")), _us(pl.col("length")), bound, _fields())
    return pl.concat_list(line).alias("line")


def _begin_and_end() -> pl.Expr:
    """Start and end of each crossing range, matched by id, category and name."""
    head, number = '"ph":"{}","pid":{},"tid":{},"ts":{},"id":{},{}', pl.col("start").rank("ordinal")
    start, end = pl.col("start"), pl.col("start") + pl.col("length")
    begins = "{" + pl.format(head, pl.lit("b"), "group", "track", _us(start), number, _fields())
    ends = "{" + pl.format(head, pl.lit("e"), "group", "track", _us(end), number, _fields(args=False))
    return pl.concat_list(begins, ends).alias("line")


def _us(ns: pl.Expr) -> pl.Expr:
    """A time in µs as decimal text: a double cannot represent every ns of a long profile."""
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.format("{}{}.{}", sign, ns.abs() // 1000, (ns.abs() % 1000).cast(pl.String).str.zfill(3))


def _fields(*, args: bool = True) -> pl.Expr:
    """Name, category and args of an event as JSON, without the opening brace."""
    fields = [pl.col("name"), pl.col("kind").alias("cat"), *([pl.struct(*_ARGS).alias("args")] if args else [])]
    return pl.struct(*fields).struct.json_encode().str.slice(1)


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
