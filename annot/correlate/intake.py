"""The ranges of a run, taken in block by block and packed as small as nesting needs them.

Texts repeat a thousandfold, so everything goes by numbers: a string is looked at once per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.dialects import split_suffix
from annot.correlate.keys import spell_out
from annot.correlate.nesting import is_ours
from annot.correlate.threads import Threads

__all__ = ["Intake"]

_PIECE: Final = 1 << 20
_SPOKEN: Final = ("domain", "text", "role")


class Intake:
    """Takes ranges in.

    Args:
        threads: those of the run, where they are known already.
    """

    def __init__(self, threads: Threads | None = None) -> None:
        self._known_threads = threads
        self._threads: dict[int, int | None] = {}
        self._texts: dict[tuple[str, str, str | None, str | None], int] = {}
        self._parts: list[pl.DataFrame] = []
        self._recent: list[pl.DataFrame] = []
        self.open_ranges = 0
        """How many had no end."""

    def add(self, ranges: pl.DataFrame) -> None:
        """Take rows of `annot.profile.RANGES` in; each has a start and a thread."""
        self._threads.update(ranges.select("thread", "process").unique("thread").iter_rows())
        self.open_ranges += ranges["end"].null_count()
        says, sequence = self._said(ranges)
        foreign = pl.col("end_thread").is_not_null() if "end_thread" in ranges.columns else pl.lit(False)
        packed = ranges.select(
            "id",
            sweep.codes(ranges["thread"], self._thread_numbers()).alias("thread"),
            "start",
            "end",
            says.alias("says"),
            foreign.alias("foreign"),
            (pl.col("kind") == "start").fill_null(False).alias("started"),
            is_ours("domain").alias("ours"),
        )
        if sequence is not None:
            known = "forward_thread" in ranges.columns
            forward = pl.Series(ranges["forward_thread"]) if known else pl.lit(None, pl.Int64)
            packed = packed.with_columns(sequence.alias("sequence"), forward.alias("forward_thread"))
        self._recent.append(packed)
        if sum(part.height for part in self._recent) >= _PIECE:
            self._gather()

    def threads(self) -> Threads:
        """Return the threads that have ranges."""
        schema = {"thread": pl.Int64, "process": pl.Int64}
        return self._known_threads or Threads.of(pl.DataFrame([*self._threads.items()], schema=schema, orient="row"))

    def says(self, marks: Iterable[str] = ()) -> pl.DataFrame:
        """Return domain, text (without the suffix of emit_nvtx) and the columns of `annot.correlate.keys.spell_out`."""
        spoken = pl.DataFrame([*self._texts], schema=dict.fromkeys((*_SPOKEN, "sizes"), pl.String), orient="row")
        says = spoken.select("domain", "text").hstack(spell_out(spoken, marks))
        return says.with_columns(pl.coalesce("shapes", spoken["sizes"]).alias("shapes"))

    def give(self, last: int) -> pl.DataFrame:
        """Return the ranges and keep none, so that memory holds a large table once.

        Args:
            last: the last instant that the host is known to have reached (ns); open ranges end there.

        Returns:
            id, thread (code), start, end, says (row of `says`, Int32), foreign (ended on another thread), started
            (not pushed), ours (in annot's domain), and, if an operation has one, sequence and forward_thread (code);
            in the order of their ids.
        """
        self._gather()
        threads = self.threads()
        code = threads.codes(self._thread_numbers())
        end = pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end")
        parts = [
            part.with_columns(end, code.gather(part["thread"]).alias("thread")) for part in self._emptied(self._parts)
        ]
        ranges = pl.concat([_NOTHING, *parts], how="diagonal")
        parts.clear()
        if "forward_thread" in ranges.columns:
            ranges = ranges.with_columns(threads.codes(ranges["forward_thread"]).alias("forward_thread"))
        return ranges if ranges["id"].is_sorted() else ranges.sort("id")

    def _gather(self) -> None:
        """Copy recent blocks into one, so that the memory of their reader serves it again."""
        if self._recent:
            self._parts.append(pl.concat(self._recent, how="diagonal", rechunk=True))
            self._recent.clear()

    @staticmethod
    def _emptied(parts: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        parts.reverse()
        while parts:
            yield parts.pop()

    def _thread_numbers(self) -> pl.Series:
        return pl.Series("thread", self._threads.keys(), pl.Int64)

    def _said(self, ranges: pl.DataFrame) -> tuple[pl.Series, pl.Series | None]:
        """Return which of the texts each range has, and its sequence number, if any range of the block has one."""
        distinct, code = _distinct(ranges)
        parts = split_suffix(distinct["text"])
        # Whether such an operation belongs to the backward pass stands in its name.
        by_name = pl.col("operation") & pl.col("role").is_null()
        spelt = distinct.select("domain", "role").hstack(parts).select(
            "domain", "stem", "sizes", "sequence", role=pl.when(by_name).then(pl.lit("operation")).otherwise("role")
        )  # fmt: skip
        columns = ["domain", "stem", "role", "sizes"]
        stems = spelt.select(columns).unique(maintain_order=True)
        numbers = [self._texts.setdefault(row, len(self._texts)) for row in stems.iter_rows()]
        stems = stems.with_columns(pl.Series("says", numbers, pl.Int32))
        spelt = spelt.join(stems, on=columns, how="left", nulls_equal=True, maintain_order="left")
        sequence = ranges["sequence"] if "sequence" in ranges.columns and ranges["sequence"].count() else None
        if spelt["sequence"].count():
            sequence = spelt["sequence"].gather(code)
        return spelt["says"].gather(code), sequence


_NOTHING: Final = pl.DataFrame(
    schema={
        "id": pl.Int64, "thread": pl.Int32, "start": pl.Int64, "end": pl.Int64, "says": pl.Int32,
        "foreign": pl.Boolean, "started": pl.Boolean, "ours": pl.Boolean,
    }
)  # fmt: skip


def _distinct(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct domains, texts and roles (String), and the row in it that each range has."""
    text = ranges["text"]
    packed = (text.cast(pl.Categorical) if text.dtype == pl.String else text).to_physical().cast(pl.Int64)
    packed = (packed.fill_null(-1) + 1) * 2**24
    for name, place in (("domain", 2**4), ("role", 1)):
        if name in ranges.columns and ranges[name].count():
            packed += _small_codes(ranges[name]) * place
    first = pl.DataFrame({"packed": packed}).with_row_index("row").unique("packed", keep="first", maintain_order=True)
    code = sweep.codes(packed, first["packed"])
    rows = ranges.select(name for name in _SPOKEN if name in ranges.columns)[first["row"]]
    absent = [pl.lit(None, pl.String).alias(name) for name in _SPOKEN if name not in rows.columns]
    distinct = rows.with_columns(pl.all().cast(pl.String)).with_columns(absent).select(_SPOKEN)
    return distinct.with_columns(pl.col("domain", "text").fill_null("")), code


def _small_codes(column: pl.Series) -> pl.Series:
    """Numbers from 1 of the values of a column that has few, 0 for null (Int64)."""
    enum = pl.Enum(column.unique().drop_nulls().cast(pl.String).sort())
    return column.cast(enum).to_physical().cast(pl.Int64).fill_null(-1) + 1
