"""Reader for the output of ``ncu --csv``.

The page "details" has a row per kernel and metric, the page "raw" a row per kernel. Other lines of the
program and of ncu can stand before, between and after the rows. ncu quotes every field, but does not escape quotes in a
field. Its rows are therefore split at ``","``. Files written by another program are plain CSV.

The two NVTX columns contain the ranges around a kernel, as lists of quoted entries, separated by two spaces. The column
of push/pop ranges begins with the thread id::

    4733  "<default domain>:train:none:none:none:none:ASCII:train"  "annot:fc:Uint64:12:RGB:0xff00ff00:ASCII:fc"
     "77:annot:Epoch 0:none:none:none:none:none:none"

An entry consists of [id:]domain:text, type and value of the payload, type and value of the color, and type and text of
the message. ncu 2022.3 does not escape quotes and colons in texts. The parser therefore searches for payload and color,
in the middle of an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.ncu.launch_order import DEFAULT_DOMAIN, Launch, OpenRange, profile_of
from annot.read.text import counted, decoded, integer, number, read_text, split_line

NAME: Final = "ncu_csv"

PUSHED: Final = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""Column of push/pop ranges."""

STARTED: Final = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
"""Column of start/end ranges."""

# The repetitions are bounded to limit backtracking.
_MIDDLE: Final = re.compile(
    r":(?:none:none|(?:Uint64|Int64|Double|Uint32|Int32|Float):(?P<number>[^:\"]{1,64})|Json\w{0,16}:.{0,256}?)"
    r":[A-Za-z]{0,16}:(?:none|0x(?P<color>[0-9A-Fa-f]{1,8})|):[A-Za-z]{0,16}:",
    re.DOTALL,
)
_THREAD: Final = re.compile(r"\s*([0-9]{1,10})\b")
_BETWEEN: Final = '"  "'
_NEEDED: Final = {"ID", "Process ID", "Kernel Name"}
_METRIC: Final = ("Metric Name", "Metric Unit", "Metric Value")
_OF_KERNEL: Final = ("Kernel Time", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
_OF_RULE: Final = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
_OF_ROW: Final = ("Process Name", "Host Name", "Section Name")
_OTHER: Final = frozenset({*_NEEDED, *_METRIC, PUSHED, STARTED, *_OF_ROW, *_OF_KERNEL, *_OF_RULE})
_ROW: Final = re.compile(r'"?[0-9]*"?,"?[0-9]*"?,')
_INSTANCES: Final = re.compile(r"\s*\(.*\)\s*", re.DOTALL)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the head contains a table header of ncu; see `annot.read.formats.Reader`."""
    return b"Kernel Name" in head.replace(b"\0", b"") and any(map(_header, decoded(head).splitlines()))


def read(path: Path) -> Profile:
    """Read the output of ncu; see `annot.read.formats.Reader`."""
    launches: list[Launch] = []
    cut = 0
    for header, records, own in _tables(read_text(path)):
        split = [_fields(record, header, own) for record in records]
        rows = (dict(zip(header, fields, strict=True)) for fields in split if fields)
        launches += _details(rows) if set(_METRIC) <= set(header) else _raw(rows)
        cut += sum(not fields for fields in split)
    if not launches:
        raise AnnotError(f"{path} is CSV output of Nsight Compute without kernels")
    notes = [f"annot skipped {counted(cut, 'row')}, truncated or mixed with other output."] if cut else []
    return profile_of(path, NAME, "Nsight Compute", launches, notes)


def _header(line: str) -> list[str]:
    """Return the columns of a header line, or an empty list for any other line."""
    if "Kernel Name" not in line or "Process ID" not in line:
        return []
    columns = split_line(line)
    return columns if set(columns) >= _NEEDED else []


def _tables(text: str) -> Iterator[tuple[list[str], list[str], bool]]:
    """Yield header and rows of each table, and whether they are in the format of ncu, not of another program.

    The text of a range can contain line feeds, so a row can span several lines.
    """
    header: list[str] = []
    records: list[str] = []
    own = False
    for line in text.split("\n"):
        if next_header := _header(line):
            yield header, records, own
            header, records, own = next_header, [], line.startswith('"')
        elif _ROW.match(line):
            records.append(line)
        elif records and not line.startswith("==") and not _complete(records[-1], header):
            records[-1] += "\n" + line
    yield header, records, own


def _complete(record: str, header: Sequence[str]) -> bool:
    return record.endswith(('"', ",")) and record.count(",") + 1 >= len(header)


def _fields(record: str, header: Sequence[str], own: bool) -> list[str]:
    """Return as many fields as the header has, or an empty list for a truncated row."""
    fields = _split(record) if own else split_line(record)
    if len(fields) > len(header):
        fields = _joined(fields, header)
    shortest = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
    if not shortest <= len(fields) <= len(header):
        return []
    return fields + [""] * (len(header) - len(fields))


def _split(record: str) -> list[str]:
    """Split a row of ncu. A row without a rule ends with a comma."""
    inside = record[1:].removesuffix(",").removesuffix('"')
    return [field.replace('""', '"') for field in inside.split('","')]


def _joined(fields: list[str], header: Sequence[str]) -> list[str]:
    """Join fields that were split inside the texts of ranges."""
    if PUSHED not in header or STARTED not in header:
        return []
    first, extra = header.index(PUSHED), len(fields) - len(header)
    last = first + 2 + extra
    for cut in range(first + 1, last):
        left, right = '","'.join(fields[first:cut]), '","'.join(fields[cut:last])
        if (not left or left.endswith('" ')) and (not right or right.startswith(' "')):
            return [*fields[:first], left, right, *fields[last:]]
    return []


def _details(rows: Iterable[dict[str, str]]) -> list[Launch]:
    """Read a row per metric. The rows of a kernel have the same ID, Process ID and Kernel Name."""
    launches: dict[tuple[str, ...], Launch] = {}
    for row in rows:
        key = (row["ID"], row["Process ID"], row["Kernel Name"])
        if key not in launches and key[0]:
            launches[key] = _launch(row)
        if key in launches:
            _add_metric(launches[key], row["Metric Name"], row["Metric Unit"], row["Metric Value"])
    return list(launches.values())


def _raw(rows: Iterable[dict[str, str]]) -> list[Launch]:
    """Read a row per kernel. The ID of the row of units is empty."""
    units: dict[str, str] = {}
    launches = []
    for row in rows:
        if not row["ID"]:
            units = row
            continue
        launches.append(_launch(row))
        for name, text in row.items():
            if name not in _OTHER:
                _add_metric(launches[-1], name, units.get(name, ""), text)
    return launches


def _launch(row: Mapping[str, str]) -> Launch:
    process = integer(row["Process ID"]) or 0
    thread, pushed = pushed_ranges(row.get(PUSHED, ""))
    return Launch(
        process,
        process if thread is None else thread,
        row["Kernel Name"],
        integer(row.get("Device", "")),
        integer(row.get("Stream", "")),
        started=started_ranges(row.get(STARTED, "")),
        pushed=pushed,
    )


def _add_metric(launch: Launch, name: str, unit: str, text: str) -> None:
    """Add a metric with a numeric value. The values of its instances in parentheses are ignored."""
    text = _INSTANCES.sub("", text) if text.endswith(")") else text
    value = number(text)
    if value is not None and name:
        launch.metrics.setdefault((name, unit), value)


def pushed_ranges(field: str) -> tuple[int | None, dict[str, list[OpenRange]]]:
    """Return the thread, and the push/pop ranges of each domain, outermost first."""
    thread = _THREAD.match(field)
    stacks: dict[str, list[OpenRange]] = {}
    for (domain, text), middle in _entries(field, 2):
        opened = _range(domain, text, None, middle)
        stacks.setdefault(opened.domain, []).append(opened)
    return int(thread[1]) if thread else None, stacks


def started_ranges(field: str) -> list[OpenRange]:
    """Return the start/end ranges."""
    ranges = []
    for (name, domain, text), middle in _entries(field, 3):
        is_number = name.isascii() and name.isdecimal() and len(name) < 21
        ranges.append(_range(domain, text, int(name) if is_number else None, middle))
    return ranges


def _range(domain: str, text: str, number: int | None, middle: re.Match[str]) -> OpenRange:
    color = middle["color"]
    named = "" if domain == DEFAULT_DOMAIN else domain
    return OpenRange(named, text, number, middle["number"], int(color, 16) if color else None)


def _entries(field: str, width: int) -> Iterator[tuple[list[str], re.Match[str]]]:
    """Yield the middle of each entry and the `width` fields before it. The last of these fields is the text."""
    start = field.find('"') + 1
    while start and (middle := _MIDDLE.search(field, start)):
        fields = field[start : middle.start()].split(":", width - 1)
        fields += [""] * (width - len(fields))
        yield fields, middle
        start = _next_entry(field, fields[-1], middle.end())


def _next_entry(field: str, text: str, message: int) -> int:
    """Return the index of the next entry, or 0.

    The message repeats the text of the range or is "none". Any other message ends at the first separator.
    """
    for expected in (text, "none"):
        if field.startswith(expected + _BETWEEN, message):
            return message + len(expected + _BETWEEN)
    end = field.find(_BETWEEN, message)
    return 0 if end < 0 else end + len(_BETWEEN)
