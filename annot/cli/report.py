"""Print the time of each layer in a profile, forward and backward.

PROFILE is a report or export of Nsight Systems, a recording of annot, a trace of torch.profiler or another profile.
Its format is detected from its content. Times are GPU times if the profile has GPU activity, else host times. A kernel
counts in the innermost range around its launch. Time outside of ranges has separate rows. The rows add up to the
total.

Several profiles are the ranks of one run. The table then shows the slowest rank of each layer and the time in
collectives. PROFILE may be a pattern or an fsspec URL (s3://bucket/run_rank*.sqlite). The number of a rank comes from
its profile, else from the file names.

--format trace writes a timeline for the Perfetto UI (https://ui.perfetto.dev) and chrome://tracing. It has tracks of
layers, launches and GPU activity, with arrows from launch to kernel and from forward to backward. It is compressed if
OUT ends in .gz.

--format tensorboard writes a log folder for TensorBoard: times per step and layer, the table of layers, and charts.

--format nsys-rep writes a copy of a report of Nsight Systems with additional rows on the timeline. They show when each
layer ran on which stream, with the findings for the layer.
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

    from annot.ranks.report_task import Question
    from annot.report.terminal.nsight import NsightReport
    from annot.report.terminal.ranks import RanksReport
    from annot.report.views import Report, Table

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
    """Add the arguments of `annot report`."""
    from annot.cli.export import FORMATS
    from annot.cli.output import add_output_arguments, add_step_arguments

    # The choices are literals, because importing annot.report loads polars, which is slow.
    parser.epilog = _EXAMPLES
    parser.usage = "annot report [--by TABLE] [--steps 3:20] [--format FORMAT] [-o OUT] [OPTION ...] PROFILE ..."
    parser.add_argument("profiles", nargs="+", metavar="PROFILE", help="profile to read")
    parser.add_argument(
        "--by",
        choices=(
            "layer", "module", "phase", "op", "kernel", "step", "work", "bottleneck", "advice", "summary", "detail",
            "iteration", "tensor_core", "op_type", "group", "class",
        ),
        help="row of the table: layer, module (class), phase, op, kernel, step, work (layer with FLOPs and bytes); for "
        "one profile or rank also bottleneck (bound of each layer), advice (suggestions), summary (breakdown of the "
        "step time), detail (all columns of each layer), iteration (each kernel execution), tensor_core (Tensor Core "
        "use), op_type (class, forward and backward together), group (path with its inner layers), class (kind of "
        "kernel); default: layer",
    )  # fmt: skip
    parser.add_argument(
        "--sort", choices=("order", "time"),
        help="order: by first occurrence (kernels: by time); time: longest first; default: order",
    )  # fmt: skip
    add_step_arguments(parser)
    add_output_arguments(parser, "html", *FORMATS)
    _add_rank_arguments(parser)
    nsys = parser.add_argument_group("results of nsys stats")
    nsys.add_argument(
        "--rule", choices=("innermost", "nsight"), default="innermost",
        help="innermost: each kernel counts once; nsight: kernels count as in nsys stats; default: innermost",
    )  # fmt: skip
    nsys.add_argument(
        "--report", choices=("nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"),
        help="report of nsys stats; default: nvtx_gpu_proj_sum",
    )  # fmt: skip


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    ranks = parser.add_argument_group("ranks")
    ranks.add_argument("--rank", type=_number, metavar="N", help="print the report of this rank only")
    ranks.add_argument("--by-process", action="store_true", help="treat each process with layers or steps as a rank")
    ranks.add_argument(
        "--workers", type=_positive, metavar="N", help="number of processes that read profiles; default: one per CPU"
    )
    ranks.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="read profiles on the workers of this Dask scheduler (tcp://host:8786), or of a local cluster (local)",
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the report and return the exit status."""
    from annot.cli.export import FORMATS, export, export_problem
    from annot.cli.output import check_output, deliver, output_problem, settle_format
    from annot.cli.progress import progress

    # jemalloc in polars keeps freed memory for 10 s by default, longer than most reports take.
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
        report = _nsys_stats(args) if args.rule == "nsight" else _layers(args)
    deliver(report, lambda console: _print(report, console), args)
    if args.format != "table":
        _print_missing_ranks(report.meta)
    return 0


