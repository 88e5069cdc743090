"""Totals, statistics of steps, the GPU that is behind, and the notes of a run."""

from __future__ import annotations

import statistics
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.summary import by_step, step_spans, step_statistics, summarize


def notes(rows: Rows, **meta: Any) -> list[str]:
    return summarize(attribute(rows.build(**meta)))["notes"]


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=9))
def test_statistics_of_steps(lengths: list[int]) -> None:
    """The steps after the warm-up; the median is rounded down, and quartiles are lengths of steps."""
    steps = pl.DataFrame({"step_ns": [999, *lengths], "warmup": [True] + [False] * len(lengths)})
    ordered = sorted(lengths)
    assert step_statistics(steps.with_columns(kind=pl.lit(None, pl.String))) == {
        "mean": round(statistics.mean(lengths)), "median": int(statistics.median(lengths)), "min": ordered[0],
        "max": ordered[-1], "iqr": ordered[3 * len(lengths) // 4] - ordered[len(lengths) // 4], "warmup": 1,
    }  # fmt: skip
    assert step_statistics(steps.clear()) is None


@pytest.mark.parametrize(("kernel", "behind"), [(110, False), (111, True)])
def test_the_gpu_is_behind_from_a_tenth_on(kernel: int, behind: bool) -> None:
    """Between the ends of steps; the first one does not count, nor do warm-up steps."""
    rows, free = Rows(), 0
    for step in range(6):
        rows.range(f"Batch {step} |step", 100 * step, 100 * step + 90)
        begin = max(free, 100 * step + 10)
        free = begin + kernel
        rows.kernel(100 * step + 5, (begin, free))
    spans = step_spans(attribute(rows.build()))
    assert spans["behind"].all() == spans["behind"].any() == behind
    if behind:
        assert spans.select("start", "end").rows()[:2] == [(10, 10 + kernel), (10 + kernel, 10 + 2 * kernel)]
    else:
        assert spans.select("start", "end").rows()[:2] == [(0, 90), (100, 190)]


def test_steps_without_kernels_on_a_gpu_that_is_behind() -> None:
    """They wait for the kernels of the steps before, and end no earlier than their range."""
    rows = Rows()
    for step in range(5):
        rows.range(f"Batch {step} |step", 10 * step, 10 * step + 9)
    rows.kernel(1, (5, 105)).kernel(11, (105, 205)).kernel(31, (205, 305))
    spans = step_spans(attribute(rows.build()))
    assert spans.select("start", "end").rows() == [(5, 105), (105, 205), (205, 205), (205, 305), (305, 305)]


def test_waits_on_a_gpu_that_is_behind_do_not_overlap_steps_and_each_other() -> None:
    rows = Rows().range("Data |data", 45, 60).range("Data |data", 50, 58, ENGINE).range("Data |data", 20, 30)
    rows.range("Data |data", 52, 60, 103).range("Data |data", 46, 46, 104)
    for step in range(2):
        rows.range(f"Batch {step} |step", 60 * step, 60 * step + 40)
    spans = step_spans(attribute(rows.build()))
    assert spans.select("step", "start", "end").rows() == [(0, 0, 40), (1, 45, 60), (1, 60, 100)]


def test_times_of_phases_by_step() -> None:
    """Outermost ranges of each phase in the step in which they start; a wait between steps is that of the next one."""
    rows = Rows()
    for step in range(3):
        at = 100 * step
        rows.range(f"Batch {step} |step", at, at + 80).range("Net |fwd", at + 1, at + 21 + step)
        rows.range("Net.a |fwd", at + 2, at + 9).range("Net |bwd", at + 30, at + 40, ENGINE)
        rows.range("SGD |opt", at + 50, at + 55).range("Data |data", at + 60, at + 67).range(
            "Data |data", at + 85, at + 88
        )
        rows.kernel(at + 3, (at + 5, at + 10 + step)).kernel(at + 4, (at + 11, at + 12))
    steps = by_step(attribute(rows.range("Net |fwd", 290, 295).build()))
    columns = ("step", "batch", "forward_ns", "backward_ns", "optimizer_ns", "data_ns", "gpu_ns", "kernels")
    assert steps.select(columns).rows() == [
        (0, 0, 20, 10, 5, 7, 6, 2), (1, 1, 21, 10, 5, 10, 7, 2), (2, 2, 22, 10, 5, 10, 8, 2),
    ]  # fmt: skip
    assert steps.select("start_ns", "host_ns").rows() == [(0, 80), (100, 80), (200, 80)]


def test_steps_of_processes_are_in_order_of_time_then_process() -> None:
    rows = Rows()
    for process, start in ((2, 0), (1, 0), (2, 50), (1, 40)):
        rows.range(f"Batch {start} |step", start, start + 10, 100 * process)
    assert by_step(attribute(rows.build())).select("process", "start_ns").rows() == [(1, 0), (2, 0), (1, 40), (2, 50)]


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (Rows().range("a", 0, None), "1 range was still open at the end of the capture"),
        (Rows().range("a", 0, None).range("b", 1, None), "2 ranges were still open at the end of the capture"),
        (
            Rows().range("a", 0, 10).range("b", 5, 15),
            "1 range crosses others or ends on another thread, so its times overlap those of other ranges",
        ),
        (
            Rows().range("a", 0, 10).range("b", 5, 15).range("c", 7, 9, end_thread=ENGINE),
            "2 ranges cross others or end on another thread, so their times overlap those of other ranges",
        ),
        (Rows().kernel(1, (2, 3)), "1 kernel or copy launched in no range"),
        (Rows().kernel(1, (2, 3)).kernel(1, (2, 3)), "2 kernels or copies launched in no range"),
        (Rows().kernel(None, (2, 3)), "1 kernel or copy with no launch recorded"),
        (Rows().kernel(None, (2, 3), correlation=None), "1 kernel or copy with no correlation id"),
    ],
)
def test_notes_count(rows: Rows, note: str) -> None:
    assert notes(rows, notes=["of the reader"]) == ["of the reader", note]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (999, "999 ns"), (1000, "1.0 µs"), (999_900, "999.9 µs"), (1_000_000, "1.0 ms"), (2_340_000, "2.3 ms"),
        (10**9, "1.0 s"), (1_234 * 10**9, "1,234.0 s"), (1, "1 ns"),
    ],
)  # fmt: skip
def test_times_in_notes(ns: int, text: str) -> None:
    (note,) = notes(Rows().range("a", 0, 10).kernel(5, (20, 20 + ns), ENGINE))
    assert note == (
        f"{text} of GPU time was launched outside any range on its thread. It is attributed to the range open on "
        "another thread (gpu_by_time_ns)."
    )


