"""The time of steps: with the wait for data, and on the GPU where the CPU runs ahead of it."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from comparisons import compare
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.analyze.advice import Facts
from annot.analyze.run_summary import step_time
from annot.analyze.verdict import verdict
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.summary import by_step, step_spans, summarize


class Step(NamedTuple):
    """Lengths in ns: idle CPU, wait for data, range, and the kernel of the step, which the GPU runs when it is free."""

    idle: int
    wait: int
    length: int
    kernel: int


def recorded(steps: list[Step], launched_after: int = 1) -> Attribution:
    rows, clock, free = Rows(), 0, 0
    for number, step in enumerate(steps):
        clock += step.idle
        if step.wait:
            rows.range("Data |data", clock, clock + step.wait)
        clock += step.wait
        rows.range(f"Batch {number} |step", clock, clock + step.length)
        if step.kernel:
            begin = max(free, clock + launched_after)
            free = begin + step.kernel
            rows.kernel(clock, (begin, free))
        clock += step.length
    return attribute(rows.build())


def spans(attribution: Attribution) -> list[tuple[int, int, int]]:
    return step_spans(attribution).select("step", "start", "end").rows()


def times(attribution: Attribution) -> list[int]:
    return by_step(attribution)["step_ns"].to_list()


def reference(steps: list[Step], attribution: Attribution) -> list[int]:
    """The times, step by step."""
    table = attribution.steps.table
    steady = [not warm for warm in table["warmup"]]
    if not any(steady):
        steady = [row in attribution.steps.steady()["step"].to_list() for row in range(len(steps))]
    clock, free, ends, begins = 0, 0, [], []
    for step in steps:
        start = clock + step.idle + step.wait
        end = start + step.length
        begin = max(free, start + 1) if not begins and step.kernel else start
        begins.append((start, max(begin, start, *(done for _, done in ends))))
        free = max(free, start + 1) + step.kernel if step.kernel else free
        ends.append((end, max(end, free if any(one.kernel for one in steps[: len(begins)]) else 0)))
        clock = end
    on_cpu = [end - start for (start, _), (end, _) in zip(begins, ends, strict=True)]
    on_gpu = [done - begin for (_, begin), (_, done) in zip(begins, ends, strict=True)]
    compared = [row for row in range(len(steps)) if steady[row] and (row or sum(steady) == 1)]
    since = [begins[0][0], *(end for end, _ in ends)]
    behind = sum(on_gpu[row] for row in compared) > 1.1 * sum(ends[row][0] - since[row] for row in compared)
    found = on_gpu if behind else on_cpu
    for row, step in enumerate(steps):
        start = begins[row][0]
        before = 0 if row == 0 else ends[row - 1][1 if behind else 0]
        found[row] += max(0, start - max(start - step.wait, before))
    return found


lengths = st.integers(0, 40)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.builds(Step, lengths, lengths, st.integers(1, 40), lengths), min_size=1, max_size=8))
def test_times_are_those_of_the_reference(steps: list[Step]) -> None:
    """Also, the spans of a process do not overlap, and each step has its own."""
    attribution = recorded(steps)
    found = step_spans(attribution)
    assert times(attribution) == reference(steps, attribution)
    assert (found["start"] <= found["end"]).all()
    assert all(one[2] <= other[1] for one, other in pairwise(spans(attribution)))
    assert found.group_by("step", maintain_order=True).agg()["step"].to_list() == list(range(len(steps)))


def test_the_gpu_is_behind() -> None:
    """Five ranges of 10 take the 50 that the GPU needs for each; all numbers of the report are those of the GPU."""
    attribution = recorded([Step(0, 0, 10, 50)] * 5)
    assert spans(attribution) == [(step, 1 + 50 * step, 51 + 50 * step) for step in range(5)]
    meta = summarize(attribution)
    assert meta["step_ns"]["median"] == 50
    assert any(
        note.startswith("The CPU runs ahead of the GPU: the range of a step takes 10 ns") for note in meta["notes"]
    )
    assert step_time(attribution)["wall_ns"].unique().to_list() == [250]
    assert verdict(Facts(attribution)).startswith("Step 50.0 ns on one GPU: the GPU is busy 100%")


def test_a_backlog_that_does_not_grow() -> None:
    """A full queue of launches makes the CPU wait: the ranges are as long as the steps, only earlier."""
    attribution = recorded([Step(0, 0, 50, 50)] * 5, launched_after=70)
    assert times(attribution) == [50] * 5
    assert not any(note.startswith("The CPU runs ahead") for note in summarize(attribution)["notes"])


def test_a_single_step() -> None:
    """The GPU may still have run an earlier step when its range began."""
    assert times(recorded([Step(0, 0, 10, 100)], launched_after=70)) == [100]
    assert times(recorded([Step(0, 0, 100, 10)], launched_after=70)) == [100]


def test_the_wait_for_data_belongs_to_the_step() -> None:
    """A GPU that is behind works during the wait."""
    assert times(recorded([Step(5, 20, 30, 10)] * 3)) == [50] * 3
    assert times(recorded([Step(5, 20, 30, 100)] * 3)) == [120, 100, 100]
    assert verdict(Facts(recorded([Step(5, 20, 30, 0)] * 3))).startswith("Step 50.0 ns on CPU")


def test_comparisons_use_the_time_on_the_gpu() -> None:
    """Equal ranges, and a GPU that takes twice as long."""
    fast, slow = (recorded([Step(0, 0, 10, kernel)] * 5) for kernel in (50, 100))
    found = compare(fast, slow).step_time
    assert found is not None
    assert (found["a_ns"], found["b_ns"]) == (50, 100)


def test_the_waits_of_a_validation_belong_to_no_step() -> None:
    """Nor does the wait before it, at the end of the epoch. Without a validation, it belongs to the next step."""
    for validated in (True, False):
        rows = Rows()
        for number, start in enumerate((100, 200, 600)):
            rows.range("Data |data", start - 30, start).range(f"Batch {number} |step", start, start + 50)
        rows.range("Data |data", 250, 270)
        for start in (300, 400) if validated else ():
            rows.range("Data |data", start, start + 30).range("Forward Net |fwd", start + 30, start + 60)
        assert times(attribute(rows.build())) == [80, 80, 80 if validated else 100]
