"""GPU activities that a profile should have: kernels of launches, and the work of steps like others that have some."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.graphs import LAUNCH, capture_spans
from annot.profile import Profile
from annot.util.weak_keys import once_for_each

_ID: Final = ("process", "correlation")
_LEAST: Final = 0.01
"""Share of the launches from which their missing kernels count: fewer are no layer of a percent of the time."""
_LIKE_OTHERS: Final = 0.5
"""A step is like others if it contains at least this share of the ranges in one of them."""


@once_for_each
def lost_work(attribution: Attribution) -> str:
    """Return a sentence about GPU activities that the profile lacks; empty: it lacks none.

    Profilers lose events, and they stop before the GPU has finished. Of files that are read in blocks, only steps show
    what is missing.
    """
    clauses = []
    source = attribution.source
    lost, launches = _launches_without_kernel(source) if isinstance(source, Profile) else (0, 0)
    if lost > _LEAST * launches:
        clauses.append(f"{lost:,} of {launches:,} kernel launches {_have(lost)} no kernel")
    empty, steps = _steps_without_work(attribution)
    if empty:
        clauses.append(f"{empty:,} of {steps:,} steps {_have(empty)} no kernel")
    return f"The profile lacks GPU activities: {' and '.join(clauses)}." if clauses else ""


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _launches_without_kernel(profile: Profile) -> tuple[int, int]:
    """Return the numbers of launches without a kernel and of all launches, except those that a graph captures."""
    spans = capture_spans(profile.launches).sort("begin")
    launches = profile.launches.filter(pl.col("name").str.contains(LAUNCH)).drop_nulls(_ID).sort("start")
    launches = launches.join_asof(spans, left_on="start", right_on="begin", by="process", check_sortedness=False)
    launches = launches.filter((pl.col("start") > pl.col("stop")).fill_null(True)).select(_ID).unique()
    done = pl.concat([profile.kernels.select(_ID), profile.copies.select(_ID)])
    return launches.join(done, on=_ID, how="anti").height, launches.height


def _steps_without_work(attribution: Attribution) -> tuple[int, int]:
    """Return the number of steps without a kernel among others of their kind that have some, and of all steps."""
    steps, tree = attribution.steps.steady().select("step", process_code="process"), attribution.forest.tree
    busy = attribution.step_work.filter(pl.col("kernels") > 0).select("process_code", "step", work=pl.lit(True))
    steps = steps.join(busy, on=["process_code", "step"], how="left")
    if steps["work"].null_count() in (0, steps.height):
        return 0, steps.height
    process = attribution.forest.threads.table["process_code"].gather(tree["thread"])
    inside = pl.DataFrame([process, attribution.steps.at(process, tree["start"])])
    counts = inside.filter(pl.col("step") != NONE).group_by("process_code", "step").agg(ranges=pl.len())
    steps = steps.join(counts, on=["process_code", "step"], how="left")
    usual = pl.col("ranges").filter("work").median()
    empty = steps.filter(pl.col("work").is_null(), pl.col("ranges") >= _LIKE_OTHERS * usual)
    return empty.height, steps.height
