"""Work of the layers of a trace of torch.profiler, from the operators that run in them."""

from __future__ import annotations

from typing import Final, TypeAlias

import polars as pl

from annot.analyze.work.call import Work
from annot.analyze.work.operators import FREE, operator_work
from annot.attribution import Attribution, column_ops
from annot.attribution.nesting import Key
from annot.attribution.range_trees import Forest
from annot.labels.tag import parse

__all__ = ["Calls", "operator_calls", "work_of_labels"]

Calls: TypeAlias = list[tuple[Work | None, int]]
"""Work of the calls of a layer in one phase, with the numbers of calls; None: unknown."""

_NOTHING: Final = Work(0, 0, 0, 0)
_ROLES: Final = ("operator", "backward")


def operator_calls(attribution: Attribution) -> dict[Key, Calls]:
    """Return the work of the operators in each layer and phase, if the profile has the inputs of operators.

    Operators are nested: ``aten::conv2d`` calls ``aten::convolution``, which calls another operator. The outermost
    one with known work counts. The work of a layer is unknown if one of its kernels runs outside such operators.
    """
    forest = attribution.forest
    if not forest.labels["call"].str.ends_with("|op").any():
        return {}
    works = work_of_labels(forest)
    has_work = pl.Series([work is not None for work in works], dtype=pl.Boolean).gather(forest.tree["label"])
    inside = column_ops.inside(has_work, forest.tree["parent"])
    names, keys = forest.keys.names, forest.nodes.keys
    work_by_key: dict[Key, Calls] = {names[key]: [(_NOTHING, 1)] for key in keys}
    outermost = forest.tree.filter(has_work & ~inside & (forest.tree["path"] != column_ops.NONE))
    for path, label, calls in outermost.group_by("path", "label").len().sort("path", "label").iter_rows():
        work_by_key[names[keys[path]]].append((works[label], calls))
    for path in _uncounted(attribution, has_work | inside):
        work_by_key[names[keys[path]]].append((None, 1))
    return work_by_key


def work_of_labels(forest: Forest) -> list[Work | None]:
    """Return the work of a call of each label of the ranges; None: unknown."""
    return [_work(text, call) for text, call in forest.labels.select("text", "call").iter_rows()]


def _work(text: str, call: str | None) -> Work | None:
    if text in FREE:
        return _NOTHING
    tag = parse(call) if call else None
    return None if tag is None else operator_work(tag)


def _uncounted(attribution: Attribution, counted: pl.Series) -> pl.Series:
    """Return the nodes with kernels outside the counted operators. Without a device, with uncounted operators."""
    tree, nodes = attribution.forest.tree, attribution.nodes
    if not nodes["kernels"].sum():
        return (
            tree["path"].filter(_computing(attribution.forest) & ~counted & (tree["path"] != column_ops.NONE)).unique()
        )
    own = attribution.range_work("kernels").to_series()
    kernels = column_ops.Sums(nodes.height)
    kernels.add(tree["path"].filter(counted), own.filter(counted))
    return (nodes["kernels"] > kernels.result()).arg_true()


def _computing(forest: Forest) -> pl.Series:
    """Return which ranges are operators that call no other operator. Backward operations call operators to compute."""
    role = forest.labels["role"].gather(forest.tree["label"])
    callers = column_ops.known(forest.tree["parent"].filter(role.is_in(_ROLES))).drop_nulls().unique()
    rows = pl.int_range(forest.tree.height, dtype=pl.Int32, eager=True)
    return (role == "operator") & ~rows.is_in(callers.implode())
