"""Put the tables of many ranks together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import polars as pl

from annot.correlate.ranks import KEYS, across_ranks, spread_of, work_time
from annot.errors import AnnotError
from annot.ranks.executors import Failure, run_each
from annot.ranks.files import rank_numbers
from annot.ranks.task import Question, RankTable, rank_tables, report_file
from annot.report import Report
from annot.report.ranks import RanksReport

__all__ = ["compare_ranks", "report_rank"]

_SUMS: Final = (
    "gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "gpu_by_sequence_ns", "gpu_by_time_ns", "gpu_guessed_ns",
    "ranges", "kernels", "copies", "threads",
)  # fmt: skip
_OF_RANK: Final = (
    "source", "process", "gpu_ns", "host_ns", "steps", "step_ns", "kernels", "copies", "collective_ns", "collectives",
    "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank that was read, or why it was not."""

    number: int | None
    source: str
    result: RankTable | Failure


def compare_ranks(
    paths: Sequence[str], question: Question, *, workers: int | None = None, dask: str | None = None
) -> RanksReport:
    """Return which rank is slow in which layer.

    A profile that cannot be used is named in the notes, and the others are compared. The number of a rank is the
    one that its profile says; else what `annot.ranks.files.rank_numbers` reads from the names; if a file holds
    several ranks, its place among all of them, by file, then by process.

    Args:
        paths: the profiles, as `annot.ranks.files.expand` returns them.
        question: what is asked of each.
        workers: see `annot.ranks.executors.run_each`.
        dask: see there.

    Returns:
        A report whose meta has the sums over all ranks by the names of `annot.correlate.summarize`, and
            steps       the most that a rank has
            profiles    how many files there are, and failed: how many of them could not be used
            ranks       rank, source, gpu_ns, host_ns, steps, step_ns, collective_ns, notes ... of each, and error:
                        why it could not be used, or null
            across      how gpu_ns, host_ns, the median step and collective_ns differ between the ranks: see
                        `annot.correlate.ranks.spread_of`
            notes       what the ranks note, alike ones once

    Raises:
        AnnotError: none of the profiles can be used, or Dask is not there.
    """
    results = run_each(partial(rank_tables, question=question), paths, workers=workers, dask=dask)
    ranks = _numbered(paths, results)
    reasons = [rank.result.reason for rank in ranks if isinstance(rank.result, Failure)]
    if len(reasons) == len(ranks):
        raise AnnotError(
            reasons[0] if len(paths) == 1 else f"none of the {len(paths)} profiles can be used: {reasons[0]}"
        )
    tables = {rank.number or 0: rank.result for rank in ranks if isinstance(rank.result, RankTable)}
    return _report(question, ranks, tables)


def report_rank(
    paths: Sequence[str], question: Question, rank: int, *, workers: int | None = None, dask: str | None = None
) -> Report:
    """Return the report of one rank, of any of `annot.report.TABLES`.

    Args:
        paths, question, workers, dask: as of `compare_ranks`.
        rank: the number that the rank has there.

    Raises:
        AnnotError: none of the profiles can be used, or there is no such rank.
    """
    meta = compare_ranks(paths, replace(question, by="phase"), workers=workers, dask=dask).meta
    found = {one["rank"]: one for one in meta["ranks"] if one["error"] is None}
    if rank not in found:
        raise AnnotError(f"there is no rank {rank}, only {', '.join(map(str, found))}")
    return report_file(found[rank]["source"], question, found[rank]["process"])


def _numbered(paths: Sequence[str], results: Sequence[list[RankTable] | Failure]) -> list[_Rank]:
    """All ranks in order, those without a number last."""
    parts = [
        (path, named, part)
        for path, named, result in zip(paths, rank_numbers(paths), results, strict=True)
        for part in (result if isinstance(result, list) else [result])
    ]
    said = [part.rank for _, _, part in parts if isinstance(part, RankTable)]
    numbers: list[int | None]
    if None not in said and len(set(said)) == len(said) > 0:  # a name counts where nothing could be read
        numbers = [
            part.rank if isinstance(part, RankTable) else None if named in said else named for _, named, part in parts
        ]
    elif len(parts) > len(paths):
        numbers = list(range(len(parts)))
    else:
        numbers = [named for _, named, _ in parts]
    ranks = [_Rank(number, path, part) for number, (path, _, part) in zip(numbers, parts, strict=True)]
    return sorted(ranks, key=lambda rank: (rank.number is None, rank.number or 0))


