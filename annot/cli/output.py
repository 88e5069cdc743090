"""Options and output that all commands with a table share: steps, output file, formats."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from annot.errors import AnnotError
from annot.util.whole_files import write_file

if TYPE_CHECKING:
    from rich.console import Console

    from annot.analyze.comparison.digest import Digest
    from annot.report.export.json_csv_parquet import Report
    from annot.runs.run import Run
    from annot.runs.selection import Selection

_FORMATS = ("table", "csv", "json", "jsonl", "parquet")
_ENDINGS = {f".{form}": form for form in ("csv", "json", "jsonl")} | {".ndjson": "jsonl"}
_ENDINGS |= {".parquet": "parquet", ".html": "html", ".htm": "html", ".json.gz": "trace", ".txt": "table"}
_ENDINGS |= {".md": "markdown", ".xml": "junit", ".folded": "folded", ".speedscope.json": "speedscope"}
"""Formats by the suffix of OUT."""
MIN_CHARS = 500
"""Least value of --max-chars, `annot.report.export.document.MIN_CHARS`."""
_UNLIMITED = 1 << 20
"""Width of output to a file or a pipe, in columns, so that names stay whole."""


class UsageError(AnnotError):
    """A wrong combination of options, which ends the command with status 2."""


def add_output_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the options for the output; `more` are additional formats, such as html."""
    choices = (*_FORMATS, *more)
    parser.add_argument(
        "--format", choices=choices, help="output format; default: by the suffix of OUT, such as .csv, else table"
    )
    parser.set_defaults(formats=choices)
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="file to write; default: standard output")
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")
    parser.add_argument("--full-names", action="store_true", help="print the names of kernels in full; files have both")
    if "markdown" in more:
        add_max_chars(parser)
    if "html" in more:
        parser.add_argument("--open", action="store_true", help="open the page in the browser (needs -o OUT.html)")


def add_max_chars(parser: argparse.ArgumentParser) -> None:
    """Add the option for the length of Markdown."""
    parser.add_argument(
        "--max-chars",
        type=whole_number(MIN_CHARS),
        metavar="N",
        help=f"with --format markdown: at most N characters, {MIN_CHARS} or more; small rows are added up first, and "
        "the last line says what is left out; default: all",
    )


def check_max_chars(args: argparse.Namespace) -> None:
    """Raise `UsageError` for --max-chars with another format than Markdown."""
    if getattr(args, "max_chars", None) is not None and args.format != "markdown":
        raise UsageError(f"--max-chars cannot be combined with --format {args.format}: use --format markdown")


def add_row_arguments(parser: argparse.ArgumentParser, *, last: str, top: str, total: str) -> None:
    """Add the options that select rows.

    Args:
        parser: parser of the command.
        last: name of its last positional argument.
        top: which rows --top shows.
        total: the time of which --min-share is a part.
    """
    parser.add_argument(
        "--expand",
        action="append",
        nargs="?",
        const="",
        metavar="PATH",
        help="list repeated layers separately instead of as one row: those at PATH, such as layers or layers.7, or all "
        f"without PATH (then write --expand after {last}); can be repeated",
    )
    parser.add_argument("--top", type=whole_number(1), metavar="N", help=f"show the N rows {top}")
    percent = number_type("from 0 to 100", lambda value: 0 <= value <= 100, lambda text: float(text.removesuffix("%")))
    parser.add_argument("--min-share", type=percent, metavar="P", help=f"hide rows below P percent of {total}")


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select ranges and steps."""
    parser.add_argument("--domain", metavar="D", help="use only ranges of this NVTX domain; default: all")
    parser.add_argument(
        "--steps", type=_steps, metavar="3:20", help="use only these steps, counted from 0; default: all"
    )
    parser.add_argument(
        "--step-range",
        metavar="TEXT",
        help="label of the ranges that mark steps, # matches any number; default: detected",
    )
    parser.add_argument(
        "--step-kind",
        metavar="KIND",
        help="use only steps of this kind, in a profile of a serving engine: prefill, decode, mixed, ...; default: the "
        "most frequent kind, and all kinds with --total",
    )


def add_peaks_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option for the peaks of another machine."""
    parser.add_argument(
        "--peaks",
        metavar="FILE",
        help="peaks of the device: a file of annot calibrate; default: measured on this machine, else the data sheet",
    )


