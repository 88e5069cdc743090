"""Merge the tables of many ranks into one report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.ranks.executors import Failure, run_each
from annot.ranks.profile_files import rank_numbers
from annot.ranks.report_task import Question, RankTable, rank_tables, report_file
from annot.ranks.skew import KEYS, across_ranks, spread_of, work_time
from annot.report.terminal.ranks import RanksReport
from annot.report.views import Report

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
    """A rank with its table, or with the reason why its profile cannot be used."""

    number: int | None
    source: str
    result: RankTable | Failure


def compare_ranks(
    paths: Sequence[str], question: Question, *, workers: int | None = None, dask: str | None = None
) -> RanksReport:
    """Compare the ranks of a run: which rank is slow in which layer.

    A profile that cannot be used is named in the notes, and the other profiles are compared. The number of a rank
    comes from its profile, else from the file names (`annot.ranks.profile_files.rank_numbers`). If files hold several
    ranks without numbers, ranks are numbered by file, then by process.

    Args:
        paths: the profiles, from `annot.ranks.profile_files.expand`.
        question: options of the report.
        workers: see `annot.ranks.executors.run_each`.
        dask: see `annot.ranks.executors.run_each`.

    Returns:
        A report. Its meta holds the sums of `annot.attribution.summarize` over all ranks, and
            steps       maximum number of steps of a rank
            profiles    number of files
            failed      number of files that cannot be used
            ranks       for each rank: rank, source, gpu_ns, host_ns, steps, step_ns, collective_ns, notes ..., and
                        error: why its profile cannot be used, or null
            across      differences of gpu_ns, host_ns, the median step and collective_ns between ranks, see
                        `annot.ranks.skew.spread_of`
            notes       notes of all ranks; similar notes are merged

    Raises:
        AnnotError: all profiles are unusable, or Dask is not available.
    """
    results = run_each(partial(rank_tables, question=question), paths, workers=workers, dask=dask)
    ranks = _numbered(paths, results)
    reasons = [rank.result.reason for rank in ranks if isinstance(rank.result, Failure)]
    if len(reasons) == len(ranks):
        raise AnnotError(
            reasons[0] if len(paths) == 1 else f"all {len(paths)} profiles are unusable. The first: {reasons[0]}"
        )
    tables = {rank.number or 0: rank.result for rank in ranks if isinstance(rank.result, RankTable)}
    return _report(question, ranks, tables)


def report_rank(
    paths: Sequence[str], question: Question, rank: int, *, workers: int | None = None, dask: str | None = None
) -> Report:
    """Return the report of one rank, for any table of `annot.report.views.TABLES`.

    Args:
        paths, question, workers, dask: see `compare_ranks`.
        rank: number of the rank, as in `compare_ranks`.

    Raises:
        AnnotError: all profiles are unusable, or the rank does not exist.
    """
    meta = compare_ranks(paths, replace(question, by="phase"), workers=workers, dask=dask).meta
    found = {one["rank"]: one for one in meta["ranks"] if one["error"] is None}
    if rank not in found:
        raise AnnotError(f"rank {rank} does not exist: choose from {', '.join(map(str, found))}")
    return report_file(found[rank]["source"], question, found[rank]["process"])


def _numbered(paths: Sequence[str], results: Sequence[list[RankTable] | Failure]) -> list[_Rank]:
    """Return all ranks in order, ranks without a number last."""
    parts = [
        (path, named, part)
        for path, named, result in zip(paths, rank_numbers(paths), results, strict=True)
        for part in (result if isinstance(result, list) else [result])
    ]
    recorded = [part.rank for _, _, part in parts if isinstance(part, RankTable)]
    numbers: list[int | None]
    if None not in recorded and len(set(recorded)) == len(recorded) > 0:  # the file name counts for unusable profiles
        numbers = [
            part.rank if isinstance(part, RankTable) else None if named in recorded else named
            for _, named, part in parts
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
        nulls = dict.fromkeys(_OF_RANK)
        return {"rank": rank.number, **nulls, "source": rank.source, "error": rank.result.reason}
    known = rank.result.meta | {"process": rank.result.process}
    return {"rank": rank.number, **{name: known[name] for name in _OF_RANK}, "error": None}


def _notes(ranks: Sequence[_Rank]) -> list[str]:
    """Return the notes, unusable profiles first; notes that differ only in numbers are merged."""
    notes: list[str] = []
    similar: dict[str, list[tuple[int | None, str]]] = {}
    for rank in ranks:
        if isinstance(rank.result, Failure):
            who = "a rank" if rank.number is None else f"rank {rank.number}"
            notes.append(f"{who} is missing: {rank.result.reason}")
            continue
        for note in rank.result.meta["notes"]:
            similar.setdefault(re.sub(r"\d[\d,.]*", "#", note), []).append((rank.number, note))
    for same in similar.values():
        number, note = same[0]
        more = f" (and {len(same) - 1} more with a similar note)" if len(same) > 1 else ""
        notes.append(f"rank {number}{more}: {note}")
    return notes
