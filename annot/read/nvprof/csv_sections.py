"""Split the output of ``nvprof --csv`` into tables.

Messages of nvprof begin with ``==PID==``, or with ``========`` for an imported profile. Several processes can write to
one file, mixed with lines of the profiled program. A table is a header, usually a line of units, and rows up to the
next message of nvprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from annot.read.csv_text import split_line
from annot.read.notes import counted

__all__ = ["Kind", "Section", "kind_of", "sections"]

Kind: TypeAlias = Literal["trace", "summary", "counters", "counter trace"]

_MESSAGE: Final = re.compile(r"==([0-9]{1,10})==|========")
_DEVICE: Final = re.compile(r'\s*Device "(.*)"')
_UNITS: Final = frozenset(
    {"", "%", "s", "ms", "us", "ns", "B", "KB", "MB", "GB", "TB", "B/s", "KB/s", "MB/s", "GB/s", "TB/s"}
)
# nvprof does not escape quotes in the text of a range.
_NVTX: Final = re.compile(r'([^"]{0,400}),"(\[(?:Range start|Range end|Marker)\] .*)"(?:,[0-9]*)?', re.DOTALL)
_BEGUN: Final = re.compile(r'[^"\n]{0,400},"\[(?:Range start|Range end|Marker)\] ')
_END: Final = ('"', '",')
_MOST_LINES: Final = 256


@dataclass(slots=True)
class Section:
    """A table.

    Args:
        kind: "trace" for single calls and GPU activities, "summary" for totals, "counters" for counter totals,
            "counter trace" for counters of single kernels.
        process: the process id, 0 if unknown.
        header: names of the columns.
        device: name of the device in nvprof, if the whole table belongs to one.
        api: the table contains only API calls.
        nvtx: the table repeats the rows of another table in one NVTX range.
        units: unit of each column.
        rows: values by column.
    """

    kind: Kind
    process: int
    header: list[str]
    device: str = ""
    api: bool = False
    nvtx: bool = False
    units: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)


def kind_of(columns: list[str]) -> Kind | None:
    """Return the kind of a table, or None if the columns are not a header of nvprof."""
    names = set(columns)
    if names >= {"Start", "Duration", "Name"}:
        return "trace"
    if names >= {"Time(%)", "Time", "Calls", "Name"}:
        return "summary"
    if names >= {"Device", "Kernel", "Invocations"}:
        return "counters"
    return "counter trace" if names >= {"Device", "Stream", "Kernel"} else None


def sections(text: str, notes: list[str]) -> Iterator[Section]:
    """Yield the tables of a text. `notes` receives warnings of nvprof and the number of unreadable lines."""
    section: Section | None = None
    process, device, api, nvtx = 0, "", False, False
    delimiter, cut = ",", 0
    warned: dict[str, None] = {}
    for line in _lines(text):
        if prefix := _MESSAGE.match(line):
            message = line[prefix.end() :].strip()
            process = int(prefix[1] or 0)
            device = found[1] if (found := _DEVICE.match(message)) else device
            if message.endswith(("result:", "calls:")):
                api, nvtx, device = message.startswith("API"), message.startswith("NVTX"), ""
            if message.startswith(("Warning:", "Error:")):
                warned[message] = None
            if section:
                yield section
            section = None
            continue
        if kind := _kind_of_line(line):
            if section:
                yield section
            delimiter = "\t" if "\t" in line else ","
            section = Section(kind, process, split_line(line, delimiter), device, api, nvtx)
        elif section:
            cut += not _add(section, line, delimiter)
    if section:
        yield section
    notes += [f"nvprof printed: {message}" for message in list(warned)[:8]]
    if cut:
        notes.append(f"annot skipped {counted(cut, 'line')}, truncated or from another program.")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a file. The text of a range can contain line feeds; it stays one line."""
    begun: list[str] = []
    for line in text.split("\n"):
        if begun or _BEGUN.match(line):
            begun.append(line)
            if not line.endswith(_END) and len(begun) < _MOST_LINES:
                continue
            line = "\n".join(begun)
            begun = []
        yield line
    yield from begun


def _kind_of_line(line: str) -> Kind | None:
    if "Name" not in line and "Kernel" not in line:
        return None
    return kind_of(split_line(line, "\t" if "\t" in line else ","))


def _add(section: Section, line: str, delimiter: str) -> bool:
    """Add a row. Return whether the line is a row or empty."""
    if not line.strip():
        return True
    if (mark := _NVTX.fullmatch(line)) and "Name" in section.header:
        start = split_line(mark[1])[:1] or [""]
        section.rows.append(dict.fromkeys(section.header, "") | {"Start": start[0], "Name": mark[2]})
        return True
    fields = split_line(line, delimiter)
    if len(fields) != len(section.header):
        return False
    if not section.rows and not section.units and _UNITS.issuperset(fields):
        section.units = dict(zip(section.header, fields, strict=True))
    else:
        section.rows.append(dict(zip(section.header, fields, strict=True)))
    return True
