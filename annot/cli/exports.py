"""`annot report --format trace`, `tensorboard` and `nsys-rep`: what other tools show of a profile, beyond a table."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from annot.correlate import Attribution

__all__ = ["FORMATS", "export", "export_problem"]

FORMATS = ("trace", "tensorboard", "nsys-rep")
_OF_TABLES = ("by", "sort", "rank", "by_process", "workers", "dask")


def export_problem(args: argparse.Namespace) -> str | None:
    """Return what is wrong with a combination of options, in one sentence."""
    if args.format not in FORMATS:
        return None
    if args.output is None:
        return f"--format {args.format} needs -o OUT"
    if args.rule != "innermost":
        return f"--rule {args.rule} knows no --format {args.format}"
    if len(args.profiles) > 1:
        return f"--format {args.format} takes one PROFILE, got {len(args.profiles)}"
    extra = [name for name in _OF_TABLES if getattr(args, name) not in (None, False)]
    return f"--format {args.format} knows no --{extra[0].replace('_', '-')}" if extra else None


def export(args: argparse.Namespace) -> None:
    """Write what was asked for.

    Raises:
        AnnotError: the profile cannot be read, or OUT not be written.
    """
    from annot.errors import AnnotError
    from annot.ranks.files import local

    with local(args.profiles[0]) as path:
        report = _report_to_enrich(path, args) if args.format == "nsys-rep" else None
        attribution = _attributed(path, args)
        try:
            if report is not None:
                _write_report(attribution, report, args)
            elif args.format == "trace":
                _write_trace(attribution, args)
            else:
                _write_tensorboard(attribution, args)
        except OSError as error:
            raise AnnotError(f"{args.output} cannot be written: {error.strerror}") from None


def _attributed(path: Path, args: argparse.Namespace) -> Attribution:
    from annot.correlate import attribute
    from annot.errors import AnnotError
    from annot.read import source

    try:
        profile = source(path, calls=True)
        return attribute(profile, domain=args.domain, steps=args.steps, step_range=args.step_range)
    except ValueError as error:
        raise AnnotError(str(error)) from None


def _write_trace(attribution: Attribution, args: argparse.Namespace) -> None:
    from annot.analyze.events import events
    from annot.correlate import summarize
    from annot.report.trace_file import write_trace

    meta = summarize(attribution) | {"source": args.profiles[0]}
    with _created(args.output, force=args.force) as file:
        write_trace(events(attribution), meta, file.write)


def _write_tensorboard(attribution: Attribution, args: argparse.Namespace) -> None:
    from annot.report.tensorboard import FILE, event_file

    content = b"".join(event_file(attribution, args.profiles[0]))  # first: what fails leaves no folder
    args.output.mkdir(parents=True, exist_ok=True)
    with _created(args.output / FILE, force=args.force) as file:
        file.write(content)


def _report_to_enrich(path: Path, args: argparse.Namespace) -> Path:
    from annot.errors import AnnotError
    from annot.report.enriched import report_of_profile

    report = report_of_profile(path)
    if args.output.exists() and any(args.output.samefile(read) for read in (path, report)):
        raise AnnotError(f"{args.output} is what is read; write the copy elsewhere")
    return report


def _write_report(attribution: Attribution, report: Path, args: argparse.Namespace) -> None:
    from annot.report.enriched import enrich

    enrich(attribution, report, args.output)


@contextmanager
def _created(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A new file, compressed if its name says so; what could not be written to its end is removed."""
    with path.open("wb" if force else "xb") as file:
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
        except BaseException:
            if path.is_file():  # and no pipe or device
                path.unlink()
            raise
