"""The ranges of a run as trees, a thread each, with what they say and the chain of layers they lie in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.correlate.dialects import split_suffix
from annot.correlate.keys import spell_out
from annot.correlate.nesting import is_ours, nest
from annot.correlate.nodes import Keys, Nodes
from annot.correlate.sequence import paths_of
from annot.correlate.threads import Threads

__all__ = ["Forest", "grow"]

_OPERATIONS: Final = ("operator", "backward")


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
        ranges: as `annot.profile.Source` gives them.
        last: the last instant that the host is known to have reached (ns); open ranges end there.
        threads: those of the ranges.
    """
    said, code, sequence = _understood(ranges)
    says, keys = _keyed(said)
    nested = nest(_prepared(ranges, threads, code, sequence, last))
    path, nodes, matched = paths_of(nested.tree, says, keys, threads)
    columns = ["id", "thread", "start", "end", "says"]
    tree = nested.tree.select(*columns, "parent", "depth", path)
    loose = nested.loose.select(*columns, "foreign")
    return Forest(tree, loose, threads, says, keys, nodes, matched, ranges["end"].null_count())


def _understood(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return what the distinct texts say, which of them each range has, and its sequence number."""
    distinct, code = _distinct(ranges)
    parts = split_suffix(distinct["text"])
    # Whether such an operation belongs to the backward pass stands in its name.
    by_name = pl.col("operation") & pl.col("role").is_null()
    spelt = distinct.select("domain", "role").hstack(parts).select(
        "domain", "sequence", text="stem", role=pl.when(by_name).then(pl.lit("operation")).otherwise("role")
    )  # fmt: skip
    columns = ["domain", "text", "role"]
    said = spelt.select(columns).unique(maintain_order=True).with_row_index("says")
    spelt = spelt.join(said, on=columns, how="left", nulls_equal=True, maintain_order="left")
    says = spell_out(said)
    sequence = spelt["sequence"].gather(code) if spelt["sequence"].count() else _column(ranges, "sequence", pl.Int64)
    return said.select("domain", "text").hstack(says), spelt["says"].cast(pl.Int32).gather(code), sequence


def _distinct(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct domains, texts and roles (String), and the row in it that each range has.

    Texts repeat a thousandfold, so everything goes by numbers: strings are looked at once.
    """
    domain, role = _column(ranges, "domain", pl.String), _column(ranges, "role", pl.String)
    text = ranges["text"]
    physical = (text.cast(pl.Categorical) if text.dtype == pl.String else text).to_physical().cast(pl.Int64)
    packed = (physical.fill_null(-1) + 1) * 2**24 + _small_codes(domain) * 2**4 + _small_codes(role)
    first = pl.DataFrame({"packed": packed}).with_row_index("row").unique("packed", keep="first", maintain_order=True)
    first = first.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("code"))
    code = packed.to_frame("packed").join(first, on="packed", how="left", maintain_order="left")["code"]
    rows = first["row"]
    strings = [column.gather(rows).cast(pl.String) for column in (domain, text, role)]
    distinct = pl.DataFrame(dict(zip(("domain", "text", "role"), strings, strict=True)))
    return distinct.with_columns(pl.col("domain", "text").fill_null("")), code


def _small_codes(column: pl.Series) -> pl.Series:
    """Numbers from 0 of the values of a column that has few."""
    if column.null_count() == column.len():
        return pl.zeros(column.len(), pl.Int64, eager=True)
    known = column.cast(pl.String).unique().drop_nulls().sort()
    codes = column.cast(pl.String).cast(pl.Enum(known)).to_physical().cast(pl.Int64)
    return (codes.fill_null(-1) + 1).rename("code")


def _column(table: pl.DataFrame, name: str, dtype: type[pl.DataType]) -> pl.Series:
    return table[name] if name in table.columns else pl.Series(name, [None], dtype).new_from_index(0, table.height)


def _prepared(ranges: pl.DataFrame, threads: Threads, code: pl.Series, sequence: pl.Series, last: int) -> pl.DataFrame:
    """The columns that nesting needs, and those of operations if there are any."""
    prepared = ranges.select(
        pl.col("id"),
        threads.codes(ranges["thread"]).alias("thread"),
        "start",
        pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end"),
        code.alias("says"),
        _column(ranges, "end_thread", pl.Int64).is_not_null().alias("foreign"),
        (pl.col("kind") == "start").fill_null(False).alias("started"),
        is_ours("domain").alias("ours"),
    )
    if sequence.count():
        forward = threads.codes(_column(ranges, "forward_thread", pl.Int64))
        prepared = prepared.with_columns(sequence.alias("sequence"), forward.alias("forward_thread"))
    return prepared if prepared["id"].is_sorted() else prepared.sort("id")


def _keyed(says: pl.DataFrame) -> tuple[pl.DataFrame, Keys]:
    """Number the layers; where layers are named, operations are part of the layer around them."""
    keys = Keys()
    numbers = [keys.number(key) for key in says.select("layer", "module", "phase").iter_rows()]
    folded = says["role"].is_in(_OPERATIONS) & bool(says["layered"].any())
    return says.with_columns(pl.Series("key", numbers, pl.Int32), folded.alias("folded")), keys