def _report(question: Question, ranks: Sequence[_Rank], tables: dict[int, RankTable]) -> RanksReport:
    device = any(table.meta["kernels"] or table.meta["copies"] for table in tables.values())
    time = _time(question.by, device=device)
    parts = [table.rows.select(pl.lit(number, pl.Int64).alias("rank"), pl.all()) for number, table in tables.items()]
    rows = pl.concat(parts, how="vertical_relaxed").with_columns(work_time(time).alias("work_ns"))
    across = across_ranks(rows, question.by)
    rows = rows.join(across, on=list(KEYS[question.by]), how="left", nulls_equal=True, maintain_order="left")
    reports = {number: Report(question.by, table.rows, table.meta) for number, table in tables.items()}
    return RanksReport(question.by, time, rows, across, reports, _meta(ranks, tables))


def _time(by: str, *, device: bool) -> str:
    if by == "step":
        return "host_ns"
    name = "gpu_ns" if device or by == "kernel" else "host_ns"
    return name.replace("_ns", "_self_ns") if by == "op" else name


def _meta(ranks: Sequence[_Rank], tables: dict[int, RankTable]) -> dict[str, Any]:
    metas = {number: table.meta for number, table in tables.items()}
    host = [meta["host_ns"] for meta in metas.values() if meta["host_ns"] is not None]
    sources = list(dict.fromkeys(rank.source for rank in ranks))
    failed = [rank.source for rank in ranks if isinstance(rank.result, Failure)]
    step_times = {number: (meta["step_ns"] or {}).get("median") for number, meta in metas.items()}
    across = {
        name: _spread({number: meta[name] for number, meta in metas.items()})
        for name in ("gpu_ns", "host_ns", "collective_ns")
    }
    return {
        "source": ", ".join(sources),
        **{name: _joined(meta[name] for meta in metas.values()) for name in ("format", "producer", "steps_found_by")},
        **{name: sum(meta[name] for meta in metas.values()) for name in _SUMS},
        "host_ns": sum(host) if host else None,
        "steps": max(meta["steps"] for meta in metas.values()),
        "profiles": len(sources),
        "failed": len(failed),
        "ranks": [_of_rank(rank) for rank in ranks],
        "across": across | {"step_ns": _spread(step_times)},
        "notes": _notes(ranks),
    }


def _joined(values: Any) -> str:
    return ", ".join(dict.fromkeys(filter(None, values)))


def _spread(times: dict[int, int | None]) -> dict[str, int] | None:
    schema = {"rank": pl.Int64, "ns": pl.Int64}
    return spread_of(pl.DataFrame(list(times.items()), schema=schema, orient="row"))


def _of_rank(rank: _Rank) -> dict[str, Any]:
    if isinstance(rank.result, Failure):
        nothing = dict.fromkeys(_OF_RANK)
        return {"rank": rank.number, **nothing, "source": rank.source, "error": rank.result.reason}
    known = rank.result.meta | {"process": rank.result.process}
    return {"rank": rank.number, **{name: known[name] for name in _OF_RANK}, "error": None}


def _notes(ranks: Sequence[_Rank]) -> list[str]:
    """What is wrong, first with profiles that could not be used; notes that differ only in numbers come once."""
    notes: list[str] = []
    alike: dict[str, list[tuple[int | None, str]]] = {}
    for rank in ranks:
        if isinstance(rank.result, Failure):
            who = "a rank" if rank.number is None else f"rank {rank.number}"
            notes.append(f"{who} is missing: {rank.result.reason}")
            continue
        for note in rank.result.meta["notes"]:
            alike.setdefault(re.sub(r"\d[\d,.]*", "#", note), []).append((rank.number, note))
    for same in alike.values():
        number, note = same[0]
        more = f" (alike on {len(same) - 1} more)" if len(same) > 1 else ""
        notes.append(f"rank {number}{more}: {note}")
    return notes
