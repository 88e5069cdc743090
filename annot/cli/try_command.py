"""Try changes on a program without an edit of its files, and measure what each one gains.

annot runs COMMAND in fresh processes, with and without each change, in turns. A change is applied in the running
process, at the first call of a model, an optimizer or a loader. Without --change, annot tries those that can help by
the profile of COMMAND, those that advice proposes first; --change all tries all, and --change list prints them. annot
also checks that training stays the same: it compares the losses of the first steps, and for changes that promise the
same bits the parameters.

A run ends after --warmup and --steps steps, as after sys.exit(0): `finally` and `atexit` of COMMAND run. What COMMAND
writes, each run writes; --keep-going lets COMMAND finish. Standard input is empty. Output, profiles and records are in
a new folder annot-try-1, annot-try-2, ...

Interval: the confidence interval of the speedup, from its low to its high end. At most: what the advice promises. First
steps: the time of the steps before the measured ones, in which a change may compile; it pays back after so many steps.
A change that fails, changes training, compiles again and again or makes steps unequal is named and not recommended.

After a kill or Ctrl-C, which prints what is measured until then, the same command continues. The exit status is 5 if no
change is faster.

examples:
  annot try -- python train.py                                     # the changes that can help, best first
  annot try --change compile,bf16 --steps 30 --repeat 5 -- python train.py
  annot try --combine --budget 30m -- python train.py              # and the best ones together
  annot try --layers 'blocks.*' --change compile -- python train.py    # one layer alone, with its recorded inputs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.cli import try_layers
from annot.cli.output import (
    UsageError,
    add_collector_argument,
    add_command_argument,
    add_max_chars,
    check_max_chars,
    command_of,
    say,
    whole_number,
)

if TYPE_CHECKING:
    from annot.trial.answer import Answer
    from annot.trial.trial import Question, Trial

_INTERRUPTED: Final = 130
_BUDGET: Final = 600.0
"""Seconds for all runs, without --budget and --repeat."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot try`."""
    parser.usage = "annot try [--change NAME,...] [options] -- COMMAND ..."
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="NAME,...",
        help="changes to try, such as compile,bf16,fused; all: every change; list: print all and exit; default: those "
        "that can help by the profile",
    )
    parser.add_argument("--steps", type=whole_number(1), metavar="N", help="measured steps of a run; default: 30")
    parser.add_argument(
        "--warmup", type=whole_number(0), default=3, metavar="N", help="steps before the measured ones; default: 3"
    )
    parser.add_argument(
        "--repeat", type=whole_number(1, 1000), metavar="N", help="most runs of each change; default: 5"
    )
    parser.add_argument(
        "--budget",
        type=_seconds,
        metavar="10m",
        help="time for all runs: fewer rounds, steps and changes fit a smaller one; default: 10m, unlimited with "
        "--repeat",
    )
    parser.add_argument("--combine", action="store_true", help="add the best changes step by step, keep what helps")
    parser.add_argument("--keep-going", action="store_true", help="let COMMAND run to its own end")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="seed of random numbers in all runs; default: 0"
    )
    add_collector_argument(parser, "as for annot run; default: auto, torch if it records no GPU times")
    parser.add_argument(
        "-o", "--keep", type=Path, metavar="FOLDER", help="folder for profiles and output; default: annot-try-1, ..."
    )
    parser.add_argument("--restart", action="store_true", help="do not continue: measure all runs again")
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "html"),
        default="text",
        help="default: text; html writes the page answer.html into FOLDER",
    )
    add_max_chars(parser)
    try_layers.add_arguments(parser)
    add_command_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Try the changes, print the answer, and return the exit status."""
    from annot.collect.logged_run import terminable
    from annot.collect.run import resolve_command
    from annot.trial.records import ANSWER, Identity, open_folder
    from annot.trial.runs import Program, Runs
    from annot.trial.trial import Trial
    from annot.util.json_files import write_json

    check_max_chars(args)
    names = [name for words in args.change for name in words.split(",") if name]
    if names == ["list"]:
        return _list()
    program = Program(
        command=tuple(command_of(args, "annot try -- python train.py")),
        collector=args.collector,
        warmup=args.warmup,
        keep_going=args.keep_going,
        seed=args.seed,
    )
    if args.layers:
        return try_layers.run(args, names, program)
    if args.extract:
        raise UsageError(
            "--extract needs --layers: annot try --layers 'blocks.*' --extract layer.py -- python train.py"
        )
    question = _question(args, names)
    resolve_command(program.command)
    program = replace(program, collector=_collector(args.collector))
    identity = Identity.of(program.command, program.collector)
    with open_folder(args.keep, identity, restart=args.restart) as folder, terminable():
        say(f"profiles, output and records: {folder}")
        trial = Trial(question, Runs(folder, program), say)
        try:
            trial.run()
        except (KeyboardInterrupt, SystemExit) as interruption:
            return _interrupted(trial, args, interruption)
        answer = trial.answer()
        write_json(folder / ANSWER, answer)
        _remember(trial)
    _print(answer, args.format, args.max_chars)
    return 0 if answer.best is not None else try_layers.NONE_FASTER


def _collector(name: str) -> str:
    """Return the collector: one that records GPU times where there is a GPU, because changes depend on them."""
    from annot.collect.collectors import choose
    from annot.util.installed_tools import has_gpu_driver

    return "torch" if name == "auto" and choose(name).name == "recorder" and has_gpu_driver() else name


def _question(args: argparse.Namespace, names: Sequence[str]) -> Question:
    from annot.changes.registry import all_changes
    from annot.trial.plan import ROUNDS, STEPS
    from annot.trial.trial import ALL, Question

    for name in names:
        if name != ALL and name not in all_changes():
            raise UsageError(_unknown(name, [*all_changes(), ALL]))
    unlimited = float("inf") if args.repeat else _BUDGET
    return Question(
        changes=tuple(dict.fromkeys(names)),
        steps=args.steps or STEPS,
        exact_steps=args.steps is not None,
        rounds=args.repeat or ROUNDS,
        budget=args.budget or unlimited,
        combine=args.combine,
    )


def _unknown(name: str, names: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"--change expects one of {', '.join(names)}, got {name!r}{meant}"


def _interrupted(trial: Trial, args: argparse.Namespace, interruption: BaseException) -> int:
    """Print what is known, and return the exit status. A second interruption ends annot at once."""
    if trial.runs.records:
        _print(trial.answer(), args.format, args.max_chars)
    say("interrupted. The same command continues")
    sys.stdout.flush()
    code = interruption.code if isinstance(interruption, SystemExit) else None
    return code if isinstance(code, int) else _INTERRUPTED


def _remember(trial: Trial) -> None:
    """Keep the answer for later reports. The answer is printed also where that fails."""
    from annot.errors import AnnotError

    try:
        trial.remember()
    except AnnotError as error:
        say(f"later reports do not cite this trial: {error}")


def _list() -> int:
    """Print all changes."""
    from annot.changes.registry import all_changes
    from annot.report.units import printable

    changes = all_changes().values()
    longest = max(len(change.name) for change in changes)
    for change in changes:
        print(printable(f"{change.name:<{longest}}  {change.framework:<5}  {change.title}"))
    return 0


def _print(answer: Answer, form: str, max_chars: int | None = None) -> None:
    from annot.trial.show import as_markdown, print_answer

    if form == "html":
        from annot.trial.page import write_page

        say(f"wrote {write_page(answer)}")
    else:
        try_layers.deliver(answer, form, partial(print_answer, answer), partial(as_markdown, answer, max_chars))


def _seconds(text: str) -> float:
    from annot.trial.plan import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a time above 0, such as 90s, 10m or 1h, got {text!r}")
    return seconds
