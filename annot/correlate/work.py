"""What ran on the devices, and the range that each piece was launched from."""

from __future__ import annotations

import polars as pl

from annot.profile import Profile

__all__ = ["innermost", "launched_work"]


def launched_work(profile: Profile) -> pl.DataFrame:
    """Return a row per kernel, copy and set with its launch.

    The launch is found by correlation id and process. Where several API calls share one id, as a runtime call
    and the driver call inside it, the first counts, so that nothing is counted twice.

    Returns:
        process, name, kernel (false for copies), gpu_ns, and thread, start, end of the launch (null if
        unknown).
    """
    kernels = profile.kernels.select("process", "correlation", "name", "start", "end", kernel=pl.lit(True))
    copies = profile.copies.select("process", "correlation", pl.col("kind").alias("name"), "start", "end")
    copies = copies.with_columns(_copy_name(pl.col("name")), kernel=pl.lit(False))
    length = (pl.col("end") - pl.col("start")).clip(lower_bound=0).fill_null(0)
    work = pl.concat([kernels, copies.select(kernels.columns)]).with_columns(gpu_ns=length).drop("start", "end")
    keys = ["process", "correlation"]
    calls = profile.launches.join(work.select(keys).unique(), on=keys, how="semi")
    calls = calls.sort("start", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    calls = calls.select(*keys, "thread", "start", end=pl.max_horizontal("start", "end"))
    return work.join(calls, on=keys, how="left", maintain_order="left")


def _copy_name(kind: pl.Expr) -> pl.Expr:
    return pl.format("({})", pl.when(kind == "memset").then(kind).otherwise(pl.format("copy {}", kind)))


def innermost(tree: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return the row of the innermost range around each call, null where there is none.

    Args:
        tree: thread, start, end, parent of ranges, as `annot.correlate.nesting.Nest.tree`.
        calls: thread, start, end; null if unknown.
    """
    rows = tree.select("thread", "start").with_row_index("range").with_columns(pl.col("range").cast(pl.Int64))
    known = calls.with_row_index("call").filter(pl.col("start").is_not_null()).sort("start")
    known = known.join_asof(
        rows.sort("start", maintain_order=True),
        on="start",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    return _climbed(tree, known.select("call", "end", "range"), calls.height)


def _climbed(tree: pl.DataFrame, pending: pl.DataFrame, height: int) -> pl.Series:
    """Go from the last range that began before each call to the first one around it that has not ended."""
    found = []
    while not (pending := pending.filter(pl.col("range").is_not_null())).is_empty():
        around = tree["end"].gather(pending["range"]) >= pending["end"]
        found.append(pending.filter(around))
        pending = pending.filter(~around)
        pending = pending.with_columns(tree["parent"].gather(pending["range"]).alias("range"))
    rows = pl.DataFrame({"call": pl.Series(range(height), dtype=pl.UInt32)})
    if not found:
        return pl.Series("range", [None] * height, pl.Int64)
    return rows.join(pl.concat(found), on="call", how="left", maintain_order="left")["range"]
