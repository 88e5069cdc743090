"""Peaks of a device: FLOP/s by precision and memory bandwidth, with their source; those on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.device_peaks import GEFORCE, NVIDIA, sheet_of

__all__ = ["Peaks", "device_of_counters", "device_row", "given_peaks", "peaks_of_device", "unknown_peaks"]

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
        return {
            "device": self.device, "source": self.source, "flops": dict(self.flops), "bandwidth": self.bandwidth,
        }  # fmt: skip


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
    sheet = sheet_of(name)
    if sheet is not None and sheet.flops is not None:
        return Peaks(name, sheet.flops, sheet.bandwidth, "its data sheet")
    rates = NVIDIA.get((_whole(row, "computeMajor"), _whole(row, "computeMinor")))
    count = max(_whole(row, "smCount"), _whole(row, "numSms"))
    clock, bandwidth = _number(row, "clockRate"), _number(row, "memoryBandwidth")
    origin = "the profile's device table" if clock and bandwidth else "the profile and the device's data sheet"
    clock = clock or (sheet.clock if sheet else None)
    bandwidth = bandwidth or (sheet.bandwidth if sheet else None)
    # The compute capabilities of AMD devices coincide with those of NVIDIA architectures.
    if rates is None or count < 1 or not clock or row.get("warpSize") == 64 or "AMD" in name:
        return None
    divisor = GEFORCE if "GeForce" in name else 1
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
