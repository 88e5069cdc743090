"""Show installed software, test the recording of ranges, and find causes of missing ranges or kernels.

The checks cover environment variables, annot's C extensions, the nvtx package, Nsight Systems and Nsight Compute, the
GPU driver, the CUDA versions of the frameworks, permissions for counters, containers and WSL. A self-test records
three ranges as annot run does. "problem" means that ranges or kernels are lost, "note" that they may be. The line with
an arrow is the command that fixes it. The exit status is 0 without problems, else 1.

examples:
  annot doctor
  annot doctor --collector nsys
  annot doctor --format json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from annot.cli.output import add_collector_argument

if TYPE_CHECKING:
    from annot.doctor.finding import Check

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot doctor`."""
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    add_collector_argument(parser, "collector of the self-test; default: auto, as for annot run")


def run(args: argparse.Namespace) -> int:
    """Print the checks and return 1 if one is a problem."""
    from annot.doctor.checks import examine

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
        if check.mend:  # never wrapped, so that it can be copied
            console.print(Text(f"{' ' * (sum(widths) + 4)}→ {check.mend}", style="bold"), soft_wrap=True)
