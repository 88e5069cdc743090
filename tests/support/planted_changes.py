"""Real profiles with one planted change: longer kernels, other kernels, further calls, waits.

Changes stretch the time of all tables alike, so that launches, kernels and ranges keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import polars as pl

from annot.analyze.gpu_activities import attributed_kernels
from annot.analyze.step_parts import merged, within
from annot.attribution.attribute import Attribution, attribute
from annot.profile import RANGES, Profile

_TABLES: Final = ("ranges", "marks", "launches", "kernels", "copies")
_TIMES: Final = ("start", "end", "origin_start")


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
