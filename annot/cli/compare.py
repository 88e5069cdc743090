"""Compare two profiles, layer by layer: speed-up with its uncertainty, and which kernels changed.

A is what to compare with, B what is compared: another device, version or setting. Times are per step where both
profiles have steps, without the warm-up; a speed-up above 1 means that B is faster, and ± is how far it can be off in
95 of 100 such pairs of runs. What became slower stands first. With --fail-above, the exit status is 3 if a step, or
a row of at least --least-share of the time, became slower than that, and surely so, or if rows are new that take more
than that of the time of those that are gone: for use in CI.

Runs that differ in more than their time, as in device, layers, shapes, dtypes or profiler, are compared with that said;
with --fail-above the exit status is then 4, but with --force.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annot.correlate import Attribution

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot compare before.sqlite after.sqlite
  annot compare eager.sqlite compiled.sqlite --by class
  annot compare before.sqlite after.sqlite --format html -o comparison.html
  annot compare main.sqlite branch.sqlite --fail-above 1.05 --format json -o comparison.json
"""
_SLOWER, _INCOMPARABLE = 3, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot compare` accepts."""
    from annot.cli.output import add_output_arguments, add_step_arguments

    parser.epilog = _EXAMPLES
    parser.add_argument("a", metavar="A", help="profile to compare with")
    parser.add_argument("b", metavar="B", help="profile that is compared")
    parser.add_argument(
        "--by", choices=("layer", "module", "phase", "class", "kernel"), default="layer",
        help="what a row stands for: a layer, a module class, a phase, a kind of kernel, a kernel; default: layer",
    )  # fmt: skip
    add_step_arguments(parser)
    add_output_arguments(parser, "html")
    ci = parser.add_argument_group("in CI")
    ci.add_argument(
        "--fail-above",
        type=_factor,
        metavar="F",
        help="exit status 3 if a step or a row takes more than F times as long in B, or new rows more than F times "
        "what is gone; 4 if A and B cannot be compared; --force: compare them all the same",
    )
    ci.add_argument(
        "--least-share", type=_share, default=0.01, metavar="S",
        help="rows below this share of the time do not fail; default: 0.01",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print or write the comparison; return the exit status."""
    from annot.analyze.compare import compare, is_step_slower, regressions
    from annot.cli.output import attributed, check_output, deliver, output_problem, settle_format
    from annot.cli.progress import progress
    from annot.errors import AnnotError
    from annot.report.compare import ComparisonReport, print_comparison

    settle_format(args)
    if problem := output_problem(args):
        print(f"annot: error: {problem}", file=sys.stderr)
        return 2
    check_output(args, args.a, args.b)
    with progress():
        sides = [attributed(path, args) for path in (args.a, args.b)]
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
        print(f"annot: {args.a} and {args.b} cannot be compared:", file=sys.stderr)
        for reason in comparison.comparability.reasons:
            print(f"annot:   {reason.text}", file=sys.stderr)
        return _INCOMPARABLE
    slower = regressions(comparison, args.fail_above, least_share=args.least_share).height
    if slower:
        rows = "1 row takes" if slower == 1 else f"{slower:,} rows take"
        print(f"annot: {rows} more than {args.fail_above:g} times as long in {args.b}, or only there", file=sys.stderr)
    step = is_step_slower(comparison, args.fail_above)
    if step:
        print(f"annot: a step takes more than {args.fail_above:g} times as long in {args.b}", file=sys.stderr)
    return _SLOWER if slower or step else 0


def _write_page(a: Attribution, b: Attribution, args: argparse.Namespace) -> None:
    from annot.cli.output import write
    from annot.report.page import as_page
    from annot.report.page.data import comparison_data

    data = comparison_data(a, b, (args.a, args.b), args.by)
    write(args.output, [as_page(data, f"{args.a} → {args.b} · annot")], force=args.force)


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
