"""Real profiles with one thing changed, by code without chance: what another program or another recording has.

Methods of `Planted` stretch the time of all tables alike, so that launches, kernels and ranges keep their order.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl
from shared_data import shared, unpacked

import annot
from annot.analyze.gpu_activities import attributed_kernels
from annot.analyze.step_parts import merged, within
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.column_ops import NONE
from annot.profile import RANGES, Profile

_ID: Final = ["process", "correlation"]
_TABLES: Final = ("ranges", "marks", "launches", "kernels", "copies")
_TIMES: Final = ("start", "end", "origin_start")


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


@dataclass(frozen=True)
class Planted:
    """A profile to change."""

    profile: Profile

    @cached_property
    def attribution(self) -> Attribution:
        """The attribution of the profile."""
        return attribute(self.profile)

    # -------------------------------------------------------------- what to change

    def nodes(self, layer: str, phase: str) -> pl.Series:
        """Return which nodes are those of a layer and phase."""
        return (
            self.attribution.forest.layers_of_nodes()
            .select((pl.col("layer") == layer) & (pl.col("phase") == phase))
            .to_series()
        )

    def kernels_of(self, layer: str, phase: str, names: str = "") -> pl.Series:
        """Return which kernels a layer launches itself; `names`: a regular expression for their names."""
        rows = attributed_kernels(self.attribution, self.profile.kernels)
        mine = rows.filter(self.nodes(layer, phase).gather(rows["node"]))["row"]
        here = pl.int_range(self.profile.kernels.height, eager=True).is_in(mine.implode())
        return here & self.profile.kernels["name"].str.contains(names)

    def calls_of(self, layer: str, phase: str) -> pl.DataFrame:
        """Return thread, start and end of the ranges of a layer."""
        forest = self.attribution.forest
        mine = self.nodes(layer, phase).gather(forest.tree["path"].clip(0)) & (forest.tree["path"] >= 0)
        thread = forest.threads.table["thread"].gather(forest.tree["thread"])
        rows = forest.tree.select("start", "end", "parent", "path").with_columns(thread.alias("thread"))
        outer = rows["path"].gather(rows["parent"].clip(0)) == rows["path"]
        return rows.filter(mine & ~(outer & (rows["parent"] >= 0))).select("thread", "start", "end")

    def steps(self) -> pl.DataFrame:
        """Return the steps: process, step, start, end."""
        return self.attribution.steps.table.sort("start")

    # -------------------------------------------------------------- changes

    def moved(self, new_time: Callable[[pl.Series], pl.Series]) -> Planted:
        """Return the profile with other times."""
        tables: dict[str, Any] = {}
        for name in _TABLES:
            table: pl.DataFrame = getattr(self.profile, name)
            tables[name] = table.with_columns(
                new_time(table[time]).alias(time) for time in _TIMES if time in table.columns
            )
        return Planted(replace(self.profile, **tables))

    def stretched(self, spans: pl.DataFrame, factor: float) -> Planted:
        """Return the profile in which the time in some spans takes longer by a factor."""
        free = merged(spans.select(pl.col("start", "end").cast(pl.Int64)))
        return self.moved(lambda times: times + ((factor - 1) * within(times, free)).round().cast(pl.Int64))

    def slowed(self, factor: float) -> Planted:
        """Return the profile in which everything takes longer."""
        start = self.profile.ranges["start"].min()
        return self.moved(lambda times: ((times - start) * factor).round().cast(pl.Int64) + start)

    def waiting(self, times: pl.Series, ns: int) -> Planted:
        """Return the profile with a wait at some times, in which nothing starts or ends."""
        at = times.cast(pl.Int64).sort()
        return self.moved(lambda each: each + ns * at.search_sorted(each, side="left").cast(pl.Int64))

    def with_kernels(self, kernels: pl.DataFrame) -> Planted:
        return Planted(replace(self.profile, kernels=kernels))

    def with_ranges(self, *tables: pl.DataFrame) -> Planted:
        """Return the profile with the ranges of some tables; they get new ids."""
        rows = pl.concat([table.select(list(RANGES)) for table in tables]).sort("start", "id", maintain_order=True)
        return Planted(replace(self.profile, ranges=rows.with_columns(id=pl.int_range(pl.len(), dtype=pl.Int64))))

    def longer(self, which: pl.Series, factor: float) -> Planted:
        """Return the profile in which some kernels take longer."""
        return self.stretched(self.profile.kernels.filter(which), factor)

    def renamed(self, which: pl.Series, name: str) -> Planted:
        """Return the profile in which some kernels have another name."""
        names = pl.when(which).then(pl.lit(name)).otherwise("name").alias("name")
        return self.with_kernels(self.profile.kernels.with_columns(names))

    def repeated(self, which: pl.Series, name: str | None = None) -> Planted:
        """Return the profile in which a kernel, or another one with a name, runs after each of some kernels."""
        kernels = self.longer(which, 2).profile.kernels
        middle = ((pl.col("start") + pl.col("end")) // 2).cast(pl.Int64)
        first = kernels.with_columns(end=pl.when(which).then(middle).otherwise("end"))
        second = kernels.filter(which).with_columns(start=middle)
        if name is not None:
            second = second.with_columns(name=pl.lit(name))
        return Planted(replace(self.longer(which, 2).profile, kernels=pl.concat([first, second]).sort("start")))

    def called_twice(self, layer: str, phase: str) -> Planted:
        """Return the profile in which each call of a layer, with the ranges in it, runs twice."""
        calls = self.calls_of(layer, phase).sort("start")
        ranges = self.profile.ranges.sort("start").join_asof(
            calls.rename({"start": "since", "end": "until"}),
            left_on="start",
            right_on="since",
            by="thread",
            check_sortedness=False,
        )
        inside = (pl.col("end") <= pl.col("until")).fill_null(False)
        new = self.stretched(calls, 2)
        map_ = pl.concat(
            [self.profile.ranges.select("id", old="start"), new.profile.ranges.select(now="start")], how="horizontal"
        )
        mine = ranges.filter(inside)
        starts = mine["since"].replace_strict(map_["old"], map_["now"], return_dtype=pl.Int64)
        length = mine["until"] - mine["since"]
        copies = [
            mine.with_columns(
                start=pl.col("start") - pl.col("since") + starts + shift,
                end=pl.col("end") - pl.col("since") + starts + shift,
            )
            for shift in (0 * length, length)
        ]
        others = new.profile.ranges.filter(~pl.col("id").is_in(mine["id"].implode()))
        return new.with_ranges(others, *copies)

    def relabelled(self, layer: str, phase: str, old: str, new: str, column: str = "text") -> Planted:
        """Return the profile in which the texts of the calls of a layer, or their operators, differ."""
        calls = self.calls_of(layer, phase).sort("start").rename({"start": "since", "end": "until"})
        ranges = self.profile.ranges.sort("start").join_asof(
            calls, left_on="start", right_on="since", by="thread", check_sortedness=False
        )
        inside = (pl.col("end") <= pl.col("until")).fill_null(False)
        text = pl.when(inside).then(pl.col(column).str.replace_all(old, new)).otherwise(column).alias(column)
        return Planted(replace(self.profile, ranges=ranges.with_columns(text).select(list(RANGES))))

    def idle(self) -> pl.DataFrame:
        """Return the spans between GPU activities: start, end."""
        work = pl.concat([self.profile.kernels.select("start", "end"), self.profile.copies.select("start", "end")])
        busy = merged(work)
        return pl.DataFrame({"start": busy["end"], "end": busy["start"].shift(-1)}).drop_nulls()

    def gaps(self, least: int = 0) -> pl.Series:
        """Return a time in each span between GPU activities that is longer than some ns."""
        long = self.idle().filter(pl.col("end") - pl.col("start") > least)
        return long.select((pl.col("start") + pl.col("end")) // 2).to_series()
