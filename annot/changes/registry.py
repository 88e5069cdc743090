"""All changes by name, and those that can help the program of a profile."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Final, get_args

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.advice.kernels import LAUNCH_RULES
from annot.changes import keras, pytorch
from annot.changes.change import Change, Numbers
from annot.util.entry_points import Extension, loaded

_RESERVED: Final = ("all", "base", "list", "rounding")
"""Names of other things in ``--change``, and of runs without a change."""
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_OF_LAUNCHES: Final = {rule.__name__ for rule in LAUNCH_RULES}
_LIVE: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change that can help the program of a profile.

    Args:
        change: the change.
        bound: upper bound of the step time that it saves, 0 to 1, by the rules of advice that propose it; None: no rule
            proposes it.
    """

    change: Change
    bound: float | None


@cache
def all_changes() -> Mapping[str, Change]:
    """Return all changes by name: those of annot, then those of packages with an entry point ``annot.changes``.

    Example:
        >>> all_changes()["fused"].numbers
        'rounding'
    """
    changes = {change.name: change for change in (*pytorch.CHANGES, *keras.CHANGES)}
    for extension in loaded("annot.changes", Change):
        change = extension.call(_checked, extension, changes, default=None)
        if change is not None:
            changes[change.name] = change
    return MappingProxyType(changes)


def _checked(extension: Extension, others: Mapping[str, Change]) -> Change:
    """Return the change of another package, whose errors leave it out."""
    change: Change = extension.target
    for name in ("name", "title", "live", "code", "other_random", "other_random_in_model"):
        if not isinstance(text := getattr(change, name), str):
            raise TypeError(f"{name} must be a str, got {text!r}")
    if not _NAME.fullmatch(change.name):
        raise ValueError(f"name must be words of a-z and 0-9 joined by hyphens, got {change.name!r}")
    if change.name in _RESERVED:
        raise ValueError(f"name must not be {' or '.join(_RESERVED)}, got {change.name!r}")
    if change.name in others:
        raise ValueError(f"another change has the name {change.name}")
    if not _LIVE.fullmatch(change.live):
        raise ValueError(f"live must be module:function, got {change.live!r}")
    for name, values in (("framework", ("torch", "keras")), ("numbers", get_args(Numbers))):
        if (value := getattr(change, name)) not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {value!r}")
    if not isinstance(change.tolerance, int | float) or not 0 <= change.tolerance < math.inf:
        raise ValueError(f"tolerance must be a number from 0, got {change.tolerance!r}")

    def fits(facts: Facts) -> str:
        reason = extension.call(change.fits, facts, default=None)
        return reason if isinstance(reason, str) else "the change does not tell whether it fits"

    return replace(change, fits=fits)


def _bound(advice: Sequence[Advice]) -> float:
    """Return the bound of a change that several rules propose: it saves launches beside the time of the work."""
    launches, work = (
        max((row.saves for row in advice if (row.rule in _OF_LAUNCHES) == of_launches), default=0.0)
        for of_launches in (True, False)
    )
    return min(launches + work, 1.0)


def framework_of(facts: Facts) -> str:
    """Return the framework of the program of a profile, as in `Change.framework`; empty: CUDA without a framework."""
    return "keras" if facts.in_keras else "" if facts.in_cuda else "torch"


def fitting(facts: Facts, advice: Sequence[Advice]) -> list[Candidate]:
    """Return the changes that can help the program of a profile, the largest bound first.

    Changes that no rule proposes come last, in the order of `all_changes`.

    Args:
        facts: quantities of the profile.
        advice: advice on it, see `annot.analyze.advice.advise`.
    """
    framework = framework_of(facts)
    candidates = []
    for change in all_changes().values():
        if change.framework == framework and not change.fits(facts):
            rows = [row for row in advice if change.name in row.changes]
            candidates.append(Candidate(change, _bound(rows) if rows else None))
    return sorted(candidates, key=lambda candidate: math.inf if candidate.bound is None else -candidate.bound)
