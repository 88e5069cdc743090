"""Hardware counters of kernels under uniform names, and the peaks of the device in a profile.

The source metrics are those of Nsight Compute (``--page raw`` and the details page) and nvprof. Rates and shares of
several kernels are means weighted by kernel duration; counts and bytes are sums. A sector is 32 bytes (Nsight
Compute's Kernel Profiling Guide, "Memory Tables").

Sources of peaks in order: a file that the user names, measured on this machine, a file of another machine, the data
sheet. Files are those of `annot calibrate`. Precisions that a file lacks keep the data sheet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import polars as pl

from annot.analyze.gpu_activities import attributed_kernels, has_gpu_activities, over, sums_by_layer
from annot.analyze.peaks import (
    Peaks,
    Stored,
    device_of_counters,
    device_row,
    device_text,
    peaks_of_device,
    read_calibration,
    stored_calibration,
    unknown_peaks,
)
from annot.attribution.attribute import Attribution
from annot.attribution.nesting import KEY
from annot.util.packaged_tables import packaged_table

_SECTOR: Final = 32
_SECTORS: Final = ("sectors", "transactions")
"""Words in the names of counters of sectors. Other counters of memory count bytes."""


class _Counters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``counters.toml``, which explains them."""

    sums: dict[str, list[str]]
    tensor: dict[str, list[str]]
    means: dict[str, list[str]]


_NAMES: Final = packaged_table("annot.analyze", "counters.toml", _Counters)
_INSTRUCTIONS: Final = {
    f"{letter}{op}": tuple(f"{unit}__sass_thread_inst_executed_op_{letter}{op}_pred_on" for unit in ("smsp", "sm"))
    for letter in "fdh"
    for op in ("add", "mul", "fma")
}
"""Counters of thread instructions by type (f, d, h: 32, 64 and 16 bits) and operation."""
_STALL: Final = (
    r"^(?:smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)_per_(?:issue|warp)_active\.(?:ratio|pct)"
    r"|smsp__pcsamp_warps_issue_stalled_(\w+)|stall_(\w+?)(?:\.avg)?)$"
)
_SCALES: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIX: Final = r"^\w+\.Triage\w*\."

_READS: Final = ("l2_read", "l2_write", "dram_read", "dram_write")
_RATES: Final = tuple(f"{name}_bytes_per_s" for name in _READS)
_CACHES: Final = ("l1_throughput", "l1_hit_rate", "l2_throughput", "l2_hit_rate")
COUNTERS: Final = (
    *("stall_share", "stall_reason", "instructions", "load_store_share"),
    *_CACHES,
    *_RATES,
    "dram_throughput",
)
"""Columns of `layer_counters` after its key columns."""


def _device_of_profile(attribution: Attribution) -> dict[str, Any] | None:
    """Return the device in the counters of a profile; see `annot.analyze.peaks.device_of_counters`."""
    metrics, _ = _tables(attribution)
    return None if metrics is None else device_of_counters(metrics)


def _kernel_counters(attribution: Attribution) -> pl.DataFrame | None:
    """Return the counters of each attributed kernel; None: the profile does not contain counters.

    The columns are kernel (row of the table of kernels), node (see `annot.attribution.Attribution`), name, gpu_ns; sums
    (among them instructions, load_store, dram_bytes) and means (percent); null: not counted.
    """
    metrics, kernels = _tables(attribution)
    if metrics is None or kernels is None:
        return None
    placed = attributed_kernels(attribution, kernels)
    rows = placed.select("node", pl.col("name").cast(pl.String), "gpu_ns", kernel="row")
    return rows.join(_wide(metrics), on="kernel", how="inner", maintain_order="left")


def layer_counters(attribution: Attribution) -> pl.DataFrame | None:
    """Return the counters of layers, nested layers included; None: the profile does not contain counters.

    The columns are layer, module, phase and `COUNTERS`: stall_share (0 to 1, fraction of warp cycles that are stalled)
    and stall_reason (the most frequent; Nsight Compute's name); instructions (warp instructions); load_store_share
    (0 to 1, of the instructions); throughputs and hit rates in percent; bytes per second. Null: not counted.
    """
    kernels = _kernel_counters(attribution)
    if kernels is None or kernels.is_empty():
        return None
    weight = pl.col("gpu_ns").clip(1)
    weighted = [(pl.col(name) * weight).alias(name) for name in _NAMES.means]
    weights = [
        pl.when(pl.col(name).is_not_null()).then(weight).otherwise(0).alias(f"{name}_ns") for name in _NAMES.means
    ]
    counts = ["instructions", "load_store", *(f"{name}_bytes" for name in _READS)]
    timed = [pl.when(pl.col(name).is_not_null()).then("gpu_ns").otherwise(0).alias(f"{name}_ns") for name in counts]
    counted = pl.when(pl.col("load_store").is_not_null()).then("instructions").otherwise(0).alias("of_load_store")
    sums = sums_by_layer(attribution, kernels.select("node", *weighted, *weights, *counts, *timed, counted))
    rows = sums.select(
        *KEY,
        *(over(name, f"{name}_ns").alias(name) for name in _NAMES.means),
        pl.when(pl.col("instructions_ns") > 0).then("instructions").cast(pl.Int64).alias("instructions"),
        over("load_store", "of_load_store").alias("load_store_share"),
        *((over(f"{name}_bytes", f"{name}_bytes_ns") * 1e9).alias(f"{name}_bytes_per_s") for name in _READS),
    )
    return rows.join(_stalls(attribution, kernels), on=list(KEY), how="left").select(*KEY, *COUNTERS)


