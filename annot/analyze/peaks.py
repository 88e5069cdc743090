"""Peaks of devices, from data sheets and from files of `annot calibrate`, and names of devices in words.

Rates are dense floating-point operations (two per multiply-add) with 32-bit accumulation. Rates outside Tensor Cores
are twice the results per clock cycle in the table "Throughput of Native Arithmetic Instructions" of the CUDA C++
Programming Guide (12.9) and of the Best Practices Guide (13.4; 12.0 and 12.1 share a column). Rates of Tensor Cores
are those per multiprocessor in NVIDIA's architecture white papers (Volta V1.1, Turing, A100 V1.0, GA102 V2, H100 V1.04,
Ada V2.1, Blackwell RTX V1.1); they equal the data sheet peak divided by multiprocessors and boost clock. Rates of AMD
devices are from the CDNA 3 white paper and the data sheets of the Instinct accelerators.

Publications on newer devices are incomplete; unpublished rates are left out:

    8.7   Orin: 16 multiprocessors of 128 cores and 4 Tensor Cores reach 5.3 TFLOP/s in FP32 and 170 sparse INT8 TOP/s
          at 1.3 GHz (Jetson AGX Orin Series Technical Brief); FP16 is half of INT8, as in all of Ampere.
    10.0  B200: 9 PFLOP/s in FP4, 4.5 in FP6 and FP8 (DGX B200 data sheet).
    10.3  GB300: 15 PFLOP/s in NVFP4 on 160 multiprocessors of 128 cores (NVIDIA's blog "Inside NVIDIA Blackwell
          Ultra"), 5 in FP8 and FP6, 2.5 in FP16, 1.25 in TF32, 0.08 in FP32 (GB300 NVL72 specifications); FP64 is a
          64th of FP32. B300: 4.5 PFLOP/s in FP8 (DGX B300 data sheet), which determines its clock.
    11.0  Thor: 2,070 sparse FP4 TFLOP/s on 20 multiprocessors of 128 cores at 1.57 GHz (Jetson Thor), FP8 is
          half and FP16 a quarter of FP4.
    12.0  FP4 is twice FP8 (RTX 5090: 3,352 sparse TFLOP/s); a GeForce runs it at the full rate.
    12.1  DGX Spark: 1 PFLOP/s of sparse FP4 on 48 multiprocessors; the rest as 12.0, which shares its instructions.
    MI350 256 compute units at 2.4 (MI355X) and 2.2 GHz: 2.5 PFLOP/s in FP16, 5 in FP8, 10.1 in FP6 and FP4, 157.3
          TFLOP/s in FP32, 8 TB/s (AMD Instinct MI355X specifications); TF32 is unsupported.

`annot calibrate` writes files with measured peaks, and reports read them. Their folder is ``annot/peaks`` in the user's
data folder (XDG Base Directory Specification: ``XDG_DATA_HOME``, else ``~/.local/share``). Its subfolder ``measured``
has the devices of this machine. Files that the user copies into the folder are those of other machines. A file may have
any name; the device in it counts.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import polars as pl
from msgspec import Meta

from annot.errors import AnnotError
from annot.util.data_folder import data_folder
from annot.util.json_files import DAMAGED
from annot.util.packaged_tables import packaged_table

_BRAND: Final = re.compile(r"^(?:NVIDIA |AMD )?(?:GeForce |Tesla |Instinct |Radeon )?")
_OF_CPU: Final = re.compile(r"\((?:R|TM|C)\)|\b(?:CPU|Processor|\d+-Core)\b|@.*|\bwith Radeon.*", re.IGNORECASE)
_LONGEST: Final = 40
"""Maximum length of the name of a device."""
_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))


def cpu_name(meta: Mapping[str, Any]) -> str:
    """Return the model of the CPU in `annot.profile.Profile.meta`, without what all models have; "": unknown.

    Example:
        >>> cpu_name({"cpu": "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz"})
        'Intel Xeon Platinum 8370C'
    """
    return _brief(_OF_CPU.sub("", meta.get("cpu", "")))


def gpu_name(meta: Mapping[str, Any]) -> str:
    """Return the name of the GPUs in `annot.profile.Profile.meta` without its brand; "": unknown, or several.

    Example:
        >>> gpu_name({"devices": [{"name": "NVIDIA GeForce RTX 3070 Ti"}]})
        'RTX 3070 Ti'
    """
    names = {str(device.get("name") or "") for device in meta.get("devices") or ()}
    return _brief(_BRAND.sub("", next(iter(names)))) if len(names) == 1 else ""


def gpus(count: int, name: str) -> str:
    """Return the number and the name of GPUs.

    Example:
        >>> gpus(8, "A100"), gpus(8, ""), gpus(1, "A100")
        ('8 × A100', '8 GPUs', 'A100')
    """
    if count == 1:
        return name or "one GPU"
    return f"{count} × {name}" if name else f"{count} GPUs"


def short_time(ns: float) -> str:
    """Return a time (ns) with three significant digits.

    Example:
        >>> short_time(223_600_000)
        '224 ms'
    """
    unit, size = next((pair for pair in _UNITS if ns >= pair[1]), ("ns", 1))
    value = ns / size
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def _brief(name: str) -> str:
    name = " ".join(name[: 10 * _LONGEST].split())
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_Rate: TypeAlias = Annotated[float, Meta(gt=0, le=1e21)]
_Precision: TypeAlias = Annotated[str, Meta(pattern=r"^(f64|f32|tf32|f16|bf16|f8|f6|f4)( tensor)?$")]
_Rates: TypeAlias = Annotated[dict[_Precision, _Rate], Meta(min_length=1)]

_GEFORCE: Final = 2
"""Tensor Cores of a GeForce accumulate in 32 bits at 1/2 of the rate of a professional card with the same chip."""


class _Sheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values in the data sheet of a device."""

    device: re.Pattern[str]
    bandwidth: _Rate
    clock: _Rate | None = None
    flops: _Rates | None = None


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``peaks.toml``, which explains them."""

    per_cycle: dict[str, dict[_Precision, int]]
    sheets: list[_Sheet]


@cache
def tables() -> _Tables:
    """Return the tables of devices."""
    return packaged_table("annot.analyze", "peaks.toml", _Tables, re.compile)


def rates_of(device: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Return the operations per clock cycle of a multiprocessor by precision, for a device as in `peaks_of_device`.

    None: the compute capability is unknown.

    Example:
        >>> rates_of({"computeMajor": 7, "computeMinor": 5})["f16 tensor"]
        1024
    """
    return tables().per_cycle.get(f"{_whole(device, 'computeMajor')}.{_whole(device, 'computeMinor')}")


