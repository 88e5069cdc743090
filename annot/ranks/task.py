"""What is done for one file: read it, and return a small table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from annot.correlate import Attribution, attribute, summarize
from annot.correlate.keys import spell_out
from annot.correlate.ranks import collective_work, with_collectives
from annot.errors import AnnotError
from annot.profile import Source
from annot.progress import tell
from annot.ranks.files import is_url, local
from annot.read import source
from annot.report import ANALYSES, TABLES, Report, Table, advice_count, device_words

__all__ = ["Question", "RankTable", "attributed", "rank_tables", "report_file"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each profile; see `annot.report.report_on`.

    Args:
        by: what a row stands for.
        domain: only ranges of this NVTX domain take part; None: all do.
        steps: only steps with these numbers take part; None: all, and what lies in no step.
        step_range: text of the ranges that are the steps, ``#`` for any number; None: they are found.
        by_process: whether each process of a file is a rank. Those with layers or steps are; if none has, all
            with ranges are.
    """

    by: Table = "layer"
    domain: str | None = None
    steps: slice | None = None
    step_range: str | None = None
    by_process: bool = False


@dataclass(frozen=True, slots=True)
class RankTable:
    """What a rank answers.

    Args:
        source: its file, as the user named it.
        rank: as the profile says; None: it does not.
        process: its process, if the file is split by process.
        rows: as the question's function of `annot.correlate` returns them, and collective_ns; see
            `annot.correlate.ranks.with_collectives`.
        meta: as `annot.correlate.summarize` returns it, and collective_ns and collectives: time and number of
            the kernels in which ranks talk to each other.
    """

    source: str
    rank: int | None
    process: int | None
    rows: pl.DataFrame
    meta: dict[str, Any]


@contextmanager
def attributed(path: str, question: Question, process: int | None = None) -> Iterator[Attribution]:
    """Give a file with its work attributed, or one process of it.

    Raises:
        AnnotError: the file cannot be read, or has no steps as they are asked for.
    """
    with _opened(path, replace(question, by="advice")) as profile:
        attribution = _attributed(profile if process is None else _OneProcess(profile, process), path, question)
        _meta(attribution, path, question)
        yield attribution


def report_file(path: str, question: Question, process: int | None = None) -> Report:
    """Return the report of a file, local or not: of all of it, or of one process.

    Raises:
        AnnotError: the file cannot be read, or has no steps as they are asked for.
    """
    with _opened(path, question) as profile:
        attribution = _attributed(profile if process is None else _OneProcess(profile, process), path, question)
        meta = _meta(attribution, path, question) | advice_count(attribution, question.by)
        tell("making the table")
        return Report(question.by, TABLES[question.by](attribution), meta)


def rank_tables(path: str, question: Question) -> list[RankTable]:
    """Return the table of each rank in a file: one, unless it is split by process.

    Raises:
        AnnotError: the file cannot be read, or has no steps as they are asked for.
    """
    with _opened(path, question) as profile:
        if not question.by_process:
            return [_table(profile, path, question, None)]
        processes = _ranks_in(profile)
        tables = [_table(_OneProcess(profile, process), path, question, process) for process in processes]
        if left_out := _work_outside(profile, processes):
            tables[0].meta["notes"].append(
                f"{left_out:,} kernels and copies of processes that are no rank are left out"
            )
        return tables


def _table(profile: Source, path: str, question: Question, process: int | None) -> RankTable:
    attribution = _attributed(profile, path, question)
    group = TABLES[question.by]
    rows = with_collectives(group(attribution), attribution, question.by, group)
    collectives = collective_work(attribution).select(pl.col("gpu_ns", "calls").sum()).row(0)
    meta = _meta(attribution, path, question) | dict(zip(("collective_ns", "collectives"), collectives, strict=True))
    rank = profile.meta.get("rank") if process is None else _rank_of(process, profile.meta)
    return RankTable(path, rank, process, rows, meta)


def _rank_of(process: int, meta: dict[str, Any]) -> int | None:
    return next((one.get("rank") for one in meta.get("processes", ()) if one["process"] == process), None)


def _attributed(profile: Source, path: str, question: Question) -> Attribution:
    tell("finding the layers")
    try:
        return attribute(profile, domain=question.domain, steps=question.steps, step_range=question.step_range)
    except ValueError as error:
        if (question.steps, question.step_range, question.domain) == (None, None, None):
            raise
        raise AnnotError(str(error)) from None  # the profile has no such steps or domain, the question is right


def _meta(attribution: Attribution, path: str, question: Question) -> dict[str, Any]:
    meta = summarize(attribution) | device_words(attribution) | {"source": path}
    if question.steps is not None and not meta["steps"]:
        last = attribution.steps.table["step"].max()
        raise AnnotError(f"{path} has no such steps, only 0 to {last!r}")
    return meta


@contextmanager
def _opened(path: str, question: Question) -> Iterator[Source]:
    """Give the profile; what is wrong with it is said of the name that the user gave."""
    with local(path) as file:
        try:
            yield source(file, calls=question.by in ANALYSES)
        except AnnotError as error:
            raise AnnotError(str(error).replace(str(file), path) if is_url(path) else str(error)) from None


class _OneProcess:
    """What a profile knows of one of its processes; see `annot.profile.Source`."""

    def __init__(self, whole: Source, process: int) -> None:
        self._whole, self._mine = whole, pl.col("process") == process

    @property
    def meta(self) -> dict[str, Any]:
        return self._whole.meta

    @property
    def marks(self) -> pl.DataFrame:
        return self._whole.marks.filter(self._mine)

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._mine) for block in self._whole.range_blocks())

    def last_launch(self) -> int | None:
        return self._whole.last_launch()

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._mine) for block in self._whole.launch_blocks())

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        return (block.filter(self._mine) for block in self._whole.work_blocks())


def _ranks_in(profile: Source) -> list[int]:
    """The processes that are ranks: those with layers or steps, or all if there are none of those."""
    ranges = pl.concat(profile.range_blocks(), how="diagonal")
    if "role" not in ranges.columns:
        ranges = ranges.with_columns(role=pl.lit(None, pl.String))
    texts = ranges.select(pl.col("text").cast(pl.String), "role").unique(maintain_order=True)
    says = pl.concat([texts, spell_out(texts).select(trains=pl.col("layered") | pl.col("loop"))], how="horizontal")
    training = ranges.with_columns(pl.col("text").cast(pl.String)).join(
        says.filter("trains"), on=["text", "role"], how="semi", nulls_equal=True
    )
    processes = (training if training.height else ranges)["process"].drop_nulls().unique().sort()
    if processes.is_empty():
        raise AnnotError(f"{profile.meta.get('source', '')} has no process with ranges")
    return processes.to_list()


def _work_outside(profile: Source, processes: list[int]) -> int:
    return sum(block.filter(~pl.col("process").is_in(processes)).height for block in profile.work_blocks())
