"""Cases in which layers or steps were wrong: graphs captured elsewhere, backward ranges that disagree, waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from range_tables import crossing_ranges_of
from shared_data import shared
from sqlite_profile import SqliteProfile
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.profile import Profile
from annot.read.formats import load, source


def _layers(profile: Profile, **options: Any) -> dict[tuple[str, str], int]:
    rows = by_layer(attribute(profile, **options))
    return {(layer, phase): gpu for layer, phase, gpu in rows.select("layer", "phase", "gpu_self_ns").iter_rows()}


def _batches(count: int) -> Rows:
    rows = Rows()
    for step in range(count):
        rows.range(f"Batch {step} |step", 100 * step, 100 * step + 90)
    return rows


def test_graph_captured_in_a_step_that_was_not_asked_for() -> None:
    rows = _batches(3).range("fc Linear |fwd", 10, 20)
    for step in range(3):
        rows.kernel(100 * step + 50, (1000 + 100 * step, 1007 + 100 * step), origin_thread=MAIN, origin_start=15)
    profile = rows.build()
    assert _layers(profile) == {("(batch)", "other"): 0, ("fc", "forward"): 21}
    assert _layers(profile, steps=slice(2, 3)) == {("(batch)", "other"): 0, ("fc", "forward"): 7}


def test_work_without_a_launch_is_of_the_step_of_its_origin() -> None:
    rows = _batches(3).range("fc Linear |fwd", 110, 120)
    rows.kernel(None, (1000, 1005), origin_thread=MAIN, origin_start=115).kernel(None, (1010, 1011))
    profile = rows.build()
    assert by_step(attribute(profile))["gpu_ns"].to_list() == [0, 5, 0]
    gpu = [summarize(attribute(profile, steps=slice(step, step + 1)))["gpu_ns"] for step in range(3)]
    assert gpu == [0, 5, 0]


def test_captured_and_launched_in_no_range_but_a_batch() -> None:
    rows = _batches(1).kernel(95, (1000, 1005), origin_thread=MAIN, origin_start=15)
    assert _layers(rows.build()) == {("(batch)", "other"): 5}


def test_backward_range_around_backward_ranges_of_several_layers() -> None:
    rows = Rows()
    for place, layer in enumerate("ab"):
        rows.range(f"{layer} Linear |fwd", 20 * place, 20 * place + 10)
        rows.range("aten::mm", 20 * place + 1, 20 * place + 5, role="operator", sequence=place)
    rows.range("Outer", 100, 200, ENGINE, role="backward")
    for place, at in ((1, 110), (0, 130)):
        rows.range("MmBackward0", at, at + 10, ENGINE, role="backward", sequence=place, forward_thread=MAIN)
    rows.kernel(115, (1000, 1001), ENGINE).kernel(135, (1010, 1030), ENGINE).kernel(150, (1100, 1400), ENGINE)
    layers = _layers(rows.build())
    assert (layers["b", "backward"], layers["a", "backward"], layers["Outer", "backward"]) == (1, 20, 300)


def test_backward_range_around_those_of_one_layer_goes_with_them() -> None:
    rows = Rows().range("a Linear |fwd", 0, 10).range("aten::mm", 1, 5, role="operator", sequence=7)
    rows.range("engine", 100, 200, ENGINE, role="backward")
    for depth in (1, 2):
        rows.range("MmBackward0", 100 + depth, 150 - depth, ENGINE, role="backward", sequence=7, forward_thread=MAIN)
    rows.kernel(120, (1000, 1001), ENGINE).kernel(190, (1010, 1030), ENGINE)
    assert _layers(rows.build()) == {("a", "forward"): 0, ("a", "backward"): 21}


def test_backward_of_what_a_checkpoint_ran_again() -> None:
    rows = Rows().range("blk Block |fwd", 0, 50).range("CheckpointFunction", 1, 49, role="operator", sequence=5)
    on_main: dict[str, Any] = {"role": "backward", "sequence": 5, "forward_thread": MAIN}
    on_engine: dict[str, Any] = {"role": "backward", "sequence": 0, "forward_thread": ENGINE}
    rows.range("CheckpointFunctionBackward", 100, 200, ENGINE, **on_main)
    rows.range("blk.fc Linear |fwd", 105, 120, ENGINE).range("mm", 106, 110, ENGINE, role="operator", sequence=0)
    rows.range("MmBackward0", 130, 140, ENGINE, **on_engine)
    rows.kernel(107, (1000, 1010), ENGINE).kernel(135, (1020, 1120), ENGINE).kernel(150, (1200, 1201), ENGINE)
    assert _layers(rows.build()) == {
        ("blk", "forward"): 0, ("blk", "backward"): 1, ("blk.fc", "forward"): 10, ("blk.fc", "backward"): 100,
    }  # fmt: skip


@pytest.mark.parametrize("shift", [2, -8])
def test_wait_for_data_inside_a_step_or_right_before_it(shift: int) -> None:
    rows = Rows()
    for step in range(3):
        rows.range(f"ProfilerStep#{step}", 100 * step, 100 * step + 90)
        at = 100 * step + shift
        rows.range("enumerate(DataLoader)#Loader.__next__", at, at + 5 + step)
    profile = rows.build()
    assert by_step(attribute(profile))["data_ns"].to_list() == [5, 6, 7]
    assert by_step(attribute(profile, steps=slice(1, None)))["data_ns"].to_list() == [6, 7]


def test_range_across_steps_shows_the_work_of_those_asked_for() -> None:
    rows = _batches(3).range("across", 150, 260, kind="start")
    for step in range(3):
        rows.kernel(100 * step + 55, (1000 + step, 1001 + step))
    profile = rows.build()
    gpu = [crossing_ranges_of(attribute(profile, steps=steps))["gpu_ns"].sum() for steps in (None, slice(1, 2))]
    assert gpu == [2, 1]


def test_steps_by_pattern_are_those_of_the_thread_that_goes_forward() -> None:
    rows = Rows()
    for step in range(4):
        rows.range("model", 100 * step, 100 * step + 20).range("update", 100 * step + 80, 100 * step + 90)
        rows.range("MmBackward0", 100 * step + 21, 100 * step + 79, ENGINE, role="backward")
    starts = by_step(attribute(rows.build()))["start_ns"].to_list()
    assert starts == [0, 100, 200, 300]


def test_range_called_step_that_is_the_step_of_the_optimizer() -> None:
    rows = Rows()
    for step in range(4):
        for text, start, end in (("forward", 0, 40), ("backward", 40, 85), ("step", 85, 95)):
            rows.range(text, 100 * step + start, 100 * step + end)
    steps = by_step(attribute(rows.build()))
    assert steps.select("start_ns", "host_ns").rows() == [(0, 100), (100, 100), (200, 100), (300, 95)]


def test_steps_of_a_real_training_that_nobody_marked() -> None:
    steps = by_step(attribute(load(shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"))))
    assert steps["kernels"].to_list() == [472] * 5


def test_wait_for_data_of_a_real_training() -> None:
    steps = by_step(attribute(load(shared("kineto/kineto_2021_resnet50_v100_oldcats_seq.json.gz"))))
    assert steps.select((pl.col("data_ns") > 60_000_000).all()).item()


@pytest.mark.parametrize("calls", [1, 40])
def test_of_ranges_of_other_threads_the_one_that_began_last(calls: int) -> None:
    rows = Rows().range("long", 0, 1000, 103).range("short", 100, 200, 104).range("same start", 100, 150, 105)
    for call in range(calls):
        rows.kernel(101 + call, (2000 + call, 2001 + call)).kernel(160, (3000, 3001)).kernel(300, (4000, 4001))
    layers = _layers(rows.build())
    assert [layers[text, "other"] for text in ("same start", "short", "long")] == [calls] * 3


def test_open_range_ends_with_the_last_api_call_whether_in_blocks_or_not(tmp_path: Path) -> None:
    profile = SqliteProfile()
    profile.range("open", 0, None)
    profile.call(10, 20, 1)
    profile.call(10, 900, 1, kind=67)  # repeats the call with its backtrace
    profile.call(30, 25, 2)  # left out, for it ends before it starts
    path = profile.write(tmp_path / "open.sqlite")
    assert [by_layer(attribute(each(path)))["host_ns"].to_list() for each in (load, source)] == [[20], [20]]
