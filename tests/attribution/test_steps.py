"""Steps: found by batch ranges, by names that count, by a key range, by a pattern; chosen; warm-up told apart."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, MAIN, Rows

from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.step_sequences import largest_repetitions
from annot.attribution.steps import (
    Steps,
    kinds_of,
    of_main_kind,
    steady_steps,
    step_slice,
    time_in,
    time_outside_steps,
)
from annot.attribution.summary import by_step, step_statistics, summarize


def training(*texts: str, count: int = 5, length: int = 100) -> Rows:
    """Steps of `length` ns, ranges side by side in each, with a kernel of as many ns as the step's number."""
    rows = Rows()
    for step in range(count):
        for place, text in enumerate(texts):
            start = step * length + place * 20
            rows.range(text.format(step), start, start + 20).kernel(start + 5, (start, start + step))
    return rows


def spans(rows: Rows, **options: str) -> list[tuple[int, int]]:
    table = attribute(rows.build(), **options).steps.table  # type: ignore[arg-type]
    return table.select("start", "end").rows()


def test_batch_ranges() -> None:
    """annot's batch ranges are the steps, with their numbers, whatever else repeats."""
    steps = by_step(attribute(training("Batch {} |step", "noise").build()))
    assert steps.select("step", "batch", "start_ns", "host_ns", "gpu_ns").rows() == [
        (step, step, 100 * step, 20, step) for step in range(5)
    ]


@pytest.mark.parametrize(
    "text", ["step {}", "ProfilerStep#{}", "iteration_{}", "train {}", "training_step_{}", "batch: {}"]
)
def test_names_that_count(text: str) -> None:
    """Texts in which people and frameworks count steps are found."""
    assert spans(training(text, "other")) == [(100 * step, 100 * step + 20) for step in range(5)]


def test_layers_that_count_are_no_steps() -> None:
    """Numbered layers are not taken for steps."""
    rows = Rows()
    for layer in range(6):
        rows.range(f"layers.{layer} Block |fwd", 10 * layer, 10 * layer + 10)
    assert attribute(rows.build()).steps.found_by == ""


def test_key_range() -> None:
    """Whoever knows the range that makes a step names it."""
    rows = training("load", "compute {}")
    assert spans(rows, step_range="compute #") == [(100 * step + 20, 100 * step + 40) for step in range(5)]
    with pytest.raises(ValueError, match="no range 'comp'"):
        spans(rows, step_range="comp")


def test_largest_pattern() -> None:
    """Without names, the pattern of ranges that repeats is the step; it lasts until the next one begins."""
    rows = Rows().range("setup", -50, -40)
    for step in range(4):
        for place, text in enumerate(("forward", "backward", "forward", "optimizer")):
            rows.range(text, 100 * step + 20 * place, 100 * step + 20 * place + 20)
    assert spans(rows) == [(0, 100), (100, 200), (200, 300), (300, 380)]


def test_pattern_inside_one_long_range() -> None:
    """The pattern is also found inside a range around all of it."""
    rows = Rows().range("train", 0, 1000)
    for step in range(4):
        rows.range("forward", 100 * step, 100 * step + 50).range("backward", 100 * step + 50, 100 * step + 90)
    assert spans(rows) == [(0, 100), (100, 200), (200, 300), (300, 390)]


def test_steps_of_each_process() -> None:
    """Processes have steps of their own, counted from 0."""
    rows = Rows()
    for process in (1, 2):
        for step in range(3):
            rows.range(f"Batch {step} |step", 100 * step + process, 100 * step + 50, thread=100 * process)
    assert by_step(attribute(rows.build())).select("process", "step").rows() == [
        (process, step) for step in range(3) for process in (1, 2)
    ]


