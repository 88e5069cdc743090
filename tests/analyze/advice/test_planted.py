"""The first advice on traces with one planted inefficiency names it, and traces without one get none."""

from __future__ import annotations

from pathlib import Path

import pytest
from operator_traces import A100
from planted_traces import GEMM, NOTHING, PLANTED, Planted

from annot.analyze.advice import Facts, advise
from annot.analyze.advice.operators import cause_of
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute
from annot.read.formats import load
from annot.report.terminal.table import saving


@pytest.mark.parametrize("planted", PLANTED)
def test_the_first_advice_names_what_is_planted(planted: str, tmp_path: Path) -> None:
    """With the operator and its shape, in the advice or in the verdict."""
    trace, rule, words = PLANTED[planted]
    facts = Facts(attribute(load(trace().save(tmp_path))))
    first, said = advise(facts.attribution, facts)[0], verdict(facts)
    assert first.rule == rule
    assert words in first.evidence
    assert planted == "optimizer" or ("aten::" in said and "[" in said)


def test_the_fused_optimizer_is_that_of_the_run(tmp_path: Path) -> None:
    """torch.profiler names the method of the optimizer too: AdamW.step."""
    trace, rule, _ = PLANTED["optimizer"]
    said = {advice.rule: advice for advice in advise(attribute(load(trace().save(tmp_path))))}
    assert said[rule].code == "torch.optim.AdamW(model.parameters(), ..., fused=True)"


@pytest.mark.parametrize("trace", NOTHING)
def test_nothing_is_advised_without_evidence(trace: str, tmp_path: Path) -> None:
    """Fusing needs two operators that can be fused, and waiting for launches more than a few of them."""
    assert advise(attribute(load(NOTHING[trace]().save(tmp_path)))) == []


def test_the_verdict_names_a_lone_operator(tmp_path: Path) -> None:
    """An elementwise operator alone has nothing to fuse with; the verdict says why it takes its time."""
    said = verdict(Facts(attribute(load(NOTHING["a lone operator"]().save(tmp_path)))))
    assert "100% goes to aten::add [67108864]bf16 x [67108864]bf16: memory-bound with 0.17 FLOPs per byte" in said


def test_conversions_do_not_count_as_slow_products(tmp_path: Path) -> None:
    """The operator reaches 42 % of the peak, its convolution kernel 62 %."""
    trace = PLANTED["layout"][0]()
    assert [one.rule for one in advise(attribute(load(trace.save(tmp_path))))] == ["channels_last"]


@pytest.mark.parametrize(("rows", "cause"), [(64, "skinny"), (65, "few_tiles")])
def test_rows_that_leave_half_of_each_tile_empty(rows: int, cause: str, tmp_path: Path) -> None:
    """64 tiles are too few for 108 multiprocessors either way; with half-empty tiles the rows are the reason."""
    trace = Planted(A100).op("aten::mm", [rows, 8192], [8192, 8192], kernels=((GEMM, 90),))
    found = cause_of(Facts(attribute(load(trace.save(tmp_path)))).operators[0])
    assert found is not None
    assert found.name == cause


@pytest.mark.parametrize(("saves", "words"), [(0.999, "at most 99.9% of the run"), (1.0, "an unknown part of the run")])
def test_a_bound_of_the_whole_run_is_unknown(saves: float, words: str) -> None:
    """At most 100 % says nothing."""
    assert saving(saves, {"steps": 0}) == words
