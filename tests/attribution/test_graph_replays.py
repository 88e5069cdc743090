"""Replays of GPU graphs get the layers of their capture: generated profiles, and random ones against brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from graph_profiles import CAPTURING, Node, capture, execution
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import check_modules_and_operations

from annot.attribution.attribute import attribute
from annot.attribution.graphs import with_captures
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.profile import Profile

SAME = "Such replays keep the layers of their launch."


def _gpu(profile: Profile, steps: slice | None = None) -> dict[str, int]:
    rows = by_layer(attribute(profile, steps=steps))
    return {layer: gpu for layer, gpu in rows.select("layer", "gpu_self_ns").iter_rows() if gpu}


def _plain(graph: list[Node]) -> list[tuple[str, str | None]]:
    return [(kernel, grid) for _, kernel, grid in graph]


def _expected(replays: list[list[Node]]) -> dict[str, int]:
    """The GPU time of each layer, kernel by kernel; an eager kernel comes before each replay."""
    sums, number = Counter[str](), 0
    for replay in replays:
        for layer in ("(batch)", *(layer for layer, _, _ in replay)):
            sums[layer] += 1 + number % 7
            number += 1
    return dict(sums)


A: list[Node] = [
    ("embed", "gather", "1,1,1 8,1,1"),
    ("fc", "gemm", None),
    ("fc", "memset", None),
    ("act", "gelu", None),
]
B: list[Node] = [("embed", "gather", "2,1,1 8,1,1"), ("fc", "memcpy", None), ("norm", "gelu", None)]


@pytest.mark.parametrize("files", [1, 2])
def test_each_replay_gets_the_layers_of_its_graph(files: int) -> None:
    captures = [capture(A, B)] if files == 1 else [capture(A, name="a.json"), capture(B, name="b.json")]
    replays = [A, B, A, A]
    merged = with_captures(execution(*map(_plain, replays)), captures)
    assert _gpu(merged) == _expected(replays)
    where = "capture.json" if files == 1 else "a.json, b.json"
    assert merged.meta["notes"] == [f"The layers of 15 GPU activities in 4 graph replays come from {where}."]


def test_replays_stay_in_their_steps_and_captures_add_neither_calls_nor_host_time() -> None:
    alone = execution(_plain(A), _plain(B))
    merged = with_captures(alone, [capture(A, B)])
    assert by_step(attribute(merged)).equals(by_step(attribute(alone)))
    assert _gpu(merged, slice(1, 2)) == {"(batch)": 6, "embed": 7, "fc": 1, "norm": 2}
    rows = by_layer(attribute(merged)).filter(pl.col("layer") != "(batch)")
    assert rows["layer"].to_list() == ["embed", "fc", "act", "norm"]  # in order of their first GPU activity
    assert rows.select("calls", "host_ns", "host_self_ns").sum().row(0) == (0, 0, 0)
    assert summarize(attribute(merged))["host_ns"] == summarize(attribute(alone))["host_ns"]


def test_layers_nest_in_the_range_that_launched_the_replay() -> None:
    rows = by_layer(attribute(with_captures(execution(_plain(A)), [capture(A)])))
    assert dict(rows.select("layer", "gpu_ns").iter_rows())["(batch)"] == rows["gpu_self_ns"].sum()


def test_launches_of_other_threads_are_nodes() -> None:
    merged = with_captures(execution(_plain(A)), [capture(A, threads=(CAPTURING, 102))])
    assert _gpu(merged) == _expected([A])


def _beside(one: Profile, two: Profile, **changes: pl.Expr) -> Profile:
    """Return both profiles in one, the second with changes in the tables that have the column."""
    tables = {}
    for name in ("ranges", "launches", "kernels", "copies"):
        second: pl.DataFrame = getattr(two, name)
        changed = {column: change for column, change in changes.items() if column in second.columns}
        tables[name] = pl.concat([getattr(one, name), second.with_columns(**changed)])
    return replace(one, **tables)


def test_captures_at_the_same_time_on_two_threads() -> None:
    """A call on a thread that captures belongs to the capture of this thread."""
    later = {name: pl.col(name) + 7 for name in ("thread", "start", "end")}
    captures = _beside(capture(A), capture(B), correlation=pl.col("correlation") + 1000, **later)
    assert _gpu(with_captures(execution(_plain(A), _plain(B)), [captures])) == _expected([A, B])


def test_capture_with_a_missing_kernel_is_refused_at_that_kernel() -> None:
    for missing in range(len(A)):
        changed = A[:missing] + A[missing + 1 :]
        alone = execution(_plain(A))
        merged = with_captures(alone, [capture(changed)])
        (note,) = merged.meta["notes"]
        assert note.startswith(f"No captured graph matches 1 graph replay: GPU activity {missing + 1} of 4 is ")
        assert note.endswith(f" in capture.json. {SAME}")
        assert _gpu(merged) == _gpu(alone)
    assert "is gelu in the replay and missing in capture.json" in note


C: list[Node] = [*A, ("fc2", "gemm", None), ("head", "argmax", None)]


@pytest.mark.parametrize("ran", [4, 5])
def test_a_replay_without_its_last_activities_has_the_layers_of_the_others(ran: int) -> None:
    replays = [C, C[:ran]]
    merged = with_captures(execution(*map(_plain, replays)), [capture(B, C)])
    assert _gpu(merged) == _expected(replays)
    last, name = ("last GPU activity", "argmax") if ran == 5 else ("last 2 GPU activities", "gemm")
    note = f"The profile lacks the {last} of 1 graph replay: in capture.json, {name} comes next."
    assert merged.meta["notes"] == [
        f"The layers of {6 + ran} GPU activities in 2 graph replays come from capture.json.", note
    ]  # fmt: skip


def test_replays_that_lack_different_numbers_of_activities_are_one_note() -> None:
    merged = with_captures(execution(*map(_plain, [C[:4], C[:5], C[:5]])), [capture(C)])
    (note,) = merged.meta["notes"][1:]
    assert note.startswith("The profile lacks the last 1 to 2 GPU activities of 3 graph replays: in capture.json, ")


def test_a_replay_of_half_a_graph_or_of_a_changed_beginning_is_refused() -> None:
    """Half of the nodes are too few to tell the graph; a beginning with another kernel is another graph's."""
    alone = execution(_plain(C[:3]))
    (note,) = with_captures(alone, [capture(C)]).meta["notes"]
    assert note.startswith(
        "No captured graph matches 1 graph replay: GPU activity 4 of 6 is missing in the replay and "
    )
    changed = execution([("gather", None), ("other", None), *_plain(C[2:5])])
    (note,) = with_captures(changed, [capture(C)]).meta["notes"]
    assert "GPU activity 2 of 6 is other in the replay and gemm in" in note


