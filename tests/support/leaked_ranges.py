"""Profile of a program that never closes its ranges."""

from __future__ import annotations

import polars as pl

from annot.profile import Profile


def leaked(depth: int) -> Profile:
    """Return a profile of `depth` nested ranges. Each launches a kernel and never ends."""
    at = pl.int_range(depth, eager=True) * 1000
    place = {"process": pl.lit(1, pl.Int64), "thread": pl.lit(101, pl.Int64)}
    number = (at // 1000).alias("id")
    ranges = pl.DataFrame({"id": number, "start": at}).with_columns(
        **place, domain=pl.lit(""), kind=pl.lit("push"), text=pl.format("it_{}", "id")
    )
    launches = pl.DataFrame({"start": at + 5, "end": at + 8, "correlation": number + 1}).with_columns(**place)
    kernels = pl.DataFrame({"start": at + 9, "end": at + 14, "correlation": number + 1}).with_columns(
        place["process"].alias("process"), device=pl.lit(0, pl.Int64), stream=pl.lit(7, pl.Int64), name=pl.lit("k")
    )
    return Profile.build({}, ranges=ranges, launches=launches, kernels=kernels)
