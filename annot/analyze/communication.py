"""Communication between ranks: collectives, stages of a pipeline, and experts of a mixture.

The text of a range shows operation, size and process group of a collective; the name of its kernel only the operation.

A part of a collective is exposed while no compute kernel runs on its device. An exposed nanosecond belongs to the
collective that started first. It counts twice, in different columns: to the layer that launches the collective
(`exposed_ns`), and to the layer of the next compute kernel of the device, which waits (`wait_ns`). Either column adds
up to the exposed communication of the summary. In a process without a GPU, time is exposed while no thread computes a
phase, and the layer around the range of the collective waits.

The actions of a pipeline are the ranges of ``torch.distributed.pipelining``. Experts are layers named ``experts.N``, as
in Mixtral or DeepSeek.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Final

import polars as pl

from annot.analyze.cpu_parts import phase_times
from annot.analyze.step_parts import (
    Device,
    StepInputs,
    calls_of,
    cut,
    exclusive,
    intervals_of,
    merged,
    step_inputs,
    typed,
    within,
    without,
)
from annot.analyze.work.call import UncountableError, item_size
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY
from annot.attribution.range_trees import Forest, loops
from annot.labels import tag
from annot.util.weak_keys import once_for_each

COLLECTIVE: Final = (pl.col("phase") == "collective") | pl.col("layer").str.contains(
    r"^(?:c10d::|nccl:|gloo:|mpi:|nccl[A-Z]|record_param_comms$)"
)
"""Whether a layer and phase are the range of a collective itself: by annot, PyTorch or NCCL."""
UNNAMED: Final = "collective"
"""Operation of a collective whose kernel and ranges do not name it."""
_KERNEL: Final = (
    r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather|scatter|send|recv)"
)
_SPREAD: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_IN_WORDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_NAMES: Final = {name.replace("_", ""): name for name in _IN_WORDS}
_NUMBERS: Final = {"ranks": pl.Int64, "bytes": pl.Int64, "factor": pl.Float64}
_MESSAGE: Final = {"operation": pl.String, "group": pl.String, **_NUMBERS}


@dataclass(frozen=True, slots=True)
class Message:
    """What the label of a collective says.

    Args:
        operation: name of the operation, such as ``all_reduce``.
        group: name of the process group; empty: unknown.
        ranks: number of ranks in the group; None: unknown.
        bytes: size of the message; None: unknown.
    """

    operation: str
    group: str = ""
    ranks: int | None = None
    bytes: int | None = None


def message_of(text: str) -> Message | None:
    """Return the message of a label of annot, or of a call that Kineto recorded; None for other texts.

    Example:
        >>> message_of("Collective all_reduce@default_pg:8 [1024]f32 |coll")
        Message(operation='all_reduce', group='default_pg', ranks=8, bytes=4096)
    """
    tagged = tag.parse(text)
    if tagged is None or tagged.phase != "collective":
        return None
    operation, _, group = tagged.module.partition("@")
    name, _, ranks = group.rpartition(":")
    for joined, words in _NAMES.items():  # "_allgather_base" of PyTorch's C++
        operation = operation.removeprefix("_").replace(joined, words)
    return Message(operation, name, int(ranks) if ranks.isdecimal() else None, _bytes(tagged))


def _bytes(tagged: tag.Tag) -> int | None:
    """The size of all tensors; None if a tensor, a size or a dtype is unknown."""
    tensors = tagged.tensors
    shapes = [[size for size in tensor.shape if size is not None] for tensor in tensors]
    if tagged.omitted or not shapes or any(None in tensor.shape for tensor in tensors):
        return None
    try:
        return sum(math.prod(shape) * item_size(tensor.dtype) for shape, tensor in zip(shapes, tensors, strict=True))
    except UncountableError:
        return None


def bus_factor(operation: str, ranks: int | None) -> float | None:
    """Return the ratio of bus bandwidth to bytes per second; None: the operation or the group is unknown.

    The factors are those of NCCL's tests (``doc/PERFORMANCE.md`` of NVIDIA/nccl-tests). With n ranks, the factor is
    2(n-1)/n for all-reduce; (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter; and 1 for
    broadcast, reduce, send and receive. The size of a message is its larger side: the output of an all-gather, the
    input of a reduce-scatter.

    Example:
        >>> bus_factor("all_reduce", 8), bus_factor("all_gather_into_tensor", 8), bus_factor("broadcast", 8)
        (1.75, 0.875, 1.0)
    """
    if ranks is None or ranks < 2:
        return None
    factor = (ranks - 1) / ranks
    if operation.startswith("all_reduce"):
        return 2 * factor
    if operation.startswith(_SPREAD):
        return factor
    return 1.0 if operation.startswith(("broadcast", "reduce", "send", "recv")) else None


def messages(texts: pl.Series, labels: pl.Series) -> pl.DataFrame:
    """Return operation, group, ranks, bytes and factor (see `bus_factor`) of collectives; null: unknown.

    Args:
        texts: the text of each label, or of its call.
        labels: the label of each collective, a row in `texts` or null.
    """
    distinct = labels.drop_nulls().unique()
    parsed = [(label, message_of(text)) for label, text in zip(distinct, texts.gather(distinct), strict=True)]
    rows = [
        (label, *astuple(message), bus_factor(message.operation, message.ranks))
        for label, message in parsed
        if message is not None
    ]
    table = pl.DataFrame(rows, schema={"label": labels.dtype, **_MESSAGE}, orient="row")
    return labels.to_frame("label").join(table, on="label", how="left", maintain_order="left").drop("label")


def operations(names: pl.Series) -> pl.Series:
    """Return the operation of each kernel name, such as ``all_reduce``; ``collective`` if the name does not show it.

    Example:
        >>> operations(pl.Series(["ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "rcclGenericKernel"])).to_list()
        ['all_reduce', 'collective']
    """
    words = names.cast(pl.String).str.extract(_KERNEL).str.to_lowercase().str.replace_all("_", "")
    return words.replace(_NAMES).fill_null(UNNAMED)


NOBODY: Final = "no kernel follows"
"""Module of the unattributed row of exposed time after the last compute kernel of a device."""

_ELSEWHERE: Final = "launched outside the steps"
"""Module of the unattributed row of kernels that run in the selected steps and were launched in others."""

_REASONS: Final = {NONE: NOBODY, NONE - 1: _ELSEWHERE}
"""Nodes without a layer, and their module."""

_COLLECTIVES: Final = {
    **dict.fromkeys(("process", "device", "start", "end", "calls", "wall_ns"), pl.Int64),
    "range": pl.Int32,
    **dict.fromkeys(KEY, pl.String),
    **_MESSAGE,
}
_EXPOSED: Final = {"row": pl.Int64, "ns": pl.Int64, **dict.fromkeys(KEY, pl.String)}


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of a profile.

    Args:
        table: a row per collective: process, device (null: the process uses no device), start, end (ns), calls (1 if it
            starts in the steps, else 0), wall_ns (its time in the steps, without that of collectives that started
            earlier on the device), range (row in the tree of ranges, -1 for none), layer, module, phase (that launch
            it), operation, and group, ranks, bytes and factor of `annot.analyze.communication.messages`.
        exposed: a row per collective and waiting layer: row (in `table`), ns, layer, module, phase.
    """

    table: pl.DataFrame
    exposed: pl.DataFrame


@once_for_each
def collectives_of(attribution: Attribution) -> Collectives:
    """Return the collectives of each device, and of each process without a GPU, by start."""
    inputs = step_inputs(attribution)
    tables, exposed, count = [pl.DataFrame(schema=_COLLECTIVES)], [pl.DataFrame(schema=_EXPOSED)], 0
    for device, times in inputs.windows.partition_by("process", "device", as_dict=True).items():
        window = merged(intervals_of(times))
        work = inputs.of_device(device)
        if work.is_empty():
            own, waits = _cpu_collectives(attribution, inputs, device, window)
        elif (work["share"] == "collectives").any():
            own, waits = _gpu_collectives(attribution.forest, _kernels(work), window)
        else:
            continue
        process, number = (pl.lit(value, pl.Int64) for value in device)
        tables.append(typed(own.with_columns(process=process, device=number), _COLLECTIVES))
        exposed.append(typed(waits.with_columns(pl.col("row") + count), _EXPOSED))
        count += own.height
    return Collectives(pl.concat(tables), pl.concat(exposed))


def _kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Return start, end, range, node and collective (its name; null: another kernel) of the kernels of a device."""
    node = pl.when("left_out").then(pl.lit(NONE - 1, pl.Int32)).otherwise("node").alias("node")
    collective = pl.when(pl.col("share") == "collectives").then("name").alias("collective")
    rows = work.lazy().filter("kernel").select("start", "end", "range", node, collective)
    return rows.drop_nulls(["start", "end"]).collect()


def _gpu_collectives(forest: Forest, kernels: pl.DataFrame, window: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The collectives of a device, and their exposed time."""
    launched = kernels.filter(pl.col("collective").is_not_null(), pl.col("end") >= pl.col("start"))
    operation = _range_operations(forest, launched["range"])
    own = exclusive(launched.with_columns(operation, _message_ranges(forest, launched["range"])), window)
    own = own.with_columns(forest.tree["label"].gather(own["range"]).alias("label"))
    compute = kernels.filter(pl.col("collective").is_null(), pl.col("end") > pl.col("start"))
    free = without(window, merged(compute))
    exposed = _exposed(own, free, compute.sort("start", maintain_order=True))
    return _described(forest, own.rename({"collective": "name"})), _name_layers(forest, exposed)


def _range_operations(forest: Forest, ranges: pl.Series) -> pl.Series:
    """The operation that the innermost range around each launch names; null: the range is another one.

    NCCL runs an all-to-all as a kernel with the name SendRecv, in a range of PyTorch that is named nccl:all_to_all.
    """
    at = column_ops.known(ranges)
    labels = forest.labels.with_columns(operation=operations(forest.labels["text"]))
    named = labels.select(pl.when(COLLECTIVE, pl.col("operation") != UNNAMED).then("operation")).to_series()
    return named.gather(forest.tree["label"].gather(at)).alias("operation")


def _message_ranges(forest: Forest, ranges: pl.Series) -> pl.Series:
    """The range with the message of each collective: the innermost around its launch, after calls of libraries."""
    tree, labels = forest.tree, forest.labels
    inner = labels.select(COLLECTIVE & (pl.col("phase") != "collective") & pl.col("call").is_null()).to_series()
    at = column_ops.known(ranges)
    while True:
        parent = tree["parent"].gather(at)
        outward = inner.gather(tree["label"].gather(at)).fill_null(False) & (parent >= 0)
        if not outward.any():
            return at
        at = parent.zip_with(outward, at).alias("range")


def _exposed(own: pl.DataFrame, free: pl.DataFrame, compute: pl.DataFrame) -> pl.DataFrame:
    """The exposed time of each collective: row, ns, node of the compute kernel that ends it."""
    pieces = own.select("begin", "until", row=pl.int_range(pl.len())).filter(pl.col("until") > pl.col("begin"))
    spans = without(free, without(free, merged(own)))
    gaps = cut(spans, pieces["begin"]).join_asof(pieces, left_on="start", right_on="begin")
    following = compute.select("node", since="start").unique("since", keep="first", maintain_order=True)
    gaps = gaps.join_asof(following, left_on="end", right_on="since", strategy="forward")
    length = (pl.col("end") - pl.col("start")).sum().alias("ns")
    return gaps.group_by("row", pl.col("node").fill_null(NONE), maintain_order=True).agg(length)


def _cpu_collectives(
    attribution: Attribution, inputs: StepInputs, device: Device, window: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same of a process without a GPU, from its ranges of collectives."""
    forest = attribution.whole
    mine = pl.col("process").eq_missing(pl.lit(device[0], pl.Int64))
    rows = inputs.host["collectives"].filter(mine, pl.col("end") >= pl.col("start"))
    rows = exclusive(rows.with_columns(forest.labels["text"].gather(rows["label"]).alias("name")), window)
    own, layers = _described(forest, rows), forest.layers()[forest.labels["key"].gather(rows["label"])]
    crossing = rows["node"].is_null()  # such a range has no node
    own = own.with_columns(pl.when(crossing).then(layers[name]).otherwise(name).alias(name) for name in KEY)
    free = without(window, merged(phase_times(attribution, inputs).filter(mine)))
    length = within(own["until"], free) - within(own["begin"], free)
    exposed = own.select(*KEY, length.alias("ns"), row=pl.int_range(pl.len()))
    return own, exposed.filter(pl.col("ns") > 0)


def _described(forest: Forest, own: pl.DataFrame) -> pl.DataFrame:
    """Add the layer, operation and message of each collective."""
    parsed = messages(forest.labels.select(pl.coalesce("call", "text")).to_series(), own["label"])
    named = [own["operation"]] if "operation" in own.columns else []
    own = own.with_columns(*parsed.drop("operation").get_columns()).with_columns(
        pl.coalesce(parsed["operation"], *named, operations(own["name"])).alias("operation")
    )
    return _name_layers(forest, own)


def _enclosing_layers(forest: Forest, nodes: pl.Series) -> pl.Series:
    """The layer around each node: the innermost range that is neither a collective nor a loop, or its own."""
    parents, keys = forest.nodes.parents, forest.nodes.keys
    own = set(forest.layers().with_row_index("key").filter(COLLECTIVE)["key"])
    skipped = loops(forest.labels)
    outer: dict[int, int] = {}
    for node in nodes.drop_nulls().unique():
        at = node
        while at >= 0 and keys[at] in own:
            at = parents[at]
        outer[node] = node if at < 0 or keys[at] in skipped else at
    return nodes.replace(outer).alias("node")


def _name_layers(forest: Forest, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the nodes by layer, module and phase of the layers around them."""
    nodes = _enclosing_layers(forest, rows["node"])
    nodes_of_layers = pl.select(pl.when(nodes >= 0).then(nodes)).to_series()
    layers = forest.layers_of_nodes().select(pl.all().gather(nodes_of_layers))
    missing = nodes.replace_strict(_REASONS, default=None, return_dtype=pl.String)
    return rows.drop("node").hstack(
        layers.with_columns(
            pl.col("layer").fill_null(UNATTRIBUTED),
            pl.col("module").fill_null(missing),
            pl.col("phase").fill_null("other"),
        )
    )


def by_communication(attribution: Attribution) -> pl.DataFrame:
    """Return the collectives that each layer launches, and the exposed communication that it waits for.

    The time is that of the steps without warm-up, as in `annot.analyze.run_summary.step_time`. Where collectives
    overlap, the time counts to the one that started first. A collective inside a layer counts to the layer around it.
    Without a GPU, ranges of collectives are exposed while no thread computes a phase, and the layers around them wait.

    Returns:
        layer, module, phase; operations: launched here, the longest first; calls; time_ns: exposed_ns + hidden_ns;
        exposed_ns: no compute kernel runs on the device meanwhile; hidden_ns: the rest; wait_ns: exposed time of any
        collective that ends with a compute kernel of this layer; waits_for: the operations of this time; bytes: size of
        the messages; bus_bytes_per_s: see `annot.analyze.communication.bus_factor`. Null: unknown. Layers without
        communication have no row. exposed_ns, and wait_ns, add up to ``collectives`` of the step time.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> by_communication(attribute(Profile.build({}))).height
        0
    """
    collectives = collectives_of(attribution)
    rows = collectives.table.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = rows.filter((pl.col("calls") > 0) | (pl.col("wall_ns") > 0))  # the others ran outside the steps
    shown = collectives.exposed.group_by("row").agg(exposed_ns=pl.col("ns").sum())
    rows = rows.join(shown, on="row", how="left").with_columns(pl.col("exposed_ns").fill_null(0))
    waits = collectives.exposed.join(rows.select("row", "operation"), on="row")
    waited = waits.group_by(KEY).agg(wait_ns=pl.col("ns").sum())
    times = rows.group_by(KEY).agg(pl.col("calls", "exposed_ns").sum(), time_ns=pl.col("wall_ns").sum())
    named = _named(rows.with_columns(ns="wall_ns"), "operations")
    tables = (times, named, waited, _named(waits, "waits_for"), _sizes(rows))
    table = by_layer(attribution).select(KEY).with_row_index("order")
    keys = pl.concat([sums.select(KEY) for sums in tables]).unique()
    table = keys.join(table, on=KEY, how="left").sort("order", *KEY, nulls_last=True)
    for sums in tables:
        table = table.join(sums, on=KEY, how="left", maintain_order="left")
    zeros = pl.col("calls", "time_ns", "exposed_ns", "wait_ns").fill_null(0)
    table = table.with_columns(zeros).with_columns(hidden_ns=pl.col("time_ns") - pl.col("exposed_ns"))
    of_time = ("calls", "time_ns", "exposed_ns", "hidden_ns", "wait_ns", "waits_for")
    return table.select(*KEY, "operations", *of_time, "bytes", "bus_bytes_per_s")


def _named(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The operations of each layer in one text, the longest first."""
    sums = rows.group_by(*KEY, "operation").agg(pl.col("ns").sum()).sort("ns", "operation", descending=[True, False])
    return sums.group_by(KEY, maintain_order=True).agg(pl.col("operation").str.join(", ").alias(name))


def _sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Bytes and bus bandwidth of each layer. A range is one message, also if it launches several kernels."""
    sized = rows.filter((pl.col("calls") > 0) & pl.col("bytes").is_not_null())
    ns = pl.when(pl.col("device").is_not_null()).then(pl.col("end") - pl.col("start"))
    per_message = sized.group_by(*KEY, "process", "range").agg(pl.col("bytes", "factor").first(), ns=ns.sum())
    timed = pl.col("factor").is_not_null() & (pl.col("ns") > 0)
    moved = (pl.col("bytes") * pl.col("factor")).filter(timed).sum()
    speed = pl.when(timed.any()).then(moved * 1e9 / pl.col("ns").filter(timed).sum())
    return per_message.group_by(KEY).agg(pl.col("bytes").sum(), bus_bytes_per_s=speed)


_ACTION: Final = (
    r"^(?:PP:\(?(\d{1,9})(SEND_|RECV_)?([FBIW]|UNSHARD|RESHARD|REDUCE_GRAD)|(Forward|Backward) )(\d{1,9})?"
    r"(;.*\)OVERLAP_F_B)?$"
)
"""``PP:0F1``, ``PP:0SEND_F1``, ``PP:(0F1;1B0)OVERLAP_F_B``; ``Forward 1`` of schedules with one stage per rank."""
_TRANSFER: Final = r"(?i)send|recv|^Collective wait \|"
_KINDS: Final = {"I": "B", "W": "B", "Forward": "F", "Backward": "B"}
_PHASES: Final = {"F": "forward", "B": "backward"}
_TIMES: Final = ("busy_ns", "bubble_ns", "transfer_ns")
_ACTION_KEYS: Final = ("process", "action", "phase", "stage", "microbatch")
_PART: Final = {"row": pl.Int64, "pass": pl.Int64, "transfer": pl.Boolean, "start": pl.Int64, "end": pl.Int64}


def by_stage(attribution: Attribution) -> pl.DataFrame:
    """Return the time of the actions of a pipeline, a row per process, stage, micro-batch and forward or backward.

    A GPU activity belongs to the action that runs in its process when it is launched. It is busy, or a transfer: in an
    action SEND or RECV, or a kernel of NCCL that sends or receives. Without GPU activities, the ranges of actions are
    busy, without the transfers and their waits inside. Where activities overlap, the time counts to the one that
    started first. A pass, the actions of a step until their names repeat, lasts from the first start to the last end of
    its activities. Its time in which nothing is busy is bubble. It belongs to the action that is busy next, and at the
    end of a pass to the action that ends last.

    Returns:
        process; action, as in PyTorch (``0F1``; B, I and W are ``0B1``); phase; stage, microbatch (null: unknown);
        calls; time_ns: busy_ns + bubble_ns, which adds up to the time of the passes; busy_ns; bubble_ns; bubble_share:
        part of the time of the passes; transfer_ns: transfers for this micro-batch, which overlap the other times.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> by_stage(attribute(Profile.build({}))).height
        0
    """
    actions = _actions(attribution)
    work = _activities(attribution, actions)
    times = [pl.DataFrame(schema={"row": pl.Int64, **dict.fromkeys(_TIMES, pl.Int64)})]
    for own in actions.partition_by("process"):
        ran = work.join(own, on="row", how="semi", maintain_order="left")
        times.append(_times(ran, device=True) if ran.height else _times(_host_actions(attribution, own), device=False))
    sums = pl.concat(times, how="diagonal").group_by("row").agg(pl.col(_TIMES).sum())
    rows = (
        actions.join(sums, on="row", how="left", maintain_order="left")
        .group_by(_ACTION_KEYS, maintain_order=True)
        .agg(pl.col(_TIMES).sum(), calls=(~pl.col("transfer")).sum().cast(pl.Int64))
    )
    rows = rows.with_columns(time_ns=pl.col("busy_ns") + pl.col("bubble_ns"))
    whole = pl.col("time_ns").sum().over("process")
    share = pl.when(whole > 0).then(pl.col("bubble_ns") / whole).alias("bubble_share")
    rows = rows.sort("process", "stage", maintain_order=True)
    return rows.select(*_ACTION_KEYS, "calls", "time_ns", "busy_ns", "bubble_ns", share, "transfer_ns")


def _actions(attribution: Attribution) -> pl.DataFrame:
    """The actions of the selected steps by start: the columns of `_PART`, process, thread, and those of `_named`."""
    forest = attribution.forest
    names, ranges = _named_actions(forest.labels["text"]), forest.every_range().drop_nulls()
    if not known(attribution.meta):
        ranges = ranges.clear()
    ranges = ranges.filter(names["action"].is_not_null().gather(ranges["label"])).sort("start", maintain_order=True)
    ids = forest.threads.table.select(pl.col("process").cast(pl.Int64), "process_code")[ranges["thread"]]
    rows = ranges.hstack(ids).hstack(names[ranges["label"]])
    step = pl.lit(0) if (steps := attribution.steps).guessed else steps.at(rows["process_code"], rows["start"])
    rows = rows.with_columns(step.alias("step"))
    repeated = pl.int_range(pl.len()).over("process", "step", "label").alias("repeated")
    rows = rows.with_columns(repeated, row=pl.int_range(pl.len(), dtype=pl.Int64))
    return rows.with_columns(pl.struct("step", "repeated").rank("dense").cast(pl.Int64).alias("pass"))


def _named_actions(texts: pl.Series) -> pl.DataFrame:
    """Stage, micro-batch, action, phase and transfer (it sends or receives) of each text; null: no action."""
    group = pl.col("text").str.extract_groups(_ACTION).struct
    kind = pl.coalesce(group[2], group[3]).replace(_KINDS)
    name = pl.concat_str(group[0].fill_null(""), kind, group[4].fill_null(""))
    both, overlaps, other = pl.col("text").str.extract(r"\((.*)\)"), group[5].is_not_null(), pl.lit("other")
    phase = kind.replace_strict(_PHASES, default=other, return_dtype=pl.String)
    return texts.to_frame("text").select(
        stage=group[0].cast(pl.Int64),
        microbatch=group[4].cast(pl.Int64),
        transfer=group[1].is_not_null(),
        action=pl.when(overlaps).then(both).otherwise(name),
        phase=pl.when(overlaps).then(other).otherwise(phase),
    )


def _activities(attribution: Attribution, actions: pl.DataFrame) -> pl.DataFrame:
    """The GPU activities launched in actions (`_PART`)."""
    tables = [pl.DataFrame(schema=_PART)]
    if attribution.source is None or actions.is_empty():
        return tables[0]
    calls, sends = calls_of(attribution), pl.col("name").cast(pl.String).str.contains(r"(?i)nccl\w*(?:send|recv)")
    for block in attribution.source.work_blocks():
        if not {"process", "correlation"} <= {*block.columns}:
            continue
        rows = block.select(pl.col("process", "start", "end").cast(pl.Int64), sends.fill_null(False).alias("sends"))
        launched = calls.start.gather(calls.rows(block["process"], block["correlation"])).alias("launched")
        rows = rows.with_columns(launched).drop_nulls().sort("launched", maintain_order=True)
        running = actions.select("row", "pass", "transfer", "process", since="start", until="end")
        placed = rows.join_asof(running, left_on="launched", right_on="since", by="process", check_sortedness=False)
        placed = placed.filter(pl.col("launched") < pl.col("until"))
        tables.append(placed.with_columns(pl.col("transfer") | pl.col("sends")).select(list(_PART)))
    return pl.concat(tables)


def _host_actions(attribution: Attribution, actions: pl.DataFrame) -> pl.DataFrame:
    """The ranges of actions, and send and receive inside them (`_PART`).

    PyTorch's range of a transfer can last from its start in one action to the end of the wait for it in another one. It
    counts in the action in which it ends.
    """
    forest = attribution.whole  # a receive can start before the selected steps
    sends = forest.labels.select(COLLECTIVE & pl.col("text").str.contains(_TRANSFER)).to_series()
    ranges = forest.every_range()
    ranges = ranges.filter(sends.gather(ranges["label"])).select("thread", "end", began="start").sort("end")
    running = actions.select("row", "pass", "thread", "start", until="end")
    inside = ranges.join_asof(
        running, left_on="end", right_on="start", by="thread", allow_exact_matches=False, check_sortedness=False
    ).filter(pl.col("end") <= pl.col("until"))
    waits = inside.with_columns(pl.max_horizontal("start", "began").alias("start"), transfer=pl.lit(True))
    return pl.concat([actions.select(list(_PART)), waits.select(list(_PART))])


def _times(activities: pl.DataFrame, *, device: bool) -> pl.DataFrame:
    """Row and `_TIMES` of the actions of a process; an action has several rows. On the host, transfers are not busy."""
    window = merged(activities.group_by("pass").agg(pl.col("start").min(), pl.col("end").max()))
    busy = exclusive(activities.filter(~pl.col("transfer")), window).filter(pl.col("until") > pl.col("begin"))
    busy = busy.select("row", start="begin", end="until")
    transfers = exclusive(activities.filter("transfer"), window)
    if not device:
        free = without(merged(busy), merged(transfers))
        busy = cut(free, busy["start"]).join_asof(busy.select("row", "start"), on="start")
    ends = pl.concat([busy.select("row", end="start"), activities.select("row", "end")])
    gaps = without(window, merged(busy)).join(ends.unique("end", keep="first", maintain_order=True), on="end")
    ns = pl.col("end") - pl.col("start")
    sent = transfers.select("row", transfer_ns="wall_ns")
    return pl.concat([busy.select("row", busy_ns=ns), gaps.select("row", bubble_ns=ns), sent], how="diagonal")


_EXPERT: Final = r"^((?:.*\.)?(?:local_)?experts)\.(\d{1,9})$"


def by_expert(attribution: Attribution) -> pl.DataFrame:
    """Return the time of the experts in each group of experts and phase, with the layers inside.

    The experts of one process run one after the other. Those of several ranks run at once, and the ranks wait for the
    busiest one: compare the ranks of a run by this view.

    Returns:
        path: of the group; phase; experts: number of experts that ran; calls, gpu_ns, host_ns: sums over the
        experts; mean_ns, busiest_ns: mean time of an expert, and the longest, on the GPU or else on the host; busiest:
        number of that expert, the lowest if several have it; imbalance: busiest_ns / mean_ns, null without time.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> by_expert(attribute(Profile.build({}))).height
        0
    """
    path = pl.col("layer").str.extract_groups(_EXPERT).struct
    rows = by_layer(attribution).with_columns(path[0].alias("group"), number=path[1].cast(pl.Int64))
    sums = pl.col("calls", "gpu_ns", "host_ns").sum()
    rows = rows.drop_nulls("group").group_by("group", "phase", "number", maintain_order=True).agg(sums)
    time = pl.col("gpu_ns" if (rows["gpu_ns"] > 0).any() else "host_ns")
    table = rows.group_by(pl.col("group").alias("path"), "phase", maintain_order=True).agg(
        sums,
        experts=pl.len().cast(pl.Int64),
        mean_ns=time.sum() // pl.len(),
        busiest_ns=time.max(),
        busiest=pl.col("number").filter(time == time.max()).min(),
        imbalance=pl.when(time.sum() > 0).then(time.max() * pl.len() / time.sum()),
    )
    return table.select(
        "path", "phase", "experts", "calls", "gpu_ns", "host_ns", "mean_ns", "busiest_ns", "busiest", "imbalance"
    )
