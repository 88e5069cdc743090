"""Run a command with every combination of parameters under a profiler, and write a table and charts.

CONFIG is a TOML file:

    [command]
    run = ["python", "samples/alexnet.py", "--batch", "{batch}", "--image", "{image}"]
    collector = "recorder"  # collector of annot run; default: auto
    timeout = 600           # seconds per run; default: unlimited
    steps = "1:"            # measured steps, counted from 0; default: all except the first

    [grid]
    batch = [2, 4, 8]
    image = [64, 128]

    [plots]                 # all keys are optional
    batch = "batch"         # parameter with the batch size
    hidden = "image"        # parameter with the width; its square is the x axis of a chart
    color = "image"         # parameter that colors the roofline and speedup charts
    peak_flops = 1e12       # peak FLOP/s of the roofline
    peak_bandwidth = 1e11   # peak bytes/s of the roofline

[environment] sets environment variables. With several [[grid]], a word of the command is dropped for a grid that
lacks its parameter.

Finished runs are not repeated. After an interruption, or with more values in the grid, only the missing runs are run.
A failed run is recorded in the table, and the other runs continue. OUT contains table.parquet with a row per run, layer
and phase, the charts as SVG, and runs/ with the profile and the output of each run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import polars as pl

    from annot.report.charts.chart import Chart
    from annot.sweep.grid import Run, Sweep
    from annot.sweep.runs import Result

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot sweep sweep.toml --dry-run
  annot sweep sweep.toml -o results
  annot sweep sweep.toml -o results --retry
  annot sweep sweep.toml -o results --against previous-results
"""
_BATCH = ("batch", "batch_size", "bs")
_HIDDEN = ("hidden", "hidden_size", "nodes", "embedding", "width", "dim")
"""Usual names of parameters; [plots] overrides them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot sweep`."""
    from annot.collect.collectors import COLLECTORS

    parser.epilog = _EXAMPLES
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of the sweep")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT",
        help="output folder; default: the name of CONFIG with the suffix .sweep, in the current folder",
    )  # fmt: skip
    parser.add_argument("--collector", choices=COLLECTORS, help="collector of annot run; default: from CONFIG")
    parser.add_argument("--retry", action="store_true", help="repeat failed runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands without running them")
    parser.add_argument(
        "--against", type=Path, metavar="OTHER", help="OUT of another sweep; adds a chart of the speedup over it"
    )


def run(args: argparse.Namespace) -> int:
    """Run the missing runs, then write table and charts. Return 1 if all runs failed."""
    from annot.sweep.grid import read_sweep
    from annot.sweep.runs import finished, locked

    sweep = read_sweep(args.config, args.collector)
    _check(sweep, args.config)
    folder = args.output or Path(f"{args.config.stem}.sweep")
    if args.dry_run:
        for one in sweep.runs:
            state = "  # finished" if finished(folder, one) else ""
            print(f"{shlex.join(one.command)}{state}")
        return 0
    with locked(folder), _terminable():
        table = _table(sweep, folder, _results(sweep, folder, retry=args.retry))
    meta = {"config": str(args.config), "parameters": sweep.parameters, "plots": sweep.plots}
    table.write_parquet(folder / "table.parquet", metadata={"annot": json.dumps(meta)})
    runs = _per_run(table, sweep)
    for path in _draw(sweep, table, runs, folder, args.against):
        _say(f"wrote {path}")
    _print_runs(runs, table)
    _say(f"wrote {folder / 'table.parquet'}")
    return 0 if runs.height else 1


def _check(sweep: Sweep, config: Path) -> None:
    """Check the steps and the parameter names before the first run."""
    from annot.attribution.steps import step_slice
    from annot.errors import AnnotError
    from annot.sweep.tables import RESERVED

    try:
        step_slice(sweep.steps)
    except ValueError as error:
        raise AnnotError(f"{config}: {error}") from None

    if taken := [name for name in sweep.parameters if name in RESERVED]:
        raise AnnotError(
            f"{config}: {taken[0]!r} cannot be a parameter name, because the table has a column with this name"
        )


