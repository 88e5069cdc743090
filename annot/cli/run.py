"""Run a command under a profiler, then print the time of each layer.

Arguments, streams and signals of the command are unchanged. annot run returns the exit status of the command: 128+n
after signal n, 127 if the command is not found, 126 if it is not executable. The report goes to standard output on a
terminal, else to standard error, so that the output of the command can be piped.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli.output import console_for, say
from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot.collect.collectors import Outcome

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot run -- python train.py
  annot run --layers -- python train.py                  # ranges of all layers, without changes to the script
  annot run -o run.sqlite --force -- python train.py --epochs 1
  annot run --collector recorder -- python -m package.train
  annot run --collector torch -o trace.json.gz -- python train.py
  annot run -- torchrun --nproc-per-node 2 train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot run`."""
    from annot.collect.collectors import COLLECTORS

    parser.epilog = _EXAMPLES
    parser.usage = "annot run [-o OUT] [--collector NAME] [--layers] [--force] [--no-report] -- COMMAND ..."
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT",
        help="profile to write; default: the first unused name of annot1.sqlite, annot2.sqlite, ... in the current "
        "folder (annot1.json.gz, ... for --collector torch)",
    )  # fmt: skip
    parser.add_argument(
        "--collector", choices=COLLECTORS, default="auto",
        help="nsys: Nsight Systems, records ranges and GPU activity and keeps its report beside OUT; recorder: annot's "
        "recorder, records ranges only; torch: torch.profiler in the first Python process, writes a Chrome trace "
        "(compressed if OUT ends in .gz); auto: nsys if installed, else recorder; default: auto",
    )  # fmt: skip
    parser.add_argument(
        "--layers", action="store_true",
        help="emit ranges of every PyTorch and Keras model that is called, as `annot.emit_ranges(model)` does, until "
        "the script makes its first block of emit_ranges",
    )  # fmt: skip
    force = "replace an existing OUT, and OUT.parts of a killed run"
    parser.add_argument("--force", action="store_true", help=force)
    parser.add_argument("--no-report", action="store_true", help="do not print the report at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from annot.collect.collectors import CommandError, choose, collect

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        say("error: COMMAND is missing: annot run -- python train.py")
        return 2
    try:
        outcome = collect(
            command, choose(args.collector), out=args.output, force=args.force, layers=args.layers, say=say
        )
    except CommandError as error:
        say(f"error: {error}")
        return error.status
    return _conclude(outcome, report=not args.no_report, layers=args.layers)


def _conclude(outcome: Outcome, *, report: bool, layers: bool) -> int:
    if outcome.collected is None:
        say(f"error: {outcome.problem}")
        return outcome.status or 1
    for note in outcome.collected.notes:
        say(note)
    if not outcome.collected.ranges:
        advice = "Wrap training in `with annot.emit_ranges(model):`, use `annot run --layers`"
        if layers:
            advice = "No Python process that can import annot called a PyTorch or Keras model. Check the command"
        say(f"no ranges were recorded in {outcome.out}. {advice}, or find the cause with annot doctor")
        return outcome.status
    if outcome.status:
        say(f"the command ended with status {outcome.status}. {outcome.out} has the ranges recorded until then")
    several = report and _print_report(outcome.out) > 1
    say(f"next: annot report {shlex.quote(str(outcome.out))} {'--by-process' if several else '--by advice'}")
    return outcome.status


def _print_report(profile: Path) -> int:
    """Print the report, and return the number of its processes, 0 if unknown.

    An error in the report is a message and does not change the exit status.
    """
    try:
        from annot.cli.report import print_report

        return print_report(profile, console_for(sys.stdout if sys.stdout.isatty() else sys.stderr))
    except (AnnotError, ModuleNotFoundError) as error:
        say(f"no report: {error}")
        return 0
