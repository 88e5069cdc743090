"""Pipeline stages: busy time, transfers and bubbles of each action."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import step_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from sqlite_profile import SqliteProfile
from step_rows import ALL_REDUCE, GEMM, Rows

import annot
from annot import load
from annot.analyze.communication import by_stage
from annot.attribution.attribute import Attribution, attribute
from annot.report.terminal.layout import plain_text
from annot.report.terminal.ranks import RanksTable, print_ranks
from annot.runs.gather import Ranks
from annot.runs.run import Run

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
TIMES = ("busy_ns", "bubble_ns", "transfer_ns")


def _table(rows: Rows, **options: Any) -> dict[str, tuple[int, ...]]:
    table = by_stage(attribute(rows.build(), **options))
    assert (table["time_ns"] == table["busy_ns"] + table["bubble_ns"]).all()
    return {row[0]: row[1:] for row in table.select("action", *TIMES).iter_rows()}


def test_a_gap_belongs_to_the_action_that_ends_it() -> None:
    """A receive is bubble, also as a kernel of a forward; after the last kernel, the send at the end has the gap."""
    rows = Rows().range("PP:1RECV_F0", 0, 2).range("PP:1F0", 2, 6).range("PP:1F1", 6, 10).range("PP:1B0", 10, 14)
    rows.range("PP:1SEND_B0", 14, 16)
    rows.work(SEND, 1, 10, 20).work(GEMM, 3, 20, 30).work(SEND, 7, 25, 34).work(GEMM, 8, 36, 40)
    rows.work(GEMM, 11, 42, 50).work(SEND, 15, 50, 55).work(GEMM, 40, 60, 70)
    assert _table(rows) == {"1F0": (10, 10, 10), "1F1": (4, 6, 9), "1B0": (8, 7, 5)}


def test_without_a_gpu_waits_are_bubbles() -> None:
    """The host is busy in the ranges of actions, without send, receive and their waits inside."""
    rows = Rows().range("PP:0F0", 0, 10).range("PP:0SEND_F0", 10, 12).range("PP:0RECV_B0", 12, 13)
    rows.range("PP:0B0", 15, 40).range("Collective recv.wait |coll", 16, 30).range("aten::send", 31, 35)
    rows.range("Collective all_reduce@default_pg:2 [8]f32 |coll", 35, 38).range("gloo:recv", 0, 50, thread=1)
    assert _table(rows) == {"0F0": (10, 0, 2), "0B0": (11, 19, 15)}
    rows.range("gloo:recv", 12, 18).range("gloo:send", 11, 45)
    assert _table(rows) == {"0F0": (10, 0, 2), "0B0": (10, 20, 16)}


def test_steps_and_passes_have_no_bubble_in_between() -> None:
    """A step can call the schedule twice; the time between the calls, and between steps, is no bubble."""
    rows = Rows().range("Batch 0 |step", 0, 50).range("Batch 1 |step", 50, 99)
    for start in (0, 20, 60):
        rows.range("Forward 0", start, start + 4).range("Backward 0", start + 5, start + 9)
    assert _table(rows) == {"F0": (12, 0, 0), "B0": (12, 3, 0)}
    assert _table(rows, steps=slice(1, 2)) == {"F0": (4, 0, 0), "B0": (4, 1, 0)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PP:0F1", ("0F1", "forward", 0, 1)), ("PP:12B10", ("12B10", "backward", 12, 10)),
        ("PP:3I2", ("3B2", "backward", 3, 2)), ("PP:3W2", ("3B2", "backward", 3, 2)),
        ("PP:1UNSHARD", ("1UNSHARD", "other", 1, None)), ("PP:1REDUCE_GRAD", ("1REDUCE_GRAD", "other", 1, None)),
        ("PP:(0F1;3B0)OVERLAP_F_B", ("0F1;3B0", "other", 0, 1)), ("Forward 7", ("F7", "forward", None, 7)),
        ("PP:5SEND_F1", ("5F1", "forward", 5, 1)), ("PP:5RECV_B1", ("5B1", "backward", 5, 1)),
        ("PP:F", None), ("Forward pass", None), ("Forward 7 of 8", None), ("0F1", None), ("Backward", None),
    ],
)  # fmt: skip
def test_names_of_actions(text: str, found: tuple[Any, ...] | None) -> None:
    """As PyTorch's schedules write them."""
    table = by_stage(attribute(Rows().range(text, 0, 5).build()))
    assert table.select("action", "phase", "stage", "microbatch").rows() == ([] if found is None else [found])


