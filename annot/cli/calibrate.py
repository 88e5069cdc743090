"""Measure the peaks of the GPU or CPU of this machine, for the rooflines and the advice of its profiles.

Matrix multiplications by dtype, copies and attention run in PyTorch for a few seconds; the sizes follow from the speed
and the memory of the device. The machine should do nothing else. The peaks are kept in annot/peaks/measured in your
data folder ($XDG_DATA_HOME or ~/.local/share), in a file per device. A CPU has a file per number of threads.

Reports of profiles of this device then use these peaks instead of those of the data sheet, which no program reaches,
and say so. For profiles of another machine, write a file there with -o, and use it with --peaks FILE, or copy it into
the folder annot/peaks.

examples:
  annot calibrate
  annot calibrate --device cpu --threads 4
  annot calibrate -o mi300x.json      # for `annot roofline PROFILE --peaks mi300x.json` elsewhere
"""

from __future__ import annotations

import argparse
import datetime
import errno
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from annot.cli import output
from annot.errors import AnnotError
from annot.util.distribution import version
from annot.util.json_files import write_json

if TYPE_CHECKING:
    from annot.analyze.peaks import Calibration
    from annot.torch.measured_peaks import Measurement

_BUSY = 0.5
"""Load per core from which other programs disturb the measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot calibrate`."""
    parser.add_argument(
        "--device", metavar="DEVICE", help="cpu, cuda (also AMD GPUs) or cuda:N; default: the GPU, else the CPU"
    )
    parser.add_argument(
        "--threads", type=output.whole_number(1, 4096), metavar="N", help="threads of a CPU; default: those of PyTorch"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write this file instead; it is replaced")


def run(args: argparse.Namespace) -> int:
    """Measure the peaks, write the file, print them, and return the exit status."""
    try:
        import torch
    except ImportError:
        raise AnnotError("annot calibrate needs PyTorch, which is not installed") from None
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.threads is not None:
        if device != "cpu":
            raise output.UsageError("--threads needs --device cpu")
        torch.set_num_threads(args.threads)
    path = args.output or _file_of(device)
    with _alone_in(path.resolve().parent, make=args.output is None):
        calibration = _calibration(device)
        write_json(path, calibration)
    _print(calibration, path)
    return 0


def _file_of(device: str) -> Path:
    from annot.analyze.peaks import file_of
    from annot.torch.measured_peaks import device_name

    try:
        path = file_of(*device_name(device))
    except ValueError as error:
        raise AnnotError(str(error)) from None
    if path is None:
        raise AnnotError("the home folder is unknown: use -o FILE")
    return path


@contextmanager
def _alone_in(folder: Path, *, make: bool) -> Iterator[None]:
    """Hold a lock on a folder, so that two measurements do not slow each other down."""
    import fcntl

    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise AnnotError(f"{folder} cannot be written: {error.strerror}: use -o FILE") from None
    try:
        if not os.access(folder, os.W_OK):
            raise AnnotError(f"{folder} cannot be written: {os.strerror(errno.EACCES)}: use -o FILE")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnnotError("another annot calibrate is running: wait until it ends") from None
        except OSError:
            pass  # a network file system without locks
        yield
    finally:
        os.close(descriptor)


def _calibration(device: str) -> Calibration:
    from importlib.metadata import version as version_of

    from annot.analyze.peaks import Calibration
    from annot.torch.measured_peaks import measure_peaks

    output.say(f"measuring {device} for a few seconds")
    if device == "cpu" and (load := os.getloadavg()[0]) > _BUSY * (os.cpu_count() or 1):
        output.say(f"other programs use the CPU (load {load:.1f}), so the peaks may be too low: measure again later")
    try:
        measured: Measurement = measure_peaks(device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise AnnotError(f"the peaks of {device} cannot be measured: {reason}") from None
    software = {"PyTorch": version_of("torch"), "Python": platform.python_version(), "annot": version()}
    rates = (measured.flops, measured.bandwidth, measured.attention)
    return Calibration(measured.device, measured.threads, *rates, datetime.date.today(), software)


def _print(calibration: Calibration, path: Path) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from annot.report.terminal.layout import Hanging
    from annot.report.totals import peaks_text
    from annot.report.units import amount

    attention = ", ".join(f"{name} {amount(flops)}FLOP/s" for name, flops in calibration.attention.items())
    lines: list[RenderableType] = [
        Hanging("Peaks: ", peaks_text(calibration.as_peaks("measured here").as_meta())),
        Hanging("Attention: ", f"{attention}, forward"),
        Text(f"Written to {path}", style="dim"),
    ]
    output.console_for(sys.stdout).print(Group(*lines))
