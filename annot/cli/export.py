"""Export of profiles for other tools: `annot report --format trace`, `tensorboard` and `nsys-rep`."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from annot.attribution import Attribution

__all__ = ["FORMATS", "export", "export_problem"]

FORMATS = ("trace", "tensorboard", "nsys-rep")
_TABLE_OPTIONS = ("by", "sort", "rank", "by_process", "workers", "dask")


def export_problem(args: argparse.Namespace) -> str | None:
    """Return the error message for a wrong combination of options, or None.

    Args:
        args: the parsed command line.
    """
    if args.format not in FORMATS:
        return None
    if args.output is None:
        return f"--format {args.format} needs -o OUT"
    if args.rule != "innermost":
        return f"--rule {args.rule} cannot be combined with --format {args.format}"
    if len(args.profiles) > 1:
        return f"--format {args.format} needs exactly one PROFILE, got {len(args.profiles)}"
    extra = [name for name in _TABLE_OPTIONS if getattr(args, name) not in (None, False)]
    return f"--{extra[0].replace('_', '-')} cannot be combined with --format {args.format}" if extra else None


def export(args: argparse.Namespace) -> None:
    """Write the export to OUT.

    Args:
        args: the parsed command line.

    Raises:
        AnnotError: the profile cannot be read, or OUT cannot be written.
    """
    from annot.cli.output import attributed
    from annot.errors import AnnotError
    from annot.ranks.profile_files import local

    with local(args.profiles[0]) as path:
        report = _report_to_enrich(path, args) if args.format == "nsys-rep" else None
        attribution = attributed(path, args, calls=True)
        try:
            if report is not None:
                _write_report(attribution, report, args)
            elif args.format == "trace":
                _write_trace(attribution, args)
            else:
                _write_tensorboard(attribution, args)
        except OSError as error:
            raise AnnotError(f"{args.output} cannot be written: {error.strerror}") from None


def _write_trace(attribution: Attribution, args: argparse.Namespace) -> None:
    from annot.analyze.trace_events import events
    from annot.attribution import summarize
    from annot.report.export.chrome_trace import write_trace

    meta = summarize(attribution) | {"source": args.profiles[0]}
    with _created(args.output, force=args.force) as file:
        write_trace(events(attribution), meta, file.write)


def _write_tensorboard(attribution: Attribution, args: argparse.Namespace) -> None:
    from annot.report.export.tensorboard import FILE, event_file

    content = b"".join(event_file(attribution, args.profiles[0]))  # before mkdir, so that an error leaves no folder
    args.output.mkdir(parents=True, exist_ok=True)
    with _created(args.output / FILE, force=args.force) as file:
        file.write(content)


def _report_to_enrich(path: Path, args: argparse.Namespace) -> Path:
    from annot.errors import AnnotError
    from annot.report.export.nsys_report import report_of_profile

    report = report_of_profile(path)
    if args.output.exists() and any(args.output.samefile(read) for read in (path, report)):
        raise AnnotError(f"{args.output} is the input: use another name with -o")
    return report


def _write_report(attribution: Attribution, report: Path, args: argparse.Namespace) -> None:
    from annot.report.export.nsys_report import enrich

    enrich(attribution, report, args.output)


@contextmanager
def _created(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a new file, compressed if it ends in .gz; remove it after an error."""
    with path.open("wb" if force else "xb") as file:
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
        except BaseException:
            if path.is_file():  # not a pipe or device
                path.unlink()
            raise