def test_processes_that_only_load_data_have_no_steps() -> None:
    """Fetches of the workers repeat as well, in processes of their own, and so may ranges of the data set."""
    rows = Rows()
    for step in range(5):
        at = 100 * step
        rows.range("Data |data", at, at + 40).range("net MLP |fwd", at + 40, at + 60)
        rows.range("Backward |bwd", at + 60, at + 80).range("Optimizer SGD |opt", at + 80, at + 100)
        for worker in (0, 1):
            thread = 100 * (worker + 2)
            rows.range(f"Data Worker {worker} |data", at, at + 90, thread).range("batch", at + 90, at + 95, thread)
            rows.range("net MLP |fwd", at + 5, at + 9, thread)  # the data set computes something
    found = attribute(rows.build())
    assert found.steps.found_by == "the pattern of ranges around each optimizer step"
    assert by_step(found).select("process", "step").rows() == [(1, step) for step in range(5)]
    assert spans(rows, step_range="batch") == 2 * [(100 * step + 90, 100 * step + 95) for step in range(5)]


def test_chosen_steps() -> None:
    """With steps chosen, ranges and work of others take no part, and a note says how much that is."""
    rows = training("Batch {} |step", "after").kernel(None, (900, 990))
    result = attribute(rows.build(), steps=slice(1, 3))
    meta = summarize(result)
    assert by_layer(result).select("layer", "calls", "gpu_self_ns").rows() == [("(batch)", 2, 3)]
    assert (meta["gpu_ns"], meta["steps"]) == (3, 2)
    assert "9 kernels or copies are outside the selected steps and left out" in meta["notes"]
    assert by_step(result)["step"].to_list() == [1, 2]
    with pytest.raises(ValueError, match="no steps to select from"):
        correlate(Rows().range("x", 0, 1).build(), steps=slice(0, 1))


def test_waits_at_the_end_of_an_epoch_belong_to_the_next_step() -> None:
    """They come right before its own wait; those that another range follows, as in a validation, belong to no step."""
    rows = training("Batch {} |step").range("Epoch 0 |epoch", 200, 246).range("Epoch 1 |epoch", 246, 500)
    rows.range("Data |data", 230, 245).range("Data |data", 250, 260).range("Data |data", 295, 300)
    rows.range("Data |data", 350, 360).range("validate", 360, 370).range("Data |data", 390, 400)
    of_data = by_layer(attribute(rows.build(), steps=slice(3, 5))).filter(phase="data")
    assert of_data.select("calls", "host_ns").rows() == [(4, 15 + 10 + 5 + 10)]


def test_work_of_other_threads_belongs_to_the_step_of_its_launch() -> None:
    """A launch of the engine's thread counts to the step in which it was made."""
    rows = training("Batch {} |step").kernel(110, (500, 540), ENGINE)
    assert by_step(attribute(rows.build()))["gpu_ns"].to_list() == [0, 41, 2, 3, 4]


