"""Causes of slow experts of a mixture."""

from __future__ import annotations

from typing import Final

from annot.analyze.advice.causes.cause import Cause
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.work.call import Call
from annot.analyze.work.operators import Mixture, mixture_of

__all__ = ["experts_cause"]

_ROWS: Final = 16
"""Rows of the smallest matrix instruction; fewer rows leave it partly empty."""


def experts_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause that follows from the mean number of tokens per expert; None: unknown sizes."""
    mixture = mixture_of(call.tensors)
    if mixture is None:
        return None
    rows = mixture.tokens * mixture.chosen / mixture.experts
    return _few_tokens(mixture, rows) if operator.memory_bound else _large_capacity(mixture, rows)


def _routing(mixture: Mixture, rows: float) -> str:
    mean = f"{rows:.0f}" if rows >= 2 else f"{rows:.2g}"
    return (
        f"{mixture.tokens} tokens, {'sparse ' * (mixture.chosen == 1)}top-{mixture.chosen} routing to "
        f"{mixture.experts} experts: {mean} each"
    )


def _few_tokens(mixture: Mixture, rows: float) -> Cause:
    """Memory-bound experts: the weights of each are read for few tokens."""
    few = "few tokens for many experts" if rows < _ROWS else "few tokens per expert"
    return Cause(
        "few_tokens_per_expert",
        f"{few} ({_routing(mixture, rows)})",
        "Route more tokens to each expert: use larger batches, expert parallelism or fewer experts. Or store the "
        "weights in 8 bits.",
        "tokens = torch.bincount(expert_ids.flatten(), minlength=experts)      # tokens of each expert",
    )


def _large_capacity(mixture: Mixture, rows: float) -> Cause:
    """Compute-bound experts."""
    return Cause(
        "large_capacity",
        f"large capacity ({_routing(mixture, rows)}), compute-bound",
        "Balance the load of the experts, and reduce the capacity to the tokens that they get. Or compute in 8 bits.",
        "capacity = math.ceil(1.25 * tokens * top_k / experts)",
    )
