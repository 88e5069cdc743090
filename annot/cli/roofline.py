"""Print the roofline: layers or kernels relative to the peaks of their device.

Arithmetic intensity is FLOPs per byte moved. Below the ridge point (peak FLOP/s over peak bandwidth) a layer is
memory-bound, above it compute-bound. If the GPU waits for the CPU longer than it runs the layer, the layer is
launch-bound (it waits mostly for launches) or host-bound (for other work of the CPU).

The peaks are those of the device in the profile: measured by `annot calibrate`, else from the device table of Nsight
Systems or the data sheet. --peaks FILE uses the file of `annot calibrate -o` of another machine, --peak-flops and
--peak-bandwidth set them. The output names their source. Kernels need counters of Nsight Compute.

If the profile has steps, the table of layers shows the mean of a step without warm-up. Files contain sums.

examples:
  annot roofline run.sqlite
  annot roofline counters.ncu-rep --by kernel
  annot roofline run.sqlite --peak-flops 19.5T --peak-bandwidth 1.55T
  annot roofline run.json.gz --peaks mi300x.json
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Final

from annot.cli import output

_PREFIXES: Final = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot roofline`."""
    parser.add_argument("profile", metavar="PROFILE", help="profile to read")
    parser.add_argument("--by", choices=("layer", "kernel"), default="layer", help="row of the table; default: layer")
    peaks = parser.add_argument_group("peaks")
    amount = output.number_type("above 0, such as 19.5T", lambda number: 0 < number < math.inf, _amount)
    output.add_peaks_argument(peaks)
    peaks.add_argument("--peak-flops", type=amount, metavar="N", help="peak FLOP/s of all precisions, such as 19.5T")
    peaks.add_argument(
        "--peak-bandwidth", type=amount, metavar="N", help="peak memory bandwidth in bytes/s, such as 2.04T"
    )
    output.add_step_arguments(parser)
    output.add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the roofline and return the exit status."""
    if (args.peak_flops is None) != (args.peak_bandwidth is None):
        raise output.UsageError("--peak-flops and --peak-bandwidth must be used together")
    if args.peaks is not None and args.peak_flops is not None:
        raise output.UsageError("--peak-flops cannot be combined with --peaks")
    output.settle_format(args)
    output.check_output(args, args.profile)
    from annot.analyze.hardware_counters import default_peaks
    from annot.analyze.peaks import given_peaks
    from annot.analyze.roofline import kernel_roofline, layer_roofline
    from annot.report.table import Options, per_step
    from annot.report.terminal.table import print_roofline, roofline_table
    from annot.report.views import find_view

    run, total = output.opened(args.profile, args), args.format != "table"
    attribution = run.attribution_for(find_view("layer"), total=total)
    if args.peak_flops is not None:
        peaks = given_peaks(args.peak_flops, args.peak_bandwidth)
    else:
        peaks = default_peaks(attribution)
    rows = (layer_roofline if args.by == "layer" else kernel_roofline)(attribution, peaks)
    report = roofline_table(args.by, rows, peaks, args.profile)
    if not total and args.by == "layer":
        report = per_step(report, Options(steps=run.steps_in(attribution)))
    output.deliver(report, partial(print_roofline, report, full_names=args.full_names), args)
    return 0


def _amount(text: str) -> float:
    """Parse a number with an optional SI prefix, such as ``19.5T`` or ``2e12``."""
    factor = _PREFIXES.get(text[-1:], 1.0)
    return float(text[:-1] if factor > 1 else text) * factor
