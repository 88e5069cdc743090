"""Hyperparameters of optimizers in the texts of their ranges."""

from __future__ import annotations

from annot.labels.optimizer_arguments import arguments, switched_on


def test_only_what_adds_work_is_switched_on() -> None:
    assert switched_on({"weight_decay": 0.1}) == {("weight_decay", True)}
    assert switched_on({"weight_decay": 0.1}, decoupled=True) == {("weight_decay", "decoupled")}
    assert switched_on({"momentum": 0.0, "weight_decay": None, "fused": False}) == frozenset()
    assert switched_on({"momentum": object(), "fused": 1}) == frozenset()
    assert switched_on({"fused": True}) == {("fused", True)}


def test_parameters_of_one_kind_are_added() -> None:
    """The dtype stands only beside another one than f32, and what no group switches on stands nowhere."""
    assert arguments([]) == ()
    assert arguments([(8, "f32", frozenset()), (2, "f32", frozenset())]) == (("params", 10),)
    assert arguments([(8, "bf16", frozenset())]) == (("params", 8), ("dtype", "bf16"))
