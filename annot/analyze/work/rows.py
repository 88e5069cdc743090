"""Tables of layers with their expected work, for reports."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.work.layers import IS_LAYER, with_work
from annot.correlate import Attribution, by_layer

__all__ = ["by_layer_with_work", "by_work"]

_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
_MOVED: Final = (pl.col("bytes_read") + pl.col("bytes_written")).alias("bytes")


def by_layer_with_work(attribution: Attribution) -> pl.DataFrame:
    """Return `annot.correlate.by_layer` with flops, bytes (read and written) and params, null if unknown."""
    rows = by_layer(attribution)
    known = rows.columns[:-1]
    return with_work(rows, attribution).select(*known, "flops", _MOVED, "params", rows.columns[-1])


def by_work(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer and phase with its expected work, and how fast it did it.

    Returns:
        layer, module, phase, calls, host_ns, host_self_ns, gpu_ns, gpu_self_ns as `annot.correlate.by_layer` has
        them; flops, bytes_read, bytes_written, params, counted as `layer_work`; bytes (read and written);
        flops_per_s: of the layer's own time on devices, or on the host if devices did nothing in the whole run;
        and shapes.
    """
    rows = with_work(by_layer(attribution).filter(IS_LAYER), attribution)
    on_devices = any((attribution.nodes[name] > 0).any() for name in ("kernels", "copies"))
    time = pl.col("gpu_self_ns" if on_devices else "host_self_ns")
    speed = pl.when(time > 0).then(pl.col("flops") * 1e9 / time).alias("flops_per_s")
    return rows.select(
        "layer", "module", "phase", "calls", *_TIMES, "flops", _MOVED, "bytes_read", "bytes_written", "params",
        "counted", speed, "shapes",
    )  # fmt: skip