def test_table() -> None:
    """A line per action, a share of the whole time, per step."""
    rows = Rows()
    for step in range(4):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + 900)
        rows.range("PP:0F0", 1000 * step, 1000 * step + 300).range("PP:0B0", 1000 * step + 600, 1000 * step + 900)
    text = repr(Run(rows.build()).view("stage"))
    assert "\nPipeline: time and bubbles of each action, µs per step\n" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["0F0", "forward", "0", "0", "1", "0.30", "0.30", "0.00", "0.0%", "0.00"] in lines
    assert [">", "0B0", "backward", "0", "0", "1", "0.60", "0.30", "0.30", "33.3%", "0.00"] in lines


def test_ranks_are_compared_by_their_bubbles(tmp_path: Path) -> None:
    """A stage is on one rank, or on several that share the data."""
    paths = []
    for rank, texts in enumerate((("PP:0F0", "PP:0B0"), ("PP:1F0", "PP:1B0"), ("PP:0F0", "PP:0B0"))):
        profile = SqliteProfile()
        for number, text in enumerate(texts):
            profile.range(text, 1000 * number, 1000 * number + 600 - 100 * rank)
        paths.append(profile.write(tmp_path / f"rank{rank}.sqlite"))
    run = annot.open(list(map(str, paths)))
    report = run.view("stage", total=True)
    assert isinstance(report, RanksTable)
    found = report.across.select("action", "ranks", "median_ns", "max_ns", "slowest").rows()
    assert found == [("0F0", 2, 0, 0, 0), ("0B0", 2, 500, 600, 2), ("1F0", 1, 0, 0, 1), ("1B0", 1, 500, 500, 1)]
    assert "Bubble by stage over 3 ranks" in plain_text(partial(print_ranks, report))
    assert isinstance(run, Ranks)
    assert run.view("stage", rank=1, total=True).rows["action"].to_list() == ["1F0", "1B0"]


