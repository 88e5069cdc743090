"""Capture the real NVTX calls of a function with the recorder, and read them back from its file."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import annot
from annot.labels.marks import parse_cpu, parse_loader, parse_machine, parse_source
from annot.labels.tag import Tag, parse

_numbers = itertools.count()


@dataclass
class Range:
    """Range with the ranges inside it."""

    text: str
    start: int
    end: int
    thread: int
    nested: bool
    children: list[Range] = field(default_factory=list, repr=False)
    parent: Range | None = field(default=None, repr=False)

    @property
    def tag(self) -> Tag | None:
        """Parsed tag, or None if the name is not in annot's grammar."""
        return parse(self.text)

    @property
    def name(self) -> str:
        """Short form for tests: forward ``layer>``, backward ``layer<``, recompute ``layer>>``, otherwise the name."""
        tag = self.tag
        sign = {"forward": ">", "backward": "<", "recompute": ">>"}.get(tag.phase) if tag else None
        return self.text if tag is None or sign is None else f"{tag.layer or tag.module or 'engine'}{sign}"

    def tree(self) -> object:
        """Range and the ranges inside it, as nested tuples of names."""
        return (self.name, *(child.tree() for child in self.children)) if self.children else self.name


class Captured:
    """All ranges and marks of one recording, by start time, without those of machine, threads, loaders and sources."""

    def __init__(self, path: Path, open_ranges: int, unmatched_pops: int) -> None:
        self.open_ranges = open_ranges
        self.unmatched_pops = unmatched_pops
        query = """select start, end, eventType, coalesce(text, value), globalTid from NVTX_EVENTS
                   left join StringIds on id = textId where eventType in (34, 59, 60) order by start, end desc"""
        with contextlib.closing(sqlite3.connect(path)) as database:
            rows = database.execute(query).fetchall()
        marks = [(start, text, thread) for start, _, kind, text, thread in rows if kind == 34]
        known = (parse_source, parse_cpu, parse_loader, parse_machine)
        self.marks = [mark for mark in marks if not any(parse(mark[1]) for parse in known)]
        self.ranges = [Range(text, a, b, thread, kind == 59) for a, b, kind, text, thread in rows if kind != 34]
        self._nest()

    def _nest(self) -> None:
        open_ranges: dict[int, list[Range]] = {}
        for one in self.ranges:
            if not one.nested:
                continue
            stack = open_ranges.setdefault(one.thread, [])
            while stack and stack[-1].end < one.end:
                stack.pop()
            if stack:
                one.parent = stack[-1]
                stack[-1].children.append(one)
            stack.append(one)

    @property
    def names(self) -> list[str]:
        """Short names of all ranges."""
        return [one.name for one in self.ranges]

    @property
    def texts(self) -> list[str]:
        """Full names of all ranges."""
        return [one.text for one in self.ranges]

    @property
    def trees(self) -> list[object]:
        """Outermost ranges of each thread, as nested tuples of names."""
        return [one.tree() for one in self.ranges if one.nested and one.parent is None]

    def innermost(self, at: int, thread: int) -> Range | None:
        """Return the innermost push/pop range that is open on this thread at this time."""
        around = [one for one in self.ranges if one.nested and one.thread == thread and one.start <= at <= one.end]
        return max(around, key=lambda one: one.start, default=None)


def capture(folder: Path, body: Callable[[], object]) -> Captured:
    """Run `body` under the recorder in this process. Every range must be closed exactly once."""
    path = folder / f"capture{next(_numbers)}.sqlite"
    with annot.record(path) as recorder:
        body()
    assert recorder.recording is not None
    captured = Captured(path, recorder.recording.open_ranges, recorder.recording.unmatched_pops)
    assert (captured.open_ranges, captured.unmatched_pops) == (0, 0)
    return captured