@contextmanager
def _terminable() -> Iterator[None]:
    """Exit on SIGTERM, which also terminates the current run."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _results(sweep: Sweep, folder: Path, *, retry: bool) -> list[Result]:
    from annot.sweep.runs import finished, perform

    results = []
    for number, one in enumerate(sweep.runs, 1):
        result = finished(folder, one)
        if result is None or (retry and result.problem):
            _say(f"{number}/{len(sweep.runs)} {one.name}")
            result = perform(folder, one, sweep)
            if result.problem:
                _say(f"{one.name}: {result.problem}")
        results.append(result)
    return results


def _table(sweep: Sweep, folder: Path, results: list[Result]) -> pl.DataFrame:
    """Return the table of all runs. A run with an unreadable profile counts as failed."""
    from annot.sweep.tables import sweep_table

    return sweep_table(
        [_tabulated(sweep, folder, one, result) for one, result in zip(sweep.runs, results, strict=True)]
    )


def _tabulated(
    sweep: Sweep, folder: Path, one: Run, result: Result
) -> tuple[Mapping[str, Any], Mapping[str, Any], pl.DataFrame | None]:
    from annot.errors import AnnotError
    from annot.sweep.runs import run_folder

    problem, rows = result.problem, None
    if problem is None and result.profile is not None:
        try:
            rows = _rows(run_folder(folder, one) / result.profile, sweep.steps)
        except AnnotError as error:
            problem = str(error)
        else:
            problem = None if rows.height else "no ranges were recorded"
    outcome = {"run": one.key, "status": result.status, "problem": problem, "seconds": result.seconds}
    return one.parameters, outcome, rows


def _rows(profile: Path, steps: str) -> pl.DataFrame:
    from annot.analyze.work import layer_work
    from annot.attribution.steps import step_slice
    from annot.runs.run import Run
    from annot.runs.selection import Selection
    from annot.sweep.tables import run_rows

    whole = Run(profile)
    selection = step_slice(steps)
    numbers = range(whole.attribution.steps.table.height)[selection]
    measured = (Run(profile, Selection(steps=selection)) if len(numbers) else whole).attribution
    return run_rows(measured, layer_work(measured))


def _per_run(table: pl.DataFrame, sweep: Sweep) -> pl.DataFrame:
    from annot.sweep.tables import per_run

    return per_run(table, sweep.parameters, _parameter(sweep, "batch", _BATCH))


def _parameter(sweep: Sweep, role: str, usual: tuple[str, ...]) -> str | None:
    """Return the parameter with a role, from [plots] or by its usual name."""
    name = sweep.plots.get(role)
    return name if isinstance(name, str) else next((one for one in usual if sweep.is_number(one)), None)


def _draw(sweep: Sweep, table: pl.DataFrame, runs: pl.DataFrame, folder: Path, against: Path | None) -> list[Path]:
    from annot.errors import AnnotError
    from annot.report.charts.chart import as_svg

    charts = _charts(sweep, table, runs)
    if against is not None:
        charts["speedup"] = _speedup(sweep, runs, against)
    paths = []
    for name, chart in charts.items():
        path = folder / f"{name}.svg"
        try:
            path.write_text(as_svg(chart), encoding="utf-8")
        except OSError as error:
            raise AnnotError(f"{path} cannot be written: {error.strerror}") from None
        paths.append(path)
    return paths


def _charts(sweep: Sweep, table: pl.DataFrame, runs: pl.DataFrame) -> dict[str, Chart]:
    """Return the charts that have data."""
    from annot.sweep import plots
    from annot.sweep.tables import against_hidden, backward_ratio, roofline

    batch, hidden = _parameter(sweep, "batch", _BATCH), _parameter(sweep, "hidden", _HIDDEN)
    charts = {}
    if batch:
        others = [name for name in sweep.parameters if name != batch]
        charts["time"] = plots.time_chart(runs, batch, others)
        charts["speed"] = plots.speed_chart(runs, batch, others)
    if hidden:
        others = [name for name in sweep.parameters if name != hidden]
        charts["hidden"] = plots.hidden_chart(against_hidden(runs, hidden, others), hidden, others)
    ratios = backward_ratio(table, sweep.parameters)
    if ratios.height:
        charts["backward"] = plots.backward_chart(ratios, sweep.parameters)
    achieved = roofline(runs)
    if achieved.height:
        roofs = {name: value for name, value in sweep.plots.items() if isinstance(value, int | float)}
        charts["roofline"] = plots.roofline_chart(achieved, _color(sweep), roofs)
    return charts


def _color(sweep: Sweep) -> str | None:
    return _parameter(sweep, "color", _BATCH) or next(iter(sweep.parameters), None)


def _speedup(sweep: Sweep, runs: pl.DataFrame, against: Path) -> Chart:
    import polars as pl

    from annot.errors import AnnotError
    from annot.sweep.plots import speedup_chart
    from annot.sweep.tables import per_run, speedup

    path = against / "table.parquet" if against.is_dir() else against
    try:
        theirs = json.loads(pl.read_parquet_metadata(path)["annot"])["parameters"]
        other = per_run(pl.read_parquet(path), theirs)
    except (OSError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise AnnotError(f"{path} is not a table of annot sweep: {str(error).splitlines()[0]}") from None
    both = [name for name in sweep.parameters if name in theirs]
    return speedup_chart(speedup(runs, other, both), _color(sweep))


def _print_runs(runs: pl.DataFrame, table: pl.DataFrame) -> None:
    """Print parameters, step time and throughput of each run, then the failures."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from annot.report.units import printable, unit_for

    unit = unit_for(runs["step_ns"])
    shown = Table(box=None, pad_edge=False, header_style="bold")
    parameters = runs.columns[1 : runs.columns.index("steps")]
    for name in (*parameters, f"Step {unit.name}", "Samples/s"):
        shown.add_column(name, justify="left" if name in parameters else "right", no_wrap=True)
    for row in runs.iter_rows(named=True):
        speed = "" if row["items_per_s"] is None else f"{row['items_per_s']:,.1f}"
        values = ("" if row[name] is None else printable(str(row[name])) for name in parameters)
        shown.add_row(*map(Text, (*values, unit.show(row["step_ns"]), speed)))
    Console().print(shown)
    if unknown := runs["flops"].null_count():
        _say(f"{unknown} of {runs.height} runs have layers with unknown work and are not in the roofline chart")
    failed = table.filter(table["problem"].is_not_null())["run"].n_unique()
    if failed:
        _say(f"{failed} of {table['run'].n_unique()} runs failed: see the column problem; --retry repeats them")


def _say(line: str) -> None:
    print(f"annot: {line}", file=sys.stderr, flush=True)