@pytest.mark.slow
def test_ranks_of_a_real_pipeline(tmp_path: Path) -> None:
    """Two ranks with two stages each: the actions of the schedule in each step, and all time of the passes."""
    pytest.importorskip("torch", reason="the pipeline needs PyTorch")
    worker = Path(step_rows.__file__).with_name("pipeline_worker.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environ = {**os.environ, "PYTHONPATH": str(Path(annot.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [*torchrun, str(worker), "ScheduleInterleaved1F1B"]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        profile = load(path)
        table = by_stage(attribute(profile))
        each = {f"{stage}{kind}{one}" for stage in (rank, rank + 2) for kind in "FB" for one in range(4)}
        others = {f"{stage}{kind}" for stage in (rank, rank + 2) for kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD")}
        assert {row[0]: row[1] for row in table.select("action", "calls").iter_rows()} == dict.fromkeys(
            each | others, 3
        )
        spans = []
        for begin, until in profile.ranges.filter(_text("ProfilerStep#")).select("start", "end").iter_rows():
            inside = profile.ranges.filter(_text("PP:"), pl.col("start").is_between(begin, until))
            spans.append(inside.select(pl.col("end").max() - pl.col("start").min()).item())
        assert (len(spans), sum(spans)) == (3, table["time_ns"].sum())
        waits = table.filter(pl.col("action").is_in([f"{rank + 2}F0", f"{rank + 2}F1"]))
        assert (waits["bubble_ns"] > 0).all()
        assert (waits["transfer_ns"] > 0).all()
    report = annot.open(list(map(str, paths))).view("stage")
    assert report.meta["per_step"] in (1, 2, 3)  # without warm-up, if the first steps took long
    assert set(report.rows.select("rank", "stage").unique().iter_rows()) == {(0, 0), (0, 2), (1, 1), (1, 3)}


def _text(start: str) -> pl.Expr:
    return pl.col("text").str.starts_with(start)


@dataclass(frozen=True)
class _Action:
    """An action of the reference: a range with its name, and a receive that ends in it (empty: none)."""

    process: int
    kind: str
    stage: int
    microbatch: int
    start: int
    end: int
    inside: tuple[int, int]

    @property
    def text(self) -> str:
        return f"PP:{self.stage}{self.kind}{'' if self.kind == 'UNSHARD' else self.microbatch}"

    @property
    def sends(self) -> bool:
        return self.kind.startswith(("SEND", "RECV"))

    @property
    def name(self) -> str:
        letter = {"I": "B", "W": "B"}.get(self.kind, self.kind[-1] if self.sends else self.kind)
        return f"{self.stage}{letter}{'' if letter == 'UNSHARD' else self.microbatch}"


@dataclass
class _Drawn:
    """A profile and what the reference needs: actions, and kernels (process, launch, start, end, name)."""

    rows: Rows = field(default_factory=Rows)
    actions: list[_Action] = field(default_factory=list)
    kernels: list[tuple[int, int, int, int, str]] = field(default_factory=list)


_KINDS = ("F", "F", "B", "I", "W", "SEND_F", "RECV_F", "RECV_B", "UNSHARD")
_ACTION = st.tuples(
    st.sampled_from(_KINDS), st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), st.integers(1, 9),
    st.tuples(st.integers(-9, 4), st.integers(0, 9)),
)  # fmt: skip
_KERNEL = st.tuples(
    st.integers(1, 2), st.integers(0, 60), st.integers(0, 20), st.integers(0, 12),
    st.sampled_from([GEMM, GEMM, SEND, ALL_REDUCE, "copy"]),
)  # fmt: skip


@st.composite
def _profiles(draw: st.DrawFn) -> _Drawn:
    """Two processes with actions in steps or without, and kernels launched at any time."""
    drawn, batches = _Drawn(), draw(st.booleans())
    for process in (1, 2):
        at = 0
        for number, actions in enumerate(draw(st.lists(st.lists(_ACTION, max_size=5), min_size=1, max_size=3))):
            begin = at
            for kind, stage, microbatch, gap, length, (offset, wait) in actions:
                start, end = at + gap, at + gap + length
                inside = (min(start + offset, end), min(max(start + offset + wait, start), end))
                drawn.actions.append(_Action(process, kind, stage, microbatch, start, end, inside))
                at = end
            at += 1
            if batches:
                drawn.rows.range(f"Batch {number} |step", begin, at, process)
    for one in drawn.actions:
        drawn.rows.range(one.text, one.start, one.end, one.process)
        if one.start < one.inside[1]:
            drawn.rows.range("Collective recv.wait |coll", *one.inside, one.process)
    for process, launched, delay, length, name in draw(st.lists(_KERNEL, max_size=12)):
        start = launched + delay
        drawn.kernels.append((process, launched, start, start + length, name))
        drawn.rows.work(name, launched, start, start + length, process)
    return drawn


_Part = tuple[int, int, _Action, bool]
"""Start, end, action, and whether it sends or receives; in order."""


def _parts(drawn: _Drawn, actions: list[_Action]) -> tuple[list[_Part], bool]:
    """The activities of the actions of a process, and whether they are those of a device."""
    found = [
        (start, end, one, one.sends or name == SEND)
        for process, launched, start, end, name in sorted(drawn.kernels, key=lambda kernel: kernel[1])
        for one in actions
        if process == one.process and one.start <= launched < one.end
    ]
    waits = [(max(one.start, one.inside[0]), one.inside[1], one, True) for one in actions if one.start < one.inside[1]]
    return (found, True) if found else ([(one.start, one.end, one, one.sends) for one in actions] + waits, False)


def _passes(actions: list[_Action], step_of: Any) -> Iterable[list[_Action]]:
    """The actions of each step until their names repeat."""
    seen: Counter[Any] = Counter()
    passes: dict[Any, list[_Action]] = {}
    for one in actions:
        key = step_of(one), one.text
        passes.setdefault((key[0], seen[key]), []).append(one)
        seen[key] += 1
    return passes.values()


def _at(parts: list[_Part], instant: int) -> _Action | None:
    """The action of the part that started first among those that go on."""
    going = [part for part in parts if part[0] <= instant < part[1]]
    return min(going, key=lambda part: part[0])[2] if going else None


def _reference(drawn: _Drawn, selected: list[_Action], step_of: Any) -> tuple[dict[Any, Counter[str]], int]:
    """Times of each action nanosecond by nanosecond, and the number of nanoseconds in passes."""
    found: dict[Any, Counter[str]] = {(one.process, one.name): Counter() for one in selected}
    covered = 0
    for process in (1, 2):
        actions = [one for one in selected if one.process == process]
        parts, device = _parts(drawn, actions)
        window: set[int] = set()
        for own in _passes(actions, step_of):
            of_pass = [part for part in parts if part[2] in own]
            if of_pass:
                window.update(range(min(part[0] for part in of_pass), max(part[1] for part in of_pass)))
        covered += len(window)
        sends = [part for part in parts if part[3]]
        busy = [part for part in parts if not part[3]]

        def owner(instant: int, busy: list[_Part] = busy, sends: list[_Part] = sends, device: bool = device) -> Any:
            return _at(busy, instant) if device or not _at(sends, instant) else None

        for instant in sorted(window):
            if transfer := _at(sends, instant):
                found[process, transfer.name]["transfer_ns"] += 1
            if here := owner(instant):
                found[process, here.name]["busy_ns"] += 1
                continue
            after = instant
            while after in window and not owner(after):
                after += 1
            following = owner(after) if after in window else next(part[2] for part in parts if part[1] == after)
            found[process, following.name]["bubble_ns"] += 1
    return found, covered


def _steps_of(attribution: Attribution) -> Any:
    """The step of an action."""
    codes = dict(attribution.whole.threads.table.select("process", "process_code").unique().iter_rows())
    table = attribution.steps.table.select("process", "step", "start", "end").rows()

    def step_of(one: _Action) -> int:
        code = codes[one.process]
        return next((step for owner, step, start, end in table if owner == code and start <= one.start < end), -1)

    return step_of


@settings(max_examples=examples(300), deadline=None)
@given(_profiles(), st.sampled_from([None, 0, 1]))
def test_every_nanosecond_of_a_pass(drawn: _Drawn, choice: int | None) -> None:
    """In the whole profile and in one step, with and without a device, times are those of the reference."""
    whole = attribute(drawn.rows.build())
    if choice is not None and choice not in whole.steps.table["step"]:
        return
    one = whole if choice is None else attribute(drawn.rows.build(), steps=slice(choice, choice + 1))
    step_of = _steps_of(whole)
    selected = [action for action in drawn.actions if choice in (None, step_of(action))]
    expected, covered = _reference(drawn, selected, (lambda _: 0) if whole.steps.guessed else step_of)
    table = by_stage(one)
    assert table.select(pl.col("busy_ns", "bubble_ns").sum()).row(0) == (
        sum(row["busy_ns"] for row in expected.values()), sum(row["bubble_ns"] for row in expected.values()),
    )  # fmt: skip
    assert table["time_ns"].sum() == covered
    found = {row[:2]: row[2:] for row in table.select("process", "action", *TIMES).iter_rows()}
    assert found == {key: tuple(row[name] for name in TIMES) for key, row in expected.items()}
    calls = Counter((action.process, action.name) for action in selected if not action.sends)
    assert {row[:2]: row[2] for row in table.select("process", "action", "calls").iter_rows() if row[2]} == calls
