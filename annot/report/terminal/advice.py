"""Terminal output of advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from annot.report.terminal.layout import Hanging
from annot.report.units import printable

__all__ = ["advice_below", "advice_lines", "saving"]

_EMPTY: Final = "No advice: no rule applies to this profile."
_BELOW: Final = 3


def advice_below(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Return the lines below a table: the advice that saves most, and the command that prints all of it.

    Args:
        rows: result of `annot.analyze.advice.by_advice`, the most time first.
    """
    texts = [f"{printable(row['advice'])} Saves {saving(row['saves'])}." for row in rows[:_BELOW]]
    more = len(rows) - _BELOW
    beside = f"{more} more, with reasons and code" if more > 0 else "Reasons and code"
    return [
        *(Hanging("Advice: ", text, "cyan") for text in texts),
        Text(f"{beside}: annot report … --by advice", style="dim"),
    ]


def advice_lines(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """Return the advice as text: suggestion, saving, evidence, layers and code.

    Args:
        rows: result of `annot.analyze.advice.by_advice`.
    """
    if not rows:
        return [Text(_EMPTY, style="dim")]
    lines: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        lines.append(Hanging(f"{number}. ", printable(row["advice"]), "bold"))
        lines.append(Hanging("   Saves: ", saving(row["saves"])))
        lines.append(Hanging("   Why: ", f"{printable(row['evidence'])}."))
        if row["layers"]:
            lines.append(Hanging("   Where: ", printable(", ".join(row["layers"]))))
        lines += [Text(f"   {printable(line)}", style="cyan") for line in row["code"].split("\n")]
        lines.append(Text())
    return lines[:-1]


def saving(saves: float) -> str:
    """Return the saving of a piece of advice in words.

    Args:
        saves: share of the step time, 0 to 1.

    Example:
        >>> saving(0.123), saving(0.0)
        ('at most 12.3% of the step', 'no time by itself; it shows where time is spent')
    """
    return f"at most {_percent(saves)} of the step" if saves else "no time by itself; it shows where time is spent"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
