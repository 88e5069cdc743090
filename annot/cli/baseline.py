"""Keep runs as named baselines, for annot compare --baseline NAME RUN.

A baseline is a small Parquet file with what a comparison needs of each run, so that the profiles can be deleted. The
store is a folder or a URL for fsspec, such as s3://bucket/baselines. Several runs of the same code, saved together or
with --append, show how much runs differ without a change; this is the noise floor of the comparison.

examples:
  annot baseline save main run1.sqlite run2.sqlite run3.sqlite
  annot baseline save nightly run.sqlite --append
  annot baseline list --store s3://bucket/baselines
  annot baseline show main --format json
  annot baseline rm main
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from annot.cli import output
from annot.errors import AnnotError

if TYPE_CHECKING:
    import polars as pl

    from annot.report.terminal.records import Records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot baseline`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)

    def added(name: str, summary: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.allow_abbrev = False
        if name != "list":
            action.add_argument("name", metavar="NAME", help="name of the baseline")
        add_store_argument(action)
        return action

    save = added("save", "save runs as a baseline")
    save.add_argument("runs", nargs="+", metavar="RUN", help="profile of a run")
    save.add_argument("--force", action="store_true", help="replace an existing baseline")
    save.add_argument("--append", action="store_true", help="add the runs to an existing baseline")
    output.add_step_arguments(save)
    output.add_output_arguments(added("list", "list the baselines in a store"))
    output.add_output_arguments(added("show", "show the runs of a baseline"))
    added("rm", "remove a baseline")


def add_store_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option for the store of the baselines; None: the default."""
    parser.add_argument(
        "--store",
        metavar="STORE",
        help="folder or URL of the baselines; default: $ANNOT_BASELINES, else .annot/baselines",
    )


def run(args: argparse.Namespace) -> int:
    """Save, list, show or remove baselines."""
    from annot.runs.baselines import default_store, remove

    store = args.store or default_store()
    try:
        if args.action == "save":
            _save(args, store)
        elif args.action == "rm":
            remove(args.name, store)
            output.say(f"removed baseline {args.name} from {store}")
        else:
            _print(args, store)
    except ValueError as error:
        raise output.UsageError(str(error)) from None
    return 0


def _save(args: argparse.Namespace, store: str) -> None:
    from annot.analyze.comparison.comparable import comparability
    from annot.cli.progress import progress
    from annot.runs.baselines import check, list_baselines, read, save

    check(args.name, store, force=args.force, append=args.append)
    with progress():
        runs = [output.digest_of(path, args) for path in args.runs]
    grows = args.append and args.name in list_baselines(store)
    first, *others = [*(read(args.name, store).runs if grows else ()), *runs]
    if others and (reasons := comparability([first], others).reasons):
        raise AnnotError(f"the runs of a baseline must be comparable: {reasons[0].text}")
    saved = save(args.name, runs, store, force=args.force, append=args.append)
    count = "1 run" if saved.height == 1 else f"{saved.height:,} runs"
    output.say(f"baseline {args.name} in {store} has {count}")
    if saved.height < 2:
        output.say("next: save more runs of the same code with --append: they show how much runs differ")
    else:
        output.say(f"next: annot compare --baseline {args.name} RUN --fail-above 1.05")


def _print(args: argparse.Namespace, store: str) -> None:
    from annot.report.terminal.records import print_records
    from annot.runs.baselines import origins

    output.settle_format(args)
    output.check_output(args)
    if args.action == "show":
        records = runs_table(origins(args.name, store), args.name, store)
    else:
        records = baselines_table(_readable(store), store)
    output.deliver(records, partial(print_records, records), args)


def _readable(store: str) -> dict[str, pl.DataFrame]:
    """Return the origins of the runs of each baseline that can be read, with a warning for others."""
    from annot.runs.baselines import list_baselines, origins

    readable = {}
    for name in list_baselines(store):
        try:
            readable[name] = origins(name, store)
        except AnnotError as error:
            output.say(f"warning: {error}")
    return readable


def runs_table(rows: pl.DataFrame, name: str, store: str) -> Records:
    """Return the table of the runs of a baseline, given their origins."""
    from annot.report.columns import Column
    from annot.report.terminal.records import Records

    return Records(
        name="runs",
        rows=rows,
        meta={"baseline": name, "store": store},
        shown=_shown(rows),
        label=Column("date", "Saved", "text"),
        columns=(
            Column("step_ns", "Step", "own ns"),
            Column("step_count", "Steps"),
            Column("code", "Commit", "text"),
            Column("host", "Host", "text", least=100),
            Column("machine", "Machine", "text", least=76),
        ),
        end=Column("source", "Run", "text"),
    )


def baselines_table(runs_by_name: Mapping[str, pl.DataFrame], store: str) -> Records:
    """Return the table of the baselines in a store: the number of runs, and the origin of the latest run."""
    import polars as pl

    from annot.report.columns import Column
    from annot.report.terminal.records import Records
    from annot.runs.baselines import ORIGIN

    rows = pl.DataFrame(schema={"name": pl.String, "runs": pl.Int64, **ORIGIN})
    for name, runs in runs_by_name.items():
        named = runs.tail(1).with_columns(pl.lit(name).alias("name"), pl.lit(runs.height, pl.Int64).alias("runs"))
        rows.extend(named.select(rows.columns))
    return Records(
        name="baselines",
        rows=rows,
        meta={"store": store},
        shown=_shown(rows),
        label=Column("name", "Baseline", "text"),
        columns=(
            Column("runs", "Runs"),
            Column("step_ns", "Step", "own ns"),
            Column("code", "Commit", "text"),
            Column("date", "Saved", "text"),
        ),
        end=Column("machine", "Machine", "text"),
        empty=f"{store} has no baselines. annot baseline save NAME RUN saves one.",
    )


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with short texts: date, code (commit, with + if files were changed) and machine."""
    import polars as pl

    changed = pl.when("dirty").then(pl.lit("+")).otherwise(pl.lit(""))
    return rows.with_columns(
        date=pl.col("date").str.head(16).str.replace("T", " "),
        code=pl.col("commit").str.head(10) + changed,
        machine=pl.coalesce("gpu", "cpu"),
    )
