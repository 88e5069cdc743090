"""The answer of a bisection as JSON has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from annot.analyze.comparison.causes import Cause, causes
from annot.bisect.repository import Commit
from annot.bisect.search import Answer, Question
from annot.bisect.target import Target


class ReportedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and the interval of its factor; layer, module and phase are None for the whole step."""

    layer: str | None
    module: str | None
    phase: str | None
    factor: float
    low: float
    high: float


class ReportedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a commit, as in `annot.bisect.search.Trial`."""

    commit: Commit
    result: Literal["good", "bad", "skipped"]
    pairs: int
    factor: float | None
    reason: str | None


class ReportedCause(msgspec.Struct, frozen=True):
    """Why the first slow commit is slower than its parent."""

    kind: str
    text: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a bisection: `row` is where bad is slower than good, `change` where the first slow commit is."""

    good: Commit
    bad: Commit
    row: ReportedRow | None
    trials: list[ReportedTrial]
    suspects: list[Commit]
    first_slow: Commit | None
    change: ReportedRow | None
    causes: list[ReportedCause]
    runs: int
    error_probability: float


def report_of(answer: Answer, question: Question, runs: int) -> Report:
    """Return the report of an answer.

    Args:
        answer: the answer.
        question: what was asked.
        runs: number of runs.
    """
    return Report(
        good=question.good,
        bad=question.bad,
        row=_row(answer.target, question),
        trials=[
            ReportedTrial(
                commit=trial.commit,
                result=trial.result,
                pairs=len(trial.differences),
                factor=trial.factor,
                reason=trial.reason or None,
            )
            for trial in answer.trials
        ],
        suspects=[*answer.suspects],
        first_slow=answer.first_slow,
        change=_row(answer.change_target, question),
        causes=[ReportedCause(cause.kind, cause.text) for cause in causes_of_change(answer)],
        runs=runs,
        error_probability=question.error,
    )


def _row(target: Target | None, question: Question) -> ReportedRow | None:
    """Return a row and its change; None: nothing is slower."""
    if target is None:
        return None
    factor, low, high = target.interval(question.error)
    layer, module, phase = target.key or (None, None, None)
    return ReportedRow(layer=layer, module=module, phase=phase, factor=factor, low=low, high=high)


def causes_of_change(answer: Answer) -> Sequence[Cause]:
    """Return why the first slow commit is slower than its parent."""
    change, target = answer.change, answer.change_target
    if change is None or target is None:
        return ()
    a, b = zip(*change.pairs, strict=True)
    rows = [] if target.key is None else [target.key]
    return causes(a, b, rows, time=change.comparison.time, step=target.key is None)
