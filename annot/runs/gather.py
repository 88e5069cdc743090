"""The ranks of a run: read one profile per rank in parallel, then compare the ranks row by row."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import polars as pl

from annot.analyze.advice import Facts
from annot.analyze.communication import collectives_of
from annot.analyze.comparison.same_run import Program, difference, program_of
from annot.analyze.verdict import RankTimes, ranks_verdict, times_of_rank
from annot.attribution.nesting import KEY
from annot.errors import AnnotError
from annot.report.table import COUNTS, GPU_TIMES, Options, Order, Table, process
from annot.report.terminal.layout import plain_text
from annot.report.terminal.ranks import RanksTable, print_ranks, print_ranks_answer
from annot.report.views import View, find_view, views
from annot.runs.executors import Failure, run_each
from annot.runs.processes import activities_outside
from annot.runs.profile_files import rank_numbers
from annot.runs.run import Frames, Run, Shown
from annot.runs.selection import ALL, Selection
from annot.runs.skew import (
    across_ranks,
    arrivals,
    collective_time,
    skew_of,
    spread_of,
    with_collectives,
    work_time,
)
from annot.util.whole_files import write_file

_COMMUNICATION: Final = "layer_communication"
"""The view whose comparison also splits collectives into skew and transfer."""
_TIMES: Final = {"step": "host_ns", _COMMUNICATION: "exposed_ns", "stage": "bubble_ns"}
"""Views that are compared by a time of their own."""
_IN_PYTHON: Final = ".view(); a rank: .rank(0); page: .to_html('page.html')"
_PAGES: Final = 16
"""Maximum number of ranks with their own views in a page. The comparison includes all ranks."""

_SUMS: Final = (*GPU_TIMES, "gpu_guessed_ns", *COUNTS, "threads")
_TIMES_OF_RANK: Final = ("gpu_ns", "host_ns", "steps", "step_ns", "kernels", "copies", "collective_ns")
_OF_RANK: Final = ("source", "process", *_TIMES_OF_RANK, "collectives", "notes")


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank with its table, or with the reason why its profile cannot be used."""

    number: int | None
    source: str
    result: RankTable | Failure


@dataclass(frozen=True, slots=True)
class RankTable:
    """Table of one rank.

    Args:
        rank: number recorded in the profile; None: unknown.
        process: process id, if the file is split by process.
        report: its report. The rows have collective_ns from `annot.runs.skew.with_collectives`; meta has
            collective_ns and collectives from `annot.runs.skew.collective_time`.
        collectives: `annot.analyze.communication.Collectives.table`, for the view of communication.
        times: times of the rank for the verdict; None: unknown, or the profile is large.
        program: what other ranks of the run have in common with it.
    """

    rank: int | None
    process: int | None
    report: Table
    collectives: pl.DataFrame | None = None
    times: RankTimes | None = None
    program: Program | None = None


