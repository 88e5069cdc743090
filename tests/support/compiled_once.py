"""Programs and libraries of C for tests, each compiled once: it stays in `build`, for all processes and later runs."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "build/compiled"


def compiled(command: Sequence[str], sources: Sequence[Path], *options: str, version: str = "") -> Path:
    """Return the file that a compiler makes of sources.

    Args:
        command: the compiler, and options before the sources.
        sources: files to compile; they include headers of their own folders.
        options: options after the sources.
        version: release of what else the file depends on.
    """
    headers = [header for folder in {path.parent for path in sources} for header in folder.glob("*.h")]
    digest = hashlib.sha256(repr((command, options, version)).encode())
    for path in (*sources, *sorted(headers)):
        digest.update(path.read_bytes())
    out = _FOLDER / f"{sources[0].stem}-{digest.hexdigest()[:16]}"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            unfinished = out.with_suffix(".part")
            subprocess.run([*command, *map(str, sources), "-o", str(unfinished), *options], check=True)
            unfinished.rename(out)
    return out
