"""Sequences of ranges that repeat, and which of them are steps."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from tables import ENGINE, MAIN, Rows

from annot.attribution import step_sequences
from annot.attribution.attribute import attribute
from annot.attribution.range_trees import Forest
from annot.attribution.step_sequences import is_update, largest_repetitions, phase_ranges

PHASES = {"f": "forward", "b": "backward", "o": "optimizer", "w": "data", "x": "other", "y": "other", "z": "other"}
TEXTS = {"f": "Net |fwd", "b": "Net |bwd", "o": "SGD |opt", "w": "Data |data", "x": "x", "y": "y", "z": "z"}


def occurrences(sequence: str) -> list[str]:
    """The occurrences of the first pattern, in brackets."""
    codes, phases = [ord(element) for element in sequence], [PHASES[element] for element in sequence]
    repeated = next(largest_repetitions(codes, phases), None)
    return [] if repeated is None else [sequence[i:j] for i, j in zip(repeated.starts, repeated.ends, strict=True)]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("fbo" * 3, ["fbo"] * 3),
        ("fbo" * 2, []),
        ("bofbofbofbo", ["fbo"] * 3),  # begins in a backward pass
        ("ofbofbofbofb", ["fbo"] * 3),  # begins with the optimizer of a step
        ("oofboofboofboofb", ["fboo"] * 3),
        ("obfobfobfobf", ["obf"] * 4),  # an optimizer after a forward pass, as zero_grad
        ("bfbfbfbf", ["bf"] * 4),  # no optimizer ends a step
        ("boboboboboxbo", ["bo"] * 6),
        ("fbwofbwofbwofbwo", ["wofb"] * 3),  # begins with the wait
        ("fbowwfbowwfbowwfbo", ["fbo", "wwfbo", "wwfbo", "wwfbo"]),  # the loop lacks the first wait
        ("bowwfbowwfbowwfbo", ["wwfbo"] * 3),
        ("xfboyfbofbofbozfbo", ["fbo"] * 5),
        ("wwwww", ["w"] * 5),
        ("xyzxyzxyzwwwwwwwwww", ["xyz"] * 3),  # most besides waits for data
        ("xyxyxyxyxyfbofbofbo", ["fbo"] * 3),  # most of the optimizer
        ("fffffo", ["f"] * 5),
        ("xyxyxyxyxyxyx", ["xy"] * 6),
    ],
)
def test_pattern_and_where_it_occurs(sequence: str, expected: list[str]) -> None:
    assert occurrences(sequence) == expected


@given(st.text("fbowx", max_size=30))
@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
def test_occurrences_are_equal_apart_and_cover_most_updates(sequence: str) -> None:
    """The first one may lack waits. A pattern comes three times in a row, and starts with a wait if it has one."""
    codes, phases = [ord(element) for element in sequence], [PHASES[element] for element in sequence]
    patterns = {
        sequence[i : i + period]
        for period in range(1, len(sequence) // 3 + 1)
        for i in range(len(sequence) - 3 * period + 1)
        if sequence[i : i + period] * 3 == sequence[i : i + 3 * period]
    }
    repetitions = list(largest_repetitions(codes, phases))
    assert bool(repetitions) == bool(patterns)
    for repeated in repetitions:
        texts = [sequence[i:j] for i, j in zip(repeated.starts, repeated.ends, strict=True)]
        pattern = texts[-1]
        assert len(pattern) == repeated.period
        assert any(pattern in turned + turned and len(turned) == len(pattern) for turned in patterns)
        assert "w" not in pattern or pattern[0] == "w"
        lacking = pattern[len(pattern) - len(texts[0]) :]
        assert texts[0] == lacking
        assert repeated.starts[0] == 0 or texts[0] == pattern
        assert set(pattern[: len(pattern) - len(lacking)]) <= {"w"}
        assert set(texts[1:]) <= {pattern}
        assert all(end <= start for end, start in zip(repeated.ends, repeated.starts[1:], strict=False))
        between = [sequence[j:i] for j, i in zip(repeated.ends, [*repeated.starts[1:], len(sequence)], strict=True)]
        assert not any(pattern in gap for gap in between)
    if repetitions:
        most = max(sequence.count(pattern) * pattern.count("o") for pattern in patterns)
        first = repetitions[0]
        updates = sum(sequence[i:j].count("o") for i, j in zip(first.starts, first.ends, strict=True))
        assert updates >= most - max(pattern.count("o") for pattern in patterns)


def forest_of(rows: Rows) -> Forest:
    return attribute(rows.build()).forest


def loop(*sequences: str, length: int = 10, gap: int = 0) -> Rows:
    """Steps of ranges that follow each other on one thread; a gap after each step."""
    rows, now = Rows(), 0
    for sequence in sequences:
        for element in sequence:
            rows.range(TEXTS[element], now, now + length)
            now += length
        now += gap
    return rows


def spans(rows: Rows) -> list[tuple[int, int]]:
    return attribute(rows.build()).steps.table.select("start", "end").rows()


def test_outermost_ranges_of_each_phase() -> None:
    """A layer in a layer is part of it, a wait counts in a layer too, and batches and plain ranges have no phase."""
    rows = Rows().range("Batch 0 |step", 0, 100).range("Net |fwd", 1, 50).range("a Linear |fwd", 2, 20)
    rows.range("Data |data", 5, 6).range("Net |bwd", 30, 40).range("x", 51, 60).range("SGD |opt", 61, 70)
    rows.range("Data |data", 71, 72, 201).range("step Linear |fwd", 90, 120, kind="start", domain="annot")
    ranges = phase_ranges(forest_of(rows)).sort("start")
    assert ranges.select("process_code", "phase", "start", "host_ns").rows() == [
        (0, "forward", 1, 49), (0, "data", 5, 1), (0, "optimizer", 61, 9), (1, "data", 71, 1), (0, "forward", 90, 30),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "updates"),
    [
        ("SGD |opt", True), ("Optimizer.step#AdamW.step", True), ("Optimizer.zero_grad#AdamW.zero_grad", False),
        ("zero_grad SGD |opt", False), ("zerograd SGD |opt", False), ("lr_scheduler StepLR |opt", False),
        ("clip_grad_norm_ |opt", False), ("unscale_ GradScaler |opt", False), ("update GradScaler |opt", False),
        ("GradScaler |opt", True), ("optimizer", True), ("Net |fwd", False), ("x", False),
    ],
)  # fmt: skip
def test_ranges_that_update_parameters(text: str, updates: bool) -> None:
    assert is_update(forest_of(Rows().range(text, 0, 9)).labels).to_list() == [updates]


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        # ranges differ from step to step: a step lasts from its first range to the optimizer
        (("fbo", "fbfbo", "fbo", "ffbo"), [(0, 30), (30, 80), (80, 110), (110, 150)]),
        (
            ("wfbo", "fwfbo", "wfbo", "wfbfbo"),
            [(0, 40), (50, 90), (90, 130), (130, 190)],
        ),  # a validation before the wait
        (("fbo", "xfbfbo", "fbo", "ffbo"), [(0, 40), (40, 90), (90, 120), (120, 160)]),
        (("ofbo", "fbfbo", "fbo", "ffbo"), [(10, 40), (40, 90), (90, 120), (120, 160)]),  # begins with the optimizer
        (("fbo", "fo", "fbo", "bo", "ffbo", "fbfbo"), [(0, 50), (50, 100), (100, 140), (140, 190)]),
        (("fbo", "fbfbo", "fbo", "ffb"), [(0, 30), (30, 80), (80, 110)]),  # the last step is cut
        (("fbo", "fbfbo", "f", "b"), []),
        (("wwfbo", "wwfbfbo", "wwfbo", "wwffbo"), [(10, 50), (60, 120), (130, 170), (180, 230)]),  # from the last wait
    ],
)
def test_steps_that_end_with_the_optimizer(sequences: Sequence[str], expected: list[tuple[int, int]]) -> None:
    assert spans(loop(*sequences)) == expected


def test_optimizers_that_take_turns_are_one_step() -> None:
    """A generator and a discriminator; after the last one nothing goes on."""
    rows, now = Rows(), 0
    for turn in range(8):
        for text in ("Net |fwd", *["Net |bwd"] * (1 + turn // 3), f"{('SGD', 'Adam')[turn % 2]} |opt"):
            rows.range(text, now, now + 10)
            now += 10
    assert spans(rows) == [(0, 60), (60, 130), (130, 210), (210, 310)]


def test_time_between_steps_belongs_to_none() -> None:
    """A step that does not begin with its first range, such as after a validation, ends the one before it early."""
    assert spans(loop("fbo", "fbo", "fbo", gap=5)) == [(0, 35), (35, 70), (70, 100)]
    assert spans(loop("fbo", "fbo", "fbo", "y", "fbo")) == [(0, 30), (30, 60), (60, 90), (100, 130)]


def test_the_longest_range_is_searched_for_steps_inside() -> None:
    """Level by level, and only the ranges inside, not those beside it on the thread."""
    rows = loop("xyz", "xyz", "xyz", "xyz").range("train", 0, 125).range("main", 0, 130).range("rest", 140, 150)
    assert spans(rows) == [(0, 30), (30, 60), (60, 90), (90, 120)]


@pytest.mark.parametrize(("around", "steps"), [(15, 4), (16, 0)])
def test_the_search_goes_down_sixteen_levels(around: int, steps: int) -> None:
    rows = loop("xyz", "xyz", "xyz", "xyz")
    for level in range(around):
        rows.range("o" * (1 + level), -1 - level, 121 + level)
    assert len(spans(rows)) == steps


def test_patterns_in_two_ranges_of_one_label_end_in_each() -> None:
    """A step lasts to the next one only in the same range."""
    rows = loop("xy", "xy", "xy", "xy", gap=5).range("fit", 0, 48).range("fit", 48, 99)
    assert spans(rows) == [(0, 25), (25, 45), (50, 75), (75, 95)]


@pytest.mark.parametrize("texts", [("epoch", "epoch x"), ("a Linear |fwd", "aten::mm"), ("Data |data",)])
def test_epochs_layers_and_waits_alone_are_no_steps(texts: Sequence[str]) -> None:
    """Waits are steps only where no optimizer has ranges."""
    rows = Rows()
    for place in range(12):
        text = texts[place % len(texts)]
        rows.range(text, 10 * place, 10 * place + 9, role="operator" if "::" in text else None)
    if "Data |data" in texts:
        assert len(spans(rows)) == 12
        rows.range("SGD |opt", 200, 205)
    assert spans(rows) == []


@pytest.mark.parametrize(("rest", "steps"), [(90, 3), (91, 0)])
def test_steps_cover_half_of_the_time(rest: int, steps: int) -> None:
    assert len(spans(loop("xyz", "xyz", "xyz").range("rest", 500, 500 + rest))) == steps


def test_the_busiest_thread_has_the_steps() -> None:
    """Waits and backward passes do not count, unless all threads have nothing else."""
    rows = Rows()
    for step in range(4):
        at = 100 * step
        rows.range("x", at, at + 30).range("Net |bwd", at, at + 90, ENGINE).range("Data |data", at, at + 95, 103)
    assert spans(rows) == [(at, at + 100) for at in (0, 100, 200)] + [(300, 330)]
    waits = Rows()
    for step in range(4):
        at = 100 * step
        waits.range("Data |data", at, at + 30).range("Data |data", at, at + 40, 103)
    assert spans(waits)[-1] == (300, 340)


segments = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=7)


def ranges_of(rows: list[tuple[int, int]], thread: int = 0) -> pl.DataFrame:
    table = [(thread, start, start + length) for start, length in sorted(rows)]
    return pl.DataFrame(table, schema={"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64}, orient="row")


@given(segments, segments)
@settings(max_examples=examples(500), deadline=None, database=None, derandomize=True)
def test_overlaps_by_brute_force(rows: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    """Ranges that overlap others without being inside one, and ranges that overlap none."""
    others = [(start, length + 1) for start, length in others]
    overlapping = apart = 0
    for start, length in rows:
        end = start + length
        inside = any(at <= start and at + of >= end for at, of in others)
        overlaps = any((at <= start < at + of) or (start <= at < end) for at, of in others)
        overlapping += overlaps and not inside
        apart += not overlaps and not inside
    assert step_sequences._overlaps(ranges_of(rows), ranges_of(others)) == (overlapping, apart)


@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(0, 40), max_size=8, unique=True))
@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
def test_instants_in_steps_by_brute_force(times: list[int], bounds: list[int]) -> None:
    """The start of a step does not lie in it, nor does its end."""
    bounds = sorted(bounds)[: len(bounds) // 2 * 2]
    steps = [(start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    count = step_sequences._count_inside(ranges_of(steps), pl.Series(sorted(times), dtype=pl.Int64))
    assert count == sum(start < time < start + length for time in times for start, length in steps)


def test_threads_that_prepare_data_while_others_train() -> None:
    """They have no range of a phase but data, and one of their ranges overlaps one of a phase."""
    rows = Rows().range("Net |fwd", 0, 10).range("Net |bwd", 10, 20, ENGINE).range("SGD |opt", 30, 40)
    rows.range("beside", 5, 8, 103).range("alone", 50, 60, 103).range("between", 20, 30, 104).range("late", 50, 60, 105)
    rows.range("Data |data", 35, 45, 106).range("Net |fwd", 35, 45, 107).range("across", 25, 31, 108)
    forest = forest_of(rows)
    top = step_sequences._rows(forest, (forest.tree["parent"] == -1).arg_true())
    threads = step_sequences._threads_beside_training(top, phase_ranges(forest))
    assert sorted(forest.threads.table["thread"].gather(threads)) == [103, 106, 108]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ([("z", 0, 5, 104)], "xyxyxy"),  # as many overlap as not
        ([("z", 12, 28, 104), ("z", 52, 68, 104), ("z", 75, 79, 104)], "xyxyxy"),
        ([("z", 100, 105, 104)], "xyxyxyz"),
        ([("z", 0, 10, 104)], "xyxyxy"),  # at the same time
    ],
)
def test_threads_of_a_pool_take_turns(beside: list[tuple[str, int, int, int]], expected: str) -> None:
    """Threads whose ranges mostly overlap those of the others are left out; equal numbers stay."""
    rows = Rows()
    for place, text in enumerate("xyxyxy"):
        rows.range(text, 10 * place, 10 * place + 10, MAIN if place % 3 else ENGINE)
    for text, start, end, thread in beside:
        rows.range(text, start, end, thread)
    forest = forest_of(rows)
    top = step_sequences._rows(forest, (forest.tree["parent"] == -1).arg_true())
    taken, inside = step_sequences._taking_turns(top)
    assert "".join(forest.labels["text"].gather(taken["label"])) == expected
    assert [forest.labels["text"][label] for label in inside["label"]] == ["z"] * (beside[0][1] == 0)


@pytest.mark.parametrize(("threads", "taken"), [(31, 31), (32, 32), (33, 32)])
def test_at_most_thirty_two_threads_take_turns(threads: int, taken: int) -> None:
    """Those with most time in their ranges."""
    rows = Rows()
    for place in range(threads):
        rows.range("x", 100 * place, 100 * place + 10 + place, 101 + place)
    forest = forest_of(rows)
    top = step_sequences._rows(forest, (forest.tree["parent"] == -1).arg_true())
    assert step_sequences._taking_turns(top)[0]["start"].to_list() == [
        100 * place for place in range(threads - taken, threads)
    ]
