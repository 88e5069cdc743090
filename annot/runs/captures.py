"""Traces of the capture of graphs, for the layers of replays: given by the user, or found beside a trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from annot.attribution.graph_replays import has_replays, with_captures
from annot.errors import AnnotError
from annot.profile import Profile, Source
from annot.read.formats import is_profile, load
from annot.read.kineto.reader import NAME as KINETO

__all__ = ["is_capture", "with_capture_files"]

_CAPTURE: Final = re.compile(r"(^|[^a-z])capture([^a-z].*)?\.json(\.gz)?$", re.IGNORECASE)
_RANK: Final = re.compile(r"rank\D?(\d{1,18})", re.IGNORECASE)
_DETAILS: Final = "execution_details.json"
_LARGEST: Final = 1 << 28
"""Size in bytes up to which a trace is read without being asked for. Traces of captures have a few MiB."""


def is_capture(path: Path) -> bool:
    """Return whether a file has the name of a trace of a capture.

    Example:
        >>> is_capture(Path("run/capture_bs32_rank0.json.gz")), is_capture(Path("execution.json.gz"))
        (True, False)
    """
    return _CAPTURE.search(path.name) is not None


def with_capture_files(profile: Source, given: Sequence[str], path: Path | None = None) -> Source:
    """Return the profile with the layers of captures for the replays of graphs; see `with_captures`.

    Args:
        profile: the profile with the replays.
        given: paths of traces of captures.
        path: the file of the profile. Without `given`, captures are searched in its folder.

    Raises:
        AnnotError: a given file cannot be read, or the profile does not have the names of API calls.
    """
    if not isinstance(profile, Profile) or profile.meta["format"] != KINETO:
        if not given:
            return profile
        raise AnnotError(f"{profile.meta['source']} must be a trace of torch.profiler for a report with captures")
    if given:
        return with_captures(profile, [load(one) for one in given])
    beside = [] if path is None else _beside(path, profile.meta.get("rank"))
    if not beside or not has_replays(profile):
        return profile
    notes, found = list[str](), list[Profile]()
    for capture in beside:
        if capture.stat().st_size > _LARGEST:
            notes.append(f"{capture.name} may have the layers of graph replays. Read this large file with --capture.")
            continue
        try:
            found.append(load(capture))
        except AnnotError as error:
            notes.append(f"{error}.")
    profile = replace(profile, meta=profile.meta | {"notes": [*profile.meta["notes"], *notes]})
    return with_captures(profile, found) if found else profile


def _beside(path: Path, rank: int | None) -> list[Path]:
    """Return the captures in the folder of a trace, without those of other ranks if any others are left."""
    named = set(_named_in(path.with_name(_DETAILS)))
    try:
        files = [one for one in sorted(path.parent.iterdir()) if is_capture(one) or one.name in named]
    except OSError:  # a folder whose files are readable, but not their names
        return []
    files = [one for one in files if is_profile(one) and not one.samefile(path)]
    of_rank = [one for one in files if rank is None or _RANK.findall(one.name)[-1:] in ([], [str(rank)])]
    return of_rank or files


def _named_in(details: Path) -> Iterator[str]:
    """Yield the names in the list of captures that vLLM and SGLang write beside a trace."""
    try:
        listed = json.loads(details.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("file"), str):
            yield one["file"]
