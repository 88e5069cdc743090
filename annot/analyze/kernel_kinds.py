"""Classification of kernels by name: kind of operation, library, and use of Tensor Cores."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from annot.attribution import UNATTRIBUTED, by_layer
from annot.attribution.attribute import Attribution
from annot.attribution.nesting import KEY

if TYPE_CHECKING:
    from annot.analyze.kernel_name_patterns import Kind

__all__ = [
    "MATRIX",
    "KernelClass",
    "by_class",
    "classify",
    "layer_kernels",
    "layer_names",
    "with_classes",
]

MATRIX: Final = ("gemm", "convolution", "attention")
"""Kinds of kernels that multiply matrices."""

_LONGEST: Final = 4096  # longer names only continue with template arguments
_ANONYMOUS: Final = ("(anonymous namespace)::", "<unnamed>::")


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Classification of a kernel by its name.

    Args:
        kind: one of `annot.analyze.kernel_name_patterns.KINDS`; "other" for unknown names.
        library: library of the kernel, such as "cuDNN"; empty: unknown.
        tensor_cores: whether it computes on Tensor Cores (AMD: Matrix Cores); None: the name does not show it, as for
            matrix multiplications of Triton.
    """

    kind: Kind
    library: str
    tensor_cores: bool | None


@functools.lru_cache(maxsize=1 << 16)
def classify(name: str) -> KernelClass:
    """Return the classification of a kernel name.

    Args:
        name: kernel name of a profiler, demangled or not; copies and memsets are named as in
            `annot.profile.copies_as_work`.

    Example:
        >>> classify("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn")
        KernelClass(kind='gemm', library='cuBLAS', tensor_cores=True)
        >>> classify("(memset)").kind, classify("never seen").kind
        ('copy', 'other')
    """
    if name.startswith(("(copy ", "(memset")):
        return KernelClass("copy", "", False)
    if not name:
        return KernelClass("other", "", None)
    # The patterns compile at import, which takes longer than a report without kernels.
    from annot.analyze import kernel_name_patterns as patterns

    text = name[:_LONGEST]
    for namespace in _ANONYMOUS:
        text = text.replace(namespace, "")
    text = text.removeprefix("void ")
    head = text.partition("<")[0].partition("(")[0]
    kinds = (kind for kind, of_head, pattern in patterns.RULES if pattern.search(head if of_head else text))
    kind: Kind = next(kinds, "other")
    library = _first(patterns.LIBRARIES, head)
    if library in ("", "CUTLASS"):  # the library of an instantiated template shows in its arguments
        library = _first(patterns.LIBRARIES, text)
    if kind not in (*MATRIX, "other"):
        return KernelClass(kind, library, False)
    if patterns.TENSOR_CORES.search(text):
        return KernelClass(kind, library, True)
    return KernelClass(kind, library, False if patterns.OTHER_UNITS.search(text) else None)


def _first(libraries: Iterable[tuple[str, re.Pattern[str]]], text: str) -> str:
    return next((library for library, pattern in libraries if pattern.search(text)), "")


def with_classes(names: pl.DataFrame) -> pl.DataFrame:
    """Add kind, library (String) and tensor_cores (Boolean, null: unknown) to a table with the column `name`.

    Names as `pl.Categorical` stay so: as texts, those of a million kernels take hundreds of megabytes.
    """
    distinct = names["name"].unique()
    rows = [astuple(classify(name or "")) for name in distinct.cast(pl.String)]
    schema = {"kind": pl.String, "library": pl.String, "tensor_cores": pl.Boolean}
    classes = pl.DataFrame(rows, schema=schema, orient="row").with_columns(distinct)
    return names.join(classes, on="name", how="left", nulls_equal=True, maintain_order="left")


def layer_names(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer and name of the GPU activities that the layer itself launches.

    Returns:
        layer, module, phase, name, kernel (false: a copy or memset), calls, gpu_ns, kind, library, tensor_cores.
    """
    names = attribution.names.select(pl.col("name").cast(pl.String), "kernel", "calls", "gpu_ns")
    rows = attribution.forest.layers_of_nodes()[attribution.names["node"]].hstack(names)
    sums = rows.group_by(*KEY, "name", "kernel", maintain_order=True).agg(pl.col("calls", "gpu_ns").sum())
    return with_classes(sums)


def by_class(attribution: Attribution) -> pl.DataFrame:
    """Return a row per class of kernels, the longest first.

    Returns:
        kind, library, tensor_cores (null: the names do not show it), names (number of distinct kernel names), calls,
        gpu_ns, layers (number of distinct layers that launch them). The times add up to the total GPU time.
    """
    attributed = pl.col("layer").filter(pl.col("layer") != UNATTRIBUTED)
    rows = layer_names(attribution).group_by("kind", "library", "tensor_cores").agg(
        pl.col("name").n_unique().cast(pl.Int64).alias("names"),
        pl.col("calls", "gpu_ns").sum(),
        attributed.n_unique().cast(pl.Int64).alias("layers"),
    )  # fmt: skip
    return rows.sort("gpu_ns", "kind", "library", "tensor_cores", descending=[True, False, False, True])


def layer_kernels(attribution: Attribution) -> pl.DataFrame:
    """Return the GPU self time of each layer by kind of kernel, split at matrix multiplications.

    Returns:
        layer, module, phase, as in `annot.attribution.by_layer`; gpu_self_ns; matrix_ns: the part in kernels of
        `MATRIX`; outside_ns: the rest; outside: kinds and their times, the longest first, as ``elementwise 1200 ns``;
        and a column for each kind that occurs, such as gemm_ns; these add up to gpu_self_ns.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> layer_kernels(attribute(Profile.build({}))).columns[:5]
        ['layer', 'module', 'phase', 'gpu_self_ns', 'matrix_ns']
    """
    kinds = layer_names(attribution).group_by(*KEY, "kind").agg(pl.col("gpu_ns").sum())
    longest = kinds.group_by("kind").agg(pl.col("gpu_ns").sum()).sort("gpu_ns", "kind", descending=[True, False])
    columns = {f"{kind}_ns": pl.col("gpu_ns").filter(pl.col("kind") == kind).sum() for kind in longest["kind"]}
    is_matrix = pl.col("kind").is_in(MATRIX)
    sums = kinds.group_by(KEY).agg(pl.col("gpu_ns").filter(is_matrix).sum().alias("matrix_ns"), **columns)
    others = kinds.filter(~is_matrix & (pl.col("gpu_ns") > 0)).sort("gpu_ns", "kind", descending=[True, False])
    text = pl.format("{} {} ns", "kind", "gpu_ns").str.join(", ").alias("outside")
    texts = others.group_by(*KEY, maintain_order=True).agg(text)
    rows = by_layer(attribution).select(*KEY, "gpu_self_ns")
    for table in (sums, texts):
        rows = rows.join(table, on=KEY, how="left", maintain_order="left")
    rows = rows.with_columns(pl.selectors.ends_with("_ns").fill_null(0), pl.col("outside").fill_null(""))
    outside_ns = (pl.col("gpu_self_ns") - pl.col("matrix_ns")).alias("outside_ns")
    return rows.select(*KEY, "gpu_self_ns", "matrix_ns", outside_ns, "outside", *columns)
