"""Collectives across ranks: who arrives late, and the wait for that rank apart from the transfer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from ranked import SLOW, US, write_ranks
from shared_data import unpacked

from annot.analyze.communication import collectives_of
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.read.formats import load
from annot.report.terminal.ranks import RanksTable
from annot.runs.gather import Ranks
from annot.runs.selection import Selection
from annot.runs.skew import arrivals, skew_of

KEY = ["layer", "module", "phase"]
_TABLE = {
    "device": pl.Int64, "start": pl.Int64, "end": pl.Int64, "calls": pl.Int64, **dict.fromkeys(KEY, pl.String),
    "operation": pl.String, "group": pl.String, "ranks": pl.Int64,
}  # fmt: skip


def _table(*rows: tuple[str, int, str, str | None, int | None], device: int = 0) -> pl.DataFrame:
    """Collectives one after the other: layer, duration (negative: outside the steps), operation, group and its size."""
    found, at = [], 0
    for layer, length, operation, group, ranks in rows:
        at += 1000
        found.append((device, at, at + abs(length), int(length > 0), layer, "", "", operation, group, ranks))
    return pl.DataFrame(found, schema=_TABLE, orient="row")


def _split(tables: dict[int, pl.DataFrame]) -> list[tuple[Any, ...]]:
    return sorted(skew_of(tables).select("rank", "layer", "skew_ns", "transfer_ns").rows())


def test_the_shortest_duration_is_the_transfer() -> None:
    """The n-th collective of a group is the same one on all ranks, in whatever order of groups they run."""
    one = _table(("a", 90, "all_reduce", "tp", 2), ("b", 40, "all_reduce", "dp", 2), ("a", 20, "all_reduce", "tp", 2))
    two = _table(("b", 70, "all_reduce", "dp", 2), ("a", 30, "all_reduce", "tp", 2), ("a", 25, "all_reduce", "tp", 2))
    found = skew_of({0: one, 1: two})
    assert _split({0: one, 1: two}) == [(0, "a", 60, 50), (0, "b", 0, 40), (1, "a", 5, 50), (1, "b", 30, 40)]
    late = arrivals(found).sort("layer").select("layer", "skew_median_ns", "transfer_median_ns", "late")
    assert late.rows() == [("a", 32, 50, 1), ("b", 15, 40, 0)]


def test_who_arrives_together_is_not_late() -> None:
    """Equal durations have no skew and no late rank."""
    table = _table(("a", 30, "all_reduce", None, None))
    assert arrivals(skew_of({0: table, 1: table, 2: table})).select("skew_median_ns", "late").rows() == [(0, None)]


@pytest.mark.parametrize(
    "other",
    [
        _table(("a", 10, "all_reduce", "tp", 2), ("a", 10, "all_reduce", "tp", 2)),
        _table(("a", 10, "all_gather", "tp", 2)),
        _table(("a", 10, "all_reduce", "tp", 4)),
        pl.concat([_table(("a", 10, "all_reduce", "tp", 2)), _table(("b", 1, "reduce", "", None), device=1)]),
    ],
    ids=["number", "operation", "group size", "devices"],
)
def test_collectives_that_do_not_match_stay_whole(other: pl.DataFrame) -> None:
    """Another number, operation or group size, or several devices of a rank: no skew is better than a wrong one."""
    assert _split({0: _table(("a", 30, "all_reduce", "tp", 2)), 1: other}) == []


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda ranks: st.lists(
            st.tuples(
                st.sampled_from("ab"), st.sampled_from(["tp", "dp"]), st.booleans(),
                st.lists(st.integers(1, 50), min_size=ranks, max_size=ranks),
            ),
            max_size=8,
        )
    )
)  # fmt: skip
def test_skew_and_transfer_add_up(steps: list[tuple[str, str, bool, list[int]]]) -> None:
    """Each collective on each rank is transfer plus skew, and somebody has no skew."""
    expected: Counter[tuple[int, str]] = Counter()
    shortest: Counter[tuple[int, str]] = Counter()
    count = len(steps[0][3]) if steps else 0
    for layer, _, inside, lengths in steps:
        for rank, length in enumerate(lengths):
            if inside:
                expected[rank, layer] += length
                shortest[rank, layer] += min(lengths)
    tables = {
        rank: _table(*(
            (layer, lengths[rank] * (1 if inside else -1), "all_reduce", group, count)
            for layer, group, inside, lengths in steps
        ))
        for rank in range(count)
    }  # fmt: skip
    if tables:
        assert _split(tables) == [(*key, expected[key] - shortest[key], shortest[key]) for key in sorted(expected)]


@pytest.mark.slow
def test_ranks_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow rank has the short all-reduce: the others wait 300 of 400 µs for it, in each of two steps."""
    monkeypatch.setenv("COLUMNS", "80")
    paths = [str(path) for path in write_ranks(tmp_path)]
    report = Ranks(paths, workers=1).view("layer", "communication", total=True)
    assert isinstance(report, RanksTable)
    row = report.across.filter(pl.col("late").is_not_null()).row(0, named=True)
    assert (row["skew_median_ns"], row["transfer_median_ns"], row["late"]) == (600 * US, 200 * US, SLOW)
    of_rank = report.rows.filter(pl.col("skew_ns").is_not_null()).sort("rank")
    assert of_rank["skew_ns"].to_list() == [0 if rank == SLOW else 600 * US for rank in range(8)]
    halved = Ranks(paths, workers=1).view("layer", "communication")
    assert halved.rows["skew_ns"].sum() * 2 == report.rows["skew_ns"].sum()
    assert main([*paths, "--columns", "communication", "--workers", "1"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[2]  # below the verdict
    assert table.startswith("Exposed communication by layer over 8 ranks, µs per step")
    assert table.splitlines()[1].endswith("Skew  Transfer  Late")


def test_ranks_of_a_real_run(tmp_path: Path) -> None:
    """Skew and transfer of two real ranks are the time of their collectives, and each has the same transfer."""
    path = str(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path))
    report = Ranks([path], Selection(by_process=True), workers=1).view("layer", "communication", total=True)
    sums = report.rows.group_by("rank").agg(pl.col("skew_ns", "transfer_ns").sum()).sort("rank")
    table = collectives_of(attribute(load(path))).table
    whole = table.group_by("device").agg((pl.col("end") - pl.col("start")).sum()).sort("device")
    assert (sums["skew_ns"] + sums["transfer_ns"]).to_list() == whole["end"].to_list()
    assert sums["transfer_ns"].n_unique() == 1
