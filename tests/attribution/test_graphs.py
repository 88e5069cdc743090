"""Captured graphs of profiles, and the rules by which a replay matches one."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from graph_profiles import capture, execution
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.attribution import graphs
from annot.attribution.attribute import attribute
from annot.attribution.graphs import COPY, MEMSET, Captures, has_replays, with_captures
from annot.attribution.layer_tables import by_layer
from annot.profile import Profile

A = [("a", "gemm", "1,1,1 8,1,1"), ("b", "memcpy", None), ("c", "memset", None)]
B = [("d", "gelu", "2,1,1 8,1,1")]
NUMBERS = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2)), max_size=6)


def code(nodes: list[tuple[int, int]]) -> tuple[int, ...]:
    return tuple((name << 32) + grid for name, grid in nodes)


def equal(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Names are equal, and grids, if both are known."""
    return one[0] == other[0] and (one[1] == other[1] or 0 in (one[1], other[1]))


@settings(max_examples=examples(500), deadline=None, database=None, derandomize=True)
@given(NUMBERS, NUMBERS)
def test_first_difference_of_a_replay_and_a_graph(replayed: list[Any], nodes: list[Any]) -> None:
    pairs = list(zip(replayed, nodes, strict=False))
    shared = next((at for at, pair in enumerate(pairs) if not equal(*pair)), len(pairs))
    assert graphs._shared(code(replayed), code(nodes)) == shared
    begins = shared == len(replayed) and len(nodes) / 2 < len(replayed) < len(nodes)
    assert graphs._begins(code(nodes), code(replayed)) == begins
    fits = shared == len(pairs)
    assert graphs._fits(code(replayed)[: len(pairs)], code(nodes)[: len(pairs)]) == fits
    assert graphs._names_of(code(nodes)) == tuple(name for name, _ in nodes)


def test_graphs_of_several_profiles_keep_apart() -> None:
    """Graphs count on, ids and threads are unique, and each profile is a process of its own."""
    others = capture(B, A, name="y.json", threads=(104, 102))
    captures = Captures.of([capture(A, B, name="x.json"), capture(name="none"), others])
    assert captures.files == ["x.json"] * 2 + ["y.json"] * 2
    names = captures.nodes.group_by("graph", maintain_order=True).agg("name")
    assert dict(names.iter_rows()) == {
        0: ["gemm", COPY, MEMSET], 1: ["gelu"], 2: ["gelu"], 3: ["gemm", COPY, MEMSET],
    }  # fmt: skip
    a, b = "1,1,1 8,1,1", "2,1,1 8,1,1"
    assert captures.nodes["grid"].to_list() == [a, None, None, b, b, a, None, None]
    assert captures.ranges["id"].is_unique().all()
    assert captures.ranges.group_by("process", maintain_order=True).agg(pl.col("thread").unique().sort()).rows() == [
        (-1, [-1]), (-3, [-3, -2]),
    ]  # fmt: skip
    assert captures.notes == ["none contains no capture of a graph."]
    assert set(captures.nodes["thread"]) == set(captures.ranges["thread"])
    assert captures.paths.n_unique() == 4


@pytest.mark.parametrize(
    ("empty", "unnamed", "notes"),
    [
        (["a"], {}, ["a contains no capture of a graph."]),
        (["a", "b"], {}, ["a, b contain no capture of a graph."]),
        (
            [], {"a": 1000},
            ["a lacks the kernel names of 1,000 captured launches, so annot cannot match them with replays."],
        ),
        (
            [], {"a": 2, "b": 3},
            ["a, b lack the kernel names of 5 captured launches, so annot cannot match them with replays."],
        ),
    ],
)  # fmt: skip
def test_notes_about_files_without_usable_graphs(empty: list[str], unnamed: dict[str, int], notes: list[str]) -> None:
    assert list(graphs._problems(empty, graphs.Counter(unnamed))) == notes