def test_warm_up_is_told_apart() -> None:
    """Long steps at the beginning are warm-up: marked, and not in the statistics; a long one later is not."""
    rows, start = Rows(), 0
    for step, length in enumerate((900, 300, 100, 101, 102, 400, 99, 100)):
        rows.range(f"Batch {step} |step", start, start + length)
        start += length
    steps = by_step(attribute(rows.build()))
    assert steps["warmup"].to_list() == [True, True] + [False] * 6
    assert step_statistics(steps) == {
        "mean": 150, "median": 100, "min": 99, "max": 400, "iqr": 2, "warmup": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"), [("3:20", slice(3, 20)), ("3:", slice(3, None)), (":20", slice(None, 20)), ("7", slice(7, 8))]
)
def test_step_slice(text: str, expected: slice) -> None:
    """Steps are given as Python counts them."""
    assert step_slice(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1:2:3", "-1", "1.5"])
def test_step_slice_refuses(text: str) -> None:
    """Anything else is refused with what was expected."""
    with pytest.raises(ValueError, match=r"3:20.*got"):
        step_slice(text)


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=24))
def test_largest_repetition_against_all_of_them(codes: list[int]) -> None:
    """A pattern is found if one comes three times in a row; what it covers is at least what the longest such part does.

    Its occurrences are those that a search from the left finds.
    """
    longest = max(
        (
            period * times
            for period in range(1, len(codes) // 3 + 1)
            for first in range(len(codes))
            for times in range(3, (len(codes) - first) // period + 1)
            if codes[first : first + period] * times == codes[first : first + period * times]
        ),
        default=0,
    )
    found = next(largest_repetitions(codes, ["other"] * len(codes)), None)
    assert (found is None) == (longest == 0)
    if found is not None:
        assert len(found.starts) * found.period >= longest
        pattern = codes[found.starts[0] : found.starts[0] + found.period]
        expected, position = [], 0
        while position <= len(codes) - found.period:
            matches = codes[position : position + found.period] == pattern
            expected += [position] * matches
            position += found.period if matches else 1
        assert found.starts == expected


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_epochs_of_a_few_batches_are_not_the_step(epochs: int) -> None:
    """The wait that ends an epoch and the validation interrupt the pattern. A step stays one batch."""
    rows, expected, time = Rows(), [], 0
    for _ in range(epochs):
        for _ in range(4):
            expected.append((time, time + 50))
            for place, label in enumerate(("|data", "Net |fwd", "zero_grad SGD |opt", "Net |bwd", "SGD |opt")):
                rows.range(label, time + 10 * place, time + 10 * place + 10)
            time += 50
        for place, label in enumerate(("|data", "Net |fwd", "accuracy |fwd")):
            rows.range(label, time + 10 * place, time + 10 * place + 10)
        time += 30
    assert spans(rows) == expected


def test_optimizers_side_by_side_are_one_step() -> None:
    """A pattern of optimizers only covers little of the time, so the step is the whole of forward to optimizers."""
    rows = Rows()
    for step in range(4):
        rows.range("Net |fwd", 100 * step, 100 * step + 40).range("Net |bwd", 100 * step + 40, 100 * step + 80)
        for place in range(3):
            rows.range("SGD |opt", 100 * step + 80 + 5 * place, 100 * step + 84 + 5 * place)
    assert spans(rows) == [(0, 100), (100, 200), (200, 300), (300, 394)]


def test_main_is_the_thread_of_the_rows() -> None:
    """The helper's default thread is the one that has the ranges."""
    assert ranges_of(attribute(Rows().range("x", 0, 1).build()))["thread"].to_list() == [MAIN]


def test_backward_of_layers_within_others_counts_once() -> None:
    """No range of the engine's thread is that of the block, whose layer's backward is found by number; it counts."""
    rows = Rows()
    for step in range(3):
        zero = 1000 * step
        rows.range(f"Batch {step} |step", zero, zero + 900).range("block Block |fwd", zero, zero + 100)
        rows.range("block.fc Linear |fwd", zero + 10, zero + 60).range("aten::relu, op_id = 3", zero + 70, zero + 90)
        rows.range(f"aten::linear, seq = {step}, op_id = 1", zero + 20, zero + 50)
        rows.range("autograd::engine::evaluate_function: AddmmBackward0, op_id = 9", zero + 200, zero + 300, ENGINE)
        rows.range(f"AddmmBackward0, seq = {step}, op_id = 10", zero + 210, zero + 290, ENGINE)
    steps = by_step(attribute(rows.build()))
    assert steps.select("forward_ns", "backward_ns").rows() == [(100, 100)] * 3


spans_of_steps = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 9)), max_size=8)


