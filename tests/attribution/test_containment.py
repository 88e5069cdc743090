"""Ranges that nobody made for annot: layers by their place, against a recursive statement of the same rules."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from rich.console import Console
from shared_data import unpacked
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer, by_op, by_phase
from annot.attribution.summary import by_step, summarize
from annot.labels.foreign import WARM_UP, folded, phase_of
from annot.read.formats import load
from annot.report.terminal.table import print_table, tree_columns
from annot.report.tree import layer_lines
from annot.runs.run import Run

NAMES = ("Step 1", "Step 2", "Step 4", "layers.0", "layers.1", "Forward", "backward", "step", "x", "epoch 1 item 7")
PHASES = {"Forward": "forward", "backward": "backward"}

trees: st.SearchStrategy[Any] = st.recursive(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.just([])),
    lambda inside: st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.lists(inside, max_size=4)),
    max_leaves=14,
)


def added(rows: Rows, tree: Any, start: int, thread: int) -> int:
    """Add a range with its kernels and the ranges inside, and return its end."""
    name, kernels, inside = tree
    at = start + 1
    for _ in range(kernels):
        rows.kernel(at, (at, at + 3), thread)
        at += 1
    for child in inside:
        at = added(rows, child, at, thread) + 1
    rows.range(name, start, at, thread)
    return at


def numbered(names: set[str]) -> dict[str, str]:
    """The names of siblings after folding: equal but for numbers, each of which counts without a gap."""
    groups = defaultdict(set)
    for name in names:
        groups[tuple(re.split(r"\d+", name))].add(name)
    result = {name: name for name in names}
    for parts, group in groups.items():
        counted = zip(*(map(int, re.findall(r"\d+", name)) for name in group), strict=True)
        columns = [sorted(set(column)) for column in counted]
        if len(group) > 1 and all(b == a + 1 for column in columns for a, b in pairwise(column)):
            for name in group:
                numbers = ["#" if len(column) > 1 else str(column[0]) for column in columns]
                result[name] = "".join(a + b for a, b in zip(parts, [*numbers, ""], strict=True))
    return result


def expected(siblings: list[Any], path: str = "", phase: str = "other") -> dict[tuple[str, str], list[int]]:
    """Calls, own kernels and all kernels of each layer and phase, for all ranges in one place."""
    rows: dict[tuple[str, str], list[int]] = {}
    names = numbered({name for name, _, _ in siblings})
    passes = any(name in PHASES for name, _, _ in siblings)
    places = defaultdict(list)
    for name, kernels, inside in siblings:
        own = PHASES.get(name, "optimizer" if name == "step" and passes else phase)
        places[(f"{path} › " if path else "") + names[name], own].append((kernels, inside))
    for (place, own), ranges in places.items():
        below = expected([child for _, inside in ranges for child in inside], place, own)
        kernels = sum(number for number, _ in ranges)
        every = kernels + sum(row[1] for row in below.values())
        rows |= {(place, own): [len(ranges), kernels, every]} | below
    return rows


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(st.lists(trees, max_size=3), st.lists(trees, max_size=3))
def test_layers_are_the_places_of_ranges(first: list[Any], second: list[Any]) -> None:
    """Rows, their calls and their GPU time are those of the places. The top level has all the time, once."""
    rows, at = Rows(), 0
    for thread, siblings in ((MAIN, first), (201, second)):
        for tree in siblings:
            at = added(rows, tree, at, thread) + 1
    attribution = attribute(rows.build())
    table, whole = by_layer(attribution), summarize(attribution)["gpu_ns"]
    found = {
        (row["layer"], row["phase"]): [row["calls"], row["gpu_self_ns"] // 3, row["gpu_ns"] // 3]
        for row in table.filter(pl.col("layer") != UNATTRIBUTED).rows(named=True)  # of a CPU: time outside ranges
    }
    assert found == expected([*first, *second])
    assert table["gpu_self_ns"].sum() == whole == by_phase(attribution)["gpu_ns"].sum()
    assert table.filter(~pl.col("layer").str.contains(" › "))["gpu_ns"].sum() == whole


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(st.text("a1290 ._#", max_size=8), max_size=8))
def test_folding_replaces_numbers_only(names: set[str]) -> None:
    """A folded name differs from the name in whole numbers, and stands for several names."""
    result = folded(names)
    for name, short in result.items():
        pattern = r"\d+".join(map(re.escape, short.split("#"))) if "#" not in name else ".*"
        assert re.fullmatch(pattern, name)
        assert list(result.values()).count(short) > 1


def test_numbers_in_words_do_not_count() -> None:
    """Layers of one class have rows of their own."""
    assert folded({"conv1", "conv2", "x2 1", "x2 2"}) == {"x2 1": "x2 #", "x2 2": "x2 #"}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Forward", "forward"), ("fwd", "forward"), ("model_forward", "forward"), ("forward pass", "forward"),
        ("Forward 3", "forward"), ("compute_loss", "forward"), ("transformer_engine.FusedAttnFunc.forward", "forward"),
        ("transformer_engine._Linear.backward.dgrad_gemm", "backward"), ("loss.backward", "backward"),
        ("BackwardPass", "backward"), ("bwd", "backward"), ("optimizer.step()", "optimizer"),
        ("OptimizerStep", "optimizer"), ("DeepSpeedEngine.step", "optimizer"), ("zero_grad", "optimizer"),
        ("data", "data"), ("DataLoader.next", "data"), ("load batch", "data"), ("data_parallel", "other"),
        ("DeepSpeedZeroOptimizer_Stage3.step", "optimizer"), ("DeepSpeedEngine._backward_epilogue", "backward"),
        ("PartitionedParameterCoordinator.fetch_sub_module", "other"), ("FullyShardedDataParallel.forward", "forward"),
        ("megatron.core.transformer.transformer_layer._forward_attention.self_attention", "forward"),
        ("megatron.core.pipeline_parallel.schedules.forward_backward_no_pipelining", "other"),
        ("[pl][profile][Strategy]DDPStrategy.backward", "backward"), ("[pl][profile]run_training_batch", "other"),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "data"), ("setup_dataloader", "other"),
        ("[pl][profile][_EvaluationLoop].val_next", "data"), ("PP:0F1", "forward"), ("PP:1B0", "backward"),
        ("PP:1I0", "backward"), ("PP:12W10", "backward"), ("PP:0SEND_F1", "other"), ("PP:1UNSHARD", "other"),
        ("forward_backward", "other"), ("Benchmark Forward Only", "other"), ("step", "other"), ("", "other"),
    ],
)  # fmt: skip
def test_phases_by_name(name: str, phase: str) -> None:
    """The usual spellings give a phase; a name with other words beside them does not."""
    assert phase_of(name) == phase


@pytest.mark.parametrize(
    ("name", "warm"),
    [
        ("warmup", True), ("Warm-up Step 1", True), ("run_warm_up_3", True), ("WarmupLR.step", False),
        ("swarmup", False), ("warm cache", False),
    ],
)  # fmt: skip
def test_names_of_warm_up(name: str, warm: bool) -> None:
    """A warm-up is a word of its own, in the usual spellings."""
    assert bool(re.search(WARM_UP, name)) is warm


def test_operations_are_part_of_the_range_around_them() -> None:
    """Operations have rows only outside ranges; library calls are operations."""
    rows = Rows().range("block", 0, 50).range("aten::mm, seq = 1", 5, 25).range("ncclGroupEnd", 10, 20)
    rows.range("inner", 30, 45).kernel(12, (12, 15)).kernel(35, (35, 36))
    rows.range("MPI_Send", 31, 32).range("cublasCreate_v2", 33, 34)
    rows.range("aten::add", 60, 90, role="operator").range("aten::copy_", 65, 80, role="operator").kernel(70, (70, 77))
    attribution = attribute(rows.build())
    table = by_layer(attribution).select("layer", "gpu_ns", "gpu_self_ns").rows()
    assert table == [("block", 4, 3), ("block › inner", 1, 1), ("aten::add", 7, 7)]
    operations = dict(by_op(attribution).select("op", "gpu_self_ns").rows())
    assert operations == {
        "aten::copy_": 7,
        "ncclGroupEnd": 3,
        "aten::mm": 0,
        "aten::add": 0,
        "MPI_Send": 0,
        "cublasCreate_v2": 0,
        "(no operation)": 1,
    }


def test_backward_operations_follow_their_forward_operation_into_its_range() -> None:
    """The backward pass of an operation inside plain ranges is that of these ranges."""
    rows = Rows().range("Step 1", 0, 100).range("net", 10, 40).range("aten::mm, seq = 5", 15, 20).kernel(16, (16, 18))
    rows.range("MmBackward0, seq = 5", 60, 70, ENGINE).kernel(65, (65, 69), ENGINE)
    table = by_layer(attribute(rows.build())).select("layer", "phase", "gpu_self_ns").rows()
    assert ("Step 1 › net", "other", 2) in table
    assert ("Step 1 › net", "backward", 4) in table


def printed(path: Path, width: int = 80) -> list[str]:
    """The lines of the report on a terminal."""
    text = io.StringIO()
    print_table(Run(path).view(brief=True), Console(file=text, width=width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


JSUN = """\
Layer                       Forward  Backward     Total   Share  Calls  Host ms
  Run Benchmark              971.76    765.39  1,799.18  100.0%      1  3,359.1
    Initialize Model                              60.20    3.3%      1    995.2
    Warm-up                  326.54    765.39  1,093.71   60.8%      1  1,686.9
      Warm-up Step #         326.54    765.39  1,093.71   60.8%      5  1,686.7
        Forward              326.54              326.54   18.1%      5    496.5
