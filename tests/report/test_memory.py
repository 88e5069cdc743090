"""What reports of large profiles take of memory, by the event: tables, pages, traces and comparisons."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from large_profile import write_profile
from random_inputs import examples

from annot.analyze.step_parts import Calls, shares
from annot.cli.main import main
from annot.read.nsys import sqlite_export
from annot.runs import run

FEW, MANY = 500_000, 1_500_000

_PEAK = """
import re, sys
from annot.cli.main import main
assert main(sys.argv[1:]) == 0
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10)
"""

VIEWS = {
    "advice": (("report", "{}", "--by", "advice", "--format", "json"), 220),
    "detail": (("report", "{}", "--columns", "all", "--format", "json"), 220),
    "iteration": (("report", "{}", "--by", "kernel", "--each", "--format", "json"), 400),
    "trace": (("report", "{}", "--format", "trace"), 350),
    "html": (("report", "{}", "--format", "html"), 300),
    "compare": (("compare", "{}", "{}", "--format", "json"), 200),
}
"""Command, and how many bytes an event may add: more than to one of ten million events, whose blocks are as large. When
rows of texts were held, these added 323, 291, 1667, 599, 369 and 232."""


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("profiles")
    for events in (FEW, MANY):
        write_profile(folder / f"{events}.sqlite", events)
    return {events: folder / f"{events}.sqlite" for events in (FEW, MANY)}


def peak(view: str, profile: Path, out: Path) -> int:
    """Return the most memory (bytes) that a process had which made a view."""
    command = [word.format(profile) for word in VIEWS[view][0]]
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *command, "-o", str(out)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_an_event_takes_few_bytes(view: str, profiles: dict[int, Path], tmp_path: Path) -> None:
    """Threads that work at the same time add to a peak by chance, so that the lowest of three counts."""

    def bytes_of_an_event(attempt: int) -> float:
        few, many = (peak(view, profiles[events], tmp_path / f"{events}-{attempt}") for events in (FEW, MANY))
        return (many - few) / (MANY - FEW)

    assert any(bytes_of_an_event(attempt) < VIEWS[view][1] for attempt in range(3))


@pytest.mark.parametrize("form", ["trace", "tensorboard"])
def test_exports_leave_a_large_profile_in_its_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing asks for the profile as tables: it is read in blocks."""
    if form == "tensorboard":
        pytest.importorskip("google.protobuf")
    write_profile(tmp_path / "run.sqlite", 10_000)

    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} was read as a whole")

    monkeypatch.setattr(run, "_IN_MEMORY", 0)
    monkeypatch.setattr(sqlite_export, "read", refuse)
    assert main(["report", str(tmp_path / "run.sqlite"), "--format", form, "-o", str(tmp_path / "out")]) == 0


def test_shares_ask_for_one_thing_after_the_other() -> None:
    """What goes on is asked for when its turn has come, so that no two of them need to be in memory."""
    alive = 0

    def spans() -> pl.DataFrame:
        nonlocal alive
        alive += 1
        assert alive == 1
        table = pl.DataFrame({"start": [0], "end": [5]})
        weakref.finalize(table, gone)
        return table

    def gone() -> None:
        nonlocal alive
        alive -= 1

    rows = shares(pl.DataFrame({"start": [0], "end": [9]}), {"one": spans, "other": spans}).rows()
    assert rows == [("one", 5, 0), ("other", 0, 5), ("idle", 4, 0)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12)), max_size=30))
def test_shares_are_those_of_each_instant(rows: list[tuple[int, int, int]]) -> None:
    """The first that goes on has each instant of the window, whatever touches and overlaps."""
    parts = [
        pl.DataFrame(
            [(start, start + length) for which, start, length in rows if which == part],
            schema={"start": pl.Int64, "end": pl.Int64}, orient="row",
        )
        for part in range(4)
    ]  # fmt: skip
    names = ["a", "b", "c"]
    found = shares(parts[0], dict(zip(names, parts[1:], strict=True))).rows()
    expected = dict.fromkeys([*names, "idle"], 0)
    hidden = dict.fromkeys([*names, "idle"], 0)
    for instant in range(50):
        window, *others = [
            part.filter(pl.col("start") <= instant, pl.col("end") > instant).height > 0 for part in parts
        ]
        on = [name for name, there in zip(names, others, strict=True) if window and there]
        expected[on[0] if on else "idle"] += window
        for name in on[1:]:
            hidden[name] += 1
    assert found == [(name, expected[name], hidden[name]) for name in [*names, "idle"]]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 9), st.integers(0, 3)), max_size=20))
def test_calls_are_found_by_their_ids(rows: list[tuple[int, int, int, int]]) -> None:
    """Of calls with one id the earliest, in whatever order and blocks they come."""
    schema = dict.fromkeys(("process", "correlation", "start", "end"), pl.Int64)
    table = pl.DataFrame([(p, c, s, s + n) for p, c, s, n in rows], schema=schema, orient="row")
    calls = Calls()
    calls.add(table[: len(rows) // 2])
    calls.add(table[len(rows) // 2 :])
    calls.settle()
    ids = [(process, correlation) for process in (0, 1, 2) for correlation in range(7)]
    found = calls.rows(*(pl.Series(part, dtype=pl.Int64) for part in zip(*ids, strict=True)))
    for (process, correlation), row in zip(ids, found, strict=True):
        starts = [start for p, c, start, _ in rows if (p, c) == (process, correlation)]
        assert (row is None) == (not starts)
        assert row is None or calls.start[row] == min(starts)
