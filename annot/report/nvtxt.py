"""Ranges as NVTXT, the text form of NVTX that ImportNvtxt of Nsight Systems merges into a report.

The format: https://docs.nvidia.com/gameworks/content/gameworkslibrary/nvtx/analysis_nvtxt_file_extension.htm. What it
does not say was found out with ImportNvtxt of 2022.4: the time base ``Manual`` is that of an export to SQLite; texts
are UTF-8, a quotation mark cannot stand in them, nor a backslash at their end, nor a line break; a process and a
thread have 24 bits; there are no domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from annot.analyze.tracks import Tracks
from annot.read.nsys_nvtx import FINDINGS_PROCESS
from annot.report.findings import Finding
from annot.report.units import printable
from annot.tag import FINDINGS

__all__ = ["nvtxt"]

_RANGES = "@RangeStartEnd, Start, End, ThreadId, Color, Message"


def nvtxt(findings: Iterable[Finding], tracks: Tracks) -> Iterator[str]:
    """Yield the lines of the file, without their ends.

    Groups of tracks are processes and tracks are threads, with numbers that no process has.

    Args:
        findings: the ranges, those of a track together.
        tracks: names the tracks.

    Example:
        >>> import polars as pl
        >>> tracks = Tracks({})
        >>> number = tracks.of_steps(pl.Series([1]))[0]
        >>> print(*nvtxt([Finding(number, 5, 9, 'say "fc"', 0xFF4C9F38)], tracks), sep="\\n")
        SetFileDisplayName, "annot findings"
        NameProcess, 10485761, "annot findings: process 1"
        NameOsThread, 10485761, 2, "steps"
        @RangeStartEnd, Start, End, ThreadId, Color, Message
        ProcessId = 10485761
        TimeBase = Manual
        RangeStartEnd, 5, 9, 2, 0xff4c9f38, "say 'fc'"
    """
    yield f"SetFileDisplayName, {_quoted(FINDINGS)}"
    for group in tracks.groups():
        yield f"NameProcess, {_process(group.number)}, {_quoted(f'{FINDINGS}: {group.name}')}"
    groups = {track.number: track.group for track in tracks.all()}
    for track in tracks.all():
        yield f"NameOsThread, {_process(track.group)}, {track.number}, {_quoted(track.name)}"
    process = 0
    for one in findings:
        if process != (process := _process(groups[one.track])):
            yield from (_RANGES, f"ProcessId = {process}", "TimeBase = Manual")
        times = f"{max(one.start, 0)}, {max(one.end, 0)}"
        yield f"RangeStartEnd, {times}, {one.track}, {one.color:#x}, {_quoted(one.text)}"


def _process(group: int) -> int:
    return FINDINGS_PROCESS + group


def _quoted(text: str) -> str:
    text = printable(text).replace('"', "'")
    return f'"{text} "' if text.endswith("\\") else f'"{text}"'
