"""Advice: rules that suggest changes to a training run, each with evidence and the code or command to use."""

from __future__ import annotations

from dataclasses import astuple
from typing import Final

import polars as pl

from annot.analyze.advice import cpu, kernels, launches, loop, operators
from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.advice.other_programs import in_cuda, in_keras
from annot.attribution import Attribution
from annot.util.entry_points import loaded

__all__ = ["COLUMNS", "RULES", "Advice", "Facts", "advise", "by_advice"]

RULES: Final[tuple[Rule, ...]] = (*loop.RULES, *launches.RULES, *cpu.RULES, *kernels.RULES, *operators.RULES)

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
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> advise(attribute(Profile.build({})))
        []
    """
    facts = facts or Facts(attribution)
    suggestions = [advice for rule in RULES if (advice := rule(facts)) is not None]
    if suggestions and (facts.in_keras or facts.in_cuda):
        translate = in_keras if facts.in_keras else in_cuda
        suggestions = [advice for suggestion in suggestions if (advice := translate(suggestion)) is not None]
    plugins = (rule.isolated(Advice)(facts) for rule in loaded("annot.advice", ("__call__",)))
    return sorted((*suggestions, *filter(None, plugins)), key=lambda advice: -advice.saves)


def by_advice(attribution: Attribution, facts: Facts | None = None) -> pl.DataFrame:
    """Return a row per suggestion; see `advise`.

    Returns:
        rule, advice, evidence, code, saves (0 to 1), layers   see `Advice`
        where   the names of the layers in reports, see `Facts.where`
    """
    facts = facts or Facts(attribution)
    rows = [[*astuple(advice), facts.where(advice.layers)] for advice in advise(attribution, facts)]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