def add_collector_argument(parser: argparse._ActionsContainer, summary: str, default: str | None = "auto") -> None:
    """Add the option that names a collector."""
    from annot.collect.collectors import COLLECTORS

    parser.add_argument("--collector", choices=COLLECTORS, default=default, help=summary)


def add_command_argument(parser: argparse.ArgumentParser) -> None:
    """Add the command to run, which takes all words that follow."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")


def command_of(args: argparse.Namespace, example: str) -> list[str]:
    """Return the command to run, or raise `UsageError` with an example if it is missing."""
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError(f"COMMAND is missing: {example}")
    return command


def settle_format(args: argparse.Namespace) -> None:
    """Set the format from the suffix of OUT, if --format is not given.

    Raises `UsageError` if the suffix is unknown, or if the format needs OUT.
    """
    if args.format is None:
        name = args.output.name.lower() if args.output is not None else ""
        endings = {ending: form for ending, form in _ENDINGS.items() if form in args.formats}
        chosen = endings.get(max(filter(name.endswith, endings), key=len, default=""))
        if chosen is None and (suffix := Path(name).suffix):
            raise UsageError(f"annot {args.verb} writes no {suffix} files: use {', '.join(endings)}, or --format")
        args.format = chosen or "table"
    check_max_chars(args)
    if getattr(args, "open", False) and (args.format != "html" or args.output is None):
        raise UsageError("--open shows a page: use it with -o OUT.html")
    if args.format in ("parquet", "html", "trace", "tensorboard", "nsys-rep") and args.output is None:
        raise UsageError(f"--format {args.format} needs -o OUT")


def check_output(args: argparse.Namespace, *profiles: str) -> None:
    """Raise `AnnotError` if OUT exists without --force, or is one of the profiles that the command reads."""
    if args.output is None or not args.output.exists():
        return
    if not args.force:
        raise AnnotError(f"{args.output} exists: use another name with -o, or replace it with --force")
    if any(os.path.exists(path) and args.output.samefile(path) for path in profiles):
        raise AnnotError(f"{args.output} is an input profile: use another name with -o")


def given(args: argparse.Namespace, *names: str) -> str | None:
    """Return the first of some options that is set, as the user writes it, or None."""
    are_set = (name for name in names if getattr(args, name) is not None and getattr(args, name) is not False)
    return next((f"--{name.replace('_', '-')}" for name in are_set), None)


def row_problem(args: argparse.Namespace, contents: str, *table_options: str) -> str | None:
    """Return the error message for options of tables with another format, or None; `contents` are those of pages."""
    if args.format == "html" and (extra := given(args, *table_options)):
        return f"{extra} cannot be combined with --format html: the page contains all {contents}"
    if args.expand is not None and args.format != "table":
        return f"--expand cannot be combined with --format {args.format}: files have a row for each layer"
    return None


def selection_of(args: argparse.Namespace) -> Selection:
    """Return the part of the profile that `add_step_arguments` and the other options of the command select."""
    from annot.runs.selection import Selection

    names = ("domain", "steps", "step_range", "step_kind", "by_process", "peaks")
    options = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return Selection(captures=tuple(getattr(args, "capture", None) or ()), **options)


def opened(path: str, args: argparse.Namespace) -> Run:
    """Return a profile, of which the options select a part."""
    from annot.runs.run import Run

    return Run(path, selection_of(args))


def digest_of(path: str, args: argparse.Namespace) -> Digest:
    """Return what a comparison needs of a profile, of which the options select a part. The profile is not kept."""
    from annot.analyze.comparison.digest import digest

    return digest(opened(path, args).attribution)


def whole_command(args: argparse.Namespace) -> str:
    """Return the command that prints all of the Markdown of which --max-chars leaves something out."""
    return _command(args, "--format", "markdown")


def advice_command(args: argparse.Namespace) -> str:
    """Return the command that prints the advice on the profile of a report, with reasons and code."""
    names = ("by", "columns", "depth", "top", "min-share", "sort")
    switches = ("all", "each", "total", "per-step", "full-names", "force")
    return _command(args, "--by", "advice", names=names, switches=switches)


def _command(args: argparse.Namespace, *more: str, names: Sequence[str] = (), switches: Sequence[str] = ()) -> str:
    """Return the command line with `more` options, without those of a written file, options `names` and `switches`."""
    verb, *words = args.words
    kept, rest = ["annot", verb, *more], iter(words)
    valued = re.compile(rf"--(?:{'|'.join(('max-chars', 'format', 'output', *names))})(=.*)?|-o(.*)")
    for word in rest:
        if word == "--":  # commands or profiles follow
            kept += [word, *rest]
        elif option := valued.fullmatch(word):
            if not option[1] and not option[2]:
                next(rest, None)
        elif word.removeprefix("--") not in switches:
            kept.append(word)
    return shlex.join(kept)


def deliver(report: Report, show: Callable[[Console], None], args: argparse.Namespace) -> None:
    """Print the report or write it to OUT, in the selected format; `show` prints the table to a console."""
    if args.output is None and args.format == "table":
        show(console_for(sys.stdout))
        return
    from annot.report.export.json_csv_parquet import as_csv, as_json, as_jsonl, as_parquet
    from annot.report.export.metrics import as_metrics
    from annot.report.terminal.layout import plain_text

    content: Iterable[bytes]
    if args.format == "parquet":
        content = [as_parquet(report)]
    elif args.format == "table":
        content = [plain_text(show, _UNLIMITED).encode()]
    else:
        writers: dict[str, Callable[[Any], Iterable[str]]]
        writers = {"json": as_json, "jsonl": as_jsonl, "csv": as_csv, "metrics": as_metrics}
        content = (chunk.encode() for chunk in writers[args.format](report))
    write(content, args)


def write(content: Iterable[bytes], args: argparse.Namespace) -> None:
    """Write the content of a file to OUT, or to standard output."""
    if args.output is None:
        sys.stdout.buffer.writelines(content)  # UTF-8 in any locale, for other programs
    else:
        write_file(args.output, content, force=args.force)


def show_page(page: bytes, args: argparse.Namespace) -> None:
    """Write a page to OUT, and open it in the browser with --open."""
    write_file(args.output, [page], force=args.force)
    if args.open:
        import webbrowser

        if not webbrowser.open(args.output.resolve().as_uri()):
            say(f"no browser was found: open {args.output} in a browser")


def console_for(stream: TextIO) -> Console:
    """Return a console of the width of the terminal or of COLUMNS. Without both, it cuts no names."""
    from rich.console import Console

    limited = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, width=None if limited else _UNLIMITED)


def drop_output(*streams: TextIO) -> None:
    """Redirect streams that failed to /dev/null, because CPython flushes them again at exit and would fail again."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(line: str) -> None:
    """Print a message of annot to standard error."""
    print(f"annot: {line}", file=sys.stderr, flush=True)


def number_type(
    must: str, fits: Callable[[float], bool], parse: Callable[[str], float] = float
) -> Callable[[str], float]:
    """Return a type for an option: a number for which `fits` is true; `must` ends the error "must be a number …"."""

    def number(text: str) -> float:
        try:
            value = parse(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must be a number {must}, got {text!r}")
        return value

    return number


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type for an option: a whole number from `least` to `most`."""
    allowed = f", {least} or more" if most is None else f" from {least} to {most}"

    def number(text: str) -> int:
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= (most or int(text)):
            raise argparse.ArgumentTypeError(f"must be a whole number{allowed}, got {text!r}")
        return int(text)

    return number


def _steps(text: str) -> slice:
    from annot.attribution.steps import step_slice

    try:
        return step_slice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
