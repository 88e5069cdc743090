"""Attribution of profiles in blocks, of selected steps and of unusual tables, and its errors."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, MAIN, Rows

from annot.attribution.attribute import Attribution, attribute, process_spans
from annot.attribution.gpu_time import FARTHEST
from annot.attribution.layer_tables import by_kernel, by_layer, by_line, by_module, by_op, by_phase
from annot.attribution.summary import by_step, summarize
from annot.errors import AnnotError
from annot.profile import Profile

SEEDS = st.integers(0, 2**32)
TEXTS = (
    "a Linear [2,3]f32 |fwd", "a.b Linear |fwd", "a Linear |bwd", "Data |data", "forward", "train", "x 1", "x 2",
    "SGD |opt", "aten::mm", "MmBackward0", "net/a/MatMul:MatMul", "aten::mm, seq = 3", "", None,
)  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """A profile in blocks, as a reader of large files has it: with categories, and without columns of nulls only."""

    profile: Profile
    chance: random.Random
    shuffled: bool

    @property
    def meta(self) -> dict[str, Any]:
        return self.profile.meta

    @property
    def marks(self) -> pl.DataFrame:
        return self.profile.marks

    @property
    def captured(self) -> pl.DataFrame:
        return self.profile.captured

    def last_launch(self) -> int | None:
        return self.profile.last_launch()

    def _of(self, table: pl.DataFrame, *texts: str, shuffled: bool = False) -> Iterator[pl.DataFrame]:
        chance = random.Random(self.chance.randrange(9)) if shuffled else self.chance
        size = chance.choice([1, 2, 5, 100])
        blocks = list(table.with_columns(pl.col(texts).cast(pl.Categorical)).iter_slices(size))
        if shuffled and self.shuffled:
            chance.shuffle(blocks)
        for block in blocks or [table]:
            yield block.select(column for column in block if column.null_count() < block.height or column.name in KEPT)

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        return self._of(self.profile.ranges, "text", "domain", "role")

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        return self._of(self.profile.launches, shuffled=True)

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        (table,) = self.profile.work_blocks()
        return self._of(table, "name", shuffled=True)


KEPT = (
    "id", "process", "thread", "start", "end", "text", "kind", "domain", "correlation", "name", "kernel", "device",
)  # fmt: skip


def random_profile(chance: random.Random) -> Profile:
    """Two threads and another process with ranges of all kinds, and launches and GPU activities in and outside them."""
    rows = Rows()
    for step in range(chance.choice([0, 3])):
        rows.range(f"Batch {step} |step", 40 * step, 40 * step + chance.randrange(20, 40), domain="annot")
    for _ in range(chance.randrange(14)):
        start, text = chance.randrange(120), chance.choice(TEXTS)
        end = None if chance.random() < 0.1 else start + chance.choice([0, 1, 5, 20, 60])
        role = {"aten::mm": "operator", "MmBackward0": "backward"}.get(text or "")
        more: dict[str, Any] = {"sequence": chance.choice([1, 2])} if role else {}
        if text == "aten::mm" and chance.random() < 0.5:
            more["call"] = chance.choice(["aten mm [2,3]f32 |op", "aten mm [4]f32 |op"])
        if role == "backward":
            more["forward_thread"] = chance.choice([None, MAIN])
        kind, domain = chance.choice(["push", "push", "start"]), chance.choice(["annot", "", "TSL"])
        elsewhere = ENGINE if kind == "start" and chance.random() < 0.2 else None
        thread = chance.choice([MAIN, MAIN, ENGINE, 201])
        rows.range(text, start, end, thread, role=role, kind=kind, domain=domain, end_thread=elsewhere, **more)  # type: ignore[arg-type]
    for _ in range(chance.randrange(12)):
        start = chance.randrange(140)
        gpu = (start, start + chance.choice([0, 3, 10]))
        at = None if chance.random() < 0.2 else chance.randrange(130)
        origin = {"origin_thread": MAIN, "origin_start": chance.randrange(130)} if chance.random() < 0.2 else {}
        rows.kernel(at, gpu, chance.choice([MAIN, ENGINE, 103, 201]), chance.choice("kl"), **origin)
    return rows.build()


def tables(result: Attribution) -> list[pl.DataFrame]:
    views = (by_layer, by_module, by_phase, by_kernel, by_op, by_line, by_step)
    ranges = ranges_of(result).drop("id")
    return [
        *(view(result) for view in views),
        ranges,
        result.device_busy.sort("process", "device"),
        result.step_work.sort(pl.all()),
    ]


@settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)
@given(SEEDS, st.booleans())
def test_blocks_of_any_size_and_order_give_the_same_numbers(seed: int, shuffled: bool) -> None:
    chance = random.Random(seed)
    profile = random_profile(chance)
    steps = (
        chance.choice([None, slice(0, 2), slice(1, None)])
        if (profile.ranges["text"] == "Batch 1 |step").any()
        else None
    )
    whole, blocks = attribute(profile, steps=steps), attribute(Blocks(profile, chance, shuffled), steps=steps)
    for one, other in zip(tables(whole), tables(blocks), strict=True):
        assert_frame_equal(one, other, check_row_order=False)
    assert summarize(whole) == summarize(blocks)
    assert_frame_equal(whole.range_work("kernels", "copies"), blocks.range_work("kernels", "copies"))


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(SEEDS)
def test_totals_of_every_table_are_those_of_the_profile(seed: int) -> None:
    profile = random_profile(random.Random(seed))
    result = attribute(profile)
    whole = int((profile.kernels["end"] - profile.kernels["start"]).sum())
    sums = [
        by_layer(result)["gpu_self_ns"],
        by_phase(result)["gpu_ns"],
        by_kernel(result)["gpu_ns"],
        by_line(result)["gpu_self_ns"],
    ]
    assert [column.sum() for column in sums] == [whole] * 4
    assert by_kernel(result)["calls"].sum() == by_layer(result)["kernels"].sum() == profile.kernels.height
    assert by_line(result).filter(parent=-1)["gpu_ns"].sum() == whole
    ranges = ranges_of(result)
    lost = by_layer(result).filter(layer="(unattributed)")["gpu_self_ns"].sum()
    assert ranges["gpu_self_ns"].sum() + lost == whole
    assert ranges.filter(pl.col("parent").is_null())["gpu_ns"].sum() + lost == whole


def test_ranges_have_depths_and_labels() -> None:
    rows = Rows().range("a Linear [2]f32 |fwd", 0, 50).range("x 7", 5, 40, domain="d").range("b Linear |fwd", 10, 20)
    rows.range("c Linear |fwd", 12, 18, domain="annot", kind="start", end_thread=ENGINE)
    rows.range("c Linear |fwd", 60, 70, 201).kernel(13, (20, 24), 103)
    table = ranges_of(attribute(rows.build()))
    columns = ["process", "thread", "start", "end", "parent", "depth", "domain", "text", "layer", "module", "phase"]
    assert table.select(columns).rows() == [
        (1, MAIN, 0, 50, None, 0, "", "a Linear [2]f32 |fwd", "a", "Linear", "forward"),
        (1, MAIN, 5, 40, 0, 1, "d", "x 7", "x 7", "", "other"),
        (1, MAIN, 10, 20, 1, 2, "", "b Linear |fwd", "b", "Linear", "forward"),
        (2, 201, 60, 70, None, 0, "", "c Linear |fwd", "c", "Linear", "forward"),
        (1, MAIN, 12, 18, 1, 2, "annot", "c Linear |fwd", "c", "Linear", "forward"),
    ]
    assert table["gpu_self_ns"].to_list() == [0, 0, 0, 0, 4]
    assert table.select("host_ns", "host_self_ns", "shapes").rows()[:2] == [(50, 15, "[2]f32"), (35, 25, None)]


def test_open_ranges_end_with_the_last_instant_of_the_host() -> None:
    for rows in (
        Rows().range("a", 0, None).range("b", 10, 80),
        Rows().range("a", 0, None).range("b", 80, None),
        Rows().range("a", 0, None).kernel(80, (900, 990)),
    ):
        assert ranges_of(attribute(rows.build()))["end"].max() == 80
    assert ranges_of(attribute(Rows().range("a", -5, None).build())).select("start", "end").row(0) == (-5, -5)


def test_ranges_without_a_start_or_a_thread_are_left_out() -> None:
    rows = Rows().range("a", 0, 10)
    profile = rows.build()
    for gone in ("start", "thread"):
        broken = profile.ranges.with_columns(pl.lit(None, pl.Int64).alias(gone), id=pl.lit(7, pl.Int64))
        both = Profile.build({}, ranges=pl.concat([profile.ranges, broken]))
        assert ranges_of(attribute(both))["text"].to_list() == ["a"]


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        ([], "nor in any other domain"),
        (["b", "a"], "only in 'a', 'b'"),
        ([*"hgfedcba"], "only in 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"),
        ([*"ihgfedcba"], "only in 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ..."),
    ],
)
def test_an_unknown_domain_is_an_error_that_names_the_others(domains: list[str], words: str) -> None:
    rows = Rows()
    for number, domain in enumerate(domains):
        rows.range("x", number, number, domain=domain)
    with pytest.raises(ValueError, match=f"^run has no range in the domain 'z', {re.escape(words)}$"):
        attribute(rows.build(source="run"), domain="z")


def batches(count: int, start: int = 0) -> Rows:
    rows = Rows()
    for step in range(count):
        rows.range(f"Batch {step} |step", start + 100 * step, start + 100 * step + 90)
    return rows


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (Rows().range("x", 0, 9), {"steps": slice(0, 1)}, "run has no steps to select from"),
        (batches(3), {"steps": slice(3, 5)}, "run has no such steps, only 0 to 2"),
        (batches(3), {"step_range": "step #"}, "run has no range 'step #'"),
        (batches(3), {"step_kind": "decode"}, "run has no decode steps, because the kinds of its steps are unknown"),
        (
            Rows().range("step[DECODE bs=32]", 0, 9).range("step[DECODE bs=3]", 10, 19),
            {"step_kind": "prefill"}, "run has no prefill steps, only decode",
        ),
    ],
)  # fmt: skip
def test_steps_that_the_profile_lacks_are_errors(rows: Rows, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        attribute(rows.build(source="run"), **options)


def test_epochs_are_no_part_of_selected_steps() -> None:
    """Ranges of epochs in the loop; another range with such a layer stays."""
    rows = batches(3).range("Epoch 0 |epoch", 100, 290).range("Epoch 0 |epoch", 105, 110).range("x", 120, 130)
    selected = attribute(rows.build(), steps=slice(1, 2))
    assert ranges_of(selected)["text"].to_list() == ["Batch 1 |step", "x"]
    assert ranges_of(attribute(batches(3).range("x", 120, 130).build(), steps=slice(1, 2))).height == 2
    assert selected.whole.tree.height + selected.whole.crossing.height == 6
    assert selected.of_steps is not None
    assert ranges_of(selected.of_steps(slice(0, 1)))["text"].to_list() == ["Batch 0 |step"]


@pytest.mark.parametrize(
    ("outside", "missing"), [(10, ""), (11, "only 48% of the GPU time lies in steps (batch ranges)")]
)
def test_steps_contain_half_of_the_gpu_time(outside: int, missing: str) -> None:
    """Steps that are selected or named stay."""
    rows = batches(3).kernel(5, (10, 20)).kernel(95, (30, 30 + outside))
    result = attribute(rows.build())
    assert (result.steps.missing.partition(";")[0], result.steps.table.height) == (missing, 0 if missing else 3)
    assert attribute(rows.build(), step_range="Batch # |step").steps.table.height == 3
    assert attribute(rows.build(), steps=slice(0, 3)).steps.table.height == 3


def test_profiles_with_totals_have_no_steps() -> None:
    rows = batches(3)
    result = attribute(rows.build(totals=True))
    assert result.steps.missing == "each range of the profile stands for all its calls"
    assert attribute(rows.build(totals=True), step_range="Batch # |step").steps.table.height == 3
    assert by_layer(result).filter(layer="(unattributed)").is_empty()


def test_launches_out_of_order_and_twice() -> None:
    """The earliest call with a correlation id owns the activity, in whatever order the blocks have them."""
    rows = Rows().range("a Linear |fwd", 0, 10).range("b Linear |fwd", 20, 30).kernel(25, (40, 43))
    profile = rows.build()
    earlier = profile.launches.with_columns(start=pl.lit(5, pl.Int64), end=pl.lit(5, pl.Int64))
    for launches in ([profile.launches, earlier], [earlier, profile.launches]):
        both = Profile.build({}, ranges=profile.ranges, launches=pl.concat(launches), kernels=profile.kernels)
        for source in (both, Blocks(both, random.Random(1), shuffled=False)):
            assert by_layer(attribute(source)).filter(pl.col("gpu_ns") > 0)["layer"].to_list() == ["a"]


def test_spans_of_processes_that_do_more_than_load_data() -> None:
    rows = Rows().range("a Linear |fwd", 5, 20).range("x", 30, 40, ENGINE).range("y", 0, 50, 301)
    rows.range("Data Worker 0 |data", 0, 900, 201)
    assert process_spans(attribute(rows.build()).forest).sort("process").rows() == [(0, 5, 40), (2, 0, 50)]


def test_calls_of_operations_inside_their_layer_are_those_of_the_layer() -> None:
    rows = Rows().range("a Linear |fwd", 0, 50).range("aten::mm", 5, 20, role="operator").range("a Linear |fwd", 22, 30)
    rows.range("a Linear |fwd", 60, 70)
    assert by_layer(attribute(rows.build())).filter(layer="a").select("calls", "host_ns", "host_self_ns").row(0) == (
        3,
        60,
        60,
    )


def test_gpu_activities_out_of_order_have_the_same_busy_time() -> None:
    rows = Rows().range("a Linear |fwd", 0, 10).kernel(5, (40, 50)).kernel(6, (20, 45)).kernel(7, (10, 12), device=1)

    class Reversed(Blocks):
        def work_blocks(self) -> Iterator[pl.DataFrame]:
            (table,) = self.profile.work_blocks()
            return reversed([*table.iter_slices(1)])

    result = attribute(Reversed(rows.build(), random.Random(0), shuffled=False))
    assert result.device_busy.sort("device").select("device", "busy_ns", "first_ns", "last_ns").rows() == [
        (0, 30, 20, 50),
        (1, 2, 10, 12),
    ]
    assert result.step_work["step"].to_list() == [-1]  # outside steps
    assert by_kernel(result).select("calls", "gpu_ns", "min_ns", "max_ns").rows() == [(3, 37, 2, 25)]


def test_host_time_outside_ranges_in_selected_steps() -> None:
    rows = batches(3).range("a Linear |fwd", 110, 120)
    for steps, outside in ((None, 20), (slice(1, 2), 0)):
        table = by_layer(attribute(rows.build(), steps=steps)).filter(layer="(unattributed)")
        assert table["host_self_ns"].sum() == outside


def test_kernels_and_ranges_of_more_than_a_lifetime_are_errors() -> None:
    half = int(FARTHEST) // 4
    kernels = Rows().kernel(None, (-half, half)).kernel(None, (-half, half)).kernel(None, (0, 2048))
    with pytest.raises(AnnotError, match="run has kernels and copies that take more than 146 years in all"):
        attribute(kernels.build(source="run"))
    ranges = Rows().range("a", -half, half).range("b", -half, half, ENGINE).range("c", 0, 2048)
    with pytest.raises(AnnotError, match="run has ranges that take more than 146 years in all"):
        attribute(ranges.build(source="run"))


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_a_node_starts_with_its_first_range(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Whatever the size of the blocks in which the times are added."""
    monkeypatch.setitem(attribute.__globals__, "_SLICE", block)
    rows = Rows()
    for start in range(0, 100, 20):
        rows.range("a Linear |fwd", start + 3, start + 10).range("b Linear |fwd", start + 11, start + 15)
    nodes = attribute(rows.build()).nodes.drop_nulls("start")
    assert nodes.select("start", "calls", "host_self_ns").rows() == [(3, 5, 35), (11, 5, 20)]
