"""Print the time of each layer in a profile, forward and backward.

PROFILE is a report or export of Nsight Systems, a recording of annot, a trace of torch.profiler or another profile.
annot detects its format from its content. Times are GPU times if the profile has GPU activity, else host times. A
kernel counts toward the innermost range around its launch. The self times of all layers, modules or operations, and of
the rows for all other time, add up to the total. So do the times of phases, kinds and kernels. Steps exclude the time
between them.

Without options for the table, annot prints an answer of at most 15 lines: the verdict, the parts of the step, the five
rows with the most self time, and the advice that saves most. --all adds the whole table. --by, --columns, --each,
--depth, --expand, --top, --min-share and --sort print a table without the answer. Output to a pipe or to a .txt file
follows the same rule.

If the profile has steps, the tables show the mean of a step without warm-up. --total shows sums over the whole
profile. Files contain sums, unless --per-step is given.

Several profiles are the ranks of one run. The table then shows the slowest rank of each layer and the time in
collectives. PROFILE may be a pattern, a folder or an fsspec URL (s3://bucket/run_rank*.sqlite). The number of a rank
comes from its profile, else from the file names.

--format trace writes a timeline for the Perfetto UI (https://ui.perfetto.dev) and chrome://tracing. It has tracks of
layers, launches and GPU activity, with arrows from launch to kernel and from forward to backward. It is compressed if
OUT ends in .gz.

--format tensorboard writes a log folder for TensorBoard: times per step and layer, the table of layers, and charts.

--format folded and --format speedscope write flame graphs: phases, layers and, with --by kernel, kernels. Folded stacks
have a line per stack with its time in ns. A file for speedscope (https://www.speedscope.app) has the GPU time of each
device and the host time.

--format pytest-benchmark writes the times of steps and layers for pytest-benchmark compare. --format metrics writes the
numbers of a table by name, for wandb.log and mlflow.log_metrics: the mean of a step without warm-up, as in tables.

--format nsys-rep writes a copy of a report of Nsight Systems with additional rows on the timeline. They show when each
layer ran on which stream, with the findings for the layer.

`annot PROFILE` is short for `annot report PROFILE`.

examples:
  annot run.sqlite
  annot run.sqlite --all
  annot run.sqlite --by kernel --steps 3:20
  annot run.sqlite --columns work
  annot run.sqlite --expand layers.7
  annot run.sqlite --by module --columns roofline --top 10
  annot run.sqlite --by kernel --each --format csv
  annot run.sqlite -o layers.csv
  annot run.sqlite -o run.html
  annot run.sqlite --format markdown --max-chars 2000
  annot run.sqlite --format trace -o run.json.gz
  annot run.sqlite --format tensorboard -o logs/run
  annot run.sqlite --format speedscope -o run.speedscope.json
  annot run.sqlite --by kernel -o run.folded
  annot run.nsys-rep --format nsys-rep -o enriched.nsys-rep
  annot execution.json.gz --capture capture.json.gz
  annot 'run_rank*.sqlite'
  annot 'run_rank*.sqlite' --rank 3 --by advice
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli import output
from annot.cli.progress import progress
from annot.errors import AnnotError, writing

if TYPE_CHECKING:
    from rich.console import Console

    from annot.report.table import Options, Table
    from annot.report.terminal.ranks import RanksTable
    from annot.report.views import View
    from annot.runs.gather import Ranks
    from annot.runs.run import Run

_TEXTS = {
    "folded": ("flame_graphs", "folded"),
    "speedscope": ("flame_graphs", "speedscope"),
    "pytest-benchmark": ("pytest_benchmark", "layer_benchmarks"),
}
"""Formats of texts for other tools, with module and function of `annot.report.export` that yields the text."""
_EXPORTS = ("trace", "tensorboard", "nsys-rep", *_TEXTS)
"""Formats for other tools."""
_KERNELS = ("kernel", "kernels")
_READ = ("table", "markdown")
"""Formats for readers: means of a step, folds, the verdict and advice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot report`."""
    parser.usage = "annot [report] [--by ROW] [--columns WHAT] [--format FORMAT] [-o OUT] [OPTION ...] PROFILE ..."
    parser.add_argument("profiles", nargs="+", metavar="PROFILE", help="profile to read")
    # The values are literals here, because importing annot.report loads polars, which is slow.
    parser.add_argument(
        "--by",
        type=_row,
        metavar="ROW",
        help="rows of the table: layer, module (class), kernel, kind (of kernel), op, step, phase, expert (of a "
        "mixture), stage (of a pipeline), summary (parts of the step) or advice (and reasons, code); default: layer",
    )
    parser.add_argument(
        "--columns",
        choices=("time", "work", "roofline", "tensor", "memory", "communication", "all"),
        help="columns of the table: time; work (FLOPs, bytes, parameters); roofline (bound, share of the peak, "
        "hardware counters); tensor (use of Tensor Cores or Matrix Cores); memory; communication (exposed and hidden "
        "collectives); all (all columns of layers); default: time",
    )
    parser.add_argument(
        "--all", action="store_true", help="print the whole table below the answer: all layers, totals, notes"
    )
    parser.add_argument("--each", action="store_true", help="single executions instead of sums (--by layer or kernel)")
    parser.add_argument(
        "--depth", type=output.whole_number(0), metavar="N", help="show N levels of layers below the outermost layers"
    )
    longest = "with the most time, the longest first; of layers, the most self time"
    output.add_row_arguments(parser, last="PROFILE", top=longest, total="the total time")
    parser.add_argument(
        "--sort",
        choices=("order", "time"),
        help="order: by first occurrence (kernels: by time); time: longest first; default: order",
    )
    per = parser.add_mutually_exclusive_group()
    per.add_argument("--total", action="store_true", help="show sums over the whole profile, or over --steps")
    per.add_argument(
        "--per-step", action="store_true", help="write the mean of a step without warm-up to files, as in tables"
    )
    output.add_step_arguments(parser)
    parser.add_argument(
        "--capture",
        action="append",
        metavar="TRACE",
        help="trace of the capture of the GPU graphs that PROFILE replays: the replays get the layers of the capture; "
        "can be repeated; default: files named capture... in the folder of PROFILE",
    )
    output.add_peaks_argument(parser)
    output.add_output_arguments(parser, "html", "markdown", "metrics", *_EXPORTS)
    _add_rank_arguments(parser)


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    ranks = parser.add_argument_group(
        "ranks",
        "annot compares several profiles or processes --by layer, module, kernel, op, step, phase,\n"
        "expert or stage, and --by layer also with --columns work or communication. Other tables need\n--rank.",
    )
    ranks.add_argument("--rank", type=output.whole_number(0), metavar="N", help="print the report of this rank only")
    ranks.add_argument("--by-process", action="store_true", help="treat each process with layers or steps as a rank")
    ranks.add_argument(
        "--workers",
        type=output.whole_number(1),
        metavar="N",
        help="number of processes that read profiles; default: one per CPU",
    )
    ranks.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="read profiles on the workers of this Dask scheduler (tcp://host:8786), or of a local cluster (local)",
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the report and return the exit status."""
    # jemalloc in polars keeps freed memory for 10 s by default, longer than most reports take.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:500,muzzy_decay_ms:0")
    output.settle_format(args)
    if problem := _usage_problem(args):
        raise output.UsageError(problem)
    if args.output is not None:
        output.check_output(args, *args.profiles, *(args.capture or ()))
    with progress():
        if args.format in ("html", *_EXPORTS):
            _write_profile(args)
            return 0
        report = _report(args)
    table = output.given(args, *_TABLE_OPTIONS) is not None
    if args.format == "markdown":
        _write_markdown(report, args, is_answer=not table and not args.all)
        return 0
    show = partial(_print, report, full_names=args.full_names, more="" if args.all else _MORE, table=table)
    output.deliver(report, show, args)
    if args.format != "table":
        for note in report.meta.get("notes", [])[: report.meta.get("failed", 0)]:  # the rows lack these ranks
            print(f"annot: {note}", file=sys.stderr)
    return 0


def _write_markdown(report: Table | RanksTable, args: argparse.Namespace, *, is_answer: bool) -> None:
    from annot.report.export.markdown import markdown

    text = markdown(
        report,
        max_chars=args.max_chars,
        more=output.whole_command(args),
        reasons=output.advice_command(args),
        is_answer=is_answer,
        full_names=args.full_names,
    )
    output.write([text.encode()], args)


def print_report(path: Path, console: Console) -> int:
    """Print the layers of a profile, and return the number of processes that it compares with ``--by-process``."""
    from annot.runs.run import Run

    with progress():
        report = Run(path).view(brief=True)
    _print(report, console, more=_MORE)
    processes: int = report.meta["processes"]
    return processes


def _row(text: str) -> str:
    from annot.report.views import find_view

    try:
        find_view(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("by ")) from None
    return text


_TABLE_OPTIONS = ("by", "columns", "each", "depth", "expand", "top", "min_share", "sort")
_VIEW_OPTIONS = (*_TABLE_OPTIONS, "total", "per_step")
_RANK_OPTIONS = ("rank", "by_process", "workers", "dask")


def _usage_problem(args: argparse.Namespace) -> str | None:
    """Return the error message for a wrong combination of options, or None."""
    if args.format in _EXPORTS:
        options = (option for option in _VIEW_OPTIONS if option != "by" or not _has_stacks(args))
        if extra := output.given(args, *options, *_RANK_OPTIONS):
            return f"{extra} cannot be combined with --format {args.format}"
    if problem := output.row_problem(args, "tables", *_VIEW_OPTIONS):
        return problem
    if args.workers and args.dask not in (None, "local"):
        return "--workers cannot be combined with a Dask scheduler, which has its own workers: use it with --dask local"
    return _view_problem(args)


def _has_stacks(args: argparse.Namespace) -> bool:
    """Return whether the output is a flame graph of layers or kernels."""
    return args.format in ("folded", "speedscope") and args.by in (None, "layer", "layers", *_KERNELS)


def _view_problem(args: argparse.Namespace) -> str | None:
    """Return the error message for a view that does not exist."""
    if not (args.by or args.columns or args.each or args.depth is not None or args.expand):
        return None
    from annot.report.views import find_view

    try:
        view = find_view(args.by or "layer", args.columns or "time", each=args.each)
    except ValueError as error:
        return f"--{error}"
    if args.depth is not None and (view.by != "layer" or not view.sums):
        return f"--depth cannot be combined with {'--each' if args.each else f'--by {args.by}'}: it sums layers"
    if args.expand is not None and not view.folds:
        return f"--expand cannot be combined with --by {view.by} --columns {view.group}: it needs the times of layers"
    if args.format == "metrics" and not view.keys:
        return f"--format metrics cannot be combined with --by {view.by} --columns {view.group}: its rows have no names"
    return None


def _write_profile(args: argparse.Namespace) -> None:
    """Write the HTML page, or a file for another tool."""
    from annot.report.page.render import as_page
    from annot.runs.executors import run_one
    from annot.runs.gather import Ranks
    from annot.runs.run import page_of

    if args.format != "html":
        paths = _expanded(args.profiles)
        if len(paths) > 1:
            raise output.UsageError(f"--format {args.format} needs exactly one PROFILE, got {len(paths)}")
        _export(output.opened(paths[0], args), args)
        return
    run = _opened(args)
    if isinstance(run, Ranks):
        data = run.page(args.rank)
    elif args.dask is not None:
        data = run_one(partial(page_of, selection=run.selection), run.path, dask=args.dask)
    else:
        data = run.page()
    output.show_page(as_page(data, f"{data['source']} · annot"), args)


def _opened(args: argparse.Namespace) -> Run | Ranks:
    """Return the profile, or the ranks if there are several, or options for ranks."""
    paths = _expanded(args.profiles)
    if len(paths) == 1 and args.rank is None and not args.by_process:
        return output.opened(paths[0], args)
    from annot.runs.gather import Ranks

    return Ranks(paths, output.selection_of(args), workers=args.workers, dask=args.dask)


def _expanded(patterns: list[str]) -> list[str]:
    """Return the paths of all profiles that the arguments stand for."""
    if len(patterns) == 1 and os.path.isfile(patterns[0]):
        return patterns
    from annot.runs.profile_files import expand

    return expand(patterns)


def _export(run: Run, args: argparse.Namespace) -> None:
    """Write the export of a profile to OUT."""
    if args.format in _TEXTS:
        module, function = _TEXTS[args.format]
        content = getattr(import_module(f"annot.report.export.{module}"), function)
        output.write(content(run.attribution, run.path, **({"kernels": True} if args.by in _KERNELS else {})), args)
        return
    from annot.report.export.nsys_report import enrich, report_of_profile

    report = report_of_profile(run.file) if args.format == "nsys-rep" else None
    if report is not None and args.output.exists() and any(args.output.samefile(read) for read in (run.file, report)):
        raise AnnotError(f"{args.output} is the input: use another name with -o")
    attribution = run.attribution_with_calls
    with writing(args.output):
        if report is not None:
            enrich(attribution, report, args.output)
        else:
            if args.format == "trace":
                from annot.report.export.chrome_trace import write_trace_file as write
            else:
                from annot.report.export.tensorboard import write_tensorboard as write
            write(attribution, run.path, args.output, force=args.force)


def _report(args: argparse.Namespace) -> Table | RanksTable:
    from annot.report.table import Options
    from annot.report.views import find_view
    from annot.runs.run import Run, view_of

    view = find_view(args.by or "layer", args.columns or "time", each=args.each)
    options = Options(
        depth=args.depth,
        expand=tuple(args.expand or ()),
        min_share=(args.min_share or 0) / 100,
        sort=args.sort or "order",
        top=args.top,
        draw=args.format in _READ,
        total=args.total or (args.format not in (*_READ, "metrics") and not args.per_step),
        brief=args.format in (*_READ, "json", "parquet"),
    )
    run = _opened(args)
    try:
        if not isinstance(run, Run):
            return _view_ranks(run, view, options, args.rank)
        if args.dask is not None:
            from annot.runs.executors import run_one

            task = partial(view_of, selection=run.selection, view=view, options=options)
            return run_one(task, run.path, dask=args.dask)
        return run.make_table(view, options)
    except ValueError as error:
        raise AnnotError(str(error)) from None


def _view_ranks(ranks: Ranks, view: View, options: Options, rank: int | None) -> Table | RanksTable:
    from annot.runs.gather import OneRankError

    try:
        return ranks.make_table(view, options, rank)
    except OneRankError as error:
        words = " ".join(f"--{argument}" for argument in error.arguments)
        raise AnnotError(f"{words} needs a single rank: use --rank N") from None


_MORE = "--all; page: -o page.html"


def _print(
    report: Table | RanksTable, console: Console, *, full_names: bool = False, more: str = "", table: bool = False
) -> None:
    """Print a table, or the answer and then how to see `more`; if `more` is empty, the whole table follows."""
    from annot.report.terminal.ranks import RanksTable
    from annot.report.terminal.table import print_answer, print_rest, print_table

    if isinstance(report, RanksTable):
        from annot.report.terminal.ranks import print_ranks, print_ranks_answer

        if not table:
            print_ranks_answer(report, console, more=more and f"{more}; a rank: --rank N")
        if table or not more:
            print_ranks(report, console, full_names=full_names, with_verdict=table)
    elif table:
        print_table(report, console, full_names=full_names)
    else:
        print_answer(report, console, more=more, reasons="--by advice")
        if not more:
            print_rest(report, console)
