"""The data of the HTML page, of one profile or of the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from annot.errors import AnnotError
from annot.ranks.gather import compare_ranks
from annot.ranks.task import Question, attributed
from annot.report.page.data import EVENTS, ranks_data, report_data, run_data

__all__ = ["page_of_file", "page_of_ranks"]

_MOST: Final = 16
"""Ranks that have views of their own; all are compared."""


def page_of_file(path: str, question: Question) -> dict[str, Any]:
    """Return the data of the page of a whole file, local or not.

    Args:
        path: the file.
        question: which ranges take part; what a row stands for does not matter.

    Raises:
        AnnotError: the file cannot be read, or has no steps as they are asked for.
    """
    with attributed(path, question) as attribution:
        return report_data(attribution, path)


def page_of_ranks(
    paths: Sequence[str], question: Question, *, rank: int | None = None, workers: int | None = None,
    dask: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the data of the page of the ranks of a run: how they differ, and all views of the first 16 of them.

    Args:
        paths: the profiles.
        question: which ranges take part, and whether each process is a rank.
        rank: only this one has views of its own; None: all, as far as there is room.
        workers: see `annot.ranks.gather.compare_ranks`.
        dask: see there.

    Raises:
        AnnotError: none of the profiles can be used, or there is no such rank.
    """
    report = compare_ranks(paths, question, workers=workers, dask=dask)
    if rank is not None and rank not in report.ranks:
        raise AnnotError(f"there is no rank {rank}, only {', '.join(map(str, report.ranks))}")
    wanted = [one for one in report.meta["ranks"] if one["error"] is None and rank in (None, one["rank"])]
    shown = wanted[:_MOST]
    if len(wanted) > len(shown):
        report.meta["notes"].append(
            f"only {len(shown)} of {len(wanted)} ranks have views of their own: --rank N shows another"
        )
    runs = [_run(one, question, EVENTS // len(shown)) for one in shown]
    return ranks_data(runs, report.across, report.meta, report.time)


def _run(one: dict[str, Any], question: Question, events: int) -> dict[str, Any]:
    """The views of a rank, which share the room for events with those of the others."""
    with attributed(one["source"], question, one["process"]) as attribution:
        return run_data(attribution, one["source"], name=f"rank {one['rank']}", rank=one["rank"], events=events)
