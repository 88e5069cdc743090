"""What to try next: rules that look at a profile, each with its evidence and the very code or command."""

from __future__ import annotations

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.advice.rules import COLUMNS, RULES, advise, by_advice

__all__ = ["COLUMNS", "RULES", "Advice", "Facts", "advise", "by_advice"]
