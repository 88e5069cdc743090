"""Advice: rules that suggest changes to a training run, each with evidence and the code or command to use."""

from __future__ import annotations

from dataclasses import astuple
from typing import Final

import polars as pl

from annot.analyze.advice import cpu, kernels, loop, operators
from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.advice.other_programs import in_cuda, in_keras
from annot.attribution.attribute import Attribution
from annot.util.entry_points import Extension, loaded

__all__ = ["COLUMNS", "RULES", "Advice", "Facts", "advise", "by_advice"]

RULES: Final[tuple[Rule, ...]] = (*loop.RULES, *kernels.LAUNCH_RULES, *cpu.RULES, *kernels.RULES, *operators.RULES)

COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rule": pl.String, "advice": pl.String, "evidence": pl.String, "code": pl.String, "saves": pl.Float64,
    "layers": pl.List(pl.String), "where": pl.List(pl.String),
}  # fmt: skip


def advise(attribution: Attribution, facts: Facts | None = None) -> list[Advice]:
    """Return the advice for a profile, the largest possible saving first.

    The rules are `RULES` and those of other packages (entry points of the group ``annot.advice``).

    Args:
        attribution: the profile.
        facts: quantities of the profile, if they exist already.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> advise(attribute(Profile.build({})))
        []
    """
    facts = facts or Facts(attribution)
    suggestions = [advice for rule in RULES if (advice := rule(facts)) is not None]
    if suggestions and (facts.in_keras or facts.in_cuda):
        translate = in_keras if facts.in_keras else in_cuda
        suggestions = [advice for suggestion in suggestions if (advice := translate(suggestion)) is not None]
    plugins = (_plugin_advice(rule, facts) for rule in loaded("annot.advice", ("__call__",)))
    return sorted((*suggestions, *filter(None, plugins)), key=lambda advice: -advice.saves)


def _plugin_advice(rule: Extension, facts: Facts) -> Advice | None:
    advice = rule.isolated(Advice)(facts)
    return None if advice is None else rule.call(_checked, advice, default=None)


def _checked(advice: Advice) -> Advice:
    for name in ("rule", "advice", "evidence", "code"):
        if not isinstance(text := getattr(advice, name), str):
            raise TypeError(f"{name} must be a str, got {text!r}")
    if not isinstance(advice.saves, int | float) or not 0 <= advice.saves <= 1:
        raise ValueError(f"saves must be a number from 0 to 1, got {advice.saves!r}")
    if not isinstance(advice.layers, list) or not all(isinstance(layer, str) for layer in advice.layers):
        raise TypeError(f"layers must be a list of str, got {advice.layers!r}")
    return advice


def by_advice(attribution: Attribution, facts: Facts | None = None) -> pl.DataFrame:
    """Return a row per suggestion; see `advise`.

    Returns:
        rule, advice, evidence, code, saves (0 to 1), layers   see `Advice`
        where   the names of the layers in reports, see `Facts.where`
    """
    facts = facts or Facts(attribution)
    rows = [[*astuple(advice), facts.where(advice.layers)] for advice in advise(attribution, facts)]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
