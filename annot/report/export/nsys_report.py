"""Copy of an Nsight Systems report with the findings of each layer call as text ranges on its timeline.

Two backends can add events to a report. The first one that is installed is used:

- ``nsys_writer``, a Python package of newer Nsight Systems releases that implements `nvtx.writer`. The calls follow
  NVIDIA's Analysis Guide ("Writing post-collection events"). Tests use a recording implementation of that interface;
  NVIDIA's implementation is untested.
- ``ImportNvtxt`` of older releases, which merges text in the format NVTXT,
  https://docs.nvidia.com/gameworks/content/gameworkslibrary/nvtx/analysis_nvtxt_file_extension.htm. Tested with 2022.4,
  which shows in addition: the time base ``Manual`` is that of the SQLite export. Texts are UTF-8; quotation marks, line
  breaks and a backslash at the end are not supported. Process and thread ids have 24 bits. Domains are not supported.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from annot.analyze.layer_details import Spans, spans
from annot.analyze.trace_events import Tracks
from annot.attribution.attribute import Attribution
from annot.errors import AnnotError
from annot.labels.tag import COLORS, FINDINGS
from annot.read.nsys import nsys_rep
from annot.read.nsys.sqlite_export import FINDINGS_PROCESS
from annot.report.units import amount, duration, printable, share
from annot.util.installed_tools import WRITER_BACKEND, has_nsys_writer, run_tool
from annot.util.progress import tell

_LONGEST_TEXT: Final = 1000
"""Maximum length of a text in characters; ImportNvtxt accepts about ten thousand."""
_OTHER_COLOR: Final = COLORS["loop"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Range on a track (number in `annot.analyze.trace_events.Tracks`), with times in ns of the profile.

    Ranges of a track nest. The text is one line without control characters, the color is 0xAARRGGBB.
    """

    track: int
    start: int
    end: int
    text: str
    color: int


def findings(spans: Spans) -> Iterator[Finding]:
    """Yield a range per span, ordered by track and start, outer ranges before inner ones.

    Example:
        >>> import polars as pl
        >>> from annot.analyze.layer_details import spans
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> range_ = {"id": 1, "process": 1, "thread": 1, "domain": "annot", "text": "fc Linear |fwd", "kind": "push"}
        >>> ranges = Profile.build({}, ranges=pl.DataFrame([range_ | {"start": 0, "end": 9000}]))
        >>> [finding.text for finding in findings(spans(attribute(ranges)))]
        ['fc Linear forward · host 9.00 µs']
    """
    clock = "GPU" if spans.on_device else "host"
    for count, row in enumerate(spans.rows.iter_rows(named=True), 1):
        tell("writing findings", count, unit="ranges")
        yield Finding(row["track"], row["start"], row["end"], _text(row, clock), COLORS.get(row["phase"], _OTHER_COLOR))


def _text(row: dict[str, Any], clock: str) -> str:
    layer = row["layer"] or ("(model)" if row["module"] and row["phase"] == "forward" else "")
    phase = "" if row["phase"] == "other" else row["phase"]
    number = "" if row["number"] is None else str(row["number"])
    flops = amount(row["flops"])
    unit = "FLOP" if flops[-1:].isalpha() else " FLOP"
    bound = row["bound"] and f"{row['bound']}-bound"
    of_roof = None if row["roof_share"] is None else f"{share(row['roof_share'], 1)} of the roof"
    facts = (
        " ".join(filter(None, (layer, row["module"], number, phase))),
        row["shapes"],
        f"{clock} {duration(row['time_ns'])}",
        flops and f"{flops}{unit}",
        ", ".join(filter(None, (bound, of_roof))),
    )
    text = printable(" · ".join(filter(None, facts)))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


_MERGE_SECONDS: Final = 3600
_SPECIAL: Final = re.compile(r"[/\[\]]")
"""Characters that need a backslash in the path of an NVTX scope."""
_RANGES: Final = "@RangeStartEnd, Start, End, ThreadId, Color, Message"


def report_of_profile(profile: Path) -> Path:
    """Return the Nsight Systems report of a profile: the profile itself, or the report next to its SQLite export.

    Args:
        profile: path of a report, or of a SQLite export with the report in the same folder.

    Raises:
        AnnotError: the report does not exist or cannot be read, or it is newer than the export.
    """
    try:
        with profile.open("rb") as file:
            if nsys_rep.sniff(profile, file.read(256)):
                return profile
        report = profile.with_suffix(".nsys-rep")
        if profile.suffix != ".sqlite" or not report.exists():
            raise AnnotError(f"{profile} is neither an Nsight Systems report nor a SQLite export next to its .nsys-rep")
        if profile.stat().st_mtime < report.stat().st_mtime:
            raise AnnotError(f"{profile} is older than {report} and may belong to another run. Pass the report itself")
    except OSError as error:
        raise AnnotError(f"{profile} cannot be read: {error.strerror}") from None
    return report


def enrich(attribution: Attribution, report: Path, out: Path) -> None:
    """Write a copy of a report with the time spans of each layer and phase, by device and stream.

    Args:
        attribution: profile of the report.
        report: path of the report; it stays unchanged.
        out: path of the copy; an existing file is replaced.

    Raises:
        AnnotError: no backend is installed, the backend failed, or the profile contains no layers or phases.
    """
    write = _backend_for(attribution)
    layer_spans = spans(attribution)
    if layer_spans.rows.is_empty():
        raise AnnotError(f"{report} contains no layers or phases. Record it with emit_ranges(model)")
    with tempfile.TemporaryDirectory(prefix=".annot-", dir=out.parent) as scratch:
        written = Path(scratch) / "enriched.nsys-rep"
        write(report.absolute(), written, findings(layer_spans), layer_spans.tracks)
        os.replace(written, out)


