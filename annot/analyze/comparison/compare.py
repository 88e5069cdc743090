"""Comparison of runs of the same training: speedups with confidence intervals, and changed kernels.

The change of a layer may be that of the layers inside it. A comparison shows a change at the rows where it took place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from annot.analyze.comparison.comparable import Comparability, comparability
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.evidence import Evidence, RowEvidence
from annot.analyze.comparison.nesting import Nesting, Times
from annot.analyze.comparison.rows import folded_layers, numbers, rows_of
from annot.analyze.comparison.runs import SUBJECTS, Folds, Measured, Runs, Subject
from annot.analyze.comparison.steadiness import notes

_FASTEST: Final = (None, 0.25, 0.1)
"""Shares of the steps, the fastest, of which the samples may be; None: typical steps."""
_OF_NAMES: Final = ("kind", "kernel")
"""Groupings of kernels rather than layers."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between the times of two sides, a and b, of one or more runs each.

    Args:
        by: the grouping of the rows.
        rows: the columns of the grouping (layer, module, phase; kind; name); a_ns, b_ns (means, Float64; null: absent
            from all runs of the side); difference_ns (b minus a); speedup (a / b from robust times, see
            `annot.analyze.comparison.runs`; above 1: b is faster); speedup_low, speedup_high (its confidence interval
            with the error level `level`; null: too few runs or steps); share (of the longer side, 0 to 1); only_in
            ("a", "b" or null); relative_speedup (relative to the other rows of each run) and p (its two-sided p-value,
            see `annot.analyze.comparison.evidence`; null: unknown); and for layers explained (true: rows inside or
            around the layer have its change; see `_add_explained`), own_difference_ns (the difference of the time that
            counts to the row: without rows inside that have own differences; null: none; these add up to the
            difference of the total), fused (true: the time is in fused kernels of one of the runs; see
            `annot.analyze.comparison.comparable`), kernels_gone, kernels_new (lists: kernels that the layer itself
            launches only in a, only in b). The largest slowdown comes first.
        whole: the same numbers for the total time, attributed or not.
        step_time: the same numbers for the wall-clock time of a step, including idle time; None: a run without steps.
        time: "gpu_ns" or "host_ns".
        runs: number of runs of a and of b.
        steps: number of steps of a and of b that the means cover; None: means over whole profiles.
        level: error level of the intervals, at most that asked for; None: there are no intervals.
        devices: names of the devices of a and of b; "": unknown.
        comparability: differences other than time.
        notes: sentences about differences that do not affect the comparison, hiccups, drift and dependent steps.
        nesting: layers inside each other; None: other rows.
        own: samples of the self time of each node of `nesting`.
        evidence: tests the change of the time that counts to a row.
        folded: for layers, `rows` with repeated layers as one row, and the column folded: their number, else null.
    """

    by: Subject
    rows: pl.DataFrame
    whole: dict[str, Any]
    time: str
    evidence: RowEvidence
    runs: tuple[int, int]
    steps: tuple[int, int] | None
    step_time: dict[str, Any] | None = None
    level: float | None = None
    devices: tuple[str, str] = ("", "")
    comparability: Comparability = field(default_factory=Comparability)
    notes: tuple[str, ...] = ()
    nesting: Nesting | None = None
    own: Sequence[Times] = ()
    folded: pl.DataFrame | None = None

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels in the rows, in order."""
        rows = self.rows
        lists = [rows[name].explode() for name in ("kernels_gone", "kernels_new") if name in rows.columns]
        columns = lists + ([rows["name"]] if "name" in rows.columns else [])
        return [name for names in columns for name in names.drop_nulls().unique(maintain_order=True)]


def compare(
    a: Sequence[Digest],
    b: Sequence[Digest],
    *,
    by: Subject = "layer",
    folds: tuple[Folds, Folds] | None = None,
    level: float = 0.01,
) -> Comparison:
    """Compare the times of the runs of two sides, the largest slowdown first.

    Times are GPU times if all profiles contain GPU activities, else CPU times. They are per step without warm-up if all
    profiles have steps, else totals of the whole profile.

    Args:
        a: the runs of the baseline.
        b: the runs to compare with the baseline.
        by: the grouping of the rows; times of layers and module classes include nested layers.
        folds: the path that repeated layers of `a` and of `b` share in `Comparison.folded`; None: no such table.
        level: error level of the confidence intervals.

    Raises:
        ValueError: `by` is not in `SUBJECTS`; `by` groups kernels and a profile is without GPU activities; or the
            profiles, or their selected steps, contain no times.
    """
    if by not in SUBJECTS:
        raise ValueError(f"by must be one of {', '.join(SUBJECTS)}, got {by!r}")
    # The times of the steps that vary least between runs of a side.
    runs = min((Runs(a, b, fastest=share) for share in _FASTEST), key=_noise)
    if by in _OF_NAMES and not runs.on_gpu:
        raise ValueError(f"profiles without GPU activities cannot be compared by {by}")
    evidence = Evidence(runs.samples, runs.between_runs, level)
    whole = _single(runs.whole, runs, evidence)
    if whole is None:
        raise ValueError("neither profile contains times to compare")
    table, comparable = rows_of(runs, by, evidence), comparability(a, b)
    folded = folded_layers(Runs(a, b, folds, fastest=runs.fastest), evidence) if by == "layer" and folds else None
    return Comparison(
        by=by,
        rows=table.rows,
        whole=whole,
        time="gpu_ns" if runs.on_gpu else "host_ns",
        evidence=table.evidence,
        runs=runs.sizes,
        steps=runs.steps,
        step_time=_single(runs.step_time, runs, evidence),
        level=evidence.attained,
        devices=_devices(a, b),
        comparability=comparable,
        notes=(*comparable.notes, *notes(runs)),
        nesting=table.nesting,
        own=table.own,
        folded=folded,
    )


def _noise(runs: Runs) -> float:
    samples, evidence = runs.of_nodes.samples, Evidence(runs.samples, runs.between_runs, 1.0)
    return RowEvidence(evidence, samples, samples, {}, [None] * len(samples), runs.whole.samples[0]).noise


def _devices(a: Sequence[Digest], b: Sequence[Digest]) -> tuple[str, str]:
    of_a, of_b = (", ".join(sorted({name for run in side for name in run.meta["devices"]})) for side in (a, b))
    return of_a, of_b


def _single(times: Measured | None, runs: Runs, evidence: Evidence) -> dict[str, Any] | None:
    """Compare the times of one row; None: all are 0."""
    a, b = (0.0, 0.0) if times is None else runs.sides(times.means[0])
    return None if times is None or not a + b else numbers(a, b, evidence.shift(times.samples[0]), max(a, b))
