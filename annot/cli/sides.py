"""The two sides of a comparison: profiles, several runs, commands to run in turns, or a baseline and runs."""

from __future__ import annotations

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from annot.cli import output
from annot.errors import AnnotError, require_linux, writing

if TYPE_CHECKING:
    from annot.analyze.comparison.digest import Digest
    from annot.analyze.comparison.runs import Folds

USAGE: Final = """\
annot compare A B [options]
       annot compare --runs A1 A2 ... [options] -- B1 B2 ...
       annot compare --repeat N [options] -- COMMAND_A ... -- COMMAND_B ...
       annot compare --baseline NAME RUN ... [options]"""
_FORMS: Final = {"runs": "--runs", "repeat": "--repeat", "baseline": "--baseline"}
_OPTIONS: Final = {"layers": "repeat", "collector": "repeat", "keep": "repeat", "store": "baseline"}
"""Options that belong to a form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A side of a comparison.

    Args:
        name: words for messages, such as the path of the profile.
        sources: paths of the profiles; empty: a baseline.
        runs: the runs.
        folds: path of the fold of each repeated layer, by layer and class; empty: not needed.
        problem: why a path of --expand is in no profile of the side; empty: it is in one.
    """

    name: str
    sources: Sequence[str]
    runs: Sequence[Digest]
    folds: Folds = field(default_factory=dict)
    problem: str = ""


