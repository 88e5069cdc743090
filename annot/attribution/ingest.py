"""Ingest of the ranges of a run, block by block, into compact columns.

Range texts repeat thousands of times. Each distinct text is parsed once per block and replaced by a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.bit_layout import TEXT_KEY_UNITS
from annot.attribution.dense_ids import Threads
from annot.attribution.parsed_labels import parse_labels
from annot.labels.foreign import split_suffix
from annot.labels.tag import DOMAIN

__all__ = ["IngestedRanges"]

_PART_ROWS: Final = 1 << 20
_LABEL_COLUMNS: Final = ("domain", "text", "role", "call")


class IngestedRanges:
    """The ranges that were read so far, with the threads of the run if they are already known."""

    def __init__(self, threads: Threads | None = None) -> None:
        self._known_threads = threads
        self._threads: dict[int, int | None] = {}
        self._texts: dict[tuple[str, str, str | None, str | None, str | None], int] = {}
        self._parts: list[pl.DataFrame] = []
        self._recent: list[pl.DataFrame] = []
        self.open_ranges = 0
        """Number of ranges without an end."""

    def add(self, ranges: pl.DataFrame) -> None:
        """Add rows of `annot.profile.RANGES`. Start and thread must not be null."""
        self._threads.update(ranges.select("thread", "process").unique("thread").iter_rows())
        self.open_ranges += ranges["end"].null_count()
        labels, sequence = self._labels_of(ranges)
        foreign = pl.col("end_thread").is_not_null() if "end_thread" in ranges.columns else pl.lit(False)
        packed = ranges.select(
            "id",
            column_ops.codes(ranges["thread"], self._thread_numbers()).alias("thread"),
            "start",
            "end",
            labels.alias("label"),
            foreign.alias("foreign"),
            (pl.col("kind") == "start").fill_null(False).alias("started"),
            (pl.col("domain") == DOMAIN).fill_null(False).alias("ours"),
        )
        if sequence is not None:
            has_thread = "forward_thread" in ranges.columns
            forward = pl.Series(ranges["forward_thread"]) if has_thread else pl.lit(None, pl.Int64)
            packed = packed.with_columns(sequence.alias("sequence"), forward.alias("forward_thread"))
        self._recent.append(packed)
        if sum(block.height for block in self._recent) >= _PART_ROWS:
            self._gather()

    def threads(self) -> Threads:
        """Return the threads with ranges."""
        schema = {"thread": pl.Int64, "process": pl.Int64}
        return self._known_threads or Threads.of(pl.DataFrame([*self._threads.items()], schema=schema, orient="row"))

    def labels(self, marks: Iterable[str] = ()) -> pl.DataFrame:
        """Return domain, text (without the suffix of emit_nvtx), call and the columns of `parse_labels`."""
        texts = pl.DataFrame([*self._texts], schema=dict.fromkeys((*_LABEL_COLUMNS, "sizes"), pl.String), orient="row")
        labels = texts.select("domain", "text", "call").hstack(parse_labels(texts, marks))
        return labels.with_columns(pl.coalesce("shapes", texts["sizes"]).alias("shapes"))

    def pop_ranges(self, last: int) -> pl.DataFrame:
        """Return the ranges by id and release them, so that memory holds a large table only once.

        Open ranges end at `last`, the last known host timestamp (ns). The columns are id, thread (code), start, end,
        label (row of `labels`, Int32), foreign (ended on another thread), started (not pushed), ours (in annot's
        domain), and, if operations have sequence numbers, sequence and forward_thread (code).
        """
        self._gather()
        threads = self.threads()
        code = threads.codes(self._thread_numbers())
        end = pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end")
        blocks = [
            block.with_columns(end, code.gather(block["thread"]).alias("thread"))
            for block in self._emptied(self._parts)
        ]
        ranges = pl.concat([_EMPTY, *blocks], how="diagonal")
        blocks.clear()
        if "forward_thread" in ranges.columns:
            ranges = ranges.with_columns(threads.codes(ranges["forward_thread"]).alias("forward_thread"))
        return ranges if ranges["id"].is_sorted() else ranges.sort("id")

    def _gather(self) -> None:
        """Copy recent blocks into one table, so that the reader can reuse their memory."""
        if self._recent:
            self._parts.append(pl.concat(self._recent, how="diagonal", rechunk=True))
            self._recent.clear()

    @staticmethod
    def _emptied(blocks: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        blocks.reverse()
        while blocks:
            yield blocks.pop()

    def _thread_numbers(self) -> pl.Series:
        return pl.Series("thread", self._threads.keys(), pl.Int64)

    def _labels_of(self, ranges: pl.DataFrame) -> tuple[pl.Series, pl.Series | None]:
        """Return the label of each range, and its sequence number if any range of the block has one."""
        distinct, code = _distinct(ranges)
        suffixes = split_suffix(distinct["text"])
        # emit_nvtx does not mark backward operations; `parse_labels` recognises them by name.
        by_name = pl.col("operation") & pl.col("role").is_null()
        texts = distinct.select("domain", "role", "call").hstack(suffixes).select(
            "domain", "stem", "call", "sizes", "sequence",
            role=pl.when(by_name).then(pl.lit("operation")).otherwise("role"),
        )  # fmt: skip
        columns = ["domain", "stem", "role", "call", "sizes"]
        stems = texts.select(columns).unique(maintain_order=True)
        numbers = [self._texts.setdefault(row, len(self._texts)) for row in stems.iter_rows()]
        stems = stems.with_columns(pl.Series("label", numbers, pl.Int32))
        texts = texts.join(stems, on=columns, how="left", nulls_equal=True, maintain_order="left")
        sequence = ranges["sequence"] if "sequence" in ranges.columns and ranges["sequence"].count() else None
        if texts["sequence"].count():
            sequence = texts["sequence"].gather(code)
        return texts["label"].gather(code), sequence


_EMPTY: Final = pl.DataFrame(
    schema={
        "id": pl.Int64, "thread": pl.Int32, "start": pl.Int64, "end": pl.Int64, "label": pl.Int32,
        "foreign": pl.Boolean, "started": pl.Boolean, "ours": pl.Boolean,
    }
)  # fmt: skip


def _code_of_texts(texts: pl.Series) -> pl.Series:
    """Return a number for each text. polars keeps categories, which takes much memory where each text occurs once."""
    numbers = texts.unique().drop_nulls().alias("text").to_frame().with_row_index("code")
    return texts.alias("text").to_frame().join(numbers, on="text", how="left", maintain_order="left")["code"]


def _distinct(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct domains, texts and roles (String), and the row of each range in that table.

    Ranges are grouped by their text key (see `annot.attribution.bit_layout`).
    """
    text = ranges["text"]
    text_code = _code_of_texts(text) if text.dtype == pl.String else text.to_physical()
    key = text_code.cast(pl.Int64).fill_null(-1) + 1
    if "call" in ranges.columns and ranges["call"].count():
        calls = pl.Enum(ranges["call"].unique().drop_nulls().cast(pl.String))
        call_code = ranges["call"].cast(calls).to_physical().cast(pl.Int64).fill_null(-1) + 1
        key = key * (len(calls.categories) + 1) + call_code
    key *= TEXT_KEY_UNITS["text"]
    for name in ("domain", "role"):
        if name in ranges.columns and ranges[name].count():
            enum = pl.Enum(ranges[name].unique().drop_nulls().cast(pl.String).sort())  # few distinct values
            key += (ranges[name].cast(enum).to_physical().cast(pl.Int64).fill_null(-1) + 1) * TEXT_KEY_UNITS[name]
    first = pl.DataFrame({"key": key}).with_row_index("row").unique("key", keep="first", maintain_order=True)
    code = column_ops.codes(key, first["key"])
    rows = ranges.select(name for name in _LABEL_COLUMNS if name in ranges.columns)[first["row"]]
    absent = [pl.lit(None, pl.String).alias(name) for name in _LABEL_COLUMNS if name not in rows.columns]
    distinct = rows.with_columns(pl.all().cast(pl.String)).with_columns(absent).select(_LABEL_COLUMNS)
    return distinct.with_columns(pl.col("domain", "text").fill_null("")), code