class OneRankError(ValueError):
    """Arguments of a view that cannot compare ranks, such as ``by kind``."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(f"{' '.join(arguments)} needs a single rank: use rank=N")
        self.arguments = arguments


class ShownRanks(RanksTable):
    """A comparison of ranks that prints itself, and that a notebook displays."""

    def __repr__(self) -> str:
        return plain_text(partial(print_ranks, self)).rstrip("\n")

    def _repr_html_(self) -> str:
        from annot.report.page.fragment import as_ranks_fragment

        return as_ranks_fragment(self)


class Ranks(Frames):
    """The ranks of a run.

    The frames (`layers`, `kernels`, `steps`, `summary`, `advice`) have the rows of every rank, and its number in their
    first column, `rank`. `view` compares the ranks. `rank` returns the `Run` of one rank, with all views and a
    timeline. A notebook displays the comparison by layer.

    The number of a rank comes from its profile, else from the file names (`annot.runs.profile_files.rank_numbers`). If
    files hold several ranks without numbers, ranks are numbered by file, then by process. Profiles that cannot be used
    are missing in the frames. Notes of the comparison name them.

    Args:
        paths: the profiles, from `annot.runs.profile_files.expand`.
        selection: ranges and steps to use, and whether each process is a rank.
        workers: see `annot.runs.executors.run_each`.
        dask: see `annot.runs.executors.run_each`.
    """

    def __init__(
        self, paths: Sequence[str], selection: Selection = ALL, *, workers: int | None = None, dask: str | None = None
    ) -> None:
        self.paths, self.selection = list(paths), selection
        self._workers, self._dask = workers, dask
        self._runs: dict[int, Run] = {}

    @cached_property
    def verdict(self) -> str:
        """The sentence of `annot.analyze.verdict`; empty: a profile is large, or times are unknown."""
        return str(self._compared(find_view("phase"), total=False).meta.get("verdict") or "")

    def view(
        self,
        by: str = "layer",
        columns: str = "time",
        *,
        each: bool = False,
        depth: int | None = None,
        top: int | None = None,
        min_share: float = 0.0,
        sort: Order = "order",
        total: bool = False,
        brief: bool = False,
        expand: str | Sequence[str] = (),
        draw: bool = True,
        rank: int | None = None,
    ) -> ShownRanks | Shown:
        """Return the comparison of the ranks, or the view of one rank.

        The comparison is by layer, module, kernel, op, step, phase, expert or stage; by layer also of the columns work
        and communication. `top` and `min_share` use the median times.

        Args:
            by: what a row is; `columns`, `top`, `min_share`, `sort` and `total` as in `Run.view`, too.
            each: only for one rank, as `depth`, `expand`, `brief` and `draw`; see `Run.view`.
            rank: number of the rank; None: compare all ranks.

        Returns:
            With `rank`, its report. Else the comparison. Its meta holds the sums of `annot.attribution.summarize` over
            all ranks, and
                steps       maximum number of steps of a rank
                profiles    number of files
                failed      number of files that cannot be used
                ranks       for each rank: rank, source, gpu_ns, host_ns, steps, step_ns, collective_ns, notes ..., and
                            error: why its profile cannot be used, or null
                across      differences of gpu_ns, host_ns, the mean step and collective_ns between ranks, see
                            `annot.runs.skew.spread_of`
                verdict     the sentence of `annot.analyze.verdict`; missing if a profile is large
                notes       notes of all ranks; similar notes are merged

        Raises:
            AnnotError: all profiles are unusable, or are not ranks of one run, the rank does not exist, or Dask is not
                available.
            OneRankError: the arguments need a single rank.
            TypeError: an argument has another type.
            ValueError: the view does not exist, or an argument is out of range.
        """
        options = Options(
            depth=depth, expand=expand, min_share=min_share, sort=sort, top=top, draw=draw, total=total, brief=brief
        )
        return self.make_table(find_view(by, columns, each=each), options, rank)

    def make_table(self, view: View, options: Options, rank: int | None = None) -> ShownRanks | Shown:
        """Return the comparison of the ranks, or the view of one rank; see `view`."""
        if rank is not None:
            return self.rank(rank).make_table(view, options)
        options.check(view)
        given = {"each": view.group == "each", "depth": options.depth is not None, "expand": options.paths}
        if not view.keys or any(given.values()):
            names = [name for name, value in given.items() if value]
            columns = () if view.group == "time" else (f"columns {view.group}",)
            raise OneRankError(*names[:1] or (f"by {view.by}", *columns))
        return process(self._compared(view, options.total), options)

    def rank(self, number: int) -> Run:
        """Return the run of one rank.

        Raises:
            AnnotError: all profiles are unusable, or the rank does not exist.
        """
        rows = {row["rank"]: row for row in self._usable}
        if number not in rows:
            raise AnnotError(f"rank {number} does not exist: choose from {', '.join(map(str, rows))}")
        return self._runs.setdefault(number, self._run(rows[number]))

    def page(self, rank: int | None = None) -> dict[str, Any]:
        """Return the data of the HTML page: the comparison of all ranks, and all views of the first 16 or of one.

        Raises:
            AnnotError: all profiles are unusable, or the rank does not exist.
        """
        from annot.report.page.data import EVENTS, ranks_data

        report = self._compared(find_view("layer"), total=True)
        self._usable = usable = _usable(report.meta)
        if rank is not None:
            self.rank(rank)
        shown = [row for row in usable if rank in (None, row["rank"])][:_PAGES]
        if rank is None and len(usable) > len(shown):
            report.meta["notes"].append(
                f"The page has views of the first {len(shown)} of {len(usable)} ranks. Select another rank (--rank N, "
                "rank=N) for its views."
            )
        events = EVENTS // len(shown)
        runs = [
            self._run(row).page_of_run(name=f"rank {row['rank']}", rank=row["rank"], events=events) for row in shown
        ]
        return ranks_data(runs, report.across, report.meta, report.time)

    def to_html(self, path: str | os.PathLike[str], rank: int | None = None) -> None:
        """Write one page, which works offline: the comparison, and all views of the first 16 ranks or of `rank`."""
        from annot.report.page.render import as_page

        data = self.page(rank)
        write_file(path, [as_page(data, f"{data['source']} · annot")], force=True)

    def __repr__(self) -> str:
        return plain_text(partial(print_ranks_answer, self._table, more=_IN_PYTHON)).rstrip("\n")

    def _repr_html_(self) -> str:
        return self._table._repr_html_()

    @cached_property
    def _table(self) -> ShownRanks:
        return self._compared(find_view("layer"), total=False)

    @cached_property
    def _usable(self) -> list[dict[str, Any]]:
        return _usable(self._compared(find_view("phase"), total=True).meta)

    def _run(self, row: dict[str, Any]) -> Run:
        return Run(row["source"], replace(self.selection, process=row["process"], by_process=False))

    def _frame(self, by: str) -> pl.DataFrame:
        """Return the rows of a view of all ranks, sums, with the column `rank`."""
        tables = _tables(self._read(find_view(by), total=True))
        return _concat_ranks({number: table.report.rows.drop("collective_ns") for number, table in tables.items()})

    def _compared(self, view: View, total: bool) -> ShownRanks:
        ranks = self._read(view, total)
        return _report(view, ranks, _tables(ranks))

    def _read(self, view: View, total: bool) -> list[_Rank]:
        task = partial(rank_tables, view=view.key, selection=self.selection, total=total)
        results = run_each(task, self.paths, workers=self._workers, dask=self._dask)
        ranks = _numbered(self.paths, results)
        reasons = [rank.result.reason for rank in ranks if isinstance(rank.result, Failure)]
        if len(reasons) == len(ranks):
            raise AnnotError(
                reasons[0] if len(ranks) == 1 else f"all {len(ranks)} profiles are unusable. The first: {reasons[0]}"
            )
        _check_one_run(ranks)
        return ranks


def _check_one_run(ranks: Sequence[_Rank]) -> None:
    """Raise AnnotError if two files are not ranks of one run. Processes of a file are."""
    programs = {rank.source: rank.result.program for rank in ranks if isinstance(rank.result, RankTable)}
    (first, program), *others = programs.items()
    for source, other in others:
        if program and other and (reason := difference(program, other)):
            raise AnnotError(
                f"{first} (A) and {source} (B) are not ranks of one run: {reason}. Report each alone, or compare two "
                "runs with annot compare"
            )


def _tables(ranks: Sequence[_Rank]) -> dict[int, RankTable]:
    return {rank.number or 0: rank.result for rank in ranks if isinstance(rank.result, RankTable)}


def _concat_ranks(rows: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all ranks, with the rank in the first column."""
    tables = [table.select(pl.lit(number, pl.Int64).alias("rank"), pl.all()) for number, table in rows.items()]
    return pl.concat(tables, how="diagonal_relaxed")


