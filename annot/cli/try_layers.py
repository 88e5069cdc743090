"""`annot try --layers`: changes of layers that are timed alone."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.cli.output import UsageError, console_for, say

if TYPE_CHECKING:
    from rich.console import Console

    from annot.trial.layer import LayerQuestion
    from annot.trial.runs import Program

NONE_FASTER: Final = 5
"""Exit status if no change is faster."""
_DEFAULT: Final = ("compile", "bf16", "tf32", "channels-last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of layers alone."""
    parser.add_argument(
        "--layers",
        action="append",
        metavar="PATTERN",
        help="time only layers of PyTorch with these dotted paths, such as 'blocks.*', alone, between two steps of "
        "COMMAND, with the inputs of a step; repeatable",
    )
    parser.add_argument(
        "--extract",
        type=Path,
        metavar="FILE.py",
        help="with --layers: write a script that runs the layer with the most time on random data",
    )


def run(args: argparse.Namespace, names: Sequence[str], program: Program) -> int:
    """Time the layers, print the answer, and return the exit status: 5 if no change makes a layer faster.

    Args:
        args: the arguments of `annot try`.
        names: names of changes; empty: a few.
        program: the program to run.
    """
    from annot.collect.logged_run import terminable
    from annot.trial.layer import run_layer
    from annot.trial.show_layer import as_markdown, print_layers

    question = _question(args, names, program)
    folder = args.keep or Path(tempfile.mkdtemp(prefix="annot-try-"))
    say(f"one run, layers {', '.join(question.patterns)} with {', '.join(question.changes)}")
    with terminable():
        answer = run_layer(question, folder)
    if args.keep is None:  # after an error, the output stays
        shutil.rmtree(folder, ignore_errors=True)
    deliver(answer, args.format, partial(print_layers, answer), partial(as_markdown, answer, args.max_chars))
    gains = [gain for row in answer.layers for gain in row.gains]
    return 0 if any(gain.is_faster for gain in gains) else NONE_FASTER


def _question(args: argparse.Namespace, names: Sequence[str], program: Program) -> LayerQuestion:
    from annot.emit.layer_filter import choose
    from annot.live.request import LAYER_CHANGES
    from annot.trial.layer import ROUNDS, LayerQuestion
    from annot.trial.plan import STEPS

    try:
        choose(args.layers)
    except ValueError as error:
        raise UsageError(f"--layers: {error}") from None
    if args.format == "html":
        raise UsageError("--format html cannot be combined with --layers: use text, json or markdown")
    for name in names:
        if name not in (*LAYER_CHANGES, "all"):
            raise UsageError(f"--change with --layers expects one of {', '.join(LAYER_CHANGES)} or all, got {name!r}")
    return LayerQuestion(
        program=program,
        patterns=tuple(args.layers),
        changes=LAYER_CHANGES if "all" in names else tuple(dict.fromkeys(names)) or _DEFAULT,
        steps=args.steps or STEPS,
        rounds=args.repeat or ROUNDS,
        extract=args.extract,
    )


def deliver(answer: object, form: str, show: Callable[[Console], None], markdown: Callable[[], str]) -> None:
    """Print an answer in a format.

    Args:
        answer: the answer, for JSON.
        form: text, json or markdown.
        show: prints the answer as text.
        markdown: returns the answer as Markdown.
    """
    from annot.util.json_files import as_json

    if form == "json":
        sys.stdout.buffer.write(as_json(answer))
    elif form == "markdown":
        sys.stdout.buffer.write(markdown().encode())
    else:
        show(console_for(sys.stdout))
