"""Data of the HTML page for one profile or for the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from annot.errors import AnnotError
from annot.ranks.gather import compare_ranks
from annot.ranks.report_task import Question, attributed
from annot.report.page.data import EVENTS, ranks_data, report_data, run_data

__all__ = ["page_of_file", "page_of_ranks"]

_MOST: Final = 16
"""Maximum number of ranks with their own views. The comparison includes all ranks."""


def page_of_file(path: str, question: Question) -> dict[str, Any]:
    """Return the page data of a whole file.

    Args:
        path: path or URL of the profile.
        question: selection of ranges and steps; `by` is ignored.

    Raises:
        AnnotError: the file cannot be read, or the selected steps do not exist.
    """
    with attributed(path, question) as attribution:
        return report_data(attribution, path)


def page_of_ranks(
    paths: Sequence[str], question: Question, *, rank: int | None = None, workers: int | None = None,
    dask: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the page data of the ranks of a run: their comparison, and all views of the first 16 ranks.

    Args:
        paths: the profiles.
        question: selection of ranges and steps, and whether each process is a rank.
        rank: rank with its own views; None: the first 16 ranks.
        workers: see `annot.ranks.executors.run_each`.
        dask: see `annot.ranks.executors.run_each`.

    Raises:
        AnnotError: all profiles are unusable, or the rank does not exist.
    """
    report = compare_ranks(paths, question, workers=workers, dask=dask)
    if rank is not None and rank not in report.ranks:
        raise AnnotError(f"rank {rank} does not exist: choose from {', '.join(map(str, report.ranks))}")
    usable = [one for one in report.meta["ranks"] if one["error"] is None and rank in (None, one["rank"])]
    shown = usable[:_MOST]
    if len(usable) > len(shown):
        report.meta["notes"].append(
            f"The page has views of the first {len(shown)} of {len(usable)} ranks. Use --rank N for another rank."
        )
    runs = [_run(one, question, EVENTS // len(shown)) for one in shown]
    return ranks_data(runs, report.across, report.meta, report.time)


def _run(one: dict[str, Any], question: Question, events: int) -> dict[str, Any]:
    """Return the views of a rank with at most `events` timeline events."""
    with attributed(one["source"], question, one["process"]) as attribution:
        return run_data(attribution, one["source"], name=f"rank {one['rank']}", rank=one["rank"], events=events)
