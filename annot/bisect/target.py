"""Target of a bisection: the row that became slower from the good commit to the bad one, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Final

from annot.analyze.comparison.compare import Comparison, compare
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.gate import Decision, decide
from annot.analyze.comparison.statistics import t_quantile
from annot.attribution.nesting import KEY, Key
from annot.bisect.evidence import Spread, smallest_size
from annot.bisect.pairs import Pair, SkipError
from annot.errors import AnnotError
from annot.labels import layer_path
from annot.labels.layer_path import named

_COLUMNS: Final = ("speedup", "relative_speedup")
"""Columns of a comparison that a target may use: the time, and the time relative to the other rows of the run."""


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
        return f"{named(layer, module)} {phase}".strip()

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
        return f"{self.name} takes {factor:.3f} times as long ({low:.3f} to {high:.3f})"

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
    """Comparison of the runs of two commits, and what the gate says about it."""

    pairs: Sequence[Pair]
    comparison: Comparison
    decision: Decision

    @classmethod
    def of(cls, pairs: Sequence[Pair], *, above: float, level: float) -> Contrast:
        """Compare pairs of runs: rows are slower above a factor, with an error level."""
        comparison = compare([a for a, _ in pairs], [b for _, b in pairs], level=level)
        return cls(pairs, comparison, decide(comparison, above=above, level=level))

    def target(self) -> Target | None:
        """Return the row that lost most time; None: none is slower.

        Time of a layer that only the second commit has counts to the layer around it, or to the step.
        """
        if self.decision.status != "slower":
            return None
        for layer, module, phase in self.decision.rows.select(KEY).iter_rows():
            around = ((outer, "", phase) for outer in layer_path.above(layer))
            for key in ((layer, module, phase), *around):
                if target := self._measured(key):
                    return target
        return self._measured(None)

    def target_at(self, layer: str, *, above: float, level: float) -> Target | None:
        """Return a layer as target, in the phase that lost most time; None: it is not slower above a factor.

        Raises:
            AnnotError: the runs have no such layer.
        """
        rows = self.comparison.rows.filter(layer=layer).sort("difference_ns", descending=True)
        if rows.is_empty():
            raise AnnotError(f"no run has a layer {layer!r}")
        [key, *_] = rows.select(KEY).iter_rows()
        target = self._measured(key)
        return target if target is not None and target.interval(level)[1] > above else None

    def _measured(self, key: Key | None) -> Target | None:
        """Return a row as target, by the column that separates the commits best; None: its time did not grow."""
        targets = []
        for column in _COLUMNS:
            changes = [_change(pair, key, column) for pair in self.pairs]
            differences = tuple(change for change in changes if change is not None)
            if len(differences) == len(changes) and smallest_size(differences) > 0:
                targets.append(Target(key=key, column=column, differences=differences))
        return max(targets, key=lambda target: target.separation, default=None)


def _change(pair: Pair, key: Key | None, column: str) -> float | None:
    """Return the logarithm of b / a of the time of a row; None: unknown, or a run lacks the row.

    Commits may give a layer another class. The class counts where a path has several.
    """
    comparison = _compared(*pair)
    if key is None:
        values = [(comparison.step_time or comparison.whole)[column]]
    else:
        rows = comparison.rows.filter(layer=key[0], phase=key[2])
        values = (rows if rows.height == 1 else rows.filter(module=key[1]))[column].to_list()
    return -math.log(values[0]) if len(values) == 1 and values[0] else None


@lru_cache(maxsize=64)
def _compared(a: Digest, b: Digest) -> Comparison:
    return compare([a], [b])
