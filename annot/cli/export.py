"""Export of profiles for other tools: `annot report --format trace`, `tensorboard` and `nsys-rep`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from annot.errors import AnnotError

if TYPE_CHECKING:
    from annot.runs.run import Run

__all__ = ["FORMATS", "export"]

FORMATS = ("trace", "tensorboard", "nsys-rep")


def export(run: Run, args: argparse.Namespace) -> None:
    """Write the export of a profile to OUT."""
    from annot.report.export import files
    from annot.report.export.nsys_report import enrich

    report = _report_to_enrich(run, args) if args.format == "nsys-rep" else None
    attribution = run.attribution_with_calls
    try:
        if report is not None:
            enrich(attribution, report, args.output)
        else:
            write = files.write_trace_file if args.format == "trace" else files.write_tensorboard
            write(attribution, run.path, args.output, force=args.force)
    except OSError as error:
        raise AnnotError(f"{args.output} cannot be written: {error.strerror}") from None


def _report_to_enrich(run: Run, args: argparse.Namespace) -> Path:
    from annot.report.export.nsys_report import report_of_profile

    report = report_of_profile(run.file)
    if args.output.exists() and any(args.output.samefile(read) for read in (run.file, report)):
        raise AnnotError(f"{args.output} is the input: use another name with -o")
    return report
