"""Reader for the output of ``nvprof --csv``: GPU and API traces, summaries, and counters ("metrics", "events").

A trace contains the times of each kernel and copy. With ``--print-api-trace`` it also contains API calls and NVTX
ranges, but not their threads. A summary row stands for many calls. It stays one row, and a note tells the user. nvprof
rounds times to six digits of their unit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LAUNCHES, MARKS, METRICS, RANGES, Profile, Schema
from annot.read.csv_text import decoded, integer, nanoseconds, number, read_text, split_line
from annot.read.notes import counted
from annot.read.nvprof.csv_sections import Section, kind_of, sections

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "nvprof_csv"

_PROFILING: Final = re.compile(r"^==[0-9]+== NVPROF is profiling", re.MULTILINE)
_COPY: Final = re.compile(r"\[(?:CUDA|(Unified Memory)) [Mm]emcpy ([\w ]+)\]")
_NVTX: Final = re.compile(r"\[(Range start|Range end|Marker)\] (.*?)(?: \(Domain: (.*)\))?", re.DOTALL)
_NUMBERED: Final = re.compile(r"(.*) \[([0-9]{1,10})\]", re.DOTALL)
_IN_PARENTHESES: Final = re.compile(r"(.*)\(([0-9]{1,4})\)\s*")
_VALUE: Final = re.compile(r"([-+]?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?)\s*([^0-9\s]\S*)?", re.IGNORECASE)
_BYTES: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_NO_COUNTERS: Final = frozenset({"Device", "Context", "Stream", "Kernel", "Correlation_ID"})


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the head contains a message or a table header of nvprof; see `annot.read.formats.Reader`."""
    text = decoded(head)
    if _PROFILING.search(text):
        return True
    lines = [line for line in text.splitlines() if "Name" in line or "Kernel" in line]
    return any(kind_of(split_line(line, "\t" if "\t" in line else ",")) for line in lines)


def read(path: Path) -> Profile:
    """Read the output of nvprof; see `annot.read.formats.Reader`."""
    notes: list[str] = []
    tables = _Tables()
    found = list(sections(read_text(path), notes))
    traced = {section.process for section in found if section.kind == "trace"}
    for section in found:
        if section.kind == "trace":
            tables.add_trace(section)
    for section in found:
        if section.kind == "summary" and section.process not in traced and not (section.nvtx or section.api):
            tables.add_summary(section)
    for section in found:
        if section.kind == "counters":
            tables.add_counters(section)
        elif section.kind == "counter trace":
            tables.add_counter_trace(section)
    if any(section.nvtx for section in found):
        notes.append("annot skipped the totals by NVTX range. Run nvprof with --print-gpu-trace --print-api-trace.")
    if not (tables.kernels or tables.copies or tables.launches):
        raise AnnotError(f"{path} is nvprof output without a trace, a summary or counters")
    meta = {"source": str(path), "format": NAME, "producer": "nvprof", "notes": notes + tables.notes()}
    return tables.profile(meta | ({} if tables.launches else {"host_times": False}))


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

    def add_trace(self, section: Section) -> None:
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

    def _add_activity(self, section: Section, row: dict[str, str], start: int, end: int) -> None:
        name, correlation = _numbered(row)
        activity = {
            "process": section.process, "device": _device(row.get("Device") or section.device),
            "stream": integer(row.get("Stream", "")), "start": start, "end": end, "correlation": correlation,
        }  # fmt: skip
        copy = _COPY.fullmatch(name)
        if copy or name == "[CUDA memset]":
            kind = " ".join(filter(None, ("UVM" if copy[1] else "", copy[2]))) if copy else "memset"
            self.copies.append(activity | {"kind": kind, "bytes": _size(row, section)})
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

    def add_summary(self, section: Section) -> None:
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

    def add_counters(self, section: Section) -> None:
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

    def add_counter_trace(self, section: Section) -> None:
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
    ) -> int:  # fmt: skip
        at = self._clocks.get(process, 0)
        kernel = {"process": process, "device": _device(device), "stream": stream, "start": at, "end": at}
        self.kernels.append(kernel | {"correlation": correlation, "name": name})
        return len(self.kernels) - 1

    def _add_metric(self, kernel: int, name: str, text: str, unit: str = "") -> None:
        if level := _IN_PARENTHESES.fullmatch(text):  # "Low (2)"
            text, unit = level[2], unit or "level"
        parts = _VALUE.fullmatch(text.strip())
        value = number(parts[1]) if parts else None
        if parts and value is not None:
            self._metrics.append({"kernel": kernel, "name": name, "value": value, "unit": parts[2] or unit})

    def notes(self) -> list[str]:
        """Return notes on what the tables lack."""
        found = []
        if self._totals:
            found.append("The rows are totals over all calls of a kernel, as nvprof printed them.")
        if self._ranges:
            found.append(
                "The CSV output of nvprof has no threads. annot puts all calls and ranges of a process on one thread."
            )
        elif self.launches or self.kernels:
            found.append("The profile has no NVTX ranges, so annot cannot attribute GPU time to layers.")
        if self._unmatched_ends:
            found.append(f"annot skipped {counted(self._unmatched_ends, 'range end')} without a start.")
        if self._invalid:
            found.append(f"annot skipped {counted(self._invalid, 'row')} without a valid time or GPU activity.")
        return found

    def profile(self, meta: dict[str, Any]) -> Profile:
        """Return the profile."""
        return Profile.build(
            meta,
            ranges=_frame(self._ranges, RANGES),
            marks=_frame(self._marks, MARKS),
            launches=_frame(self.launches, LAUNCHES),
            kernels=_frame(self.kernels, KERNELS),
            copies=_frame(self.copies, COPIES),
            metrics=_frame(self._metrics, METRICS),
        )


def _frame(rows: list[dict[str, Any]], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(schema), orient="row")


def _numbered(row: dict[str, str], column: str = "Name") -> tuple[str, int | None]:
    """Return name and correlation id. Versions of nvprof without the column Correlation_ID append it to the name."""
    name = row[column]
    if "Correlation_ID" in row:
        return name, integer(row["Correlation_ID"])
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1], int(numbered[2])) if numbered else (name, None)


def _device(text: str) -> int | None:
    found = _IN_PARENTHESES.fullmatch(text)
    return int(found[2]) if found else None


def _size(row: dict[str, str], section: Section) -> int | None:
    value, factor = number(row.get("Size", "")), _BYTES.get(section.units.get("Size", ""))
    return None if value is None or factor is None else round(value * factor)
