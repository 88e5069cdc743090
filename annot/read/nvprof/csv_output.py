"""Reader for the output of ``nvprof --csv``: GPU and API traces, summaries, and counters ("metrics", "events").

A trace contains the times of each kernel and copy. With ``--print-api-trace`` it also contains API calls and NVTX
ranges, but not their threads. A summary row stands for many calls. It stays one row, and a note tells the user. nvprof
rounds times to six digits of their unit.

Messages of nvprof begin with ``==PID==``, or with ``========`` for an imported profile. Several processes can write to
one file, mixed with lines of the profiled program. A table is a header, usually a line of units, and rows up to the
next message of nvprof.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.text import counted, decoded, integer, nanoseconds, number, read_text, sentences, split_line

NAME: Final = "nvprof_csv"

_PROFILING: Final = re.compile(r"^==[0-9]+== NVPROF is profiling", re.MULTILINE)
_COPY: Final = re.compile(r"\[(?:CUDA|(Unified Memory)) [Mm]emcpy ([\w ]+)\]")
_NVTX: Final = re.compile(r"\[(Range start|Range end|Marker)\] (.*?)(?: \(Domain: (.*)\))?", re.DOTALL)
_NUMBERED: Final = re.compile(r"(.*) \[([0-9]{1,10})\]", re.DOTALL)
_IN_PARENTHESES: Final = re.compile(r"(.*)\(([0-9]{1,4})\)\s*")
_VALUE: Final = re.compile(r"([-+]?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?)\s*([^0-9\s]\S*)?", re.IGNORECASE)
_BYTES: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_NO_COUNTERS: Final = frozenset({"Device", "Context", "Stream", "Kernel", "Correlation_ID"})

Kind: TypeAlias = Literal["trace", "summary", "counters", "counter trace"]
"""Single calls and GPU activities, totals, counter totals, or counters of single kernels."""

_ORDER: Final[dict[Kind, int]] = {"trace": 0, "summary": 1, "counters": 2, "counter trace": 2}

_MESSAGE: Final = re.compile(r"==([0-9]{1,10})==|========")
_DEVICE: Final = re.compile(r'\s*Device "(.*)"')
_UNITS: Final = frozenset(
    {"", "%", "s", "ms", "us", "ns", "B", "KB", "MB", "GB", "TB", "B/s", "KB/s", "MB/s", "GB/s", "TB/s"}
)
# nvprof does not escape quotes in the text of a range.
_NVTX_ROW: Final = re.compile(r'([^"]{0,400}),"(\[(?:Range start|Range end|Marker)\] .*)"(?:,[0-9]*)?', re.DOTALL)
_BEGUN: Final = re.compile(r'[^"\n]{0,400},"\[(?:Range start|Range end|Marker)\] ')
_END: Final = ('"', '",')
_MOST_LINES: Final = 256


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the head contains a message or a table header of nvprof; see `annot.read.formats.Reader`."""
    text = decoded(head)
    if _PROFILING.search(text):
        return True
    return any(map(_kind_of, text.splitlines()))


def read(path: Path) -> Profile:
    """Read the output of nvprof; see `annot.read.formats.Reader`."""
    notes: list[str] = []
    tables = _Tables()
    sections = _sections(read_text(path), notes)
    traced = {section.process for section in sections if section.kind == "trace"}
    for section in sorted(sections, key=lambda section: _ORDER[section.kind]):
        if section.kind == "trace":
            tables.add_trace(section)
        elif section.kind == "counters":
            tables.add_counters(section)
        elif section.kind == "counter trace":
            tables.add_counter_trace(section)
        elif section.process not in traced and not (section.nvtx or section.api):
            tables.add_summary(section)
    if any(section.nvtx for section in sections):
        notes.append("annot skipped the totals by NVTX range. Run nvprof with --print-gpu-trace --print-api-trace.")
    if not (tables.kernels or tables.copies or tables.launches):
        raise AnnotError(f"{path} is nvprof output without a trace, a summary or counters")
    meta = {"source": str(path), "format": NAME, "producer": "nvprof", "notes": notes + tables.notes()}
    more = ({} if tables.launches else {"host_times": False}) | ({} if traced else {"totals": True})
    return tables.profile(meta | more)