def _usable(meta: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in meta["ranks"] if row["error"] is None]


def rank_tables(path: str, view: str, selection: Selection, total: bool = True) -> list[RankTable]:
    """Return the table of each rank in a file: one table, or one per process if the file is split by process."""
    run = Run(path, replace(selection, by_process=False))
    if not selection.by_process:
        return [_table(run, view, total)]
    runs = run.of_processes()
    tables = [_table(process_run, view, total) for process_run in runs]
    if left_out := activities_outside(run.source, [process_run.selection.process or 0 for process_run in runs]):
        tables[0].report.meta["notes"].append(
            f"{left_out:,} GPU activities are left out because their processes are not ranks."
        )
    return tables


def _table(run: Run, view: str, total: bool) -> RankTable:
    attribution = run.attribution_for(views()[view], total=total)
    report = run.view(view, total=total, draw=False)
    steps = report.meta.get("per_step", 1)
    collectives = collective_time(attribution)
    rows = with_collectives(report.rows, attribution, views()[view], steps)
    collective_ns, number = collectives if steps == 1 else (value / steps for value in collectives)
    meta = report.meta | {"collective_ns": collective_ns, "collectives": number}
    process, source_meta = run.selection.process, run.source.meta
    rank = source_meta.get("rank")
    if process is not None:
        rank = next((row.get("rank") for row in source_meta.get("processes", ()) if row["process"] == process), None)
    table = collectives_of(attribution).table if view == _COMMUNICATION else None
    step = (report.meta["step_ns"] or {}).get("mean")
    times = times_of_rank(Facts(attribution), step) if run.is_small(attribution) else None
    return RankTable(
        rank=rank,
        process=process,
        report=replace(report, rows=rows, meta=meta),
        collectives=table,
        times=times,
        program=program_of(attribution),
    )