def test_a_whole_graph_is_preferred_to_the_beginning_of_another() -> None:
    """Also a beginning that several graphs share, in different layers, names no graph; in equal layers it does."""
    other: list[Node] = [("x", kernel, grid) for _, kernel, grid in C[:5]]
    assert _gpu(with_captures(execution(_plain(C[:5])), [capture(C, other)])) == _expected([other])
    longer = [*other, ("x", "gelu", None)]
    notes = with_captures(execution(_plain(C[:5])), [capture(C, longer)]).meta["notes"]
    assert notes == [f"Several captured graphs with different layers match 1 graph replay. {SAME}"]
    same = [*C[:5], ("y", "gelu", None)]
    assert _gpu(with_captures(execution(_plain(C[:5])), [capture(C, same)])) == _expected([C[:5]])


def test_grids_decide_where_both_profiles_have_them() -> None:
    wide = [("other", "gather", "9,1,1 8,1,1"), *A[1:]]
    assert _gpu(with_captures(execution(_plain(wide)), [capture(A, wide)])) == _expected([wide])
    (note,) = with_captures(execution(_plain(wide)), [capture(A)]).meta["notes"]
    assert "activity 1 of 4 is gather (grid 9,1,1 8,1,1) in the replay and gather (grid 1,1,1 8,1,1) in" in note
    unknown = execution([(kernel, None) for kernel, _ in _plain(A)])
    assert _gpu(with_captures(unknown, [capture(A)])) == _expected([A])


def test_equal_graphs_with_equal_layers_are_one() -> None:
    merged = with_captures(execution(_plain(A), _plain(A)), [capture(A, B, A), capture(A)])
    assert _gpu(merged) == _expected([A, A])


HEAD: list[Node] = [("embed", "gather", None)]
TAIL: list[Node] = [("head", "argmax", None)]


def _block(number: int) -> list[Node]:
    return [(f"blocks.{number}", "gemm", None), (f"blocks.{number}", "gelu", None)]


PIECES = [HEAD, _block(0), _block(1), _block(2), TAIL]


