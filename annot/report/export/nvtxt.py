"""Findings as NVTXT, the text format of NVTX that ImportNvtxt of Nsight Systems merges into a report.

The format: https://docs.nvidia.com/gameworks/content/gameworkslibrary/nvtx/analysis_nvtxt_file_extension.htm.
ImportNvtxt of Nsight Systems 2022.4 shows in addition: the time base ``Manual`` is that of the SQLite export. Texts are
UTF-8; quotation marks, line breaks and a backslash at the end are not supported. Process and thread ids have 24 bits.
Domains are not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from annot.analyze.tracks import Tracks
from annot.labels.tag import FINDINGS
from annot.read.nsys.nvtx_events import FINDINGS_PROCESS
from annot.report.export.findings import Finding
from annot.report.units import printable

__all__ = ["nvtxt"]

_RANGES = "@RangeStartEnd, Start, End, ThreadId, Color, Message"


def nvtxt(findings: Iterable[Finding], tracks: Tracks) -> Iterator[str]:
    """Yield the lines of the file, without line breaks.

    A group of tracks becomes a process, and a track becomes a thread. Their ids are outside the range of real ids.

    Args:
        findings: ranges, grouped by track.
        tracks: names of the tracks.

    Example:
        >>> import polars as pl
        >>> tracks = Tracks({})
        >>> number = tracks.of("steps", pl.DataFrame({"process": [1]}))[0]
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
        yield f"NameProcess, {FINDINGS_PROCESS + group.number}, {_quoted(f'{FINDINGS}: {group.name}')}"
    processes = {track.number: FINDINGS_PROCESS + track.group.number for track in tracks.all()}
    for track in tracks.all():
        yield f"NameOsThread, {processes[track.number]}, {track.number}, {_quoted(track.name)}"
    process = 0
    for one in findings:
        if process != (process := processes[one.track]):
            yield from (_RANGES, f"ProcessId = {process}", "TimeBase = Manual")
        times = f"{max(one.start, 0)}, {max(one.end, 0)}"
        yield f"RangeStartEnd, {times}, {one.track}, {one.color:#x}, {_quoted(one.text)}"


def _quoted(text: str) -> str:
    text = printable(text).replace('"', "'")
    return f'"{text} "' if text.endswith("\\") else f'"{text}"'
