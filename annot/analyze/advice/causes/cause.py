"""A cause: what is slow about an operator, and what changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from annot.analyze.advice.operator_facts import Operator
from annot.analyze.work.call import Call

__all__ = ["CHANNELS_LAST", "LOW_ROOF", "TILE", "Cause", "Family", "first_cause", "is_fast", "roof_words"]

LOW_ROOF: Final = 0.5
"""Share of the roof below which a tuned library kernel is slow."""
TILE: Final = (128, 128)
"""Output tile of a GEMM whose kernel names none: the usual one of cuBLAS and hipBLASLt for large matrices."""
CHANNELS_LAST: Final = (
    "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What is slow about an operator.

    Args:
        name: name of the cause.
        words: the cause with its numbers, as a clause.
        advice: the change, as a sentence; empty: the profile does not show what to change.
        code: code to write.
        saves: upper bound of the part of the operator's time that the change saves, 0 to 1.
    """

    name: str
    words: str
    advice: str = ""
    code: str = ""
    saves: float = 1.0


Family: TypeAlias = Callable[[Operator, Call], Cause | None]
"""Return the cause of an operator of one family; None: its shape and arguments are fine."""
_Subject = TypeVar("_Subject")


def first_cause(causes: Iterable[Callable[[_Subject], Cause | None]], subject: _Subject) -> Cause | None:
    """Return the first cause that applies to a subject."""
    return next((cause for rule in causes if (cause := rule(subject)) is not None), None)


def is_fast(operator: Operator) -> bool:
    """Whether an operator reaches so much of the roof of its device that its shape does not slow it."""
    computes = 1.0 if operator.memory_bound else operator.multiplies
    return operator.roof_share is not None and operator.roof_share >= LOW_ROOF * computes


def roof_words(operator: Operator) -> str:
    """Return the share of the roof as a phrase with a leading space; empty: unknown."""
    return "" if operator.roof_share is None else f" at {operator.roof_share:.0%} of the roof"
