"""Reader for Nsight Systems reports (``.nsys-rep``, ``.qdrep``) through `nsys export`.

The format is undocumented. nsys opens reports of its own version and of older versions. The first line is
``NVIDIA Tegra Profiler Report 1.`` in older reports, and ``... Report 2026@4@1@191-264138605071v0.`` in Nsight Systems
2026.4.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nsys.sqlite_export import read_exported
from annot.util.installed_tools import Nsys, find_nsys, run_tool
from annot.util.progress import tell

NAME: Final = "nsys_report"

_MAGIC: Final = b"NVIDIA Tegra Profiler Report "
_WRITTEN_BY: Final = re.compile(re.escape(_MAGIC) + rb"(20\d\d)@(\d+)(?:@(\d+))?")
_REFUSED: Final = re.compile(r"version \((20\d\d)\.(\d+)(?:\.(\d+))?[^)]*\),?\s+newer than", re.IGNORECASE)
_EXPORT_SECONDS: Final = 3600
_SOURCE: Final = "https://developer.nvidia.com/nsight-systems"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a report of Nsight Systems; see `annot.read.formats.Reader`."""
    return head.startswith(_MAGIC)


def read(path: Path) -> Profile:
    """Export the report to a temporary folder and read the export; see `annot.read.formats.Reader`.

    An existing export next to the report is ignored, because it may belong to another report.
    """
    nsys = newest_nsys()
    with path.open("rb") as file:
        written_by = _version(_WRITTEN_BY.match(file.read(256)))
    if nsys is None:
        raise AnnotError(
            f"{path} is a report that requires Nsight Systems{_or_newer(written_by)}, which was not found. Install it "
            f"from {_SOURCE}, or export the report on another machine with `nsys export --type=sqlite`."
        )
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        exported = Path(scratch) / "report.sqlite"
        _export(path, nsys, exported, written_by)
        return read_exported(path, NAME, exported)


def newest_nsys() -> Nsys | None:
    """Return the newer of nsys on PATH and the newest nsys in the usual folders, or None."""
    candidates = [find_nsys()]
    if not os.environ.get("ANNOT_NSYS"):
        candidates.append(find_nsys({"PATH": ""}))
    return max(filter(None, candidates), key=lambda nsys: nsys.version, default=None)


def _export(path: Path, nsys: Nsys, exported: Path, written_by: tuple[int, ...]) -> None:
    tell(f"exporting {path.name} with Nsight Systems {nsys.version_text}")
    command = [str(nsys.path), "export", "--type=sqlite", "--quiet=true", "--force-overwrite=true"]
    try:
        result = run_tool([*command, f"--output={exported}", str(path.absolute())], _EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise AnnotError(f"{path} was not exported by {nsys.path} in {_EXPORT_SECONDS // 60} minutes") from None
    except OSError as error:
        raise AnnotError(f"{path} cannot be exported: {nsys.path} does not run: {error.strerror}") from None
    if result.returncode == 0 and exported.exists():
        return
    printed = result.stdout.decode("utf-8", "replace")
    written_by = written_by or _version(_REFUSED.search(printed))
    if written_by > nsys.version:
        raise AnnotError(
            f"{path} requires Nsight Systems{_or_newer(written_by)}. {nsys.path} is {nsys.version_text}. Install a "
            f"newer version from {_SOURCE}, or export the report on another machine with `nsys export --type=sqlite`."
        )
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    reason = " / ".join(lines[-3:]) or f"nsys exited with status {result.returncode}"
    raise AnnotError(f"{path} cannot be exported by Nsight Systems {nsys.version_text}: {reason}")


def _version(match: re.Match[str] | re.Match[bytes] | None) -> tuple[int, ...]:
    return tuple(int(number) for number in match.groups() if number is not None) if match else ()


def _or_newer(version: tuple[int, ...]) -> str:
    return f" {'.'.join(map(str, version))} or newer" if version else ""
