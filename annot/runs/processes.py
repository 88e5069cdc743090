"""The processes of a profile that are ranks of a run, and a view of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from annot.attribution.ingest import parse_labels
from annot.errors import AnnotError
from annot.profile import Source


def one_process(whole: Source, process: int) -> Source:
    """Return a view of one process of a profile."""
    return _OneProcess(whole, process)


class _OneProcess:
    """View of one process of a profile; see `annot.profile.Source`."""

    def __init__(self, whole: Source, process: int) -> None:
        self._whole, self._filter = whole, pl.col("process") == process

    @property
    def meta(self) -> dict[str, Any]:
        return self._whole.meta

    @property
    def marks(self) -> pl.DataFrame:
        return self._whole.marks.filter(self._filter)

    @property
    def captured(self) -> pl.DataFrame:
        return self._whole.captured

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.range_blocks())

    def last_launch(self) -> int | None:
        return self._whole.last_launch()

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.launch_blocks())

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.work_blocks())


def ranks_in(profile: Source) -> list[int]:
    """Return the processes with layers or steps, or else all processes with ranges.

    Raises:
        AnnotError: no process has ranges.
    """
    ranges = pl.concat(profile.range_blocks(), how="diagonal")
    if "role" not in ranges.columns:
        ranges = ranges.with_columns(role=pl.lit(None, pl.String))
    labels = ranges.select(pl.col("text").cast(pl.String), "role").unique(maintain_order=True)
    training = parse_labels(labels).select(trains=pl.col("layered") | pl.col("loop"))
    labels = pl.concat([labels, training], how="horizontal")
    trained = ranges.with_columns(pl.col("text").cast(pl.String)).join(
        labels.filter("trains"), on=["text", "role"], how="semi", nulls_equal=True
    )
    processes = (trained if trained.height else ranges)["process"].drop_nulls().unique().sort()
    if processes.is_empty():
        raise AnnotError(f"{profile.meta.get('source', '')} has no process with NVTX ranges")
    return processes.to_list()


def activities_outside(profile: Source, processes: list[int]) -> int:
    """Return the number of GPU activities of other processes."""
    return sum(block.filter(~pl.col("process").is_in(processes)).height for block in profile.work_blocks())
