"""Steps of loops as tutorials write them: what an optimizer does beside its updates makes no step and ends none."""

from __future__ import annotations

import pytest
from tables import Rows

from annot.attribution.attribute import attribute
from annot.attribution.summary import summarize

UPDATE = "Optimizer Adam params=8 |opt"
ZERO = "zero_grad Adam |opt"


def _one_after_another(texts: list[str]) -> Rows:
    rows = Rows()
    for number, text in enumerate(texts):
        rows.range(text, 10 * number, 10 * number + 9)
    return rows


def _pass(calls: int) -> list[str]:
    return ["Encoder Encoder |fwd", *["Decoder Decoder |fwd"] * calls, "Backward |bwd"]


@pytest.mark.parametrize(
    "more",
    [
        "lr_scheduler StepLR |opt", "zero_grad Adam |opt", "clip_grad_norm_ |opt", "update GradScaler |opt",
        "unscale_ GradScaler |opt",
    ],
)  # fmt: skip
def test_a_call_per_epoch_makes_no_step_of_the_epoch(more: str) -> None:
    """Four epochs of five steps, each with a validation and a call such as that of a scheduler."""
    step = ["Forward Net |fwd", "Backward |bwd", UPDATE]
    texts = [text for _ in range(4) for text in (*5 * step, "Forward Net |fwd", more)]
    meta = summarize(attribute(_one_after_another(texts).build()))
    assert (meta["steps"], meta["steps_found_by"]) == (20, "the pattern of ranges around each optimizer step")


@pytest.mark.parametrize("first", [[ZERO], []])
@pytest.mark.parametrize("last", [[ZERO], []])
def test_zero_grad_before_or_after_a_step_of_varying_length(first: list[str], last: list[str]) -> None:
    """Ten steps whose decoder runs for sequences of different lengths: the last one counts as well."""
    texts = [text for step in range(10) for text in (*first, *_pass(2 + step % 3), UPDATE, *last)]
    assert summarize(attribute(_one_after_another(texts).build()))["steps"] == 10


def test_a_second_training_in_the_script() -> None:
    """Ten steps of a teacher, then 15 of a student beside it: the steps are those of the student, all of them."""
    texts = [text for _ in range(10) for text in (ZERO, "Forward Teacher |fwd", "Backward |bwd", UPDATE)]
    student = "Optimizer Adam params=4 |opt"
    for _ in range(15):
        texts += [ZERO, "Forward Teacher |fwd", "Student Student |fwd", "Backward |bwd", student]
    assert summarize(attribute(_one_after_another(texts).build()))["steps"] == 15


@pytest.mark.parametrize("name", ["my_update_rule", "Optimizer.step#Adam.step", "## optimizer ##"])
def test_updates_by_other_names(name: str) -> None:
    """The updates that other tools and programs name count."""
    texts = [text for step in range(6) for text in (*_pass(1 + step % 2), f"{name} |opt")]
    assert summarize(attribute(_one_after_another(texts).build()))["steps"] == 6
