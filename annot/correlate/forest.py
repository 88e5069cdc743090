"""The ranges of a run as trees, a thread each, with what they say and the chain of layers they lie in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.dialects import split_suffix
from annot.correlate.keys import spell_out
from annot.correlate.nesting import is_ours, nest
from annot.correlate.nodes import Keys, Nodes
from annot.correlate.sequence import paths_of
from annot.correlate.threads import Threads

__all__ = ["Forest", "grow"]

_OPERATIONS: Final = ("operator", "backward")
_SPOKEN: Final = ("domain", "text", "role")


@dataclass(frozen=True, slots=True)
class Forest:
    """Ranges that nest and ranges that do not.

    Args:
        tree: id, thread (code, Int32), start, end (ns), says (row in `says`, Int32), parent (row in this table or
            -1, Int32), depth, path (node in `nodes` or -1, Int32); in the order of `sweep.order`.
        loose: id, thread, start, end, says, foreign (ended on another thread).
        threads: the threads with ranges.
        says: domain, text (without the suffix of emit_nvtx), the columns of
            `annot.correlate.dialects.Said`, key (Int32): its number in `keys`, and folded: whether it is an
            operation that counts to the layer around it.
        keys: layer, module, phase of each key; grows with backward layers.
        nodes: the chains of keys; grows with the chains that work in CUDA graphs has.
        matched: the nodes that stand for backward layers found by sequence number, and what lies in them.
        open_ranges: how many ranges had no end; they count to the end of the capture.
    """

    tree: pl.DataFrame
    loose: pl.DataFrame
    threads: Threads
    says: pl.DataFrame
    keys: Keys
    nodes: Nodes
    matched: frozenset[int]
    open_ranges: int


def grow(ranges: pl.DataFrame, last: int, threads: Threads) -> Forest:
    """Nest ranges, read their texts and lead backward operations to the layers of their forward ones.

    Args:
        ranges: as `annot.profile.Source` gives them; the caller should keep no other reference to a large table.
        last: the last instant that the host is known to have reached (ns); open ranges end there.
        threads: those of the ranges.
    """
    said, code, sequence = _understood(ranges)
    says, keys = _keyed(said)
    open_ranges = ranges["end"].null_count()
    prepared = [_prepared(ranges, threads, code, sequence, last)]
    del ranges, code, sequence
    nested = nest(prepared.pop())
    path, nodes, matched = paths_of(nested.tree, says, keys, threads)
    columns = ["id", "thread", "start", "end", "says"]
    tree = nested.tree.select(*columns, "parent", "depth", path)
    return Forest(tree, nested.loose.select(*columns, "foreign"), threads, says, keys, nodes, matched, open_ranges)


def _understood(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, pl.Series | None]:
    """Return what the distinct texts say, which of them each range has, and its sequence number, if any has one."""
    distinct, code = _distinct(ranges)
    parts = split_suffix(distinct["text"])
    # Whether such an operation belongs to the backward pass stands in its name.
    by_name = pl.col("operation") & pl.col("role").is_null()
    spelt = distinct.select("domain", "role").hstack(parts).select(
        "domain", "sequence", "sizes", text="stem", role=pl.when(by_name).then(pl.lit("operation")).otherwise("role")
    )  # fmt: skip
    columns = ["domain", "text", "role", "sizes"]
    said = spelt.select(columns).unique(maintain_order=True).with_row_index("says")
    spelt = spelt.join(said, on=columns, how="left", nulls_equal=True, maintain_order="left")
    says = said.select("domain", "text").hstack(spell_out(said))
    says = says.with_columns(pl.coalesce("shapes", said["sizes"]).alias("shapes"))
    sequence = ranges["sequence"] if "sequence" in ranges.columns and ranges["sequence"].count() else None
    if spelt["sequence"].count():
        sequence = spelt["sequence"].gather(code)
    return says, spelt["says"].cast(pl.Int32).gather(code), sequence


def _distinct(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct domains, texts and roles (String), and the row in it that each range has.

    Texts repeat a thousandfold, so everything goes by numbers: strings are looked at once.
    """
    text = ranges["text"]
    packed = (text.cast(pl.Categorical) if text.dtype == pl.String else text).to_physical().cast(pl.Int64)
    packed = (packed.fill_null(-1) + 1) * 2**24
    for name, place in (("domain", 2**4), ("role", 1)):
        if name in ranges.columns and ranges[name].count():
            packed += _small_codes(ranges[name]) * place
    first = pl.DataFrame({"packed": packed}).with_row_index("row").unique("packed", keep="first", maintain_order=True)
    first = first.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("code"))
    code = packed.to_frame("packed").join(first, on="packed", how="left", maintain_order="left")["code"]
    rows = ranges.select(name for name in _SPOKEN if name in ranges.columns)[first["row"]]
    absent = [pl.lit(None, pl.String).alias(name) for name in _SPOKEN if name not in rows.columns]
    distinct = rows.with_columns(pl.all().cast(pl.String)).with_columns(absent).select(_SPOKEN)
    return distinct.with_columns(pl.col("domain", "text").fill_null("")), code


def _small_codes(column: pl.Series) -> pl.Series:
    """Numbers from 1 of the values of a column that has few, 0 for null (Int64)."""
    enum = pl.Enum(column.unique().drop_nulls().cast(pl.String).sort())
    return column.cast(enum).to_physical().cast(pl.Int64).fill_null(-1) + 1


def _prepared(
    ranges: pl.DataFrame, threads: Threads, code: pl.Series, sequence: pl.Series | None, last: int
) -> pl.DataFrame:
    """The columns that nesting needs, and those of operations if there are any."""
    foreign = pl.col("end_thread").is_not_null() if "end_thread" in ranges.columns else pl.lit(False)
    prepared = ranges.select(
        pl.col("id"),
        threads.codes(ranges["thread"]).alias("thread"),
        "start",
        pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end"),
        code.alias("says"),
        foreign.alias("foreign"),
        (pl.col("kind") == "start").fill_null(False).alias("started"),
        is_ours("domain").alias("ours"),
    )
    if sequence is not None:
        known = "forward_thread" in ranges.columns
        forward = threads.codes(ranges["forward_thread"]) if known else pl.lit(sweep.NONE, pl.Int32)
        prepared = prepared.with_columns(sequence.alias("sequence"), forward.alias("forward_thread"))
    return prepared if prepared["id"].is_sorted() else prepared.sort("id")


def _keyed(says: pl.DataFrame) -> tuple[pl.DataFrame, Keys]:
    """Number the layers; where layers are named, operations are part of the layer around them."""
    keys = Keys()
    numbers = [keys.number(key) for key in says.select("layer", "module", "phase").iter_rows()]
    folded = says["role"].is_in(_OPERATIONS) & bool(says["layered"].any())
    return says.with_columns(pl.Series("key", numbers, pl.Int32), folded.alias("folded")), keys
