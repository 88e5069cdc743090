"""Find the commit that made a program slower, and the layer.

annot runs COMMAND in worktrees of its own in .git/annot-bisect. The checkout, the index and the stash stay as they are.
First it compares --good with --bad: is bad slower, in which row, and by how much? Then it runs commits between them,
each in turns with the good commit, until the differences decide whether it is like good or like bad. Commits that do
not run are skipped, with the reason. In the end it compares the first slow commit with its parent.

COMMAND runs in the same folder of the worktree as that in which annot bisect was started. An executable that git does
not track, such as .venv/bin/python, is that of the checkout. A worktree has no other files that git does not track, and
no submodules: --setup is a shell command that adds them, or builds the commit. It runs in the worktree after each
checkout. ANNOT_BISECT_TOP is the top folder of the checkout. A package that is installed in editable mode is imported
from the checkout, the same code for all commits: install it with --setup, or add its folder to PYTHONPATH.

After Ctrl-C or a kill, the same command continues with the runs that are measured. The exit status is 5 if no commit is
found: bad is not slower, skipped commits remain, or the change is too small for the runs.

examples:
  annot bisect --good v1.2 --bad HEAD -- python train.py --steps 50
  annot bisect --good HEAD~30 --bad HEAD --layers --setup 'pip install -q .' -- python bench.py
  annot bisect --good v1.2 --bad main --setup 'git submodule update --init' -- python train.py
  annot bisect --good v1.2 --bad main --setup 'ln -s "$ANNOT_BISECT_TOP/data" data' -- python train.py
  annot bisect --good v1.2 --bad main --by-layer encoder.layers.3 --repeat 8 -- python train.py
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli.output import add_collector_argument, add_command_argument, command_of, number_type, say, whole_number

if TYPE_CHECKING:
    from annot.bisect.pairs import Program
    from annot.bisect.search import Answer, Question

_UNDECIDED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot bisect`."""
    parser.usage = "annot bisect --good REV --bad REV [options] -- COMMAND ..."
    parser.add_argument("--good", required=True, metavar="REV", help="a fast commit, an ancestor of the bad one")
    parser.add_argument("--bad", default="HEAD", metavar="REV", help="a slow commit; default: HEAD")
    parser.add_argument("--setup", default="", metavar="SHELL", help="shell command that prepares a worktree")
    parser.add_argument(
        "--first-parent", action="store_true", help="follow only first parents: a merged branch counts as its merge"
    )
    add_collector_argument(parser, "as for annot run; default: auto")
    parser.add_argument("--layers", action="store_true", help="emit ranges of every model, as annot run --layers")
    parser.add_argument("--by-layer", metavar="PATH", help="the layer to look at; default: that which lost most time")
    parser.add_argument(
        "--fail-above",
        type=number_type("1 or more", lambda factor: factor >= 1),
        default=1.0,
        metavar="F",
        help="a row is slower if it takes more than F times as long; default: 1, any significant slowdown",
    )
    parser.add_argument(
        "--level",
        type=number_type("between 0 and 0.5", lambda level: 0 < level < 0.5),
        default=0.01,
        metavar="P",
        help="probability that the answer is wrong; default: 0.01",
    )
    parser.add_argument(
        "--repeat",
        type=whole_number(2),
        default=5,
        metavar="N",
        help="runs of good and of bad that are compared first, twice as many if these do not decide; default: 5",
    )
    parser.add_argument(
        "--most",
        type=whole_number(2),
        default=20,
        metavar="N",
        help="most runs of a commit, after which it is skipped as unclear; default: 20",
    )
    parser.add_argument("--restart", action="store_true", help="do not continue: measure all runs again")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format; default: text")
    add_command_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Find the first slow commit, print it, and return the exit status."""
    from annot.bisect.pairs import Program, open_pairs
    from annot.bisect.report import report_of
    from annot.bisect.repository import Repository, command_for_worktrees, plain_environment
    from annot.bisect.search import Question, Search
    from annot.collect.logged_run import terminable
    from annot.util.json_files import as_json

    command = command_of(args, "annot bisect --good REV --bad REV -- python train.py")
    for name in os.environ.keys() - plain_environment().keys():  # of git; the commands of the user may run git, too
        del os.environ[name]
    here = Path.cwd()
    repository = Repository(here)
    program = Program(
        command=command_for_worktrees(repository, here, command),
        setup=args.setup,
        collector=args.collector,
        layers=args.layers,
    )
    question = Question(
        good=repository.commit(args.good),
        bad=repository.commit(args.bad),
        layer=args.by_layer,
        above=args.fail_above,
        error=args.level,
        pairs=args.repeat,
        most=args.most,
        first_parent=args.first_parent,
    )
    folder = repository.git_folder / "annot-bisect" / _key(question, program, repository.prefix)
    try:
        with terminable(), open_pairs(folder, repository, program, restart=args.restart, say=say) as pairs:
            if kept := pairs.kept():
                say(f"continuing with {kept} runs in {folder}; --restart measures them again")
            answer = Search(repository, pairs, question, say).run()
            runs = pairs.kept()
    except (KeyboardInterrupt, SystemExit):
        say("interrupted. The same command continues")
        raise
    if args.format == "json":
        sys.stdout.buffer.write(as_json(report_of(answer, question, runs)))
    else:
        print("\n".join(_as_text(answer, question, runs)))
    return 0 if answer.first_slow is not None else _UNDECIDED


def _key(question: Question, program: Program, prefix: Path) -> str:
    """Return the name of the folder for the runs of a bisection: they depend on these arguments."""
    arguments = [question.good.hash, question.bad.hash, str(prefix), *dataclasses.astuple(program)]
    return hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]


def _as_text(answer: Answer, question: Question, runs: int) -> list[str]:
    from annot.bisect.report import causes_of_change
    from annot.report.units import printable

    if answer.target is None:
        count, what = len(answer.before.pairs), "" if question.layer is None else f"in {question.layer} "
        good, bad = question.good.short, question.bad.short
        return [
            f"{bad} is not slower {what}than {good}: {count} pairs of runs do not separate them",
            f"a smaller change needs more runs: --repeat {2 * count}; --help says how COMMAND runs code of the commits",
        ]
    if len(answer.suspects) > 1:
        skipped = {trial.commit.hash: trial.reason for trial in answer.trials if trial.reason}
        reasons = (f"  {commit.title}: {skipped.get(commit.hash, 'slow')}" for commit in answer.suspects)
        return ["the first slow commit is one of these, because commits were skipped:", *reasons]
    commit, parent, change = answer.suspects[0], answer.parent, answer.change
    assert parent is not None
    assert change is not None
    facts = printable(commit.subject), f"{printable(commit.author)}, {commit.date[:10]}"
    lines = [f"first slow commit: {commit.hash}", *(f"  {fact}" for fact in facts)]
    if answer.change_target is None:
        lines.append(f"  not confirmed: {len(change.pairs)} pairs of runs with {parent.short} do not separate them")
    else:
        lines.append(f"  {answer.change_target.sentence(question.error)} as in {parent.short}")
        lines += [f"  cause, {cause.kind}: {cause.text}" for cause in causes_of_change(answer)]
    return [*lines, f"{runs} runs; probability of a wrong answer: at most {question.error:.2g}"]