def test_pieces_with_equal_kernels_follow_the_order_of_their_capture() -> None:
    """Two batch sizes with the same layers, and two steps."""
    replays = PIECES * 2
    merged = with_captures(execution(*map(_plain, replays)), [capture(*PIECES, *PIECES)])
    assert _gpu(merged) == _expected(replays)


@pytest.mark.parametrize("kept", [[0, 1, 2, 4], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 3, 4]])
def test_pieces_are_refused_unless_all_were_replayed(kept: list[int]) -> None:
    replays = [PIECES[number] for number in kept]
    alone = execution(*map(_plain, replays))
    merged = with_captures(alone, [capture(*PIECES)])
    same = sum(number in (1, 2, 3) for number in kept)
    note = f"Several captured graphs with different layers match {same} graph replays. {SAME}"
    assert merged.meta["notes"][-1] == note
    known = [node for number, node in zip(kept, replays, strict=True) if number in (0, 4)]
    gpu = _gpu(merged)
    assert {layer for layer in gpu if layer != "(batch)"} == {layer for nodes in known for layer, _, _ in nodes}
    assert sum(gpu.values()) == sum(_gpu(alone).values())


def test_pieces_that_were_captured_twice_in_different_layers() -> None:
    """Two sequences fit, so that the layers of the piece between the head and the tail are unknown."""
    captured = capture(HEAD, _block(0), TAIL, HEAD, _block(1), TAIL)
    merged = with_captures(execution(*map(_plain, [HEAD, _block(0), TAIL])), [captured])
    assert merged.meta["notes"][-1] == f"Several captured graphs with different layers match 1 graph replay. {SAME}"


def test_pieces_of_two_captures_are_no_sequence() -> None:
    """The order of the pieces is known within a capture only."""
    captures = [capture(HEAD, _block(0), name="a.json"), capture(_block(1), TAIL, name="b.json")]
    merged = with_captures(execution(*map(_plain, [*PIECES[:3], TAIL])), captures)
    assert merged.meta["notes"][-1] == f"Several captured graphs with different layers match 2 graph replays. {SAME}"


def test_pieces_of_two_processes_are_no_sequence() -> None:
    """The head and a block in one process, and a block and the tail in another, are not the pieces of one capture."""
    one, two = execution(*map(_plain, PIECES[:2])), execution(*map(_plain, [PIECES[2], TAIL]))
    merged = with_captures(_beside(one, two, process=pl.lit(2, pl.Int64)), [capture(HEAD, _block(0), _block(1), TAIL)])
    assert merged.meta["notes"][-1] == f"Several captured graphs with different layers match 2 graph replays. {SAME}"


def test_pieces_of_two_processes_at_the_same_time() -> None:
    """Each process replays its pieces in order."""
    one = execution(*map(_plain, PIECES))
    later = {name: pl.col(name) + 37 for name in ("start", "end")}
    (note,) = with_captures(_beside(one, one, process=pl.lit(2, pl.Int64), **later), [capture(*PIECES)]).meta["notes"]
    assert note == "The layers of 16 GPU activities in 10 graph replays come from capture.json."


def test_only_the_innermost_module_counts_as_compiled() -> None:
    """A module inside a GraphModule has a name; the note counts the kernels without one."""
    captured = capture(A)
    texts = pl.col("text").replace("act Linear |fwd", "act GraphModule |fwd")
    outer = captured.ranges.head(1).with_columns(id=99, text=pl.lit("net GraphModule |fwd"), start=1, end=10_000)
    captured = replace(captured, ranges=pl.concat([captured.ranges.with_columns(texts), outer], how="vertical_relaxed"))
    notes = with_captures(execution(_plain(A), _plain(A)), [captured]).meta["notes"]
    assert notes[1:] == ["2 of them are in a GraphModule of torch.compile, whose layers capture.json does not name."]


def test_annotations_around_a_capture_are_no_layers_except_those_of_annot() -> None:
    captured = capture(A)
    spans = {"process": 1, "thread": CAPTURING, "kind": "push", "role": "annotation", "start": 1, "end": 10_000}
    texts = [("capture_32", ""), ("Batch 3 |step", "annot"), ("act+fc Fused |fwd", "annot")]
    rows = [{"id": 90 + at, "text": text, "domain": domain, **spans} for at, (text, domain) in enumerate(texts)]
    around = pl.DataFrame(rows, schema=captured.ranges.schema, orient="row")
    captured = replace(captured, ranges=pl.concat([captured.ranges, around]))
    rows = by_layer(attribute(with_captures(execution(_plain(A)), [captured])))
    assert set(rows["layer"]) == {"(batch)", "act+fc", "embed", "fc", "act"}
    assert rows.filter(layer="act+fc")["gpu_ns"].item() == 2 + 3 + 4 + 5


