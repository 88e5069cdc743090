"""Measured work: what hardware counters say each kernel and layer computed, against what it had to, and why it differs.

Counters of Nsight Compute, nvprof and CUPTI are understood under these names:

    flop_count_sp, _dp, _hp                                     nvprof; a multiply-add is two
    sm[sp]__sass_thread_inst_executed_op_{f,d,h}{add,mul,fma}_pred_on.sum
                                                                instructions of threads; a multiply-add is one
    sm__ops_path_tensor_src_…_dst_….sum                         operations of Tensor Cores, since Ampere
    sm__inst_executed_pipe_tensor[_…].sum                       instructions of their pipe, of which nobody says the size

Source: https://docs.nvidia.com/nsight-compute/ProfilingGuide/ and https://docs.nvidia.com/cuda/profiler-users-guide/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from annot.analyze.work import cost, layer_work
from annot.correlate import Attribution
from annot.profile import Profile, kernels_as_work
from annot.tag import Tag, parse

__all__ = ["MEASURED_COLUMNS", "kernel_flops", "layer_flops", "tiles_of", "with_measured"]

_NVPROF: Final = r"^flop_count_([sdh])p$"
_SASS: Final = r"sass_thread_inst_executed_op_([fdh])(add|mul|fma)_pred_on\.sum$"
_TENSOR_OPS: Final = r"ops_path_tensor_src_\w+\.sum$"
_TENSOR_PIPE: Final = r"inst_executed_pipe_tensor(_\w+)?\.sum$"
_SPARSITY: Final = r"sparsity_o(n|ff)\.sum$"
_WARP: Final = 32

_KINDS: Final = {"s": "flops", "f": "flops", "d": "flops", "h": "half_flops"}
_UNITS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FLOPS: Final = {"flops": pl.Int64, "half_flops": pl.Int64, "tensor_flops": pl.Int64, "tensor_instructions": pl.Int64}

_KEY: Final = ("layer", "module", "phase")
_HALF: Final = ("f16", "bf16")

_WINOGRAD: Final = re.compile("winograd", re.IGNORECASE)
_FFT: Final = re.compile(r"fft|cgemm", re.IGNORECASE)
_TENSOR_NAMES: Final = re.compile(r"[hi]mma|wgmma|tensorop|tf32|nvjet|xmma|16816|1688|s?884", re.IGNORECASE)
_TILE: Final = re.compile(r"(?<![0-9])(\d{2,3})x(\d{2,3})(?![0-9])")
_LIKE_EXPECTED: Final = 0.005
"""Up to so much a ratio is off 1 for the few instructions around a product, which need no reason."""


def kernel_flops(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return what counters say that kernels computed.

    Args:
        metrics: rows of `annot.profile.METRICS`.

    Returns:
        kernel, flops (in 32 and 64 bits), half_flops (in 16 bits; kernels of other types have such instructions too,
        to move numbers), tensor_flops, tensor_instructions (of warps; those that only moved numbers left out): a row
        for each kernel with one of the counters, in order; null: not counted.
    """
    unit = pl.col("unit").str.extract(r"^([KMGT])(?:inst|op)").replace_strict(_UNITS, default=1.0)
    rows = metrics.select(
        "kernel",
        (pl.col("value") * unit.fill_null(1.0)).alias("value"),
        pl.col("name").str.extract(_SASS, 2).alias("instruction"),
        pl.coalesce(pl.col("name").str.extract(_NVPROF), pl.col("name").str.extract(_SASS)).alias("kind"),
        pl.col("name").str.contains(_TENSOR_OPS).alias("tensor_ops") & ~pl.col("name").str.contains(_SPARSITY),
        pl.col("name").str.contains(_TENSOR_PIPE).alias("tensor_pipe"),
    ).with_columns(pl.col("kind").replace_strict(_KINDS, default=None))  # fmt: skip
    twice = pl.when(pl.col("instruction") == "fma").then(2).otherwise(1)
    # The same counter may be there of an SM and of its four parts.
    named = rows.drop_nulls("kind").group_by("kernel", "kind", "instruction", pl.col("instruction").is_null().alias("x"))
    del named
    flops = (
        rows.filter(pl.col("kind").is_not_null())
        .with_columns(pl.col("value") * twice)
        .group_by("kernel", "kind")
        .agg(pl.col("value").sum())
    )
    return flops
