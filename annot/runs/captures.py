"""Traces of the capture of graphs, for the layers of replays: given by the user, or in the folders that servers use.

vLLM and SGLang write them into folders beside the traces, a file per batch size or a file for all::

    PROFILES/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz       vLLM
    PROFILES/capture_traces/bs_32_rank0.json.gz                                             SGLang
    PROFILES/graph_capture_profile/cuda_graph_capture-DecodeCudaGraphRunner-TP-0.json.gz    SGLang

The traces are in PROFILES, or in a folder of their own inside (SGLang: one per run).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from annot.attribution.graphs import has_replays, with_captures
from annot.errors import AnnotError
from annot.profile import Profile, Source
from annot.read.beside import is_permitted, read_small
from annot.read.formats import is_profile, load
from annot.read.text import listed

_FOLDERS: Final = ("capture_traces", "graph_capture_profile")
_TRACE: Final = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
_CAPTURE: Final = re.compile(r"(^|[^a-z])capture([^a-z].*)?\.json(\.gz)?$", re.IGNORECASE)
_RANK: Final = re.compile(r"(?:rank|(?<![a-z])tp)\D?(\d{1,18})", re.IGNORECASE)
_DETAILS: Final = "execution_details.json"
_LARGEST_LIST: Final = 1 << 20
_LARGEST: Final = 1 << 28
"""Size in bytes up to which traces are read without being asked for. Traces of captures have a few MiB each."""


def is_capture(path: Path) -> bool:
    """Return whether a file has the name, or lies in the folder, of a trace of a capture.

    Example:
        >>> is_capture(Path("run/capture_bs32_rank0.json.gz")), is_capture(Path("execution.json.gz"))
        (True, False)
        >>> is_capture(Path("run/capture_traces/bs_32_rank0.json.gz"))
        True
    """
    name = path.name
    in_folder = path.parent.name in _FOLDERS and _TRACE.search(name) is not None and not name.startswith(".")
    return name != _DETAILS and (in_folder or _CAPTURE.search(name) is not None)


def with_capture_files(profile: Source, given: Sequence[str], path: Path | None = None) -> Source:
    """Return the profile with the layers of captures for the replays of graphs; see `with_captures`.

    Args:
        profile: the profile with the replays.
        given: paths of traces of captures.
        path: the file of the profile. Without `given`, captures are searched in its folder and in the folders of
            servers, if `annot.read.beside.is_permitted`.

    Raises:
        AnnotError: a given file cannot be read, or the profile does not have the names of API calls.
    """
    if not isinstance(profile, Profile) or profile.meta["format"] != "kineto":
        if not given:
            return profile
        raise AnnotError(f"{profile.meta['source']} must be a trace of torch.profiler for a report with captures")
    if given:
        return with_captures(profile, map(load, given))
    captures = _captures_of(path, profile.meta.get("rank")) if path is not None and has_replays(profile) else []
    if not captures:
        return profile
    notes = list[str]()
    merged = with_captures(profile, _loaded(captures, notes))
    return replace(merged, meta=merged.meta | {"notes": [*notes, *merged.meta["notes"]]})


def _loaded(captures: Sequence[Path], notes: list[str]) -> Iterator[Profile]:
    """Yield the captures that can be read, up to a total size. Notes about the others are added to `notes`."""
    size, unread = 0, list[str]()
    for capture in captures:
        length = capture.stat().st_size
        if size + length > _LARGEST:
            unread.append(capture.name)
            continue
        size += length
        try:
            yield load(capture)
        except AnnotError as error:
            notes.append(f"{error}.")
    if unread:
        notes.append(f"{listed(unread)} may have the layers of graph replays. Read a large file with --capture.")


def _captures_of(trace: Path, rank: int | None) -> list[Path]:
    """Return the captures for a trace, without those of other ranks if any others are left."""
    bases = (trace.parent, trace.absolute().parent.parent)
    folders = [trace.parent, *(base / name for base in bases for name in _FOLDERS)]
    files = {identity: file for folder in folders for identity, file in _captures_in(folder)}
    captures = [file for file in files.values() if is_profile(file) and not file.samefile(trace)]
    ranks = {rank, _rank_in(trace)} - {None}
    of_rank = [file for file in captures if not ranks or _rank_in(file) in ranks | {None}]
    return of_rank or captures


def _rank_in(path: Path) -> int | None:
    numbers = _RANK.findall(path.name)
    return int(numbers[-1]) if numbers else None


def _captures_in(folder: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield the files in a folder that have the name of a capture, or are named in its list of captures.

    Each has the numbers of its device and inode, because folders and files can be links to others.
    """
    if not is_permitted(folder):
        return
    named = set(_named_in(folder / _DETAILS))
    with contextlib.suppress(OSError):  # no folder, a loop of links, or a folder whose files have unreadable names
        for file in sorted(folder.iterdir()):
            if (is_capture(file) or file.name in named) and is_permitted(file):
                status = file.stat()
                yield (status.st_dev, status.st_ino), file


def _named_in(details: Path) -> Iterator[str]:
    """Yield the names in the list of captures that vLLM and SGLang write beside a trace."""
    try:
        entries = json.loads(read_small(details, _LARGEST_LIST))
    except (ValueError, RecursionError):
        return
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("file"), str):
            yield entry["file"]
