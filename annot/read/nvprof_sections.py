"""The tables in what ``nvprof --csv`` prints, told apart.

Lines of nvprof itself begin with ``==PID==``, or ``========`` where it printed an imported profile; several
processes can write into one file, and the profiled program's own lines stand between. A table is a header, for
most of them a line of units, and rows up to the next line of nvprof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from annot.read.csv_text import split_line

__all__ = ["Kind", "Section", "kind_of", "sections"]

Kind: TypeAlias = Literal["trace", "summary", "counters", "counter trace"]

_SAID: Final = re.compile(r"==([0-9]{1,10})==|========")
_DEVICE: Final = re.compile(r'\s*Device "(.*)"')
_UNITS: Final = frozenset(
    {"", "%", "s", "ms", "us", "ns", "B", "KB", "MB", "GB", "TB", "B/s", "KB/s", "MB/s", "GB/s", "TB/s"}
)
# The text of a range can hold quotes, which nvprof does not double.
_NVTX: Final = re.compile(r'([^"]{0,400}),"(\[(?:Range start|Range end|Marker)\] .*)"(?:,[0-9]*)?', re.DOTALL)
_BEGUN: Final = re.compile(r'[^"\n]{0,400},"\[(?:Range start|Range end|Marker)\] ')
_END: Final = ('"', '",')
_MOST_LINES: Final = 256


@dataclass(slots=True)
class Section:
    """One table.

    Args:
        kind: what its rows are: calls and work one by one, totals, or counters as totals or one by one.
        process: the PID, 0 if unknown.
        device: as nvprof names it, if the whole table is of one.
        api: the table has API calls only.
        nvtx: it repeats those rows of another table that lie in one NVTX range.
        units: of each column.
        rows: each by the name of its column.
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
    """Return what the table under such a header holds, None if it is no header of nvprof."""
    names = set(columns)
    if names >= {"Start", "Duration", "Name"}:
        return "trace"
    if names >= {"Time(%)", "Time", "Calls", "Name"}:
        return "summary"
    if names >= {"Device", "Kernel", "Invocations"}:
        return "counters"
    return "counter trace" if names >= {"Device", "Stream", "Kernel"} else None


def sections(text: str, notes: list[str]) -> Iterator[Section]:
    """Give the tables of a file; what nvprof warned of and what could not be read is added to the notes."""
    section: Section | None = None
    process, device, api, nvtx = 0, "", False, False
    delimiter, cut = ",", 0
    warned: dict[str, None] = {}
    for line in _lines(text):
        if said := _SAID.match(line):
            message = line[said.end() :].strip()
            process = int(said[1] or 0)
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
    notes += [f"nvprof says: {message}" for message in list(warned)[:8]]
    if cut:
        notes.append(f"{cut:,} lines are cut or of another program, and were left out")


def _lines(text: str) -> Iterator[str]:
    """Give the lines of a file, those of the text of one range as one line."""
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
    """Add a row; tell whether the line is one, or empty."""
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
