"""A copy of a report of Nsight Systems with what annot found, on the timeline beside what it was found in.

Two programs of Nsight Systems can add to a report, and what is installed decides:

- ``nsys_writer``, a Python package in the folder of newer releases, which fills the interface `nvtx.writer`. What is
  called here follows NVIDIA's Analysis Guide ("Writing post-collection events") and is tested through that interface;
  NVIDIA's own backend has not been seen.
- ``ImportNvtxt`` of older releases, which merges text (`annot.report.nvtxt`); tested with 2022.4.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Protocol

from annot.analyze.spans import spans
from annot.analyze.tracks import Tracks
from annot.collect.tools import WRITER_BACKEND, has_nsys_writer
from annot.correlate import Attribution
from annot.errors import AnnotError
from annot.progress import tell
from annot.read import nsys_report
from annot.report.findings import Finding, findings
from annot.report.nvtxt import nvtxt
from annot.tag import FINDINGS

__all__ = ["enrich", "report_of_profile"]

_MERGE_SECONDS: Final = 3600
_SPECIAL: Final = re.compile(r"[/\[\]]")
"""What a name in the path of an NVTX scope must not have without a backslash."""


def report_of_profile(profile: Path) -> Path:
    """Return the report of Nsight Systems that a profile is, or is an export of.

    Args:
        profile: a report, or an export to SQLite beside it.

    Raises:
        AnnotError: there is no such report, or it is newer than the export.
    """
    try:
        with profile.open("rb") as file:
            if nsys_report.sniff(profile, file.read(256)):
                return profile
        report = profile.with_suffix(".nsys-rep")
        if profile.suffix != ".sqlite" or not report.exists():
            raise AnnotError(
                f"{profile} is neither a report of Nsight Systems nor an export to SQLite with its report beside it"
            )
        if profile.stat().st_mtime < report.stat().st_mtime:
            raise AnnotError(f"{profile} is older than {report}, so it may be of another run: give the report itself")
    except OSError as error:
        raise AnnotError(f"{profile} cannot be read: {error.strerror}") from None
    return report


def enrich(attribution: Attribution, report: Path, out: Path) -> None:
    """Write a copy of a report that has when each layer and phase was at work, on which device and stream.

    Args:
        attribution: the profile in the report.
        report: the report, which is not changed.
        out: the copy; what is there is replaced.

    Raises:
        AnnotError: no program is installed that adds to reports, or it failed, or there is nothing to add.
    """
    road = _road(attribution)
    found = spans(attribution)
    if found.rows.is_empty():
        raise AnnotError(f"{report} has no layers or phases whose times could be written")
    with tempfile.TemporaryDirectory(prefix=".annot-", dir=out.parent) as scratch:
        written = Path(scratch) / "enriched.nsys-rep"
        road.write(report.absolute(), written, findings(found), found.tracks)
        os.replace(written, out)


class _Road(Protocol):
    """A program that adds to reports."""

    def write(self, report: Path, out: Path, ranges: Iterable[Finding], tracks: Tracks) -> None:
        """Write a copy of a report, `out`, with ranges on their tracks; those of a track come together."""


def _road(attribution: Attribution) -> _Road:
    nsys = nsys_report.newest_nsys()
    if has_nsys_writer():
        return _Writer(nsys.writer_backend() if nsys else None, *_time_base(attribution))
    importer = nsys.nvtxt_importer() if nsys else None
    if importer is None:
        raise AnnotError(
            "nothing is installed that writes into reports of Nsight Systems: neither its Python package nsys_writer "
            "nor ImportNvtxt of its host part; see annot doctor"
        )
    return _Importer(importer, _target(attribution))


@dataclass(frozen=True, slots=True)
class _Writer:
    """nsys_writer: a stream per track, in a scope that names process, device and stream.

    Args:
        backend: the library to write with, if none is chosen in the environment.
        time_base: one of nsys_writer's.
        zero: time 0 of the profile in it (ns).
    """

    backend: Path | None
    time_base: str
    zero: int

    def write(self, report: Path, out: Path, ranges: Iterable[Finding], tracks: Tracks) -> None:
        """See `_Road`."""
        if self.backend is not None:
            os.environ.setdefault(WRITER_BACKEND, str(self.backend))
        try:
            library = import_module("nsys_writer")
            base = getattr(library.TimeBase, self.time_base)
            with library.Session(name=str(out.with_suffix("")), report_merge=str(report), time_base=base) as session:
                self._add(session, ranges, tracks)
        except Exception as error:  # whatever NVIDIA's package raises
            raise AnnotError(f"{report} cannot be enriched by nsys_writer: {error}") from None
        if not out.exists():
            raise AnnotError(f"nsys_writer wrote no copy of {report}")

    def _add(self, session: Any, ranges: Iterable[Finding], tracks: Tracks) -> None:
        domain, zero = session.get_domain(FINDINGS), self.zero
        groups = {group.number: group.name for group in tracks.groups()}
        places = {track.number: (groups[track.group], track.name) for track in tracks.all()}
        for track, of_track in groupby(ranges, key=lambda one: one.track):
            scope = domain.get_scope("/".join(_SPECIAL.sub(r"\\\g<0>", part) for part in places[track]))
            with session.create_stream(f"{FINDINGS} {track}", domain=domain, scope=scope) as stream:
                for one in of_track:
                    stream.write_pushpop(one.start + zero, one.end + zero, message=one.text, color=one.color)


def _time_base(attribution: Attribution) -> tuple[str, int]:
    """A time base of nsys_writer that the profile knows, and time 0 of the profile in it."""
    start, utc = (attribution.meta.get(name) for name in ("analysis_start_ns", "utc_start_ns"))
    if isinstance(start, int):
        return "RELATIVE", -start
    if isinstance(utc, int):
        return "UTC", utc
    raise AnnotError(f"{attribution.meta['source']} does not say when it began, so nothing can be placed in its report")


@dataclass(frozen=True, slots=True)
class _Importer:
    """ImportNvtxt, which leaves out what lies outside the session unless it may prolong that in the copy.

    Args:
        program: its path; its libraries lie beside it.
        target: the machine in the report that the ranges are of, as ``hardware:machine``.
    """

    program: Path
    target: str

    def write(self, report: Path, out: Path, ranges: Iterable[Finding], tracks: Tracks) -> None:
        """See `_Road`."""
        text = out.with_suffix(".nvtxt")
        with text.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in nvtxt(ranges, tracks))
        tell(f"merging findings with {self.program}")
        files = ["-i", str(report), "-n", str(text), "-o", str(out)]
        command = [str(self.program), "--cmd", "merge", *files, "--target", self.target, "--update_report_time"]
        try:
            result = subprocess.run(
                command, env=os.environ | {"LD_LIBRARY_PATH": str(self.program.parent)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_MERGE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise AnnotError(
                f"{report} was not enriched by {self.program} within {_MERGE_SECONDS // 60} minutes"
            ) from None
        except OSError as error:
            raise AnnotError(
                f"{report} cannot be enriched, because {self.program} does not run: {error.strerror}"
            ) from None
        if result.returncode or not out.exists():
            said = result.stdout.decode("utf-8", "replace").replace("\r", "\n").splitlines()
            lines = " / ".join([line.strip() for line in said if line.strip()][-2:])
            raise AnnotError(f"{report} cannot be enriched by {self.program}: {lines or 'it said nothing'}")


def _target(attribution: Attribution) -> str:
    """The machine in the report: the two upper bytes of the numbers of its processes."""
    process = next(iter(attribution.forest.threads.table["process"]), 0)
    return f"{process >> 56 & 0xFF}:{process >> 48 & 0xFF}"
