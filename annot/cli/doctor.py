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
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from annot.cli.output import add_collector_argument

if TYPE_CHECKING:
    from annot.doctor.finding import Check

_COLORS = {"ok": "32", "note": "33", "problem": "1;31"}


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
    """Print a line per check, without rich: an installation may lack it, as `annot guide installation` explains."""
    states = max(len(check.state) for check in checks)
    names = max(len(check.name) for check in checks)
    indent = " " * (states + names + 4)
    width = max(shutil.get_terminal_size().columns, len(indent) + 20)
    for check in checks:
        text = textwrap.fill(check.text, width, initial_indent=indent, subsequent_indent=indent).removeprefix(indent)
        padding = " " * (states - len(check.state))
        print(f"{_colored(check.state)}{padding}  {check.name:<{names}}  {text}")
        if check.mend:  # never wrapped, so that it can be copied
            print(f"{indent}→ {check.mend}")


def _colored(state: str) -> str:
    is_plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return state if is_plain else f"\033[{_COLORS[state]}m{state}\033[0m"