def one_after_another(gaps: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Process, start and end of spans from process, time after the last one of the process, and length."""
    clocks, spans = [0, 3], []
    for process, gap, length in sorted(gaps, key=lambda row: row[0]):
        spans.append((process, clocks[process] + gap, clocks[process] + gap + length))
        clocks[process] += gap + length
    return spans


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(spans_of_steps)
def test_time_and_step_at_an_instant_by_brute_force(gaps: list[tuple[int, int, int]]) -> None:
    """The end of a step is not in it, unless it has no length. Of steps that touch, the later one counts."""
    rows = one_after_another(gaps)
    schema = {"process": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    table = table.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("step") + 5)
    instants = [(process, at) for process in (0, 1, 2) for at in range(-2, 40)]
    process = pl.Series([code for code, _ in instants], dtype=pl.Int32)
    at = pl.Series([now for _, now in instants], dtype=pl.Int64)
    bounds = [(row + 5, of, start, max(end - 1, start)) for row, (of, start, end) in enumerate(rows)]
    steps = [
        max((step for step, of, first, last in bounds if of == code and first <= now <= last), default=-1)
        for code, now in instants
    ]
    assert Steps(table, "").at(process, at).to_list() == steps
    length = pl.col("end") - pl.col("start")
    spans = table.select("process", "start", length=length, until=length.cum_sum().over("process"))
    assert time_in(spans, process, at).to_list() == [
        sum(max(0, min(end, now) - start) for of, start, end in rows if of == code) for code, now in instants
    ]


def test_time_of_ranges_that_last_longer_than_the_selected_steps() -> None:
    """Each range that sticks out of the steps, and by how much; other ranges have no row."""
    rows = training("Batch {} |step").range("fit", 0, 330).range("in both", 105, 215, ENGINE).range("in", 110, 120)
    rows.range("at the end", 200, 220, 103)
    for steps, expected in (
        (slice(1, 3), {"in both": 80}), (slice(0, 3), {"fit": 330 - 60, "in both": 80}),
        (slice(3, None), {}), (None, {}),
    ):  # fmt: skip
        result = attribute(rows.build(), steps=steps)
        outside = time_outside_steps(result.forest, result.steps)
        texts = ranges_of(result)["text"].gather(outside["row"])
        assert dict(zip(texts, outside["outside_ns"], strict=True)) == expected


@pytest.mark.parametrize(
    ("waits", "length"),
    [
        ([(90, 100)], 30),
        ([(85, 90), (92, 100)], 28 + 5),  # two waits: the first is a row of its own
        ([(15, 100)], 20),  # starts in the step before, and belongs to it
        ([(90, 110)], 30),
        ([(85, 95), (90, 100)], 30 + 5),
        ([(70, 80), (90, 100)], 30 + 10),
        ([(20, 30)], 20 + 10),  # the time between does not count
        ([(10, 20)], 20),  # in the step before
        ([(101, 105)], 20),  # in the step itself
    ],
)
def test_waits_for_data_before_a_step(waits: list[tuple[int, int]], length: int) -> None:
    """The second of two steps of 20 ns, of which the first ends at 20 and the second starts at 100."""
    rows = training("Batch {} |step", count=2)
    for start, end in waits:
        rows.range("Data |data", start, end, ENGINE)
    times = by_step(attribute(rows.build()))["step_ns"].to_list()
    assert times == [20, length]


def test_waits_that_another_range_follows_belong_to_no_step() -> None:
    """A range after a wait and before the last wait, except one of an epoch; also a batch around the wait."""
    for other, expected in ((None, 5), ("validate", 0), ("Epoch 1 |epoch", 5)):
        rows = training("Batch {} |step", count=2).range("Data |data", 40, 45).range("Data |data", 95, 100)
        if other is not None:
            rows.range(other, 60, 70)
        assert by_step(attribute(rows.build()))["step_ns"].to_list() == [20, 25 + expected]
    rows = training("Batch {} |step", count=2).range("Data |data", 40, 45).range("Data |data", 95, 100)
    together = rows.range("x", 95, 97, ENGINE)
    assert by_step(attribute(together.build()))["step_ns"].to_list() == [20, 30]
    assert by_step(attribute(rows.range("Batch validate 0 |step", 30, 50).build()))["step_ns"].to_list() == [20, 25]


@pytest.mark.parametrize(("until", "expected"), [(44, 30), (45, 25)])
def test_waits_that_end_with_another_batch_belong_to_no_step(until: int, expected: int) -> None:
    """A wait that ends later belongs to the step, as does one before all batches."""
    rows = training("Batch {} |step", count=2).range("Data |data", 40, 45).range("Data |data", 95, 100)
    rows.range("Batch validate 0 |step", 30, until, ENGINE).range("Data |data", -10, 0)
    assert by_step(attribute(rows.build()))["step_ns"].to_list() == [30, expected]


def with_lengths(*lengths: int, text: str = "Batch {} |step", warm: int = 0) -> Rows:
    rows, start = Rows(), 0
    for step, length in enumerate(lengths):
        rows.range(text.format(step), start, start + length)
        start += length
    return rows.range("warm-up", 0, sum(lengths[:warm])) if warm else rows


@pytest.mark.parametrize(
    ("lengths", "warm", "expected"),
    [
        ((150, 100, 100, 100), 0, []),
        ((151, 100, 100, 100), 0, [0]),
        ((400, 300, 100, 100, 400), 0, [0, 1]),  # the median of 100, 100, 400
        ((400, 300, 100, 100, 100), 0, [0, 1]),
        ((400, 100, 300, 100, 100, 100), 0, [0]),
        ((90, 300, 100, 100, 100, 100), 1, [0, 1]),
        ((90, 90, 100, 100, 300), 2, [0, 1]),
        ((90, 90, 90), 3, [0, 1, 2]),
        ((500,), 0, []),
        ((1000, 100), 0, [0]),
    ],
)
def test_first_steps_that_take_longer_are_warm_up(lengths: tuple[int, ...], warm: int, expected: list[int]) -> None:
    """Longer than 1.5 times the median of the later half, or in a range named warm-up."""
    rows = with_lengths(*lengths, warm=warm).range("rest", 5000, 5001)
    table = attribute(rows.build(), step_range="Batch # |step").steps.table
    assert table.filter("warmup")["step"].to_list() == expected


@pytest.mark.parametrize(
    ("steps", "selected"), [((400, 300, 100, 100, 100, 100), slice(2, None)), ((100,) * 4, slice(0, None))]
)
def test_steady_steps_are_those_after_the_warm_up_of_every_process(steps: tuple[int, ...], selected: slice) -> None:
    rows = with_lengths(*steps)
    for step in range(5):
        rows.range(f"Batch {step} |step", 100 * step, 100 * step + 100, 201)
    assert attribute(rows.build(), steps="steady").steps.choice == selected


def test_a_warm_up_as_long_as_the_shortest_process_selects_all_steps() -> None:
    rows = with_lengths(400, 300, 100, 100, 100, 100)
    for step in range(2):
        rows.range(f"Batch {step} |step", 100 * step, 100 * step + 100, 201)
    assert attribute(rows.build(), steps="steady").steps.choice == slice(0, None)


@pytest.mark.parametrize(("after", "expected"), [(100, slice(0, None)), (101, None)])
def test_steps_of_other_tools_must_cover_half_of_the_time(after: int, expected: slice | None) -> None:
    """From the first to the last range of the processes with steps, or to the last launch."""
    for last in ("range", "launch"):
        rows = training("step {}", length=20).range("other process", -9000, 9000, 201)
        rows = rows.range("rest", 190, 100 + after) if last == "range" else rows.kernel(100 + after, (500, 500))
        assert attribute(rows.build(), steps="steady").steps.choice == expected


@pytest.mark.parametrize(("length", "found_by"), [(49, ""), (50, "ranges with a usual name")])
def test_ranges_named_step_without_a_number_cover_half_of_their_thread(length: int, found_by: str) -> None:
    """Beside ranges named forward and backward, they are steps of the optimizer."""
    rows = Rows().range("step", 0, 10).range("step", 100 - length + 10, 100).range("step 7", 0, 9000, ENGINE)
    assert attribute(rows.build()).steps.found_by == found_by


def test_a_single_range_with_a_usual_name_is_no_step() -> None:
    assert attribute(Rows().range("step 1", 0, 9).build()).steps.table.is_empty()
    assert attribute(Rows().range("step 1", 0, 9).range("step 2", 9, 20).build()).steps.table["batch"].to_list() == [
        1,
        2,
    ]


def test_operations_and_layers_with_usual_names_are_no_steps() -> None:
    rows = Rows()
    for step in range(4):
        rows.range(f"step {step}", 10 * step, 10 * step + 9, role="operator")
    assert attribute(rows.build()).steps.found_by == ""


def test_batches_of_other_stages_are_steps_only_without_training() -> None:
    rows = Rows().range("Batch validate 0 |step", 0, 20).range("Batch validate 1 |step", 100, 120)
    assert spans(rows) == [(0, 20), (100, 120)]
    assert spans(rows.range("Batch 0 |step", 300, 310)) == [(300, 310)]


def test_overlapping_ranges_of_one_name_are_steps_of_the_outer_one() -> None:
    rows = Rows().range("Batch 0 |step", 0, 100).range("Batch 1 |step", 10, 90, ENGINE).range("Batch 2 |step", 100, 120)
    rows.range("Batch 3 |step", 0, 50, 103).range("Batch 4 |step", 50, 60, 201)
    table = attribute(rows.build()).steps.table
    assert table.select("process", "step", "start", "end", "batch").rows() == [
        (0, 0, 0, 100, 0),
        (0, 1, 100, 120, 2),
        (1, 0, 50, 60, 4),
    ]


def test_text_of_a_key_range_is_no_pattern() -> None:
    """Only `#` stands for a number; the whole text counts."""
    rows = Rows().range("a.b 1", 0, 9).range("axb 2", 10, 19).range("a.b 33", 20, 29).range("a.b x", 30, 39)
    assert spans(rows.range("a.b 4 more", 40, 49), step_range="a.b #") == [(0, 9), (20, 29)]


def table_of(*steps: tuple[str | None, int]) -> pl.DataFrame:
    """Steps of a kind and a length."""
    schema = {"kind": pl.String, "start": pl.Int64, "end": pl.Int64, "warmup": pl.Boolean}
    return pl.DataFrame([(kind, 7, 7 + length, False) for kind, length in steps], schema=schema, orient="row")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("a", 1), ("b", 9), ("a", 4)], [("a", 2, 2), ("b", 1, 9)]),
        ([("a", 1), ("b", 9), ("a", 4), ("b", 3)], [("b", 2, 6), ("a", 2, 2)]),
        ([("b", 5), ("a", 5)], [("a", 1, 5), ("b", 1, 5)]),
        ([(None, 5), ("a", 5), (None, 4)], [(None, 2, 4), ("a", 1, 5)]),
        ([], []),
    ],
)
def test_kinds_are_in_order_of_their_number_then_their_time(steps: list[Any], expected: list[Any]) -> None:
    table = table_of(*steps)
    assert kinds_of(table).rows() == expected
    main = [step for step in steps if step[0] == expected[0][0]] if expected else []
    assert [(kind, end - start) for kind, start, end, _ in of_main_kind(table).iter_rows()] == main


def test_without_steady_steps_those_of_usual_length_count() -> None:
    """Up to 1.5 times the median of the later half."""
    table = table_of(*[(None, length) for length in (900, 150, 151, 100, 100, 100)]).with_columns(warmup=True)
    assert steady_steps(table).select(pl.col("end") - 7)["end"].to_list() == [150, 100, 100, 100]
    assert steady_steps(table.with_columns(warmup=pl.int_range(pl.len()) < 5)).height == 1
    rows = table.select("kind", "warmup", host_ns=pl.col("end") - 7)
    assert steady_steps(rows)["host_ns"].to_list() == [150, 100, 100, 100]


def test_processes_that_fetch_and_train_are_no_workers() -> None:
    """A process in which data is fetched on a thread, and layers run in other ranges."""
    rows = training("Batch {} |step", "Net |fwd")
    rows.range("Data Worker 0 |data", 0, 50, ENGINE).range("Data Worker 1 |data", 0, 50, 201).range("x", 60, 70, 201)
    rows.range("Data Worker 2 |data", 0, 50, 301).range("Net |fwd", 60, 70, 301).range("Data |data", 0, 9, 401)
    workers = summarize(attribute(rows.build()))
    assert workers["workers"] == {"processes": 1, "fetches": 1, "host_ns": 50}


@pytest.mark.parametrize(
    ("others", "steps"),
    [
        ([], 4),
        ([(-10, 0)], 0),
        ([(-10, 1)], 4),
        ([(100, 110)], 0),
        ([(-10, 500)], 4),
        ([(5, 6)], 4),
        ([(-10, 0), (5, 6)], 0),
    ],
)
def test_steps_in_a_warm_up_are_none_beside_other_ranges(others: list[tuple[int, int]], steps: int) -> None:
    """The warm-up lasts from 0 to 100; ranges around or inside are no others, nor are those that reach into it."""
    rows = Rows().range("warm-up", 0, 100)
    for step in range(4):
        rows.range(f"step {step}", 20 * step, 20 * step + 20)
    for start, end in others:
        rows.range("x", start, end, ENGINE)
    assert attribute(rows.build()).steps.table.height == steps
