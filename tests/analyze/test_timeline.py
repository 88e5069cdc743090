"""What happened when, and in which step: the tables behind the timeline and the filter of steps."""

from __future__ import annotations

import random
from operator import itemgetter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import ENGINE, MAIN, Rows, many_kernels

from annot.analyze.gpu_activities import by_layer_and_step
from annot.analyze.timeline import timeline
from annot.analyze.trace_events import Lanes, Tracks
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer


def test_steps_of_layers_add_up_as_the_chosen_steps_do() -> None:
    """Each row of a step is what `attribute` of that step alone gives."""
    rows = Rows()
    for step in range(3):
        zero = 10_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 9000).range("net Net |fwd", zero + 10, zero + 900)
        rows.range("net.fc Linear |fwd", zero + 20, zero + 400 + step).kernel(zero + 30, (zero + 50, zero + 150 + step))
    attribution = attribute(rows.build())
    table = by_layer_and_step(attribution)
    key = ["layer", "module", "phase"]
    columns = ["host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns"]
    for step in range(3):
        alone = by_layer(attribute(rows.build(), steps=slice(step, step + 1))).select(*key, *columns).sort(key)
        assert table.filter(pl.col("step") == step).select(*key, *columns).sort(key).rows() == alone.rows()


def test_a_sample_has_the_longest_events_and_some_of_the_others() -> None:
    """Of 250,000 kernels 100,000 are there, the longest among them."""
    profile = many_kernels(250_000)
    found = timeline(attribute(profile))
    assert found.total == 250_000
    assert found.events.height == 100_000
    assert found.events["start_ns"].is_sorted()
    assert set(found.events["length_ns"].unique()) == set(range(1, 8))  # the short ones are there, too
    longest = (1 + pl.int_range(250_000, eager=True) % 7).sort(descending=True)[:50_000]
    assert found.events["length_ns"].sort(descending=True)[:50_000].sum() >= longest.sum()


@pytest.mark.parametrize("seed", range(8))
def test_sample_by_brute_force(seed: int) -> None:
    """The longest events, and every n-th of the others, sorted by stream, start and length."""
    chance = random.Random(seed)
    kernels = [tuple(map(chance.randrange, (3, 10, 5))) for _ in range(chance.randrange(20, 80))]
    kernels.sort(key=itemgetter(1))
    most = chance.randrange(1, len(kernels))
    rows, count = Rows(), len(kernels)
    for number, (stream, start, length) in enumerate(kernels):
        rows.kernel(None, (start, start + length), name=f"k{number}", stream=stream)
    order = sorted(range(count), key=lambda row: -kernels[row][2])
    step = -(-2 * count // most)
    longest = (most * step - count) // (step - 1)
    rest = sorted(order[longest:], key=lambda row: kernels[row][:2])
    kept = [*order[:longest], *rest[::step]][:most]
    found = timeline(attribute(rows.build()), most)
    assert sorted(found.events["text"]) == sorted(f"k{row}" for row in kept)


def test_crossing_ranges_and_kernels_side_by_side_have_rows_of_their_own() -> None:
    """What overlaps in a lane is packed into rows; what nests stands below what it lies in."""
    rows = Rows().range("outer", 0, 100).range("inner", 10, 90).range("other thread", 0, 50, thread=ENGINE)
    rows.range("crossing", 50, 150, kind="start")
    rows.kernel(5, (20, 60), name="a").kernel(6, (30, 50), name="b").kernel(7, (60, 70), name="c")
    found = timeline(attribute(rows.build()))
    lanes = [(lane["name"], lane["rows"]) for lane in found.lanes]
    assert lanes == [("Thread 1", 2), ("Thread 2", 1), ("Thread 1, crossing", 1), ("GPU 0, stream 7", 2)]
    row = dict(found.events.select("text", "row").iter_rows())
    assert {name: row[name] for name in ("outer", "inner", "a", "b", "c", "crossing")} == {
        "outer": 0, "inner": 1, "a": 0, "b": 1, "c": 0, "crossing": 0,
    }  # fmt: skip


def test_ranges_of_a_process_lie_in_what_they_belong_to() -> None:
    """They have a lane of the process, in which a branch that runs beside another one stands below it."""
    rows = Rows().range("Batch 0 |step", 0, 200, domain="annot")
    for text, start, end in (("net Net", 0, 100), ("net/a A", 10, 60), ("net/b B", 20, 90), ("net/b/c C", 30, 40)):
        rows.range(f"{text} |fwd", start, end, ENGINE, end_thread=MAIN, domain="annot", kind="start")
    rows.range("net/a A |fwd", 70, 80, ENGINE, end_thread=MAIN, domain="annot", kind="start")
    found = timeline(attribute(rows.build()))
    assert [(lane["name"], lane["rows"]) for lane in found.lanes] == [("Thread 1", 1), ("Layers", 4)]
    rows_of = {(text, start): row for text, start, row in found.events.select("text", "start_ns", "row").iter_rows()}
    assert rows_of == {
        ("Batch 0", 0): 0, ("net Net", 0): 0, ("net/a A", 10): 1, ("net/b B", 20): 2, ("net/b/c C", 30): 3,
        ("net/a A", 70): 1,
    }  # fmt: skip


def test_texts_of_ranges_have_words_for_codes() -> None:
    """A phase is a word, and is there once; what other tools call a range stays as it is."""
    said = {
        "Batch 7 |step": "Batch 7",
        "fc Linear [4,8]f32 out=8 |fwd": "fc Linear [4,8]f32 out=8",
        "fc Linear |bwd": "fc Linear backward",
        "fc Linear |re": "fc Linear recompute",
        "Backward Net |bwd": "Backward Net",
        "Backward |bwd": "Backward",
        "Backward_fc Linear |bwd": "Backward_fc Linear backward",
        "Optimizer SGD |opt": "Optimizer SGD",
        "mine|step": "mine|step",
        "left |right": "left |right",
    }
    rows = Rows()
    for number, text in enumerate(said):
        rows.range(text, 100 * number, 100 * number + 50)
    found = timeline(attribute(rows.build())).events.sort("start_ns")
    assert found["text"].to_list() == list(said.values())


def test_a_thread_has_one_number_in_all_of_its_rows() -> None:
    """Threads are numbered in each process, in the order in which they come."""
    tracks = Tracks({})
    for kind in ("thread", "launch"):
        tracks.of(kind, pl.DataFrame({"process": [1, 1, 2, 1], "thread": [7, 5, 5, 7]}))
    names = ["thread 1", "thread 2", "thread 1", "thread 1: launches", "thread 2: launches", "thread 1: launches"]
    assert [track.name for track in tracks.all()] == names


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 30))
def test_an_event_gets_the_first_lane_that_is_free(times: list[tuple[int, int]], block: int) -> None:
    """In blocks of any size, the lanes are those of a search event by event."""
    table = pl.DataFrame(times, schema=["start", "length"], orient="row").sort("start", maintain_order=True)
    lanes, ends, expected = Lanes(), list[int](), []
    found = [lanes.of(part["start"], part["start"] + part["length"]) for part in table.iter_slices(block)]
    for start, length in table.iter_rows():
        lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [start + length]
        expected.append(lane)
    assert pl.concat(found).to_list() == expected
