"""Launches of GPU activities, layers and sources of module calls, and forward threads of backward operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

from annot.labels import tag
from annot.read.kineto.trace_events import Event

MODULE: Final = "nn.Module: "
"""Start of the names of calls of modules."""
_DEEPEST: Final = 128
"""Maximum depth of a layer path. It bounds the total length of the labels in a trace with many nested calls."""


def correlated(launches: pl.DataFrame, *activities: pl.DataFrame) -> list[pl.DataFrame]:
    """Return launches and GPU activities with the external id as correlation id, if no launch has a correlation id.

    Some traces of AMD GPUs write the correlation id of a launch and of its activities as "External id". An external id
    of 0 means none. `annot.read.kineto.reader` finds the operators of activities whose id no launch has.
    """
    if launches["correlation"].count():
        return [launches, *activities]
    external = pl.when(pl.col("external") != 0).then("external")
    launches = launches.with_columns(external.alias("correlation"))
    launched = launches["correlation"].drop_nulls().unique()
    of_launch = pl.coalesce("correlation", pl.when(pl.col("external").is_in(launched.implode())).then(external))
    return [launches, *(table.with_columns(of_launch.alias("correlation")) for table in activities)]


def on_operation_threads(launches: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return launches on the threads of the operations that made them.

    CUPTI names a thread by its ``pthread_t``. A new thread often gets the ``pthread_t`` of a thread that has ended, and
    Kineto then writes the thread id of the ended thread. A launch has the external id of the operation that made it,
    and lies inside that operation. Launches without an operation follow the launch before them.

    The external ids of some traces are correlation ids: those of `correlated`, and those of PyTorch releases of 2022
    and 2023. Their launches stay on their threads.

    Args:
        launches: process, thread, start, end (ns), external and correlation, in order of start.
        operations: process, thread, start, end (ns) and external.
    """
    if not (launches["external"] != launches["correlation"]).any():
        return launches
    keys = ["process", "external"]
    made = operations.select(*keys, since="start", until="end", by="thread")
    made = made.join(launches.select(keys).unique(), on=keys, how="semi").unique(keys, keep="none")
    rows = launches.select(*keys, "thread", "start", "end").join(made, on=keys, how="left", maintain_order="left")
    contained = (pl.col("since") <= pl.col("start")) & (pl.col("end") <= pl.col("until"))
    thread = pl.when(contained).then("by").forward_fill().over("thread")
    return launches.with_columns(rows.select(pl.coalesce(thread, "thread").alias("thread")))


@dataclass(slots=True)
class _Call:
    name: str
    end: int
    parent: _Call | None
    path: tuple[str, ...]
    recompute: bool = False
    children: bool = False


def module_texts(calls: pl.DataFrame, backward: pl.DataFrame | None = None) -> list[str]:
    """Return the labels of module calls, in the format of `annot.labels.tag`.

    A trace names a module by its class and a number, such as "Conv2d_7", and not by its attribute. The layer path is
    the chain of enclosing modules, outermost first, without the model. The model is the only outermost module that
    contains others. If there are several such models, the path includes the model. A module outside any model, such as
    a loss, is a layer with its own name. Calls deeper than 128 modules belong to the module at that depth.

    Activation checkpointing calls a submodule directly. Such a call gets the layer path that the module has inside the
    model. During the backward pass, its phase is recompute.

    `calls` has thread, start, end (ns), python (an id that increases with each call, or null) and text ("nn.Module:
    ..."), `backward` thread, start and end of the operations of the backward pass.
    """
    order = calls.select(_ORDER.arg_sort()).to_series().to_list()
    inside = [False] * calls.height if backward is None else _starts_inside(calls, backward)
    nested = _nested(calls, order)
    _use_model_paths(nested, [inside[row] for row in order])
    models = {call.name for call in nested if call.parent is None and call.children and len(call.path) == 1}
    texts: dict[tuple[tuple[str, ...], bool], str] = {}
    pairs = zip(order, (_text(call, len(models) == 1, models, texts) for call in nested), strict=True)
    return [text for _, text in sorted(pairs)]


_ORDER: Final = pl.struct("thread", "start", -pl.col("end"), pl.col("python").fill_null(0))


def _starts_inside(calls: pl.DataFrame, spans: pl.DataFrame) -> list[bool]:
    """Return whether each call begins inside a span of its thread."""
    reached = spans.sort("start").select("thread", "start", reached=pl.col("end").cum_max().over("thread"))
    rows = calls.select("thread", "start").with_row_index("row").sort("start")
    joined = rows.join_asof(reached, on="start", by="thread", strategy="backward", check_sortedness=False)
    return joined.sort("row").select((pl.col("reached") > pl.col("start")).fill_null(False)).to_series().to_list()


