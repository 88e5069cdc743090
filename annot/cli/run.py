"""Run a command under a profiler, then print the time of each layer.

Arguments, streams and signals of the command are unchanged. annot run returns the exit status of the command, also if
its profile cannot be written: 128+n after signal n, 127 if the command is not found, 126 if it is not executable. A
command that records nothing leaves no profile. The report goes to standard output on a terminal, else to standard
error, so that the output of the command can be piped.

examples:
  annot run -- python train.py
  annot run --layers -- python train.py                  # ranges of all layers, without changes to the script
  annot run -o run.sqlite --force -- python train.py --epochs 1
  annot run --collector recorder -- python -m package.train
  annot run --collector torch -o trace.json.gz -- python train.py
  annot run -- torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli.output import add_collector_argument, add_command_argument, command_of, console_for, drop_output, say
from annot.errors import AnnotError
from annot.util.installed_tools import has_gpu_driver

if TYPE_CHECKING:
    from annot.collect.collectors import Outcome
    from annot.collect.run import Collected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot run`."""
    parser.usage = "annot run [-o OUT] [--collector NAME] [--layers] [--force] [--no-report] -- COMMAND ..."
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="profile to write; default: the first unused name of annot1.sqlite, annot2.sqlite, ... in the current "
        "folder (annot1.json.gz, ... for --collector torch)",
    )
    add_collector_argument(
        parser,
        "nsys: Nsight Systems, records ranges and GPU activity and keeps its report beside OUT; recorder: annot's "
        "recorder, records ranges only; torch: torch.profiler in the first Python process, writes a Chrome trace "
        "(compressed if OUT ends in .gz); auto: nsys if installed, else recorder; default: auto",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="emit ranges of every PyTorch and Keras model that is called, as `annot.emit_ranges(model)` does, until "
        "the script makes its first block of emit_ranges",
    )
    force = "replace an existing OUT, and OUT.parts of a killed run"
    parser.add_argument("--force", action="store_true", help=force)
    parser.add_argument("--no-report", action="store_true", help="do not print the report at the end")
    add_command_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from annot.collect.collectors import choose, collect
    from annot.collect.run import CommandError

    command = command_of(args, "annot run -- python train.py")
    collector = choose(args.collector)
    try:
        outcome = collect(command, collector, out=args.output, force=args.force, layers=args.layers, say=_try_to_say)
    except CommandError as error:
        say(f"error: {error}")
        return error.status
    without_gpu = args.collector == "auto" and collector.name == "recorder" and has_gpu_driver()
    try:
        _conclude(outcome, report=not args.no_report, layers=args.layers, without_gpu=without_gpu)
    except OSError:  # a full disk or a closed pipe takes neither the report nor messages about it
        drop_output(sys.stdout, sys.stderr)
    return outcome.status


def _try_to_say(line: str) -> None:
    """Print a message. Where that fails, the command runs nevertheless."""
    try:
        say(line)
    except OSError:
        drop_output(sys.stderr)


def _conclude(outcome: Outcome, *, report: bool, layers: bool, without_gpu: bool) -> None:
    """Print the report and messages. `without_gpu` tells whether the profile lacks the GPU times of this machine."""
    collected, ended = outcome.collected, _end_of(outcome.status)
    if collected is None:
        say(f"error: {f'{ended}, and ' if ended else ''}{outcome.problem}")
        return
    for note in collected.notes:
        say(note)
    if not collected.ranges:
        _explain_nothing(outcome.out, collected, ended, layers=layers)
        return
    if ended:
        say(f"{ended}. {outcome.out} has the ranges recorded until then")
    several = report and _print_report(outcome.out) > 1
    if without_gpu:
        say("the recorder records no GPU times: for these, use --collector torch or install Nsight Systems")
    say(f"next: annot report {shlex.quote(str(outcome.out))} {'--by-process' if several else '--by advice'}")


def _end_of(status: int) -> str:
    """Return how the command ended, empty for success."""
    from annot.collect.run import SIGNALED

    if not status:
        return ""
    killed = status - SIGNALED == signal.SIGKILL
    try:
        name = f" ({signal.Signals(status - SIGNALED).name}{', as when memory runs out' if killed else ''})"
    except ValueError:
        name = ""
    return f"the command ended with status {status}{name}"


def _explain_nothing(out: Path, collected: Collected, ended: str, *, layers: bool) -> None:
    """Say why no ranges were recorded: the collector failed, the command failed, or it emits none."""
    if collected.obstacle:
        say(f"error: {f'{ended}, and ' if ended else ''}no ranges were recorded: {collected.obstacle}")
        return
    if ended and collected.too_early:
        say(f"{ended} {collected.too_early}. No profile was written")
        return
    written = f", so {out} was not written" if collected.too_early else f" in {out}"
    advice = "Wrap training in `with annot.emit_ranges(model):`, use `annot run --layers`"
    if layers:
        advice = "No Python process that can import annot called a PyTorch or Keras model. Check the command"
    nothing = f"{f'{ended}. ' if ended else ''}no ranges were recorded{written}"
    say(f"{nothing}. {advice}, or find the cause with annot doctor")


def _print_report(profile: Path) -> int:
    """Print the report, and return the number of its processes, 0 if unknown.

    An error in the report, also an unexpected one, is a message and does not change the exit status of the command.
    """
    try:
        from annot.cli.report import print_report

        return print_report(profile, console_for(sys.stdout if sys.stdout.isatty() else sys.stderr))
    except OSError:  # of the output, not of the profile
        raise
    except (AnnotError, ModuleNotFoundError) as error:
        say(f"no report: {error}")
    except Exception as error:
        command = f"annot report {shlex.quote(str(profile))}"
        say(f"no report: {type(error).__name__}: {error}. {command} shows where it occurs")
    return 0
