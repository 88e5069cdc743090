"""Reports of several processes without a GPU: what is added up, and 100 % as in the verdict."""

from __future__ import annotations

import re

import polars as pl
from step_rows import Rows

from annot.analyze.run_summary import by_summary
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.profile import Profile
from annot.report.terminal.table import as_text
from annot.runs.run import Run

MS = 1_000_000


def _training(count: int, *, workers: int = 0, **meta: object) -> Profile:
    """Four steps of 10 ms of each process: data 2, forward 3, backward 4 (of which the process waits 3), and nothing.

    Each worker fetches for 5 ms in each step. The second step also waits for 1 ms at the end of an epoch.
    """
    rows = Rows()
    for process in range(1, 1 + count + workers):
        for step in range(4):
            at = step * 10 * MS
            if process > count:
                rows.range(f"Data Worker {process - count} |data", at, at + 5 * MS, process)
                continue
            if step == 2:
                rows.range("Data |data", at - MS, at - MS // 2, process)
            rows.range("Data |data", at, at + 2 * MS, process)
            rows.range(f"Batch {step} |step", at + 2 * MS, at + 9 * MS, process)
            rows.range("fc Linear |fwd", at + 2 * MS, at + 5 * MS, process)
            rows.range("Backward |bwd", at + 5 * MS, at + 9 * MS, process)
            rows.range("Collective all_reduce.wait@default_pg:2 |coll", at + 6 * MS, at + 9 * MS, process)
    return rows.build(**meta)


def _lines(profile: Profile, *, total: bool = False) -> dict[str, str]:
    """The lines above the table by their first words, and the verdict."""
    text = as_text(Run(profile).view(brief=True, total=total)).partition("\n\n")[0]
    lines = re.sub(r"\n +", " ", text).split("\n")
    return {line.partition(" ")[0].rstrip(":"): line for line in reversed(lines)}


def test_several_processes_are_sums() -> None:
    """The verdict, the host line and a line of its own say so; one process says nothing."""
    lines = _lines(_training(2))
    assert lines["Step"].startswith("Step 9.12 ms (mean; median 9.00 ms) of 2 processes on CPU: ")
    assert lines["Host"].endswith("on 2 threads, the sum over 2 processes")
    assert lines["Processes"] == "Processes: 2. Times are sums over processes; --by-process compares the processes"
    ranked = [{"process": one, "pid": one, "name": "", "rank": one - 1} for one in (1, 2)]
    assert _lines(_training(2, processes=ranked))["Step"].startswith(
        "Step 9.12 ms (mean; median 9.00 ms) of 2 ranks on CPU: "
    )
    alone = _lines(_training(1))
    assert alone["Step"].startswith("Step 9.12 ms (mean; median 9.00 ms) on CPU: ")
    assert "Processes" not in alone


def test_workers_are_beside_the_steps() -> None:
    """The mean of a step lacks them, the run has them, and both say so."""
    profile = _training(1, workers=2)
    assert "Processes" not in _lines(profile)
    assert _lines(profile)["Host"].endswith(
        "on 1 thread, without 2 worker processes that load data (5.000 ms per batch)"
    )
    assert _lines(profile, total=True)["Host"].endswith(
        "on 3 threads, 40.000 ms of it in 2 worker processes that load data. "
        "Some ranges overlap: the run takes 39.000 ms, and shares are of 79.000 ms, the sum of the rows"
    )
    assert Run(profile).meta["workers"] == {"processes": 2, "fetches": 8, "host_ns": 40 * MS}


def test_shares_are_those_of_the_verdict() -> None:
    """100 % is the wall-clock time of the steps of all processes, and a wait at the end of an epoch is part of it.

    In the whole run, the worker runs at the same time, so that the sum of all rows is longer than this.
    """
    for profile in (_training(1), _training(2, workers=1)):
        run = Run(profile)
        report = run.view()
        shares = by_summary(run.attribution).filter(pl.col("section") == "time")
        shares = dict(shares.select("item", "share").iter_rows())
        of_phase = report.rows.group_by("phase").agg(pl.col("host_self_ns").sum())
        found = {phase: ns / report.whole for phase, ns in of_phase.iter_rows()}
        assert (found["data"], found["collective"]) == (shares["data"], shares["collectives"])
        assert round(100 * found["data"]) == 23
        total = run.view(total=True)
        assert total.meta["wall_ns"] == (39 * MS if run.meta["processes"] == 1 else 2 * 39 * MS)
        outside = total.rows.filter(pl.col("layer") == UNATTRIBUTED)["host_self_ns"].sum()
        assert total.whole == total.meta["host_ns"] + outside == total.rows["host_self_ns"].sum()
