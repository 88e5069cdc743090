"""What ``ncu --csv`` prints: the page "details", a row per kernel and metric, and "raw", a row per kernel.

Other lines of the program and of ncu can stand before, between and after the rows. ncu puts every field in
quotes, but does not double a quote inside a text, so that its rows are cut where a quote, comma and quote meet.
Files that another program wrote in its stead are plain CSV.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.csv_text import decoded, nanoseconds, number, read_text, split_line
from annot.read.launch_order import DURATIONS, Launch, profile_of
from annot.read.ncu_nvtx import PUSHED, STARTED, pushed_ranges, started_ranges

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "ncu_csv"

_NEEDED: Final = {"ID", "Process ID", "Kernel Name"}
_METRIC: Final = ("Metric Name", "Metric Unit", "Metric Value")
_OTHER: Final = frozenset(
    {
        *_NEEDED, *_METRIC, PUSHED, STARTED, "Process Name", "Host Name", "Kernel Time", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC", "Section Name", "Rule Name", "Rule Type", "Rule Description",
        "Estimated Speedup Type", "Estimated Speedup",
    }
)  # fmt: skip
_ROW: Final = re.compile(r'"?[0-9]*"?,"?[0-9]*"?,')
_INSTANCES: Final = re.compile(r"\s*\(.*\)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Table:
    """The rows under one header, each as long as the header."""

    header: list[str]
    rows: list[list[str]]
    cut: int


def sniff(path: Path, head: bytes) -> bool:
    """Return whether a line of the head is a header of ncu; see `annot.read.Reader`."""
    return b"Kernel Name" in head.replace(b"\0", b"") and any(map(_header, decoded(head).splitlines()))


def read(path: Path) -> Profile:
    """Read what ncu printed; see `annot.read.Reader`.

    Raises:
        AnnotError: no row describes a kernel.
    """
    tables = list(_tables(read_text(path)))
    launches = [launch for table in tables for launch in _launches(table)]
    if not launches:
        raise AnnotError(f"{path} is CSV of Nsight Compute, but no row in it describes a kernel")
    cut = sum(table.cut for table in tables)
    notes = [f"{cut:,} rows are cut or mixed with other output, and were left out"] if cut else []
    return profile_of(path, NAME, "Nsight Compute", launches, notes)


def _header(line: str) -> list[str]:
    """Return the columns if the line is a header, else none."""
    if "Kernel Name" not in line or "Process ID" not in line:
        return []
    columns = split_line(line)
    return columns if set(columns) >= _NEEDED else []


def _tables(text: str) -> Iterator[_Table]:
    """Give the tables in a file; a kernel's row can reach over lines, as the texts of ranges can."""
    header: list[str] = []
    records: list[str] = []
    own = False
    for line in text.split("\n"):
        if found := _header(line):
            yield _table(header, records, own)
            header, records, own = found, [], line.startswith('"')
        elif _ROW.match(line):
            records.append(line)
        elif records and not line.startswith("==") and not _complete(records[-1], header):
            records[-1] += "\n" + line
    yield _table(header, records, own)


def _complete(record: str, header: Sequence[str]) -> bool:
    return record.endswith(('"', ",")) and record.count(",") + 1 >= len(header)


def _table(header: list[str], records: Sequence[str], own: bool) -> _Table:
    """Split the rows, as ncu prints them or as other programs do."""
    split = [_fields(record, header, own) for record in records]
    return _Table(header, [fields for fields in split if fields], sum(not fields for fields in split))


def _fields(record: str, header: Sequence[str], own: bool) -> list[str]:
    """Return the fields of a row, as many as the header has, or none if it is cut."""
    fields = _cut(record) if own else split_line(record)
    if len(fields) > len(header):
        fields = _joined(fields, header)
    shortest = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
    if not shortest <= len(fields) <= len(header):
        return []
    return fields + [""] * (len(header) - len(fields))


def _cut(record: str) -> list[str]:
    """Cut a row of ncu; one without a rule ends after a comma."""
    inside = record[1:].removesuffix(",").removesuffix('"')
    return [field.replace('""', '"') for field in inside.split('","')]


def _joined(fields: list[str], header: Sequence[str]) -> list[str]:
    """Join what was cut in the texts of ranges."""
    if PUSHED not in header or STARTED not in header:
        return []
    first, extra = header.index(PUSHED), len(fields) - len(header)
    last = first + 2 + extra
    for cut in range(first + 1, last):
        left, right = '","'.join(fields[first:cut]), '","'.join(fields[cut:last])
        if (not left or left.endswith('" ')) and (not right or right.startswith(' "')):
            return [*fields[:first], left, right, *fields[last:]]
    return []


def _launches(table: _Table) -> list[Launch]:
    if not table.header:
        return []
    place = {name: index for index, name in reversed(list(enumerate(table.header)))}
    if set(_METRIC) <= place.keys():
        return _details(table, place)
    return _raw(table, place)


def _details(table: _Table, place: dict[str, int]) -> list[Launch]:
    """Read a row per metric; the rows of a kernel share number, process and name."""
    launches: dict[tuple[str, ...], Launch] = {}
    name, unit, value = (place[column] for column in _METRIC)
    identity = [place[column] for column in ("ID", "Process ID", "Kernel Name")]
    for row in table.rows:
        key = tuple(row[index] for index in identity)
        if key not in launches:
            if not key[0]:
                continue
            launches[key] = _launch(row, place)
        _add_metric(launches[key], row[name], row[unit], row[value])
    return list(launches.values())


def _raw(table: _Table, place: dict[str, int]) -> list[Launch]:
    """Read a row per kernel; the row of units has no number."""
    metrics = [(index, name) for index, name in enumerate(table.header) if name not in _OTHER]
    units = [""] * len(table.header)
    launches = []
    for row in table.rows:
        if not row[place["ID"]]:
            units = row
            continue
        launch = _launch(row, place)
        for index, name in metrics:
            _add_metric(launch, name, units[index], row[index])
        launches.append(launch)
    return launches


def _launch(row: Sequence[str], place: dict[str, int]) -> Launch:
    def text(column: str) -> str:
        return row[place[column]] if column in place else ""

    process = _integer(text("Process ID")) or 0
    thread, pushed = pushed_ranges(text(PUSHED))
    return Launch(
        process,
        process if thread is None else thread,
        text("Kernel Name"),
        _integer(text("Device")),
        _integer(text("Stream")),
        started=started_ranges(text(STARTED)),
        pushed=pushed,
    )


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _add_metric(launch: Launch, name: str, unit: str, text: str) -> None:
    """Add a metric whose value is a number; the values of single units that can follow it are left out."""
    text = _INSTANCES.sub("", text) if text.endswith(")") else text
    value = number(text)
    if value is None or not name:
        return
    launch.metrics.setdefault((name, unit), value)
    if name == "launch__device_id" and launch.device is None:
        launch.device = int(value)
    if name in DURATIONS:
        known = [other for other, _ in launch.metrics if other in DURATIONS]
        if min(known, key=DURATIONS.index) == name:
            launch.duration = nanoseconds(text, unit)