class _Tables:
    """Collect rows of the tables of `annot.profile`."""

    def __init__(self) -> None:
        self.kernels: list[dict[str, Any]] = []
        self.copies: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self._ranges: list[dict[str, Any]] = []
        self._marks: list[dict[str, Any]] = []
        self._metrics: list[dict[str, Any]] = []
        self._open: dict[tuple[int, str, str], list[int]] = {}
        self._clocks: dict[int, int] = {}
        self._timed: dict[tuple[int, str], list[int]] = {}
        self._counted: dict[tuple[Any, ...], set[str]] = {}
        self._rows_of_counters: dict[tuple[Any, ...], int] = {}
        self._taken: set[int] = set()
        self._totals = self._unmatched_ends = self._invalid = 0

    def add_trace(self, section: _Section) -> None:
        """Add rows with times: GPU activities, API calls and NVTX."""
        for row in section.rows:
            start = nanoseconds(row["Start"], section.units.get("Start", ""))
            duration = nanoseconds(row["Duration"], section.units.get("Duration", ""))
            if start is None:
                self._invalid += 1
            elif nvtx := _NVTX.fullmatch(row["Name"]):
                self._add_nvtx(section.process, start, *nvtx.groups())
            elif duration is None or duration < 0:
                self._invalid += 1
            elif row.get("Device"):
                self._add_activity(section, row, start, start + duration)
            else:
                name, correlation = _numbered(row)
                times = {"start": start, "end": start + duration, "correlation": correlation, "name": name}
                self.launches.append({"process": section.process, "thread": 0} | times)

    def _add_activity(self, section: _Section, row: dict[str, str], start: int, end: int) -> None:
        name, correlation = _numbered(row)
        activity = {
            "process": section.process,
            "device": _device(row.get("Device") or section.device),
            "stream": integer(row.get("Stream", "")),
            "start": start,
            "end": end,
            "correlation": correlation,
        }
        copy = _COPY.fullmatch(name)
        if copy or name == "[CUDA memset]":
            kind = " ".join(filter(None, ("UVM" if copy[1] else "", copy[2]))) if copy else "memset"
            memory = {row.get("SrcMemType"), row.get("DstMemType")}
            pinned = False if "Pageable" in memory else "Pinned" in memory or None
            self.copies.append(activity | {"kind": kind, "bytes": _size(row, section), "pinned": pinned})
        elif name.startswith("[Unified Memory "):
            self._invalid += 1  # page faults and similar events
        else:
            self._timed.setdefault((section.process, name), []).append(len(self.kernels))
            self.kernels.append(activity | {"name": name})

    def _add_nvtx(self, process: int, at: int, what: str, text: str, domain: str | None) -> None:
        domain = "" if domain in (None, "<unnamed>") else domain
        event = {"process": process, "thread": 0, "domain": domain, "text": text, "start": at}
        opened = self._open.setdefault((process, domain or "", text), [])
        if what == "Marker":
            self._marks.append(event)
        elif what == "Range start":
            opened.append(len(self._ranges))
            self._ranges.append(event | {"id": len(self._ranges), "kind": "push", "end": None})
        elif opened:
            self._ranges[opened.pop()]["end"] = at
        else:
            self._unmatched_ends += 1

    def add_summary(self, section: _Section) -> None:
        """Add totals: a row with the sum of the durations of all calls."""
        for row in section.rows:
            total = nanoseconds(row["Time"], section.units.get("Time", ""))
            if row.get("Type", "GPU activities") != "GPU activities":
                continue
            if total is None or total < 0:
                self._invalid += 1
                continue
            start = self._clocks.get(section.process, 0)
            self._clocks[section.process] = min(start + total, 1 << 62)
            kernels = len(self.kernels)
            self._add_activity(section, row, start, start + total)
            self._totals += 1
            if len(self.kernels) > kernels:
                self._add_metric(kernels, "calls", row["Calls"])
                for column in ("Avg", "Min", "Max"):
                    length = nanoseconds(row.get(column, ""), section.units.get(column, ""))
                    if length is not None:
                        self._add_metric(kernels, f"duration.{column.lower()}", str(length), "ns")

    def add_counters(self, section: _Section) -> None:
        """Add counter totals, to the row with the time of the kernel if there is exactly one."""
        for row in section.rows:
            name, counter = row["Kernel"], row.get("Metric Name") or row.get("Event Name") or ""
            if not name or not counter:  # not a row of nvprof, such as a sum below the table
                continue
            key = (section.process, row["Device"], name, row["Invocations"])
            seen = self._counted.setdefault(key, set())
            if counter in seen or key not in self._rows_of_counters:
                seen.clear()
                self._rows_of_counters[key] = self._kernel(section.process, row["Device"], name)
                self._add_metric(self._rows_of_counters[key], "invocations", row["Invocations"])
                self._totals += 1
            seen.add(counter)
            for column, suffix in (("Min", "min"), ("Max", "max"), ("Avg", "avg"), ("Total", "sum")):
                self._add_metric(self._rows_of_counters[key], f"{counter}.{suffix}", row.get(column, ""))

    def add_counter_trace(self, section: _Section) -> None:
        """Add counters of single kernels, to the row with the times of the kernel if it exists."""
        numbers = {
            (row["process"], row["correlation"]): index
            for index, row in enumerate(self.kernels)
            if row["correlation"] is not None
        }
        for row in section.rows:
            name, correlation = _numbered(row, "Kernel")
            index = numbers.get((section.process, correlation))
            if index is None:
                index = self._untimed(section.process, row["Device"], name, integer(row["Stream"]), correlation)
            for column, text in row.items():
                if column not in _NO_COUNTERS:
                    self._add_metric(index, column, text, section.units.get(column, ""))

    def _kernel(self, process: int, device: str, name: str) -> int:
        timed = self._timed.get((process, name), [])
        index = timed[0] if len(timed) == 1 and timed[0] not in self._taken else self._untimed(process, device, name)
        self._taken.add(index)
        return index

    def _untimed(
        self, process: int, device: str, name: str, stream: int | None = None, correlation: int | None = None
    ) -> int:
        at = self._clocks.get(process, 0)
        kernel = {"process": process, "device": _device(device), "stream": stream, "start": at, "end": at}
        self.kernels.append(kernel | {"correlation": correlation, "name": name})
        return len(self.kernels) - 1

    def _add_metric(self, kernel: int, name: str, text: str, unit: str = "") -> None:
        if level := _IN_PARENTHESES.fullmatch(text):  # "Low (2)"
            text, unit = level[2], unit or "level"
        match = _VALUE.fullmatch(text.strip())
        value = number(match[1]) if match else None
        if match and value is not None:
            self._metrics.append({"kernel": kernel, "name": name, "value": value, "unit": match[2] or unit})

    def notes(self) -> list[str]:
        """Return notes on what the tables lack."""
        no_threads = (
            "The CSV output of nvprof has no threads. annot puts all calls and ranges of a process on one thread."
        )
        no_ranges = "The profile has no NVTX ranges, so annot cannot attribute GPU time to layers."
        counts = {
            "The rows are totals over all calls of a kernel, as nvprof printed them.": self._totals,
            no_threads: len(self._ranges),
            no_ranges: 0 if self._ranges else len(self.launches) + len(self.kernels),
            "annot skipped {range end} without a start.": self._unmatched_ends,
            "annot skipped {row} without a valid time or GPU activity.": self._invalid,
        }
        return sentences(Counter(counts))

    def profile(self, meta: dict[str, Any]) -> Profile:
        """Return the profile."""
        return Profile.build(
            meta,
            ranges=self._ranges,
            marks=self._marks,
            launches=self.launches,
            kernels=self.kernels,
            copies=self.copies,
            metrics=self._metrics,
        )


