"""Which layer a module's call is, and which operation of the forward pass one of the backward pass belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from annot import tag

__all__ = ["link_backward", "module_texts"]

_MODULE: Final = "nn.Module: "
_DEEPEST: Final = 128
"""Modules around each other that make a layer; with all of them, texts would grow with the square of the file."""


@dataclass(slots=True)
class _Call:
    name: str
    end: int
    parent: _Call | None
    path: tuple[str, ...]
    again: bool = False
    children: bool = field(default=False)


def module_texts(calls: pl.DataFrame, backward: pl.DataFrame | None = None) -> list[str]:
    """Return what `annot.tag` would write for calls of modules, as layers of the model around them.

    The trace names each module by its class and a number, "Conv2d_7", but not by its attribute. A layer is the
    chain of the modules around a call, from the outside in, without the model itself: the one module that
    contains others and lies in none. Where there are several such models, each stands before its layers. A
    module alone, such as a loss, is a layer by its own name. What lies deeper than 128 modules counts to the last.

    A module that is called by itself, but elsewhere in a model, is the layer that it is there. In the backward pass,
    where activation checkpointing calls it, that is the phase recompute.

    Args:
        calls: thread, start, end, python (a number that grows with the calls, or null), text ("nn.Module: ...").
        backward: thread, start, end of the operations of the backward pass; None: there are none.

    Example:
        >>> module_texts(pl.DataFrame({"thread": [1, 1], "start": [0, 2], "end": [9, 5], "python": [1, 2],
        ...                            "text": ["nn.Module: Net_0", "nn.Module: Linear_3"]}))
        ['Forward Net |fwd', 'Linear_3 Linear |fwd']
    """
    order = calls.select(_ORDER.arg_sort()).to_series().to_list()
    inside = [False] * calls.height if backward is None else _inside(calls, backward)
    nested = _nested(calls, order)
    _place_again(nested, [inside[row] for row in order])
    models = {call.name for call in nested if call.parent is None and call.children and len(call.path) == 1}
    texts: dict[tuple[tuple[str, ...], bool], str] = {}
    found = dict(zip(order, (_text(call, len(models) == 1, models, texts) for call in nested), strict=True))
    return [found[row] for row in range(calls.height)]


_ORDER: Final = pl.struct("thread", "start", -pl.col("end"), pl.col("python").fill_null(0))


def _inside(calls: pl.DataFrame, spans: pl.DataFrame) -> list[bool]:
    """Whether each call begins in one of the spans of its thread."""
    reached = spans.sort("start").select("thread", "start", reached=pl.col("end").cum_max().over("thread"))
    rows = calls.select("thread", "start").with_row_index("row").sort("start")
    found = rows.join_asof(reached, on="start", by="thread", strategy="backward", check_sortedness=False)
    return found.sort("row").select((pl.col("reached") > pl.col("start")).fill_null(False)).to_series().to_list()


def _nested(calls: pl.DataFrame, order: Sequence[int]) -> list[_Call]:
    """The calls in order, each with the one around it."""
    found: list[_Call] = []
    columns = [calls[name].to_list() for name in ("thread", "start", "end", "text")]
    stack: list[_Call] = []
    last = None
    for row in order:
        thread, start, end, text = (column[row] for column in columns)
        if thread != last:
            stack.clear()
            last = thread
        # Times cut to microseconds let a module end a little after the one around it.
        while stack and stack[-1].end <= start:
            stack.pop()
        around = stack[-1] if stack else None
        name = text.removeprefix(_MODULE)
        call = _Call(name, end, around, _path(around, name))
        if around:
            around.children = True
        stack.append(call)
        found.append(call)
    return found


def _path(around: _Call | None, name: str) -> tuple[str, ...]:
    outer = around.path if around else ()
    return outer if len(outer) >= _DEEPEST else (*outer, name)


def _place_again(nested: Sequence[_Call], in_backward: Sequence[bool]) -> None:
    """Put the calls that lie in no other where their modules lie in a model, with what is inside them."""
    within = {call.name for call in nested if call.parent}
    known: dict[str, tuple[str, ...]] = {}
    for call in nested:
        if call.parent and call.path[0] not in within and call.path[-1] == call.name:
            known.setdefault(call.name, call.path)
    for call, backward in zip(nested, in_backward, strict=True):
        if call.parent:
            call.path, call.again = _path(call.parent, call.name), call.parent.again
        elif call.name in known:
            call.path, call.again = known[call.name], backward


def _text(call: _Call, one: bool, models: set[str], texts: dict[tuple[tuple[str, ...], bool], str]) -> str:
    path = call.path
    text = texts.get((path, call.again))
    if text is None:
        layer = path[1:] if one and path[0] in models else path
        name, _, number = path[-1].rpartition("_")
        module = name if name and number.isdecimal() else path[-1]
        said = tag.Tag(".".join(layer), module, "recompute" if call.again else "forward")
        text = texts[path, call.again] = tag.format(said)
    return text


def link_backward(operations: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Return the table with `sequence` filled from arrows where it is absent, and with `forward_thread`.

    A thread of the forward pass has a small number of autograd's own in the trace, in the arguments of the
    backward operation. Which thread that is, is known from the arrow that ends at the operation, or at another
    that names the same number; else from the sequence number, if the operations of one thread alone bear it.

    Args:
        operations: process, thread, start, sequence, forward (autograd's number, 0 in the forward pass),
            backward (bool). Operations at the end of an arrow that bear no number become backward.
        flows: process, thread, start, flow, begins (bool): both ends of the arrows.

    Returns:
        the same rows, in another order.
    """
    numbered = pl.col("sequence").is_not_null() | pl.col("forward").is_not_null() | pl.col("backward")
    linked, others = operations.filter(numbered), operations.filter(~numbered)
    at = ["thread", "start"]
    loose = flows.join(linked, on=at, how="anti")
    if loose.height:
        linked = pl.concat([linked, others.join(loose, on=at, how="semi")])
        others = others.join(loose, on=at, how="anti")
    others = others.with_columns(forward_thread=pl.lit(None, pl.Int64))
    return pl.concat([_linked(linked, _arrows(flows)), others])


