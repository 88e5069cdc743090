"""A change that `annot try` can apply to a program without an edit of its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from annot.analyze.advice.facts import Facts

Numbers: TypeAlias = Literal["same bits", "rounding", "another algorithm"]
"""What a change may do to losses and parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a program.

    Packages add changes with entry points of the group ``annot.changes``.

    Example:
        >>> fused = Change(
        ...     name="fused",
        ...     title="fused optimizer",
        ...     framework="torch",
        ...     live="annot.live.torch_optimizers:fused",
        ...     numbers="rounding",
        ...     tolerance=1e-5,
        ...     code="torch.optim.AdamW(model.parameters(), fused=True)",
        ...     fits=lambda facts: "",
        ... )
        >>> fused.numbers
        'rounding'
    """

    name: str
    """Name for ``--change``: lower case, words joined by hyphens."""
    title: str
    """A few words for tables."""
    framework: Literal["torch", "keras"]
    """The framework that the change applies to."""
    live: str
    """``module:function`` that installs the change in a running process. It gets the session of the framework, such as
    `annot.live.torch_session.TorchSession`. The read wing does not import it."""
    numbers: Numbers
    """What the change may do to losses and parameters."""
    tolerance: float = 0.0
    """Largest relative difference of a loss that counts as rounding; 0 for the same bits."""
    code: str
    """How the change is written by hand, one line or a few."""
    fits: Callable[[Facts], str]
    """Return why the change cannot help the program of a profile, a clause without full stop; empty: it may help."""
    other_random: str = ""
    """Why the program may draw other random numbers, a clause: other losses prove nothing then. Empty: it does not."""
    other_random_in_model: str = ""
    """The same for random numbers of a model: other losses prove nothing then, if the steps of the program draw any."""
    group: str = ""
    """Changes of one group exclude each other, such as "compile" for the modes of torch.compile; empty: none."""
