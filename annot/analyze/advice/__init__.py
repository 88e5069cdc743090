"""Advice: rules that suggest changes to a training run, each with evidence and the code or command to use."""

from __future__ import annotations

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.advice.rules import COLUMNS, RULES, advise, by_advice

__all__ = ["COLUMNS", "RULES", "Advice", "Facts", "advise", "by_advice"]
