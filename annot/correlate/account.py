"""Device work, piece by piece, to the ranges and layers that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.forest import Forest
from annot.correlate.launches import BY_TIME, LEFT_OUT, Launches
from annot.correlate.sequence import loops
from annot.correlate.shared_launches import GUESSED
from annot.correlate.sweep_busy import Busy

__all__ = ["FARTHEST", "REASONS", "UNATTRIBUTED", "Account", "Places", "Reach"]

UNATTRIBUTED: Final = "(unattributed)"
"""Layer of the rows with device work that belongs to no range; their module says why."""

REASONS: Final = ("launched in no range", "no launch recorded", "no correlation id")
"""Why work belongs to no range."""

FARTHEST: Final = float(1 << 62)
"""Nanoseconds up to which times are added up; the sums are integers of 64 bits, which nothing checks."""

_PARTS: Final[dict[str, dict[str, type[pl.DataType]]]] = {
    "names": {
        "node": pl.Int32, "name": pl.String, "kernel": pl.Boolean, "calls": pl.Int64, "gpu_ns": pl.Int64,
        "min_ns": pl.Int64, "max_ns": pl.Int64,
    },
    "late": {"node": pl.Int32, "gpu_by_time_ns": pl.Int64},
    "steps": {
        "process_code": pl.Int32, "step": pl.Int32, "gpu_ns": pl.Int64, "kernels": pl.Int64, "copies": pl.Int64,
    },
}  # fmt: skip
"""Sums of blocks, by name of the work, of what follows the clock, and by step."""

_ONE_NODE: Final = pl.Series("node", [0], pl.Int32)


class Reach:
    """Tells whether times can be added up and taken from each other in integers of 64 bits, which nothing checks."""

    def __init__(self) -> None:
        self._first = self._last = 0
        self._any = False
        self._total = 0.0

    def add(self, table: pl.DataFrame) -> None:
        """Take note of the columns start and end of a table."""
        bounds = [table[name].cast(pl.Int64) for name in ("start", "end")]
        instants = [at for column in bounds for at in (column.min(), column.max()) if isinstance(at, int)]
        if not instants:
            return
        first, last = min(instants), max(instants)
        self._first, self._last = (min(first, self._first), max(last, self._last)) if self._any else (first, last)
        self._any = True
        if not self.too_far:
            self._total += float((bounds[1] - bounds[0]).cast(pl.Float64).clip(0).sum())

    @property
    def too_far(self) -> bool:
        """Whether the sum of the lengths, or the time from the first start to the last end, is too long."""
        return self._total > FARTHEST or self._last - self._first > FARTHEST


class Places:
    """Tells of each piece of device work the range and the node that it belongs to.

    Args:
        forest: the ranges; nodes are added for the reasons, and for work that was captured into a CUDA graph.
        launches: all launches of the run.
        whole: the ranges of all steps, `forest` itself if none were chosen. A graph of a step that was asked
            for may have been captured in another.
    """

    def __init__(self, forest: Forest, launches: Launches, whole: Forest) -> None:
        self._forest, self._launches, self._whole = forest, launches, whole
        self.reasons = [
            forest.nodes.extend(sweep.NONE, [forest.keys.number((UNATTRIBUTED, reason, "other"))]) for reason in REASONS
        ]
        """The node of each of `REASONS`."""
        self._loops = loops(whole.says)
        self._guesses = forest.trunk < forest.tree.height
        self._captured: dict[tuple[int, int], int] = {}

    def of(self, work: pl.DataFrame) -> pl.DataFrame:
        """Return rows of `annot.profile.WORK` with gpu_ns and where they belong.

        Returns:
            The rows with process_code, range (row in the tree, -1: none), node, by_time (the range is another
            thread's), guessed (the range is one of several that were open in the process), step (-1: none) and
            left_out (belongs to a step that was not asked for).
        """
        process = self._launches.process_codes(work["process"])
        value, step, cell = self._launches.get(process, work["correlation"])
        captured = bool("origin_start" in work.columns and work["origin_start"].count())
        if captured:
            step = self._steps(process, step, value, work["origin_start"])
        length = (pl.col("end") - pl.col("start")).clip(lower_bound=0).fill_null(0)
        found = pl.col("value") >= 0
        late = (pl.col("value") >= BY_TIME).fill_null(False)
        row, guessed = pl.col("value") - late * BY_TIME, pl.lit(False)
        if self._guesses:
            guessed = ~late & (pl.col("value") >= GUESSED).fill_null(False)
            row -= guessed * GUESSED
        known = (
            value.alias("value"), step.fill_null(sweep.NONE).alias("step"), cell.alias("cell"),
            process.alias("process_code"),
        )  # fmt: skip
        placed = work.with_columns(known).with_columns(
            length.alias("gpu_ns"),
            late.alias("by_time"),
            guessed.alias("guessed"),
            pl.when(found).then(row).otherwise(sweep.NONE).cast(pl.Int32).alias("range"),
            self._left_out(value, step),
        )
        placed = placed.with_columns(self._nodes(placed)).drop("value")
        return self._with_captured(placed) if captured else placed

    def _steps(self, process: pl.Series, step: pl.Series, value: pl.Series, origin: pl.Series) -> pl.Series:
        """Where no launch is known, the step is that of the origin."""
        begun = self._launches.steps.at(process, origin.fill_null(0))
        unlaunched = value.is_null() & origin.is_not_null()
        return pl.select(pl.when(unlaunched).then(begun).otherwise(step).alias("step")).to_series()

    def _left_out(self, value: pl.Series, step: pl.Series) -> pl.Series:
        """Whether work is of a step that was not asked for; that of an unknown step is."""
        steps = self._launches.steps
        if steps.choice is None:
            return pl.repeat(False, value.len(), dtype=pl.Boolean, eager=True).alias("left_out")
        unlaunched = value.is_null() & ~steps.wanted(step.fill_null(sweep.NONE))
        return ((value == LEFT_OUT).fill_null(False) | unlaunched).alias("left_out")

    def _nodes(self, placed: pl.DataFrame) -> pl.Series:
        in_no_range, unlaunched, without_id = self.reasons
        row = pl.select(pl.when(placed["range"] != sweep.NONE).then(placed["range"])).to_series()
        nodes = placed.select(pl.col("value").is_not_null().alias("launched"), "correlation").with_columns(
            self._forest.tree["path"].gather(row).alias("path")
        )
        reason = (
            pl.when("launched").then(in_no_range)
            .when(pl.col("correlation").is_not_null()).then(unlaunched)
            .otherwise(without_id)
        )  # fmt: skip
        return nodes.select(pl.coalesce("path", reason).cast(pl.Int32).alias("node")).to_series()

    def _with_captured(self, placed: pl.DataFrame) -> pl.DataFrame:
        """Put the layers in which work was captured below the range in which its graph was launched."""
        instant = placed["origin_start"].fill_null(0)
        thread = self._whole.threads.codes(placed["origin_thread"])
        owner = self._origins.owners(thread, instant, instant)
        hit = pl.select(pl.when((owner != sweep.NONE) & placed["origin_start"].is_not_null()).then(owner)).to_series()
        pairs = placed.select("node").with_columns(self._whole.tree["path"].gather(hit).alias("origin"))
        distinct = pairs.drop_nulls().unique()
        nodes = [self._captured_node(node, origin) for node, origin in distinct.iter_rows()]
        distinct = distinct.with_columns(pl.Series("led", nodes, pl.Int32))
        pairs = pairs.join(distinct, on=["node", "origin"], how="left", maintain_order="left")
        if self._whole is not self._forest:
            hit = self._among_chosen.gather(hit)
        no_range = placed["range"] == sweep.NONE
        return placed.with_columns(
            pairs.select(pl.coalesce("led", "node")).to_series().alias("node"),
            pl.select(pl.when(no_range & hit.is_not_null()).then(hit).otherwise(placed["range"]))
            .to_series()
            .alias("range"),
        )

    @cached_property
    def _origins(self) -> sweep.Tree:
        if self._whole is self._forest:
            return self._launches.tree
        return self._whole.of_threads()

    @cached_property
    def _among_chosen(self) -> pl.Series:
        """The row in the tree of each range of all steps; null where it was not chosen."""
        rows = self._forest.tree.select("id", row=pl.int_range(pl.len(), dtype=pl.Int32))
        return self._whole.tree.select("id").join(rows, on="id", how="left", maintain_order="left")["row"]

    def _captured_node(self, node: int, origin: int) -> int:
        if (node, origin) not in self._captured:
            nodes = self._forest.nodes
            around = sweep.NONE if node in self.reasons else node
            there = set(nodes.chain(around))
            chain = self._whole.nodes.chain(origin)
            layers = self._same_keys(key for key in chain if key not in self._loops)
            layers = [key for key in layers if key not in there]
            if around == sweep.NONE and not layers:  # it lies in loops alone, and must count somewhere
                layers = self._same_keys(chain)
            self._captured[node, origin] = nodes.extend(around, layers)
        return self._captured[node, origin]

    def _same_keys(self, keys: Iterable[int]) -> list[int]:
        """The numbers of keys of the whole run among those that take part."""
        return [self._forest.keys.number(self._whole.keys.names[key]) for key in keys]


class Account:
    """Adds device work up, block by block.

    Args:
        forest: the ranges.
        launches: all launches of the run.
        places: tells where work belongs.
    """

    def __init__(self, forest: Forest, launches: Launches, places: Places) -> None:
        self._forest, self._launches, self._places = forest, launches, places
        launches.loose.clear()
        self._known = len(forest.nodes)
        self._busy = Busy(*forest.nodes.columns())
        self._whole = Busy(_ONE_NODE.replace(0, sweep.NONE), _ONE_NODE)
        self._parts = {name: [pl.DataFrame(schema=schema)] for name, schema in _PARTS.items()}
        self._devices: dict[tuple[int | None, int | None], int] = {}
        self.settled = True
        """Whether the sums hold: the work came in order, and its chains of layers were known before."""
        self.reach = Reach()
        """What the work takes; past the limit the account is void."""
        self.guessed_ns = 0
        """Time of the work that was launched while several ranges of its process were open, none in another."""
        self.left_out = 0
        """Pieces of work that belong to no step that was asked for."""

    def add(self, work: pl.DataFrame) -> None:
        """Add rows of `annot.profile.WORK`."""
        self.reach.add(work)
        if self.reach.too_far:
            return
        placed = self._places.of(work)
        kept = self._kept(placed)
        self._launches.loose.add(kept["cell"], kept["gpu_ns"])
        counted = kept.select(
            "gpu_ns", kernels=pl.col("kernel").cast(pl.Int64), copies=(~pl.col("kernel")).cast(pl.Int64)
        )
        self._add_late(kept)
        self.guessed_ns += int(kept["gpu_ns"].filter(kept["guessed"]).sum())
        self._parts["names"].append(_by_name(kept))
        self._parts["steps"].append(_by_step(kept, counted))
        self.settled &= self._known == len(self._forest.nodes)
        if self.settled:
            self.settled = self._add_busy(kept)

    def _kept(self, placed: pl.DataFrame) -> pl.DataFrame:
        if not placed["left_out"].any():
            return placed
        kept = placed.filter(~pl.col("left_out"))
        self.left_out += placed.height - kept.height
        return kept

    def _add_late(self, kept: pl.DataFrame) -> None:
        """Add what belongs to the range of another thread only because of the time."""
        late = kept.filter("by_time")
        if not late.is_empty():
            self._parts["late"].append(late.group_by("node").agg(pl.col("gpu_ns").sum().alias("gpu_by_time_ns")))

    def _add_busy(self, kept: pl.DataFrame) -> bool:
        timed = kept.filter(pl.col("start").is_not_null()) if kept["start"].null_count() else kept
        ends = timed.select(pl.max_horizontal("start", "end").alias("end")).to_series()
        when = (self._device_codes(timed), timed["start"], ends)
        self._whole.add(_ONE_NODE.new_from_index(0, timed.height), *when)
        return self._busy.add(timed["node"], *when)

    def _device_codes(self, kept: pl.DataFrame) -> pl.Series:
        """A number for each device of each process: both say 0, and may mean different ones."""
        packed = _packed("process_code", pl.col("device").fill_null(-1))
        named = kept.select("process", "device", packed)
        there = named.unique("packed", maintain_order=True)
        pairs = there.select("process", "device").iter_rows()
        codes = [self._devices.setdefault((process, device), len(self._devices)) for process, device in pairs]
        there = there.select("packed", pl.Series("code", codes, pl.Int32))
        return named.join(there, on="packed", how="left", maintain_order="left")["code"]

    def of_names(self) -> pl.DataFrame:
        """Return node, name, kernel, calls, gpu_ns, min_ns, max_ns: a row per node and name of work."""
        sums = (pl.col("calls", "gpu_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max())
        return pl.concat(self._parts["names"]).group_by("node", "name", "kernel", maintain_order=True).agg(*sums)

    def of_nodes(self) -> pl.DataFrame:
        """Return node, gpu_self_ns, kernels, copies, gpu_by_time_ns of each node with work of its own."""
        calls = pl.col("calls")
        nodes = self.of_names().group_by("node", maintain_order=True).agg(
            pl.col("gpu_ns").sum().alias("gpu_self_ns"),
            calls.filter("kernel").sum().alias("kernels"),
            calls.filter(~pl.col("kernel")).sum().alias("copies"),
        )  # fmt: skip
        late = pl.concat(self._parts["late"]).group_by("node").agg(pl.col("gpu_by_time_ns").sum())
        return nodes.join(late, on="node", how="left", maintain_order="left")

    def of_steps(self) -> pl.DataFrame:
        """Return process_code, step, gpu_ns, kernels, copies of each step with work."""
        steps = pl.concat(self._parts["steps"])
        return steps.group_by("process_code", "step").agg(pl.col("gpu_ns", "kernels", "copies").sum())

    def busy(self) -> pl.DataFrame:
        """Return what `Busy.result` does, with process and device in the place of the device's code."""
        return self._named(self._busy.result())

    def device_busy(self) -> pl.DataFrame:
        """Return process, device, busy_ns, first_ns, last_ns of each device."""
        return self._named(self._whole.result()).drop("key")

    def _named(self, busy: pl.DataFrame) -> pl.DataFrame:
        devices = pl.DataFrame(
            [(code, *pair) for pair, code in self._devices.items()],
            schema={"code": pl.Int32, "process": pl.Int64, "device": pl.Int64}, orient="row",
        )  # fmt: skip
        return busy.rename({"device": "code"}).join(devices, on="code", how="left").drop("code")


def _packed(high: str, low: str | pl.Expr) -> pl.Expr:
    """Two small numbers as one, by which to group faster than by two."""
    number = pl.col(low) if isinstance(low, str) else low
    return (pl.col(high).cast(pl.Int64) * 2**32 + number.cast(pl.Int64)).alias("packed")


def _by_name(kept: pl.DataFrame) -> pl.DataFrame:
    name = kept["name"].cast(pl.Categorical) if kept["name"].dtype == pl.String else kept["name"]
    code = name.to_physical().cast(pl.Int64).fill_null(2**30)
    rows = kept.select("node", "gpu_ns", "kernel", row=pl.int_range(pl.len())).with_columns(code.alias("code"))
    ns = pl.col("gpu_ns")
    sums = rows.group_by(_packed("node", pl.col("code") * 2 + pl.col("kernel"))).agg(
        pl.col("node", "kernel", "row").first(), pl.len().cast(pl.Int64).alias("calls"), ns.sum(),
        ns.min().alias("min_ns"), ns.max().alias("max_ns"),
    )  # fmt: skip
    names = kept["name"].gather(sums["row"]).cast(pl.String)
    return sums.select("node", names, "kernel", "calls", "gpu_ns", "min_ns", "max_ns")


def _by_step(kept: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    rows = pl.concat([kept.select("process_code", "step", _packed("process_code", "step")), counted], how="horizontal")
    first = pl.col("process_code", "step").first()
    sums = pl.col("gpu_ns", "kernels", "copies").sum()
    return rows.filter(pl.col("step") >= 0).group_by("packed").agg(first, sums).drop("packed")