def _numbered(paths: Sequence[str], results: Sequence[list[RankTable] | Failure]) -> list[_Rank]:
    """Return all ranks in order, ranks without a number last."""
    outcomes = [
        (path, named, outcome)
        for path, named, result in zip(paths, rank_numbers(paths), results, strict=True)
        for outcome in (result if isinstance(result, list) else [result])
    ]
    recorded = [outcome.rank for _, _, outcome in outcomes if isinstance(outcome, RankTable)]
    numbers: list[int | None]
    if None not in recorded and len(set(recorded)) == len(recorded) > 0:  # the file name counts for unusable profiles
        numbers = [
            outcome.rank if isinstance(outcome, RankTable) else None if named in recorded else named
            for _, named, outcome in outcomes
        ]
    elif len(outcomes) > len(paths):
        numbers = list(range(len(outcomes)))
    else:
        numbers = [named for _, named, _ in outcomes]
    ranks = [_Rank(number, path, outcome) for number, (path, _, outcome) in zip(numbers, outcomes, strict=True)]
    return sorted(ranks, key=lambda rank: (rank.number is None, rank.number or 0))


def _report(view: View, ranks: Sequence[_Rank], tables: dict[int, RankTable]) -> ShownRanks:
    reports = {number: table.report for number, table in tables.items()}
    device = any(report.meta["kernels"] or report.meta["copies"] for report in reports.values())
    time = _time(view.key, device=device)
    rows = _concat_ranks({number: report.rows for number, report in reports.items()}).with_columns(
        work_ns=work_time(time)
    )
    across = across_ranks(rows, view.keys)
    if view.key == _COMMUNICATION:
        rows, across = _add_skew(rows, across, tables)
    rows = rows.join(across, on=list(view.keys), how="left", nulls_equal=True, maintain_order="left")
    meta = _meta(ranks, tables)
    return ShownRanks(view=view, rows=rows, meta=meta, compared=time, across=across, ranks=reports)