def add_side_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select the sides; `words_after` are those behind ``--``."""
    from annot.cli.baseline import add_store_argument

    parser.usage = USAGE
    parser.set_defaults(words_after=None)
    parser.add_argument("profiles", nargs="*", metavar="RUN", help="profiles: A, the baseline, and B; or several runs")
    several = parser.add_argument_group("several runs")
    several.add_argument("--runs", action="store_true", help="compare the runs before -- with those behind it")
    several.add_argument(
        "--repeat",
        type=output.whole_number(1, 1000),
        metavar="N",
        help="run two commands in turns, N times each: A B, B A, ...; their output goes to log files",
    )
    several.add_argument("--baseline", metavar="NAME", help="compare runs with those of a baseline of annot baseline")
    add_store_argument(several)
    output.add_collector_argument(several, "for --repeat, as for annot run; default: auto", default=None)
    several.add_argument("--layers", action="store_true", help="for --repeat, as for annot run")
    several.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the profiles and logs of --repeat in a new folder"
    )


def check_sides(args: argparse.Namespace) -> None:
    """Raise `UsageError` for a wrong combination of arguments, which names the expected ones."""
    forms = [name for name in _FORMS if getattr(args, name)]
    if len(forms) > 1:
        raise output.UsageError(f"{_FORMS[forms[0]]} cannot be combined with {_FORMS[forms[1]]}")
    form = forms[0] if forms else ""
    for option, needed in _OPTIONS.items():
        if getattr(args, option) and form != needed:
            raise output.UsageError(f"--{option} needs {_FORMS[needed]}")
    before, behind, commands = len(args.profiles), args.words_after or (), _commands(args)
    options = [word for word in behind if word.startswith("-") and word != "--" and not Path(word).exists()]
    if form != "repeat" and options:
        raise output.UsageError(f"{options[0]} is behind --, where only runs are: options go before --")
    if form == "runs" and not (before and behind):
        raise output.UsageError(
            "--runs expects runs on both sides of --: annot compare --runs A1 A2 -- B1 B2, "
            f"got {before} and {len(behind)}"
        )
    if form == "repeat" and (before or len(commands) != 2 or not all(commands)):
        raise output.UsageError(
            "--repeat expects two commands: annot compare --repeat 5 -- COMMAND_A -- COMMAND_B, "
            f"got {sum(map(bool, commands))}" + (f" and {args.profiles[0]} before them" if before else "")
        )
    if form == "baseline" and not before + len(behind):
        raise output.UsageError("--baseline expects one run or more: annot compare --baseline NAME RUN")
    if not form and before + len(behind) != 2:
        raise output.UsageError(
            f"annot compare expects two profiles, A and B, got {before + len(behind)}; for several runs of each, "
            "use annot compare --runs A1 A2 -- B1 B2"
        )


def profiles_of(args: argparse.Namespace) -> list[str]:
    """Return the paths of all profiles that the user names."""
    return [*args.profiles, *(() if args.repeat else args.words_after or ())]


def read_sides(args: argparse.Namespace, *, fold: bool) -> tuple[Side, Side]:
    """Return both sides; one profile at a time is in memory. `fold` tells whether folds are needed."""
    if args.repeat:
        return _repeated(args, fold)
    if args.baseline is not None:
        return _with_baseline(args, fold)
    paths = profiles_of(args)
    before = len(args.profiles) if args.runs else 1
    return _side(paths[:before], args, fold), _side(paths[before:], args, fold)


def _side(paths: Sequence[str], args: argparse.Namespace, fold: bool, name: str = "") -> Side:
    runs: list[Digest] = []
    folds: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    for path in paths:
        run, of_run, problem = _read(path, args, fold)
        runs.append(run)
        folds |= of_run
        problems += filter(None, [problem])
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    problem = problems[0] if len(problems) == len(paths) else ""
    return Side(name=name or f"{paths[0]}{others}", sources=paths, runs=runs, folds=folds, problem=problem)


def _read(path: str, args: argparse.Namespace, fold: bool) -> tuple[Digest, Folds, str]:
    """Return the run in a profile with its folds, and why it has no path of --expand. The profile is not kept."""
    from annot.analyze.comparison.digest import digest
    from annot.report.tree import folds_of

    attribution = output.opened(path, args).attribution
    run = digest(attribution)
    if not fold:
        return run, {}, ""
    try:
        return run, folds_of(attribution, args.expand or ()), ""
    except ValueError as error:
        return run, folds_of(attribution), str(error)


def _with_baseline(args: argparse.Namespace, fold: bool) -> tuple[Side, Side]:
    from annot.runs.baselines import default_store, read

    try:
        baseline = read(args.baseline, args.store or default_store())
    except ValueError as error:
        raise output.UsageError(str(error)) from None
    b = _side(profiles_of(args), args, fold)
    # A baseline has no tree of lines; comparable runs have the same repeated layers.
    a = Side(name=f"baseline {baseline}", sources=(), runs=baseline.runs, folds=b.folds, problem=b.problem)
    return a, b


def _commands(args: argparse.Namespace) -> list[list[str]]:
    """Return the commands, which ``--`` separates."""
    commands: list[list[str]] = [[]]
    for word in args.words_after or ():
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def _repeated(args: argparse.Namespace, fold: bool) -> tuple[Side, Side]:
    from annot.collect.alternate import Command, alternate
    from annot.collect.logged_run import terminable

    require_linux("annot compare --repeat")
    words = _commands(args)
    commands = [Command(name=name, words=command) for name, command in zip("ab", words, strict=True)]
    with terminable(), _folder(args.keep) as folder:
        runs = alternate(
            commands, args.repeat, folder, collector=args.collector or "auto", layers=args.layers, say=output.say
        )
        paths: dict[str, list[str]] = {"a": [], "b": []}
        for run in sorted(runs, key=lambda run: run.number):
            paths[run.name].append(str(run.profile))
        a, b = (
            _side(paths[command.name], args, fold, f"{shlex.join(command.words)} ({args.repeat} runs)")
            for command in commands
        )
    return a, b


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder for profiles and logs. A temporary folder stays if a command failed: its log is there."""
    from annot.collect.alternate import RunFailedError

    if keep is not None:
        with writing(keep):
            if keep.exists() and any(keep.iterdir()):
                raise AnnotError(f"{keep} is not empty: use the name of a new folder with --keep")
        yield keep
        output.say(f"the profiles are in {keep}")
        return
    folder = Path(tempfile.mkdtemp(prefix="annot-compare-"))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        yield folder
    except RunFailedError:
        raise
    except BaseException:
        remove()
        raise
    remove()