_TENSOR: Final = " tensor"
_NEAREST: Final = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "f16 tensor": ("f16 tensor", "bf16 tensor"),
    "bf16 tensor": ("bf16 tensor", "f16 tensor"),
    "f32 tensor": ("f32 tensor", "tf32 tensor"),
    "tf32 tensor": ("tf32 tensor", "f32 tensor"),
    "f8 tensor": ("f8 tensor", "f16 tensor"),
    "f6 tensor": ("f6 tensor", "f8 tensor", "f16 tensor"),
    "f4 tensor": ("f4 tensor", "f8 tensor", "f16 tensor"),
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """The roof of a roofline.

    Args:
        device: name of the device.
        flops: peak FLOP/s by precision, such as ``f32`` or, on Tensor Cores, ``f16 tensor``; ``any``: all precisions;
            empty: unknown.
        bandwidth: memory bandwidth in bytes/s; None: unknown.
        source: origin of the numbers, as a phrase; why they are unknown, and what to do, as sentences.

    Example:
        >>> roof = Peaks("A100", {"f32": 19.5e12, "f16 tensor": 312e12}, 2.04e12, "its data sheet")
        >>> roof.of("f16", tensor_cores=True), roof.of("f32")
        (312000000000000.0, 19500000000000.0)
    """

    device: str
    flops: Mapping[str, float]
    bandwidth: float | None
    source: str

    def of(self, precision: str, *, tensor_cores: bool = False) -> float | None:
        """Return the peak FLOP/s of a precision, a name of `annot.labels.tag.short_dtype`; None: unknown.

        ``f32`` on Tensor Cores (AMD: Matrix Cores) means TF32.
        """
        if "any" in self.flops:
            return self.flops["any"]
        key = precision + (_TENSOR if tensor_cores else "")
        rates = (self.flops[name] for name in _NEAREST.get(key, (key,)) if name in self.flops)
        return next(rates, self.flops.get(precision) if tensor_cores else None)

    def as_meta(self) -> dict[str, Any]:
        """Return the peaks for a report: device, source, flops by precision, bandwidth."""
        return {"device": self.device, "source": self.source, "flops": dict(self.flops), "bandwidth": self.bandwidth}


def given_peaks(flops: float, bandwidth: float) -> Peaks:
    """Return user-defined peaks for all precisions.

    Args:
        flops: peak in FLOP/s.
        bandwidth: memory bandwidth in bytes/s.

    Raises:
        ValueError: a number is not above 0.

    Example:
        >>> given_peaks(1e12, 1e11).of("f32")
        1000000000000.0
    """
    if not (flops > 0 and bandwidth > 0):
        raise ValueError(f"peaks must be above 0, got {flops:g} FLOP/s and {bandwidth:g} bytes/s")
    return Peaks("", {"any": flops}, bandwidth, "given by hand")


