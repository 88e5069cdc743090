"""Compare two profiles, or several of each side, layer by layer: speedup with its uncertainty, and changed kernels.

A is the baseline. B is the side to compare, from another device, version or setting. Times are per step if all
profiles have steps. Warm-up steps are excluded. A speedup above 1 means that B is faster. ± is the confidence interval.
Rows that became slower come first. The table shows each change once: it omits layers whose change the rows inside them
explain. Files contain these layers with `explained` = true.
Repeated layers are one row, as in `annot report`; files have a row for each. Layers that torch.compile fused in one of
the runs are compared at the layer around them. annot prints the five rows that change most. --all prints all; --by,
--expand, --top and --min-share print a table, too.

Two runs of the same code differ. Several runs of each side show by how much: --runs compares recorded runs, --repeat
runs two commands in turns, and --baseline compares with the runs of annot baseline save.

--fail-above F is for CI. The exit status is 3 if a step takes significantly more than F times as long in B, or a row
with at least --least-share of the time does so relative to the other rows. It is also 3 if new rows take more than F
times as long as removed rows. It is 5 if a time is longer and more runs are needed to decide.

Runs that differ in device, layers, shapes, dtypes or profiler are compared with a note. With --fail-above, the exit
status is then 4. With --force, such runs are compared anyway.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Final

from annot.cli import output
from annot.cli.sides import Side, add_side_arguments, check_sides, profiles_of, read_sides
from annot.errors import AnnotError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from annot.analyze.comparison.causes import Cause
    from annot.analyze.comparison.compare import Comparison
    from annot.analyze.comparison.gate import Decision
    from annot.report.terminal.compare import ComparisonTable

_EXAMPLES = """\
examples:
  annot compare before.sqlite after.sqlite
  annot compare eager.sqlite compiled.sqlite --by kind
  annot compare before.sqlite after.sqlite --format html -o comparison.html
  annot compare --runs main1.sqlite main2.sqlite main3.sqlite -- new1.sqlite new2.sqlite new3.sqlite
  annot compare --repeat 5 --layers -- python train.py -- python train.py --compile
  annot compare --baseline main run.sqlite --fail-above 1.05 --format json -o comparison.json