def changed(profile: Profile, **expressions: pl.Expr) -> Profile:
    tables = {name: getattr(profile, name) for name in ("ranges", "launches", "kernels", "copies")}
    launches = tables["launches"].with_columns(**expressions)
    return Profile.build(profile.meta, **tables | {"launches": launches})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("cudaMemcpyAsync", COPY), ("cuMemcpyDtoDAsync_v2", COPY), ("hipMemcpyWithStream", COPY),
        ("cudaMemset", MEMSET), ("hipMemsetAsync", MEMSET), ("cudaLaunchKernelExC", None), ("cuLaunchKernel", None),
        ("hipExtModuleLaunchKernel", None), ("x_cudaMemcpy", ""), ("cudaFree", ""),
    ],
)  # fmt: skip
def test_calls_that_become_nodes(call: str, name: str | None) -> None:
    """By the name of the call; the name of a kernel may be unknown."""
    profile = changed(capture(A), name=pl.col("name").replace("cudaMemcpyAsync", call))
    nodes = graphs._node_calls(profile, graphs.capture_spans(profile.launches))
    assert nodes["name"].to_list() == ["gemm", *([] if name == "" else [name]), MEMSET]


def test_calls_with_a_gpu_activity_and_calls_outside_the_capture_are_no_nodes() -> None:
    profile = capture(A)
    every = graphs.capture_spans(profile.launches)
    assert every.height == 1
    begin, stop = every.select("begin", "stop").row(0)
    inside = graphs._node_calls(profile, every)["start"]
    assert inside.is_between(begin, stop, closed="none").all()
    ended = changed(profile, name=pl.col("name").replace("hipStreamEndCapture", "other"))
    assert graphs.capture_spans(ended.launches).is_empty()
    other = pl.when(pl.col("name") == "hipStreamEndCapture").then(999).otherwise("thread")
    assert graphs.capture_spans(changed(profile, thread=other).launches).is_empty()


@pytest.mark.parametrize(
    ("start", "end", "more", "kept"),
    [
        (0, 9, {}, False), (0, 1000, {}, True),
        (0, 1000, {"role": "annotation"}, False),
        (0, 1000, {"role": "annotation", "domain": "annot"}, True), (160, 170, {"role": "annotation"}, True),
        (900, 950, {}, False), (0, 150, {}, False), (0, 151, {}, True), (500, 510, {}, False), (499, 510, {}, True),
    ],
)  # fmt: skip
def test_ranges_that_overlap_a_capture(start: int, end: int, more: dict[str, Any], kept: bool) -> None:
    """The capture lasts from 150 to 500."""
    profile = capture(A)
    window = graphs.capture_spans(profile.launches)
    assert window.select("begin", "stop").row(0) == (150, 500)
    row = {"id": 99, "process": 1, "thread": 101, "domain": "", "kind": "push", "role": "module", "text": "x"}
    ranges = Profile.build({}, ranges=pl.DataFrame([row | {"start": start, "end": end} | more])).ranges
    assert graphs._ranges_in(ranges, window).height == int(kept)


def test_profiles_with_replays() -> None:
    assert has_replays(execution([("gemm", None)]))
    assert not has_replays(capture(A))


def test_a_profile_without_replays_says_so() -> None:
    merged = with_captures(capture(B), [capture(A)])
    assert merged.meta["notes"] == ["The profile contains no replays of graphs for the captures."]


def replayed(*kernels: str) -> list[tuple[str, str | None]]:
    return [(kernel, None) for kernel in kernels]


def test_notes_name_the_first_difference() -> None:
    """Of the graph with which the replay has most in common; names are cut after 60 characters."""
    graph = [("a", "gemm", None), ("b", "x" * 61, "3,1,1 8,1,1")]
    merged = with_captures(
        execution([("gemm", None), ("y" * 60, "7,1,1 8,1,1")], replayed("gelu", "gelu")), [capture(B, graph)]
    )
    assert merged.meta["notes"][-1] == (
        f"No captured graph matches 2 graph replays: GPU activity 2 of 2 is {'y' * 60} (grid 7,1,1 8,1,1) in the "
        f"replay and {'x' * 60}... (grid 3,1,1 8,1,1) in capture.json. Such replays keep the layers of their launch."
    )
    longer = with_captures(execution(replayed("gelu", "gelu")), [capture(B)]).meta["notes"][-1]
    assert "GPU activity 2 of 2 is gelu in the replay and missing in capture.json" in longer


def test_replays_have_the_layers_of_their_graph_whatever_else_runs() -> None:
    merged = with_captures(execution(replayed("gemm", "memcpy", "memset")), [capture(B, A)])
    table = by_layer(attribute(merged)).filter(pl.col("gpu_self_ns") > 0)
    assert set(table["layer"]) == {"(batch)", "a", "b", "c"}
    assert merged.meta["notes"] == ["The layers of 3 GPU activities in 1 graph replay come from capture.json."]
