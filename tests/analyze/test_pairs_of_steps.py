"""What steps of two runs have in common: chance against Fisher's exact test, and both sides of each limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import Rows

from annot.analyze.comparison.comparable import comparability
from annot.analyze.comparison.digest import Digest, digest
from annot.analyze.comparison.pairs import LEVEL, differ_by_step, is_gone, is_rarer, usual
from annot.attribution.attribute import attribute
from annot.profile import Profile

stats = pytest.importorskip("scipy.stats", reason="scipy is in the dev group")


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_rarer_is_fishers_exact_test(of: int, of_others: int, data: st.DataObject) -> None:
    steps, others = data.draw(st.integers(0, of)), data.draw(st.integers(0, of_others))
    table = [[steps, of - steps], [others, of_others - others]]
    chance = stats.fisher_exact(table, alternative="less").pvalue
    assert is_rarer(steps, of, others, of_others) == (chance < LEVEL and steps / of < others / of_others)


def test_what_every_step_has_is_missed_at_once() -> None:
    assert is_gone(1, of=1, others=1)
    assert is_gone(5, of=5, others=1)
    assert not is_gone(4, of=5, others=5)
    assert not is_gone(5, of=40, others=40)  # 2.7 %
    assert is_gone(7, of=40, others=40)  # 0.6 %


def test_usual_values_leave_out_a_tenth_on_both_sides() -> None:
    assert usual([1.0] * 9 + [50.0]) == (1.0, 1.0)
    assert usual([1.0] * 8 + [50.0]) == (1.0, 50.0)
    assert usual([3.0]) == (3.0, 3.0)


def test_values_that_vary_need_steps() -> None:
    assert differ_by_step([2.0], [1.0])
    assert not differ_by_step([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0])  # 2 of 70 ways
    assert differ_by_step([1.0, 2.0, 3.0, 4.0, 4.5], [5.0, 6.0, 7.0, 8.0, 9.0])  # 2 of 252
    assert not differ_by_step([1.0] * 5 + [6.0] * 2, [5.0, 6.0, 7.0, 8.0, 9.0])
    assert not differ_by_step([1.0] * 30 + [7.0], [1.0] * 3)


def _run(steps: int, layers: dict[str, tuple[int, str, int]]) -> Digest:
    """Steps with layers: how many steps have it, its inputs, and the length of its kernel."""
    rows, at = Rows(), 0
    for step in range(steps):
        rows.range(f"Batch {step} |step", at, at + 900)
        for number, (name, (of, inputs, length)) in enumerate(layers.items()):
            if step < of:
                begin = at + 20 * number + 1
                rows.range(f"{name} Linear {inputs} |fwd", begin, begin + 19)
                rows.kernel(begin + 5, (10_000 * step + 1000 * number, 10_000 * step + 1000 * number + length))
        at += 1000
    return digest(attribute(rows.build()))


BASE = {"a": (99, "[8,8]f32", 900), "b": (99, "[8,8]f32", 800)}


@pytest.mark.parametrize(
    ("steps", "other", "kinds"),
    [
        (12, BASE, []),
        (12, BASE | {"c": (99, "[8,8]f32", 1)}, ["layers"]),  # whatever its share
        (12, BASE | {"c": (1, "[8,8]f32", 900)}, []),  # such as a validation
        (12, BASE | {"b": (9, "[8,8]f32", 800)}, []),  # 11 %
        (12, BASE | {"b": (6, "[8,8]f32", 800)}, ["layers"]),  # 0.7 %
        (12, BASE | {"b": (99, "[8,9]f32", 800)}, ["shapes"]),
        (12, BASE | {"b": (99, "[8,8]bf16", 1)}, ["dtypes"]),
        (12, BASE | {"b": (99, "[8,8]f32 out=9", 1)}, []),  # only one run has the parameter
        (1, BASE | {"b": (99, "[4,8]f32", 800)}, ["shapes"]),
    ],
)  # fmt: skip
def test_kinds_of_reasons(steps: int, other: dict[str, tuple[int, str, int]], kinds: list[str]) -> None:
    a, b = _run(12, BASE), _run(steps, other)
    for one, two in ((a, b), (b, a)):
        assert [reason.kind for reason in comparability([one], [two]).reasons] == kinds


def test_a_layer_of_few_steps_is_a_note() -> None:
    result = comparability([_run(12, BASE)], [_run(12, BASE | {"val": (2, "[8,8]f32", 900)})])
    assert not result.reasons
    assert any("only B runs val forward" in note for note in result.notes)


def test_sides_need_runs() -> None:
    with pytest.raises(ValueError, match="needs runs on both sides, got 1 and 0"):
        comparability([_run(2, BASE)], [])


def test_what_profiles_do_not_tell() -> None:
    bare = digest(attribute(Rows().kernel(None, (0, 10), name="gemm").build()))
    assert [text.partition(" not ")[0] for text in comparability([bare], [bare]).reservations] == ["A and B do"] * 3 + [
        "neither run has steps, so whole runs are compared"
    ]
    assert not any("shapes" in text for text in comparability([_run(3, BASE)], [_run(3, BASE)]).reservations)


def _varied(inputs: list[str], kernels: list[int], calls: int = 0) -> Digest:
    """Steps with a layer, each with its inputs and number of kernels. `calls` launches have lost their kernel."""
    rows = Rows()
    for step, (text, number) in enumerate(zip(inputs, kernels, strict=True)):
        at = 1000 * step
        rows.range(f"Batch {step} |step", at, at + 900)
        rows.range(f"fc Linear {text} |fwd", at + 1, at + 800)
        for kernel in range(number):
            rows.kernel(at + 5 + kernel, (at + 10 * kernel + 10, at + 10 * kernel + 15))
    profile = rows.build()
    if calls:
        profile = Profile.build(profile.meta, ranges=profile.ranges, launches=profile.launches,
                                kernels=profile.kernels.head(-calls))  # fmt: skip
    return digest(attribute(profile))


def _kinds(a: Digest, b: Digest) -> list[str]:
    kinds = [[reason.kind for reason in comparability([one], [two]).reasons] for one, two in ((a, b), (b, a))]
    assert kinds[0] == kinds[1]
    return kinds[0]


def test_numbers_of_kernels_that_vary_in_one_run_are_a_lost_recording() -> None:
    even, uneven = _varied(["[8,8]f32"] * 6, [4] * 6), _varied(["[8,8]f32"] * 6, [3, 5, 3, 5, 3, 5])
    assert _kinds(even, uneven) == ["truncated"]
    assert _kinds(uneven, uneven) == []


def test_what_a_profile_lacks_is_said() -> None:
    whole, lost = _varied(["[8,8]f32"] * 6, [4] * 6), _varied(["[8,8]f32"] * 6, [4] * 6, calls=1)
    (reason,) = comparability([whole], [lost]).reasons
    assert reason.text == "B: The profile lacks GPU activities: 1 of 24 kernel launches has no kernel"


def test_inputs_that_vary_from_step_to_step() -> None:
    """Their sizes are those of the same lengths, and what does not vary is the same."""

    def texts(*lengths: int, width: int = 64) -> Digest:
        return _varied([f"[8,{length},{width}]f32" for length in lengths], [1] * len(lengths))

    base = texts(10, 13, 16, 19, 22, 25)
    assert _kinds(base, texts(11, 14, 17, 20, 23, 27)) == []
    assert _kinds(base, texts(110, 140, 170, 200, 230, 270)) == ["shapes"]
    assert _kinds(texts(10, 13, 16), texts(110, 140, 170)) == []  # 2 of 20 ways: chance
    assert _kinds(base, texts(11, 14, 17, 20, 23, 27, width=63)) == ["shapes"]
