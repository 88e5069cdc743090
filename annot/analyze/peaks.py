"""How much a device can do at most: operations and bytes per second, and who says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.rates import GEFORCE, NVIDIA, sheet_of

__all__ = ["PRECISIONS", "Peaks", "device_of_counters", "given_peaks", "peaks_of", "peaks_of_device"]

PRECISIONS: Final = ("f64", "f32", "tf32", "f16", "bf16", "f8", "f6", "f4")
"""The precisions whose peaks are known, as `annot.tag` spells dtypes; tf32 only on Tensor Cores."""

_TENSOR: Final = " tensor"
_NEAREST: Final = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "f16 tensor": ("f16 tensor", "bf16 tensor"),
    "bf16 tensor": ("bf16 tensor", "f16 tensor"),
    "f32 tensor": ("f32 tensor", "tf32 tensor"),
    "f8 tensor": ("f8 tensor", "f16 tensor"),
    "f6 tensor": ("f6 tensor", "f8 tensor", "f16 tensor"),
    "f4 tensor": ("f4 tensor", "f8 tensor", "f16 tensor"),
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """The roof of a roofline.

    Args:
        device: its name.
        flops: peak FLOP/s by precision, such as ``f32`` or, on Tensor Cores, ``f16 tensor``; ``any``: of all.
        bandwidth: of its memory, bytes/s; None: not known.
        source: where the numbers come from, as a part of a sentence.

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
        """Return the peak FLOP/s of a precision; None if it is not known.

        Args:
            precision: as `annot.tag.short_dtype` spells it; ``f32`` on Tensor Cores means TF32.
            tensor_cores: whether matrix units do the work.
        """
        if "any" in self.flops:
            return self.flops["any"]
        key = precision + (_TENSOR if tensor_cores else "")
        found = (self.flops[name] for name in _NEAREST.get(key, (key,)) if name in self.flops)
        return next(found, self.flops.get(precision) if tensor_cores else None)

    def as_meta(self) -> dict[str, Any]:
        """Return the peaks for a report: device, source, flops by precision, bandwidth."""
        return {
            "device": self.device, "source": self.source, "flops": dict(self.flops), "bandwidth": self.bandwidth,
        }  # fmt: skip


def given_peaks(flops: float, bandwidth: float) -> Peaks:
    """Return peaks that somebody gave by hand, for all precisions.

    Raises:
        ValueError: a number is not above 0.

    Example:
        >>> given_peaks(1e12, 1e11).of("f32")
        1000000000000.0
    """
    if not (flops > 0 and bandwidth > 0):
        raise ValueError(f"peaks must be above 0, got {flops:g} FLOP/s and {bandwidth:g} bytes/s")
    return Peaks("", {"any": flops}, bandwidth, "given by hand")


def peaks_of(devices: Iterable[Mapping[str, Any]], device: int | None = None) -> Peaks | None:
    """Return the peaks of a device of a profile; None if the profile says too little of it.

    Args:
        devices: `meta["devices"]` of a profile, or what `device_of_counters` gives.
        device: its number, as kernels have it; None: the first.
    """
    rows = list(devices)
    numbered = {row.get("cuDevice", row.get("id")): row for row in rows}
    row = numbered.get(device) or (rows[0] if rows else None)
    return None if row is None else peaks_of_device(row)


def peaks_of_device(row: Mapping[str, Any]) -> Peaks | None:
    """Return the peaks of one device.

    An export of Nsight Systems says clock and bandwidth (TARGET_INFO_GPU: clockRate in Hz, smCount,
    memoryBandwidth in bytes/s); a trace of torch.profiler says name, capability and numSms, and the data sheet
    of that name the rest. The peak is multiprocessors × clock × operations in a clock cycle of the architecture.

    Args:
        row: name, computeMajor, computeMinor and the above.
    """
    name = str(row.get("name", ""))
    sheet = sheet_of(name)
    if sheet is not None and sheet.flops is not None:
        return Peaks(name, sheet.flops, sheet.bandwidth, "its data sheet")
    rates = NVIDIA.get((_whole(row, "computeMajor"), _whole(row, "computeMinor")))
    count = max(_whole(row, "smCount"), _whole(row, "numSms"))
    clock, bandwidth = _number(row, "clockRate"), _number(row, "memoryBandwidth")
    said = "the profile's device table" if clock and bandwidth else "the profile and the device's data sheet"
    clock = clock or (sheet.clock if sheet else None)
    bandwidth = bandwidth or (sheet.bandwidth if sheet else None)
    if rates is None or count < 1 or not clock or _is_amd(row):
        return None
    slowed = GEFORCE if "GeForce" in name else 1
    slow = {key: slowed if key.endswith(_TENSOR) and key != "f4 tensor" else 1 for key in rates}
    flops = {key: rate * count * clock / slow[key] for key, rate in rates.items()}
    source = f"{said}: {count} multiprocessors at {clock / 1e9:.3g} GHz"
    return Peaks(name, flops, bandwidth, source)


def device_of_counters(metrics: pl.DataFrame) -> dict[str, Any] | None:
    """Return the device that a report of Nsight Compute describes, as `peaks_of_device` reads it; None: it does not.

    Its memory moves data twice in a clock cycle, so that the bandwidth is 2 × clock × width of the bus.

    Args:
        metrics: rows of `annot.profile.METRICS`.
    """
    said = {
        name.removeprefix(_ATTRIBUTE): value
        for name, value in metrics.filter(pl.col("name").str.starts_with(_ATTRIBUTE)).select("name", "value").rows()
    }
    needed = {"multiprocessor_count", "clock_rate", "compute_capability_major", "compute_capability_minor"}
    if not needed <= said.keys():
        return None
    width, clock = said.get("global_memory_bus_width", 0), said.get("memory_clock_rate", 0)
    return {
        "name": "", "smCount": int(said["multiprocessor_count"]), "clockRate": said["clock_rate"] * 1000,
        "computeMajor": int(said["compute_capability_major"]), "computeMinor": int(said["compute_capability_minor"]),
        "memoryBandwidth": 2 * clock * 1000 * width / 8,
    }  # fmt: skip


_ATTRIBUTE: Final = "device__attribute_"


def _is_amd(row: Mapping[str, Any]) -> bool:
    """Capabilities of AMD's devices have the numbers of other architectures."""
    return row.get("warpSize") == 64 or "AMD" in str(row.get("name", ""))


def _whole(row: Mapping[str, Any], key: str) -> int:
    value = _number(row, key)
    return -1 if value is None else int(value)


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        return None
    return float(value)
