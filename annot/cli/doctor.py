"""Show what is installed, what would be recorded, and why ranges or kernels would be missing.

Looked at are variables that switch ranges off or name another tool, annot's C parts, the nvtx package, Nsight Systems
and Nsight Compute, the driver and the CUDA that it and the frameworks need, who may read counters, containers and WSL;
then three ranges are recorded as annot run would. "problem" is what loses ranges or kernels, "note" what may, and the
line with an arrow is what to type against it. Exit status 0 if annot run records ranges here and nothing is a
problem, 1 if not.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annot.collect.checks import Check

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot doctor
  annot doctor --collector nsys
  annot doctor --format json
"""
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot doctor` accepts."""
    from annot.collect import COLLECTORS

    parser.epilog = _EXAMPLES
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument(
        "--collector", choices=COLLECTORS, default="auto", help="try this one (default: what annot run takes)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the checks; return whether one of them is a problem."""
    from annot.collect.checks import examine

    checks = examine(args.collector)
    if args.format == "json":
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print_table(checks)
    return int(any(check.state == "problem" for check in checks))


def _print_table(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(len, column)) for column in zip(*((check.state, check.name) for check in checks), strict=True)]
    for check in checks:
        row = Table.grid(padding=(0, 2))
        for width in widths:
            row.add_column(width=width)
        row.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), Text(check.text))
        console.print(row)
        if check.mend:  # on one line however long it is: it is there to be copied
            console.print(Text(f"{' ' * (sum(widths) + 4)}→ {check.mend}", style="bold"), soft_wrap=True)
