"""What kernels do, by their names: products of matrices, or what else uses the time of a layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.kernel_patterns import LIBRARIES, RULES, TENSOR_CORES, Kind
from annot.correlate import UNATTRIBUTED, by_layer
from annot.correlate.attribution import Attribution

__all__ = ["MATRIX", "KernelClass", "by_class", "classify", "layer_kernels", "layer_names", "only_told", "with_classes"]

MATRIX: Final = ("gemm", "convolution", "attention")
"""The kinds that multiply matrices, which is what a device is fast at."""

_LONGEST: Final = 4096  # of a name; what follows are arguments of templates
_ANONYMOUS: Final = ("(anonymous namespace)::", "<unnamed>::")
_KEY: Final = ("layer", "module", "phase")


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What the name of a kernel tells.

    Args:
        kind: what it does, one of `annot.analyze.kernel_patterns.KINDS`; "other" if the name does not tell.
        library: whose it is, such as "cuDNN"; empty if the name does not tell.
        tensor_cores: whether it computes on Tensor Cores (AMD: Matrix Cores). False also if the name does not tell,
            as that of a Triton kernel.
    """

    kind: Kind
    library: str
    tensor_cores: bool


@functools.lru_cache(maxsize=1 << 16)
def classify(name: str) -> KernelClass:
    """Return what the name of a kernel tells; any text will do.

    Args:
        name: as a profiler gives it, demangled or not; copies and sets as `annot.profile.copies_as_work` names them.

    Example:
        >>> classify("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn")
        KernelClass(kind='gemm', library='cuBLAS', tensor_cores=True)
        >>> classify("(memset)").kind, classify("never seen").kind
        ('copy', 'other')
    """
    if name.startswith(("(copy ", "(memset")):
        return KernelClass("copy", "", False)
    text = name[:_LONGEST]
    for namespace in _ANONYMOUS:
        text = text.replace(namespace, "")
    text = text.removeprefix("void ")
    head = text.partition("<")[0].partition("(")[0]
    found = (kind for kind, of_head, pattern in RULES if pattern.search(head if of_head else text))
    kind: Kind = next(found, "other")
    computes = kind in (*MATRIX, "other") and TENSOR_CORES.search(text) is not None
    library = _library(head)
    if library in ("", "CUTLASS"):  # whose template it is stands among the arguments
        library = _library(text)
    return KernelClass(kind, library, computes)


def _library(text: str) -> str:
    return next((library for library, pattern in LIBRARIES if pattern.search(text)), "")


def with_classes(names: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the column `name` and, added, kind, library (String) and tensor_cores (Boolean)."""
    there = names["name"].cast(pl.String).unique()
    rows = [(name, *_as_row(classify(name or ""))) for name in there]
    schema = {"name": pl.String, "kind": pl.String, "library": pl.String, "tensor_cores": pl.Boolean}
    classes = pl.DataFrame(rows, schema=schema, orient="row")
    texts = names.with_columns(pl.col("name").cast(pl.String))
    return texts.join(classes, on="name", how="left", nulls_equal=True, maintain_order="left")


def only_told(classes: pl.DataFrame) -> pl.DataFrame:
    """Return what `with_classes` did, with null for tensor_cores where the name does not tell: Triton's products."""
    silent = (pl.col("library") == "Triton") & pl.col("kind").is_in(MATRIX) & ~pl.col("tensor_cores")
    return classes.with_columns(tensor_cores=pl.when(~silent).then("tensor_cores"))


def _as_row(one: KernelClass) -> tuple[str, str, bool]:
    return one.kind, one.library, one.tensor_cores


def layer_names(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer and name of the device work that is its own, not that of layers inside it.

    Returns:
        layer, module, phase, name, kernel (false: a copy or set), calls, gpu_ns, kind, library, tensor_cores.
    """
    forest = attribution.forest
    keys = pl.DataFrame(forest.keys.names, schema=_KEY, orient="row")
    names = attribution.names
    key = pl.Series("key", forest.nodes.keys, pl.Int64).gather(names["node"])
    rows = pl.concat([keys[key], names.select("name", "kernel", "calls", "gpu_ns")], how="horizontal")
    rows = rows.with_columns(pl.col("name").cast(pl.String))
    sums = rows.group_by(*_KEY, "name", "kernel", maintain_order=True).agg(pl.col("calls", "gpu_ns").sum())
    return with_classes(sums)


def by_class(attribution: Attribution) -> pl.DataFrame:
    """Return a row per class of kernels, the longest first.

    Returns:
        kind, library, tensor_cores (null: the names do not tell), names (how many kernels have a name of their
        own), calls, gpu_ns, layers (how many distinct ones launched it). The times add up to all device time.
    """
    known = pl.col("layer").filter(pl.col("layer") != UNATTRIBUTED)
    rows = only_told(layer_names(attribution)).group_by("kind", "library", "tensor_cores").agg(
        pl.col("name").n_unique().cast(pl.Int64).alias("names"),
        pl.col("calls", "gpu_ns").sum(),
        known.n_unique().cast(pl.Int64).alias("layers"),
    )  # fmt: skip
    return rows.sort("gpu_ns", "kind", "library", "tensor_cores", descending=[True, False, False, True])


def layer_kernels(attribution: Attribution) -> pl.DataFrame:
    """Return how much of each layer's own device time lies outside products of matrices, and what that is.

    Returns:
        layer, module, phase, as in `annot.correlate.by_layer`; gpu_self_ns; matrix_ns: the part in kernels of `MATRIX`;
        outside_ns: the rest; outside: kinds and their times, the longest first, as ``elementwise 1200 ns``; and a
        column for each kind that occurs, such as gemm_ns, whose sum is gpu_self_ns.

    Example:
        >>> from annot.correlate import attribute
        >>> from annot.profile import Profile
        >>> layer_kernels(attribute(Profile.build({}))).columns[:5]
        ['layer', 'module', 'phase', 'gpu_self_ns', 'matrix_ns']
    """
    kinds = layer_names(attribution).group_by(*_KEY, "kind").agg(pl.col("gpu_ns").sum())
    longest = kinds.group_by("kind").agg(pl.col("gpu_ns").sum()).sort("gpu_ns", "kind", descending=[True, False])
    columns = {f"{kind}_ns": pl.col("gpu_ns").filter(pl.col("kind") == kind).sum() for kind in longest["kind"]}
    is_matrix = pl.col("kind").is_in(MATRIX)
    sums = kinds.group_by(_KEY).agg(pl.col("gpu_ns").filter(is_matrix).sum().alias("matrix_ns"), **columns)
    others = kinds.filter(~is_matrix & (pl.col("gpu_ns") > 0)).sort("gpu_ns", "kind", descending=[True, False])
    text = pl.format("{} {} ns", "kind", "gpu_ns").str.join(", ").alias("outside")
    said = others.group_by(*_KEY, maintain_order=True).agg(text)
    rows = by_layer(attribution).select(*_KEY, "gpu_self_ns")
    for part in (sums, said):
        rows = rows.join(part, on=_KEY, how="left", maintain_order="left")
    rows = rows.with_columns(pl.selectors.ends_with("_ns").fill_null(0), pl.col("outside").fill_null(""))
    outside_ns = (pl.col("gpu_self_ns") - pl.col("matrix_ns")).alias("outside_ns")
    return rows.select(*_KEY, "gpu_self_ns", "matrix_ns", outside_ns, "outside", *columns)