def unknown_peaks(reason: str, device: str = "") -> Peaks:
    """Return unknown peaks with the reason, as sentences.

    Example:
        >>> unknown_peaks("The profile does not name its GPU.").of("f32") is None
        True
    """
    return Peaks(device, {}, None, reason)


def device_row(devices: Iterable[Mapping[str, Any]], device: int | None = None) -> Mapping[str, Any] | None:
    """Return the description of a device (None: the first one) in a profile; None: the profile describes no device."""
    rows = list(devices)
    numbered = {row.get("cuDevice", row.get("id")): row for row in rows}
    return numbered.get(device) or (rows[0] if rows else None)


def peaks_of_device(row: Mapping[str, Any]) -> Peaks | None:
    """Return the peaks of one device: multiprocessors × clock × operations per clock cycle of the architecture.

    An export of Nsight Systems contains clock and bandwidth (TARGET_INFO_GPU: clockRate in Hz, smCount, memoryBandwidth
    in bytes/s). A trace of torch.profiler contains name, capability and numSms; clock and bandwidth are those of the
    data sheet. The other fields are computeMajor and computeMinor.
    """
    name = str(row.get("name", ""))
    sheet = next((sheet for sheet in tables().sheets if sheet.device.search(name)), None)
    if sheet is not None and sheet.flops is not None:
        return Peaks(name, sheet.flops, sheet.bandwidth, "its data sheet")
    rates = rates_of(row)
    count = max(_whole(row, "smCount"), _whole(row, "numSms"))
    clock, bandwidth = _number(row, "clockRate"), _number(row, "memoryBandwidth")
    origin = "the profile's device table" if clock and bandwidth else "the profile and the device's data sheet"
    clock = clock or (sheet.clock if sheet else None)
    bandwidth = bandwidth or (sheet.bandwidth if sheet else None)
    # The compute capabilities of AMD devices coincide with those of NVIDIA architectures.
    if rates is None or count < 1 or not clock or row.get("warpSize") == 64 or "AMD" in name:
        return None
    divisor = _GEFORCE if "GeForce" in name else 1
    divisors = {key: divisor if key.endswith(_TENSOR) and key != "f4 tensor" else 1 for key in rates}
    flops = {key: rate * count * clock / divisors[key] for key, rate in rates.items()}
    source = f"{origin}: {count} multiprocessors at {clock / 1e9:.3g} GHz"
    return Peaks(name, flops, bandwidth, source)


def device_of_counters(metrics: pl.DataFrame) -> dict[str, Any] | None:
    """Return the device in a report of Nsight Compute (`annot.profile.METRICS`) for `peaks_of_device`; None: unknown.

    Device memory transfers data twice per clock cycle: the bandwidth is 2 × clock × bus width.
    """
    attributes = {
        name.removeprefix(_ATTRIBUTE): value
        for name, value in metrics.filter(pl.col("name").str.starts_with(_ATTRIBUTE)).select("name", "value").rows()
    }
    needed = {"multiprocessor_count", "clock_rate", "compute_capability_major", "compute_capability_minor"}
    if not needed <= attributes.keys():
        return None
    width, clock = attributes.get("global_memory_bus_width", 0), attributes.get("memory_clock_rate", 0)
    return {
        "name": "",
        "smCount": int(attributes["multiprocessor_count"]),
        "clockRate": attributes["clock_rate"] * 1000,
        "computeMajor": int(attributes["compute_capability_major"]),
        "computeMinor": int(attributes["compute_capability_minor"]),
        "memoryBandwidth": 2 * clock * 1000 * width / 8,
    }


_ATTRIBUTE: Final = "device__attribute_"


def _whole(row: Mapping[str, Any], key: str) -> int:
    value = _number(row, key)
    return -1 if value is None else int(value)


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        return None
    return float(value)


FORMAT: Final = "annot peaks 1"
_LARGEST: Final = 1 << 16
"""Maximum size of a file in bytes."""


class Calibration(msgspec.Struct, frozen=True):
    """Measured peaks of a device: the contents of a file.

    Args:
        device: name of the GPU, or model of the CPU.
        threads: threads on a CPU; None: a GPU.
        flops: FLOP/s of matrix multiplications by precision, as in `Peaks`.
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
    except DAMAGED as error:
        raise AnnotError(f"{path} is not a file of annot calibrate, or damaged: {error}") from None


def calibration_folder() -> Path | None:
    """Return the folder of the files; None: the user has no data folder."""
    return data_folder("peaks")


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
