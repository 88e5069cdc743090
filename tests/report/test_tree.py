"""The tree of the layer table: a line is inside the line of the range around it, and all lines add up to the run."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from real_runs import with_each_profile
from tables import MAIN, Rows

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer, by_line
from annot.report.table import Table
from annot.report.tree import Line, layer_lines
from annot.runs.run import Run

pytest_plugins = ["real_runs"]
QUICK = (
    "kineto/hta_cpu_only.json.gz", "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz", "ncu_raw_training.csv",
    "kineto/graph_pairs/vllm_decode_full/execution.json.gz", "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
)  # fmt: skip


def _check(report: Table) -> None:
    """Outermost lines make up the run, no line exceeds the one around it, and self time and lines inside add up."""
    time, own = report.time, report.time.replace("_ns", "_self_ns")
    lines = [*report.tree, *report.others]
    whole = report.whole or 0
    assert sum(line.get(time) or 0 for line in lines if not line.depth) == pytest.approx(whole, rel=1e-9, abs=0.5)
    assert report.meta[time] <= whole * (1 + 1e-9)
    above: list[Line] = []
    inside = {id(line): 0.0 for line in lines}
    for line in lines:
        above[line.depth :] = [line]
        assert not line.depth or not line.get(time) or line.get(time) <= above[-2].get(time) * (1 + 1e-9)
        if line.depth:
            inside[id(above[-2])] += line.get(time) or 0
    for line in lines:
        total, self_time = line.get(time) or 0, line.get(own) or 0
        assert self_time + inside[id(line)] == pytest.approx(total, rel=1e-9, abs=0.5), line.label


def _skip_without_ranges(run: Run) -> None:
    if not run.meta["ranges"]:
        pytest.skip("the profile has no ranges")


@with_each_profile(*QUICK)
def test_lines_add_up(real_run: Run) -> None:
    """In all real profiles, over the run and per step, at each depth; on the GPU and for profiles of the CPU."""
    _skip_without_ranges(real_run)
    for total in (True, False):
        for depth in (None, 0, 1, 2, 3):
            _check(real_run.view(total=total, depth=depth))
    _check(real_run.view(expand=[""]))


SUMS = [
    (by, columns)
    for by in ("layer", "module", "phase", "kind", "op", "kernel")
    for columns in ("time", "work", "roofline", "tensor", "all")
]


@with_each_profile(*QUICK)
def test_every_group_of_columns_adds_up_to_the_summary(real_run: Run) -> None:
    """No table drops time: self times by layer, class, phase, kind, operation and kernel are those of the run."""
    _skip_without_ranges(real_run)
    if real_run.meta["host_ns"] is None and not real_run.meta["gpu_ns"]:
        pytest.skip("the profile has no times")
    for by, columns in SUMS:
        for total in (True, False):
            try:
                report = real_run.view(by, columns, total=total)
            except ValueError:  # the table does not exist
                continue
            clock = report.time.removesuffix("_ns")
            names = [f"{clock}_self_ns", "self_ns", *([f"{clock}_ns"] if by != "layer" else [])]
            column = next((column for column in names if column in report.rows.columns), None)
            if report.nothing or column is None or report.rows[column].null_count():
                continue
            assert report.rows[column].sum() == pytest.approx(report.whole), (by, columns, total)


def _lines(rows: Rows) -> list[str]:
    lines = layer_lines(by_line(attribute(rows.build())))
    named = [(line.depth, line.label, line.module, line.get("gpu_ns")) for line in lines]
    return ["  " * depth + " ".join(str(one) for one in more if one != "") for depth, *more in named]


def _kernels(rows: Rows, *instants: int) -> Rows:
    for at in instants:
        rows.kernel(at, (1000 * at, 1000 * at + 1))
    return rows


def test_a_loss_outside_the_model_is_beside_it() -> None:
    """The total of the model does not include it. A loss that the model calls is inside."""
    rows = Rows().range("Forward MLP |fwd", 0, 100).range("fc Linear |fwd", 10, 40)
    rows = _kernels(rows.range("Loss MSELoss |fwd", 110, 120), 20, 115)
    assert _lines(rows) == ["(model) MLP 1", "  fc Linear 1", "Loss MSELoss 1"]
    rows = Rows().range("Forward MLP |fwd", 0, 100).range("fc Linear |fwd", 10, 40)
    rows = _kernels(rows.range("Loss MSELoss |fwd", 50, 60), 20, 55)
    assert _lines(rows) == ["(model) MLP 2", "  fc Linear 1", "  Loss MSELoss 1"]


def test_a_layer_in_two_places_has_a_line_in_each() -> None:
    """With its part of the time, so that the lines around it keep the time of their ranges."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("encoder Encoder |fwd", 10, 40)
    rows.range("encoder.fc Linear |fwd", 20, 30).range("encoder Encoder |fwd", 200, 290)
    rows = _kernels(rows, 15, 25, 210, 220, 230)
    assert _lines(rows) == ["(model) Net 2", "  encoder Encoder 2", "    fc Linear 1", "encoder Encoder 3"]
    attribution = attribute(rows.build())
    assert by_layer(attribution).filter(layer="encoder")["gpu_ns"].to_list() == [5]
    lines = by_line(attribution)
    assert lines["gpu_busy_ns"].to_list() == [2, None, 1, None], "the busy time of a part of a layer is unknown"


def test_a_layer_inside_itself_is_one_line() -> None:
    """As in files, its time counts once."""
    rows = Rows().range("fc Linear |fwd", 0, 100).range("fc Linear |fwd", 10, 90)
    assert _lines(_kernels(rows, 5, 50)) == ["fc Linear 2"]


