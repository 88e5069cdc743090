"""Busy times, memory of layers, and the attribution of GPU activities with unusual times and origins."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_twins import i32, i64, same_both_ways
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, MAIN, Rows

from annot.attribution import gpu_time
from annot.attribution.attribute import attribute
from annot.attribution.gpu_time import FARTHEST, UNATTRIBUTED, Reach
from annot.attribution.layer_tables import by_kernel, by_layer
from annot.attribution.summary import by_step, summarize
from annot.profile import Profile

SEEDS = st.integers(0, 2**32)
FAR = int(FARTHEST)


@settings(max_examples=examples(400), deadline=None)
@given(SEEDS)
def test_busy_time_counts_each_instant_of_a_device_once_for_every_key_around(seed: int) -> None:
    chance = random.Random(seed)
    count, keys, origin = chance.randrange(1, 9), chance.choice([1, 3, 9]), chance.choice([0, -(2**61)])
    parent = [chance.randrange(-1, node) for node in range(count)]
    key = [chance.randrange(keys) for _ in parent]
    now, blocks = origin, []
    for _ in range(3):
        starts = [now := now + chance.choice([0, 1, 5]) for _ in range(chance.choice([0, 1, 12]))]
        ends = [start + chance.choice([-1, 0, 3, 12]) for start in starts]
        nodes, devices = ([chance.randrange(-1, most) for _ in starts] for most in (count, 3))
        blocks.append((nodes, devices, starts, ends))

    def ask() -> tuple[Any, ...]:
        union = gpu_time.Busy(i32(parent), i32(key))
        ascending = [
            union.add(i32(nodes), i32(devices), i64(starts), i64(ends)) for nodes, devices, starts, ends in blocks
        ]
        return *ascending, union.result()

    *ascending, result = same_both_ways(ask)
    assert all(ascending)
    expected: dict[tuple[int, int], tuple[set[int], list[int], list[int]]] = {}
    for node, device, start, end in (row for block in blocks for row in zip(*block, strict=True)):
        around = set()
        while node != -1:
            around.add(key[node])
            node = parent[node]
        for of_key in around:
            instants, begins, ends = expected.setdefault((of_key, device), (set(), [], []))
            instants.update(range(start, end))
            begins.append(start)
            ends.append(end)
    assert result.rows() == [
        (*place, len(instants), min(begins), max(ends)) for place, (instants, begins, ends) in sorted(expected.items())
    ]


@pytest.mark.parametrize(
    "starts", [[(5, 5, 4)], [(5,), (5,), (4,)], [(5, 6), (5,)], [(5, 4), (9,)], [(1, 5), (3,)], [(5,), (4, 9)]]
)
def test_busy_says_when_the_starts_do_not_ascend(starts: list[tuple[int, ...]]) -> None:
    def ask() -> bool:
        union = gpu_time.Busy(i32([-1]), i32([0]))
        return all(
            union.add(i32([0] * len(block)), i32([0] * len(block)), i64([*block]), i64([at + 1 for at in block]))
            for block in starts
        )

    assert same_both_ways(ask) is False


def test_activities_outside_nodes_do_not_count() -> None:
    def ask() -> tuple[Any, ...]:
        union = gpu_time.Busy(i32([-1]), i32([0]))
        added = [union.add(i32([node]), i32([0]), i64([start]), i64([start + 2])) for node, start in ((0, 5), (-1, 1))]
        return *added, union.result()

    assert same_both_ways(ask)[2].rows() == [(0, 0, 2, 5, 7)]


def times(*rows: tuple[int | None, int | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")


@pytest.mark.parametrize(
    ("blocks", "too_far"),
    [
        ([], False),
        ([times()], False),
        ([times((None, None))], False),
        ([times((0, FAR))], False),
        ([times((0, FAR + 1))], True),
        ([times((-(FAR // 2), 0)), times((0, FAR // 2))], False),
        ([times((-(FAR // 2), 0)), times((1, FAR // 2 + 1))], True),
        ([times((1, FAR // 2 + 1)), times((-(FAR // 2), 0))], True),
        ([times((FAR // 2 + 1, 0)), times((-(FAR // 2), -FAR // 2))], True),
        ([times((0, FAR // 2), (0, FAR // 2))], False),
        ([times((0, FAR // 2)), times((0, FAR // 2 + 1024))], True),
        ([times((0, FAR // 2)), times((0, FAR // 2)), times((9, 3))], False),
        ([times((0, FAR // 2)), times((0, FAR // 2)), times((0, 1024), (9, 3))], True),
        ([times((0, FAR // 2), (0, FAR // 2), (None, 7), (1024, 0))], False),
    ],
)
def test_times_reach_as_far_as_their_sum_and_the_first_and_last_instant(
    blocks: list[pl.DataFrame], too_far: bool
) -> None:
    reach = Reach()
    for block in blocks:
        reach.add(block)
    assert reach.too_far is too_far


def marked(*marks: tuple[str, int, str | None, str, int]) -> Profile:
    """A layer from 0 to 100 with a module inside, an optimizer and a plain range, and marks of text, time, payload."""
    rows = Rows().range("a Block |fwd", 0, 100).range("a.b Linear |fwd", 10, 20).range("a.b Linear |bwd", 120, 140)
    profile = rows.range("SGD |opt", 200, 210).range("plain", 300, 310).build()
    columns = [
        {"process": 1, "thread": thread, "domain": domain, "text": text, "start": at, "payload": payload}
        for text, at, payload, domain, thread in marks
    ]
    return Profile.build({}, ranges=profile.ranges, marks=pl.DataFrame(columns, infer_schema_length=None))


def memory(profile: Profile) -> list[tuple[Any, ...]]:
    rows = by_layer(attribute(profile))
    rows = rows.drop_nulls("memory_source").sort("layer", "phase")
    return rows.select("layer", "phase", "memory_source", "memory_change_bytes", "memory_peak_bytes").rows()


def test_memory_is_that_of_the_innermost_layer_around_each_mark() -> None:
    """Changes add up, peaks do not. Marks outside layers, of other domains and other texts do not count."""
    change, peak = "memory change |rss", "memory peak |rss"
    profile = marked(
        (change, 15, "7", "annot", MAIN), (change, 16, "-3", "annot", MAIN), (peak, 17, "90", "annot", MAIN),
        (peak, 18, "40", "annot", MAIN), (change, 50, "100", "annot", MAIN), (peak, 130, "5", "annot", MAIN),
        (change, 205, "1000", "annot", MAIN), (change, 305, "1000", "annot", MAIN),
        (change, 400, "1000", "annot", MAIN),
        (change, 15, "1000", "annot", ENGINE), (change, 15, "1000", "", MAIN), ("memory", 15, "1000", "annot", MAIN),
        (change, 15, "many", "annot", MAIN),
    )  # fmt: skip
    assert memory(profile) == [
        ("a", "forward", "rss", 100, None),
        ("a.b", "backward", "rss", 0, 5),
        ("a.b", "forward", "rss", 4, 90),
    ]


def test_without_marks_of_memory_there_are_no_columns_of_memory() -> None:
    for profile in (Rows().range("a Linear |fwd", 0, 9).build(), marked(("x", 15, None, "annot", MAIN))):
        assert "memory_peak_bytes" not in by_layer(attribute(profile)).columns


def test_reasons_of_unattributed_activities() -> None:
    rows = Rows().range("a Linear |fwd", 0, 10).kernel(20, (30, 31)).kernel(None, (40, 42))
    rows.kernel(None, (50, 54), correlation=None)
    table = by_layer(attribute(rows.build())).filter(layer=UNATTRIBUTED)
    assert table.select("module", "gpu_ns", "kernels").rows() == [
        ("launched in no range", 1, 1), ("no launch recorded", 2, 1), ("no correlation id", 4, 1),
    ]  # fmt: skip


def test_times_that_are_missing_or_negative_count_as_none() -> None:
    """The activities count; only those with a start are part of busy times."""
    rows = Rows().range("a Linear |fwd", 0, 10).kernel(5, (20, 15)).kernel(6, (30, 33))
    for name, gone in (("no start", ("start",)), ("no end", ("end",)), ("neither", ("start", "end"))):
        rows.kernel(7, (40, 45), name=name, **dict.fromkeys(gone))
    result = attribute(rows.build())
    (row,) = by_layer(result).rows(named=True)
    assert (row["gpu_ns"], row["gpu_busy_ns"], row["kernels"]) == (3, 3, 5)
    assert (row["gpu_span_ns"], result.device_busy.select("first_ns", "last_ns").row(0)) == (20, (20, 40))
    assert by_kernel(result).sort("name").select("name", "gpu_ns").rows() == [
        ("k", 3), ("neither", 0), ("no end", 0), ("no start", 0),
    ]  # fmt: skip


def test_one_number_of_a_device_is_another_device_in_each_process() -> None:
    rows = Rows().range("a Linear |fwd", 0, 10).range("a Linear |fwd", 0, 10, 201)
    rows.kernel(5, (20, 30)).kernel(5, (22, 24), 201).kernel(6, (25, 35)).kernel(6, (50, 51), device=None)
    result = attribute(rows.build())
    assert summarize(result)["devices"] == [
        {"process": 1, "device": 0, "busy_ns": 15, "span_ns": 15},
        {"process": 1, "device": None, "busy_ns": 1, "span_ns": 1},
        {"process": 2, "device": 0, "busy_ns": 2, "span_ns": 2},
    ]
    assert by_layer(result)["gpu_busy_ns"].to_list() == [15 + 1 + 2]


def test_copies_kernels_and_names_without_a_text_are_rows_of_their_own() -> None:
    rows = Rows().range("a Linear |fwd", 0, 10)
    for number, name in enumerate(("x", None, "y", "x", None)):
        rows.kernel(5, (20 * number, 20 * number + number + 1), name=name)  # type: ignore[arg-type]
    result = attribute(rows.build())
    columns = by_kernel(result).select("name", "calls", "gpu_ns", "mean_ns", "min_ns", "max_ns", "layers")
    assert columns.rows() == [(None, 2, 7, 3, 2, 5, 1), ("x", 2, 5, 2, 1, 4, 1), ("y", 1, 3, 3, 3, 3, 1)]


def batches(count: int) -> Rows:
    rows = Rows()
    for step in range(count):
        rows.range(f"Batch {step} |step", 100 * step, 100 * step + 90)
    return rows


@pytest.mark.parametrize(("steps", "layers"), [(None, {"a": 7}), (slice(1, 2), {"a": 7}), (slice(0, 1), {})])
def test_an_origin_in_a_step_tells_the_step_of_an_activity_without_launch(
    steps: slice | None, layers: dict[str, int]
) -> None:
    rows = batches(3).range("a Linear |fwd", 110, 120)
    rows.kernel(None, (500, 507), correlation=None, origin_thread=MAIN, origin_start=115)
    result = attribute(rows.build(), steps=steps)
    table = by_layer(result).filter(pl.col("gpu_self_ns") > 0)
    assert dict(table.select("layer", "gpu_self_ns").iter_rows()) == layers
    assert (result.left_out, by_step(attribute(rows.build()))["gpu_ns"].to_list()) == (not layers, [0, 7, 0])
    owner = ranges_of(result).filter(pl.col("gpu_self_ns") > 0)
    assert owner["text"].to_list() == ["a Linear |fwd"] * bool(layers)


def test_layers_of_a_capture_are_inside_the_range_of_the_launch_once() -> None:
    """A layer around the launch is not repeated, and a range of the whole run is found from a selected step."""
    rows = batches(3).range("net Net |fwd", 10, 60).range("net.a Linear |fwd", 20, 30).range("net Net |fwd", 210, 260)
    rows.kernel(215, (500, 503), origin_thread=MAIN, origin_start=25)
    for steps in (None, slice(2, 3)):
        table = by_layer(attribute(rows.build(), steps=steps)).filter(pl.col("gpu_ns") > 0)
        assert table.select("layer", "gpu_ns", "gpu_self_ns").rows() == [
            ("(batch)", 3, 0), ("net", 3, 0), ("net.a", 3, 3),
        ]  # fmt: skip


def test_guesses_and_time_of_other_threads_have_sums_of_their_own() -> None:
    rows = Rows().range("a Linear |fwd", 0, 100).range("b Linear |fwd", 0, 40, 103)
    rows.kernel(50, (200, 203), ENGINE).kernel(60, (300, 305)).kernel(70, (310, 317), ENGINE)
    result = attribute(rows.build())
    assert by_layer(result).select("layer", "gpu_ns", "gpu_by_time_ns").rows() == [("a", 15, 10), ("b", 0, 0)]
    assert (summarize(result)["gpu_guessed_ns"], summarize(result)["gpu_by_time_ns"]) == (0, 10)