def _nested(calls: pl.DataFrame, order: Sequence[int]) -> list[_Call]:
    """Return the calls in order, with their parents."""
    nested: list[_Call] = []
    columns = [calls[name].to_list() for name in ("thread", "start", "end", "text")]
    stack: list[_Call] = []
    last = None
    for row in order:
        thread, start, end, text = (column[row] for column in columns)
        if thread != last:
            stack.clear()
            last = thread
        # With times rounded to microseconds, a module can end after its parent.
        while stack and stack[-1].end <= start:
            stack.pop()
        around = stack[-1] if stack else None
        name = text.removeprefix(MODULE)
        call = _Call(name, end, around, _path(around, name))
        if around:
            around.children = True
        stack.append(call)
        nested.append(call)
    return nested


def _path(around: _Call | None, name: str) -> tuple[str, ...]:
    outer = around.path if around else ()
    return outer if len(outer) >= _DEEPEST else (*outer, name)


def _use_model_paths(nested: Sequence[_Call], in_backward: Sequence[bool]) -> None:
    """Give outermost calls, and the calls inside them, the layer path that their module has inside a model."""
    within = {call.name for call in nested if call.parent}
    paths: dict[str, tuple[str, ...]] = {}
    for call in nested:
        if call.parent and call.path[0] not in within and call.path[-1] == call.name:
            paths.setdefault(call.name, call.path)
    for call, backward in zip(nested, in_backward, strict=True):
        if call.parent:
            call.path, call.recompute = _path(call.parent, call.name), call.parent.recompute
        elif call.name in paths:
            call.path, call.recompute = paths[call.name], backward


def _text(call: _Call, single_model: bool, models: set[str], texts: dict[tuple[tuple[str, ...], bool], str]) -> str:
    path = call.path
    text = texts.get((path, call.recompute))
    if text is None:
        layer = path[1:] if single_model and path[0] in models else path
        name, _, number = path[-1].rpartition("_")
        module = name if name and number.isdecimal() else path[-1]
        label = tag.Tag(".".join(layer), module, "recompute" if call.recompute else "forward")
        text = texts[path, call.recompute] = tag.format(label)
    return text


