"""Whether a changed program trains as before."""

from __future__ import annotations

import math
from typing import Any

import pytest

from annot.changes.change import Numbers
from annot.live.request import Result
from annot.trial.training import Training, repeats_losses, same_training

LOSSES = [2.0, 1.6, 1.2, 1.0]


def compared(
    losses: list[float | None], numbers: Numbers = "rounding", tolerance: float = 0.01, **values: Any
) -> Training:
    again = values.pop("again", LOSSES)
    base = Result(losses=values.pop("base", LOSSES), parameters=values.pop("before", "abc"), hashed_steps=4)
    changed = Result(losses=losses, parameters=values.pop("after", "abc"), hashed_steps=values.pop("hashed", 4))
    other = None if again is None else Result(losses=again, parameters=values.pop("repeated", base.parameters))
    random = values.pop("other_random", "")
    losses_of_rounded = values.pop("rounded", None)
    rounded = None if losses_of_rounded is None else Result(losses=losses_of_rounded)
    return same_training(
        base, other, changed, numbers=numbers, tolerance=tolerance, other_random=random, rounded=rounded
    )


def test_equal_losses() -> None:
    assert compared(LOSSES).verdict == "equal"
    assert compared(LOSSES, "same bits", 0.0).text == "same losses and parameters"
    assert compared(LOSSES, again=None, after="").text == "same losses"


@pytest.mark.parametrize(("factor", "verdict"), [(1.009, "rounding"), (1.011, "changed")])
def test_the_tolerance_of_a_loss(factor: float, verdict: str) -> None:
    training = compared([2.0 * factor, 1.6, 1.2, 1.0])
    assert (training.verdict, training.is_same) == (verdict, verdict == "rounding")
    assert training.difference == pytest.approx(factor - 1)


def test_the_first_step_that_differs() -> None:
    training = compared([2.0, 1.6, 1.5, 0.2])
    assert training.verdict == "changed"
    assert training.text.startswith("changes training from step 3 on: losses differ by ")
    assert compared([2.0, 1.6, 1.2, 1.0 + 1e-9], "same bits", 0.0).verdict == "changed"


def test_other_random_numbers_prove_nothing() -> None:
    options: dict[str, Any] = {"numbers": "same bits", "tolerance": 0.0, "other_random": "workers draw others"}
    training = compared([2.2, 1.6, 1.2, 1.0], **options)
    assert (training.verdict, training.text) == ("unknown", "workers draw others, and losses differ by 10%")
    assert compared(LOSSES, **options).verdict == "equal"
    assert compared(LOSSES, after="other", **options).verdict == "changed"
    assert compared([2.0, None, None, None], **options).verdict == "diverged"


def test_a_loss_that_becomes_nan_or_infinite() -> None:
    training = compared([2.0, None, None, None])
    assert (training.verdict, training.text, training.is_same) == (
        "diverged",
        "loss is NaN or infinite from step 2 on",
        False,
    )


def test_a_program_whose_own_loss_is_nan() -> None:
    assert compared([2.0, 1.6, None, None], base=[2.0, 1.6, None, None]).verdict == "equal"
    training = compared([None], base=[None])
    assert (training.verdict, training.is_same) == ("unknown", True)
    assert "no loss" in compared([], base=[]).text
    result = Result(losses=[2.0, None])
    assert repeats_losses(result, result) == "the loss of the program is NaN or infinite from step 2 on"


def test_parameters_of_changes_that_promise_the_same_bits() -> None:
    training = compared(LOSSES, "same bits", 0.0, after="other")
    assert (training.verdict, training.text) == ("changed", "other parameters after step 4, although losses are equal")
    assert compared(LOSSES, "rounding", 0.01, after="other").verdict == "equal"
    assert compared(LOSSES, "same bits", 0.0, after="other", repeated="third").verdict == "equal"
    assert compared(LOSSES, "same bits", 0.0, after="").verdict == "equal"
    assert compared(LOSSES, "same bits", 0.0, after="other", hashed=10).text == "same losses"


def test_a_program_that_does_not_repeat_its_losses() -> None:
    again = [loss * 1.01 for loss in LOSSES]
    within = compared([loss * 1.02 for loss in LOSSES], tolerance=1e-5, again=again)
    assert (within.verdict, within.text) == ("rounding", "losses differ by 2%, as in two runs without it")
    beyond = compared([loss * 1.04 for loss in LOSSES], tolerance=1e-5, again=again)
    assert beyond.verdict == "changed"
    assert compared([9.0] * 4, again=[3.0, 1.0, 0.5, 0.1]).verdict == "unknown"


def test_too_few_steps_with_a_loss() -> None:
    training = compared(LOSSES[:3])
    assert (training.verdict, training.text) == ("changed", "3 steps instead of 4")


def test_losses_around_0_are_relative_to_a_mean_loss() -> None:
    training = compared([0.1, -0.0000001, -0.1], base=[0.1, 0.0, -0.1], again=None)
    assert training.verdict == "rounding"
    assert compared([0.0, 0.0], base=[0.0, 0.0], again=None).verdict == "equal"
    assert compared([0.0, 0.1], base=[0.0, 0.0], again=None).verdict == "changed"


def test_how_far_a_program_repeats_its_losses() -> None:
    base = Result(losses=list(LOSSES))
    assert repeats_losses(base, base) == "two runs have the same losses"
    for factor, proves in ((1.09, False), (1.3, True)):
        text = repeats_losses(base, Result(losses=[loss * factor for loss in LOSSES]))
        assert text.startswith("losses of two runs with the same seed differ by ")
        assert ("too much to compare changes by" in text) is proves
    assert "no loss was seen" in repeats_losses(Result(), Result())
    assert not math.isnan(base.losses[0] or 0.0)


@pytest.mark.parametrize(("factor", "verdict"), [(1.19, "rounding"), (1.21, "changed")])
def test_rounding_that_grows(factor: float, verdict: str) -> None:
    """Ten times what rounding of parameters does is rounding, unless the change promises the same bits."""
    rounded = [2.0, 1.6, 1.2, 1.02]
    training = compared([2.0, 1.6, 1.2, factor], rounded=rounded)
    assert training.verdict == verdict
    assert compared([2.0, 1.6, 1.2, factor], "same bits", 0.0, rounded=rounded).verdict == "changed"


@pytest.mark.parametrize(("rounded", "verdict"), [(1.029, "rounding"), (1.031, "unknown"), (math.inf, "unknown")])
def test_a_program_that_multiplies_rounding(rounded: float, verdict: str) -> None:
    """Rounding that may change losses by more than 30 % explains each loss up to there, and none beyond it."""
    losses = [2.0 * rounded if math.isfinite(rounded) else None, 1.6, 1.2, 1.0]
    training = compared([2.0, 1.6, 1.2, 1.3], rounded=losses)
    assert (training.verdict, "rounding of parameters" in training.text) == (verdict, True)
    assert compared([2.0, 1.6, 1.2, 1.004], rounded=losses).verdict == "rounding"
    assert compared(LOSSES, rounded=losses).verdict == "equal"
    assert compared([2.0, 1.6, 1.2, 9.0], rounded=losses).verdict == ("unknown" if losses[0] is None else "changed")