def test_the_backward_pass_is_on_the_line_of_its_layer() -> None:
    """Wherever its range is. A range around the backward pass of layers has the time outside them."""
    rows = Rows().range("Batch 0 |step", 0, 300).range("Forward Net |fwd", 0, 100).range("fc Linear |fwd", 10, 40)
    rows.range("Backward |bwd", 100, 200).range("fc Linear |bwd", 110, 150)
    rows = _kernels(rows, 20, 120, 130, 160)
    assert _lines(rows) == ["Batch 4", "  (model) Net 3", "    fc Linear 3", "  Backward (all) 1"]
    fc = layer_lines(by_line(attribute(rows.build())))[2]
    assert (fc.get("gpu_ns", "forward"), fc.get("gpu_ns", "backward")) == (1, 2)


def test_the_backward_pass_of_a_layer_with_several_lines_is_near_its_range() -> None:
    """Training and validation call one model. On another thread, the pass is beside all lines of the layer."""
    rows = Rows().range("train", 0, 300).range("net Net |fwd", 0, 100)
    rows.range("Backward |bwd", 190, 260).range("net Net |bwd", 200, 250)
    rows.range("validate", 400, 500).range("net Net |fwd", 410, 490).range("net Net |bwd", 600, 700, MAIN + 1)
    rows = _kernels(rows, 50, 210, 220, 450)
    assert _lines(rows) == ["train 3", "  net Net 3", "  Backward (all) 0", "validate 1", "  net Net 1", "net Net 0"]
    rows.kernel(650, (650_000, 650_001), MAIN + 1)
    assert _lines(rows) == ["train 3", "  net Net 3", "  Backward (all) 0", "validate 1", "  net Net 1", "net Net 1"]


def test_collectives_and_ranges_of_the_program_are_inside_layers() -> None:
    """A range in each block of a fold is one line inside it."""
    rows = Rows().range("Batch 0 |step", 0, 10_000)
    for block in range(6):
        at = 1000 * block
        rows.range(f"h.{block} Block |fwd", at, at + 900).range("nccl:all_reduce", at + 10, at + 20)
        _kernels(rows, at + 15, at + 500)
    lines = Run(rows.build()).view(total=True).tree
    assert [(line.label, line.depth, line.count, line.get("gpu_ns")) for line in lines] == [
        ("Batch", 0, "", 12), ("h.*", 1, "×6", 12), ("nccl:all_reduce", 2, "", 6),
    ]  # fmt: skip
    lines = Run(rows.build()).view(total=True, depth=0).tree
    assert [(line.label, line.get("gpu_self_ns")) for line in lines] == [("Batch", 0), ("h.*", 12)]


def test_ranges_that_cross_others_have_calls_and_no_time() -> None:
    """Their time is that of other lines."""
    rows = Rows().range("a Linear |fwd", 0, 100).range("b Linear |fwd", 50, 150, kind="start")
    rows = _kernels(rows, 20, 60)
    assert _lines(rows) == ["a Linear 2", "b Linear 0"]
    assert layer_lines(by_line(attribute(rows.build())))[1].get("calls") == 1


def test_layers_run_inside_the_layer_that_runs_their_compiled_graph() -> None:
    """The kernels of a graph are beside it, also those that fuse several layers: it has its own time only."""
    rows = Rows().range("Forward Net |fwd", 0, 100).range("Forward CompiledGraph#0 |fwd", 10, 90)
    rows.range("0 Linear |fwd", 20, 30).range("1+0 ReLU+Linear |fwd", 40, 80)
    assert _lines(_kernels(rows, 25, 50)) == [
        "(model) Net 2", "  (graph) CompiledGraph#0 0", "  0 Linear 1", "  1+0 ReLU+Linear 1",
    ]  # fmt: skip


def test_a_model_inside_another_model_keeps_its_whole_path() -> None:
    """A path that is no prefix is written in full."""
    rows = Rows().range("G Net |fwd", 0, 100).range("D.fc Linear |fwd", 10, 40)
    assert _lines(_kernels(rows, 20)) == ["G Net 1", "  D.fc Linear 1"]


TEXTS = (
    "Batch 0 |step", "Forward Net |fwd", "a A |fwd", "a.b B |fwd", "a A |bwd", "a.b B |bwd", "a.b B |rec",
    "Backward |bwd", "train", "aten::add", "nccl:all_reduce", "Optimizer Adam |opt",
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(0, 3), st.booleans()), max_size=14))
def test_random_ranges_add_up(calls: list[tuple[str, int, bool]]) -> None:
    """Ranges in any nesting, on two threads: lines are inside each other, and have the self times of rows by layer."""
    rows, now = Rows(), 0
    stacks: dict[int, list[tuple[str, int]]] = {MAIN: [], MAIN + 1: []}

    def close(thread: int, number: int) -> None:
        nonlocal now
        for _ in range(min(number, len(stacks[thread]))):
            text, start = stacks[thread].pop()
            rows.range(text, start, now := now + 1, thread)

    for text, ended, other in calls:
        thread = MAIN + other
        close(thread, ended)
        stacks[thread].append((text, now := now + 1))
        rows.kernel(now := now + 1, (1000 * now, 1000 * now + now), thread)
    for thread in stacks:
        close(thread, len(stacks[thread]))
    run = Run(rows.build())
    report = run.view(total=True, expand=[""])
    if report.rows.height:
        _check(report)
    names, sums = ["layer", "module"], ("gpu_self_ns", "host_self_ns", "calls", "kernels")
    lines = by_line(run.attribution).group_by(names).agg(pl.col(sums).sum()).sort(names)
    assert lines.equals(by_layer(run.attribution).group_by(names).agg(pl.col(sums).sum()).sort(names))
