"""Which combinations of changes are tried."""

from __future__ import annotations

from measured_results import change

from annot.trial.answer import Row, Verdict
from annot.trial.combine import Combination, Step


def row(name: str, verdict: Verdict = "faster") -> Row:
    return Row(changes=[name], title=name, verdict=verdict)


CHANGES = {
    "compile": change("compile", group="compile"),
    "compile-blocks": change("compile-blocks", group="compile"),
    "bf16": change("bf16"),
    "fused": change("fused"),
    "workers": change("workers"),
}


def test_what_helps_is_kept_and_the_next_one_is_added() -> None:
    combination = Combination([row(name) for name in ("compile", "bf16", "fused", "workers")], CHANGES)
    first = combination.next()
    assert first == Step("compile", "compile+bf16")
    combination.keep(first)
    assert combination.next() == Step("compile+bf16", "compile+bf16+fused")  # does not help
    assert combination.next() == Step("compile+bf16", "compile+bf16+workers")
    assert combination.next() is None
    assert combination.kept == ["compile", "bf16"]


def test_changes_that_exclude_each_other_are_not_combined() -> None:
    combination = Combination([row(name) for name in ("compile", "compile-blocks", "fused")], CHANGES)
    assert combination.next() == Step("compile", "compile+fused")


def test_only_changes_that_are_faster_are_combined() -> None:
    combination = Combination([row("compile"), row("bf16", "other training"), row("fused", "same speed")], CHANGES)
    assert combination.next() is None
    assert Combination([row("bf16", "failed")], CHANGES).next() is None
