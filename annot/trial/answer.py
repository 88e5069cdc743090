"""The answer of a trial: what each change gains, costs and does to numbers, and which are worth applying.

It is made of the records of the finished runs only, so that an interrupted trial answers what is known until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, Literal, TypeAlias

import msgspec
import polars as pl

from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.changes.change import Change, Numbers
from annot.changes.registry import Candidate
from annot.errors import AnnotError
from annot.live.request import Result
from annot.runs.run import Run
from annot.trial import speed
from annot.trial.records import BASE, ROUNDED, Record
from annot.trial.training import Training, repeats_losses, same_training

Verdict: TypeAlias = Literal[
    "faster", "undecided", "same speed", "slower", "other training", "failed", "unsteady", "not measured"
]
"""faster: worth applying; undecided: the interval includes 1 and a step that is 5 % faster or slower; other training:
losses or parameters differ; unsteady: it compiles again and again, or steps take unequal times."""
_ORDER: Final[tuple[Verdict, ...]] = (
    "faster", "undecided", "same speed", "slower", "other training", "unsteady", "not measured", "failed"
)  # fmt: skip
_NUMBERS: Final[tuple[Numbers, ...]] = ("same bits", "rounding", "another algorithm")
_RECOMPILES: Final = 0.25
"""Compiled graphs per measured step from which a program is not in a steady state."""
_MOST_LAYERS: Final = 6
"""Most layers whose change an answer has."""
_LEAST_CHANGE: Final = 0.01
"""Least change, as a share of the time of a step."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a change, or about changes together."""

    changes: list[str]
    """Names of the changes."""
    title: str
    verdict: Verdict
    reason: str = ""
    """Why it is not worth applying, a clause; empty: it is, or the interval says so."""
    before_ns: float | None = None
    after_ns: float | None = None
    """Time of a step (ns) without it, the middle of runs in turns, and that over `speedup`; None: not measured."""
    speedup: float | None = None
    """Before / after."""
    low: float | None = None
    high: float | None = None
    """Interval of the speedup, with the error level of the answer; None: fewer than two rounds."""
    runs: int = 0
    """Number of timed runs."""
    first_steps_ns: int | None = None
    """Time of the steps before the measured ones (ns), in which it may compile: the longest of all runs.

    The first one, which checks training under the profiler, fills the cache of compiled kernels for the others.
    """
    pays_back: int | None = None
    """Steps after which it has made up for slower first steps; 0: they are not slower; None: never, or unknown."""
    peak_bytes: int | None = None
    """Most memory in use, see `annot.live.request.Result`."""
    training: str = ""
    """equal, rounding, changed, diverged, unknown; empty: not checked. See `annot.trial.training.Verdict`."""
    training_text: str = ""
    """The same in words."""
    difference: float | None = None
    """Largest relative difference of a loss."""
    bound: float | None = None
    """Upper bound of the step time that it saves by the advice that proposed it, 0 to 1; None: no advice did."""
    applied: dict[str, str] = {}
    """What each change was applied to."""
    notes: list[str] = []
    """Sentences about its runs."""
    code: str = ""
    """How it is written by hand."""
    profile: str = ""
    """File name of its profile; empty: none."""

    @property
    def name(self) -> str:
        """The changes in one word."""
        return "+".join(self.changes)

    @property
    def promised(self) -> float | None:
        """The speedup that the advice promises at most; None: unknown."""
        return 1 / (1 - self.bound) if self.bound is not None and self.bound < 1 else None