def _linked(operations: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
    operations = _numbered(operations, arrows)
    by_arrow = arrows.select(thread="to_thread", start="to_start", by_arrow="from_thread").unique(["thread", "start"])
    operations = operations.join(by_arrow, on=["thread", "start"], how="left", maintain_order="left")
    by_number = _only(operations.filter("backward"), ["process", "forward"], "by_arrow", "by_number")
    ahead = operations.filter(~pl.col("backward") & (pl.col("forward").fill_null(0) == 0))
    by_sequence = _only(ahead, ["process", "sequence"], "thread", "by_sequence")
    for known in (by_number, by_sequence):
        keys = [name for name in known.columns if not name.startswith("by_")]
        operations = operations.join(known, on=keys, how="left", maintain_order="left")
    thread = pl.when("backward").then(pl.coalesce("by_arrow", "by_number", "by_sequence"))
    return operations.with_columns(forward_thread=thread).drop("by_arrow", "by_number", "by_sequence")


def _arrows(flows: pl.DataFrame) -> pl.DataFrame:
    keys = ["process", "flow"]
    begin = flows.filter("begins").select(*keys, from_thread="thread", from_start="start").unique(keys, keep="first")
    end = flows.filter(~pl.col("begins")).select(*keys, to_thread="thread", to_start="start")
    return begin.join(end.unique(keys, keep="first"), on=keys, how="inner", maintain_order="left")


def _numbered(operations: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
    """Give the operations at both ends of an arrow the same number, where they have none."""
    at = ["thread", "start"]
    known = operations.drop_nulls("sequence").unique(at, keep="last").select(*at, "sequence")
    sides = {side: {"thread": f"{side}_thread", "start": f"{side}_start"} for side in ("from", "to")}
    for side, columns in sides.items():
        there = known.rename({**columns, "sequence": side})
        arrows = arrows.join(there, on=list(columns.values()), how="left", maintain_order="left")
    highest = operations["sequence"].max()
    made_up = pl.int_range(pl.len(), dtype=pl.Int64) + (highest + 1 if isinstance(highest, int) else 0)
    arrows = arrows.with_columns(pl.coalesce("to", "from", made_up).alias("number"))
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
    """The value that all operations of the same keys have; no row where they have several or none."""
    known = (
        operations.drop_nulls([*keys, value])
        .group_by(keys)
        .agg(pl.col(value).min().alias(name), pl.col(value).max().alias("other"))
    )
    return known.filter(pl.col(name) == pl.col("other")).drop("other")
