"""Build ranges and marks from the records of a process, in batches of bounded size.

A push is matched with the next pop of the same thread, domain and depth. The depth is the recorded depth at the
beginning of the section, plus pushes, minus pops.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import polars as pl

from annot.read.recording.files import MAX_TIME, RECORD, Kind, Part, Section, global_tid, read_text

PUSHED: Final = 59
STARTED: Final = 60
MARK: Final = 34

_BATCH_RECORDS: Final = 1 << 19
HAS_COLOR: Final = 0x08
HAS_TEXT: Final = 0x10
"""Flags of an event with a color, and with a text of its own instead of a string."""
_HAS_EXTRA: Final = 0x20

_COLUMNS: Final = ("kind", "flags", "domain", "string", "time", "category", "color", "payload", "thread", "key")
_UNSIGNED: Final = dict.fromkeys(("kind", "flags", "payload", "key"), pl.UInt64)
_EVENT: Final = dict.fromkeys(_COLUMNS, pl.Int64) | _UNSIGNED | {"inline": pl.String}


@dataclass(slots=True)
class Tally:
    """Counts collected while the events of all processes are read."""

    ranges: int = 0
    marks: int = 0
    last_time: int = 0
    open_ranges: int = 0  # ranges without an end
    unmatched_pops: int = 0  # ends without a start
    lost_ends: int = 0  # open ranges whose end is among the lost events
    threads: set[int] = field(default_factory=set)  # threads with events, as `global_tid`


def read_events(process: Part, tally: Tally) -> Iterator[pl.DataFrame]:
    """Yield the ranges and marks of a process, and add to the counts.

    The columns are those of `_EVENT`, type (`PUSHED`, `STARTED` or `MARK`), end and end_thread (null for marks and for
    ranges without an end) and range (id of a start/end range).
    """
    opened = pl.DataFrame(schema=_EVENT)
    halves: list[pl.DataFrame] = []
    for sections in _batches(process.sections):
        opened, cut = _cut_at_gaps(opened, sections)
        if not cut.is_empty():
            tally.open_ranges += cut.height
            tally.lost_ends += cut.height
            yield _of_type(cut, PUSHED)
        events = _decode(process.read(sections), sections)
        if events.is_empty():
            continue
        tally.threads.update(global_tid(process.pid, section.thread) for section in sections)
        tally.last_time = max([tally.last_time, *events["time"].top_k(1)])
        tally.unmatched_pops += events.filter(pl.col("kind") == Kind.STRAY_POP).height
        ranges, opened = _pair_pushes(opened, events, tally)
        yield _of_type(ranges, PUSHED)
        yield _of_type(events.filter(pl.col("kind") == Kind.MARK), MARK)
        halves.append(events.filter(pl.col("kind").is_in([Kind.START, Kind.END])))
    tally.open_ranges += opened.height
    yield _of_type(opened, PUSHED)
    if halves:
        yield _pair_starts(pl.concat(halves), tally)


def _batches(sections: list[Section]) -> Iterator[list[Section]]:
    """Group the sections into batches of limited size. Gaps lie between two batches."""
    batch: list[Section] = []
    count = 0
    previous: Section | None = None
    for section in sections:
        if previous is not None and previous.serial == section.serial and section.number != previous.number + 1:
            # The predecessor is missing: a gap of unknown depth is before the section.
            levels = {domain: (0, level) for domain, (_, level) in section.levels.items()}
            section = replace(section, gap=True, levels=levels)
        broken = section.gap and section.number > 0
        if batch and (broken or count + section.count > _BATCH_RECORDS):
            yield batch
            batch, count = [], 0
        batch.append(section)
        count += section.count
        previous = section
    if batch:
        yield batch


def _cut_at_gaps(opened: pl.DataFrame, sections: list[Section]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split the open ranges into those that are open at the beginning of a batch, and those whose end was lost."""
    first = sections[0]
    if opened.is_empty() or not first.gap:
        return opened, opened.clear()
    floors = {domain: floor for domain, (floor, _) in first.levels.items()}
    floor = pl.col("domain").replace_strict(floors, default=0, return_dtype=pl.UInt64)
    lost = (pl.col("key") // (1 << 40) == first.serial) & (pl.col("key") % (1 << 24) >= floor)
    # Lost ends are set to the end of the gap, which preserves the nesting.
    cut = opened.filter(lost).with_columns(end=pl.lit(first.time, pl.Int64), end_thread=pl.lit(None, pl.Int64))
    return opened.filter(~lost), cut


def _decode(data: bytes, sections: list[Section]) -> pl.DataFrame:
    words = pl.Series("words", array("Q", data), pl.UInt64).reshape((len(data) // RECORD, 4))
    frame = words.to_frame().select(pl.col("words").arr.get(i).alias(f"w{i}") for i in range(4)).with_row_index("row")
    counts = pl.Series([section.count for section in sections], dtype=pl.UInt32)  # also 0
    numbers = pl.Series(range(len(sections)), dtype=pl.UInt32)
    frame = frame.with_columns(
        kind=pl.col("w0") & 0xFF,
        flags=pl.col("w0") // (1 << 8) & 0xFF,
        section=numbers.repeat_by(counts).explode(empty_as_null=False),
        next=pl.col("w3").shift(-1, fill_value=0),
    )
    extra = pl.col("flags") & _HAS_EXTRA != 0
    started = pl.col("kind") == Kind.START
    frame = frame.filter(pl.col("kind").is_in([kind for kind in Kind if Kind.PUSH <= kind <= Kind.MARK])).select(
        "row",
        "section",
        "kind",
        "flags",
        domain=(pl.col("w0") // (1 << 16) & 0xFFFF).cast(pl.Int64),
        string=(pl.col("w0") // (1 << 32)).cast(pl.Int64),
        time=pl.col("w1").cast(pl.Int64, strict=False),
        category=(pl.col("w2") & 0xFFFFFFFF).cast(pl.Int64),
        color=(pl.col("w2") // (1 << 32)).cast(pl.Int64),
        range=pl.when(started | (pl.col("kind") == Kind.END)).then("w3").cast(pl.Int64, strict=False),
        payload=pl.when(extra).then("next").otherwise("w3"),
    )
    frame = frame.filter(pl.col("time") <= MAX_TIME)
    return _keyed(_add_inline_texts(frame, data), sections)


def _add_inline_texts(frame: pl.DataFrame, data: bytes) -> pl.DataFrame:
    """Add unregistered texts, which follow their event in the file."""
    with_text = frame.filter(pl.col("flags") & HAS_TEXT != 0, pl.col("kind") != Kind.END)
    if with_text.is_empty():
        return frame.with_columns(inline=pl.lit(None, pl.String))
    after = with_text["row"] + 1 + (with_text["flags"] & _HAS_EXTRA != 0).cast(pl.UInt32)
    texts = [read_text(data, at, length)[0] for at, length in zip(after, with_text["string"], strict=True)]
    inline = pl.DataFrame({"row": with_text["row"], "inline": texts}, schema_overrides={"inline": pl.String})
    return frame.join(inline, on="row", how="left", maintain_order="left")


def _keyed(frame: pl.DataFrame, sections: list[Section]) -> pl.DataFrame:
    """Add the thread of each event, and a key that combines thread, domain and depth."""
    threads = pl.Series([section.thread & 0xFFFFFF for section in sections], dtype=pl.Int64)
    serials = pl.Series([section.serial for section in sections], dtype=pl.UInt64)
    step = pl.when(pl.col("kind") == Kind.PUSH).then(1).when(pl.col("kind") == Kind.POP).then(-1).otherwise(0)
    depth = step.cum_sum().over("section", "domain") - (pl.col("kind") == Kind.PUSH).cast(pl.Int32)
    bases = [(i, domain, level) for i, section in enumerate(sections) for domain, (_, level) in section.levels.items()]
    if bases:
        schema = {"section": pl.UInt32, "domain": pl.Int64, "base": pl.Int64}
        table = pl.DataFrame(bases, schema=schema, orient="row")
        frame = frame.join(table, on=["section", "domain"], how="left", maintain_order="left")
        depth = depth + pl.col("base").fill_null(0)
    position = (depth.cast(pl.Int64) & 0xFFFFFF).cast(pl.UInt64) + pl.col("domain").cast(pl.UInt64) * (1 << 24)
    return frame.with_columns(
        thread=threads.gather(frame["section"]), key=position + serials.gather(frame["section"]) * (1 << 40)
    ).select(*_EVENT, "range")


def _pair_pushes(opened: pl.DataFrame, events: pl.DataFrame, tally: Tally) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the closed ranges and the open pushes."""
    halves = events.filter(pl.col("kind").is_in([Kind.PUSH, Kind.POP])).select(list(_EVENT))
    halves = pl.concat([opened, halves]).sort("key", maintain_order=True)
    pushed = pl.col("kind") == Kind.PUSH
    follows = (pl.col("key") == pl.col("key").shift(1)).fill_null(False)
    followed = (pl.col("key") == pl.col("key").shift(-1)).fill_null(False)
    tally.unmatched_pops += halves.filter(~pushed & ~(follows & pushed.shift(1, fill_value=False))).height
    ends = pl.col("time").shift(-1)
    pushes = halves.with_columns(
        end=ends, ended=followed & ~pushed.shift(-1, fill_value=True), end_thread=pl.lit(None, pl.Int64)
    ).filter(pushed)
    return pushes.filter("ended"), pushes.filter(~pl.col("ended")).select(list(_EVENT))


def _pair_starts(halves: pl.DataFrame, tally: Tally) -> pl.DataFrame:
    """Match starts and ends by id. An end can be on another thread."""
    starts = halves.filter(pl.col("kind") == Kind.START)
    ends = halves.filter(pl.col("kind") == Kind.END)
    first = ends.select("range", end="time", end_thread="thread").unique("range", keep="first", maintain_order=True)
    ranges = starts.join(first, on="range", how="left", maintain_order="left")
    matched = ranges["end"].is_not_null().sum()
    tally.unmatched_pops += ends.height - int(matched)
    tally.open_ranges += ranges.height - int(matched)
    elsewhere = pl.col("end_thread") != pl.col("thread")
    ranges = ranges.with_columns(end_thread=pl.when(elsewhere).then("end_thread"))
    return _of_type(ranges, STARTED)


def _of_type(events: pl.DataFrame, type_: int) -> pl.DataFrame:
    absent = [name for name in ("end", "end_thread", "range") if name not in events.columns]
    absent_columns = [pl.lit(None, pl.Int64).alias(name) for name in absent]
    return events.with_columns(*absent_columns, type=pl.lit(type_, pl.Int64))
