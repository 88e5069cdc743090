"""Steps: found by batch ranges, by names that count, by a key range, by a pattern; chosen; warm-up told apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, MAIN, Rows

from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.step_sequences import largest_repetitions
from annot.attribution.steps import step_slice
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
    assert attribute(Rows().range("x", 0, 1).build()).ranges()["thread"].to_list() == [MAIN]


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