class LayerChange(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a layer per step (ns) without and with a change."""

    layer: str
    module: str
    phase: str
    before_ns: float
    after_ns: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a trial."""

    command: list[str]
    folder: str
    """Folder with all profiles, output and records."""
    date: str
    """Date and time (ISO 8601)."""
    version: str
    """Version of annot."""
    complete: bool
    """Whether all planned runs have finished."""
    framework: str
    device: str
    """``cpu`` or ``cuda``."""
    trains: bool
    """Whether the steps are those of a training; False: calls of a model in inference."""
    warmup: int
    steps: int
    """Steps before the measured ones of a run, and measured steps."""
    level: float
    """Error level of the intervals, at most."""
    step_ns: float | None
    """Time of a step without changes."""
    first_steps_ns: int | None
    peak_bytes: int | None
    """As in `Row`, without changes."""
    repeats: str
    """In words how far two runs without changes have the same losses; empty: unknown."""
    profile: str
    """File name of the profile without changes."""
    rows: list[Row]
    """Changes, the best first."""
    left_out: dict[str, str]
    """Changes that were not tried, and why, a clause."""
    layers: list[LayerChange] = []
    """Layers whose time changes most with the best changes, the largest change first."""
    notes: list[str] = []
    """Sentences about the runs without changes."""

    @property
    def best(self) -> Row | None:
        """The changes that are worth applying and faster than others; None: none is."""
        return next((row for row in self.rows if row.verdict == "faster"), None)


def together(changes: Sequence[Change]) -> Change:
    """Return one or more changes as one: it may do to numbers what each of them may."""
    return replace(
        changes[0],
        name="+".join(change.name for change in changes),
        title=" + ".join(change.title for change in changes),
        numbers=max((change.numbers for change in changes), key=_NUMBERS.index),
        tolerance=sum(change.tolerance for change in changes),
        other_random=next((change.other_random for change in changes if change.other_random), ""),
        code="\n".join(change.code for change in changes),
    )


class Evaluation:
    """What the records of a trial say.

    Args:
        records: the finished runs.
        candidates: the changes by name, with the bounds that advice promises.
    """

    def __init__(self, records: Sequence[Record], candidates: Mapping[str, Candidate]) -> None:
        self._records, self._candidates = records, candidates

    def row(self, name: str) -> Row:
        """Return what is known about a change, or about changes joined by "+"."""
        names = name.split("+")
        candidates = [self._candidates[each] for each in names]
        change, own = together([candidate.change for candidate in candidates]), self._of(name)
        training, times = self._training(change, own), self.speedup(name)
        (before, after), checks = self._sides(name), (self._checks(BASE), self._checks(name))
        reason = next((record.problem for record in own if record.problem), "")
        verdict: Verdict = "failed" if reason else "not measured"
        if not reason and times is not None:
            verdict, reason = _judged(times, training, _unsteadiness(before, after))
        elif training is not None and training.verdict == "diverged":
            verdict, reason = "other training", training.text
        results = [record.result for record in own if record.result.step_ns]
        return Row(
            changes=names,
            title=change.title,
            verdict=verdict,
            reason=reason,
            **(times.numbers() if times else {}),
            runs=times.runs if times else 0,
            first_steps_ns=max(map(speed.first_steps_ns, results), default=None),
            pays_back=None if times is None else speed.pays_back([(before, after), checks], times),
            peak_bytes=max((run.peak_bytes for run in after or results), default=None),
            training="" if training is None else training.verdict,
            training_text="" if training is None else training.text,
            difference=None if training is None else training.difference,
            bound=_bound(candidates),
            applied=results[0].applied if results else {},
            notes=_notes(own),
            code=change.code,
            profile=next((record.profile for record in own if record.profile), ""),
        )

    def rows(self) -> list[Row]:
        """Return a row for each change with a run, the best first."""
        names = dict.fromkeys(record.name for record in self._records if record.name not in (BASE, ROUNDED))
        rows = [self.row(name) for name in names]
        return sorted(rows, key=lambda row: (_ORDER.index(row.verdict), -(row.speedup or 0.0)))

    def speedup(self, name: str, other: str = BASE) -> speed.Speedup | None:
        """Return the speedup of a change over others, from the runs that took turns; None: not measured."""
        return speed.speedup(*self._sides(name, other), self._share(self._stage(name, other)))

    def base(self) -> Row:
        """Return the numbers of the runs without changes."""
        runs = self._timed(BASE, 0)
        times = [speed.step_ns(run, self._share(0)) for run in runs]
        return Row(
            changes=[],
            title="",
            verdict="not measured",
            before_ns=median(times) if times else None,
            runs=len(runs),
            first_steps_ns=max(map(speed.first_steps_ns, [*runs, *self._checks(BASE)]), default=None),
            peak_bytes=max((run.peak_bytes for run in runs), default=None),
            notes=_notes(self._of(BASE)),
        )

    def repeats(self) -> str:
        """Return in words how far two runs without changes have the same losses; empty: there are not two."""
        checks = self._checks(BASE)
        rounded = next(iter(self._checks(ROUNDED)), None)
        return repeats_losses(checks[0], checks[1], rounded) if len(checks) > 1 else ""

    def _of(self, name: str) -> list[Record]:
        return [record for record in self._records if record.name == name]

    def _checks(self, name: str) -> list[Result]:
        return [record.result for record in self._of(name) if record.kind == "check" and not record.problem]

    def _training(self, change: Change, own: Sequence[Record]) -> Training | None:
        """The check of training; None: a run is missing. A change that makes the program fail may have losses, too."""
        base = self._checks(BASE)
        checks = [record.result for record in own if record.kind == "check" and record.result.losses]
        if not base or not checks:
            return None
        again = base[1] if len(base) > 1 else None
        return same_training(
            base[0],
            again,
            checks[0],
            numbers=change.numbers,
            tolerance=change.tolerance,
            other_random=change.other_random,
            rounded=next(iter(self._checks(ROUNDED)), None),
        )

    def _timed(self, name: str, stage: int | None) -> list[Result]:
        """The timed runs of a name in an alternation."""
        return [record.result for record in self._of(name) if _is_timed(record) and record.stage == stage]

    def _stage(self, name: str, other: str) -> int | None:
        """The first alternation in which a change took turns with another; None: there is none."""
        stages = ({record.stage for record in self._of(each) if _is_timed(record)} for each in (name, other))
        return min(set.intersection(*stages), default=None)

    def _share(self, stage: int | None) -> float:
        """The share of blocks of steps that times of an alternation are from."""
        names = {record.name for record in self._records}
        return speed.steadiest(self._timed(name, stage) for name in names)

    def _sides(self, name: str, other: str = BASE) -> tuple[list[Result], list[Result]]:
        """The timed runs of another change and of a change in their first alternation."""
        stage = self._stage(name, other)
        return self._timed(other, stage), self._timed(name, stage)


def _is_timed(record: Record) -> bool:
    return record.kind == "timed" and not record.problem


def _judged(times: speed.Speedup, training: Training | None, unsteadiness: str) -> tuple[Verdict, str]:
    """Return the verdict about a measured change, and its reason."""
    if training is not None and not training.is_same:
        return "other training", training.text
    if unsteadiness:
        return "unsteady", unsteadiness
    if times.is_faster:
        return "faster", ""
    if times.is_slower:
        return "slower", ""
    if times.is_same:
        return "same speed", ""
    if times.low is None or times.high is None:
        return "undecided", "one round has no interval"
    return "undecided", f"its speedup may be {times.low:.2f} to {times.high:.2f}: more --repeat or --steps narrow this"


def _unsteadiness(before: Sequence[Result], after: Sequence[Result]) -> str:
    """Return why measured steps are not those of a steady state, a clause; empty: they are."""
    compiled = max((run.recompiled / max(len(run.step_ns) - run.warmup, 1) for run in after), default=0.0)
    if compiled >= _RECOMPILES:
        graphs = max(run.recompiled for run in after)
        return f"it compiles again and again: {graphs} graphs in {len(after[0].step_ns) - after[0].warmup} steps"
    if before and after and speed.unequal(before, after):
        return "it makes steps unequal: more --warmup or --steps may show a steady state"
    return ""


def _bound(candidates: Sequence[Candidate]) -> float | None:
    """The bound of changes together: each saves its share of what the others leave."""
    left = 1.0
    for candidate in candidates:
        if candidate.bound is None:
            return None
        left *= 1 - candidate.bound
    return 1 - left


def _notes(records: Sequence[Record]) -> list[str]:
    """Sentences about exit statuses, and graphs that some measured steps compiled."""
    statuses = sorted({record.status for record in records if record.status and not record.problem})
    notes = [f"exit status {status}" for status in statuses]
    graphs = max((record.result.recompiled for record in records if record.kind == "timed"), default=0)
    return [*notes, f"{graphs} graphs were compiled in measured steps"] if graphs else notes


def changed_layers(base: Path | None, other: Path | None) -> list[LayerChange]:
    """Return the layers whose time differs most between two profiles, the largest difference first.

    A layer whose change is that of layers inside it is left out, as in `annot compare`.

    Args:
        base, other: the profiles; None: there is none, and so no layer.
    """
    if base is None or other is None:
        return []
    try:
        comparison = compare([digest(Run(base).attribution)], [digest(Run(other).attribution)])
    except (AnnotError, ValueError):  # a profile without layers or without times
        return []
    least = _LEAST_CHANGE * max(comparison.whole["a_ns"] or 0.0, comparison.whole["b_ns"] or 0.0)
    changes = pl.col("difference_ns").abs()
    rows = comparison.rows.filter(~pl.col("explained"), changes >= least).sort(changes, descending=True)
    return [
        LayerChange(
            layer=row["layer"],
            module=row["module"],
            phase=row["phase"],
            before_ns=row["a_ns"] or 0.0,
            after_ns=row["b_ns"] or 0.0,
        )
        for row in rows.head(_MOST_LAYERS).iter_rows(named=True)
    ]
