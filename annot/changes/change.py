"""A change that `annot try` can apply to a program without an edit of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

import msgspec

from annot.analyze.advice.facts import LEAST_SETTING, Facts
from annot.changes.numbers import IN_BFLOAT16, IN_TEN_BITS, REORDERED
from annot.util.packaged_tables import packaged_table

Fits: TypeAlias = Callable[[Facts], str]
Framework: TypeAlias = Literal["torch", "keras"]
Numbers: TypeAlias = Literal["same bits", "rounding", "another algorithm"]
"""What a change may do to losses and parameters."""
_TOLERANCES: Final = {"sums": REORDERED, "ten bits": IN_TEN_BITS, "bfloat16": IN_BFLOAT16}


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
    framework: Framework
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
    fits: Fits
    """Return why the change cannot help the program of a profile, a clause without full stop; empty: it may help."""
    other_random: str = ""
    """Why the program may draw other random numbers, a clause: other losses prove nothing then. Empty: it does not."""
    group: str = ""
    """Changes of one group exclude each other, such as "compile" for the modes of torch.compile; empty: none."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change in ``changes.toml``, which explains it."""

    title: str
    code: str
    numbers: Numbers = "rounding"
    tolerance: Literal["sums", "ten bits", "bfloat16"] = "sums"
    other_random: str = ""
    group: str = ""


@cache
def _entries() -> dict[Framework, dict[str, _Entry]]:
    return packaged_table("annot.changes", "changes.toml", dict[Framework, dict[str, _Entry]])


def built_in(framework: Framework, fits: Mapping[str, Fits]) -> tuple[Change, ...]:
    """Return the changes of annot for a framework.

    Args:
        framework: see `Change.framework`.
        fits: `Change.fits` by name, for the changes of the framework in ``changes.toml``.
    """
    changes = []
    for name, entry in _entries()[framework].items():
        function = f"{name.replace('-', '_')}{'_' * (name == 'compile')}"
        fields = msgspec.structs.asdict(entry)
        fields["tolerance"] = _TOLERANCES[entry.tolerance] if entry.numbers == "rounding" else 0.0
        live = f"annot.live.{framework}_changes:{function}"
        changes.append(Change(name=name, framework=framework, live=live, fits=fits[name], **fields))
    return tuple(changes)


def waits_for_data(facts: Facts) -> str:
    """Return why a change of the loading of data cannot help; empty: it may."""
    return "" if facts.shares["data"] >= LEAST_SETTING else "the steps do not wait for data"
