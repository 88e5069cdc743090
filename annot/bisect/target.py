"""Target of a bisection: the row that became slower from the good commit to the bad one, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Final

import polars as pl

from annot.analyze.comparison.compare import Comparison, compare
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.gate import Decision, decide
from annot.analyze.comparison.statistics import t_quantile
from annot.attribution.nesting import KEY, Key
from annot.bisect.evidence import Spread, likeness, smallest_size
from annot.bisect.pairs import Pair, SkipError
from annot.errors import AnnotError
from annot.labels import layer_path
from annot.labels.layer_path import named

_COLUMNS: Final = ("speedup", "relative_speedup")
"""Columns of a comparison that a target may use: the time, and the time relative to the other rows of the run."""
_SHARE: Final = "share"
"""Column for a new layer: everything takes so many times as long as without it."""
_REPLACED: Final = 0.1
"""A new layer replaces others if those that are gone took this part of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A row, and its change from good to bad.

    Args:
        key: layer, module and phase of the row; None: the step.
        column: the column of a comparison with the change.
        differences: logarithms of the factors of pairs of the good and the bad commit.
    """

    key: Key | None
    column: str
    differences: tuple[float, ...]

    @property
    def name(self) -> str:
        """The row in a message."""
        if self.key is None:
            return "a step"
        layer, module, phase = self.key
        return named(layer, module) if phase == "other" else f"{named(layer, module)} {phase}"

    @property
    def size(self) -> float:
        """Size of the change that decisions use."""
        return smallest_size(self.differences)

    @property
    def separation(self) -> float:
        """Size of the change over the standard deviation of a pair."""
        return self.size / (math.sqrt(Spread.of(self.differences).variance) or math.ulp(1))

    def interval(self, level: float) -> tuple[float, float, float]:
        """Return the factor of the change, and its interval with an error level (paired t interval)."""
        spread, mean = Spread.of(self.differences), fmean(self.differences)
        half = t_quantile(level, spread.freedom) * math.sqrt(spread.variance / len(self.differences))
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def sentence(self, level: float) -> str:
        """Return the change as a sentence without its full stop."""
        factor, low, high = self.interval(level)
        what = f"everything, with the new {self.name}," if self.column == _SHARE else self.name
        return f"{what} takes {factor:.3f} times as long ({low:.3f} to {high:.3f})"

    def difference(self, pair: Pair) -> float:
        """Return the logarithm of b / a of the time of the row in a pair.

        Raises:
            SkipError: a run lacks the row.
        """
        change = _change(pair, self.key, self.column)
        if change is None:
            raise SkipError(f"its run has no time of {self.name}")
        return change


@dataclass(frozen=True, slots=True)
class Contrast:
    """Comparison of the runs of two commits, and what the gate says about it.

    Args:
        pairs: the runs.
        comparison: their comparison.
        decision: the decision of the gate.
        level: probability that a row is slower by chance.
    """

    pairs: Sequence[Pair]
    comparison: Comparison
    decision: Decision
    level: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], *, above: float, level: float) -> Contrast:
        """Compare pairs of runs. Commits may do other work: that is a cause, and no reason not to compare them."""
        comparison = compare([a for a, _ in pairs], [b for _, b in pairs], level=level)
        return cls(pairs, comparison, decide(comparison, above=above, level=level, force=True), level)

    def target(self) -> Target | None:
        """Return the row that lost most time according to the gate; None: no row and no step is slower.

        A new layer is a target if it replaces no other layers. Else its time counts to the layer around it, or to the
        step.
        """
        if self.decision.status != "slower":
            return None
        gone_ns = self.comparison.rows.filter(only_in="a")["a_ns"].sum()
        for layer, module, phase, a_ns, b_ns in self.decision.rows.select(*KEY, "a_ns", "b_ns").iter_rows():
            is_new = a_ns is None and gone_ns < _REPLACED * b_ns
            if is_new and self._is_longer(target := self._target((layer, module, phase), (_SHARE,))):
                return target
            around = ((outer, "", phase) for outer in layer_path.above(layer))
            for row in ((layer, module, phase), *around):
                if target := self.measured(row):
                    return target
        return self.measured(None)

    def layer_target(self, layer: str) -> Target | None:
        """Return a layer as target, in the phase that lost most time; None: it is not slower.

        Raises:
            AnnotError: the runs have no such layer.
        """
        rows = self.comparison.rows.filter(layer=layer).sort("difference_ns", descending=True)
        if rows.is_empty():
            raise AnnotError(f"no run has a layer {layer!r}")
        [key, *_] = rows.select(KEY).iter_rows()
        return self.measured(key)

    def measured(self, key: Key | None) -> Target | None:
        """Return a row as target, without a correction for many rows; None: it is not slower."""
        target = self._target(key)
        return target if self._is_longer(target) else None

    def _is_longer(self, target: Target | None) -> bool:
        return target is not None and target.interval(self.level)[1] > self.decision.above

    def like(self, expected: Target) -> Target | None:
        """Return the row of another target if its change is like that; one pair with a hiccup does not matter."""
        differences, spread = self._differences(expected.key, expected.column), Spread.of(expected.differences)
        if differences is None or likeness(differences, expected.size, spread, self.level) != "bad":
            return None
        return replace(expected, differences=differences)

    def _differences(self, key: Key | None, column: str) -> tuple[float, ...] | None:
        """Return the differences of a row; None: a run lacks it."""
        changes = [_change(pair, key, column) for pair in self.pairs]
        differences = tuple(change for change in changes if change is not None)
        return differences if len(differences) == len(changes) else None

    def _target(self, key: Key | None, columns: Sequence[str] = _COLUMNS) -> Target | None:
        """Return a row as target, by the column that separates the commits best; None: its time did not grow."""
        targets = []
        for column in columns:
            differences = self._differences(key, column)
            if differences is not None and smallest_size(differences) > 0:
                targets.append(Target(key=key, column=column, differences=differences))
        return max(targets, key=lambda target: target.separation, default=None)


def _change(pair: Pair, key: Key | None, column: str) -> float | None:
    """Return the logarithm of b / a of the time of a row; None: unknown, or a run lacks the row.

    Commits may give a layer another class. The class counts where a path has several.
    """
    comparison = _compared(*pair)
    if column == _SHARE and key is not None:
        a, b = (_growth(run, key, comparison.time) for run in pair)
        return b - a
    rows = [comparison.step_time or comparison.whole]
    if key is not None:
        of_path = comparison.rows.filter(layer=key[0], phase=key[2])
        rows = (of_path if of_path.height == 1 else of_path.filter(module=key[1])).to_dicts()
    return -math.log(rows[0][column]) if len(rows) == 1 and rows[0][column] else None


def _growth(run: Digest, key: Key, time: str) -> float:
    """Return the logarithm of the time of everything over that without a layer; the median of steps."""
    inside = set[int]()
    for node, (parent, layer, phase) in enumerate(run.nodes.select("parent", "layer", "phase").iter_rows()):
        if parent in inside or (layer, phase) == (key[0], key[2]):
            inside.add(node)
    whole, part = pl.col(time).sum(), pl.col(time).filter(pl.col("node").is_in(sorted(inside))).sum()
    shares = run.times.group_by("step").agg((part / whole).alias("share"))["share"]
    return -math.log1p(-min(float(shares.median() or 0.0), 0.999))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _compared(a: Digest, b: Digest) -> Comparison:
    return compare([a], [b])
