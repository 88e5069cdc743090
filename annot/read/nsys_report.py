"""The report that Nsight Systems itself writes, ``.nsys-rep`` or ``.qdrep``, read through its own export.

The format is not documented; nsys opens what its own version or an older one wrote. The first line is
``NVIDIA Tegra Profiler Report 1.`` up to some version, and ``... Report 2026@4@1@191-264138605071v0.`` since.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.errors import AnnotError
from annot.profile import Profile
from annot.progress import tell
from annot.read import nsys_sqlite

if TYPE_CHECKING:
    from annot.collect.tools import Nsys

__all__ = ["NAME", "newest_nsys", "read", "sniff"]

NAME: Final = "nsys_report"

_MAGIC: Final = b"NVIDIA Tegra Profiler Report "
_WRITTEN_BY: Final = re.compile(re.escape(_MAGIC) + rb"(20\d\d)@(\d+)(?:@(\d+))?")
_REFUSED: Final = re.compile(r"version \((20\d\d)\.(\d+)(?:\.(\d+))?[^)]*\),?\s+newer than", re.IGNORECASE)
_EXPORT_SECONDS: Final = 3600
_SOURCE: Final = "https://developer.nvidia.com/nsight-systems"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a report of Nsight Systems; see `annot.read.Reader`."""
    return head.startswith(_MAGIC)


def read(path: Path) -> Profile:
    """Export the report into a temporary folder, and read that; see `annot.read.Reader`.

    An export that already lies beside the report is not used: nothing says that it is of this report.

    Raises:
        AnnotError: no Nsight Systems is installed that can open the report, or the report is damaged or holds
            neither NVTX ranges nor CUDA activity.
    """
    nsys = newest_nsys()
    with path.open("rb") as file:
        written_by = _version(_WRITTEN_BY.match(file.read(256)))
    if nsys is None:
        raise AnnotError(
            f"{path} is a report that only Nsight Systems{_or_newer(written_by)} opens, and none answers: install it "
            f"from {_SOURCE}, or export the report elsewhere with `nsys export --type=sqlite`"
        )
    with tempfile.TemporaryDirectory(prefix="annot-") as scratch:
        exported = Path(scratch) / "report.sqlite"
        _export(path, nsys, exported, written_by)
        try:
            profile = nsys_sqlite.read(exported)
        except AnnotError as error:
            raise AnnotError(str(error).replace(str(exported), str(path))) from None
    return replace(profile, meta=profile.meta | {"source": str(path), "format": NAME})


def newest_nsys() -> Nsys | None:
    """Return the command on PATH, or the newest in the usual folders, if that is newer."""
    from annot.collect.tools import find_nsys  # not needed for any other profile

    found = [find_nsys()]
    if not os.environ.get("ANNOT_NSYS"):
        found.append(find_nsys({"PATH": ""}))
    return max(filter(None, found), key=lambda nsys: nsys.version, default=None)


def _export(path: Path, nsys: Nsys, exported: Path, written_by: tuple[int, ...]) -> None:
    tell(f"exporting {path.name} with Nsight Systems {nsys.version_text}")
    command = [str(nsys.path), "export", "--type=sqlite", "--quiet=true", "--force-overwrite=true"]
    try:
        result = subprocess.run(
            [*command, f"--output={exported}", str(path.absolute())], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_EXPORT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AnnotError(f"{path} was not exported by {nsys.path} within {_EXPORT_SECONDS // 60} minutes") from None
    except OSError as error:
        raise AnnotError(f"{path} cannot be exported, because {nsys.path} does not run: {error.strerror}") from None
    if result.returncode == 0 and exported.exists():
        return
    said = result.stdout.decode("utf-8", "replace")
    written_by = written_by or _version(_REFUSED.search(said))
    if written_by > nsys.version:
        raise AnnotError(
            f"{path} needs Nsight Systems{_or_newer(written_by)}, and {nsys.path} is {nsys.version_text}: install a "
            f"newer one from {_SOURCE}, or export the report elsewhere with `nsys export --type=sqlite`"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = " / ".join(lines[-3:]) or f"it ended with status {result.returncode}"
    raise AnnotError(f"{path} cannot be exported by Nsight Systems {nsys.version_text}: {reason}")


def _version(found: re.Match[str] | re.Match[bytes] | None) -> tuple[int, ...]:
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def _or_newer(version: tuple[int, ...]) -> str:
    return f" {'.'.join(map(str, version))} or newer" if version else ""
