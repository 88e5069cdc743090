"""Write every output of annot for all profiles at hand into a folder of plain files, and compare two such folders.

    python tests/support/outputs.py write BEFORE
    python tests/support/outputs.py write AFTER
    python tests/support/outputs.py compare BEFORE AFTER

The profiles are those of `all_profiles`. The outputs are those of the command line and of `annot.open`. Rows, columns
and formats come from the program itself, so that a new view is included. A file holds standard output, then standard
error, and the exit status if there is an error.

``compare`` exits with 1 at any difference. Integers and texts must be equal, floats to 1e-9. With ``--words`` only the
numbers of each line must be equal, so that a heading can change.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, TypeAlias

import polars as pl
from all_profiles import write_profiles
from compared_outputs import compare
from output_texts import CRASH, as_lines, attempt, frame_text, run

import annot
from annot.cli.main import COMMANDS, make_parser

EXAMPLE: Final = "made/ranks/run_rank0.sqlite"
"""Profile with layers, kernels and steps, which shows the views and formats that exist."""
RANKS_OF: Final = "hta_resnet_ddp_a100_fwdbwd_gua.json"
"""Name of a profile with collectives, whose versions here and there stand for two ranks."""
SHORT: Final = ("", "--all", "--by advice --format json")
REPORTS: Final = (
    "", "--all", "--total --all", "--by layer", "--full-names --by kernel --top 3", "--steps 1:3", "--step-kind decode",
    "--domain annot", "--by-process --workers 1", "--format csv --per-step",
)  # fmt: skip
RANKS: Final = ("", "--all", "--top 3", "--min-share 3", "--rank 1 --all", "--columns work", "--columns communication")
COMPARISONS: Final = ("", "--all", "--expand --top 3", "--fail-above 1.05", "--format html")
ROOFLINES: Final = ("", "--format json --peak-flops 19.5T --peak-bandwidth 1.55T")
"""Options beside rows and formats: of profiles in short, profiles, ranks, pairs, and rooflines."""
TREES: Final[tuple[dict[str, Any], ...]] = (
    {"depth": 0}, {"depth": 2}, {"top": 5}, {"min_share": 0.03}, {"sort": "time"}, {"expand": ""},
    {"columns": "work", "top": 5}, {"columns": "roofline", "expand": "", "min_share": 0.03},
)  # fmt: skip
"""Views of layers with other options."""

Outputs: TypeAlias = Iterator[tuple[str, str]]
"""Names and texts of outputs."""


@cache
def choices(command: str, option: str) -> tuple[str, ...]:
    """Return the values of an option of a command; empty: the command has no such option."""
    parser = make_parser(command)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    action = commands.choices[command]._option_string_actions.get(option)
    return tuple(action.choices or ()) if action else ()


@cache
def row_names() -> tuple[str, ...]:
    """Return the values of ``--by`` of a report, from the message for a wrong value."""
    message = re.search(r"must be one of (.*), got", run("report", EXAMPLE, "--by", "?"))
    assert message, "the command line does not list the rows"
    return tuple(message[1].split(", "))


@cache
def views() -> tuple[dict[str, Any], ...]:
    """Return the arguments of all views."""
    wanted: list[dict[str, Any]] = [{"by": by, "each": True} for by in row_names()]
    wanted += [{"by": by, "columns": name} for by, name in product(row_names(), choices("report", "--columns"))]
    profile = annot.open(EXAMPLE)
    texts = [(view, str(attempt(partial(profile.view, **view)))) for view in wanted]
    times = {view["by"]: text for view, text in texts if view.get("columns") == "time"}
    repeated = [view for view, text in texts if view.get("columns") == "all" and text == times[view["by"]]]
    return tuple(view for view, text in texts if view not in repeated and not text.startswith("ValueError"))


def commands(command: str, paths: Sequence[str], options: Iterable[str]) -> Outputs:
    """Yield the outputs of a command with each of some options."""
    for words in options:
        yield f"{command} {words}", run(command, *paths, *words.split())


def in_python(opened: Any) -> Outputs:
    """Yield the frames and texts of a profile or ranks in Python, each in a file."""
    for name in dir(opened):
        value = None if name.startswith("_") else attempt(partial(getattr, opened, name))
        if isinstance(value, pl.DataFrame):
            yield f"open {name}", frame_text(value)
        elif isinstance(value, str | dict | list):
            yield f"open {name}", as_lines(value)
    yield "open", attempt(lambda: repr(opened))
    yield "open html", attempt(lambda: opened._repr_html_().replace(">", ">\n"))


def profile_outputs(path: str) -> Outputs:
    """Yield the outputs of a profile. A profile that annot refuses has one."""
    if "exit status 1" in (first := run("report", path)):
        yield "report", first
        return
    yield "report --all at 80", run("report", path, "--all", width=80)
    tables = [" ".join(f"--{name} {value}".removesuffix(" True") for name, value in view.items()) for view in views()]
    formats = [f"--format {form}" for form in choices("report", "--format") if form != "table"]
    nsight = [f"--rule nsight --report {report} --format csv" for report in choices("report", "--report")]
    yield from commands("report", [path], [*REPORTS, *tables, *formats, *nsight])
    rooflines = product(choices("roofline", "--by"), ROOFLINES)
    yield from commands("roofline", [path], [f"--by {by} {options}" for by, options in rooflines])
    yield from commands("compare", [path, path], ["--fail-above 1.05", "--by kernel --format json"])
    profile = annot.open(path)
    for view in (*views(), *TREES):
        name = " ".join(f"{key} {value}" for key, value in view.items())
        yield f"view {name}", str(attempt(partial(profile.view, **view)))
        rows = attempt(partial(profile.view, **view, total=True))
        yield f"rows {name}", rows if isinstance(rows, str) else frame_text(rows.rows)
    yield from in_python(profile)


def short_outputs(path: str) -> Outputs:
    """Yield some outputs of a profile."""
    yield from commands("report", [path], SHORT)


def pair_outputs(before: str, after: str) -> Outputs:
    """Yield the outputs of a comparison. One that annot refuses has one."""
    by_row = [f"--by {by} --format json" for by in choices("compare", "--by")]
    if "exit status 1" in (first := run("compare", before, after)):
        yield "compare", first
        return
    yield from commands("compare", [before, after], [*COMPARISONS, *by_row])


def rank_outputs(*paths: str) -> Outputs:
    """Yield the outputs of the ranks of a run."""
    by_row = [f"--by {by}" for by in row_names()]
    formats = [f"--format {form}" for form in ("json", "csv", "html")]
    yield from commands("report", paths, [f"{options} --workers 1" for options in (*RANKS, *by_row, *formats)])
    yield from in_python(annot.open(paths))


def help_outputs() -> Outputs:
    """Yield the help of each command, and the views that exist."""
    for command in COMMANDS:
        yield f"{command} --help", run(command, "--help")
    yield "views", "".join(f"{view}\n" for view in views())


Task: TypeAlias = tuple[str, Callable[..., Outputs], tuple[str, ...]]
"""Folder of some outputs, the function that yields them, and its profiles."""


def tasks(folder: Path) -> list[Task]:
    """Return the tasks for the profiles of a folder, the largest first; profiles that are in both places count once."""
    full, short = dict[str, str](), list[str]()
    for path in sorted(path for path in folder.rglob("*.*") if path.is_file()):
        place, _, name = str(path.relative_to(folder)).partition("/")
        if name.startswith("planted/") or (name in full and not filecmp.cmp(folder / full[name], path, shallow=False)):
            short.append(f"{place}/{name}")
        full.setdefault(name, f"{place}/{name}")
    whole = [name for name in full.values() if name not in short]
    ranks = [[name for name in whole if name.startswith("made/ranks/")]]
    ranks += [
        [full[name], other] for name in full if name.endswith(RANKS_OF) for other in short if other.endswith(name)
    ]
    pairs = [pair for pair in pairwise(whole) if len({(Path(name).parent, Path(name).suffix) for name in pair}) == 1]
    found: list[Task] = [("help", help_outputs, ())]
    found += [(name, short_outputs, (name,)) for name in short]
    found += [(name, profile_outputs, (name,)) for name in whole if name not in ranks[0][1:]]
    found += [(f"ranks/{paths[0]}", rank_outputs, tuple(paths)) for paths in ranks]
    found += [(f"pairs/{a}-{Path(b).name}", pair_outputs, (a, b)) for a, b in pairs]
    return sorted(found, key=lambda task: -sum((folder / name).stat().st_size for name in task[2]))


def write_outputs(folder: Path, task: Task) -> tuple[str, float, int]:
    """Write the outputs of a task, and return its folder, seconds, and the number of crashes."""
    name, make, paths = task
    start, crashes = time.monotonic(), 0
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    for output, text in make(*paths):
        crashes += CRASH in text
        file = re.sub(r"[^\w.]+", "_", output).strip("_")
        (folder / name / f"{file}.txt").write_text(text, encoding="utf-8")
    return name, time.monotonic() - start, crashes


def write(folder: Path, only: Sequence[str], jobs: int) -> int:
    """Write the outputs of all profiles, and return the exit status: 1 if there are crashes."""
    folder.mkdir(parents=True, exist_ok=True)
    crashed = 0
    with tempfile.TemporaryDirectory() as work:
        write_profiles(Path(work))
        wanted = [task for task in tasks(Path(work)) if not only or any(part in task[0] for part in only)]
        with ProcessPoolExecutor(jobs, get_context("spawn"), start_worker, (work,)) as pool:
            done = [pool.submit(write_outputs, folder, task) for task in wanted]
            for number, future in enumerate(as_completed(done), 1):
                name, seconds, crashes = future.result()
                crashed += crashes
                print(f"{number}/{len(done)} {name}: {seconds:.1f} s{crashes * ', CRASH'}", flush=True)
    return 1 if crashed else 0


def start_worker(work: str) -> None:
    """Set what outputs depend on: the folder of the profiles, no measured peaks, all warnings."""
    os.chdir(work)
    os.environ["XDG_DATA_HOME"] = os.path.join(work, "none")
    warnings.simplefilter("always", RuntimeWarning)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=(), metavar="TEXT", help="only files whose names contain a text")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="number of processes")
    parser.add_argument("--words", action="store_true", help="compare only numbers")
    args = parser.parse_args(argv)
    if len(args.folders) != (expected := 1 if args.action == "write" else 2):
        parser.error(f"{args.action} needs {expected} FOLDER, got {len(args.folders)}")
    return args


if __name__ == "__main__":
    options = parse()
    if options.action == "write":
        sys.exit(write(options.folders[0].absolute(), options.only, options.jobs))
    sys.exit(compare(*options.folders, only=options.only, words=options.words))
