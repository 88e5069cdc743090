"""Combinations of changes: the best one, and step by step the next best ones if they still help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annot.changes.change import Change
from annot.trial.answer import Row


@dataclass(frozen=True, slots=True)
class Step:
    """The next combination.

    Args:
        kept: the changes that it adds to, joined by "+".
        name: all its changes, joined by "+".
    """

    kept: str
    name: str


class Combination:
    """A combination that grows.

    Args:
        rows: the single changes, the best first.
        changes: all changes by name.
    """

    def __init__(self, rows: Sequence[Row], changes: Mapping[str, Change]) -> None:
        names = [row.name for row in rows if row.verdict == "faster"]
        self.kept, self._waiting, self._changes = names[:1], names[1:], changes

    def next(self) -> Step | None:
        """Return the next combination to measure; None: no change is left."""
        while self._waiting:
            name = self._waiting.pop(0)
            if not self._excluded(name):
                return Step("+".join(self.kept), "+".join([*self.kept, name]))
        return None

    def keep(self, step: Step) -> None:
        """Keep a combination: the next ones add to it."""
        self.kept = step.name.split("+")

    def _excluded(self, name: str) -> bool:
        groups = {self._changes[kept].group for kept in self.kept} - {""}
        return self._changes[name].group in groups