def measured_work(attribution: Attribution) -> pl.DataFrame:
    """Return the counted operations and bytes of device memory by kernel name.

    The columns are name, calls, flops, f64_flops, bytes, time_ns (Int64); only kernels with counters of operations and
    of bytes.
    """
    empty = {"name": pl.String, **dict.fromkeys(("calls", "flops", "f64_flops", "bytes", "time_ns"), pl.Int64)}
    kernels = _kernel_counters(attribution)
    if kernels is None:
        return pl.DataFrame(schema=empty)
    counts = [*_INSTRUCTIONS, *_NAMES.tensor, "count_sp", "count_dp", "count_hp"]
    double = [name for name in counts if name[0] == "d" or name in ("count_dp", "tensor_fp64")]
    rows = kernels.select(
        "name",
        flops=pl.sum_horizontal(counts),
        f64_flops=pl.sum_horizontal(double),
        bytes=pl.coalesce(pl.col("dram_read_bytes") + pl.col("dram_write_bytes"), "dram_bytes"),
        counted=pl.any_horizontal(pl.col(counts).is_not_null()),
        time_ns="gpu_ns",
    )
    rows = rows.filter("counted").drop_nulls("bytes")
    sums = [pl.col(name).sum().cast(pl.Int64) for name in ("flops", "f64_flops", "bytes", "time_ns")]
    return rows.group_by("name").agg(pl.len().cast(pl.Int64).alias("calls"), *sums).select(list(empty))


def _tables(attribution: Attribution) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """The counters and kernels of a profile in memory; files that are read in blocks do not contain counters."""
    metrics, kernels = (getattr(attribution.source, name, None) for name in ("metrics", "kernels"))
    return (None, None) if metrics is None or metrics.is_empty() else (metrics, kernels)


def _wide(metrics: pl.DataFrame) -> pl.DataFrame:
    """Counters with a row per kernel and a column per quantity."""
    letter = pl.col("unit").str.extract(r"^([KMGT])(?:byte|B)")
    scale = letter.replace_strict(_SCALES, default=1.0, return_dtype=pl.Float64).fill_null(1.0)
    name = pl.col("name").str.replace(_PREFIX, "").str.strip_suffix(".sum")
    named = metrics.with_columns(name, pl.col("value") * scale)
    quantities = {**_NAMES.sums, **_INSTRUCTIONS, **_NAMES.tensor, **_NAMES.means}
    rows = [
        (name, quantity, rank, _factor(quantity, name))
        for quantity, names in quantities.items()
        for rank, name in enumerate(names)
    ]
    table = pl.DataFrame(rows, schema=["name", "quantity", "rank", "factor"], orient="row")
    matches = named.join(table, on="name").sort("rank", maintain_order=True)
    matches = matches.group_by("kernel", "quantity").agg((pl.col("value") * pl.col("factor")).first())
    wide = matches.pivot("quantity", index="kernel", values="value")
    missing = [pl.lit(None, pl.Float64).alias(name) for name in quantities if name not in wide.columns]
    every = metrics.select(pl.col("kernel").unique())
    return every.join(wide, on="kernel", how="left").with_columns(missing)


def _factor(quantity: str, name: str) -> float:
    """The bytes or FLOPs of an event that a counter counts; 1 for other counters."""
    if any(word in name for word in _SECTORS):
        return _SECTOR
    # A half2 instruction computes two values.
    return float((1 + (quantity[0] == "h")) * (1 + quantity.endswith("fma"))) if quantity in _INSTRUCTIONS else 1.0


def _stalls(attribution: Attribution, kernels: pl.DataFrame) -> pl.DataFrame:
    """Stalled cycles and the most frequent reason: layer, module, phase, stall_share, stall_reason."""
    metrics, _ = _tables(attribution)
    assert metrics is not None
    reason = pl.coalesce(pl.col("name").str.extract(_STALL, group) for group in (1, 2, 3))
    stalls = metrics.select("kernel", "value", reason.alias("reason")).drop_nulls("reason")
    stalls = stalls.filter(~pl.col("reason").str.ends_with("_not_issued"))
    stalls = stalls.unique(["kernel", "reason"], keep="first", maintain_order=True)
    stalls = stalls.with_columns(pl.col("value") / pl.col("value").sum().over("kernel"))
    stalls = stalls.filter(pl.col("value").is_finite()).join(kernels.select("kernel", "node", "gpu_ns"), on="kernel")
    weighted = stalls.select("node", "reason", ns=pl.col("value") * pl.col("gpu_ns").clip(1))
    sums = sums_by_layer(attribution, weighted, "reason").sort("ns", "reason", descending=[True, False])
    issues = pl.col("reason") == "selected"
    waiting = pl.when(issues.any()).then(pl.col("ns").filter(~issues).sum() / pl.col("ns").sum())
    worst = pl.col("reason").filter(~issues).first()
    return sums.group_by(KEY).agg(waiting.alias("stall_share"), worst.alias("stall_reason"))


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
    if not has_gpu_activities(attribution):
        name, threads = _cpu(attribution.meta)
        return (given and _given(given, device_text(name, threads), None)) or _peaks_of_cpu(name, threads)
    devices = attribution.meta.get("devices") or [row for row in [_device_of_profile(attribution)] if row]
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