"""
_STATUS: Final = {"same": 0, "slower": 3, "incomparable": 4, "undecided": 5}
_VERDICTS: Final = {
    "slower": "B is slower:",
    "undecided": "B is possibly slower:",
    "incomparable": "A and B are not comparable:",
}
_CAUSES: Final = 3
"""Causes in the message of the gate."""
_TABLE_OPTIONS = ("expand", "top", "min_share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot compare`."""
    parser.epilog = _EXAMPLES
    add_side_arguments(parser)
    parser.add_argument(
        "--by",
        metavar="ROW",
        choices=("layer", "module", "phase", "kind", "kernel"),
        help="rows of the table: layer, module (class), phase, kind (of kernel) or kernel; default: layer",
    )
    parser.add_argument("--all", action="store_true", help="print all rows that changed, and the notes")
    output.add_row_arguments(
        parser, last="RUN", top="whose time changes most, the largest change first", total="the time of the longer run"
    )
    output.add_step_arguments(parser)
    output.add_output_arguments(parser, "html", "markdown", "junit")
    ci = parser.add_argument_group("in CI")
    ci.add_argument(
        "--fail-above",
        type=output.number_type("above 0", lambda factor: factor > 0),
        metavar="F",
        help="exit with 3 if a step or a row takes more than F times as long in B, or new rows take more than F times "
        "as long as removed rows; with 4 if A and B are not comparable, except with --force; with 5 if more runs are "
        "needed to decide",
    )
    ci.add_argument(
        "--level",
        type=output.number_type("between 0 and 1", lambda level: 0 < level < 1),
        default=0.01,
        metavar="P",
        help="probability that equal runs are called slower, and error level of the intervals; default: 0.01",
    )
    ci.add_argument(
        "--least-share",
        type=output.number_type("above 0", lambda share: -1 < share <= 1),
        default=0.01,
        metavar="S",
        help="ignore rows below this share of the time; default: 0.01",
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the comparison and return the exit status."""
    from annot.analyze.advice.facts import LEAST_CHANGE
    from annot.analyze.comparison.causes import causes_of
    from annot.analyze.comparison.compare import compare
    from annot.analyze.comparison.gate import decide
    from annot.cli.progress import progress
    from annot.report.terminal.compare import comparison_table

    output.settle_format(args)
    is_answer = not args.all and not output.given(args, "by", *_TABLE_OPTIONS)
    args.by = args.by or "layer"
    _check(args)
    with progress():
        if args.format == "html":
            a, b = _write_page(args)
        else:
            a, b = read_sides(args, fold=args.by == "layer" and args.format in ("table", "markdown"))
    if a.problem and b.problem:
        raise AnnotError(b.problem)
    try:
        folds = (a.folds, b.folds) if a.folds or b.folds else None
        comparison = compare(a.runs, b.runs, by=args.by, folds=folds, level=args.level)
    except ValueError as error:
        raise AnnotError(str(error)) from None
    above = 1 + LEAST_CHANGE if args.fail_above is None else args.fail_above
    decision = decide(comparison, above=above, level=args.level, least_share=args.least_share, force=args.force)
    causes = causes_of(comparison, decision, a.runs, b.runs)
    if args.format in ("markdown", "junit"):
        _write_for_ci(comparison_table(comparison, a.name, b.name, causes), decision, args)
    elif args.format != "html":
        _deliver(comparison, a, b, args, causes, is_answer=is_answer)
    return 0 if args.fail_above is None else _status(decision, causes)


def _check(args: argparse.Namespace) -> None:
    """Raise `UsageError` or `AnnotError` for arguments that cannot be combined."""
    check_sides(args)
    problem = output.row_problem(args, "rows", *_TABLE_OPTIONS)
    if problem is None and args.expand is not None and args.by != "layer":
        problem = f"--expand cannot be combined with --by {args.by}: it shows layers"
    several = output.given(args, "runs", "repeat", "baseline")
    if problem is None and args.format == "html" and several:
        problem = f"--format html shows two profiles, A and B: it cannot be combined with {several}"
    if problem is None and args.format == "junit" and args.fail_above is None:
        problem = "--format junit has the results of a gate: it needs --fail-above"
    if problem is not None:
        raise output.UsageError(problem)
    output.check_output(args, *profiles_of(args))


def _deliver(
    comparison: Comparison, a: Side, b: Side, args: argparse.Namespace, causes: Sequence[Cause], *, is_answer: bool
) -> None:
    from annot.report.table import Options, process
    from annot.report.terminal.compare import comparison_table, print_comparison, print_comparison_answer

    options = Options(min_share=(args.min_share or 0) / 100, top=args.top)
    report = process(comparison_table(comparison, a.name, b.name, causes), options)
    table = partial(print_comparison, report, full_names=args.full_names)
    page = "; page: --format html -o page.html" if len(a.sources) == len(b.sources) == 1 else ""
    answer = partial(print_comparison_answer, report, more=f"--all{page}")
    output.deliver(report, answer if is_answer else table, args)


def _write_for_ci(table: ComparisonTable, decision: Decision, args: argparse.Namespace) -> None:
    """Write the comparison for a pull request or a CI server. Without --fail-above, Markdown has no verdict."""
    from annot.report.export.junit import as_junit
    from annot.report.export.markdown import markdown

    if args.format == "junit":
        output.write([as_junit(table, decision, least_share=args.least_share)], args)
        return
    text = markdown(
        table,
        max_chars=args.max_chars,
        more=output.whole_command(args),
        full_names=args.full_names,
        decision=None if args.fail_above is None else decision,
    )
    output.write([text.encode()], args)


def _write_page(args: argparse.Namespace) -> tuple[Side, Side]:
    """Write the page of two profiles, and return them."""
    from annot.analyze.comparison.digest import digest
    from annot.report.page.data import comparison_data
    from annot.report.page.render import as_page

    names = profiles_of(args)
    profiles = [output.opened(path, args).attribution for path in names]
    try:
        data = comparison_data(profiles[0], profiles[1], (names[0], names[1]), args.by)
    except ValueError as error:
        raise AnnotError(str(error)) from None
    output.show_page(as_page(data, f"{names[0]} → {names[1]} · annot"), args)
    a, b = (Side(name=name, sources=[name], runs=[digest(each)]) for name, each in zip(names, profiles, strict=True))
    return a, b


def _status(decision: Decision, causes: Sequence[Cause]) -> int:
    """Return the exit status of --fail-above, and say why it is not 0."""
    if decision.status != "same":
        output.say(_VERDICTS[decision.status])
    for sentence in decision.sentences:
        output.say(f"  {sentence}")
    for cause in causes[:_CAUSES]:
        output.say(f"  Cause: {cause.text}")
    return _STATUS[decision.status]
