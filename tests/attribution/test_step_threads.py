"""Steps whose ranges lie on several threads, as in a pool, and steps that differ: the same as on a single thread."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import Rows

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.steps import Steps

TRAINING = ("Data |data", "Net |fwd", "Net |bwd", "Optimizer SGD |opt")
PLAIN = ("load", "compute", "compute", "write")
SPANS = list[tuple[int, int, int]]


def steps_of(rows: Rows, **options: str) -> Steps:
    return attribute(rows.build(), **options).steps  # type: ignore[arg-type]


def spans(rows: Rows, **options: str) -> SPANS:
    return steps_of(rows, **options).table.select("process", "start", "end").rows()


def add_loop(rows: Rows, texts: tuple[str, ...], threads: list[int], lengths: list[int], start: int = 0) -> int:
    """Add steps whose ranges follow each other, the next one on the next of the threads. Return their end."""
    for place in range(len(threads)):
        text, length = texts[place % len(texts)], lengths[place % len(lengths)]
        rows.range(text, start, start + length, threads[place])
        start += length + place % 3
    return start


def threads_of(process: int, count: int, seed: int | None = None) -> list[int]:
    """The threads of some ranges: the same, or random ones of a pool of one to four."""
    chance = random.Random(seed)
    size = 1 if seed is None else chance.randint(1, 4)
    return [100 * process + chance.randint(1, size) for _ in range(count)]


loops = st.sampled_from([TRAINING, PLAIN, TRAINING[1:], ("step of a loop", "rest")])
seeds = st.integers(0, 10**6)
durations = st.lists(st.integers(1, 30), min_size=4, max_size=7)


@given(loops, seeds, durations, st.integers(3, 10))
@settings(max_examples=examples(150), deadline=None)
def test_a_pool_has_the_steps_of_a_single_thread(
    texts: tuple[str, ...], seed: int, lengths: list[int], count: int
) -> None:
    """Also if a thread has ranges of the same step several times in a row, or never those of one kind."""
    alone, pool = Rows(), Rows()
    add_loop(alone, texts, threads_of(1, count * len(texts)), lengths)
    add_loop(pool, texts, threads_of(1, count * len(texts), seed), lengths)
    assert len(spans(alone)) == count
    assert spans(pool) == spans(alone)


@given(loops, seeds, durations, st.integers(3, 10))
@settings(max_examples=examples(100), deadline=None)
def test_inside_one_long_range(texts: tuple[str, ...], seed: int, lengths: list[int], count: int) -> None:
    """The range around the loop is on a thread that waits for the pool."""
    alone, pool = Rows(), Rows()
    end = add_loop(alone, texts, threads_of(1, count * len(texts)), lengths, 10)
    alone.range("train", 0, end + 10, 101)
    add_loop(pool, texts, threads_of(1, count * len(texts), seed), lengths, 10)
    pool.range("train", 0, end + 10, 109)
    assert spans(pool) == spans(alone)


@given(seeds, seeds, durations, st.integers(3, 10), st.integers(5, 30), st.integers(0, 20))
@example(seed=0, other=16262, lengths=[12, 1, 1, 1], count=3, fetch=5, shift=0)  # the loader repeats with the steps
@example(seed=0, other=150500, lengths=[1, 1, 1, 1], count=3, fetch=5, shift=0)  # one thread has all optimizer ranges
@settings(max_examples=examples(100), deadline=None)
def test_threads_that_load_data_and_other_processes(
    seed: int, other: int, lengths: list[int], count: int, fetch: int, shift: int
) -> None:
    """Threads that prepare batches at any time are no part of the steps, and each process has its own steps."""
    expected: SPANS = []
    rows = Rows()
    for process, of_process in ((1, seed), (2, other)):
        alone = Rows()
        end = add_loop(alone, TRAINING, threads_of(process, 4 * count), lengths)
        expected += [(process - 1, begin, stop) for _, begin, stop in spans(alone)]
        add_loop(rows, TRAINING, threads_of(process, 4 * count, of_process), lengths)
        for start in range(shift, end, fetch + 2):
            rows.range("load batch", start, start + fetch, 100 * process + 7)
    assert spans(rows) == expected


def test_a_pool_whose_ranges_overlap() -> None:
    """The forward of one layer ends after the backward of another began. Each optimizer ends a step."""
    rows, expected = Rows(), []
    for step in range(8):
        zero, late = 100 * step, 25 if step % 3 == 0 else 0
        rows.range("Data |data", zero, zero + 10, 101)
        rows.range("Net |fwd", zero + 10, zero + 40 + late, 102 + step % 2)
        rows.range("Net |bwd", zero + 41, zero + 60, 103 - step % 2)
        rows.range("Optimizer SGD |opt", zero + 61, zero + 90, 103 - step % 2)
        expected.append((0, zero, zero + 100 if step < 7 else zero + 90))
    assert spans(rows) == expected


def micro_batches(counts: list[int], *, validate: bool = False) -> tuple[Rows, SPANS]:
    """Steps that accumulate the gradients of several batches, each with its wait; a validation after the second one."""
    rows, expected, time = Rows(), SPANS(), 0
    for step, count in enumerate(counts):
        begin = time
        for _ in range(count):
            for text in TRAINING[:3]:
                rows.range(text, time, time + 10)
                time += 10
        rows.range("Optimizer SGD |opt", time, time + 5)
        time += 5
        validates = validate and step == 1
        goes_on = not validates and step + 1 < len(counts)
        expected.append((0, begin, time + (3 if goes_on else 0)))
        time += 3
        for text in TRAINING[:2] if validates else ():
            rows.range(text, time, time + 10)
            time += 12
    return rows, expected


@pytest.mark.parametrize("counts", [[3, 2, 5, 4, 1, 2], [2, 2, 2, 2], [4, 4, 4, 3], [5, 1, 4, 2, 3, 1, 5]])
@pytest.mark.parametrize("validate", [False, True])
def test_gradient_accumulation(counts: list[int], validate: bool) -> None:
    """The number of batches in a step may differ. A validation is no part of a step."""
    rows, expected = micro_batches(counts, validate=validate)
    assert spans(rows) == expected


def test_optimizers_that_alternate_make_one_step() -> None:
    """A GAN whose generator takes a different number of layers in each step."""
    rows, expected = Rows(), []
    for step in range(6):
        zero = 1000 * step
        rows.range("Data |data", zero, zero + 10)
        for layer in range((1, 3, 2, 5, 4, 6)[step]):
            rows.range(f"part{layer} Linear |fwd", zero + 20 + 10 * layer, zero + 30 + 10 * layer)
        rows.range("Net |bwd", zero + 100, zero + 200).range("Optimizer Adam params=5 |opt", zero + 210, zero + 220)
        rows.range("Net |fwd", zero + 300, zero + 310).range("Net |bwd", zero + 320, zero + 330)
        rows.range("Optimizer Adam params=7 |opt", zero + 340, zero + 350)
        expected.append((0, zero, zero + 1000 if step < 5 else zero + 350))
    assert spans(rows) == expected


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_recording_that_starts_in_the_middle_of_a_step(missing: int) -> None:
    """Without the wait of the first step, that step counts; without its forward, steps begin with the next one."""
    rows = Rows()
    for step in range(5):
        for place, text in enumerate(TRAINING):
            if step or place >= missing:
                rows.range(text, 100 * step + 20 * place, 100 * step + 20 * place + 20)
    first = {0: [(0, 0, 100)], 1: [(0, 20, 100)]}.get(missing, [])
    assert spans(rows) == [*first, *[(0, 100 * step, 100 * step + (100 if step < 4 else 80)) for step in range(1, 5)]]


def test_the_last_step_before_another_optimizer_ends_with_its_own() -> None:
    """The next step begins at once, but it is not one of the steps that repeat."""
    rows = Rows()
    for step, layers in enumerate((1, 3, 2, 5, 4)):
        for layer in range(layers):
            rows.range(f"part{layer} Linear |fwd", 300 * step + 20 * layer, 300 * step + 20 * layer + 20)
        rows.range("Net |bwd", 300 * step + 100, 300 * step + 200)
        rows.range(f"Optimizer {'SGD' if step < 4 else 'Adam'} |opt", 300 * step + 200, 300 * step + 290)
    assert spans(rows) == [(0, 300 * step, 300 * step + (300 if step < 3 else 290)) for step in range(4)]


def test_without_waits_a_step_does_not_begin_with_the_optimizer() -> None:
    rows = Rows().range("Optimizer SGD |opt", 60, 80)
    for step in range(1, 6):
        for place, text in enumerate(TRAINING[1:]):
            rows.range(text, 100 * step + 20 * place, 100 * step + 20 * place + 20)
    assert spans(rows) == [(0, 100 * step, 100 * step + (100 if step < 5 else 60)) for step in range(1, 6)]


def test_no_row_lasts_longer_than_the_steps() -> None:
    """Epochs contain steps; of a range that starts in a step and goes on, only the time in selected steps counts."""
    rows = Rows()
    for step in range(6):
        rows.range(f"Batch {step} |step", 100 * step + 10, 100 * step + 60)
        rows.range("Data |data", 100 * step, 100 * step + 5)
    rows.range("Epoch 1 |epoch", 301, 590, thread=102).range("epoch of a program", 302, 590, thread=103)
    found = by_layer(attribute(rows.build(), steps=slice(0, 5)))
    times = dict(found.select("layer", "host_ns").iter_rows())
    assert times == {"(batch)": 250, "(data)": 25, "epoch of a program": 58 + 60, "(unattributed)": 3 * 5}


def test_the_waits_of_a_validation_belong_to_it() -> None:
    """The wait of each batch lies in the batch, as in a TensorFlow graph. The step after a validation begins late."""
    rows = Rows()
    for step in range(6):
        zero = 1000 * step
        rows.range(f"Batch {step} |step", zero, zero + 100).range("Data |data", zero + 10, zero + 20, thread=102)
        rows.range(f"Batch validate {step} |step", zero + 300, zero + 500)
        rows.range("Data |data", zero + 310, zero + 320, thread=102).range(
            "Net |fwd", zero + 330, zero + 480, thread=103
        )
    found = by_layer(attribute(rows.build(), steps=slice(0, 6)))
    assert found.select("layer", "calls", "host_ns").rows() == [("(batch)", 6, 600), ("(data)", 6, 60)]
