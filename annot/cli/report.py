"""Print which layer, forward and backward, used the time in a profile.

PROFILE is an Nsight Systems SQLite export, a recording of annot, or a trace of
torch.profiler; its format is found by content. Times are those of the device
where the profile has device work, else those of the host. Each kernel counts to
the innermost range around its launch; what lies in no range stands in a row of
its own, so that the rows add up.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from rich.console import Console

    from annot.report import Grouping, Order, Report

__all__ = ["add_arguments", "print_report", "run"]

Format: TypeAlias = Literal["table", "csv", "json", "parquet"]

_EXAMPLES = """\
examples:
  annot report run.sqlite
  annot report run.sqlite --by kernel
  annot report run.sqlite --format csv -o layers.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot report` accepts."""
    # Spelt out, because annot.report brings polars, which --help does not need.
    parser.epilog = _EXAMPLES
    parser.add_argument("profile", type=Path, metavar="PROFILE", help="file to read; it is not changed")
    parser.add_argument(
        "--by", choices=("layer", "module", "phase", "kernel", "step"), default="layer",
        help="what a row stands for: a layer, a module class, a phase, a kernel, a batch; default: layer",
    )  # fmt: skip
    parser.add_argument("--format", choices=get_args(Format), default="table", help="default: table")
    parser.add_argument(
        "--sort", choices=("order", "time"), default="order",
        help="order: as things happened (kernels: by time); time: the longest first; default: order",
    )  # fmt: skip
    parser.add_argument("--domain", metavar="D", help="only ranges of this NVTX domain; default: all")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="write this file")
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")


def run(args: argparse.Namespace) -> int:
    """Print or write the report; return the exit status."""
    from annot.errors import AnnotError

    if args.format == "parquet" and args.output is None:
        print("annot: error: --format parquet needs -o OUT", file=sys.stderr)
        return 2
    if args.output is not None and args.output.exists() and not args.force:
        raise AnnotError(f"{args.output} exists; --force replaces it")
    if args.output is None and args.format == "table":
        print_report(args.profile, by=args.by, domain=args.domain, sort=args.sort)
        return 0
    content = _rendered(_report(args.profile, args.by, args.domain, args.sort), args.format)
    if args.output is None:
        sys.stdout.buffer.write(content)  # UTF-8 whatever the locale, for programs
    else:
        _write(args.output, content, force=args.force)
    return 0


def print_report(
    path: Path,
    *,
    by: Grouping = "layer",
    domain: str | None = None,
    sort: Order = "order",
    console: Console | None = None,
) -> None:
    """Print the table of a profile.

    Args:
        path: the profile.
        by: what a row stands for.
        domain: only ranges of this NVTX domain; None: all.
        sort: "order" or "time"; see `annot.report.report_on`.
        console: where to print; None: standard output, with colour only on a terminal.

    Raises:
        AnnotError: the profile cannot be read.
    """
    from rich.console import Console as RichConsole

    from annot.report.table import print_table

    print_table(_report(path, by, domain, sort), console or RichConsole())


def _report(path: Path, by: Grouping, domain: str | None, sort: Order) -> Report:
    from annot.read import load
    from annot.report import report_on

    return report_on(load(path), by=by, domain=domain, sort=sort)


def _rendered(report: Report, form: Format) -> bytes:
    from annot.report import files

    if form == "parquet":
        return files.as_parquet(report)
    if form == "table":
        return _as_text(report).encode()
    return (files.as_json(report) if form == "json" else files.as_csv(report)).encode()


def _as_text(report: Report) -> str:
    from io import StringIO

    from rich.console import Console as RichConsole

    from annot.report.table import print_table

    text = StringIO()
    print_table(report, RichConsole(file=text, width=120, color_system=None, force_terminal=False))
    return text.getvalue()


def _write(path: Path, content: bytes, *, force: bool) -> None:
    from annot.errors import AnnotError

    try:
        with path.open("wb" if force else "xb") as file:
            file.write(content)
    except OSError as error:
        raise AnnotError(f"{path} cannot be written: {error.strerror}") from None
