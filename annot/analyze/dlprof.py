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
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from annot import layer_path
from annot.analyze.kernels import layer_kernels, only_told, with_classes
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
    ranges = attribution.ranges().select("host_ns", "gpu_ns").filter(calls)
    loose = attribution.loose_ranges().select("host_ns", "gpu_ns")
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


def _launch_times(attribution: Attribution) -> pl.DataFrame:
    """The time of the API calls of each layer; one that led to several pieces of work, as of a graph, counts once."""
    calls = _work(attribution).unique(["process", "correlation"], keep="first", maintain_order=True)
    return calls.drop_nulls("launch_ns").group_by(_KEY).agg(pl.col("launch_ns").sum())


def by_iteration(attribution: Attribution) -> pl.DataFrame:
    """Return a row per kernel, copy and set as they ran, by start: DLProf's report of kernels by iteration.

    Returns:
        step (null: in none), layer, module, phase, name, kind, library, tensor_cores (null: the name does not tell),
        process, device, stream, start_ns and gpu_ns on the device, launch_start_ns and launch_ns of the API call
        (null: not known).
    """
    work = only_told(with_classes(_work(attribution))).sort("start_ns", maintain_order=True, nulls_last=True)
    columns = ["process", "device", "stream", "start_ns", "gpu_ns", "launch_start_ns", "launch_ns"]
    return work.select("step", *_KEY, "name", "kind", "library", "tensor_cores", *columns)


def _work(attribution: Attribution) -> pl.DataFrame:
    """Each piece of work with its layer and launch: `_WORK`, launch_start_ns and launch_ns."""
    source, forest = attribution.source, attribution.forest
    keys = pl.DataFrame(forest.keys.names, schema=_KEY, orient="row")
    parts = []
    for block in () if source is None else source.work_blocks():
        placed = attribution.places.of(block).filter(~pl.col("left_out"))
        rows = keys[pl.Series(forest.nodes.keys, dtype=pl.Int64).gather(placed["node"])]
        parts.append(pl.concat([placed.select(_work_columns(placed)), rows], how="horizontal"))
    work = pl.concat([pl.DataFrame(schema=_WORK), *parts], how="diagonal_relaxed")
    return work.join(_calls(attribution), on=["process", "correlation"], how="left", maintain_order="left")


_WORK: Final = {
    "step": pl.Int64, "name": pl.String, "process": pl.Int64, "device": pl.Int64, "stream": pl.Int64,
    "correlation": pl.Int64, "start_ns": pl.Int64, "gpu_ns": pl.Int64, **dict.fromkeys(_KEY, pl.String),
}  # fmt: skip


def _work_columns(placed: pl.DataFrame) -> list[pl.Expr]:
    """The columns of `_WORK` of placed rows; what a block leaves out is null."""
    there = pl.when(pl.col("step") != sweep.NONE).then("step").cast(pl.Int64).alias("step")
    plain = [name for name in ("process", "device", "stream", "correlation") if name in placed.columns]
    numbers = [pl.col(name).cast(pl.Int64) for name in plain]
    start = pl.col("start").cast(pl.Int64).alias("start_ns")
    return [there, pl.col("name").cast(pl.String), *numbers, start, pl.col("gpu_ns")]


def _calls(attribution: Attribution) -> pl.DataFrame:
    """The API call of each id, the first if there are several."""
    schema = dict.fromkeys(("process", "correlation", "launch_start_ns", "launch_ns"), pl.Int64)
    parts = [pl.DataFrame(schema=schema)]
    if attribution.source is not None and known(attribution.meta):
        ns = (pl.col("end") - pl.col("start")).alias("launch_ns")
        columns = [pl.col("process"), pl.col("correlation"), pl.col("start").alias("launch_start_ns"), ns]
        parts += [
            block.select(columns).cast(pl.Int64).drop_nulls("correlation")
            for block in attribution.source.launch_blocks()
        ]
    every = pl.concat(parts).sort("launch_start_ns", maintain_order=True)
    return every.unique(["process", "correlation"], keep="first")


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
    table = [_added_up(layers[groups[group]], group) for group in order]
    table.append(_added_up(layers, MODEL))
    share = _share("tc_ns", "gpu_ns").alias("tc_share")
    return _known(pl.concat(table).with_columns(share), attribution)


def _groups_of(layer: str) -> Iterator[str]:
    """The paths in which a layer lies, itself included; a fused kernel lies in what its layers share."""
    yield from layer_path.within(layer_path.common(layer.split(FUSED)))


def _added_up(layers: pl.DataFrame, group: str) -> pl.DataFrame:
    depth: Any = 0 if group == MODEL else len(layer_path.within(group)) - 1
    return layers.select(
        pl.lit(group).alias("group"), pl.lit(depth, pl.Int64).alias("depth"), pl.len().cast(pl.Int64).alias("layers"),
        *_counts(), pl.col(_SUMMED).sum(),
    )  # fmt: skip
