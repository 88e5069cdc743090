"""The reports of NVIDIA's Deep Learning Profiler (DLProf), from any profile.

DLProf correlates kernels with operations, which it names by call stacks; here a layer takes the place of an operation,
and its class that of an operation's type. What DLProf calls CPU time is `host` here, since that is what it is the time
of; Direction is `phase`, which knows more than two; Op Name is `layer`; Using TC is `tc_used`. All times are integers
of ns instead of rounded ones. CPU Overhead, the time of API calls, is `launch_ns`. Not here: grids and blocks of
kernels and stack traces, which not all profiles know, and GPU Idle of single operations (of the steps,
`annot.analyze.step_time` says what kept devices waiting).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from annot import layer_path
from annot.analyze.calls import calls_of
from annot.analyze.kernels import layer_kernels, only_told, with_classes
from annot.analyze.pieces import placed_blocks
from annot.analyze.tensor_cores import layer_tensor_cores, tensor_core_work
from annot.correlate import UNATTRIBUTED, by_layer, sweep
from annot.correlate.attribution import Attribution
from annot.correlate.host_times import known
from annot.correlate.keys import BATCH, DATA, EPOCH
from annot.tag import FUSED

__all__ = ["MODEL", "by_detail", "by_group", "by_iteration", "by_op_type", "by_tensor_core", "layers_in"]

MODEL: Final = "(model)"
"""The group of all layers; DLProf's ``_CompleteModel_``."""

_KEY: Final = ["layer", "module", "phase"]
_LAYER_PHASES: Final = ("forward", "backward", "recompute")
_FORWARD: Final = pl.col("phase") == "forward"
_BACKWARD: Final = pl.col("phase").is_in(["backward", "recompute"])


def layers_in(rows: pl.DataFrame) -> pl.DataFrame:
    """Return those rows of `annot.correlate.by_layer` that are about layers of a model.

    Where no layers were recorded, operations and whatever else has a name take their place.
    """
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    layers = rows.filter(named & pl.col("phase").is_in(_LAYER_PHASES))
    if layers.height:
        return layers
    return rows.filter((pl.col("layer") != "") & ~pl.col("layer").is_in([EPOCH, BATCH, DATA, UNATTRIBUTED]))


