"""Files with the measured peaks of a device, which `annot calibrate` writes and reports read.

The folder of these files is ``annot/peaks`` in the user's data folder (XDG Base Directory Specification:
``XDG_DATA_HOME``, else ``~/.local/share``). Its subfolder ``measured`` has the devices of this machine. Files that the
user copies into the folder are those of other machines. A file may have any name; the device in it counts.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from annot.analyze.roofs import Peaks
from annot.errors import AnnotError

__all__ = ["Calibration", "Stored", "calibration_folder", "file_of", "read_calibration", "stored_calibration"]

FORMAT: Final = "annot peaks 1"
_LARGEST: Final = 1 << 16
"""Maximum size of a file in bytes."""

_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_Rate: TypeAlias = Annotated[float, Meta(gt=0, le=1e21)]
_Precision: TypeAlias = Annotated[str, Meta(pattern=r"^(f64|f32|tf32|f16|bf16|f8|f6|f4)( tensor)?$")]
_Rates: TypeAlias = Annotated[dict[_Precision, _Rate], Meta(min_length=1)]


class Calibration(msgspec.Struct, frozen=True):
    """Measured peaks of a device: the contents of a file.

    Args:
        device: name of the GPU, or model of the CPU.
        threads: threads on a CPU; None: a GPU.
        flops: FLOP/s of matrix multiplications by precision, as in `annot.analyze.roofs.Peaks`.
        bandwidth: bytes/s of a copy, read and written.
        attention: FLOP/s of the forward pass of attention, by precision.
        measured: day of the measurement.
        software: versions by name.
        format: name and version of the format.

    Example:
        >>> day = datetime.date(2026, 11, 25)
        >>> calibration = Calibration("AMD EPYC", 2, {"f32": 76e9}, 18e9, {}, day, {"PyTorch": "2.13"})
        >>> calibration.fits("AMD EPYC", 2), calibration.fits("AMD EPYC", 4)
        (True, False)
        >>> calibration.as_peaks("measured here").source
        'measured here on 2026-11-25 with PyTorch 2.13'
    """

    device: _Text
    threads: Annotated[int, Meta(ge=1, le=1 << 20)] | None
    flops: _Rates
    bandwidth: _Rate
    attention: dict[_Precision, _Rate]
    measured: datetime.date
    software: dict[_Text, _Text]
    format: Literal["annot peaks 1"] = FORMAT

    def fits(self, device: str, threads: int | None) -> bool:
        """Return whether these are the peaks of a device with a number of threads (None: any)."""
        same = self.device.strip().casefold() == device.strip().casefold()
        return same and (threads is None or threads == self.threads)

    def as_peaks(self, origin: str) -> Peaks:
        """Return the peaks; `origin` begins their source."""
        torch = self.software.get("PyTorch")
        source = f"{origin} on {self.measured}{f' with PyTorch {torch}' if torch else ''}"
        return Peaks(device_text(self.device, self.threads), self.flops, self.bandwidth, source)

    def as_bytes(self) -> bytes:
        """Return the contents of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


@dataclass(frozen=True, slots=True)
class Stored:
    """Peaks from the folder of files.

    Args:
        peaks: the peaks; None: no file has the device.
        damaged: files that cannot be read, as sentences without a full stop.
    """

    peaks: Peaks | None
    damaged: tuple[str, ...]


def device_text(device: str, threads: int | None) -> str:
    """Return a device in words.

    Example:
        >>> device_text("AMD EPYC", 1), device_text("NVIDIA L4", None)
        ('AMD EPYC, 1 thread', 'NVIDIA L4')
    """
    return device + ("" if threads is None else f", {threads} thread{'s' * (threads != 1)}")


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Return the contents of a file.

    Raises:
        AnnotError: the file cannot be read, or its contents are damaged.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
        return msgspec.json.decode(content[:_LARGEST], type=Calibration)
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnnotError(f"{path} is not a file of annot calibrate, or damaged: {error}") from None


def calibration_folder() -> Path | None:
    """Return the folder of the files; None: the user has no data folder."""
    roots: Any = os.environ.get("XDG_DATA_HOME", ""), os.path.expanduser("~/.local/share")
    root = next(filter(os.path.isabs, roots), None)  # the specification ignores relative paths
    return None if root is None else Path(root, "annot", "peaks")


def file_of(device: str, threads: int | None) -> Path | None:
    """Return the file for a device of this machine; None: the user has no data folder."""
    folder = calibration_folder()
    name = re.sub(r"[^a-z0-9]+", "-", device_text(device, threads).lower()).strip("-")
    return None if folder is None else folder / "measured" / f"{name or 'device'}.json"


def stored_calibration(device: str, threads: int | None) -> Stored:
    """Return the peaks of a device from the folder of files: measured on this machine, else from another machine."""
    damaged: list[str] = []
    for path, origin in _files():
        try:
            calibration = read_calibration(path)
        except AnnotError as error:
            damaged.append(str(error))
            continue
        if calibration.fits(device, threads):
            return Stored(calibration.as_peaks(origin), tuple(damaged))
    return Stored(None, tuple(damaged))


def _files() -> Iterator[tuple[Path, str]]:
    """Yield the files in the folder, and the origin of their peaks in words."""
    folder = calibration_folder()
    for of, origin in ((folder / "measured", "measured here"), (folder, "")) if folder else ():
        for path in sorted(filter(Path.is_file, of.glob("*.json"))):
            yield path, origin or f"from {path}, measured"