def _add_skew(
    rows: pl.DataFrame, across: pl.DataFrame, tables: Mapping[int, RankTable]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add skew_ns and transfer_ns to the rows of each rank, and the columns of `arrivals` to the layers."""
    skew = skew_of({number: table.collectives for number, table in tables.items() if table.collectives is not None})
    steps = skew["rank"].replace_strict(
        {number: table.report.meta.get("per_step", 1) for number, table in tables.items()}
    )
    if (steps > 1).any():
        skew = skew.with_columns(pl.col("skew_ns", "transfer_ns") / steps)
    rows = rows.join(skew, on=["rank", *KEY], how="left", maintain_order="left")
    return rows, across.join(arrivals(skew), on=KEY, how="left", maintain_order="left")


def _time(by: str, *, device: bool) -> str:
    if by in _TIMES:
        return _TIMES[by]
    name = "gpu_ns" if device or by == "kernel" else "host_ns"
    return name.replace("_ns", "_self_ns") if by == "op" else name


def _meta(ranks: Sequence[_Rank], tables: dict[int, RankTable]) -> dict[str, Any]:
    metas = {number: table.report.meta for number, table in tables.items()}
    host = [meta["host_ns"] for meta in metas.values() if meta["host_ns"] is not None]
    sources = list(dict.fromkeys(rank.source for rank in ranks))
    failed = [rank.source for rank in ranks if isinstance(rank.result, Failure)]
    step_times = {number: (meta["step_ns"] or {}).get("mean") for number, meta in metas.items()}
    per_step = [meta.get("per_step", 0) for meta in metas.values()]
    across = {
        name: spread_of({number: meta[name] for number, meta in metas.items()})
        for name in ("gpu_ns", "host_ns", "collective_ns")
    }
    times = {number: table.times for number, table in tables.items() if table.times is not None}
    return {
        "source": ", ".join(sources),
        **({"verdict": ranks_verdict(times)} if len(times) == len(tables) else {}),
        **{
            name: ", ".join(dict.fromkeys(filter(None, (meta[name] for meta in metas.values()))))
            for name in ("format", "producer", "steps_found_by")
        },
        **{name: sum(meta[name] for meta in metas.values()) for name in _SUMS},
        "host_ns": sum(host) if host else None,
        "steps": max(meta["steps"] for meta in metas.values()),
        "profiles": len(sources),
        "failed": len(failed),
        "ranks": [_rank_facts(rank) for rank in ranks],
        "across": across | {"step_ns": spread_of(step_times)},
        "cut": _cut({number: meta["cut"] for number, meta in metas.items() if meta["cut"]}),
        "notes": _notes(ranks),
        **({"per_step": max(per_step)} if all(per_step) else {}),
    }


def _cut(sentences: Mapping[int, str]) -> str:
    """Return the sentence about cut recordings, that of the first rank, or an empty text."""
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return next((f"Rank {rank}{more}: {sentence}" for rank, sentence in sentences.items()), "")


def _rank_facts(rank: _Rank) -> dict[str, Any]:
    if isinstance(rank.result, Failure):
        nulls = dict.fromkeys(_OF_RANK)
        return {"rank": rank.number, **nulls, "source": rank.source, "error": rank.result.reason}
    facts = rank.result.report.meta | {"process": rank.result.process}
    return {"rank": rank.number, **{name: facts[name] for name in _OF_RANK}, "error": None}


def _notes(ranks: Sequence[_Rank]) -> list[str]:
    """Return the notes, unusable profiles first; notes that differ only in numbers are merged."""
    notes: list[str] = []
    similar: dict[str, list[tuple[int | None, str]]] = {}
    for rank in ranks:
        if isinstance(rank.result, Failure):
            who = "a rank" if rank.number is None else f"rank {rank.number}"
            notes.append(f"{who} is missing: {rank.result.reason}")
            continue
        for note in rank.result.report.meta["notes"]:
            similar.setdefault(re.sub(r"\d[\d,.]*", "#", note), []).append((rank.number, note))
    for same in similar.values():
        number, note = same[0]
        more = f" (and {len(same) - 1} more with a similar note)" if len(same) > 1 else ""
        notes.append(f"rank {number}{more}: {note}")
    return notes
