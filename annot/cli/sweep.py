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

examples:
  annot sweep sweep.toml --dry-run
  annot sweep sweep.toml -o results
  annot sweep sweep.toml -o results --retry
  annot sweep sweep.toml -o results --against previous-results
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli.output import add_collector_argument, console_for, say
from annot.util.whole_files import write_file

if TYPE_CHECKING:
    import polars as pl

    from annot.sweep.grid import Sweep
    from annot.sweep.runs import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot sweep`."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of the sweep")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="output folder; default: the name of CONFIG with the suffix .sweep, in the current folder",
    )
    add_collector_argument(parser, "collector of annot run; default: from CONFIG", default=None)
    parser.add_argument("--retry", action="store_true", help="repeat failed runs")
    parser.add_argument("--dry-run", action="store_true", help="print the commands without running them")
    parser.add_argument(
        "--against", type=Path, metavar="OTHER", help="OUT of another sweep; adds a chart of the speedup over it"
    )


def run(args: argparse.Namespace) -> int:
    """Run the missing runs, then write table and charts. Return 1 if all runs failed."""
    from annot.collect.logged_run import terminable
    from annot.errors import AnnotError
    from annot.report.charts.chart import as_svg
    from annot.sweep.grid import read_sweep
    from annot.sweep.plots import charts
    from annot.sweep.runs import finished, locked
    from annot.sweep.tables import RESERVED, per_run, read_runs, table_of_runs

    sweep = read_sweep(args.config, args.collector)
    if taken := [name for name in sweep.parameters if name in RESERVED]:
        raise AnnotError(
            f"{args.config}: {taken[0]!r} cannot be a parameter name, because the table has a column with this name"
        )
    folder = args.output or Path(f"{args.config.stem}.sweep")
    if args.dry_run:
        for sweep_run in sweep.runs:
            state = "  # finished" if finished(folder, sweep_run) else ""
            print(f"{shlex.join(sweep_run.command)}{state}")
        return 0
    with locked(folder), terminable():
        table = table_of_runs(sweep, folder, _results(sweep, folder, retry=args.retry))
    meta = {"config": str(args.config), "parameters": sweep.parameters, "plots": sweep.plots}
    table.write_parquet(folder / "table.parquet", metadata={"annot": json.dumps(meta)})
    runs = per_run(table, sweep.parameters, sweep.parameter("batch"))
    for name, chart in charts(sweep, table, runs, args.against and read_runs(args.against)).items():
        path = folder / f"{name}.svg"
        write_file(path, [as_svg(chart).encode()], force=True)
        say(f"wrote {path}")
    _print_runs(runs, table)
    say(f"wrote {folder / 'table.parquet'}")
    return 0 if runs.height else 1


def _results(sweep: Sweep, folder: Path, *, retry: bool) -> list[Result]:
    from annot.sweep.runs import finished, perform

    results = []
    for number, sweep_run in enumerate(sweep.runs, 1):
        result = finished(folder, sweep_run)
        if result is None or (retry and result.problem):
            say(f"{number}/{len(sweep.runs)} {sweep_run.name}")
            result = perform(folder, sweep_run, sweep)
            if result.problem:
                say(f"{sweep_run.name}: {result.problem}")
        results.append(result)
    return results


def _print_runs(runs: pl.DataFrame, table: pl.DataFrame) -> None:
    """Print parameters, step time and throughput of each run, then the failures."""
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
    console_for(sys.stdout).print(shown)
    if unknown := runs["flops"].null_count():
        say(f"{unknown} of {runs.height} runs have layers with unknown work and are not in the roofline chart")
    failed = table.filter(table["problem"].is_not_null())["run"].n_unique()
    if failed:
        say(f"{failed} of {table['run'].n_unique()} runs failed: see the column problem; --retry repeats them")
