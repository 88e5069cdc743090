"""Layers projected onto streams: against a slow reference on real profiles, and by hand where those say nothing."""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
from range_tables import ranges_of
from shared_data import unpacked
from sqlite_profile import training
from tables import ENGINE, Rows

from annot import load
from annot.analyze.gpu_activities import activities
from annot.analyze.hardware_counters import default_peaks
from annot.analyze.layer_details import SPANS, spans
from annot.analyze.roofline import layer_roofline
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer

KEY = ["layer", "module", "phase"]


def said(attribution: Attribution) -> list[tuple[str, int, int, int]]:
    """Layer or phase, start, end and time of all spans."""
    rows = spans(attribution).rows.select(name=pl.concat_str("layer", "module", "phase", separator=" "))
    return list(
        zip(rows["name"], *spans(attribution).rows.select("start", "end", "time_ns").get_columns(), strict=True)
    )


def nested(rows: pl.DataFrame) -> None:
    """Assert that the spans of each track nest, in the order in which they come."""
    stacks: dict[int, list[int]] = defaultdict(list)
    for track, start, end in rows.select("track", "start", "end").iter_rows():
        stack = stacks[track]
        while stack and stack[-1] <= start:
            stack.pop()
        assert start <= end
        assert not stack or end <= stack[-1]
        stack.append(end)


@pytest.mark.parametrize(
    "name",
    [
        "jsun_lm_fwd_bwd.2025.1",
        "zx_lm_fwd_nvtx.2024.6",
        "athrun_lm_attn_windows.2026.2",
        "ginda_mfu_2gpu_before.2026.2",
    ],
)
def test_spans_of_real_profiles_add_up_to_the_layer_table(name, tmp_path):
    """The time in the spans of a layer is that of its row, from the first start to the last end; spans nest."""
    attribution = attribute(load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path)))
    found = spans(attribution)
    assert found.rows.schema == pl.Schema(SPANS)
    nested(found.rows)
    assert set(found.rows["track"]) <= {track.number for track in found.tracks.all()}
    sums = found.rows.group_by(KEY).agg(
        pl.col("time_ns").sum(), span=pl.col("end").max() - pl.col("start").min()
    )  # fmt: skip
    table = by_layer(attribution).filter((pl.col("layer") != UNATTRIBUTED) & (pl.col("gpu_span_ns") > 0))
    assert table.height >= 3
    assert sorted(sums.rows()) == sorted(table.select(*KEY, "gpu_ns", "gpu_span_ns").rows())


@pytest.mark.parametrize("name", ["jsun_lm_fwd_bwd.2025.1", "zx_lm_fwd_nvtx.2024.6"])
def test_a_span_is_the_work_launched_in_a_range(name, tmp_path):
    """Where nothing comes between, the spans are those of the ranges on the host, each with all that was launched."""
    attribution = attribute(load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path)))
    ranges = ranges_of(attribution)
    forest = attribution.forest
    names, parents = forest.layers_of_nodes()[forest.tree["path"]].rows(), ranges["parent"].to_list()
    work = defaultdict(list)
    for row, start, length, kernel in activities(attribution, ("range", "start", "gpu_ns", "kernel")).iter_rows():
        around = row if row >= 0 else None
        while around is not None:
            work[around].append((start, start + length, length, int(kernel)))
            around = parents[around]
    expected = [
        (*names[row], min(one[0] for one in launched), max(one[1] for one in launched),
         sum(one[2] for one in launched), sum(one[3] for one in launched))
        for row, launched in work.items()
    ]  # fmt: skip
    assert sorted(spans(attribution).rows.select(*KEY, "start", "end", "time_ns", "kernels").rows()) == sorted(expected)


