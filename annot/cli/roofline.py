"""Print the roofline: layers or kernels relative to the peaks of their device.

Arithmetic intensity is FLOPs per byte moved. Below the ridge point (peak FLOP/s over peak bandwidth) a layer is
memory-bound, above it compute-bound. If the GPU waits for the CPU longer than it runs the layer, the layer is
launch-bound (it waits mostly for launches) or host-bound (for other work of the CPU).

The peaks are those of the device in the profile: from the device table of Nsight Systems, or from the data sheet for
torch.profiler. --measure measures the peaks of this machine. --peak-flops and --peak-bandwidth set them. The output
names the source of the peaks. Kernels need counters of Nsight Compute. Without PROFILE, only the peaks are printed.

If the profile has steps, the table of layers shows the mean of a step without warm-up. Files contain sums.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from annot.cli import output
from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot.analyze.roofs import Peaks
    from annot.attribution import Attribution

__all__ = ["add_arguments", "run"]

_EXAMPLES = """\
examples:
  annot roofline run.sqlite
  annot roofline counters.ncu-rep --by kernel
  annot roofline run.sqlite --peak-flops 19.5T --peak-bandwidth 1.55T
  annot roofline cpu.sqlite --measure
  annot roofline --measure
"""
_PREFIXES: Final = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot roofline`."""
    parser.epilog = _EXAMPLES
    parser.add_argument("profile", nargs="?", metavar="PROFILE", help="profile to read")
    parser.add_argument("--by", choices=("layer", "kernel"), default="layer", help="row of the table; default: layer")
    peaks = parser.add_argument_group("peaks")
    amount = output.number_type("above 0, such as 19.5T", lambda number: 0 < number < math.inf, _amount)
    peaks.add_argument("--measure", action="store_true", help="measure the peaks of this machine with PyTorch")
    peaks.add_argument("--peak-flops", type=amount, metavar="N", help="peak FLOP/s of all precisions, such as 19.5T")
    peaks.add_argument(
        "--peak-bandwidth", type=amount, metavar="N", help="peak memory bandwidth in bytes/s, such as 2.04T"
    )
    output.add_step_arguments(parser)
    output.add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the roofline and return the exit status."""
    if problem := _usage_problem(args):
        raise output.UsageError(problem)
    output.settle_format(args)
    output.check_output(args, *filter(None, [args.profile]))
    if args.profile is None:
        _print_peaks(_measured("cuda" if _cuda() else "cpu"))
    else:
        _report(args)
    return 0


def _usage_problem(args: argparse.Namespace) -> str | None:
    if (args.peak_flops is None) != (args.peak_bandwidth is None):
        return "--peak-flops and --peak-bandwidth must be used together"
    if args.measure and args.peak_flops is not None:
        return "--peak-flops cannot be combined with --measure"
    if args.profile is None and not args.measure:
        return "PROFILE or --measure is required"
    if args.profile is None and (args.output is not None or args.format not in (None, "table")):
        return "-o and --format need a PROFILE: peaks alone are only printed"
    return None


def _report(args: argparse.Namespace) -> None:
    from annot.analyze.roofline import kernel_roofline, layer_roofline
    from annot.report.terminal.roofline import print_roofline, roofline_report
    from annot.report.views import find_view

    run, total = output.opened(args.profile, args), args.format != "table"
    attribution = run.attribution_for(find_view("layer"), total=total)
    peaks = _peaks(args, attribution)
    rows = (layer_roofline if args.by == "layer" else kernel_roofline)(attribution, peaks)
    report = roofline_report(args.by, rows, peaks, args.profile)
    if not total and args.by == "layer" and (steps := run.steps_in(attribution)):
        report = report.per_step(steps)
    output.deliver(report, partial(print_roofline, report, peaks, full_names=args.full_names), args)


def _peaks(args: argparse.Namespace, attribution: Attribution) -> Peaks | None:
    from annot.analyze.bottlenecks import default_peaks
    from annot.analyze.roofs import given_peaks

    if args.peak_flops is not None:
        return given_peaks(args.peak_flops, args.peak_bandwidth)
    if args.measure:
        return _measured("cuda" if attribution.nodes["gpu_self_ns"].sum() else "cpu")
    return default_peaks(attribution)


def _measured(device: str) -> Peaks:
    from annot.analyze.roofs import Peaks

    try:
        from annot.torch.measured_peaks import measure_peaks
    except ImportError:
        raise AnnotError(
            "--measure needs PyTorch, which is not installed: use --peak-flops and --peak-bandwidth"
        ) from None
    try:
        return Peaks(*measure_peaks(device))
    except ValueError as error:
        raise AnnotError(
            f"the profile has GPU activity, but the peaks of a GPU cannot be measured here: {error}"
        ) from None


def _cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _print_peaks(peaks: Peaks) -> None:
    from rich.console import Group

    from annot.report.terminal.roofline import peak_lines

    output.console_for(sys.stdout).print(Group(*peak_lines(peaks)))


def _amount(text: str) -> float:
    """Parse a number with an optional SI prefix, such as ``19.5T`` or ``2e12``."""
    factor = _PREFIXES.get(text[-1:], 1.0)
    return float(text[:-1] if factor > 1 else text) * factor