def test_nodes_without_layers_keep_those_of_their_launch() -> None:
    """A capture without modules, as a trace without Python stacks, names no layers, and the note says so."""
    captured, alone = capture(A), execution(_plain(A))
    for kept in (0, 1):
        merged = with_captures(alone, [replace(captured, ranges=captured.ranges.head(kept))])
        outside = f"{4 - kept} of them were captured in no range of capture.json, and keep the layers of their launch."
        assert merged.meta["notes"][1:] == [outside]
        assert _gpu(merged) == ({"(batch)": 13, "embed": 2} if kept else _gpu(alone))


def test_profiles_that_cannot_help_say_why() -> None:
    unnamed = capture(A)
    unnamed = replace(unnamed, launches=unnamed.launches.with_columns(kernel=pl.lit(None, pl.String)))
    notes = with_captures(execution(_plain(A)), [execution(_plain(A)), unnamed]).meta["notes"]
    assert notes == [
        "execution.json contains no capture of a graph.",
        "capture.json lacks the kernel names of 3 captured launches, so annot cannot match them with replays.",
    ]
    (note,) = with_captures(capture(A), [capture(A)]).meta["notes"]
    assert note == "The profile contains no replays of graphs for the captures."


KERNELS = st.sampled_from(["k", "l", "memset", "memcpy"])
NODES = st.lists(st.tuples(st.sampled_from("abcd"), KERNELS, st.sampled_from([None, "1", "2"])), min_size=1, max_size=4)
few = settings(max_examples=examples(40), deadline=None, database=None, derandomize=True)


@few
@given(st.lists(NODES, max_size=4), st.lists(NODES, max_size=5), st.data())
def test_captures_never_change_totals(graphs: list[list[Node]], others: list[list[Node]], data: st.DataObject) -> None:
    known = st.sampled_from(graphs) if graphs else st.nothing()
    replays = others + data.draw(st.lists(known, max_size=5)) if graphs else others
    alone = execution(*map(_plain, replays))
    merged = with_captures(alone, [capture(*graphs)])
    before, after = attribute(alone), attribute(merged)
    totals = ("gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "host_ns", "kernels", "copies", "steps")
    assert [summarize(after)[name] for name in totals] == [summarize(before)[name] for name in totals]
    assert by_layer(after)["gpu_self_ns"].sum() == summarize(before)["gpu_ns"]
    assert by_step(after).equals(by_step(before))
    check_modules_and_operations(after)


@few
@given(st.lists(NODES, min_size=1, max_size=4), st.data())
def test_replays_of_graphs_with_different_kernels_by_brute_force(graphs: list[list[Node]], data: st.DataObject) -> None:
    graphs = [[*graph, (f"end{number}", f"end{number}", None)] for number, graph in enumerate(graphs)]
    replays = data.draw(st.lists(st.sampled_from(graphs), min_size=1, max_size=6))
    assert _gpu(with_captures(execution(*map(_plain, replays)), [capture(*graphs)])) == _expected(replays)


@few
@given(st.lists(NODES, min_size=1, max_size=4), st.data())
def test_cut_replays_by_brute_force(graphs: list[list[Node]], data: st.DataObject) -> None:
    """A replay of more than half of a graph has its layers, unless another graph begins so in other layers."""
    replay = data.draw(st.sampled_from(graphs))
    replay = replay[: data.draw(st.integers(1, len(replay)))]

    def matches(graph: list[Node]) -> bool:
        together = zip(replay, graph, strict=False)
        return all(
            one[1] == other[1] and (None in (one[2], other[2]) or one[1] in ("memset", "memcpy") or one[2] == other[2])
            for one, other in together
        )

    whole = [graph for graph in graphs if len(graph) == len(replay) and matches(graph)]
    cut = [graph for graph in graphs if len(replay) < len(graph) < 2 * len(replay) and matches(graph)]
    layers = {tuple(layer for layer, _, _ in graph[: len(replay)]) for graph in whole or cut}
    merged = with_captures(execution(_plain(replay)), [capture(*graphs)])
    if len(layers) == 1:
        named = [(layer, kernel, grid) for layer, (_, kernel, grid) in zip(*layers, replay, strict=True)]
        assert _gpu(merged) == _expected([named])
    else:
        assert set(_gpu(merged)) == {"(batch)"}
