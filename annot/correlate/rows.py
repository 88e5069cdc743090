"""Add ranges up: by layer, by module class, by phase, by kernel."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.correlate.attribution import Attribution, outermost

__all__ = ["UNATTRIBUTED", "by_kernel", "by_layer", "by_module", "by_phase"]

UNATTRIBUTED: Final = "(unattributed)"
"""Layer of the row with the device work that was launched in no range, or whose launch is not known."""

_SHAPES_KEPT: Final = 8
_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")


def by_layer(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, module class and phase, as `annot.correlate.correlate` documents."""
    rows = _grouped(attribution, ["layer", "module", "phase"])
    rows = rows.join(_shapes(attribution), on=["layer", "module", "phase"], how="left", maintain_order="left")
    rest = _unattributed(attribution)
    columns = ["layer", "module", "phase", "calls", *_TIMES, "kernels", "copies", "shapes"]
    rows = rows.with_columns(pl.col("shapes").fill_null([])).select(columns)
    return pl.concat([rows, rest.select(columns)]) if rest.height else rows


def by_module(attribution: Attribution) -> pl.DataFrame:
    """Return a row per module class and phase, with `layers`, the number of distinct layers in it.

    Only ranges that name a class take part, so the times do not add up to the whole run.
    """
    named = pl.col("module") != ""
    rows = _grouped(attribution, ["module", "phase"]).filter(named)
    every = pl.concat([attribution.tree.select(_COMMON), attribution.loose.select(_COMMON)]).filter(named)
    layers = every.group_by("module", "phase").agg(pl.col("layer").n_unique().cast(pl.Int64).alias("layers"))
    rows = rows.join(layers, on=["module", "phase"], how="left", maintain_order="left")
    return rows.select("module", "phase", "layers", "calls", *_TIMES, "kernels", "copies")


def by_phase(attribution: Attribution) -> pl.DataFrame:
    """Return a row per phase whose times add up: each range's own time goes to the phase that it lies in.

    A range without a phase of its own counts to the range around it. `calls` are those that began the phase.

    Returns:
        phase, calls, host_ns, gpu_ns, kernels, copies; the last row is what is attributed to no range.
    """
    tree = attribution.tree.with_columns(_phases_in_force(attribution.tree))
    rows = tree.group_by("phase", maintain_order=True).agg(
        pl.col("begins").sum().cast(pl.Int64).alias("calls"),
        pl.col("host_self_ns").sum().alias("host_ns"),
        pl.col("gpu_self_ns").sum().alias("gpu_ns"),
        pl.col("kernels", "copies").sum(),
    )
    rest = _unattributed(attribution).with_columns(pl.lit(UNATTRIBUTED).alias("phase"))
    return pl.concat([rows, rest.select(rows.columns)])


def by_kernel(attribution: Attribution) -> pl.DataFrame:
    """Return a row per name of a kernel, copy or set, the longest total first.

    Returns:
        name, kernel (false for copies and sets), calls, gpu_ns, mean_ns, min_ns, max_ns, and layers: how many
        distinct layers launched it.
    """
    layers = attribution.tree.select("layer", range=pl.int_range(pl.len(), dtype=pl.Int64))
    work = attribution.work.join(layers, on="range", how="left", maintain_order="left")
    rows = work.group_by("name", "kernel").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("gpu_ns").sum(),
        (pl.col("gpu_ns").sum() // pl.len().cast(pl.Int64)).alias("mean_ns"),
        pl.col("gpu_ns").min().alias("min_ns"),
        pl.col("gpu_ns").max().alias("max_ns"),
        pl.col("layer").drop_nulls().n_unique().cast(pl.Int64).alias("layers"),
    )
    return rows.sort("gpu_ns", "name", descending=[True, False])


_COMMON: Final = (
    "layer", "module", "phase", "shapes", "start", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns",
    "kernels", "copies",
)  # fmt: skip


def _grouped(attribution: Attribution, keys: list[str]) -> pl.DataFrame:
    """Add up ranges by key, in order of first appearance; inclusive times count a recursion once."""
    tree = attribution.tree.select(*_COMMON, "depth")
    codes = tree.select(pl.struct(keys).rank("dense").cast(pl.Int64) - 1).to_series()
    first = pl.Series("first", outermost(tree["depth"].to_list(), codes.to_list()), pl.Boolean)
    loose = attribution.loose.select(*_COMMON, first=pl.lit(True))
    every = pl.concat([tree.drop("depth").with_columns(first), loose])
    rows = every.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("host_ns", "gpu_ns").filter(pl.col("first")).sum(),
        pl.col("host_self_ns", "gpu_self_ns", "kernels", "copies").sum(),
        pl.col("start").min(),
    )
    return rows.sort("start", *keys)


def _shapes(attribution: Attribution) -> pl.DataFrame:
    keys = ["layer", "module", "phase"]
    every = pl.concat([part.select(*keys, "shapes") for part in (attribution.tree, attribution.loose)])
    seen = every.drop_nulls("shapes").group_by(*keys, "shapes").len()
    seen = seen.sort("len", "shapes", descending=[True, False])
    return seen.group_by(keys).agg(pl.col("shapes").head(_SHAPES_KEPT))


def _unattributed(attribution: Attribution) -> pl.DataFrame:
    """The row of device work that belongs to no range; no row if there is no device work at all."""
    rest = attribution.work.filter(pl.col("range").is_null())
    kernels = int(rest["kernel"].sum())
    row = {
        "layer": UNATTRIBUTED, "module": "", "phase": "other", "calls": 0, "host_ns": 0, "host_self_ns": 0,
        "gpu_ns": rest["gpu_ns"].sum(), "gpu_self_ns": rest["gpu_ns"].sum(),
        "kernels": kernels, "copies": rest.height - kernels,
    }  # fmt: skip
    table = pl.DataFrame([row]).with_columns(pl.lit([], pl.List(pl.String)).alias("shapes"))
    return table.filter(not attribution.work.is_empty())


def _phases_in_force(tree: pl.DataFrame) -> list[pl.Series]:
    """The phase that each range lies in, and whether the range is the one that began it."""
    phases: list[str] = tree["phase"].to_list()
    begins = []
    for row, parent in enumerate(tree["parent"].to_list()):
        around = phases[parent] if parent is not None else ""
        if phases[row] == "other":
            phases[row] = around or "other"
        begins.append(phases[row] != around)
    return [pl.Series("phase", phases, pl.String), pl.Series("begins", begins, pl.Boolean)]
