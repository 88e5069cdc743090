"""The peaks of the device in a profile, from the best source at hand.

Sources in order: a file that the user names, measured on this machine, a file of another machine, the data sheet. Files
are those of `annot calibrate`. Precisions that a file lacks keep the data sheet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from annot.analyze.calibrations import Stored, device_text, read_calibration, stored_calibration
from annot.analyze.hardware_counters import device_of_profile
from annot.analyze.roofs import Peaks, device_row, peaks_of_device, unknown_peaks
from annot.attribution import Attribution

__all__ = ["GIVEN", "default_peaks", "peaks_from_file"]

GIVEN: Final = "peaks"
"""Key of the meta of an attribution with the peaks of `peaks_from_file`."""


def peaks_from_file(path: str | os.PathLike[str]) -> Peaks:
    """Return the peaks in a file of `annot calibrate`.

    Raises:
        AnnotError: the file cannot be read, or is damaged.
    """
    return read_calibration(path).as_peaks(f"from {os.fspath(path)}, measured")


def default_peaks(attribution: Attribution) -> Peaks:
    """Return the peaks of the busiest device of a profile, or of its CPU if no device worked.

    Peaks without FLOP/s are unknown. Their source says why, and what to do.
    """
    given: Peaks | None = attribution.meta.get(GIVEN)
    if not attribution.nodes.select(pl.col("kernels").sum() + pl.col("copies").sum()).item():
        name, threads = _cpu(attribution.meta)
        return (given and _given(given, device_text(name, threads), None)) or _peaks_of_cpu(name, threads)
    devices = attribution.meta.get("devices") or [row for row in [device_of_profile(attribution)] if row]
    busiest = attribution.device_busy.sort("busy_ns", descending=True)["device"]
    row = device_row(devices, busiest[0] if busiest.len() else None) or {}
    name, sheet = str(row.get("name", "")).strip(), peaks_of_device(row)
    return (given and _given(given, name, sheet)) or _peaks_of_gpu(name, sheet)


def _given(given: Peaks, device: str, sheet: Peaks | None) -> Peaks:
    """Return peaks that the user gives; the source names the device of the profile if it is another one."""
    if given.device.casefold() == device.casefold():
        return _add_rest(given, sheet)
    return replace(given, source=f"{given.source}; the profile is of {device}") if device else given


def _peaks_of_gpu(name: str, sheet: Peaks | None) -> Peaks:
    stored = stored_calibration(name, None) if name else Stored(None, ())
    unknown = (
        f"The peaks of {name} are unknown. Run `annot calibrate` on this GPU, or use --peaks FILE."
        if name
        else "The profile does not name its GPU. Use --peaks FILE."
    )
    if stored.peaks is not None:
        return _add_rest(stored.peaks, sheet)
    return _note_damage(sheet or unknown_peaks(unknown, name), stored.damaged)


def _add_rest(measured: Peaks, sheet: Peaks | None) -> Peaks:
    """Add the precisions of the data sheet that were not measured."""
    rest = {key: flops for key, flops in (sheet.flops if sheet else {}).items() if key not in measured.flops}
    if sheet is None or not rest:
        return measured
    source = f"{measured.source}; {', '.join(rest)}: {sheet.source}"
    return replace(measured, flops={**measured.flops, **rest}, source=source)


def _peaks_of_cpu(name: str, threads: int | None) -> Peaks:
    if not name:
        return unknown_peaks("The profile does not name its CPU. Use --peaks FILE.")
    stored, count = stored_calibration(name, threads), f" --threads {threads}" if threads else ""
    unknown = f"Run `annot calibrate --device cpu{count}` on this CPU, or use --peaks FILE."
    return stored.peaks or _note_damage(unknown_peaks(unknown, device_text(name, threads)), stored.damaged)


def _note_damage(peaks: Peaks, damaged: Sequence[str]) -> Peaks:
    return replace(peaks, source="; ".join((peaks.source, *damaged))) if damaged else peaks


def _cpu(meta: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the model of the CPU, and the threads of the process that uses most; "" and None: unknown."""
    cpus = [process["cpu"] for process in meta.get("processes") or () if "cpu" in process]
    return str(meta.get("cpu", "")), max((cpu["threads"] for cpu in cpus if "threads" in cpu), default=None)
