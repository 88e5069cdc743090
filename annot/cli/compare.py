"""Compare two profiles layer by layer: speedup with its uncertainty, and changed kernels.

A is the baseline. B is the profile to compare, from another device, version or setting. Times are per step if both
profiles have steps. Warm-up steps are excluded. A speedup above 1 means that B is faster. ± is the 95% confidence
interval. Rows that became slower come first. The table shows each change once: it omits layers whose change the rows
inside them explain. Files contain these layers with `explained` = true.
Repeated layers are one row, as in `annot report`; files have a row for each. Layers that torch.compile fused in one of
the runs are compared at the layer around them. annot prints the five rows that change most. --all prints all; --by,
--expand, --top and --min-share print a table, too.

--fail-above F is for CI. The exit status is 3 if a step, or a row with at least --least-share of the time, takes
significantly more than F times as long in B. It is also 3 if new rows take more than F times as long as removed rows.

Runs that differ in device, layers, shapes, dtypes or profiler are compared with a note. With --fail-above, the exit
status is then 4. With --force, such runs are compared anyway.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from annot.cli import output
from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot.analyze.comparison.compare import Comparison
    from annot.analyze.comparison.runs import Folds
    from annot.attribution.attribute import Attribution

_EXAMPLES = """\
examples:
  annot compare before.sqlite after.sqlite
  annot compare eager.sqlite compiled.sqlite --by kind
  annot compare before.sqlite after.sqlite --format html -o comparison.html
  annot compare main.sqlite branch.sqlite --fail-above 1.05 --format json -o comparison.json
"""
_STATUS = {"same": 0, "slower": 3, "incomparable": 4, "undecided": 5}
_TABLE_OPTIONS = ("expand", "top", "min_share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot compare`."""
    parser.epilog = _EXAMPLES
    parser.add_argument("a", metavar="A", help="profile of the baseline")
    parser.add_argument("b", metavar="B", help="profile to compare with the baseline")
    parser.add_argument(
        "--by",
        metavar="ROW",
        choices=("layer", "module", "phase", "kind", "kernel"),
        help="rows of the table: layer, module (class), phase, kind (of kernel) or kernel; default: layer",
    )
    parser.add_argument("--all", action="store_true", help="print all rows that changed, and the notes")
    output.add_row_arguments(
        parser, last="B", top="whose time changes most, the largest change first", total="the time of the longer run"
    )
    output.add_step_arguments(parser)
    output.add_output_arguments(parser, "html")
    ci = parser.add_argument_group("in CI")
    ci.add_argument(
        "--fail-above",
        type=output.number_type("above 0", lambda factor: factor > 0),
        metavar="F",
        help="exit with 3 if a step or a row takes more than F times as long in B, or new rows take more than F times "
        "as long as removed rows; exit with 4 if A and B are not comparable, except with --force",
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
    from annot.analyze.comparison.compare import compare
    from annot.analyze.comparison.digest import digest
    from annot.cli.progress import progress
    from annot.report.table import Options, process
    from annot.report.terminal.compare import comparison_table, print_comparison, print_comparison_answer

    output.settle_format(args)
    is_answer = not args.all and not output.given(args, "by", *_TABLE_OPTIONS)
    args.by = args.by or "layer"
    problem = output.row_problem(args, "rows", *_TABLE_OPTIONS)
    if problem is None and args.expand is not None and args.by != "layer":
        problem = f"--expand cannot be combined with --by {args.by}: it shows layers"
    if problem is not None:
        raise output.UsageError(problem)
    output.check_output(args, args.a, args.b)
    with progress():
        sides = [output.opened(path, args).attribution for path in (args.a, args.b)]
    try:
        folds = _folds(sides, args.expand or ()) if args.by == "layer" and args.format == "table" else None
        comparison = compare([digest(sides[0])], [digest(sides[1])], by=args.by, folds=folds)
    except ValueError as error:
        raise AnnotError(str(error)) from None
    if args.format == "html":
        from annot.report.page.data import comparison_data
        from annot.report.page.render import as_page

        data = comparison_data(sides[0], sides[1], (args.a, args.b), args.by)
        output.show_page(as_page(data, f"{args.a} → {args.b} · annot"), args)
    else:
        options = Options(min_share=(args.min_share or 0) / 100, top=args.top)
        report = process(comparison_table(comparison, args.a, args.b), options)
        table = partial(print_comparison, report, full_names=args.full_names)
        answer = partial(print_comparison_answer, report, more="--all; page: --format html -o page.html")
        output.deliver(report, answer if is_answer else table, args)
    return 0 if args.fail_above is None else _gate(comparison, args)


def _gate(comparison: Comparison, args: argparse.Namespace) -> int:
    """Return the exit status of --fail-above, and say why it is not 0."""
    from annot.analyze.comparison.gate import decide

    decision = decide(comparison, above=args.fail_above, least_share=args.least_share, force=args.force)
    if decision.status == "incomparable":
        output.say(f"{args.a} and {args.b} are not comparable:")
    elif decision.status != "same":
        output.say(f"B is {decision.status if decision.status == 'slower' else 'possibly slower'}:")
    for sentence in decision.sentences:
        output.say(f"  {sentence}")
    return _STATUS[decision.status]


def _folds(sides: Sequence[Attribution], expand: Sequence[str]) -> tuple[Folds, Folds]:
    """Return the folds of each profile; a path of `expand` is in one of them at least."""
    from annot.report.tree import folds_of

    folds: list[Folds] = []
    wrong: list[ValueError] = []
    for side in sides:
        try:
            folds.append(folds_of(side, expand))
        except ValueError as error:
            wrong.append(error)
            folds.append(folds_of(side))
    if len(wrong) == len(sides):
        raise wrong[0]
    return folds[0], folds[1]
