"""Device work piece by piece with the layers it belongs to, for analyses of what sums do not show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from annot.analyze.idle import DISPATCH_NS, waiting_calls
from annot.analyze.intervals import merged, within
from annot.correlate import UNATTRIBUTED, Attribution
from annot.correlate.attribution import self_times
from annot.correlate.host_times import known
from annot.correlate.nodes import Nodes
from annot.correlate.sweep import NONE

__all__ = [
    "KEY",
    "device_idle",
    "host_pieces",
    "idle_of_nodes",
    "modules_of_nodes",
    "phases_of_nodes",
    "pieces",
    "placed_blocks",
    "sums_by_group",
    "sums_by_layer",
]

KEY: Final = ("layer", "module", "phase")
"""What a row of `annot.correlate.by_layer` is about."""


_LEVEL: Final = 1000
"""Nodes that are added up one by one in the time that a level of them takes at least."""


def pieces(attribution: Attribution, columns: Iterable[str]) -> pl.DataFrame:
    """Return the chosen columns of all work that takes part, in the order of the profile.

    Args:
        attribution: whose work.
        columns: of those that `annot.correlate.account.Places.of` returns.
    """
    names = list(columns)
    kept = [block.select(names).with_columns(_plain(block, names)) for block in placed_blocks(attribution)]
    return pl.concat(kept, how="vertical_relaxed") if kept else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))


def placed_blocks(attribution: Attribution) -> Iterator[pl.DataFrame]:
    """Yield the work that takes part as `annot.correlate.account.Places.of` returns it, in blocks.

    Raises:
        ValueError: the attribution does not know its source.
    """
    if attribution.source is None:
        raise ValueError("the attribution does not know its source, so its work cannot be gone through again")
    for block in attribution.source.work_blocks():
        yield attribution.places.of(block).filter(~pl.col("left_out"))


def _plain(block: pl.DataFrame, names: list[str]) -> list[pl.Expr]:
    """Names of work as texts of which each is in memory once, whatever they are in their block."""
    texts = (pl.String, pl.Categorical, pl.Enum)
    return [pl.col(name).cast(pl.Categorical) for name in names if block.schema[name] in texts]


def host_pieces(attribution: Attribution) -> pl.DataFrame:
    """Return the ranges that nest, each with what lies in no range inside it: node, process_code, step, time_ns."""
    forest = attribution.forest
    tree = forest.tree
    process = forest.threads.table["process_code"].gather(tree["thread"])
    step = attribution.steps.at(process, tree["start"]).alias("step")
    return tree.select(process, step, node="path", time_ns=self_times(forest))


def phases_of_nodes(attribution: Attribution) -> list[str]:
    """Return the phase of each node: that of the innermost layer around it that has one, else other."""
    nodes, names = attribution.forest.nodes, attribution.forest.keys.names
    phases: list[str] = []
    for above, key in zip(nodes.parents, nodes.keys, strict=True):
        layer, _, phase = names[key]
        around = phases[above] if above != NONE else "other"
        phases.append(UNATTRIBUTED if layer == UNATTRIBUTED else around if phase == "other" else phase)
    return phases


def sums_by_layer(attribution: Attribution, values: pl.DataFrame, *also: str) -> pl.DataFrame:
    """Return values of nodes added up by layer, module class and phase, with what lies below.

    Args:
        attribution: whose nodes.
        values: node, the columns of `also` and numbers to add up.
        also: what rows are told apart by besides.
    """
    layers = pl.DataFrame(attribution.forest.keys.names, schema=dict.fromkeys(KEY, pl.String), orient="row")
    sums = sums_by_group(attribution, values, attribution.forest.nodes.keys, *also)
    return pl.concat([layers[sums["group"]], sums.drop("group")], how="horizontal")


def modules_of_nodes(attribution: Attribution) -> tuple[pl.DataFrame, list[int]]:
    """Return module and phase of each group of layers that have a class, and the group of each node; -1: none."""
    numbers: dict[tuple[str, str], int] = {}
    of_key = [
        numbers.setdefault((module, phase), len(numbers)) if module and layer != UNATTRIBUTED else NONE
        for layer, module, phase in attribution.forest.keys.names
    ]
    groups = pl.DataFrame(list(numbers), schema=dict.fromkeys(KEY[1:], pl.String), orient="row")
    return groups, [of_key[key] for key in attribution.forest.nodes.keys]


def sums_by_group(attribution: Attribution, values: pl.DataFrame, of_node: list[int], *also: str) -> pl.DataFrame:
    """Return values of nodes added up by group, with what lies below; a group in itself counts once.

    Args:
        attribution: whose nodes.
        values: as for `sums_by_layer`.
        of_node: the group of each node; -1: none.
        also: as for `sums_by_layer`.

    Returns:
        group (Int32), the columns of `also` and the numbers.
    """
    nodes = attribution.forest.nodes
    numbers = [name for name in values.columns if name not in ("node", *also)]
    outermost = nodes.outermost(of_node)
    lifted = pl.Series(_nearest(nodes, outermost), dtype=pl.Int32)
    own = values.filter(pl.col("node") != NONE)
    own = own.with_columns(lifted.gather(own["node"]).alias("node")).filter(pl.col("node") != NONE)
    inclusive = _inclusive(nodes, own.group_by("node", *also).agg(pl.col(numbers).sum()), also)
    rows = inclusive.filter(pl.Series(outermost, dtype=pl.Boolean).gather(inclusive["node"]))
    group = pl.Series("group", of_node, pl.Int32).gather(rows["node"])
    return rows.drop("node").with_columns(group).group_by("group", *also).agg(pl.col(numbers).sum())


def _nearest(nodes: Nodes, outermost: list[bool]) -> list[int]:
    """The outermost node of a group from each node up; -1: none. Where layers lie in themselves, few are left."""
    nearest: list[int] = []
    for node, above in enumerate(nodes.parents):
        nearest.append(node if outermost[node] else NONE if above == NONE else nearest[above])
    return nearest


def _inclusive(nodes: Nodes, own: pl.DataFrame, also: tuple[str, ...]) -> pl.DataFrame:
    """Add to the values of each node what lies below: level by level, or node by node where there are many levels."""
    depths: list[int] = []
    for above in nodes.parents:
        depths.append(0 if above == NONE else depths[above] + 1)
    depth = pl.Series("depth", depths, pl.Int32).gather(own["node"])
    deepest = depth.max()
    if not isinstance(deepest, int):
        return own
    if not also:
        return _in_one_pass(nodes, own)
    if own.select(also).n_unique() * len(nodes) > _LEVEL * deepest:
        return _by_level(nodes, own.with_columns(depth), also)
    parts = []
    for values, part in own.partition_by(also, as_dict=True, include_key=False).items():
        place = [pl.lit(value, own.schema[name]).alias(name) for name, value in zip(also, values, strict=True)]
        parts.append(_in_one_pass(nodes, part).with_columns(place))
    return pl.concat(parts)


def _in_one_pass(nodes: Nodes, own: pl.DataFrame) -> pl.DataFrame:
    """Return node and values with what lies below, however deep the nodes lie; null where there is nothing."""
    numbers = own.columns[1:]
    rows = pl.DataFrame({"node": range(len(nodes))}, schema={"node": pl.Int32})
    rows = rows.join(own, on="node", how="left", maintain_order="left")
    for name in numbers:
        totals = rows[name].to_list()
        for node in range(len(totals) - 1, -1, -1):
            above = nodes.parents[node]
            if above != NONE and totals[node] is not None:
                totals[above] = totals[node] + (totals[above] or 0)
        rows = rows.with_columns(pl.Series(name, totals, rows.schema[name]))
    return rows.filter(pl.any_horizontal(pl.col(numbers).is_not_null()))


def _by_level(nodes: Nodes, own: pl.DataFrame, also: tuple[str, ...]) -> pl.DataFrame:
    """The same from the deepest level up, each to the one above; own also has the depth of the node."""
    parent = pl.Series(nodes.parents, dtype=pl.Int32)
    of_level = own.partition_by("depth", as_dict=True, include_key=False)
    carried = own.clear().drop("depth")
    done = []
    for level in range(max(level for (level,) in of_level), NONE, -1):
        every = pl.concat([carried, of_level.pop((level,), carried.clear())])
        done.append(every.group_by("node", *also).agg(pl.all().sum()))
        carried = done[-1].with_columns(parent.gather(done[-1]["node"]).alias("node"))
    return pl.concat(done)


def device_idle(attribution: Attribution) -> pl.DataFrame | None:
    """Return how long devices had nothing to do until the host had launched the next work of a layer.

    From the moment that a device has done all that it was given, or, if that is later, the host has entered the
    innermost range around the launch, up to the start of the work. So a gap counts once, to the layer on which the
    device waited, and what the device waited for before that, as for data, does not count.

    Returns:
        layer, module, phase, gpu_idle_ns, gpu_launch_ns (with what lies below); None: the profile knows no times on the
        host.
    """
    idle = idle_of_nodes(attribution)
    return None if idle is None else sums_by_layer(attribution, idle)


def idle_of_nodes(attribution: Attribution) -> pl.DataFrame | None:
    """Return node (Int32), gpu_idle_ns as `device_idle` counts it and the part of it that is due to launches.

    That part, gpu_launch_ns, is what remains of a gap outside calls that wait for devices or allocate their memory, if
    it is shorter than `annot.analyze.idle.DISPATCH_NS`. A row per piece of work in a range.
    """
    if not known(attribution.meta):
        return None
    waits = waiting_calls(attribution).partition_by("process", as_dict=True)
    entered = attribution.forest.tree["start"]
    parts = [pl.DataFrame(schema={"node": pl.Int32, "gpu_idle_ns": pl.Int64, "gpu_launch_ns": pl.Int64})]
    devices = _by_device(attribution)
    for process, device in list(devices):
        work = pl.concat(devices.pop((process, device)))
        spans = merged(waits[process,]) if (process,) in waits else None
        parts.append(_idle(work if work["start"].is_sorted() else work.sort("start"), entered, spans))
    return pl.concat(parts)


def _by_device(attribution: Attribution) -> dict[tuple[int | None, int | None], list[pl.DataFrame]]:
    """The work in ranges and outside by process and device: start, end (Int64), range, node (Int32)."""
    parts: dict[tuple[int | None, int | None], list[pl.DataFrame]] = defaultdict(list)
    columns = (pl.col("process", "device", "start", "end").cast(pl.Int64), pl.col("range", "node").cast(pl.Int32))
    for block in placed_blocks(attribution):
        rows = block.select(*(column for column in columns)).drop_nulls(["start", "end"])
        for (process, device), part in rows.partition_by("process", "device", as_dict=True, include_key=False).items():
            parts[process, device].append(part)
    return parts


def _idle(work: pl.DataFrame, entered: pl.Series, waits: pl.DataFrame | None) -> pl.DataFrame:
    """What `idle_of_nodes` returns of one device, whose work is by start."""
    since = pl.min_horizontal(pl.max_horizontal(pl.col("end").cum_max().shift(1), "entered"), "start")
    within_ranges = pl.when(pl.col("range") >= 0).then("range")
    began = entered.gather(work.select(within_ranges).to_series()).alias("entered")
    work = work.select("start", "end", "node", began).with_columns(
        since.alias("since"), done=pl.col("end").cum_max().shift(1)
    )
    work = work.drop_nulls(["done", "entered"]).select("start", "since", "node")
    idle = work.select("node", gpu_idle_ns=pl.col("start") - pl.col("since"))
    launch = idle["gpu_idle_ns"]
    if waits is not None:
        launch = launch - (within(work["start"], waits) - within(work["since"], waits))
    due = pl.select(pl.when(launch < DISPATCH_NS).then(launch).otherwise(0)).to_series()
    return idle.with_columns(due.alias("gpu_launch_ns")).group_by("node").agg(pl.all().sum())
