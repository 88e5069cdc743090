"""Real profiles with one thing changed, by code without chance: what another program or another recording has."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from shared_data import shared, unpacked

import annot
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.column_ops import NONE
from annot.profile import Profile

_ID: Final = ["process", "correlation"]


@functools.cache
def real(name: str) -> Profile:
    """Return a real profile of `tests/data` or `../shared/data`; the test skips without it."""
    if name.endswith(".sqlite.gz"):
        with tempfile.TemporaryDirectory() as folder:
            return annot.load(unpacked(name, Path(folder)))
    return annot.load(shared(name))


@functools.cache
def attributed(name: str) -> Attribution:
    """Return the attribution of a real profile."""
    return attribute(real(name))


def of_steps(name: str, steps: slice) -> Attribution:
    """Return the attribution of some steps of a real profile."""
    return attribute(real(name), steps=steps)


def without_work(profile: Profile, drop: pl.Expr, *, launches: bool = False) -> Profile:
    """Return a profile without kernels and copies, as if the profiler had lost them.

    Args:
        profile: the profile.
        drop: which kernels and copies are lost, of their columns and `place` (0 to 1, in order of start).
        launches: also drop their launches.
    """
    work = pl.concat([profile.kernels.select(*_ID, "start"), profile.copies.select(*_ID, "start")]).sort("start")
    lost = work.with_columns(place=pl.int_range(pl.len()) / pl.len()).filter(drop)
    keys = {"kernels": profile.kernels, "copies": profile.copies}
    kept: dict[str, Any] = {
        table: rows.join(lost, on=[*_ID, "start"], how="anti", nulls_equal=True) for table, rows in keys.items()
    }
    if launches:
        kept["launches"] = profile.launches.join(lost.drop_nulls(), on=_ID, how="anti")
    return replace(profile, **kept)


def scattered(share: float) -> pl.Expr:
    """Return a condition that holds for this share of the rows, spread as if by chance."""
    return (pl.int_range(pl.len()) * 2654435761 % (1 << 32)) < share * (1 << 32)


def without_layers(profile: Profile, is_gone: Callable[[str], bool]) -> Profile:
    """Return a profile without the ranges and GPU activities of some layers and of what is inside them."""
    attribution = attribute(profile)
    names, nodes, inside = attribution.forest.keys.names, attribution.forest.nodes, list[bool]()
    for parent, key in zip(nodes.parents, nodes.keys, strict=True):
        inside.append((parent != NONE and inside[parent]) or is_gone(names[key][0]))
    gone = [node for node, left in enumerate(inside) if left]
    assert gone, "the profile has such layers"
    ids = attribution.forest.tree.filter(pl.col("path").is_in(gone)).select("id")
    blocks = [block.filter(pl.col("node").is_in(gone)).select(_ID) for block in attribution.activity_blocks()]
    work = pl.concat([profile.kernels.select(_ID).clear(), *blocks])
    tables = {name: getattr(profile, name).join(work, on=_ID, how="anti") for name in ("kernels", "copies", "launches")}
    return replace(profile, ranges=profile.ranges.join(ids, on="id", how="anti"), **tables)


def without_ranges(profile: Profile) -> Profile:
    """Return a profile of a program that opens no ranges."""
    return replace(profile, ranges=profile.ranges.clear())


def with_texts(profile: Profile, *changes: tuple[str, str], column: str = "text") -> Profile:
    """Return a profile with texts of ranges in which patterns are replaced."""
    text = pl.col(column)
    for pattern, new in changes:
        text = text.str.replace_all(pattern, new)
    changed = profile.ranges.with_columns(text)
    assert not changed.equals(profile.ranges), "the profile has such texts"
    return replace(profile, ranges=changed)


def with_kernels(profile: Profile, *changes: tuple[str, str]) -> Profile:
    """Return a profile with names of kernels in which patterns are replaced."""
    name = pl.col("name")
    for pattern, new in changes:
        name = name.str.replace_all(pattern, new)
    changed = profile.kernels.with_columns(name)
    assert not changed.equals(profile.kernels), "the profile has such kernels"
    return replace(profile, kernels=changed)


def with_meta(profile: Profile, **facts: Any) -> Profile:
    """Return a profile with other facts."""
    return replace(profile, meta=profile.meta | facts)


def slower(profile: Profile, factor: float = 1.0, *, noise: float = 0.0) -> Profile:
    """Return a profile with longer kernels and copies, each by a factor and a noise of its own (of the logarithm)."""
    seed = (pl.int_range(pl.len()) * 2654435761 % 1000) / 1000
    stretch = factor * (noise * (2 * math.pi * seed).sin()).exp()
    end = pl.col("start") + ((pl.col("end") - pl.col("start")) * stretch).cast(pl.Int64)
    return replace(profile, kernels=profile.kernels.with_columns(end=end), copies=profile.copies.with_columns(end=end))


def twice(profile: Profile, name: str) -> Profile:
    """Return a profile in which each call of a range is two calls, one after the other, with the GPU activities."""
    ranges = profile.ranges
    middle = (pl.col("start") + pl.col("end")) // 2
    calls = ranges.filter(pl.col("text").str.contains(name))
    assert calls.height, "the profile has such ranges"
    first = calls.with_columns(end=middle)
    second = calls.with_columns(start=middle, id=pl.col("id") + ranges["id"].max() + 1)
    others = ranges.join(calls.select("id"), on="id", how="anti")
    return replace(profile, ranges=pl.concat([others, first, second]))