def print_report(path: Path, *, by: Table = "layer", console: Console | None = None) -> None:
    """Print the table of a profile.

    Args:
        path: path of the profile.
        by: table to print.
        console: console to print to; None: standard output, with color only on a terminal.

    Raises:
        AnnotError: the profile cannot be read.
    """
    from rich.console import Console as RichConsole

    from annot.cli.progress import progress
    from annot.ranks.report_task import Question, report_file

    with progress():
        report = report_file(str(path), Question(by))
    _print(report, console or RichConsole())


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if (number := _number(text)) == 0:
        raise argparse.ArgumentTypeError("must be at least 1, got 0")
    return number


_LAYER_OPTIONS = ("by", "sort", "domain", "steps", "step_range", "rank", "by_process", "workers", "dask")
_TABLE_OPTIONS = ("by", "sort", "rule", "report")


def _usage_problem(args: argparse.Namespace) -> str | None:
    """Return the error message for a wrong combination of options, or None."""
    if args.format == "html" and (
        extra := [name for name in _TABLE_OPTIONS if getattr(args, name) not in (None, "innermost")]
    ):
        return f"--{extra[0]} cannot be combined with --format html: the page contains all tables"
    if args.rule == "nsight":
        extra = [name for name in _LAYER_OPTIONS if getattr(args, name) not in (None, False)]
        if extra:
            return f"--{extra[0].replace('_', '-')} cannot be combined with --rule nsight"
        if len(args.profiles) > 1:
            return f"--rule nsight needs exactly one PROFILE, got {len(args.profiles)}"
    elif args.report is not None:
        return f"--report {args.report} needs --rule nsight"
    if args.workers and args.dask not in (None, "local"):
        return "--workers cannot be combined with a Dask scheduler, which has its own workers: use it with --dask local"
    return None


def _print_missing_ranks(meta: dict[str, Any]) -> None:
    """Print the ranks with unusable profiles to standard error, because the rows do not show them."""
    for note in meta.get("notes", [])[: meta.get("failed", 0)]:
        print(f"annot: {note}", file=sys.stderr)


def _page(args: argparse.Namespace) -> int:
    """Write the HTML page."""
    from annot.cli.output import write
    from annot.ranks.executors import run_one
    from annot.ranks.page import page_of_file, page_of_ranks
    from annot.ranks.profile_files import expand
    from annot.ranks.report_task import Question
    from annot.report.page.render import as_page

    question = Question("layer", args.domain, args.steps, args.step_range, args.by_process)
    paths = expand(args.profiles)
    if len(paths) == 1 and args.rank is None and not args.by_process:
        data = run_one(partial(page_of_file, question=question), paths[0], dask=args.dask)
    else:
        data = page_of_ranks(paths, question, rank=args.rank, workers=args.workers, dask=args.dask)
    write(args.output, [as_page(data, f"{data['source']} · annot")], force=args.force)
    return 0


def _nsys_stats(args: argparse.Namespace) -> NsightReport:
    from annot.read.nsys.activity import read_activity
    from annot.report.terminal.nsight import nsight_report

    path = Path(args.profiles[0])
    return nsight_report(read_activity(path), path, args.report or "nvtx_gpu_proj_sum")


def _layers(args: argparse.Namespace) -> Report | RanksReport:
    from annot.errors import AnnotError
    from annot.ranks.executors import run_one
    from annot.ranks.profile_files import expand
    from annot.ranks.report_task import Question, report_file
    from annot.report.views import ANALYSES

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
        raise AnnotError(f"rank {args.rank} does not exist: choose from {', '.join(map(str, report.ranks))}")
    return report.ranks[args.rank].sorted(args.sort or "order")


def _of_rank(args: argparse.Namespace, paths: list[str], question: Question) -> Report:
    from annot.errors import AnnotError
    from annot.ranks.gather import report_rank

    if args.rank is None:
        raise AnnotError(f"--by {question.by} needs a single rank: use --rank N")
    return report_rank(paths, question, args.rank, workers=args.workers, dask=args.dask)


def _compared(args: argparse.Namespace, paths: list[str], question: Question) -> RanksReport:
    from annot.ranks.gather import compare_ranks

    return compare_ranks(paths, question, workers=args.workers, dask=args.dask)


def _print(report: Report | RanksReport | NsightReport, console: Console) -> None:
    from annot.report.terminal.dlprof import LAYOUTS, print_analysis
    from annot.report.terminal.nsight import NsightReport, print_nsight
    from annot.report.terminal.ranks import RanksReport, print_ranks
    from annot.report.terminal.table import print_table

    if isinstance(report, NsightReport):
        print_nsight(report, console)
    elif isinstance(report, RanksReport):
        print_ranks(report, console)
    elif report.by in LAYOUTS:
        print_analysis(report, console)
    else:
        print_table(report, console)
