"""Why a profile has no steps: each reason, on the line of the steps and in place of the table of steps."""

from __future__ import annotations

import pytest
from tables import Rows

from annot.attribution.attribute import attribute
from annot.attribution.summary import by_step, summarize
from annot.report.totals import totals
from annot.runs.run import Run

MARKS = "`for … in batches(loader)` or `--step-range 'NAME #'` marks steps"


def loop(*texts: str, count: int = 5) -> Rows:
    rows = Rows()
    for step in range(count):
        for place, text in enumerate(texts):
            rows.range(text, 100 * step + 20 * place, 100 * step + 20 * place + 20)
    return rows


def with_a_long_range(length: int) -> Rows:
    """Three steps that take 120 ns, then a range of a length."""
    return loop("read", "write", count=3).range("rest", 1000, 1000 + length)


def of_workers() -> Rows:
    rows = Rows()
    for step in range(5):
        rows.range("Data Worker 0 |data", 100 * step, 100 * step + 20)
    return rows


def of_layers_in_another_process() -> Rows:
    rows = loop("read", "write", count=2)
    for step in range(5):
        rows.range("a Linear |fwd", 100 * step, 100 * step + 20, 200)
    return rows


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (Rows().kernel(None, (5, 9)), "the profile has no ranges; `annot run --layers` records them"),
        (loop("read", "write", count=2), f"no pattern of ranges repeats three times; {MARKS}"),
        (
            with_a_long_range(121),
            f"the pattern of ranges that repeats covers 50% of the time in ranges; {MARKS}",
        ),
        (
            loop("a Linear |fwd", "b Linear |fwd"),
            f"only layers repeat, without a backward pass or an optimizer; {MARKS}",
        ),
        (
            of_layers_in_another_process(),
            f"only layers repeat, without a backward pass or an optimizer; {MARKS}",
        ),
        (of_workers(), "only processes that load data have ranges; `--step-range 'NAME #'` marks steps"),
    ],
    ids=["no ranges", "no repetition", "short", "layers", "processes", "workers"],
)
def test_reasons(rows: Rows, reason: str) -> None:
    profile = rows.build(source="run")
    steps = attribute(profile).steps
    assert (steps.table.height, steps.missing) == (0, reason)
    assert f"no steps, because {reason}" in dict(totals(Run(profile).view("layer")))["Steps"]
    assert f"No steps, because {reason}." in " ".join(str(Run(profile).view("step")).split())


@pytest.mark.parametrize(
    "rows",
    [
        loop("read", "write", count=3), with_a_long_range(120), loop("a Linear |fwd", "a Linear |bwd"),
        of_workers().range("step 1", 0, 9, 201).range("step 2", 10, 19, 201),
    ],
    ids=["repetition", "long", "backward", "workers"],
)  # fmt: skip
def test_with_steps_there_is_no_reason(rows: Rows) -> None:
    steps = attribute(rows.build()).steps
    assert steps.table.height
    assert steps.missing == ""


def with_gpu_time_outside(outside: int) -> Rows:
    """Five steps with 100 ns of GPU time in all, and a kernel launched outside any range."""
    rows = loop("Batch 0 |step")
    for step in range(5):
        rows.kernel(100 * step + 5, (100 * step + 6, 100 * step + 26))
    return rows.kernel(450, (1000, 1000 + outside))


def test_steps_with_less_than_half_of_the_gpu_time() -> None:
    """They are not the steps of the run, unless somebody selects them. Half of the time is enough."""
    assert attribute(with_gpu_time_outside(100).build()).steps.table.height == 5
    profile = with_gpu_time_outside(101).build()
    for steps in (None, "steady"):
        few = attribute(profile, steps=steps)  # type: ignore[arg-type]
        assert (by_step(few).height, few.steps.choice, few.left_out) == (0, None, 0)
        meta = summarize(few)
        assert (meta["gpu_ns"], meta["steps"]) == (201, 0)
        assert meta["steps_missing"] == "only 50% of the GPU time lies in steps (batch ranges); --steps 0: selects them"
    assert attribute(profile, steps=slice(0, None)).steps.table.height == 5
    assert attribute(profile, step_range="Batch # |step").steps.table.height == 5


def test_gpu_time_without_a_known_launch_may_belong_to_the_steps() -> None:
    rows = with_gpu_time_outside(50).kernel(None, (2000, 4000))
    assert attribute(rows.build()).steps.table.height == 5


@pytest.mark.parametrize(("calls", "steps"), [(1, 0), (2, 0), (5, 5)])
def test_ranges_of_an_optimizer_alone(calls: int, steps: int) -> None:
    """They are runs of one phase; as steps they are a pattern like any other."""
    rows = Rows()
    for call in range(calls):
        rows.range("Optimizer Adam |opt", 100 * call, 100 * call + 10)
    assert by_step(attribute(rows.build())).height == steps


SUM = "the step takes 0.05 µs, and shares are of 0.05 µs, the sum of the rows"


@pytest.mark.parametrize(("length", "words"), [(0, ""), (1, SUM)])
def test_host_time_of_threads_that_is_longer_than_the_steps(length: int, words: str) -> None:
    """Shares are of the sum over threads then, those of the verdict of the step; host line and heading say so."""
    rows = Rows()
    for step in range(6):
        rows.range(f"Batch {step} |step", 1000 * step, 1000 * step + 50)
        rows.range("fc Linear |fwd", 1000 * step + 10, 1000 * step + 10 + length, thread=102)
    report = Run(rows.build()).view()
    line = dict(totals(report))["Host per step, mean of 6"]
    assert line.partition("Some ranges overlap: ")[2] == words, line
    assert report.scope == (" over threads" if words else "")
