"""`annot try --layers`: changes of layers that are timed alone."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.cli.output import UsageError, console_for, say

if TYPE_CHECKING:
    from annot.trial.layer import LayerAnswer, LayerQuestion

_DEFAULT: Final = ("compile", "bf16", "tf32", "channels-last")
_WITHOUT_EFFECT: Final = ("combine", "budget", "restart")


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


def run(args: argparse.Namespace, names: Sequence[str], command: Sequence[str]) -> int:
    """Time the layers, print the answer, and return the exit status: 5 if no change makes a layer faster.

    Args:
        args: the arguments of `annot try`.
        names: names of changes; empty: a few.
        command: the command to run.
    """
    from annot.collect.logged_run import terminable
    from annot.trial.layer import run_layer

    question = _question(args, names, command)
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminable())
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="annot-try-")))
        folder.mkdir(parents=True, exist_ok=True)
        say(f"one run, layers {', '.join(question.patterns)} under {', '.join(question.changes)}")
        answer = run_layer(question, folder)
    _print(answer, args.format)
    gains = [gain for row in answer.layers for gain in row.gains]
    return 0 if any(gain.low is not None and gain.low > 1 for gain in gains) else 5
