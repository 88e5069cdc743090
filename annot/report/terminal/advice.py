"""Terminal output of advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from annot.report.terminal.layout import Hanging
from annot.report.units import printable, share

__all__ = ["advice_below", "advice_lines"]

_EMPTY: Final = "No advice: no rule applies to this profile."
_BELOW: Final = 3


def advice_below(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Return the lines below a table: the advice that saves most, and the command that prints all of it."""
    texts = [f"{printable(row['advice'])} Saves {_saving(row['saves'])}." for row in rows[:_BELOW]]
    more = len(rows) - _BELOW
    beside = f"{more} more, with reasons and code" if more > 0 else "Reasons and code"
    return [
        *(Hanging("Advice: ", text, "cyan") for text in texts),
        Text(f"{beside}: annot report … --by advice", style="dim"),
    ]


def advice_lines(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """Return the advice as text: suggestion, saving, evidence, layers and code."""
    if not rows:
        return [Text(_EMPTY, style="dim")]
    lines: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        lines.append(Hanging(f"{number}. ", printable(row["advice"]), "bold"))
        lines.append(Hanging("   Saves: ", _saving(row["saves"])))
        lines.append(Hanging("   Why: ", f"{printable(row['evidence'])}."))
        if row["layers"]:
            lines.append(Hanging("   Where: ", printable(", ".join(row["layers"]))))
        lines += [Text(f"   {printable(line)}", style="cyan") for line in row["code"].split("\n")]
        lines.append(Text())
    return lines[:-1]


def _saving(saves: float) -> str:
    """Return the saving of a piece of advice, a share of the step time (0 to 1), in words."""
    return f"at most {share(saves, 1)} of the step" if saves else "no time by itself; it shows where time is spent"
