"""The first advice on traces with one planted inefficiency names it, and traces without one get none."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_traces import NOTHING, PLANTED

from annot.analyze.advice import Facts, advise
from annot.analyze.verdict import verdict
from annot.attribution import attribute
from annot.read.formats import load


@pytest.mark.parametrize("planted", PLANTED)
def test_the_first_advice_names_what_is_planted(planted: str, tmp_path: Path) -> None:
    """With the operator and its shape, in the advice or in the verdict."""
    trace, rule, words = PLANTED[planted]
    facts = Facts(attribute(load(trace().save(tmp_path))))
    first, said = advise(facts.attribution, facts)[0], verdict(facts)
    assert first.rule == rule
    assert words in first.evidence
    assert planted == "optimizer" or ("aten::" in said and "[" in said)


@pytest.mark.parametrize("trace", NOTHING)
def test_nothing_is_advised_without_evidence(trace: str, tmp_path: Path) -> None:
    """Fusing needs two operators that can be fused, and waiting for launches more than a few of them."""
    assert advise(attribute(load(NOTHING[trace]().save(tmp_path)))) == []