def link_backward(operations: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Fill missing sequence numbers from arrows and add the column `forward_thread`. The order of the rows changes.

    A backward operation names its forward thread by a small id of autograd ("Fwd thread id"). `forward_thread` comes
    from the first of these sources:

    1. The arrow that ends at the operation.
    2. The arrow of another operation with the same autograd id.
    3. The sequence number, if only one thread has forward operations with it.

    `operations` has process, thread, start (ns), sequence, forward (autograd id, 0 in the forward pass) and backward
    (bool). An operation without ids at the end of an arrow becomes a backward operation. `flows` has both ends of the
    arrows: process, thread, start, flow, begins (bool).
    """
    numbered = pl.col("sequence").is_not_null() | pl.col("forward").is_not_null() | pl.col("backward")
    linked, others = operations.filter(numbered), operations.filter(~numbered)
    at = ["thread", "start"]
    unlinked = flows.join(linked, on=at, how="anti")
    if unlinked.height:
        linked = pl.concat([linked, others.join(unlinked, on=at, how="semi")])
        others = others.join(unlinked, on=at, how="anti")
    others = others.with_columns(forward_thread=pl.lit(None, pl.Int64))
    return pl.concat([_linked(linked, _arrows(flows)), others])


def _linked(operations: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
    operations = _numbered(operations, arrows)
    by_arrow = arrows.select(thread="to_thread", start="to_start", by_arrow="from_thread").unique(["thread", "start"])
    operations = operations.join(by_arrow, on=["thread", "start"], how="left", maintain_order="left")
    by_number = _only(operations.filter("backward"), ["process", "forward"], "by_arrow", "by_number")
    ahead = operations.filter(~pl.col("backward") & (pl.col("forward").fill_null(0) == 0))
    by_sequence = _only(ahead, ["process", "sequence"], "thread", "by_sequence")
    for links in (by_number, by_sequence):
        keys = [name for name in links.columns if not name.startswith("by_")]
        operations = operations.join(links, on=keys, how="left", maintain_order="left")
    thread = pl.when("backward").then(pl.coalesce("by_arrow", "by_number", "by_sequence"))
    return operations.with_columns(forward_thread=thread).drop("by_arrow", "by_number", "by_sequence")


def _arrows(flows: pl.DataFrame) -> pl.DataFrame:
    keys = ["process", "flow"]
    begin = flows.filter("begins").select(*keys, from_thread="thread", from_start="start")
    end = flows.filter(~pl.col("begins")).select(*keys, to_thread="thread", to_start="start")
    begin, end = (half.unique(keys, keep="first", maintain_order=True) for half in (begin, end))
    return begin.join(end, on=keys, how="inner", maintain_order="left")


def _numbered(operations: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
    """Fill missing sequence numbers: both ends of an arrow get the same number."""
    at = ["thread", "start"]
    sequences = operations.drop_nulls("sequence").unique(at, keep="last").select(*at, "sequence")
    sides = {side: {"thread": f"{side}_thread", "start": f"{side}_start"} for side in ("from", "to")}
    for side, columns in sides.items():
        numbers = sequences.rename({**columns, "sequence": side})
        arrows = arrows.join(numbers, on=list(columns.values()), how="left", maintain_order="left")
    highest = operations["sequence"].max()
    generated = pl.int_range(pl.len(), dtype=pl.Int64) + (highest + 1 if isinstance(highest, int) else 0)
    arrows = arrows.with_columns(pl.coalesce("to", "from", generated).alias("number"))
    ends = pl.concat(
        arrows.filter(pl.col(side).is_null()).select(**columns, number="number", is_end=pl.lit(side == "to"))
        for side, columns in sides.items()
    ).unique(at, keep="first", maintain_order=True)
    operations = operations.join(ends, on=at, how="left", maintain_order="left")
    return operations.with_columns(
        pl.col("sequence").fill_null(pl.col("number")),
        pl.col("backward") | pl.col("is_end").fill_null(False),
    ).drop("number", "is_end")


def _only(operations: pl.DataFrame, keys: Sequence[str], value: str, name: str) -> pl.DataFrame:
    """Return the value of each key, for keys with exactly one value."""
    extremes = (
        operations.drop_nulls([*keys, value])
        .group_by(keys)
        .agg(pl.col(value).min().alias(name), pl.col(value).max().alias("other"))
    )
    return extremes.filter(pl.col(name) == pl.col("other")).drop("other")


_CALLS: Final = 2
"""Number of calls of each module that are read. The frames of a call can be in two blocks of the file."""
_NEAR: Final = 8
"""Number of frames from the call of a module to `forward`, including built-in functions that `_call_impl` calls."""
_FUNCTION: Final = re.compile(r"(.+)\((\d+)\): forward", re.DOTALL)
_HIDDEN: Final = re.compile(r"<|(?:.*/site-packages/)?(?:torch|keras|tf_keras|tensorflow|annot)/")
"""Generated code, such as ``<eval_with_key>.5``, and the frameworks."""


class StackArgs(msgspec.Struct):
    """Arguments of a Python function."""

    python: int | None = msgspec.field(name="Python id", default=None)
    parent: int | None = msgspec.field(name="Python parent id", default=None)


_STACK_ARGS: Final = msgspec.json.Decoder(StackArgs)


class ModuleSources:
    """File and line of `forward` by class of module, from Python stacks (``with_stack=True``).

    A call of a module is ``nn.Module: Block_3``, with the frame of `_call_impl` inside it, and in that one
    ``model.py(12): forward``. Frames have increasing ids in the order of their calls, which is their order in the file.
    A module with hooks has another frame in between, and no source.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._found: dict[str, dict[str, None]] = {}

    def add(self, frames: Sequence[Event], modules: Sequence[int]) -> None:
        """Add frames of a block, of which those at the indices `modules` are calls of modules."""
        for index in modules:
            name = frames[index].name
            if self._calls[name] < _CALLS:
                self._calls[name] += 1
                source = _forward_of(frames[index : index + _NEAR])
                if source:
                    self._found.setdefault(re.sub(r"_\d+$", "", name.removeprefix(MODULE)), {})[source] = None

    def by_class(self) -> dict[str, str]:
        """Return file and line, as "model.py:12", by class; none for classes of a framework."""
        return {module: ", ".join(sources) for module, sources in self._found.items()}


def _forward_of(frames: Sequence[Event]) -> str:
    """Return file and line of the `forward` of a call of a module, whose frame is the first; "" if unknown."""
    module = _stack_args(frames[0]).python
    for frame in frames[1:]:
        match = _FUNCTION.fullmatch(frame.name)
        if match and module is not None and _stack_args(frame).parent == module + 1:
            return "" if _HIDDEN.match(match[1]) else f"{match[1]}:{match[2]}"
    return ""


def _stack_args(frame: Event) -> StackArgs:
    try:
        return _STACK_ARGS.decode(frame.args)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StackArgs()
