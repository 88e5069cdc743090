"""Function `open`: the way to profiles from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence

from annot.profile import Source
from annot.runs.captures import with_capture_files
from annot.runs.gather import Ranks
from annot.runs.profile_files import expand
from annot.runs.run import Run
from annot.runs.selection import Selection


def open(  # noqa: A001 - the public name is `annot.open`
    profile: str | os.PathLike[str] | Source | Sequence[str | os.PathLike[str]],
    *,
    domain: str | None = None,
    steps: slice | None = None,
    step_range: str | None = None,
    step_kind: str | None = None,
    by_process: bool = False,
    capture: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    peaks: str | os.PathLike[str] | None = None,
) -> Run | Ranks:
    """Open a profile, the profiles of the ranks of a run, or a folder with profiles.

    Args:
        profile: path, pattern or URL of a profile; a folder with one profile per rank; a list of paths; or a profile
            from `annot.load`.
        domain: use only ranges of this NVTX domain ("" is the default domain); None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.
        step_kind: use only steps of this kind, such as ``decode``; None: all kinds.
        by_process: treat each process of the profile with layers or steps as a rank.
        capture: paths of the traces in which the GPU graphs were captured that the profile replays. Kernels of replays
            get the layers of the capture; see `annot guide attribution`. Without it, captures beside the profile count.
        peaks: file of ``annot calibrate -o`` with the peaks of the device; None: measured on this machine, else the
            data sheet.

    Returns:
        A `Run` for one profile, `Ranks` for several.

    Raises:
        AnnotError: no file matches, or a capture or the file of the peaks cannot be read.
        TypeError: `profile` has another type.
        ValueError: `profile` is an empty list.

    Example:
        >>> import polars as pl
        >>> from annot.profile import Profile
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> run = open(Profile.build({}, ranges=pl.DataFrame(ranges)))
        >>> run.layers["host_ns"].to_list()
        [900]
    """
    captures = tuple(os.fspath(path) for path in ((capture,) if isinstance(capture, str | os.PathLike) else capture))
    selection = Selection(domain, steps, step_range, step_kind, by_process=by_process, captures=captures, peaks=peaks)
    several = isinstance(profile, Sequence) and not isinstance(profile, str)
    if not several and not isinstance(profile, str | os.PathLike):
        return Run(with_capture_files(profile, captures) if captures else profile, selection)  # type: ignore[arg-type]
    if several and not profile:
        raise ValueError("profile must name at least one file, got an empty list")
    paths = expand([os.fspath(path) for path in (profile if several else [profile])])  # type: ignore[union-attr, arg-type]
    return Run(paths[0], selection) if len(paths) == 1 and not by_process else Ranks(paths, selection)
