"""What verbs with a table share: steps, a file to write, formats."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from annot.correlate import Attribution
    from annot.report.files import Tabular

__all__ = [
    "add_output_arguments",
    "add_step_arguments",
    "attributed",
    "check_output",
    "deliver",
    "output_problem",
    "settle_format",
    "write",
]

_FORMATS = ("table", "csv", "json", "jsonl", "parquet")
_ENDINGS = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".html": "html",
    ".htm": "html", ".json.gz": "trace",
}  # fmt: skip
"""What the name of OUT says of its format."""
_TEXT_WIDTH = 120


def add_output_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the options about what is written where; `more` are formats that not all verbs have, such as html."""
    choices = (*_FORMATS, *more)
    parser.add_argument("--format", choices=choices, help="default: what OUT ends in, such as .csv, else table")
    parser.set_defaults(formats=choices)
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="write this file")
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options about which ranges take part."""
    parser.add_argument("--domain", metavar="D", help="only ranges of this NVTX domain; default: all")
    parser.add_argument("--steps", type=_steps, metavar="3:20", help="only these steps, counted from 0; default: all")
    parser.add_argument(
        "--step-range", metavar="TEXT", help="the ranges that are the steps, # for any number; default: they are found"
    )


def settle_format(args: argparse.Namespace) -> None:
    """Choose the format by the name of OUT, if none was asked for."""
    if args.format is not None:
        return
    name = args.output.name.lower() if args.output is not None else ""
    said = next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), "table")
    args.format = said if said in args.formats else "table"


def output_problem(args: argparse.Namespace) -> str | None:
    """Return what is wrong with a combination of options, in one sentence."""
    needs_file = args.format in ("parquet", "html") and args.output is None
    return f"--format {args.format} needs -o OUT" if needs_file else None


def check_output(args: argparse.Namespace, *profiles: str) -> None:
    """Make sure that OUT may be written.

    Args:
        args: of the command line.
        profiles: what the command reads.

    Raises:
        AnnotError: OUT exists and --force is not given, or OUT is one of the profiles.
    """
    from annot.errors import AnnotError

    if args.output is None or not args.output.exists():
        return
    if not args.force:
        raise AnnotError(f"{args.output} exists; --force replaces it")
    if any(os.path.exists(path) and args.output.samefile(path) for path in profiles):
        raise AnnotError(f"{args.output} is what is read; write another file")


def attributed(path: str, args: argparse.Namespace) -> Attribution:
    """Return a profile with its work attributed, as the options of `add_step_arguments` say.

    Raises:
        AnnotError: the file cannot be read, or has no such steps.
    """
    from annot.correlate import attribute
    from annot.errors import AnnotError
    from annot.read import source

    try:
        found = attribute(source(Path(path)), domain=args.domain, steps=args.steps, step_range=args.step_range)
    except ValueError as error:
        raise AnnotError(str(error)) from None
    if args.steps is not None and found.steps.steady().is_empty():
        raise AnnotError(f"{path} has no such steps, only 0 to {found.steps.table['step'].max()!r}")
    return found


def deliver(report: Tabular, show: Callable[[Console], None], args: argparse.Namespace) -> None:
    """Print the report, or write it to OUT, in the format that was asked for.

    Args:
        report: its rows.
        show: prints its table.
        args: of the command line, see `add_output_arguments`.

    Raises:
        AnnotError: OUT cannot be written.
    """
    from rich.console import Console as RichConsole

    if args.output is None and args.format == "table":
        show(RichConsole())
        return
    content = _rendered(report, show, args.format)
    if args.output is None:
        sys.stdout.buffer.writelines(content)  # UTF-8 whatever the locale, for programs
    else:
        write(args.output, content, force=args.force)


def write(path: Path, content: Iterable[bytes], *, force: bool) -> None:
    """Write a file part by part; one that exists only with `force`.

    Raises:
        AnnotError: it cannot be written.
    """
    from annot.errors import AnnotError

    try:
        with path.open("wb" if force else "xb") as file:
            file.writelines(content)
    except OSError as error:
        raise AnnotError(f"{path} cannot be written: {error.strerror}") from None


def _rendered(report: Tabular, show: Callable[[Console], None], form: str) -> Iterator[bytes]:
    from io import StringIO

    from rich.console import Console as RichConsole

    from annot.report import files

    if form == "parquet":
        yield files.as_parquet(report)
    elif form != "table":
        parts = {"json": files.as_json, "jsonl": files.as_jsonl, "csv": files.as_csv}[form]
        yield from (part.encode() for part in parts(report))
    else:
        text = StringIO()
        show(RichConsole(file=text, width=_TEXT_WIDTH, color_system=None, force_terminal=False))
        yield text.getvalue().encode()


def _steps(text: str) -> slice:
    from annot.correlate.steps import step_slice

    try:
        return step_slice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
