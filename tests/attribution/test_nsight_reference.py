"""The official numbers against a quadratic statement of the rule, and against the tool, on random profiles."""

from __future__ import annotations

from typing import Any

import nsight_reference as reference
import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.attribution.nsight_rule import nvtx_gpu_proj_sum, nvtx_gpu_proj_trace, nvtx_kern_sum
from annot.read.nsys.activity import Activity

THREADS = (1 << 24 | 7, 1 << 24 | 8, 2 << 24 | 7)
random_profiles = settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)

threads = st.sampled_from((THREADS[0], *THREADS))
range_rows = st.tuples(
    threads, st.integers(0, 12), st.integers(0, 9), st.sampled_from(["a", "b", None]),
    st.sampled_from(["PushPop", "PushPop", "StartEnd"]),
)  # fmt: skip
call_rows = st.tuples(threads, st.integers(0, 14), st.integers(0, 3), st.integers(1, 6))
work_rows = st.tuples(
    st.sampled_from([1 << 24, 1 << 24, 2 << 24]), st.integers(1, 7), st.integers(0, 99), st.integers(0, 30),
    st.sampled_from([True, True, False]), st.sampled_from(["k", "l", None]),
)  # fmt: skip
many_ranges = st.lists(range_rows, min_size=4, max_size=16)
many_calls = st.lists(call_rows, min_size=4, max_size=12)
much_work = st.lists(work_rows, min_size=5, max_size=12)


def build(ranges: list[Any], calls: list[Any], work: list[Any], stretch: int = 1) -> Activity:
    """An activity of short tuples; host times are multiplied by `stretch`."""
    integer = pl.Int64
    return Activity(
        pl.DataFrame(
            [(3 * n % 101, t, s * stretch, (s + d) * stretch, name, style)
             for n, (t, s, d, name, style) in enumerate(ranges, 1)],
            {"id": integer, "thread": integer, "start": integer, "end": integer, "name": pl.String, "style": pl.String},
            orient="row",
        ),
        pl.DataFrame(
            [(t & ~0xFFFFFF, t, s * stretch, (s + d) * stretch, c) for t, s, d, c in calls],
            dict.fromkeys(("process", "thread", "start", "end", "correlation"), integer), orient="row",
        ),
        pl.DataFrame(
            [(p, c, s, s + d, kernel, name if kernel else None) for p, c, s, d, kernel, name in work],
            {"process": integer, "correlation": integer, "start": integer, "end": integer, "kernel": pl.Boolean,
             "name": pl.String}, orient="row",
        ),
    )  # fmt: skip


def without_ids_of_rest(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row if row[11] is not None else (*row[:6], None, None, *row[8:]) for row in rows]


def check(activity: Activity) -> None:
    assert without_ids_of_rest(nvtx_gpu_proj_trace(activity).rows()) == reference.trace(activity)
    assert nvtx_gpu_proj_sum(activity).rows() == reference.proj_sum(activity)
    assert nvtx_kern_sum(activity).rows() == reference.kern_sum(activity)


# A call in a call, of which a range contains the inner one only.
@example(
    ranges=[(THREADS[0], 2, 4, "a", "PushPop"), (THREADS[0], 0, 9, "b", "PushPop")],
    calls=[(THREADS[0], 0, 0, 1), (THREADS[0], 1, 8, 2), (THREADS[0], 3, 1, 3)],
    work=[(1 << 24, number, 10 * number, 5, True, "k") for number in (1, 2, 3)],
)
@random_profiles
@given(many_ranges, many_calls, much_work)
def test_equals_the_quadratic_statement(ranges: list[Any], calls: list[Any], work: list[Any]) -> None:
    """Ties, duplicates, crossing ranges, calls in each other, shared ids, processes and works: all the same."""
    check(build(ranges, calls, work))


@random_profiles
@given(st.lists(range_rows, max_size=30), st.lists(st.sampled_from(THREADS), min_size=1, max_size=3))
def test_parents_of_many_crossing_ranges(ranges: list[Any], threads: list[int]) -> None:
    """Every range around the middle owns work there; the parents are the shortest ranges around."""
    check(build(ranges, [(t, 7, 0, n + 1) for n, t in enumerate(threads)], [(t & ~0xFFFFFF, n + 1, 5, 6, True, "k")
                for n, t in enumerate(threads)]))  # fmt: skip


@random_profiles
@given(st.lists(range_rows, max_size=8), st.lists(call_rows, max_size=8), st.lists(work_rows, max_size=8))
def test_times_too_far_apart_for_one_axis(ranges: list[Any], calls: list[Any], work: list[Any]) -> None:
    """Nonsense for times, up to the last of 64 bits, changes nothing."""
    check(build(ranges, calls, work, stretch=2**58))
