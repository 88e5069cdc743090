"""Compare two profiles layer by layer: speedup with its uncertainty, and changed kernels.

A is the baseline. B is the profile to compare, from another device, version or setting. Times are per step if both
profiles have steps. Warm-up steps are left out. A speedup above 1 means that B is faster. ± is the 95% confidence
interval. Rows that became slower come first.

--fail-above F is for CI. The exit status is 3 if a step, or a row with at least --least-share of the time, takes
significantly more than F times as long in B. It is also 3 if new rows take more than F times as long as removed rows.

Runs that differ in device, layers, shapes, dtypes or profiler are compared with a note. With --fail-above, the exit
status is then 4. With --force, such runs are compared anyway.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annot.attribution import Attribution

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot compare before.sqlite after.sqlite
  annot compare eager.sqlite compiled.sqlite --by kind
  annot compare before.sqlite after.sqlite --format html -o comparison.html
  annot compare main.sqlite branch.sqlite --fail-above 1.05 --format json -o comparison.json
"""
_SLOWER, _INCOMPARABLE = 3, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot compare`."""
    from annot.cli.output import add_output_arguments, add_step_arguments

    parser.epilog = _EXAMPLES
    parser.add_argument("a", metavar="A", help="profile of the baseline")
    parser.add_argument("b", metavar="B", help="profile to compare with the baseline")
    parser.add_argument(
        "--by", type=_subject, choices=("layer", "module", "phase", "class", "kernel"),
        default="layer", metavar="ROW",
        help="what a row is: layer, module (class), phase, kind (of kernel) or kernel; default: layer",
    )  # fmt: skip
    add_step_arguments(parser)
    add_output_arguments(parser, "html")
    ci = parser.add_argument_group("in CI")
    ci.add_argument(
        "--fail-above",
        type=_factor,
        metavar="F",
        help="exit with 3 if a step or a row takes more than F times as long in B, or new rows take more than F times "
        "as long as removed rows; exit with 4 if A and B are not comparable, except with --force",
    )
    ci.add_argument(
        "--least-share", type=_share, default=0.01, metavar="S",
        help="ignore rows below this share of the time; default: 0.01",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print or write the comparison and return the exit status."""
    from annot.analyze.compare import compare, is_step_slower, regressions
    from annot.cli.output import check_output, deliver, opened, output_problem, settle_format
    from annot.cli.progress import progress
    from annot.errors import AnnotError
    from annot.report.terminal.compare import ComparisonReport, print_comparison

    settle_format(args)
    if problem := output_problem(args):
        print(f"annot: error: {problem}", file=sys.stderr)
        return 2
    check_output(args, args.a, args.b)
    with progress():
        sides = [opened(path, args).attribution for path in (args.a, args.b)]
    try:
        comparison = compare(*sides, by=args.by)
    except ValueError as error:
        raise AnnotError(str(error)) from None
    if args.format == "html":
        _write_page(sides[0], sides[1], args)
    else:
        report = ComparisonReport(comparison, args.a, args.b)
        deliver(report, lambda console: print_comparison(report, console), args)
    if args.fail_above is None:
        return 0
    if comparison.comparability.reasons and not args.force:
        print(f"annot: {args.a} and {args.b} are not comparable:", file=sys.stderr)
        for reason in comparison.comparability.reasons:
            print(f"annot:   {reason.text}", file=sys.stderr)
        return _INCOMPARABLE
    slower = regressions(comparison, args.fail_above, least_share=args.least_share).height
    if slower:
        rows, new = ("1 row takes", "is new") if slower == 1 else (f"{slower:,} rows take", "are new")
        print(f"annot: {rows} more than {args.fail_above:g} times as long in {args.b}, or {new}", file=sys.stderr)
    step = is_step_slower(comparison, args.fail_above)
    if step:
        print(f"annot: a step takes more than {args.fail_above:g} times as long in {args.b}", file=sys.stderr)
    return _SLOWER if slower or step else 0


def _write_page(a: Attribution, b: Attribution, args: argparse.Namespace) -> None:
    from annot.cli.output import write
    from annot.report.page.data import comparison_data
    from annot.report.page.render import as_page

    data = comparison_data(a, b, (args.a, args.b), args.by)
    write(args.output, [as_page(data, f"{args.a} → {args.b} · annot")], force=args.force)


def _subject(text: str) -> str:
    return "class" if text == "kind" else text


def _factor(text: str) -> float:
    return _number(text, least=0.0, most=float("inf"))


def _share(text: str) -> float:
    return _number(text, least=-1.0, most=1.0)


def _number(text: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least < number <= most:
        raise argparse.ArgumentTypeError(f"must be a number above {max(least, 0):g}, got {text!r}")
    return number
