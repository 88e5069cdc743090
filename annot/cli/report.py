"""Print which layer, forward and backward, used the time in a profile.

PROFILE is a report or export of Nsight Systems, a recording of annot, a trace of torch.profiler or another
profile; its format is found by content. Times are those of the device where the profile has device work, else
those of the host. Each kernel counts to the innermost range around its launch; what lies in no range stands in
rows of its own, so that the rows add up.

Several profiles are the ranks of one run: the table shows which rank is slow in which layer, and who waits for
whom in collectives. A name may be a pattern or a URL of fsspec (s3://bucket/run_rank*.sqlite). The number of a
rank is what its profile says, else what tells the names apart.

--format trace writes what happened when, for the Perfetto UI (https://ui.perfetto.dev) and chrome://tracing: layers,
launches and device work on their tracks, with arrows from launch to kernel and from forward to backward; compressed
if OUT ends in .gz. --format tensorboard writes a folder that TensorBoard shows: times per step and layer, the table of
layers as text, and pictures. --format nsys-rep writes a copy of a report of Nsight Systems that has, on the timeline,
when each layer was at work on which stream, with what was found about it.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from annot.ranks.task import Question
    from annot.report import Report, Table
    from annot.report.nsight import NsightReport
    from annot.report.ranks import RanksReport

__all__ = ["add_arguments", "print_report", "run"]

_EXAMPLES = """\
examples:
  annot report run.sqlite
  annot report run.sqlite --by kernel --steps 3:20
  annot report run.sqlite --by work
  annot report run.sqlite -o layers.csv
  annot report run.sqlite -o run.html
  annot report run.sqlite --rule nsight --report nvtx_kern_sum --format csv
  annot report run.sqlite --format trace -o run.json.gz
  annot report run.sqlite --format tensorboard -o logs/run
  annot report run.nsys-rep --format nsys-rep -o enriched.nsys-rep
  annot report 'run_rank*.sqlite'
  annot report 'run_rank*.sqlite' --rank 3 --by advice
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot report` accepts."""
    from annot.cli.exports import FORMATS
    from annot.cli.output import add_output_arguments, add_step_arguments

    # Choices are spelt out, because annot.report brings polars, which --help does not need.
    parser.epilog = _EXAMPLES
    parser.usage = "annot report [--by TABLE] [--steps 3:20] [--format FORMAT] [-o OUT] [OPTION ...] PROFILE ..."
    parser.add_argument("profiles", nargs="+", metavar="PROFILE", help="file to read; it is not changed")
    parser.add_argument(
        "--by",
        choices=(
            "layer", "module", "phase", "op", "kernel", "step", "work", "bottleneck", "advice", "summary", "detail",
            "iteration", "tensor_core", "op_type", "group", "class",
        ),
        help="what a row stands for: a layer, a module class, a phase, an operation, a kernel, a batch; work: a layer "
        "with what it has to compute and move; or, of one profile or rank, bottleneck (what holds each layer back), "
        "advice (what to try), summary (where the time of the steps went), detail (all that is known of each layer), "
        "iteration (each kernel as it ran), tensor_core (who uses Tensor Cores, and why not), op_type (classes, "
        "forward and backward together), group (paths with all below them), class (what kernels do); default: layer",
    )  # fmt: skip
    parser.add_argument(
        "--sort", choices=("order", "time"),
        help="order: as things happened (kernels: by time); time: the longest first; default: order",
    )  # fmt: skip
    add_step_arguments(parser)
    add_output_arguments(parser, "html", *FORMATS)
    _add_rank_arguments(parser)
    official = parser.add_argument_group("the numbers of Nsight Systems")
    official.add_argument(
        "--rule", choices=("innermost", "nsight"), default="innermost",
        help="innermost: each kernel counts once; nsight: as nsys stats counts; default: innermost",
    )  # fmt: skip
    official.add_argument(
        "--report", choices=("nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"),
        help="which report of nsys stats; default: nvtx_gpu_proj_sum",
    )  # fmt: skip


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    ranks = parser.add_argument_group("many ranks")
    ranks.add_argument("--rank", type=_number, metavar="N", help="only the report of this rank")
    ranks.add_argument(
        "--by-process", action="store_true", help="each process in a file that has layers or steps is a rank"
    )
    ranks.add_argument(
        "--workers", type=_positive, metavar="N", help="processes that read profiles; default: one per CPU"
    )
    ranks.add_argument(
        "--dask", metavar="SCHEDULER", help="read on the workers of this Dask scheduler (tcp://host:8786), or local"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the report; return the exit status."""
    from annot.cli.exports import FORMATS, export, export_problem
    from annot.cli.output import check_output, deliver, output_problem, settle_format
    from annot.cli.progress import progress

    # What polars has freed, it keeps for ten seconds, which is longer than a report takes.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:500,muzzy_decay_ms:0")
    settle_format(args)
    if problem := output_problem(args) or export_problem(args) or _usage_problem(args):
        print(f"annot: error: {problem}", file=sys.stderr)
        return 2
    check_output(args, *args.profiles)
    with progress():
        if args.format == "html":
            return _page(args)
        if args.format in FORMATS:
            export(args)
            return 0
        report = _official(args) if args.rule == "nsight" else _layers(args)
    deliver(report, lambda console: _print(report, console), args)
    if args.format != "table":
        _name_missing(report.meta)
    return 0


def print_report(path: Path, *, by: Table = "layer", console: Console | None = None) -> None:
    """Print the table of a profile.

    Args:
        path: the profile.
        by: what a row stands for.
        console: where to print; None: standard output, with colour only on a terminal.

    Raises:
        AnnotError: the profile cannot be read.
    """
    from rich.console import Console as RichConsole

    from annot.cli.progress import progress
    from annot.ranks.task import Question, report_file

    with progress():
        report = report_file(str(path), Question(by))
    _print(report, console or RichConsole())


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"must be a number from 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if (number := _number(text)) == 0:
        raise argparse.ArgumentTypeError("must be at least 1, got 0")
    return number


_OF_LAYERS = ("by", "sort", "domain", "steps", "step_range", "rank", "by_process", "workers", "dask")


_OF_TABLES = ("by", "sort", "rule", "report")


def _usage_problem(args: argparse.Namespace) -> str | None:
    """What is wrong with a combination of options, in one sentence."""
    if args.format == "html" and (
        extra := [name for name in _OF_TABLES if getattr(args, name) not in (None, "innermost")]
    ):
        return f"--format html knows no --{extra[0]}: the page has all tables"
    if args.rule == "nsight":
        extra = [name for name in _OF_LAYERS if getattr(args, name) not in (None, False)]
        if extra:
            return f"--rule nsight knows no --{extra[0].replace('_', '-')}"
        if len(args.profiles) > 1:
            return f"--rule nsight takes one PROFILE, got {len(args.profiles)}"
    elif args.report is not None:
        return f"--report {args.report} needs --rule nsight"
    if args.workers and args.dask not in (None, "local"):
        return "--workers is for processes on this machine: a Dask scheduler has workers of its own"
    return None


def _name_missing(meta: dict[str, Any]) -> None:
    """Say on standard error which ranks could not be read: rows alone do not."""
    for note in meta.get("notes", [])[: meta.get("failed", 0)]:
        print(f"annot: {note}", file=sys.stderr)


def _page(args: argparse.Namespace) -> int:
    """Write the page with all views."""
    from annot.cli.output import write
    from annot.ranks.executors import run_one
    from annot.ranks.files import expand
    from annot.ranks.pages import page_of_file, page_of_ranks
    from annot.ranks.task import Question
    from annot.report.page import as_page

    question = Question("layer", args.domain, args.steps, args.step_range, args.by_process)
    paths = expand(args.profiles)
    if len(paths) == 1 and args.rank is None and not args.by_process:
        data = run_one(partial(page_of_file, question=question), paths[0], dask=args.dask)
    else:
        data = page_of_ranks(paths, question, rank=args.rank, workers=args.workers, dask=args.dask)
    write(args.output, [as_page(data, f"{data['source']} · annot")], force=args.force)
    return 0


def _official(args: argparse.Namespace) -> NsightReport:
    from annot.read.nsight_activity import read_activity
    from annot.report.nsight import nsight_report

    path = Path(args.profiles[0])
    return nsight_report(read_activity(path), path, args.report or "nvtx_gpu_proj_sum")


def _layers(args: argparse.Namespace) -> Report | RanksReport:
    from annot.errors import AnnotError
    from annot.ranks.executors import run_one
    from annot.ranks.files import expand
    from annot.ranks.task import Question, report_file
    from annot.report import ANALYSES

    question = Question(args.by or "layer", args.domain, args.steps, args.step_range, args.by_process)
    paths = expand(args.profiles)
    if len(paths) == 1 and args.rank is None and not args.by_process:
        report_of = partial(report_file, question=question)
        return run_one(report_of, paths[0], dask=args.dask).sorted(args.sort or "order")
    if question.by in ANALYSES:
        return _of_rank(args, paths, question).sorted(args.sort or "order")
    report = _compared(args, paths, question).sorted(args.sort or "order")
    if args.rank is None:
        return report
    if args.rank not in report.ranks:
        raise AnnotError(f"there is no rank {args.rank}, only {', '.join(map(str, report.ranks))}")
    return report.ranks[args.rank].sorted(args.sort or "order")


def _of_rank(args: argparse.Namespace, paths: list[str], question: Question) -> Report:
    from annot.errors import AnnotError
    from annot.ranks.gather import report_rank

    if args.rank is None:
        raise AnnotError(f"--by {question.by} is about one rank: choose it with --rank N")
    return report_rank(paths, question, args.rank, workers=args.workers, dask=args.dask)


def _compared(args: argparse.Namespace, paths: list[str], question: Question) -> RanksReport:
    from annot.ranks.gather import compare_ranks

    return compare_ranks(paths, question, workers=args.workers, dask=args.dask)


def _print(report: Report | RanksReport | NsightReport, console: Console) -> None:
    from annot.report.dlprof import LOOKS, print_analysis
    from annot.report.nsight import NsightReport, print_nsight
    from annot.report.ranks import RanksReport, print_ranks
    from annot.report.table import print_table

    if isinstance(report, NsightReport):
        print_nsight(report, console)
    elif isinstance(report, RanksReport):
        print_ranks(report, console)
    elif report.by in LOOKS:
        print_analysis(report, console)
    else:
        print_table(report, console)