def test_each_stream_has_its_own_spans():
    """What a call has launched on two streams has a span on each; what another call launched there splits it."""
    rows = Rows().range("model", 0, 100).range("a", 10, 30).range("b", 40, 60)
    rows.kernel(11, (100, 110)).kernel(12, (105, 120), stream=8).kernel(13, (110, 115)).kernel(70, (115, 118))
    rows.kernel(50, (120, 130)).kernel(14, (140, 150))
    attribution = attribute(rows.build())
    assert said(attribution) == [
        ("model  other", 100, 150, 38), ("model › a  other", 100, 115, 15),
        ("model › b  other", 120, 130, 10), ("model › a  other", 140, 150, 10),
        ("model  other", 105, 120, 15), ("model › a  other", 105, 120, 15),
    ]  # fmt: skip
    assert [track.name for track in spans(attribution).tracks.all()] == ["stream 7", "stream 8"]


def test_calls_of_a_layer_are_told_apart():
    """Two calls in a row, and one inside the other, are spans of their own, though nothing lies between."""
    rows = Rows().range("a", 0, 10).range("a", 20, 60).range("a", 30, 40)
    rows.kernel(5, (100, 110)).kernel(25, (110, 120)).kernel(35, (120, 130)).kernel(50, (130, 140))
    assert said(attribute(rows.build())) == [
        ("a  other", 100, 110, 10), ("a  other", 110, 140, 30), ("a › a  other", 120, 130, 10),
    ]  # fmt: skip


def test_operations_are_part_of_their_layer():
    """Operations of the framework have no spans of their own where layers have ranges."""
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 100, domain="annot")
    rows.range("aten::mm", 10, 20, role="operator").range("aten::add", 30, 40, role="operator")
    rows.kernel(15, (100, 110)).kernel(35, (120, 125))
    assert said(attribute(rows.build())) == [("fc Linear forward", 100, 125, 15)]


