"""Decisions of a gate about simulated runs of a noisy machine, and what the comparison says about their steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from simulated_runs import simulated

from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import Comparison, compare
from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.gate import Decision, decide


def _compared(seed: int, counts: tuple[int, int], slower: float = 0.0, **noise: Any) -> Comparison:
    random = np.random.default_rng(seed)
    a, b = ([simulated(random, slower=more, **noise) for _ in range(count)]
            for count, more in zip(counts, (0.0, slower), strict=True))  # fmt: skip
    return compare(a, b)


def _decision(*run: Any, **noise: Any) -> Decision:
    return decide(_compared(*run, **noise), above=1.05)


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize(
    ("counts", "noise"),
    [((5, 5), {}), ((3, 3), {}), ((10, 1), {}), ((5, 5), {"tails": 3}), ((5, 5), {"dominant": 0.6})],
)
def test_equal_runs_are_seldom_slower(counts: tuple[int, int], noise: dict[str, Any]) -> None:
    """One comparison in a hundred at most; of 40 hardly two."""
    statuses = [_decision(seed, counts, **noise).status for seed in range(40)]
    assert statuses.count("slower") <= 2


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize(("noise", "least"), [({}, 9), ({"tails": 3}, 8), ({"dominant": 0.6}, 9)])
def test_a_layer_that_is_slower_by_a_tenth_comes_first(noise: dict[str, Any], least: int) -> None:
    decisions = [_decision(seed, (5, 5), 0.1, **noise) for seed in range(10)]
    assert sum(each.rows.height > 0 and each.rows["layer"][0] == "net.20" for each in decisions) >= least


def test_the_slower_layer_is_named() -> None:
    """The innermost layer is, not the net around it; a growth that is allowed is none."""
    comparison = _compared(1, (4, 4), 0.3, layer=5, layers=12, steps=10)
    allowed, decision = (decide(comparison, above=above) for above in (1.5, 1.05))
    assert [allowed.status, allowed.rows.height, allowed.level] == ["same", 0, 0.01]
    assert [decision.status, decision.rows["layer"].to_list()] == ["slower", ["net.5"]]
    assert decision.sentences[0].startswith("net.5 forward takes 1.")
    assert "at most 1%" in decision.sentences[-1]
    assert "4 and 4 runs are too few for exact intervals" in decision.sentences[-1]
    row = decision.rows.row(0, named=True)
    assert row["factor_low"] < row["factor"] < row["factor_high"]
    assert row["factor"] == pytest.approx(1.3, rel=0.1)
    assert row["regression_ns"] == pytest.approx(30_000, rel=0.5)
    assert row["p"] < 0.001


def _times_of(run: Digest, factor: float) -> Digest:
    times = run.times.with_columns((pl.col("host_ns", "gpu_ns") * factor).cast(pl.Int64))
    return replace(run, times=times)


def test_one_pair_is_undecided_about_a_change_of_all_layers() -> None:
    """All layers alike are slower if the machine is; several runs tell."""
    random = np.random.default_rng(2)
    run, other = (simulated(random, layers=12, machine=0) for _ in range(2))
    decision = decide(compare([run], [_times_of(other, 1.3)]), above=1.05)
    assert (decision.status, decision.rows.height, decision.level) == ("undecided", 0, None)
    assert "annot compare --repeat" in decision.sentences[-1]
    a, b = ([simulated(random, layers=12, machine=0.01) for _ in range(4)] for _ in "ab")
    decision = decide(compare(a, [_times_of(run, 1.3) for run in b]), above=1.05)
    assert (decision.status, decision.step_slower, decision.rows["layer"].to_list()) == ("slower", True, ["net"])


@pytest.mark.parametrize(("all_layers", "slower", "rows"), [
    (1.3, 0.03, []), (1.3, 0.1, ["net.5"]),  # the step is slower, and the layer if it is beyond the others
    (0.7, 0.1, []), (0.7, 0.6, ["net.5"]),  # all layers became faster, the layer less, or it became slower
])  # fmt: skip
def test_change_of_a_layer_beside_that_of_all(all_layers: float, slower: float, rows: list[str]) -> None:
    random = np.random.default_rng(8)
    a = [simulated(random, layers=12, machine=0.01) for _ in range(5)]
    b = [simulated(random, slower=slower, layer=5, layers=12, machine=0.01) for _ in range(5)]
    decision = decide(compare(a, [_times_of(run, all_layers) for run in b]), above=1.05)
    assert decision.step_slower == (all_layers > 1)
    assert [layer for layer in decision.rows["layer"] if layer != "net"] == rows


def test_a_busy_machine_hides_no_layer() -> None:
    """Some runs are twice as long as others, and those of B are shorter: the layer takes longer than the others."""
    random = np.random.default_rng(8)
    speeds = (1.0, 1.6, 2.0, 1.2, 1.8)
    a = [_times_of(simulated(random, layers=12, machine=0.01), speed) for speed in speeds]
    b = [_times_of(simulated(random, slower=0.2, layer=5, layers=12, machine=0.01), speed / 1.3) for speed in speeds]
    decision = decide(compare(a, b), above=1.05)
    assert (decision.status, decision.rows["layer"].to_list()) == ("slower", ["net.5"])
    assert 1.15 < decision.rows["factor"][0] < 1.25


def _layer_times(run: Digest, layer: str, factor: float) -> Digest:
    node = run.nodes["layer"].to_list().index(layer)
    of_layer = pl.when(pl.col("node") == node).then(factor).otherwise(1.0)
    return replace(run, times=run.times.with_columns((pl.col("host_ns", "gpu_ns") * of_layer).cast(pl.Int64)))


@pytest.mark.parametrize(("number", "last", "status"), [
    (5, 1.2, "slower"), (5, 0.99, "undecided"),
    (3, 1.2, "slower"), (3, 1.0, "undecided"),  # the interval is that of a t distribution
])  # fmt: skip
def test_a_layer_that_is_noisier_than_others_needs_an_interval_above_one(number: int, last: float, status: str) -> None:
    """The p-value is small either way: the other layers, which give it most of its variance, hardly vary."""
    random = np.random.default_rng(8)
    a, b = ([simulated(random, layers=20, machine=0.01) for _ in range(number)] for _ in "ab")
    noisy = [_layer_times(run, "net.5", factor) for run, factor in zip(b, [*[1.2] * (number - 1), last], strict=True)]
    comparison = compare(a, noisy)
    row = comparison.rows["layer"].to_list().index("net.5")
    decision, shift = decide(comparison, above=1.05), comparison.evidence.shifts[row]
    assert shift is not None
    assert shift.p is not None
    assert shift.p < 0.01 / 21
    assert decision.status == status
    assert decision.rows["layer"].to_list() == (["net.5"] if status == "slower" else [])


def test_new_layers_count_once() -> None:
    """A layer is called otherwise and has a layer inside: its time is that of the layer that is gone."""
    run = simulated(np.random.default_rng(8), layers=12, machine=0)
    old = run.nodes["layer"].to_list().index("net.5")
    renamed = run.nodes.with_columns(pl.col("layer").replace({"net.5": "net.new"}))
    inside = renamed[old].with_columns(parent=pl.lit(old, pl.Int32), layer=pl.lit("net.new.fc"))
    node = pl.when(pl.col("node") == old).then(run.nodes.height).otherwise("node").cast(pl.Int32).alias("node")
    nested = replace(run, nodes=pl.concat([renamed, inside]), times=run.times.with_columns(node))
    assert decide(compare([run], [nested]), above=1.05, force=True).rows.is_empty()
    assert decide(compare([nested], [run]), above=1.05, force=True).rows.is_empty()


def test_gpu_work_in_few_steps_has_no_typical_step() -> None:
    run = simulated(np.random.default_rng(8), layers=12, machine=0.01)
    few = replace(run, times=run.times.filter(pl.col("step") < 3))
    assert decide(compare([few], [few]), above=1.05, force=True).status in ("same", "undecided")


@pytest.mark.parametrize(("runs", "status"), [(1, "undecided"), (2, "slower")])
def test_one_run_of_a_side_does_not_tell_a_slower_machine_from_slower_code(runs: int, status: str) -> None:
    random = np.random.default_rng(8)
    a = [simulated(random, layers=12, machine=0.01) for _ in range(6)]
    b = [_times_of(simulated(random, layers=12, machine=0.01), 1.5) for _ in range(runs)]
    assert decide(compare(a, b), above=1.05).status == status


def test_in_one_pair_a_layer_stands_out_from_the_changes_of_others() -> None:
    """A layer that takes 30 % longer does beside layers that take as long, not beside others with as large changes."""
    random = np.random.default_rng(9)
    run, other = (simulated(random, slower=slower, layer=5, layers=12, machine=0) for slower in (0, 0.3))
    assert decide(compare([run], [other]), above=1.05).rows["layer"].to_list() == ["net.5"]
    factor = 1 + pl.col("node") % 4 / 10
    apart = replace(other, times=other.times.with_columns((pl.col("host_ns", "gpu_ns") * factor).cast(pl.Int64)))
    decision = decide(compare([run], [apart]), above=1.05)
    assert (decision.status, decision.rows.height) == ("undecided", 0)


@pytest.mark.parametrize(("steps", "status"), [(9, "undecided"), (10, "slower")])
@pytest.mark.parametrize("all_layers", [1.0, 0.75])
def test_a_single_run_needs_steps(steps: int, status: str, all_layers: float) -> None:
    """A layer takes 60 % longer in one run against six: with few steps, hiccups may have done it.

    It does so, too, if all layers became faster, and the layer is slower only by its measured time.
    """
    random = np.random.default_rng(8)
    a = [simulated(random, layers=12, steps=steps, machine=0.01) for _ in range(6)]
    b = simulated(random, slower=0.6, layer=5, layers=12, steps=steps, machine=0.01)
    assert decide(compare(a, [_times_of(b, all_layers)]), above=1.05).status == status


def test_a_limit_below_one_needs_no_evidence() -> None:
    """Equal runs are not fast enough: that is no error, and has no cause."""
    random = np.random.default_rng(8)
    a, b = ([simulated(random, layers=12, machine=0.01) for _ in range(4)] for _ in "ab")
    comparison = compare(a, b)
    decisions = [decide(comparison, above=above) for above in (0.9, 0.8, 1.0)]
    assert [(each.status, each.level) for each in decisions] == [("slower", None), ("slower", None), ("same", 0.01)]
    assert not any("comparisons of equal runs" in sentence for sentence in decisions[0].sentences)
    assert not any("is slower only if" in sentence for sentence in decisions[0].sentences)
    assert causes_of(comparison, decisions[0], a, b) == ()


def test_below_one_the_layer_that_became_slower_has_its_cause() -> None:
    random = np.random.default_rng(8)
    a, b = ([simulated(random, slower=slower, layer=5, layers=12, machine=0.01) for _ in range(5)] for slower in (0, 1))
    comparison = compare(a, b)
    causes = causes_of(comparison, decide(comparison, above=0.9), a, b)
    assert any("net.5" in cause.text for cause in causes)
    assert not any("net.4" in cause.text for cause in causes)


def _with_hiccup(run: Digest, node: int, factor: int) -> Digest:
    """One step takes many times as long in one layer."""
    is_hiccup = (pl.col("step") == 3) & (pl.col("node") == node)
    times = run.times.with_columns(
        pl.when(is_hiccup).then(pl.col(name) * factor).otherwise(name).alias(name) for name in ("host_ns", "gpu_ns")
    )
    return replace(run, times=times)


def test_a_hiccup_is_said_and_decides_nothing() -> None:
    """One step of forty takes far longer in one layer: the mean has it, the speedup and the decision do not."""
    random = np.random.default_rng(3)
    run, other = (simulated(random, layers=12, machine=0) for _ in range(2))
    before, after = (compare([run], [each]) for each in (other, _with_hiccup(other, 4, 400)))
    of_layer = [each.rows.row(by_predicate=pl.col("layer") == "net.3", named=True) for each in (before, after)]
    assert of_layer[1]["b_ns"] > 5 * of_layer[0]["b_ns"]
    assert of_layer[1]["speedup"] == pytest.approx(of_layer[0]["speedup"], rel=0.05)
    assert decide(after, above=1.2).status == decide(before, above=1.2).status == "same"
    assert any("of 40 steps of B" in note and "far longer" in note for note in after.notes)
    assert not any("1 of 40 steps of B is far longer" in note for note in before.notes)


def test_drift_is_said() -> None:
    """Steps that get longer and longer are, with how much; steps without a trend are not."""
    run = simulated(np.random.default_rng(4), layers=12)
    longer = run.times.join(run.steps.select("step"), on="step").with_columns(
        (pl.col(name) * (1 + pl.col("step") / 80)).cast(pl.Int64).alias(name) for name in ("host_ns", "gpu_ns")
    )
    drifting = replace(run, times=longer)
    assert any(note.startswith("B drifts") and "+" in note for note in compare([run], [drifting]).notes)
    assert not any("drift" in note for note in compare([run], [run]).notes)


def test_on_a_busy_machine_fast_steps_are_compared() -> None:
    """Steps that wait for other programs vary far more than those that do not: a slower layer is seen in the latter."""
    random = np.random.default_rng(5)

    def busy(slower: float) -> Digest:
        run = simulated(random, slower=slower, layer=5, layers=12, machine=0)
        waits = random.exponential(3e5, run.times.height) * (random.random(run.times.height) < random.uniform(0.3, 0.7))
        times = run.times.with_columns((pl.col("host_ns", "gpu_ns") + pl.Series(waits)).cast(pl.Int64))
        return replace(run, times=times)

    comparison = compare([busy(0) for _ in range(5)], [busy(0.3) for _ in range(5)])
    assert any("fastest" in note for note in comparison.notes)
    assert "too few" not in decide(comparison, above=1.05).sentences[-1]
    assert decide(comparison, above=1.05).rows["layer"].to_list() == ["net.5"]
    assert not any("fastest" in note for note in _compared(6, (3, 3), layers=12).notes)