def test_notes_of_guesses() -> None:
    rows = Rows()
    names = ["forward", "backward", "optimizer", "fwd", "bwd", "Forward", "Backward", "optimizer_step"]
    for place, name in enumerate([*names, "x", "a Linear |fwd", "forward"]):
        rows.range(name, 10 * place, 10 * place + 9)
    assert notes(rows)[-1] == f"Phases are guessed from the names of ranges: {', '.join(names)}."
    rows.range("Optimizer", 500, 510)
    assert notes(rows)[-1] == f"Phases are guessed from the names of ranges: {', '.join(names)}, …."


def test_totals() -> None:
    rows = Rows().range("a Linear |fwd", 0, 100).range("crossing", 90, 110, kind="start").range("b", 20, 40, 201)
    rows.kernel(5, (10, 15)).kernel(6, (12, 18), device=1).kernel(None, (20, 27))
    rows._copies.append({"process": 1, "device": 0, "start": 30, "end": 33, "correlation": 1, "kind": "HtoD"})
    meta = summarize(attribute(rows.build(source="run", format="f", producer="p", cut="late")))
    assert [meta[key] for key in ("source", "format", "producer", "cut")] == ["run", "f", "p", "late"]
    assert [meta[f"{key}gpu_ns"] for key in ("", "attributed_", "unattributed_", "warmup_")] == [21, 14, 7, 0]
    assert [meta[key] for key in ("ranges", "kernels", "copies", "threads")] == [3, 3, 1, 2]
    assert [meta[f"{key}_ns"] for key in ("host", "wall", "whole")] == [120, 110 + 20, 21]
    assert meta["devices"] == [
        {"process": 1, "device": 0, "busy_ns": 15, "span_ns": 23},
        {"process": 1, "device": 1, "busy_ns": 6, "span_ns": 6},
    ]  # fmt: skip
    assert (meta["processes"], meta["steps"], meta["step_ns"], meta["step_kind"], meta["step_kinds"]) == (
        2,
        0,
        None,
        None,
        [],
    )
    assert meta["workers"] == {"processes": 0, "fetches": 0, "host_ns": 0}


def test_without_host_times_there_are_none() -> None:
    rows = Rows().range("a Linear |fwd", 0, 100).range("Batch 0 |step", 200, 300).kernel(205, (210, 215))
    result = attribute(rows.build(host_times=False))
    meta = summarize(result)
    assert [meta[key] for key in ("host_ns", "wall_ns", "step_ns", "whole_ns")] == [None, None, None, 5]
    steps = by_step(result)
    assert steps.select("step_ns", "host_ns", "start_ns", "forward_ns", "warmup", "gpu_ns").rows() == [
        (None,) * 5 + (5,)
    ]


def test_selected_steps_and_their_warm_up() -> None:
    rows, now = Rows(), 0
    for step, length in enumerate((500, 100, 100, 100)):
        rows.range(f"Batch {step} |step", now, now + length).kernel(now, (now, now + 10 * (step + 1)))
        now += length + 7
    for steps, expected in ((None, (4, 821, 10, 0)), ("steady", (3, 300, 0, 1)), (slice(0, 2), (2, 600, 10, 0))):
        meta = summarize(attribute(rows.build(), steps=steps))  # type: ignore[arg-type]
        assert (meta["steps"], meta["wall_ns"], meta["warmup_gpu_ns"], meta["warmup_left_out"]) == expected
        assert meta["processes"] == 1


def test_gpu_time_in_ranges_named_warm_up() -> None:
    """Without steps, also of layers inside."""
    rows = (
        Rows().range("warmup", 0, 50).range("a Linear |fwd", 10, 20).range("a Linear |fwd", 60, 70).range("x", 71, 72)
    )
    rows.kernel(15, (100, 101)).kernel(30, (102, 104)).kernel(65, (105, 109))
    assert summarize(attribute(rows.build()))["warmup_gpu_ns"] == 3


def test_the_cpu_that_runs_ahead_is_a_note() -> None:
    rows = Rows()
    for step in range(4):
        rows.range(f"Batch {step} |step", 10 * step, 10 * step + 6 + step % 2).kernel(
            10 * step, (1000 * step, 1000 * step + 999), MAIN
        )
    assert notes(rows) == [
        "The CPU runs ahead of the GPU: the range of a step takes 6 ns (median), and its kernels run later. Step times "
        "are those of the GPU."
    ]