def test_backward_work_belongs_to_the_layer_its_number_leads_to():
    """Its call is the operation of the backward pass, and each step has its own."""
    rows = Rows()
    for step, zero in enumerate((0, 1000)):
        rows.range(f"ProfilerStep#{step}", zero, zero + 900).range(
            "fc Linear |fwd", zero + 10, zero + 100, domain="annot"
        )
        rows.range("aten::mm", zero + 20, zero + 30, role="operator", sequence=step + 5)
        engine = {"role": "backward", "sequence": step + 5, "thread": ENGINE, "forward_thread": 101}
        rows.range("MmBackward0", zero + 200, zero + 300, **engine)
        for start in (210, 220):
            rows.kernel(zero + start, (5000 + zero // 10 + start, 5005 + zero // 10 + start), thread=ENGINE)
    found = [one for one in said(attribute(rows.build())) if "backward" in one[0]]
    assert [one for one in found if one[0].startswith("fc")] == [
        ("fc Linear backward", 5210, 5225, 10), ("fc Linear backward", 5310, 5325, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("around", ["ProfilerStep#{}", "replay", "Forward Net [9,9]f32 |fwd"])
def test_each_replay_of_a_graph_is_a_span(around):
    """Work that was captured in a layer is of it each time that its graph is launched, whatever it is launched in."""
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 100, domain="annot")
    for call in range(3):
        start = 1000 + 100 * call
        rows.range(around.format(call), start, start + 50, domain="annot" if "|" in around else "")
        for at in (10, 20):
            rows.kernel(start + 5, (start + at, start + at + 5), origin_thread=101, origin_start=50)
    found = spans(attribute(rows.build())).rows
    expected = [(start + 10, start + 25, 10) for start in (1000, 1100, 1200)]
    for part in (found.filter(layer="fc"), found.filter(pl.col("layer") != "fc")):
        assert part.select("start", "end", "time_ns").rows() == expected
    assert set(found.filter(layer="fc")["shapes"]) == {"[4,8]f32"}
    if "#" in around:
        assert found.filter(layer="(batch)")["number"].to_list() == [0, 1, 2]


def test_work_at_once_on_one_stream_has_tracks_of_its_own():
    """Kernels of a graph may overlap on a stream; what overlaps lies on another track, so that all tracks nest."""
    rows = Rows().range("a", 0, 10).range("b", 20, 30)
    rows.kernel(5, (100, 120)).kernel(25, (110, 130))
    found = spans(attribute(rows.build()))
    nested(found.rows)
    assert [track.name for track in found.tracks.all()] == ["stream 7", "stream 7, overlapping"]


def test_steps_that_are_not_asked_for_have_no_spans(tmp_path):
    """Only the chosen steps have spans, and the numbers stand in them."""
    profile = load(training(device=True).write(tmp_path / "run.sqlite"))
    whole, second = (spans(attribute(profile, steps=steps)).rows for steps in (None, slice(1, 2)))
    assert 0 < second.height < whole.height
    assert second["start"].min() > 2200_000
    assert set(second["number"].drop_nulls()) <= {1}


def test_a_profile_of_the_host_has_its_ranges(tmp_path):
    """Without device work the spans are the ranges that nest, with their own times, and as many as calls."""
    attribution = attribute(load(training(device=False).write(tmp_path / "run.sqlite")))
    found = spans(attribution)
    nested(found.rows)
    assert not found.on_device
    expected = ranges_of(attribution).select(*KEY, "start", "end").rows()
    assert sorted(found.rows.select(*KEY, "start", "end").rows()) == sorted(expected)


def test_facts_are_those_of_the_analyses():
    """FLOPs are of one call, if all are alike; shapes are those of the call, or the only ones that the layer has."""
    rows = Rows()
    for call, size in enumerate((4, 4, 8)):
        zero = 1000 * call
        rows.range(f"fc Linear [{size},8]f32 out=16 |fwd", zero, zero + 100, domain="annot")
        rows.range("out Linear |bwd", zero + 200, zero + 300, domain="annot")
        rows.range("out Linear [4,16]f32 out=2 |fwd", zero + 110, zero + 190, domain="annot")
        for at in (50, 150, 250):
            rows.kernel(zero + at, (zero + at, zero + at + 20))
    a100 = {
        "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "smCount": 108,
        "clockRate": 1_410_000_000, "memoryBandwidth": 2_039_000_000_000, "cuDevice": 0,
    }  # fmt: skip
    attribution = attribute(rows.build(devices=[a100]))
    found = spans(attribution).rows
    assert found.filter(pl.col("layer") == "fc")["shapes"].to_list() == ["[4,8]f32", "[4,8]f32", "[8,8]f32"]
    assert set(found.filter(pl.col("layer") == "out")["shapes"]) == {"[4,16]f32"}
    peaks = default_peaks(attribution)
    limits = {tuple(row[:3]): row[3:] for row in layer_roofline(attribution, peaks).select(
        *KEY, "flops", "bound", "roof_share").iter_rows()}  # fmt: skip
    assert limits["fc", "Linear", "forward"][0] > 0
    for row in found.select(*KEY, "flops", "bound", "roof_share").iter_rows():
        flops, bound, roof_share = limits[row[:3]]
        assert row[3:] == (None if row[0] == "fc" or flops is None else flops // 3, bound, roof_share)
    assert found.filter(layer="out", phase="forward")["flops"].to_list() == [2 * 4 * 16 * 2] * 3
    assert None not in found.filter(phase="forward")["roof_share"]


def test_ranges_of_a_process_lie_beside_each_other():
    """Layers of a graph that run at the same time on the host are on tracks that nest."""
    ours = {"domain": "annot", "kind": "start"}
    rows = Rows().range("Forward Net |fwd", 0, 1000, **ours)
    for number, (start, end) in enumerate(((10, 500), (200, 700))):
        rows.range(f"layer.{number} Dense |fwd", start, end, thread=101 + number, end_thread=103, **ours)
    found = spans(attribute(rows.build()))
    nested(found.rows)
    assert found.rows.select("layer", "start", "end").rows() == [
        ("", 0, 1000),
        ("layer.0", 10, 500),
        ("layer.1", 200, 700),
    ]
    assert [track.name for track in found.tracks.all()] == ["layers", "layers, overlapping"]
