"""Terminal output of advice and bottlenecks."""

from __future__ import annotations

from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from annot.report.layer_tree import MODEL
from annot.report.terminal.layout import Column, Hanging, fitted_table
from annot.report.units import amount, count, printable, unit_for

__all__ = ["advice_line", "advice_lines", "bottleneck_lines", "saving"]

_EMPTY: Final = "No advice: no rule applies to this profile."
_NO_LAYERS: Final = "No layers were recorded. Use emit_ranges(model)."


def advice_line(number: int) -> Text:
    """Return a line with the number of suggestions and the command that prints them."""
    pieces = "1 piece" if number == 1 else f"{number} pieces"
    return Text(f"{pieces} of advice: annot report … --by advice", style="cyan")


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


def bottleneck_lines(rows: list[dict[str, Any]], width: int) -> list[RenderableType]:
    """Return the table of bottlenecks. Columns without values are left out.

    Args:
        rows: result of `annot.analyze.bottlenecks.by_bottleneck`.
        width: width of the terminal in columns.
    """
    if not rows:
        return [Text(_NO_LAYERS, style="dim")]
    unit = unit_for(row["time_ns"] for row in rows)
    every = [
        ("batch", Column("Batch", lambda row: count(row["batch"]), 90)),
        ("time_ns", Column("Time", lambda row: unit.show(row["time_ns"]))),
        ("time_share", Column("Share", lambda row: _percent(row["time_share"]))),
        ("backward_to_forward", Column("Bwd/fwd", lambda row: _ratio(row["backward_to_forward"]), 76)),
        ("gpu_idle_ns", Column("Idle", lambda row: unit.show(row["gpu_idle_ns"]), 90)),
        ("intensity", Column("FLOP/B", lambda row: amount(row["intensity"]), 100)),
        ("flops_per_s", Column("FLOP/s", lambda row: amount(row["flops_per_s"]), 76)),
        ("roof_share", Column("Roof", lambda row: _percent(row["roof_share"]), 100)),
        ("bound", Column("Bound", lambda row: row["bound"] or "")),
        ("stall_share", Column("Stall", lambda row: _percent(row["stall_share"]), 110)),
        ("stall_reason", Column("Reason", lambda row: row["stall_reason"] or "", 120)),
        ("instructions", Column("Instr", lambda row: amount(row["instructions"]), 120)),
        ("load_store_share", Column("Ld/st", lambda row: _percent(row["load_store_share"]), 120)),
        ("l1_hit_rate", Column("L1 hit", lambda row: _of_hundred(row["l1_hit_rate"]), 130)),
        ("l2_hit_rate", Column("L2 hit", lambda row: _of_hundred(row["l2_hit_rate"]), 130)),
        ("dram_throughput", Column("DRAM", lambda row: _of_hundred(row["dram_throughput"]), 110)),
    ]
    columns = [column for name, column in every if any(row[name] is not None for row in rows)]
    heading = Text(f"Bottleneck of each layer, {unit.name}", style="bold")
    return [heading, fitted_table("Layer", [_label(row) for row in rows], columns, rows, width)]


def _label(row: dict[str, Any]) -> Text:
    label = Text(printable(row["layer"] or MODEL))
    return label.append(f" {printable(row['module'])}", style="cyan").append(f" {row['phase']}", style="dim")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _of_hundred(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.1f}%"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