def _backend_for(attribution: Attribution) -> Callable[[Path, Path, Iterable[Finding], Tracks], None]:
    """Return a function that writes a copy of a report with ranges, which come grouped by track."""
    nsys = nsys_rep.newest_nsys()
    if has_nsys_writer():
        return partial(_write_by_nsys_writer, nsys.writer_backend() if nsys else None, *_time_base(attribution))
    importer = nsys.nvtxt_importer() if nsys else None
    if importer is None:
        raise AnnotError(
            "no program to write Nsight Systems reports is installed: neither the Python package nsys_writer nor "
            "ImportNvtxt; see annot doctor"
        )
    return partial(_write_by_importer, importer, _target(attribution))


def _write_by_nsys_writer(
    backend: Path | None, time_base: str, zero: int, report: Path, out: Path, ranges: Iterable[Finding], tracks: Tracks
) -> None:
    """Write one stream per track, in a scope with process, device and stream.

    `backend` is the library to write with, unless the environment selects one. `zero` is time 0 of the profile in the
    time base of nsys_writer, in ns.
    """
    if backend is not None:
        os.environ.setdefault(WRITER_BACKEND, str(backend))
    try:
        library = import_module("nsys_writer")
        base = getattr(library.TimeBase, time_base)
        with library.Session(name=str(out.with_suffix("")), report_merge=str(report), time_base=base) as session:
            domain = session.get_domain(FINDINGS)
            places = {track.number: (track.group.name, track.name) for track in tracks.all()}
            for track, of_track in groupby(ranges, key=lambda finding: finding.track):
                scope = domain.get_scope("/".join(_SPECIAL.sub(r"\\\g<0>", name) for name in places[track]))
                with session.create_stream(f"{FINDINGS} {track}", domain=domain, scope=scope) as stream:
                    for finding in of_track:
                        stream.write_pushpop(
                            finding.start + zero, finding.end + zero, message=finding.text, color=finding.color
                        )
    except Exception as error:  # nsys_writer documents no exception types
        raise AnnotError(f"{report} cannot be enriched by nsys_writer: {error}") from None
    if not out.exists():
        raise AnnotError(f"{report} cannot be enriched: nsys_writer did not write {out.name}")


def _time_base(attribution: Attribution) -> tuple[str, int]:
    """A time base of nsys_writer, and time 0 of the profile in it (ns)."""
    start, utc = (attribution.meta.get(name) for name in ("analysis_start_ns", "utc_start_ns"))
    if isinstance(start, int):
        return "RELATIVE", -start
    if isinstance(utc, int):
        return "UTC", utc
    raise AnnotError(
        f"{attribution.meta['source']} lacks a start time, which is needed to align ranges with the report"
    )


def _write_by_importer(
    program: Path, target: str, report: Path, out: Path, ranges: Iterable[Finding], tracks: Tracks
) -> None:
    """Merge the ranges as text.

    ImportNvtxt (`program`, with its libraries in the same folder) drops ranges outside the session unless
    ``--update_report_time`` lets it extend the session. `target` is the machine of the ranges in the report, as
    ``hardware:machine``.
    """
    text = out.with_suffix(".nvtxt")
    with text.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in nvtxt(ranges, tracks))
    tell(f"merging findings with {program}")
    files = ["-i", str(report), "-n", str(text), "-o", str(out)]
    command = [str(program), "--cmd", "merge", *files, "--target", target, "--update_report_time"]
    try:
        environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}
        result = run_tool(command, _MERGE_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise AnnotError(
            f"{report} cannot be enriched: {program} did not finish within {_MERGE_SECONDS // 60} minutes"
        ) from None
    except OSError as error:
        raise AnnotError(f"{report} cannot be enriched: {program} does not start: {error.strerror}") from None
    if result.returncode or not out.exists():
        output = result.stdout.decode("utf-8", "replace").replace("\r", "\n").splitlines()
        lines = " / ".join([line.strip() for line in output if line.strip()][-2:])
        raise AnnotError(f"{report} cannot be enriched by {program}: {lines or 'no output'}")


def _target(attribution: Attribution) -> str:
    """Machine of the report, from the two upper bytes of Nsight's global process ids."""
    process = next(iter(attribution.forest.threads.table["process"]), 0)
    return f"{process >> 56 & 0xFF}:{process >> 48 & 0xFF}"


def nvtxt(ranges: Iterable[Finding], tracks: Tracks) -> Iterator[str]:
    """Yield the lines of a file with ranges, which come grouped by track, without line breaks.

    A group of tracks becomes a process, and a track becomes a thread. Their ids are outside the range of real ids.

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
    for finding in ranges:
        if process != (process := processes[finding.track]):
            yield from (_RANGES, f"ProcessId = {process}", "TimeBase = Manual")
        times = f"{max(finding.start, 0)}, {max(finding.end, 0)}"
        yield f"RangeStartEnd, {times}, {finding.track}, {finding.color:#x}, {_quoted(finding.text)}"


def _quoted(text: str) -> str:
    text = printable(text).replace('"', "'")
    return f'"{text} "' if text.endswith("\\") else f'"{text}"'
