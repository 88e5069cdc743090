"""Run a command under a profiler, then print which layer used the time.

The command keeps its arguments, streams and signals, and its exit status is that of annot run (128+n if
signal n ended it; 127 if there is no such command, 126 if it cannot be executed). The report goes to standard
output if that is a terminal, else to standard error, so that what the command prints can go into a pipe.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annot.collect import Outcome

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot run -- python train.py
  annot run -o run.sqlite --force -- python train.py --epochs 1
  annot run --collector recorder -- python -m package.train
  annot run --collector torch -o trace.json.gz -- python train.py
  annot run -- torchrun --nproc-per-node 2 train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot run` accepts."""
    from annot.collect import COLLECTORS

    parser.epilog = _EXAMPLES
    parser.usage = "annot run [-o OUT] [--collector NAME] [--force] [--no-report] -- COMMAND ..."
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT",
        help="profile to write; default: the first free of annot1.sqlite, annot2.sqlite, ... in the current "
        "folder (annot1.json.gz, ... for --collector torch)",
    )  # fmt: skip
    parser.add_argument(
        "--collector", choices=COLLECTORS, default="auto",
        help="nsys: Nsight Systems, ranges and GPU work, its report is kept beside OUT; recorder: annot's "
        "own, ranges only; torch: torch.profiler in the first Python process, a Chrome trace (compressed if "
        "OUT ends in .gz); auto: nsys if it is installed, else recorder",
    )  # fmt: skip
    force = "replace an existing OUT, and OUT.parts of a run that was killed"
    parser.add_argument("--force", action="store_true", help=force)
    parser.add_argument("--no-report", action="store_true", help="do not print the report at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the command; return its status."""
    from annot.collect import CommandError, choose, collect

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        _say("error: no command to run: annot run -- python train.py")
        return 2
    try:
        outcome = collect(command, choose(args.collector), out=args.output, force=args.force, say=_say)
    except CommandError as error:
        _say(f"error: {error}")
        return error.status
    return _conclude(outcome, report=not args.no_report)


def _conclude(outcome: Outcome, *, report: bool) -> int:
    if outcome.collected is None:
        _say(f"error: {outcome.problem}")
        return outcome.status or 1
    for note in outcome.collected.notes:
        _say(note)
    if not outcome.collected.ranges:
        _say(
            f"no ranges were recorded in {outcome.out}: either the command makes none (with annot: `with "
            "emit_ranges(model):`) or they did not get through: annot doctor"
        )
        return outcome.status
    if outcome.status:
        _say(f"the command ended with status {outcome.status}: {outcome.out} has what was recorded until then")
    if report:
        _print_report(outcome.out)
    _say(f"next: annot report {shlex.quote(str(outcome.out))} --by step")
    return outcome.status


def _print_report(profile: Path) -> None:
    """Print the report; whatever goes wrong is said, and is not the script's fault."""
    from annot.errors import AnnotError

    try:
        from rich.console import Console

        from annot.cli.report import print_report

        print_report(profile, by="layer", console=Console(stderr=not sys.stdout.isatty()))
    except (AnnotError, ModuleNotFoundError) as error:
        _say(f"no report: {error}")


def _say(line: str) -> None:
    print(f"annot: {line}", file=sys.stderr, flush=True)
