"""Search of the first slow commit: is bad slower than good and where, which commits are like which, what is the change.

The first pairs of runs of good and bad show where time was lost, and how much: the target. Each commit is then run in
turns with the good one until its differences of the target decide. Commits that do not run, and those that stay
unclear, are skipped, as in `git bisect skip`. In the end, the first slow commit is compared with its parent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Literal

from annot.bisect.evidence import Spread, expected_pairs, likeness
from annot.bisect.pairs import Pairs, Say, SkipError
from annot.bisect.repository import Commit, Repository
from annot.bisect.target import Contrast, Target
from annot.errors import AnnotError

_FEWEST: Final = 2
"""Pairs of a commit: one in each order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a bisection is asked."""

    good: Commit
    bad: Commit
    layer: str | None = None
    """Path of the layer to look at; None: the one that lost most time."""
    above: float = 1.0
    """Factor above which a row is slower."""
    error: float = 0.01
    """Probability of a wrong answer."""
    pairs: int = 5
    """Pairs of runs of good and bad."""
    most: int = 20
    """Most pairs of runs of a commit."""
    first_parent: bool = False
    """Whether merged branches count as the commit that merges them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a commit: like good or bad, or skipped.

    Args:
        commit: the commit.
        result: what it is like.
        differences: logarithms of the factors of the target, of pairs of the good commit and this one.
        reason: why it was skipped; empty: it was not.
    """

    commit: Commit
    result: Literal["good", "bad", "skipped"]
    differences: tuple[float, ...] = ()
    reason: str = ""

    @property
    def factor(self) -> float | None:
        """How many times as long as in the good commit the target takes; None: it did not run."""
        return math.exp(fmean(self.differences)) if self.differences else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a bisection.

    Args:
        before: contrast of good and bad.
        target: where time was lost; None: bad is not slower than good.
        trials: the commits that were run, in order.
        suspects: the commits of which one is the first slow one, and the last is slow. Several: some were skipped.
        parent: a good commit before the first slow one: its parent; None: there are several suspects.
        change: contrast of the first slow commit and `parent`.
        change_target: where the first slow commit lost time; None: not confirmed.
    """

    before: Contrast
    target: Target | None = None
    trials: tuple[Trial, ...] = ()
    suspects: tuple[Commit, ...] = ()
    parent: Commit | None = None
    change: Contrast | None = None
    change_target: Target | None = None

    @property
    def first_slow(self) -> Commit | None:
        """The first slow commit, confirmed against its parent; None: undecided."""
        return self.suspects[0] if self.change_target is not None else None


class Search:
    """A bisection.

    Args:
        repository: the repository of the commits.
        pairs: their runs.
        question: what is asked.
        say: receives a line about each result.
    """

    def __init__(self, repository: Repository, pairs: Pairs, question: Question, say: Say) -> None:
        self._repository, self._pairs, self._question, self._say = repository, pairs, question, say
        self._trials: list[Trial] = []

    def run(self) -> Answer:
        """Return the answer.

        Raises:
            AnnotError: good and bad are not in order, or one of them does not run.
        """
        question = self._question
        self._repository.check_order(question.good, question.bad)
        before, target = self._contrast(question.good, question.bad)
        if target is None:
            return Answer(before=before)
        suspects = self._narrow(target)
        answer = Answer(before=before, target=target, trials=tuple(self._trials), suspects=suspects)
        if len(suspects) > 1:
            return answer
        tried = {trial.commit.hash for trial in self._trials if trial.result == "good"}
        parent = next((name for name in suspects[0].parents if name in tried), question.good.hash)
        good = self._repository.commit(parent)
        change, change_target = self._contrast(good, suspects[0], target)
        return replace(answer, parent=good, change=change, change_target=change_target)

    def _contrast(self, a: Commit, b: Commit, expected: Target | None = None) -> tuple[Contrast, Target | None]:
        """Compare two commits with as many pairs as asked for, and with twice as many if these do not decide.

        The target of the result is that of the question, else what the gate calls slower, else the expected one if the
        change is like that.
        """
        question, level = self._question, self._question.error / 2
        for count in (question.pairs, 2 * question.pairs):
            self._say(f"{a.short} and {b.short}: {count} pairs of runs")
            try:
                pairs = [self._pairs.pair(a, b, number) for number in range(count)]
            except SkipError as error:
                raise AnnotError(f"{b.short} does not run: {error}") from None
            contrast = Contrast.of(pairs, above=question.above, level=level)
            target = contrast.target() if question.layer is None else contrast.layer_target(question.layer)
            if target is None and expected is not None:
                target = contrast.like(expected)
            if target is not None:
                break
        return contrast, target

    def _narrow(self, target: Target) -> tuple[Commit, ...]:
        """Try commits until no other can be the first slow one, and return the suspects."""
        good, bad, skipped = [self._question.good.hash], self._question.bad.hash, set[str]()
        between = self._between(good, bad)
        decisions = max(1, math.ceil(math.log2(len(between))))
        error = self._question.error / decisions
        spread = Spread.of(target.differences)
        count = max(_FEWEST, expected_pairs(target.size, spread, error))
        self._say(target.sentence(self._question.error))
        self._say(f"{len(between)} commits: about {decisions} to try, each with about {count} pairs of runs")
        while untried := [name for name in between[:-1] if name not in skipped]:
            trial = self._try(self._repository.commit(untried[0]), target, spread, error)
            self._trials.append(trial)
            self._say(_line(trial))
            if len(trial.differences) > 1:
                spread += Spread.of(trial.differences)
            if trial.result == "skipped":
                skipped.add(untried[0])
            elif trial.result == "good":
                good.append(untried[0])
            else:
                bad = untried[0]
            between = self._between(good, bad)
        return tuple(self._repository.commit(name) for name in between)

    def _between(self, good: Sequence[str], bad: str) -> list[str]:
        return self._repository.between(good, bad, first_parent=self._question.first_parent)

    def _try(self, commit: Commit, target: Target, spread: Spread, error: float) -> Trial:
        """Run a commit and the good one in turns, until the differences of the target decide."""
        differences: tuple[float, ...] = ()
        try:
            for number in range(max(self._question.most, _FEWEST)):
                pair = self._pairs.pair(self._question.good, commit, number)
                differences = (*differences, target.difference(pair))
                result = likeness(differences, target.size, spread, error)
                if result and len(differences) >= _FEWEST:
                    return Trial(commit, result, differences)
        except SkipError as problem:
            return Trial(commit, "skipped", differences, str(problem))
        return Trial(commit, "skipped", differences, f"{len(differences)} pairs of runs cannot separate it from either")


def _line(trial: Trial) -> str:
    factor = "" if trial.factor is None else f", {trial.factor:.3f} times the time of good"
    if trial.result == "skipped":
        return f"{trial.commit.title}: skipped: {trial.reason}{factor}"
    return f"{trial.commit.title}: like {trial.result} after {len(trial.differences)} pairs of runs{factor}"