def _numbered(row: dict[str, str], column: str = "Name") -> tuple[str, int | None]:
    """Return name and correlation id. Versions of nvprof without the column Correlation_ID append it to the name."""
    name = row[column]
    if "Correlation_ID" in row:
        return name, integer(row["Correlation_ID"])
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1], int(numbered[2])) if numbered else (name, None)


def _device(text: str) -> int | None:
    match = _IN_PARENTHESES.fullmatch(text)
    return int(match[2]) if match else None


def _size(row: dict[str, str], section: _Section) -> int | None:
    value, factor = number(row.get("Size", "")), _BYTES.get(section.units.get("Size", ""))
    return None if value is None or factor is None else round(value * factor)


@dataclass(slots=True)
class _Section:
    """A table."""

    kind: Kind
    process: int  # 0 if unknown
    header: list[str]
    device: str = ""  # name in nvprof, if the whole table belongs to one device
    api: bool = False  # the table contains only API calls
    nvtx: bool = False  # the table repeats the rows of another table in one NVTX range
    units: dict[str, str] = field(default_factory=dict)  # by column
    rows: list[dict[str, str]] = field(default_factory=list)  # values by column


def _kind_of(line: str) -> Kind | None:
    """Return the kind of a table from its header line, or None for other lines."""
    if "Name" not in line and "Kernel" not in line:
        return None
    names = set(split_line(line, "\t" if "\t" in line else ","))
    if names >= {"Start", "Duration", "Name"}:
        return "trace"
    if names >= {"Time(%)", "Time", "Calls", "Name"}:
        return "summary"
    if names >= {"Device", "Kernel", "Invocations"}:
        return "counters"
    return "counter trace" if names >= {"Device", "Stream", "Kernel"} else None


def _sections(text: str, notes: list[str]) -> list[_Section]:
    """Return the tables of a text. `notes` receives warnings of nvprof and the number of unreadable lines."""
    sections: list[_Section] = []
    section: _Section | None = None
    process, device, api, nvtx = 0, "", False, False
    delimiter, cut = ",", 0
    warned: dict[str, None] = {}
    for line in _lines(text):
        if prefix := _MESSAGE.match(line):
            message = line[prefix.end() :].strip()
            process = int(prefix[1] or 0)
            device = match[1] if (match := _DEVICE.match(message)) else device
            if message.endswith(("result:", "calls:")):
                api, nvtx, device = message.startswith("API"), message.startswith("NVTX"), ""
            if message.startswith(("Warning:", "Error:")):
                warned[message] = None
            section = None
        elif kind := _kind_of(line):
            delimiter = "\t" if "\t" in line else ","
            section = _Section(
                kind=kind, process=process, header=split_line(line, delimiter), device=device, api=api, nvtx=nvtx
            )
            sections.append(section)
        elif section:
            cut += not _add(section, line, delimiter)
    notes += [f"nvprof printed: {message}" for message in list(warned)[:8]]
    if cut:
        notes.append(f"annot skipped {counted(cut, 'line')}, truncated or from another program.")
    return sections


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


def _add(section: _Section, line: str, delimiter: str) -> bool:
    """Add a row. Return whether the line is a row or empty."""
    if not line.strip():
        return True
    if (mark := _NVTX_ROW.fullmatch(line)) and "Name" in section.header:
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
