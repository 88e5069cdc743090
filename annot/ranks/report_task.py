"""Task of a worker: read and attribute one profile, and return a small table per rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from annot.attribution import Attribution, attribute, summarize
from annot.attribution.parsed_labels import parse_labels
from annot.errors import AnnotError
from annot.profile import Source
from annot.ranks.profile_files import is_url, local
from annot.ranks.skew import collective_work, with_collectives
from annot.read.formats import source
from annot.report.views import ANALYSES, TABLES, Report, Table, advice_count, device_words
from annot.util.progress import tell

__all__ = ["Question", "RankTable", "attributed", "rank_tables", "report_file"]


@dataclass(frozen=True, slots=True)
class Question:
    """Options of a report; see `annot.report.views.report_on`.

    Args:
        by: table of the report.
        domain: use only ranges of this NVTX domain; None: all domains.
        steps: use only these steps; None: the whole profile.
        step_range: label of the ranges that mark steps, ``#`` matches any number; None: detect the steps.
        by_process: treat each process with layers or steps as a rank. If no process has layers or steps, each process
            with ranges is a rank.
    """

    by: Table = "layer"
    domain: str | None = None
    steps: slice | None = None
    step_range: str | None = None
    by_process: bool = False


@dataclass(frozen=True, slots=True)
class RankTable:
    """Table of one rank.

    Args:
        source: path of the file, as the user gave it.
        rank: number recorded in the profile; None: unknown.
        process: process id, if the file is split by process.
        rows: rows of the table, with collective_ns from `annot.ranks.skew.with_collectives`.
        meta: totals from `annot.attribution.summarize`, with collective_ns and collectives: GPU time and number of
            communication kernels (NCCL, RCCL).
    """

    source: str
    rank: int | None
    process: int | None
    rows: pl.DataFrame
    meta: dict[str, Any]


@contextmanager
def attributed(path: str, question: Question, process: int | None = None) -> Iterator[Attribution]:
    """Yield the attributed profile of a file, or of one process in it.

    Args:
        path: path or URL of the profile.
        question: options of the report.
        process: process id; None: all processes.

    Raises:
        AnnotError: the file cannot be read, or the selected steps do not exist.
    """
    with _opened(path, replace(question, by="advice")) as profile:
        attribution = _attributed(profile if process is None else _OneProcess(profile, process), path, question)
        _meta(attribution, path)
        yield attribution


def report_file(path: str, question: Question, process: int | None = None) -> Report:
    """Return the report of a file, or of one process in it.

    Args:
        path: path or URL of the profile.
        question: options of the report.
        process: process id; None: all processes.

    Raises:
        AnnotError: the file cannot be read, or the selected steps do not exist.
    """
    with _opened(path, question) as profile:
        attribution = _attributed(profile if process is None else _OneProcess(profile, process), path, question)
        meta = _meta(attribution, path) | advice_count(attribution, question.by)
        tell("making the table")
        return Report(question.by, TABLES[question.by](attribution), meta)


def rank_tables(path: str, question: Question) -> list[RankTable]:
    """Return the table of each rank in a file: one table, or one per process if the file is split by process.

    Args:
        path: path or URL of the profile.
        question: options of the report.

    Raises:
        AnnotError: the file cannot be read, or the selected steps do not exist.
    """
    with _opened(path, question) as profile:
        if not question.by_process:
            return [_table(profile, path, question, None)]
        processes = _ranks_in(profile)
        tables = [_table(_OneProcess(profile, process), path, question, process) for process in processes]
        if left_out := _activities_outside(profile, processes):
            tables[0].meta["notes"].append(
                f"{left_out:,} GPU activities are left out because their processes are not ranks."
            )
        return tables


def _table(profile: Source, path: str, question: Question, process: int | None) -> RankTable:
    attribution = _attributed(profile, path, question)
    group = TABLES[question.by]
    rows = with_collectives(group(attribution), attribution, question.by, group)
    collectives = collective_work(attribution).select(pl.col("gpu_ns", "calls").sum()).row(0)
    meta = _meta(attribution, path) | dict(zip(("collective_ns", "collectives"), collectives, strict=True))
    rank = profile.meta.get("rank") if process is None else _rank_of(process, profile.meta)
    return RankTable(path, rank, process, rows, meta)


def _rank_of(process: int, meta: dict[str, Any]) -> int | None:
    return next((one.get("rank") for one in meta.get("processes", ()) if one["process"] == process), None)


def _attributed(profile: Source, path: str, question: Question) -> Attribution:
    tell("attributing GPU time to layers")
    try:
        return attribute(profile, domain=question.domain, steps=question.steps, step_range=question.step_range)
    except ValueError as error:
        if (question.steps, question.step_range, question.domain) == (None, None, None):
            raise
        raise AnnotError(
            str(error)
        ) from None  # the options are valid, but the profile lacks these steps or this domain


def _meta(attribution: Attribution, path: str) -> dict[str, Any]:
    return summarize(attribution) | device_words(attribution) | {"source": path}


@contextmanager
def _opened(path: str, question: Question) -> Iterator[Source]:
    """Yield the profile; errors name the URL that the user gave, not its local copy."""
    with local(path) as file:
        try:
            yield source(file, calls=question.by in ANALYSES)
        except AnnotError as error:
            raise AnnotError(str(error).replace(str(file), path) if is_url(path) else str(error)) from None


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

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.range_blocks())

    def last_launch(self) -> int | None:
        return self._whole.last_launch()

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.launch_blocks())

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._filter) for block in self._whole.work_blocks())


def _ranks_in(profile: Source) -> list[int]:
    """Return the processes with layers or steps, or else all processes with ranges."""
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


def _activities_outside(profile: Source, processes: list[int]) -> int:
    return sum(block.filter(~pl.col("process").is_in(processes)).height for block in profile.work_blocks())