def by_detail(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer, class and phase with all that is known of it: DLProf's detailed report.

    Returns:
        layer, module, phase, calls; tc_eligible, tc_used, reason: see `annot.analyze.tensor_cores`; host_ns, gpu_ns
        with what lies inside, and their mean, min and max over the calls; gpu_self_ns, of which tc_ns in kernels on
        Tensor Cores, matrix_ns in products of matrices and outside_ns elsewhere, with outside: where; launch_ns: host
        time of the API calls that launched what is its own; shapes.
    """
    rows = by_layer(attribution).select(*_KEY, "calls", "host_ns", "gpu_ns", "shapes")
    kernels = layer_kernels(attribution).select(*_KEY, "matrix_ns", "outside_ns", "outside")
    for part in (layer_tensor_cores(attribution), kernels, _extremes(attribution), _launch_times(attribution)):
        rows = rows.join(part, on=_KEY, how="left", maintain_order="left")
    calls = pl.when(pl.col("calls") > 0).then("calls")
    means = [(pl.col(name) // calls).alias(name.replace("_ns", "_mean_ns")) for name in ("host_ns", "gpu_ns")]
    return _known(rows.with_columns(means), attribution).select(
        *_KEY, "calls", "tc_eligible", "tc_used",
        *(f"{of}{what}_ns" for of in ("host", "gpu") for what in ("", "_mean", "_min", "_max")),
        "gpu_self_ns", "tc_ns", "matrix_ns", "outside_ns", "outside", "launch_ns", "reason", "shapes",
    )  # fmt: skip


def _extremes(attribution: Attribution) -> pl.DataFrame:
    """The shortest and longest call of each layer, on the host and on devices."""
    forest = attribution.forest
    tree = forest.tree.select("path", around=pl.col("path").gather(pl.col("parent").clip(lower_bound=0)))
    within = forest.tree["parent"] != sweep.NONE
    calls = (tree["path"] != sweep.NONE) & (~within | (tree["path"] != tree["around"]))
    key = pl.Series("key", forest.nodes.keys, pl.Int64).gather(tree["path"].filter(calls))
    ranges = _range_times(attribution).filter(calls)
    loose = forest.loose.select(host_ns=pl.col("end") - pl.col("start"), gpu_ns=attribution.loose_gpu_ns)
    loose_key = forest.says["key"].cast(pl.Int64).gather(forest.loose["says"]).alias("key")
    parts = [ranges.with_columns(key.alias("key")), loose.with_columns(loose_key)]
    if not known(attribution.meta):
        parts = [part.with_columns(host_ns=pl.lit(None, pl.Int64)) for part in parts]
    times = {
        f"{of}_{what}_ns": getattr(pl.col(f"{of}_ns"), what)() for of in ("host", "gpu") for what in ("min", "max")
    }
    rows = pl.concat(parts).drop_nulls("key").group_by("key").agg(**times)
    names = pl.DataFrame(forest.keys.names, schema=_KEY, orient="row")
    return pl.concat([names[rows["key"]], rows.drop("key")], how="horizontal")


def _range_times(attribution: Attribution) -> pl.DataFrame:
    """Host and device time of each range of the tree, with what lies inside."""
    tree = attribution.forest.tree
    own = attribution.range_work()["gpu_self_ns"]
    return tree.select(host_ns=pl.col("end") - pl.col("start"), gpu_ns=sweep.fold(tree["parent"], own))


def _launch_times(attribution: Attribution) -> pl.DataFrame:
    """The time of the API calls of each layer; one that led to several pieces of work, as of a graph, counts once."""
    calls, keys = calls_of(attribution), _keys_of_nodes(attribution)
    first = pl.Series("node", [None], pl.Int32).new_from_index(0, len(calls.ns))
    for block in _blocks(attribution):
        row = calls.rows(block["process"], block["correlation"])
        led = pl.DataFrame({"row": row, "node": block["node"]}).drop_nulls("row").unique("row", keep="first")
        new = led.filter(first.gather(led["row"]).is_null())
        first = first.scatter(new["row"], new["node"])
    sums = pl.DataFrame({"node": first, "launch_ns": calls.ns}).drop_nulls().group_by("node").agg(pl.all().sum())
    return pl.concat([keys[sums["node"]], sums], how="horizontal").group_by(_KEY).agg(pl.col("launch_ns").sum())


def by_iteration(attribution: Attribution) -> pl.DataFrame:
    """Return a row per kernel, copy and set as they ran, by start: DLProf's report of kernels by iteration.

    Returns:
        step (null: in none), layer, module, phase, name, kind, library, tensor_cores (null: the name does not tell),
        process, device, stream, start_ns and gpu_ns on the device, launch_start_ns and launch_ns of the API call
        (null: not known). Texts are `pl.Categorical`, since each stands in many of the rows.
    """
    calls, keys = calls_of(attribution), _keys_of_nodes(attribution).cast(pl.Categorical)
    parts = [pl.DataFrame(schema=_ITERATION)]
    for block in _blocks(attribution):
        row = calls.rows(block["process"], block["correlation"])
        columns = [pl.col(name).cast(pl.Int64) for name in ("process", "device", "stream") if name in block.columns]
        there = block.select(
            pl.when(pl.col("step") != sweep.NONE).then("step").cast(pl.Int64).alias("step"), *columns,
            pl.col("start").cast(pl.Int64).alias("start_ns"), "gpu_ns", launch_start_ns=calls.start.gather(row),
            launch_ns=calls.ns.gather(row),
        )  # fmt: skip
        kinds = only_told(with_classes(block.select("name")))
        rows = pl.concat([there, keys[block["node"]], kinds], how="horizontal")
        parts.append(
            rows.select(
                (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(dtype)
                for name, dtype in _ITERATION.items()
            )
        )
    del calls
    work = pl.concat(parts)
    del parts
    return (
        work
        if work["start_ns"].is_sorted(nulls_last=True)
        else work.sort("start_ns", maintain_order=True, nulls_last=True)
    )


_ITERATION: Final = {
    "step": pl.Int64, **dict.fromkeys((*_KEY, "name", "kind", "library"), pl.Categorical), "tensor_cores": pl.Boolean,
    **dict.fromkeys(("process", "device", "stream", "start_ns", "gpu_ns", "launch_start_ns", "launch_ns"), pl.Int64),
}  # fmt: skip


def _blocks(attribution: Attribution) -> Iterator[pl.DataFrame]:
    return iter(()) if attribution.source is None else placed_blocks(attribution)


def _keys_of_nodes(attribution: Attribution) -> pl.DataFrame:
    """Layer, module class and phase of each node."""
    forest = attribution.forest
    return pl.DataFrame(forest.keys.names, schema=_KEY, orient="row")[pl.Series(forest.nodes.keys, dtype=pl.Int64)]


def by_tensor_core(attribution: Attribution) -> pl.DataFrame:
    """Return a row per layer that has kernels of its own or could use Tensor Cores, in the order of `by_layer`.

    Returns:
        layer, module, phase, tc_eligible, tc_used; gpu_self_ns, of which tc_ns in kernels on Tensor Cores, and
        other_ns; tc_share, from 0 to 1; kernels, of which tc_kernels; tc_names and other_names: lists of names, the
        longest total first; reason: why it does not use them.
    """
    work = tensor_core_work(attribution).filter("kernel").sort("gpu_ns", "name", descending=[True, False])
    uses = pl.col("tensor_cores")
    kernels = work.group_by(_KEY, maintain_order=True).agg(
        pl.col("calls").sum().alias("kernels"),
        pl.col("calls").filter(uses).sum().alias("tc_kernels"),
        pl.col("name").filter(uses).alias("tc_names"),
        pl.col("name").filter(~uses).alias("other_names"),
    )
    rows = layer_tensor_cores(attribution).join(kernels, on=_KEY, how="left", maintain_order="left")
    rows = rows.filter(pl.col("kernels").is_not_null() | (pl.col("tc_eligible") & _on_device(attribution)))
    return rows.select(
        *_KEY, "tc_eligible", "tc_used", "gpu_self_ns", "tc_ns", other_ns=pl.col("gpu_self_ns") - pl.col("tc_ns"),
        tc_share=_share("tc_ns", "gpu_self_ns"), kernels=pl.col("kernels").fill_null(0),
        tc_kernels=pl.col("tc_kernels").fill_null(0), tc_names=pl.col("tc_names").fill_null([]),
        other_names=pl.col("other_names").fill_null([]), reason="reason",
    )  # fmt: skip


def _on_device(attribution: Attribution) -> bool:
    """Whether anything ran on a device."""
    return bool(attribution.nodes.select((pl.col("kernels") + pl.col("copies")).sum() > 0).item())


_OF_DEVICES: Final = ("matrix_ns", "outside_ns", "outside", "launch_ns", "reason")


def _known(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """The table with null in what tells of devices, if nothing ran on one: 0 would say that it was measured."""
    if _on_device(attribution):
        return table
    unknown = [name for name in table.columns if name.startswith(("tc_", "gpu_")) or name in _OF_DEVICES]
    return table.with_columns(pl.lit(None, table.schema[name]).alias(name) for name in unknown)


def _share(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def by_op_type(attribution: Attribution) -> pl.DataFrame:
    """Return a row per class of layers, forward and backward together, the longest first.

    Returns:
        module (an operation, where no layers were recorded); layers: how many distinct there are, of which
        tc_eligible and tc_used; calls: forward ones, if there are any; host_ns, gpu_ns: what is the layers' own, of
        which tc_ns; gpu_mean_ns, gpu_min_ns, gpu_max_ns: gpu_ns by call, over all and over the layers; forward_ns,
        backward_ns: the parts of gpu_ns by phase (recompute is backward). If nothing ran on a device, what tells of
        devices is null, and forward_ns and backward_ns are parts of host_ns.
    """
    kind = pl.when(pl.col("module") != "").then("module").otherwise("layer")
    rows = _layers(attribution).with_columns(kind.alias("module"))
    per_layer = rows.group_by("module", "layer", maintain_order=True).agg(*_sums())
    mean = pl.when(pl.col("calls") > 0).then(pl.col("gpu_ns") // pl.col("calls"))
    table = per_layer.with_columns(mean.alias("mean")).group_by("module", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("layers"), *_counts(), pl.col(_SUMMED).sum(),
        gpu_min_ns=pl.col("mean").min(), gpu_max_ns=pl.col("mean").max(),
    )  # fmt: skip
    table = table.sort("gpu_ns", "host_ns", descending=True, maintain_order=True).with_columns(gpu_mean_ns=mean)
    return _known(table, attribution).select(
        "module", "layers", "tc_eligible", "tc_used", "calls", "host_ns", "gpu_ns", "tc_ns", "gpu_mean_ns",
        "gpu_min_ns", "gpu_max_ns", "forward_ns", "backward_ns",
    )  # fmt: skip


_SUMMED: Final = ["calls", "host_ns", "gpu_ns", "tc_ns", "forward_ns", "backward_ns"]


def _layers(attribution: Attribution) -> pl.DataFrame:
    """The rows about layers, with what is their own."""
    rows = layers_in(by_layer(attribution).select(*_KEY, "calls", "host_self_ns", "gpu_self_ns"))
    used = layer_tensor_cores(attribution).drop("gpu_self_ns", "reason")
    rows = rows.join(used, on=_KEY, how="left", maintain_order="left")
    rows = rows.rename({"host_self_ns": "host_ns", "gpu_self_ns": "gpu_ns"})
    return rows.with_columns(time_ns=pl.col("gpu_ns" if _on_device(attribution) else "host_ns"))


def _sums() -> list[pl.Expr]:
    """Of the phases of a layer: what is added up, and whether it is true of any."""
    calls = pl.when(_FORWARD.any()).then(pl.col("calls").filter(_FORWARD).sum()).otherwise(pl.col("calls").sum())
    return [
        calls.alias("calls"), pl.col("host_ns", "gpu_ns", "tc_ns").sum(),
        pl.col("time_ns").filter(_FORWARD).sum().alias("forward_ns"),
        pl.col("time_ns").filter(_BACKWARD).sum().alias("backward_ns"),
        pl.col("tc_eligible").any(), pl.col("tc_used").any(),
    ]  # fmt: skip


def _counts() -> list[pl.Expr]:
    return [pl.col(name).sum().cast(pl.Int64) for name in ("tc_eligible", "tc_used")]


def by_group(attribution: Attribution) -> pl.DataFrame:
    """Return a row per path of layers with all layers below it, a group before those in it; the last is the model.

    Returns:
        group: the path; depth: how many dots it has; layers: how many distinct ones lie in it, it included, of which
        tc_eligible and tc_used; calls: added up over them; host_ns, gpu_ns and of it tc_ns, forward_ns, backward_ns:
        sums of what is the layers' own; tc_share: tc_ns over gpu_ns; without a device as in `by_op_type`. The last row,
        `MODEL`, is the sum of all layers.
    """
    rows = _layers(attribution)
    layers = rows.group_by("layer", maintain_order=True).agg(*_sums())
    groups: dict[str, list[int]] = defaultdict(list)
    for place, layer in enumerate(layers["layer"]):
        for group in _groups_of(layer):
            groups[group].append(place)
    first = {group: members[0] for group, members in groups.items()}
    order = sorted(groups, key=lambda group: [first[above] for above in _groups_of(group)])
    table = _added_up(layers, [*order, MODEL], [*(groups[group] for group in order), range(layers.height)])
    share = _share("tc_ns", "gpu_ns").alias("tc_share")
    return _known(table.with_columns(share), attribution)


def _groups_of(layer: str) -> Iterator[str]:
    """The paths in which a layer lies, itself included; a fused kernel lies in what its layers share."""
    yield from layer_path.within(layer_path.common(layer.split(FUSED)))


def _added_up(layers: pl.DataFrame, groups: list[str], members: Iterable[Iterable[int]]) -> pl.DataFrame:
    """Add up the rows of layers that are members of each group."""
    depths = [0 if group == MODEL else len(layer_path.within(group)) - 1 for group in groups]
    pairs = [(number, place) for number, places in enumerate(members) for place in places]
    place = pl.DataFrame(pairs, schema={"number": pl.Int64, "place": pl.Int64}, orient="row")
    sums = layers[place["place"]].with_columns(place["number"]).group_by("number").agg(
        pl.len().cast(pl.Int64).alias("layers"), *_counts(), pl.col(_SUMMED).sum()
    )  # fmt: skip
    table = pl.DataFrame({"number": range(len(groups)), "group": groups, "depth": depths})
    rows = table.join(sums, on="number", how="left", maintain_order="left").drop("number")
    return rows.with_columns(pl.exclude("group").fill_null(0))
