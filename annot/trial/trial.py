"""A trial: the runs without changes, those of each change, rounds in turns, combinations, and the answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean
from typing import Final

from annot.analyze.advice import advise
from annot.changes import tried
from annot.changes.registry import Candidate, all_changes, fitting
from annot.changes.tried import Tried
from annot.collect.alternate import in_turn
from annot.errors import AnnotError
from annot.runs.run import Run
from annot.trial import speed
from annot.trial.answer import Answer, Evaluation, changed_layers
from annot.trial.plan import FEWEST_TIMED, Cost, Plan, another_round, in_words, plan, steps_within
from annot.trial.records import BASE, ROUNDED, Kind, Record
from annot.trial.runs import Runs
from annot.util.distribution import version

ALL: Final = "all"
"""Name for all changes of a framework."""
_COMBINED: Final = 0.6
"""Share of the budget that single changes have if combinations follow."""
_FEWEST: Final = 3
"""Fewest measured steps."""
_TOO_SMALL: Final = "the budget is too small"
_FIRST_FAILURES: Final = {
    f"{BASE}.check1": "the program does not run without changes",
    f"{BASE}.check2": "a second run of the program failed",
}
"""How messages about failed runs without changes begin, by the stem of their files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a trial is to find out.

    Args:
        changes: names of changes; empty: those that can help the program of the profile; `ALL`: all.
        steps: measured steps.
        exact_steps: whether a small budget leaves the number of steps as it is.
        rounds: most rounds.
        budget: seconds for all runs.
        combine: whether the best changes are tried together.
    """

    changes: tuple[str, ...] = ()
    steps: int = 30
    exact_steps: bool = False
    rounds: int = 5
    budget: float = 600.0
    combine: bool = False


@dataclass
class Trial:
    """A trial of changes.

    Args:
        question: what to find out.
        runs: the runs of the program.
        say: receives messages, one line each.
    """

    question: Question
    runs: Runs
    say: Callable[[str], None] = lambda line: None
    candidates: dict[str, Candidate] = field(default_factory=dict)
    """The changes to try, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Changes that are not tried, and why."""
    steps: int = 0
    """Measured steps of a run."""
    complete: bool = False
    """Whether all runs have finished."""
    seconds: float = 0.0
    """Planned time of all runs; 0: not planned yet."""

    def __post_init__(self) -> None:
        self.runs.say = self._progress

    def run(self) -> None:
        """Run everything, within the budget.

        Raises:
            AnnotError: the program does not run without changes, or no change of the question exists.
        """
        question = self.question
        first = self._base()
        self.candidates = self._choose()
        if self.candidates:
            planned = self._plan(first)
            self.steps = planned.steps
            self._run(BASE, "check", steps=self.steps)
            if self._may_round(planned.names):
                self._run(ROUNDED, "check", steps=self.steps)
            alive = [name for name in planned.names if self._affordable(name) and self._is_alive(name)]
            share = _COMBINED if question.combine and len(alive) > 1 else 1.0
            self._rounds([BASE, *alive], planned.rounds, budget=share * question.budget)
            if question.combine:
                self._combine()
        self.complete = True

    def evaluation(self) -> Evaluation:
        """Return what the finished runs say."""
        return Evaluation(self.runs.records, self.candidates)

    def answer(self) -> Answer:
        """Return the answer that the finished runs give."""
        evaluation = self.evaluation()
        rows, base = evaluation.rows(), evaluation.base()
        best = next((row for row in rows if row.verdict == "faster"), None)
        first = self.runs.of(BASE, "check")[:1]
        return Answer(
            command=list(self.runs.program.command),
            folder=str(self.runs.folder),
            date=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            version=version(),
            complete=self.complete,
            framework=self.runs.framework,
            device=first[0].result.device if first else "",
            trains=bool(first) and first[0].result.trains,
            warmup=self.runs.program.warmup,
            steps=self.steps,
            level=speed.LEVEL,
            step_ns=base.before_ns,
            first_steps_ns=base.first_steps_ns,
            peak_bytes=base.peak_bytes,
            repeats=evaluation.repeats(),
            profile=first[0].profile if first else "",
            rows=rows,
            left_out=self.left_out,
            layers=[] if best is None else changed_layers(self.runs.profile(BASE), self.runs.profile(best.name)),
            notes=base.notes,
        )

    def remember(self) -> None:
        """Keep what the changes gained, for the advice of later reports on the same program."""
        profile = self.runs.profile(BASE)
        facts = None if profile is None else Run(profile).facts
        program = None if facts is None else tried.program_of(facts.attribution.meta)
        if facts is None or program is None:
            return
        day, host, device = datetime.now(UTC).date().isoformat(), socket.gethostname(), tried.device_of(facts)
        rows = [
            Tried(
                change=row.name,
                outcome=row.verdict,
                reason=row.reason,
                speedup=row.speedup,
                low=row.low,
                high=row.high,
                training=row.training_text,
                steps=self.steps,
                runs=row.runs,
                date=day,
                device=device,
                host=host,
            )
            for row in self.evaluation().rows()
            if row.verdict != "not measured"
        ]
        tried.keep(program, rows)

    def _base(self) -> Record:
        """Run the program without changes, and learn its framework and its number of steps."""
        question, warmup = self.question, self.runs.program.warmup
        record = self._run(BASE, "check", steps=question.steps)
        self.runs.framework = record.result.framework
        self.steps = steps_within(record.result, warmup, question.steps)
        if self.steps < min(_FEWEST, question.steps):
            count = len(record.result.step_ns)
            fewer = ", or --warmup 1" if warmup > 1 else ""
            raise AnnotError(
                f"the program has {count} steps, and the first {warmup} warm up: try a longer run of it{fewer}"
            )
        if self.steps < question.steps:
            self.say(f"the program has {len(record.result.step_ns)} steps: {self.steps} are measured")
        return record

    def _progress(self, line: str) -> None:
        left = self.seconds - self.runs.spent
        self.say(f"{line}, about {in_words(left)} left" if left > 0 else line)

    def _run(self, name: str, kind: Kind, *, steps: int, stage: int = 0) -> Record:
        """Run the program. A run without changes that fails is an error, other failures are messages."""
        record = self.runs.run(name, kind, self._lives(name), steps=steps, stage=stage)
        if record.problem and name == BASE:
            failure = _FIRST_FAILURES.get(record.stem, "a run without changes failed")
            raise AnnotError(f"{failure}: {record.problem}; output: {self.runs.log(record)}")
        if record.problem:
            self.say(f"{'how far rounding grows is unknown' if name == ROUNDED else name}: {record.problem}")
        return record

    def _lives(self, name: str) -> dict[str, str]:
        """The changes of a run, for its request."""
        if name == ROUNDED:
            return {name: f"annot.live.{self.runs.framework}_changes:{name}"}
        return {} if name == BASE else {each: self.candidates[each].change.live for each in name.split("+")}

    def _may_round(self, names: Sequence[str]) -> bool:
        """Whether a change may round otherwise, in a program with losses."""
        losses = any(record.result.losses for record in self.runs.of(BASE, "check"))
        return losses and any(self.candidates[name].change.numbers != "same bits" for name in names)

    def _choose(self) -> dict[str, Candidate]:
        """Return the changes to try, the most promising one first."""
        profile = self.runs.profile(BASE)
        if profile is None:
            if not self.question.changes:
                log = self.runs.log(self.runs.records[0])
                raise AnnotError(f"no profile was written, so name the changes with --change; output: {log}")
            return choose(self.question.changes, {}, self.runs.framework)
        run = Run(profile)
        facts, advice = run.facts, advise(run.attribution_with_calls, run.facts)
        fits = {candidate.change.name: candidate for candidate in fitting(facts, advice)}
        chosen = choose(self.question.changes, fits, self.runs.framework)
        for name, candidate in chosen.items():
            if name not in fits and (reason := candidate.change.fits(facts)):
                self.say(f"{name} is tried, although {reason}")
        return chosen

    def _plan(self, first: Record) -> Plan:
        question = self.question
        planned = plan(
            list(self.candidates),
            Cost.of(first.result, first.seconds),
            steps=self.steps,
            least_steps=self.steps if question.exact_steps else None,
            rounds=question.rounds,
            budget=question.budget,
            spent=self.runs.spent,
        )
        self.left_out |= dict.fromkeys(planned.left_out, _TOO_SMALL)
        rounds = f"{planned.rounds} round{'s' * (planned.rounds > 1)}"
        self.seconds, about = planned.seconds, in_words(planned.seconds - self.runs.spent)
        self.say(f"plan: {', '.join(planned.names)}; {rounds} of {planned.steps} steps each, about {about}")
        return planned

    def _is_alive(self, name: str) -> bool:
        """Check training, and return whether a change is worth timing: its run has neither failed nor diverged."""
        self._run(name, "check", steps=self.steps)
        return self.evaluation().row(name).verdict == "not measured"

    def _affordable(self, name: str) -> bool:
        """Whether the budget has time for a change: a checked run, and the fewest rounds with those checked before."""
        checks = [record for record in self.runs.records if record.kind == "check"]
        mean = self.runs.spent / len(checks)
        checked = {record.name for record in checks} - {BASE, ROUNDED}
        return not checked or self._has_time(name, mean + FEWEST_TIMED * mean * (len(checked) + 2))

    def _has_time(self, name: str, seconds: float) -> bool:
        """Whether the budget has some seconds for a change, which else is left out."""
        has_time = self.runs.spent + seconds <= self.question.budget
        if not has_time:
            self.left_out[name] = _TOO_SMALL
        return has_time

    def _rounds(self, names: Sequence[str], rounds: int, *, budget: float, stage: int = 0) -> None:
        """Measure names in turns. One that fails is left out of later rounds."""
        alive, last = list(names), 0.0
        for done in range(rounds):
            if len(alive) < 2 or not another_round(done, rounds, last=last, budget=budget, spent=self.runs.spent):
                return
            before = self.runs.spent
            for name in in_turn(tuple(alive), done):
                if self._run(name, "timed", steps=self.steps, stage=stage).problem:
                    alive.remove(name)
            last = self.runs.spent - before

    def _combine(self) -> None:
        """Add the next best changes to the best one, step by step, and keep what makes it faster."""
        kept, *others = [row.name for row in self.evaluation().rows() if row.verdict == "faster"] or [BASE]
        stage = 0
        for name in others:
            if self._excluded(name, kept):
                continue
            stage, both = stage + 1, f"{kept}+{name}"
            runs = [record.seconds for record in self.runs.of(BASE, "timed") + self.runs.of(kept, "timed")]
            if not self._has_time(both, fmean(runs) * (2 + 3 * FEWEST_TIMED)):
                return
            if not self._is_alive(both):
                continue
            self._rounds([BASE, kept, both], self.question.rounds, budget=self.question.budget, stage=stage)
            gained = self.evaluation().speedup(both, kept)
            if gained is not None and gained.is_faster and self.evaluation().row(both).verdict == "faster":
                kept = both

    def _excluded(self, name: str, kept: str) -> bool:
        """Whether a change excludes one of those that are kept."""
        groups = {self.candidates[each].change.group for each in kept.split("+")} - {""}
        return self.candidates[name].change.group in groups


def choose(asked: Sequence[str], fits: Mapping[str, Candidate], framework: str) -> dict[str, Candidate]:
    """Return the changes to try by name, the most promising one first.

    Args:
        asked: see `Question.changes`.
        fits: the changes that can help the program, the most promising one first.
        framework: framework of the program.

    Raises:
        AnnotError: a change is for another framework.
    """
    every = {name: Candidate(change, None) for name, change in all_changes().items()}
    if ALL in asked:
        others = {name: other for name, other in every.items() if other.change.framework == framework}
        return {**fits, **{name: other for name, other in others.items() if name not in fits}}
    for name in asked:
        if every[name].change.framework != framework:
            raise AnnotError(f"{name} is a change of {every[name].change.framework}, and the program uses {framework}")
    return {name: fits.get(name) or every[name] for name in asked} if asked else dict(fits)
