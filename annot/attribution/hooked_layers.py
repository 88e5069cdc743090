"""Ranges of layers that FSDP marks with a range at each end (see `annot.labels.foreign`).

A pass of a layer lasts from the start of the first ``pre`` range to the end of the last ``post`` range, on one thread:

    pre_forward (X)   operations of X   post_forward (X)        pre_backward (X)   …   post_backward_reduce (X)
    └──────────────────── X, forward ──────────────────┘        └─────────────── X, backward ──────────────────┘

In the backward pass autograd calls both hooks inside operations. The pass then lasts from the start of the first
operation to the end of the last. A pass that was open when the capture began or ended is cut there.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.labels.foreign import hooks_of

__all__ = ["hooked_labels", "with_layers"]

_ROOT: Final = "FSDP"
"""Displayed class of the root module, which has no path."""
_COLUMNS: Final = ("id", "thread", "start", "end", "label", "foreign", "started", "ours")


def hooked_labels(labels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the labels with those of the marked layers, and the hook of each label that is one.

    The hooks have label (row of the hook's label), side (pre or post) and pass (row of the layer's label). There are
    none if other ranges of the profile name layers, or if no hook has a layer's path.
    """
    hooks = labels.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("label")).hstack(hooks_of(labels["text"]))
    hooks = hooks.drop_nulls("side")
    if labels["layered"].any() or not (hooks["layer"] != "").any():
        return labels, hooks.clear().select("label", "side", pl.col("label").alias("pass"))
    passes = hooks.select("layer", "phase").unique(maintain_order=True)
    number = pl.int_range(labels.height, labels.height + pl.len(), dtype=pl.Int32).alias("pass")
    hooks = hooks.join(passes.with_columns(number), on=["layer", "phase"], how="left", maintain_order="left")
    added = passes.select(
        "layer", "phase",
        domain=pl.lit(""), text=pl.format("{} (FSDP {})", "layer", "phase"),
        module=pl.when(pl.col("layer") == "").then(pl.lit(_ROOT)).otherwise(pl.lit("")),
        loop=pl.lit(False), layered=pl.lit(True), plain=pl.lit(False), role=pl.lit("annotation"),
    )  # fmt: skip
    return pl.concat([labels, added], how="diagonal"), hooks.select("label", "side", "pass")


def with_layers(ranges: pl.DataFrame, tree: pl.DataFrame, hooks: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of threads with a range for each pass of a marked layer.

    Args:
        ranges: input of `annot.attribution.nesting.nest`.
        tree: the tree of these ranges.
        hooks: the hooks of `hooked_labels`.

    Returns:
        The passes by id, and the rows of `ranges`. The id of a pass is -1 minus that of its first hook.
    """
    called = tree["label"].is_in(hooks["label"].implode()).arg_true().alias("row")
    passes = _passes(tree.select("id", "thread", "label")[called].with_columns(called).join(hooks, on="label"))
    first = _outermost(passes["first"], passes["last"], tree)
    last = _outermost(passes["last"], passes["first"], tree)
    spans = passes.select("id", "thread", label="pass").with_columns(_bounds(passes, tree, first, last))
    flags = (pl.lit(value).alias(name) for name, value in (("foreign", False), ("started", True), ("ours", False)))
    rows = spans.with_columns((-1 - pl.col("id")).alias("id"), *flags)
    return pl.concat([rows.select(_COLUMNS).sort("id"), ranges], how="diagonal")  # the ids of recorded ranges are >= 0


def _passes(called: pl.DataFrame) -> pl.DataFrame:
    """Return thread, pass, id, and first and last (rows in the tree, null if cut) of each pass.

    A pass begins with the first of successive calls of ``pre`` and ends with the last of successive calls of ``post``:
    a group of modules and a module with several outputs repeat them. A lone side counts only where the capture cut the
    pass: a ``post`` before any ``pre`` of the thread, a ``pre`` after any ``post``.
    """
    opens, row = pl.col("side") == "pre", pl.col("row")
    first, last = row.filter(opens).min(), row.filter(~opens).max()
    begins = (opens & ~opens.shift(1, fill_value=False)).cum_sum().over("thread", "pass").alias("call")
    rows = called.sort("row").with_columns(begins)
    edges = rows.group_by("thread").agg(first.alias("open"), last.alias("close"))
    calls = rows.group_by("thread", "pass", "call", maintain_order=True)
    passes = calls.agg(pl.col("id").first(), first.alias("first"), last.alias("last"))
    cut_at_start = pl.col("first").is_null() & (pl.col("last") < pl.col("open")).fill_null(True)
    cut_at_end = pl.col("last").is_null() & (pl.col("first") > pl.col("close")).fill_null(True)
    whole = pl.col("first").is_not_null() & pl.col("last").is_not_null()
    return passes.join(edges, on="thread", how="left").filter(whole | cut_at_start | cut_at_end)


def _outermost(row: pl.Series, other: pl.Series, tree: pl.DataFrame) -> pl.Series:
    """Return the outermost range around each row that does not contain the other row of the pass."""
    row, parent = row.cast(pl.Int32), tree["parent"]
    start, end = tree["start"].gather(other), tree["end"].gather(other)
    while True:
        above = column_ops.known(parent.gather(row))
        outside = (tree["start"].gather(above) > start) | (tree["end"].gather(above) < end)
        outside = outside.fill_null(False)
        if not outside.any():
            return row
        row = pl.select(pl.when(outside).then(above).otherwise(row)).to_series()


def _bounds(passes: pl.DataFrame, tree: pl.DataFrame, first: pl.Series, last: pl.Series) -> pl.DataFrame:
    """Return start and end of each pass. A cut pass starts or ends with the ranges of its thread."""
    threads = tree.group_by("thread").agg(begin=pl.col("start").min(), until=pl.col("end").max())
    edges = passes.select("thread").join(threads, on="thread", how="left", maintain_order="left")
    bounds = edges.with_columns(start=tree["start"].gather(first), end=tree["end"].gather(last))
    return bounds.select(start=pl.coalesce("start", "begin"), end=pl.coalesce("end", "until"))