>       Backward                       765.39    765.39   42.5%      5    721.3
    Benchmark Forward Only   645.23              645.27   35.9%      1    675.8
      Forward                645.23              645.23   35.9%     10    668.4
  cublasCreate_v2                                  0.00    0.0%      1      0.3
"""


@pytest.mark.slow
def test_a_training_script_as_a_tree(tmp_path: Path) -> None:
    """Hand-written ranges of a real profile are a tree with phases. Its only steps are warm-up, so that it has none."""
    path = unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path)
    lines = printed(path)
    start = next(row for row, line in enumerate(lines) if line.startswith("Layer"))
    assert lines[start : start + 10] == JSUN.splitlines()
    assert "Note: Phases are guessed from the names of ranges: Forward, Backward." in lines
    attribution = attribute(load(path))
    assert by_step(attribution).is_empty()
    table = by_layer(attribution)
    assert table["gpu_self_ns"].sum() == summarize(attribution)["gpu_ns"]


def test_steps_after_a_warm_up_range_are_the_steps() -> None:
    """Steps in a range named warm-up are warm-up, however long they take; the others are measured."""
    rows = Rows().range("warmup", 0, 30)
    for number, length in enumerate((10, 10, 10, 20, 20, 20)):
        start = 10 * number if number < 3 else 30 + 20 * (number - 3)
        rows.range(f"step {number}", start, start + length).kernel(start + 1, (start + 1, start + 6))
    profile = rows.build()
    assert by_step(attribute(profile))["warmup"].to_list() == [True] * 3 + [False] * 3
    steady = attribute(profile, steps="steady")
    assert by_layer(steady).select("layer", "calls", "gpu_ns").rows() == [("step #", 3, 15)]


def test_steps_that_are_all_warm_up_leave_the_whole_profile() -> None:
    """The measured part of a program without steps of its own stays in the table."""
    rows = Rows().range("warm-up", 0, 30).range("benchmark", 30, 40).kernel(35, (35, 42))
    for number in range(3):
        rows.range(f"step {number}", 10 * number, 10 * number + 10)
    assert by_layer(attribute(rows.build(), steps="steady")).filter(layer="benchmark")["gpu_ns"].to_list() == [7]


def test_warm_up_lasts_as_long_as_its_outer_range_in_its_process() -> None:
    """A shorter warm-up range inside does not end the outer one, and another process has its own."""
    rows = Rows().range("warm-up", 0, 60).range("warm-up kernels", 1, 5)
    for number in range(6):
        for thread in (MAIN, 201):
            rows.range(f"step {number}", 10 * number + 10, 10 * number + 20, thread)
    steps = by_step(attribute(rows.build()))
    assert steps.filter(process=1)["warmup"].to_list() == [True] * 5 + [False]
    assert not steps.filter(process=2)["warmup"].any()


@pytest.mark.parametrize("name", ["zx_lm_fwd_nvtx.2024.6", "athrun_lm_attn_windows.2026.2", "pipit_saxpy_mpi.2022.2"])
def test_the_top_level_is_the_whole(name: str, tmp_path: Path) -> None:
    """The rows at the top, with the unattributed ones, have the GPU time of the profile, each nanosecond once."""
    attribution = attribute(load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path)))
    table = by_layer(attribution)
    assert table.filter(~pl.col("layer").str.contains(" › "))["gpu_ns"].sum() == summarize(attribution)["gpu_ns"]


def test_equal_ranges_in_two_places_are_two_rows(tmp_path: Path) -> None:
    """The attention of the warm-up is told apart from that of the benchmark."""
    table = by_layer(attribute(load(unpacked("nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz", tmp_path))))
    calls = dict(table.select("layer", "calls").rows())
    assert calls["warmup › scaled dot product attention › final matmul"] == 32
    assert calls["benchmark_loop › scaled dot product attention › final matmul"] == 96


def test_a_profile_without_ranges_shows_kernels(tmp_path: Path) -> None:
    """Kinds of kernels, the largest kernels, and how to get layers."""
    lines = printed(unpacked("nsys/ginda_tiny_no_nvtx.2026.1.sqlite.gz", tmp_path))
    assert "GPU time by kind of kernel, µs" in lines
    assert "Time by kernel, µs" in lines
    assert not any(line.startswith(UNATTRIBUTED) for line in lines)
    assert any("Wrap training in `with annot.emit_ranges(model):`" in line for line in lines)


@pytest.mark.parametrize("left_out", [{"depth": 0}, {"depth": 1}, {"min_share": 0.9}])
@pytest.mark.parametrize("total", [True, False])
def test_ranges_keep_the_phases_of_rows_left_out(left_out: dict[str, Any], total: bool) -> None:
    """The Forward and Backward columns of a range are those of the ranges inside, whether these have rows or not."""
    rows = Rows()
    for number in range(2):
        start = 100 * number
        rows.range(f"Step {number}", start, start + 100).range("x", start + 10, start + 90)
        rows.range("Forward", start + 20, start + 40).range("backward", start + 50, start + 80)
        rows.kernel(start + 25, (start + 25, start + 32)).kernel(start + 55, (start + 55, start + 66))
    report = Run(rows.build()).view(total=total, **left_out)
    lines = layer_lines(report.shown, report.lines)
    times = 2 if total else 1
    assert [lines[0].get("gpu_ns", *phase) for phase in (["forward"], ["backward"], [])] == [
        7 * times, 11 * times, 18 * times,
    ]  # fmt: skip
    assert [column.title for column in tree_columns(report)][:3] == ["Forward", "Backward", "Total"]


def test_a_limited_depth_keeps_the_times(tmp_path: Path) -> None:
    """A range at the last level has one row with its total time."""
    rows = Run(unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path)).view(depth=1, total=True).rows
    assert rows["layer"].is_unique().all()
    assert rows.filter(layer="Run Benchmark › Warm-up")["gpu_ns"].item() == 1_093_709_715


def test_ranges_of_pipelines_and_of_lightning() -> None:
    """Micro-batches of a stage share a row. Lightning's modules are layers, its other ranges are places."""
    rows, stages = Rows(), Rows()
    for number, name in enumerate(("PP:0F0", "PP:0F1", "PP:0RECV_F2", "PP:0F2", "PP:0B0", "PP:0B1", "PP:0B2")):
        stages.range(name, 10 * number, 10 * number + 9).kernel(10 * number + 1, (10 * number + 2, 10 * number + 3))
    table = by_layer(attribute(stages.build())).select("layer", "phase", "calls", "gpu_ns").rows()
    assert table == [("PP:0F #", "forward", 3, 3), ("PP:0RECV_F 2", "other", 1, 1), ("PP:0B #", "backward", 3, 3)]
    rows.range("[pl][profile]run_training_batch", 0, 90).range("[pl][profile][Strategy]DDP.training_step", 1, 50)
    rows.range("[pl][module]net.Block: module.h.0", 2, 40).range("[pl][module]torch.nn.Linear: module.h.0.fc", 3, 30)
    rows.kernel(5, (5, 9)).kernel(32, (32, 35)).kernel(60, (60, 65))
    table = by_layer(attribute(rows.build())).select("layer", "module", "phase", "gpu_self_ns").rows()
    assert ("h.0", "Block", "forward", 3) in table
    assert ("h.0.fc", "Linear", "forward", 4) in table
    assert ("run_training_batch", "", "other", 5) in table


def test_steps_of_fsdp1_are_part_of_the_range_around_them() -> None:
    """The limit of all-gathers and the hooks of FSDP1 have no rows beside its forward pass."""
    rows = Rows().range("FullyShardedDataParallel.forward", 0, 50).range("FullyShardedDataParallel._pre_forward", 5, 25)
    rows.range("FullyShardedDataParallel.rate_limiter", 6, 20).kernel(8, (8, 15)).kernel(30, (30, 35))
    table = by_layer(attribute(rows.build())).select("layer", "phase", "gpu_self_ns").rows()
    assert table == [("FullyShardedDataParallel.forward", "forward", 12)]


def test_warm_up_of_a_pipeline_is_part_of_a_step() -> None:
    """Megatron fills its pipeline in each step; other ranges named warm-up are before the steps."""
    names = (
        "warmup",
        "Warm-up Step 1",
        "Trainer.warmup",
        "train warm_up",
        "megatron.core.schedules.f.warmup",
        "warmups",
    )
    assert pl.Series(names).str.contains(WARM_UP).to_list() == [True, True, True, True, False, False]
