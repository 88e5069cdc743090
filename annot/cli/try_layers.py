"""`annot try --layers`: changes of layers that are timed alone."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.cli.output import UsageError, console_for, say

if TYPE_CHECKING:
    from annot.trial.layer import LayerAnswer, LayerQuestion

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


def run(args: argparse.Namespace, names: Sequence[str], command: Sequence[str]) -> int:
    """Time the layers, print the answer, and return the exit status: 5 if no change makes a layer faster.

    Args:
        args: the arguments of `annot try`.
        names: names of changes; empty: a few.
        command: the command to run.
    """
    from annot.collect.logged_run import terminable
    from annot.errors import AnnotError
    from annot.trial.layer import run_layer

    question = _question(args, names, command)
    folder = args.keep or Path(tempfile.mkdtemp(prefix="annot-try-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnnotError(f"{folder} cannot be written: {error.strerror}") from None
    say(f"one run, layers {', '.join(question.patterns)} with {', '.join(question.changes)}")
    with terminable():
        answer = run_layer(question, folder)
    if args.keep is None:  # after an error, the output stays
        shutil.rmtree(folder, ignore_errors=True)
    _print(answer, args.format, args.max_chars)
    gains = [gain for row in answer.layers for gain in row.gains]
    return 0 if any(gain.is_faster for gain in gains) else NONE_FASTER


def _question(args: argparse.Namespace, names: Sequence[str], command: Sequence[str]) -> LayerQuestion:
    from annot.emit.layer_filter import choose
    from annot.live.request import LAYER_CHANGES
    from annot.trial.layer import ROUNDS, LayerQuestion
    from annot.trial.plan import STEPS

    try:
        choose(args.layers)
    except ValueError as error:
        raise UsageError(f"--layers: {error}") from None
    for name in names:
        if name not in (*LAYER_CHANGES, "all"):
            raise UsageError(f"--change with --layers expects one of {', '.join(LAYER_CHANGES)} or all, got {name!r}")
    return LayerQuestion(
        command=tuple(command),
        patterns=tuple(args.layers),
        changes=LAYER_CHANGES if "all" in names else tuple(dict.fromkeys(names)) or _DEFAULT,
        steps=args.steps or STEPS,
        warmup=args.warmup,
        rounds=args.repeat or ROUNDS,
        seed=args.seed,
        keep_going=args.keep_going,
        extract=args.extract,
    )


def _print(answer: LayerAnswer, form: str, max_chars: int | None) -> None:
    import msgspec

    from annot.trial.show_layer import as_markdown, print_layers

    if form == "json":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer)) + b"\n")
    elif form == "markdown":
        sys.stdout.buffer.write(as_markdown(answer, max_chars).encode())
    else:
        print_layers(answer, console_for(sys.stdout))
