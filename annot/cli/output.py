"""Options and output that all commands with a table share: steps, output file, formats."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from annot.report.export.json_csv_parquet import Tabular
    from annot.runs.run import Run

__all__ = [
    "add_output_arguments",
    "add_step_arguments",
    "check_output",
    "deliver",
    "opened",
    "output_problem",
    "settle_format",
    "write",
]

_FORMATS = ("table", "csv", "json", "jsonl", "parquet")
_ENDINGS = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".html": "html",
    ".htm": "html", ".json.gz": "trace",
}  # fmt: skip
"""Formats by the suffix of OUT."""
_TEXT_WIDTH = 120


def add_output_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the options for the output.

    Args:
        parser: parser of the command.
        more: additional formats, such as html.
    """
    choices = (*_FORMATS, *more)
    parser.add_argument(
        "--format", choices=choices, help="output format; default: by the suffix of OUT, such as .csv, else table"
    )
    parser.set_defaults(formats=choices)
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="file to write; default: standard output")
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select ranges and steps.

    Args:
        parser: parser of the command.
    """
    parser.add_argument("--domain", metavar="D", help="use only ranges of this NVTX domain; default: all")
    parser.add_argument(
        "--steps", type=_steps, metavar="3:20", help="use only these steps, counted from 0; default: all"
    )
    parser.add_argument(
        "--step-range",
        metavar="TEXT",
        help="label of the ranges that mark steps, # matches any number; default: detected",
    )


def settle_format(args: argparse.Namespace) -> None:
    """Set the format from the suffix of OUT, if --format is not given.

    Args:
        args: the parsed command line.
    """
    if args.format is not None:
        return
    name = args.output.name.lower() if args.output is not None else ""
    found = next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), "table")
    args.format = found if found in args.formats else "table"


def output_problem(args: argparse.Namespace) -> str | None:
    """Return the error message for a wrong combination of options, or None.

    Args:
        args: the parsed command line.
    """
    needs_file = args.format in ("parquet", "html", "trace", "tensorboard", "nsys-rep") and args.output is None
    return f"--format {args.format} needs -o OUT" if needs_file else None


def check_output(args: argparse.Namespace, *profiles: str) -> None:
    """Check that OUT may be written.

    Args:
        args: the parsed command line.
        profiles: profiles that the command reads.

    Raises:
        AnnotError: OUT exists without --force, or OUT is one of the profiles.
    """
    from annot.errors import AnnotError

    if args.output is None or not args.output.exists():
        return
    if not args.force:
        raise AnnotError(f"{args.output} exists: use another name with -o, or replace it with --force")
    if any(os.path.exists(path) and args.output.samefile(path) for path in profiles):
        raise AnnotError(f"{args.output} is an input profile: use another name with -o")


def opened(path: str, args: argparse.Namespace) -> Run:
    """Return a profile with the options of `add_step_arguments`."""
    from annot.runs.run import Run
    from annot.runs.selection import Selection

    return Run(path, Selection(args.domain, args.steps, args.step_range))


def deliver(report: Tabular, show: Callable[[Console], None], args: argparse.Namespace) -> None:
    """Print the report or write it to OUT, in the selected format.

    Args:
        report: rows and metadata.
        show: function that prints the table to a console.
        args: the parsed command line, with the options of `add_output_arguments`.

    Raises:
        AnnotError: OUT cannot be written.
    """
    from rich.console import Console as RichConsole

    if args.output is None and args.format == "table":
        show(RichConsole())
        return
    content = _rendered(report, show, args.format)
    if args.output is None:
        sys.stdout.buffer.writelines(content)  # UTF-8 in any locale, for other programs
    else:
        write(args.output, content, force=args.force)


def write(path: Path, content: Iterable[bytes], *, force: bool) -> None:
    """Write a file in parts.

    Args:
        path: path of the file.
        content: parts of the file.
        force: replace an existing file.

    Raises:
        AnnotError: the file cannot be written.
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

    from annot.report.export import json_csv_parquet

    if form == "parquet":
        yield json_csv_parquet.as_parquet(report)
    elif form != "table":
        parts = {"json": json_csv_parquet.as_json, "jsonl": json_csv_parquet.as_jsonl, "csv": json_csv_parquet.as_csv}[
            form
        ]
        yield from (part.encode() for part in parts(report))
    else:
        text = StringIO()
        show(RichConsole(file=text, width=_TEXT_WIDTH, color_system=None, force_terminal=False))
        yield text.getvalue().encode()


def _steps(text: str) -> slice:
    from annot.attribution.steps import step_slice

    try:
        return step_slice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
