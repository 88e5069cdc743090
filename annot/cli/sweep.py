"""Run a command with every combination of some parameters, each under a profiler; write one table, and its plots.

CONFIG is a TOML file:

    [command]
    run = ["python", "samples/alexnet.py", "--batch", "{batch}", "--image", "{image}"]
    collector = "recorder"  # as of annot run; default: auto
    timeout = 600           # seconds; default: none
    steps = "1:"            # which are measured, counted from 0; default: all but the first

    [grid]
    batch = [2, 4, 8]
    image = [64, 128]

    [plots]                 # all optional
    batch = "batch"         # the parameter that is the batch size
    hidden = "image"        # the one whose square time is shown against
    color = "image"         # the one that colours rooflines and speed-ups
    peak_flops = 1e12       # the roofs: FLOP/s, bytes/s
    peak_bandwidth = 1e11

[environment] sets variables. With several [[grid]], a word of the command whose parameter a grid lacks is left out.

What has run is not repeated: after an interruption, or with more values in the grid, only the rest is run. A run that
fails is noted in the table, and the others go on. OUT holds table.parquet, a row per run, layer and phase, the plots
as SVG, and in runs/ each run's profile and what it printed.
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

    from annot.collect.grid import Run, Sweep
    from annot.collect.sweep import Result
    from annot.report.chart import Chart

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot sweep sweep.toml --dry-run
  annot sweep sweep.toml -o results
  annot sweep sweep.toml -o results --retry
  annot sweep sweep.toml -o results --against results-of-before
"""
_BATCH = ("batch", "batch_size", "bs")
_HIDDEN = ("hidden", "hidden_size", "nodes", "embedding", "width", "dim")
"""What parameters are usually called; CONFIG can say otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot sweep` accepts."""
    from annot.collect import COLLECTORS

    parser.epilog = _EXAMPLES
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file that describes the sweep")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT",
        help="folder for everything; default: the name of CONFIG with .sweep, in the current folder",
    )  # fmt: skip
    parser.add_argument("--collector", choices=COLLECTORS, help="instead of the one in CONFIG")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be run")
    parser.add_argument(
        "--against", type=Path, metavar="OTHER", help="OUT of another sweep: plot how many times as fast this one is"
    )


def run(args: argparse.Namespace) -> int:
    """Run what has not run yet, then write table and plots; return 1 if nothing could be measured."""
    from annot.collect.grid import read_sweep
    from annot.collect.sweep import finished, locked

    sweep = read_sweep(args.config, args.collector)
    _check(sweep, args.config)
    folder = args.output or Path(f"{args.config.stem}.sweep")
    if args.dry_run:
        for one in sweep.runs:
            state = "  # has run" if finished(folder, one) else ""
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
    """Refuse, before anything runs, what would fail in the end."""
    from annot.analyze.sweep import RESERVED
    from annot.correlate.steps import step_slice
    from annot.errors import AnnotError

    try:
        step_slice(sweep.steps)
    except ValueError as error:
        raise AnnotError(f"{config}: {error}") from None

    if taken := [name for name in sweep.parameters if name in RESERVED]:
        raise AnnotError(f"{config}: a parameter cannot be called {taken[0]!r}: the table has a column of that name")


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a request to end this process end the run that goes on, too."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _results(sweep: Sweep, folder: Path, *, retry: bool) -> list[Result]:
    from annot.collect.sweep import finished, perform

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
    """All runs in one table; what cannot be read is a failed run."""
    from annot.analyze.sweep import sweep_table

    return sweep_table(
        [_tabulated(sweep, folder, one, result) for one, result in zip(sweep.runs, results, strict=True)]
    )


def _tabulated(
    sweep: Sweep, folder: Path, one: Run, result: Result
) -> tuple[Mapping[str, Any], Mapping[str, Any], pl.DataFrame | None]:
    from annot.collect.sweep import place
    from annot.errors import AnnotError

    problem, rows = result.problem, None
    if problem is None and result.profile is not None:
        try:
            rows = _rows(place(folder, one) / result.profile, sweep.steps)
        except AnnotError as error:
            problem = str(error)
        else:
            problem = None if rows.height else "no ranges were recorded"
    facts = {"run": one.key, "status": result.status, "problem": problem, "seconds": result.seconds}
    return one.parameters, facts, rows


def _rows(profile: Path, steps: str) -> pl.DataFrame:
    from annot.analyze.sweep import run_rows
    from annot.analyze.work import layer_work
    from annot.correlate import attribute
    from annot.correlate.steps import step_slice
    from annot.read import source

    recorded = source(profile)
    whole = attribute(recorded)
    chosen = step_slice(steps)
    numbers = range(whole.steps.table.height)[chosen]
    measured = attribute(recorded, steps=chosen) if len(numbers) else whole
    return run_rows(measured, layer_work(measured))


def _per_run(table: pl.DataFrame, sweep: Sweep) -> pl.DataFrame:
    from annot.analyze.sweep import per_run

    return per_run(table, sweep.parameters, _chosen(sweep, "batch", _BATCH))


def _chosen(sweep: Sweep, role: str, usual: tuple[str, ...]) -> str | None:
    """The parameter that has a role: as CONFIG says, else the one with a usual name."""
    said = sweep.plots.get(role)
    return said if isinstance(said, str) else next((name for name in usual if sweep.is_number(name)), None)


def _draw(sweep: Sweep, table: pl.DataFrame, runs: pl.DataFrame, folder: Path, against: Path | None) -> list[Path]:
    from annot.errors import AnnotError
    from annot.report.chart import as_svg

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
    """The plots for which there is something to show."""
    from annot.analyze.sweep import against_hidden, backward_ratio, roofline
    from annot.report import plots

    batch, hidden = _chosen(sweep, "batch", _BATCH), _chosen(sweep, "hidden", _HIDDEN)
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
    return _chosen(sweep, "color", _BATCH) or next(iter(sweep.parameters), None)


def _speedup(sweep: Sweep, runs: pl.DataFrame, against: Path) -> Chart:
    import polars as pl

    from annot.analyze.sweep import per_run, speedup
    from annot.errors import AnnotError
    from annot.report.plots import speedup_chart

    path = against / "table.parquet" if against.is_dir() else against
    try:
        theirs = json.loads(pl.read_parquet_metadata(path)["annot"])["parameters"]
        other = per_run(pl.read_parquet(path), theirs)
    except (OSError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise AnnotError(f"{path} is not the table of a sweep: {str(error).splitlines()[0]}") from None
    both = [name for name in sweep.parameters if name in theirs]
    return speedup_chart(speedup(runs, other, both), _color(sweep))


def _print_runs(runs: pl.DataFrame, table: pl.DataFrame) -> None:
    """A line per run: its parameters and how fast it was; then what failed."""
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
        _say(f"{unknown} of {runs.height} runs have layers whose work is not known, and no point under the roof")
    failed = table.filter(table["problem"].is_not_null())["run"].n_unique()
    if failed:
        _say(f"{failed} of {table['run'].n_unique()} runs failed: the column problem says why; --retry runs them again")


def _say(line: str) -> None:
    print(f"annot: {line}", file=sys.stderr, flush=True)
