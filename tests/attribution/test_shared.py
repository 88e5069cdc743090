"""Ranges of a process, against a quadratic statement of the same rules on random profiles full of ties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.launches import Innermost
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.profile import Profile

OURS: dict[str, Any] = {"kind": "start", "domain": "annot"}
WORKER = 103
THREADS = (MAIN, ENGINE, 201)
LAYERS = ("", "net", "net/a", "net/a/conv", "net/b", "network")
random_profiles = settings(max_examples=examples(80), deadline=None, database=None, derandomize=True)


@dataclass(frozen=True)
class Shared:
    """A range of a process."""

    id: int
    thread: int
    start: int
    end: int
    layer: str
    phase: str

    @property
    def process(self) -> int:
        return self.thread // 100

    @property
    def depth(self) -> int:
        return len(self.layer.split("/")) if self.layer else 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        return (self.start, -self.end, self.depth, self.id)


times = st.integers(0, 12)
range_rows = st.tuples(
    st.sampled_from(THREADS), times, st.integers(0, 9), st.sampled_from(LAYERS), st.sampled_from(["fwd", "bwd"])
)
calls = st.tuples(st.sampled_from([*THREADS, WORKER]), times, st.integers(1, 9))


def build(ranges: list[tuple[Any, ...]], work: list[tuple[Any, ...]] = ()) -> tuple[Profile, list[Shared]]:  # type: ignore[assignment]
    """A profile in which every range is of a process, since one of each process ended elsewhere."""
    rows, shared = Rows(), []
    for number, (thread, start, length, layer, phase) in enumerate(ranges):
        module = "Net" if layer == "" else "Layer"
        text = f"{layer or ('Forward' if phase == 'fwd' else 'Backward')} {module} |{phase}"
        rows.range(text, start, start + length, thread, end_thread=999, **OURS)
        shared.append(Shared(number, thread, start, start + length, layer, phase))
    for at, (thread, start, length) in enumerate(work):
        rows.kernel(start, (100 * at, 100 * at + length), thread)
    return rows.build(), sorted(shared, key=lambda item: item.order)


def parent_of(item: Shared, every: list[Shared]) -> Shared | None:
    """The shortest range around it of a layer above its own, of equally short ones the last in order."""
    around = [
        q for q in every
        if q.process == item.process and q.phase == item.phase and q.start <= item.start and item.end <= q.end
        and q.layer != item.layer and (q.layer == "" or item.layer.startswith(q.layer + "/"))
    ]  # fmt: skip
    return min(around, key=lambda q: (q.end - q.start, -every.index(q)), default=None)


def innermost_of(call: tuple[int, int, int], every: list[Shared]) -> list[Shared]:
    """The open ranges of the call's process that have no open one inside them, in order."""
    thread, instant, _ = call
    is_open = [q for q in every if q.process == thread // 100 and q.start <= instant <= q.end]
    parents = [parent_of(q, every) for q in is_open]
    return [q for q in is_open if q not in parents]


def owner_of(call: tuple[int, int, int], every: list[Shared]) -> Shared | None:
    """Of those the one that began last on the call's thread, else on any."""
    innermost = innermost_of(call, every)
    own = [q for q in innermost if q.thread == call[0]]
    return next(reversed(own or innermost), None)


@random_profiles
@given(st.lists(range_rows, max_size=12))
def test_parents(ranges: list[tuple[Any, ...]]) -> None:
    """Each range lies in the shortest one around it whose layer is above its own and whose phase is the same."""
    profile, every = build(ranges)
    rows = ranges_of(attribute(profile)).rows(named=True)
    assert [(row["id"], row["start"], row["end"]) for row in rows] == [(q.id, q.start, q.end) for q in every]
    parents = [parent_of(item, every) for item in every]
    assert [row["parent"] for row in rows] == [None if p is None else every.index(p) for p in parents]


@random_profiles
@given(st.lists(range_rows, max_size=12))
def test_host_times(ranges: list[tuple[Any, ...]]) -> None:
    """A range's own time is that in which none of its children ran; a layer has the length of its calls."""
    profile, every = build(ranges)
    result = attribute(profile)
    for row, item in zip(ranges_of(result).rows(named=True), every, strict=True):
        children = [q for q in every if parent_of(q, every) == item]
        busy = {instant for q in children for instant in range(q.start, q.end)}
        assert row["host_ns"] == item.end - item.start
        assert row["host_self_ns"] == item.end - item.start - len(busy), item
    for row in by_layer(result).filter(pl.col("layer") != UNATTRIBUTED).rows(named=True):
        code = {"forward": "fwd", "backward": "bwd"}[row["phase"]]
        lengths = [q.end - q.start for q in every if (q.layer, q.phase) == (row["layer"], code)]
        assert (row["calls"], row["host_ns"]) == (len(lengths), sum(lengths)), row["layer"]


@random_profiles
@given(st.lists(range_rows, max_size=12), st.lists(calls, max_size=8))
def test_device_times(ranges: list[tuple[Any, ...]], work: list[tuple[int, int, int]]) -> None:
    """Each kernel goes to one range, sums are exact, and what is a guess is said."""
    profile, every = build(ranges, work)
    result = attribute(profile)
    own = result.range_work()
    for place, item in enumerate(every):
        mine = [call[2] for call in work if owner_of(call, every) == item]
        assert own["gpu_self_ns"][place] == sum(mine), item
    meta = summarize(result)
    assert meta["gpu_ns"] == sum(call[2] for call in work) == meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"]
    assert meta["unattributed_gpu_ns"] == sum(call[2] for call in work if owner_of(call, every) is None)
    assert meta["gpu_guessed_ns"] == sum(call[2] for call in work if len(innermost_of(call, every)) > 1)
    rows = by_layer(result)
    assert rows["gpu_self_ns"].sum() == meta["gpu_ns"]


def row_of(profile: Profile, layer: str, phase: str = "forward") -> dict[str, Any]:
    return by_layer(attribute(profile)).row(
        by_predicate=(pl.col("layer") == layer) & (pl.col("phase") == phase), named=True
    )


def graph() -> Rows:
    """A step of a graph with two branches, run by two threads of an executor."""
    rows = Rows().range("Batch 3 |step", 0, 100, MAIN, domain="annot", kind="start")
    rows.range("Forward Net |fwd", 10, 60, ENGINE, end_thread=WORKER, **OURS)
    rows.range("net/a Conv2D |fwd", 12, 50, ENGINE, end_thread=WORKER, **OURS)
    rows.range("net/b Dense |fwd", 20, 40, WORKER, **OURS)
    return rows.range("net/b Dense |bwd", 65, 90, WORKER, end_thread=ENGINE, **OURS)


def test_steps_contain_what_other_threads_do() -> None:
    """A batch of the main thread has the layers of the graph in it, each with its own length."""
    profile = graph().build()
    batch = by_layer(attribute(profile)).row(0, named=True)
    assert (batch["layer"], batch["host_ns"], batch["host_self_ns"]) == ("(batch)", 100, 25)
    assert row_of(profile, "")["host_ns"] == 50
    assert row_of(profile, "")["host_self_ns"] == 12, "the branches ran from 12 to 50, at the same time for a while"
    assert row_of(profile, "net/a")["host_ns"] == 38
    step = by_step(attribute(profile)).row(0, named=True)
    assert (step["forward_ns"], step["backward_ns"]) == (50, 25)


def test_a_launch_follows_its_thread() -> None:
    """Of two branches that are open, that which the launching thread began has the kernel, else the later one."""
    rows = graph().kernel(30, (200, 205), ENGINE).kernel(30, (210, 217), WORKER).kernel(30, (220, 231), MAIN)
    profile = rows.kernel(45, (240, 253), MAIN).kernel(95, (260, 277), WORKER).build()
    assert row_of(profile, "net/a")["gpu_self_ns"] == 5 + 13, "the second when the other branch had ended"
    assert row_of(profile, "net/b")["gpu_self_ns"] == 7 + 11
    meta = summarize(attribute(profile))
    assert meta["gpu_guessed_ns"] == 5 + 7 + 11
    assert any("23 ns of GPU time was launched while several layers" in note for note in meta["notes"])
    assert meta["gpu_by_time_ns"] == 17, "in no layer, but in the batch of the main thread"


def test_a_layer_of_the_own_thread_comes_first() -> None:
    """What runs eagerly in pushed ranges stays there, while a graph of the process runs elsewhere."""
    rows = graph().range("eager Dense |fwd", 30, 38, MAIN, domain="annot").kernel(33, (200, 209), MAIN)
    rows.range("model/x/MatMul:MatMul", 41, 44, ENGINE, domain="TSL").kernel(42, (210, 213), ENGINE)
    profile = rows.build()
    assert row_of(profile, "eager")["gpu_self_ns"] == 9
    assert row_of(profile, "model/x")["gpu_self_ns"] == 3
    assert summarize(attribute(profile))["gpu_guessed_ns"] == 0


def test_calls_at_the_same_time_stay_apart() -> None:
    """Two calls of one layer at a time are no parents of each other; a layer inside belongs to the shorter."""
    rows = Rows().range("net/s Block |fwd", 0, 100, MAIN, end_thread=ENGINE, **OURS)
    rows.range("net/s Block |fwd", 10, 90, ENGINE, end_thread=MAIN, **OURS)
    rows.range("net/s/conv Conv2D |fwd", 20, 30, ENGINE, **OURS)
    ranges = ranges_of(attribute(rows.build()))
    assert ranges["parent"].to_list() == [None, None, 1]
    assert row_of(rows.build(), "net/s")["calls"] == 2


def test_domains_named_after_a_phase() -> None:
    """Ranges in the form of nvtx-plugins own launches, as backward if their domain says so, where annot has none."""
    rows = Rows().range("Dense 1", 0, 50, MAIN, end_thread=ENGINE, domain="Forward", kind="start")
    rows.range("Dense 1", 60, 90, ENGINE, end_thread=MAIN, domain="Gradient", kind="start")
    rows.range("fc Dense |fwd", 5, 20, ENGINE, end_thread=MAIN, **OURS)
    profile = rows.kernel(10, (100, 103), WORKER).kernel(30, (110, 115), WORKER).kernel(70, (120, 127), WORKER).build()
    assert row_of(profile, "fc")["gpu_self_ns"] == 3
    assert row_of(profile, "Dense 1")["gpu_self_ns"] == 5
    assert row_of(profile, "Dense 1", "backward")["gpu_self_ns"] == 7


def test_ranges_that_nest_on_their_threads_keep_to_them() -> None:
    """Where nothing crosses and nothing ends elsewhere, ranges own only what their own thread launches."""
    rows = Rows().range("fc Dense |fwd", 0, 50, MAIN, **OURS).range("fc.a Dense |fwd", 10, 20, MAIN, **OURS)
    profile = rows.kernel(15, (100, 103), MAIN).kernel(15, (110, 111), 201).build()
    assert row_of(profile, "fc.a")["gpu_self_ns"] == 3
    assert summarize(attribute(profile))["unattributed_gpu_ns"] == 1


def test_crossing_on_one_thread_is_enough() -> None:
    """Branches that take turns on one thread of an executor own their launches."""
    rows = Rows().range("net/a Dense |fwd", 0, 30, MAIN, **OURS).range("net/b Dense |fwd", 10, 50, MAIN, **OURS)
    profile = rows.kernel(5, (100, 103), MAIN).kernel(40, (110, 115), MAIN).build()
    assert (row_of(profile, "net/a")["gpu_self_ns"], row_of(profile, "net/b")["gpu_self_ns"]) == (3, 5)
    assert not any("across" in note for note in summarize(attribute(profile))["notes"])


def test_chosen_steps() -> None:
    """Only the ranges and launches of the steps asked for take part."""
    rows = Rows()
    for step in range(3):
        begin = 100 * step
        rows.range(f"Batch {step} |step", begin, begin + 90, MAIN, domain="annot", kind="start")
        rows.range("net/a Dense |fwd", begin + 10, begin + 50, ENGINE, end_thread=WORKER, **OURS)
        rows.kernel(begin + 20, (1000 + begin, 1000 + begin + 10**step), WORKER)
    result = by_layer(attribute(rows.build(), steps=slice(1, 2)))
    assert result.filter(pl.col("layer") == "net/a").select("calls", "gpu_self_ns").row(0) == (1, 10)


def test_innermost_again_when_what_was_inside_has_ended() -> None:
    """Both ends belong to a range, and a range around another is innermost before and after it."""
    ranges = {"thread": [1, 2, 1], "start": [0, 5, 5], "end": [20, 10, 7], "parent": [-1, 0, 0]}
    innermost = Innermost(pl.DataFrame(ranges, schema_overrides={"thread": pl.Int32}))
    instants = [0, 5, 7, 8, 10, 11, 20, 21]
    found, several = innermost.at(pl.Series([1] * 8, dtype=pl.Int32), pl.Series(instants))
    assert found.to_list() == [0, 2, 2, 1, 1, 0, 0, -1]
    assert several.to_list() == [False, True, True, False, False, False, False, False]
