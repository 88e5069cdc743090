"""Advice for processes without a GPU: each rule has a profile where it speaks, and one just below its threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from advice_commands import check_commands
from step_rows import Rows

from annot.analyze.advice import Advice, Facts, advise, cpu
from annot.analyze.hardware_counters import GIVEN
from annot.analyze.peaks import Peaks
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute
from annot.profile import Profile

CPU = {"threads": 2, "cores": 2}
WAIT = "Collective all_reduce.wait@default_pg:2 |coll"


def _profile(
    forward: int = 500_000, *, text: str = "fc Linear [64,1024]f32 out=64 |fwd", calls: int = 1, data: int = 0,
    wait: int = 0, rest: int = 0, adam: int = 0, fused: bool = False, cpu: dict[str, Any] | None = None,
    slow: float = 1,
) -> Profile:  # fmt: skip
    """Four steps of each of two processes, of which the second computes `slow` times as long. Times are in ns."""
    rows = Rows()
    for process in (1, 2):
        at = 0
        for step in range(4):
            rows.range("Data |data", at, at + data, process)
            begin, at = at + data, at + data
            for _ in range(calls):
                rows.range(text, at, at + round(forward // calls * (slow if process == 2 else 1)), process)
                at = rows.ranges[-1]["end"]
            rows.range("Backward |bwd", at, at + 1000 + wait, process).range(WAIT, at + 1000, at + 1000 + wait, process)
            at += 1000 + wait
            name = f"Optimizer Adam params=1000{' fused=True' if fused else ''} |opt"
            rows.range(name, at, at + adam, process)
            at += adam + rest
            rows.range(f"Batch {step} |step", begin, at, process)
    facts = CPU if cpu is None else cpu
    return rows.build(processes=[{"process": number, "pid": number, "name": "", "cpu": facts} for number in (1, 2)])


def _said(profile: Profile) -> dict[str, Advice]:
    return {advice.rule: advice for advice in advise(attribute(profile))}


def _attention(own: int, *, text: str = "qkv Linear |fwd") -> Profile:
    """Four steps of 1 ms. In each, five attentions take `own` ns outside the layer inside them."""
    rows = Rows()
    for step in range(4):
        at = step * 1_000_000
        rows.range(f"Batch {step} |step", at, at + 1_000_000)
        for block in range(5):
            rows.range(f"h.{block}.attn Attention |fwd", at, at + own // 5 + 50_000)
            rows.range(f"h.{block}.attn.{text}", at + 10, at + 50_010)
            at = rows.ranges[-2]["end"]
    return rows.build(processes=[{"process": 1, "pid": 1, "name": "", "cpu": CPU}])


CASES: dict[str, tuple[Callable[[], Profile], Callable[[], Profile]]] = {
    "threads": (lambda: _profile(cpu={"threads": 1, "cores": 4}), lambda: _profile(cpu={"threads": 4, "cores": 4})),
    "own_code": (lambda: _attention(250_000), lambda: _attention(190_000)),
    "small_layers": (lambda: _profile(300_000, calls=20), lambda: _profile(800_000, calls=20)),
    "fusion": (
        lambda: _profile(text="act ReLU [64,1024]f32 |fwd"), lambda: _profile(90_000, text="act ReLU [64,1024]f32 |fwd",
                                                                              rest=900_000),
    ),
    "double_precision": (
        lambda: _profile(text="fc Linear [64,1024]f64 out=64 |fwd"),
        lambda: _profile(90_000, text="fc Linear [64,1024]f64 out=64 |fwd", rest=900_000),
    ),
    "optimizer": (lambda: _profile(adam=100_000), lambda: _profile(adam=100_000, fused=True)),
    "outside_phases": (lambda: _profile(rest=200_000), lambda: _profile(rest=100_000)),
    "stragglers": (lambda: _profile(slow=2), lambda: _profile()),
    "data_loading": (lambda: _profile(data=100_000), lambda: _profile(data=40_000)),
    "collectives": (lambda: _profile(wait=100_000), lambda: _profile(wait=20_000)),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_rule_speaks_and_is_silent(rule: str) -> None:
    """A rule speaks with numbers and something to try where its evidence is, and says nothing below the threshold."""
    speaks, silent = (_said(build()) for build in CASES[rule])
    assert rule in speaks
    assert any(char.isdigit() for char in speaks[rule].evidence)
    assert speaks[rule].code
    for advice in speaks.values():
        check_commands(advice)
    assert 0 < speaks[rule].saves <= 1
    assert rule not in silent


AGAIN = "fc Linear [64,1024]f32 out=64 |re"
WEIGHTS = "fc Mine [64,1024]f32 weights=f64 |fwd"
FEW, RELU, DOUBLE = {"threads": 1, "cores": 4}, "act ReLU [64,1024]f32 |fwd", "fc Linear [64,1024]f64 out=64 |fwd"


@pytest.mark.parametrize(
    ("rule", "at", "below"),
    [
        # Each backward pass takes 1,000 ns.
        ("threads", _profile(199_000, rest=800_000, cpu=FEW), _profile(198_000, rest=801_000, cpu=FEW)),
        ("small_layers", _profile(200_000, calls=10), _profile(200_000, calls=9)),
        ("small_layers", _profile(250_000, calls=20, rest=1_000_000), _profile(247_000, calls=20, rest=1_002_000)),
        ("small_layers", _profile(299_990, calls=10), _profile(300_000, calls=10)),
        ("double_precision", _profile(100_000, text=DOUBLE, rest=899_000), _profile(99_000, text=DOUBLE, rest=900_000)),
        ("double_precision", _profile(text=WEIGHTS), _profile(text=WEIGHTS.replace("64 |", "32 |"))),
        ("own_code", _attention(200_000), _attention(199_000)),
        ("fusion", _profile(100_000, text=RELU, rest=899_000), _profile(99_000, text=RELU, rest=900_000)),
        ("fusion", _profile(30_000, text=RELU), _profile(29_999, text=RELU)),
        ("recomputation", _profile(50_100, text=AGAIN, rest=948_900), _profile(49_900, text=AGAIN, rest=949_100)),
        ("optimizer", _profile(499_000, adam=30_000, rest=470_000), _profile(499_000, adam=29_000, rest=471_000)),
        ("outside_phases", _profile(799_000, rest=200_000), _profile(800_000, rest=199_000)),
        # The second process computes for 601,200 ns or 601,100 ns in each step, the first one for 501,000 ns.
        ("stragglers", _profile(500_000, slow=1.2004), _profile(500_000, slow=1.2002)),
    ],
)  # fmt: skip
def test_rules_speak_from_their_threshold_on(rule: str, at: Profile, below: Profile) -> None:
    assert rule in _said(at)
    assert rule not in _said(below)


def test_code_of_other_layers_is_in_the_evidence_of_fusion_from_5_percent_on() -> None:
    text = "qkv LayerNorm [64,1024]f32 |fwd"
    assert ", and 5% in the forward methods" in _said(_attention(50_000, text=text))["fusion"].evidence
    assert "in the forward methods" not in _said(_attention(49_000, text=text))["fusion"].evidence


def test_the_evidence_of_recomputation_names_the_recomputed_layers() -> None:
    said = _layers({"a Linear |fwd": 70_000, "a Linear |re": 10_000, "b Linear |re": 20_000})["recomputation"]
    assert said.evidence.startswith("30% of step time is spent in the forward of 2 layers that run again")
    assert (said.layers, said.saves) == (["b", "a"], pytest.approx(0.3))


def test_every_rule_has_a_case() -> None:
    """No rule goes without a test."""
    assert {rule.__name__ for rule in cpu.RULES} <= set(CASES)


def test_evidence_has_the_numbers() -> None:
    """The numbers are those of the profile."""
    one = _said(_profile(499_000, wait=500_000, cpu=CPU | {"ranks": 2, "backend": "gloo"}))
    assert one["collectives"].evidence == (
        "50% of step time is exposed communication in gloo all_reduce, 100% of the backward pass"
    )
    assert one["threads"].evidence == (
        "PyTorch computes with 2 threads in each of 2 ranks on 2 cores, and forward, backward and "
        "optimizer take 50% of step time"
    )
    assert "OMP_NUM_THREADS=1" in one["threads"].code
    data = _said(_profile(499_000, data=1_500_000))["data_loading"]
    assert data.evidence == (
        "75% of step time is spent waiting for data, 1.50 ms in each of 8 steps, while the rest of a step takes "
        "500 µs; the profile does not show whether worker processes load the data"
    )
    assert "num_workers=2," in data.code
    few = _said(_profile(cpu={"threads": 1, "cores": 4}))["threads"]
    assert few.saves == pytest.approx(0.75)
    small = _said(_profile(300_000, calls=20))["small_layers"]
    assert "20 short calls of layers per step. Each takes 15 µs" in small.evidence
    assert "batch_size=128)      # 64 now" in small.code


def test_code_outside_the_layers_inside() -> None:
    """It is named with its share, in the verdict too, and the bound of a compiler includes it."""
    profile = _attention(300_000, text="qkv LayerNorm [64,1024]f32 |fwd")
    one, fusion = (_said(profile)[rule] for rule in ("own_code", "fusion"))
    assert one.advice == "Find the slow operation in Attention.forward."
    assert one.evidence == "30% of step time is spent in h.*.attn Attention itself, outside its submodules"
    assert (one.saves, one.layers) == (0.3, [f"h.{block}.attn" for block in range(5)])
    assert "30% in the forward methods of other layers, outside their submodules" in fusion.evidence
    assert fusion.saves == pytest.approx(0.55)
    assert verdict(Facts(attribute(profile))).endswith("and 30% in h.*.attn Attention itself (forward).")


def _with_workers(workers: int, epochs: int = 1, cores: int = 2) -> Profile:
    """Four steps that wait for data most of the time, and the worker processes of each epoch."""
    rows, times = Rows(), 4 // epochs
    for step in range(4):
        at = step * 1000
        rows.range(f"Batch {step} |step", at, at + 1000).range("Data |data", at, at + 800)
        rows.range("fc Linear |fwd", at + 800, at + 1000)
        for worker in range(workers):
            process = 2 + worker + workers * (step // times)
            rows.range(f"Data Worker {worker} |data", at, at + 990, process)
    return rows.build(processes=[{"process": 1, "pid": 1, "name": "", "cpu": {"threads": 2, "cores": cores}}])


def test_present_workers_are_no_advice() -> None:
    """With a worker per core, advice is about their start in each epoch, or else about what they load."""
    more = _said(_with_workers(1))["data_loading"]
    assert "; 1 DataLoader worker loads the data" in more.evidence
    assert (more.advice, more.code) == (
        "Load data in more worker processes.", "DataLoader(dataset, num_workers=2, persistent_workers=True)",
    )  # fmt: skip
    assert "num_workers=6," in _said(_with_workers(2, cores=6))["data_loading"].code
    again = _said(_with_workers(2, epochs=4))["data_loading"]
    assert "; 2 DataLoader workers load the data" in again.evidence
    assert again.advice.startswith("Keep the worker processes of the DataLoader between epochs")
    assert again.code == "DataLoader(dataset, num_workers=2, persistent_workers=True)"
    cheaper = _said(_with_workers(2))["data_loading"]
    assert cheaper.advice.startswith("Make loading cheaper")
    assert "num_workers=2," in cheaper.code


def test_workers_are_no_stragglers() -> None:
    """A process that only loads data computes nothing, and is not compared with the one that trains."""
    assert "stragglers" not in _said(_with_workers(2))


def test_the_late_rank_is_found_in_this_profile_or_in_those_of_all_ranks() -> None:
    """A profile of several processes is compared within itself; one of one rank needs the others."""
    both = _profile(wait=100_000)
    assert _said(both)["collectives"].code.startswith("annot report PROFILE --by-process --columns communication")
    alone = Profile.build(both.meta, ranges=both.ranges.filter(pl.col("process") == 1))
    assert _said(alone)["collectives"].code.startswith("annot report 'run_rank*.sqlite' --columns communication")


def test_layers_that_read_parameters_are_not_fused() -> None:
    """A linear layer of a small batch is memory-bound because of its parameters, which fusion does not save."""
    text = "fc Linear [1,1024]f32 out=1024 |fwd"
    assert "fusion" not in _said(_profile(text=text))
    assert "fusion" in _said(_profile(text="act GELU [1,1024]f32 |fwd"))


def test_a_waiting_process_is_no_straggler() -> None:
    """Ranks are compared by the time in which they compute, which a wait is no part of."""
    found = _said(_profile(499_000, slow=2, wait=100_000))["stragglers"]
    assert found.evidence == "Process 2 computes for 1.0 ms in each step, the median of 2 processes for 0.5 ms"


@pytest.mark.parametrize(
    ("threads", "cores", "ranks", "advised", "saves"),
    [
        (2, 2, 1, None, 0), (2, 4, 2, None, 0), (1, 1, 1, None, 0),
        (1, 2, 1, 2, 0.5), (1, 4, 2, 2, 0.5), (3, 4, 1, 4, 0.25), (1, 3, 2, None, 0),
        (3, 2, 1, 2, 1), (3, 4, 2, 2, 1), (1, 1, 2, 1, 1),
    ],
)  # fmt: skip
def test_each_rank_has_as_many_threads_as_its_share_of_the_cores(
    threads: int, cores: int, ranks: int, advised: int | None, saves: float
) -> None:
    """More threads slow the exchange between ranks, too, and fewer the computation only."""
    profile = _profile(599_000, wait=400_000, cpu={"threads": threads, "cores": cores, "ranks": ranks})
    said = _said(profile).get("threads")
    assert (said is not None) == (advised is not None)
    if said is not None:
        assert said.code.startswith(f"torch.set_num_threads({advised})")
        assert said.saves == pytest.approx(0.6 * saves if threads < (advised or 0) else 1)
        of_rank = f" in each of {ranks} ranks" if ranks > 1 else ""
        counts = f"{threads} thread{'s' * (threads > 1)}{of_rank} on {cores} core{'s' * (cores > 1)}"
        assert said.evidence.startswith(f"PyTorch computes with {counts}, and forward")


@pytest.mark.parametrize(("unknown", "advised"), [("threads", False), ("cores", False), ("ranks", True)])
def test_threads_and_cores_need_to_be_known(unknown: str, advised: bool) -> None:
    facts = {"threads": 1, "cores": 4, "ranks": 1}
    del facts[unknown]
    assert ("threads" in _said(_profile(cpu=facts))) == advised


@pytest.mark.parametrize(
    ("label", "saves", "of"),
    [
        ("Adam params=1000", 0.9, "Adam with 1,000 parameters"), ("AdamW params=1000,24", 0.9, "AdamW with 1,024"),
        ("SGD", 0.7, "SGD without"), ("Adam params=many", 0.9, "Adam without"), ("Adagrad params=1000", None, ""),
        ("Adam fused=True params=1000", None, ""),
    ],
)  # fmt: skip
def test_fused_optimizers_save_what_was_measured(label: str, saves: float | None, of: str) -> None:
    rows = Rows()
    for step in range(4):
        at = 1_000_000 * step
        rows.range(f"Batch {step} |step", at, at + 1_000_000).range("fc Linear |fwd", at, at + 500_000)
        rows.range(f"Optimizer {label} |opt", at + 500_000, at + 1_000_000)
    said = _said(rows.build(processes=[{"process": 1, "pid": 1, "name": "", "cpu": CPU}])).get("optimizer")
    assert (said is not None) == (saves is not None)
    if said is not None and saves is not None:
        assert said.saves == pytest.approx(0.5 * saves)
        assert f"50% of step time is spent in steps of {of}" in said.evidence
        assert said.code == f"torch.optim.{label.split()[0]}(model.parameters(), ..., fused=True)"


@pytest.mark.parametrize(
    ("inside", "words"),
    [(5000, "0% in other ranges, 50% outside any range"), (4999, "50% outside any range"),
     (495_000, "50% in other ranges, 0% outside any range"), (495_001, "50% in other ranges")],
)  # fmt: skip
def test_time_outside_phases_is_in_other_ranges_or_in_none(inside: int, words: str) -> None:
    """A part of less than 0.5 % is not named."""
    rows = Rows()
    for step in range(4):
        at = 1_000_000 * step
        rows.range(f"Batch {step} |step", at, at + 1_000_000).range("fc Linear |fwd", at, at + 500_000)
        rows.range("metrics", at + 500_000, at + 500_000 + inside)
    said = _said(rows.build())["outside_phases"]
    assert said.evidence == f"50% of step time lies outside these phases: {words}"
    assert said.saves == pytest.approx(0.5)


def _layers(texts: dict[str, int]) -> dict[str, Advice]:
    """Advice on four steps of layers: label and length (ns)."""
    rows, at = Rows(), 0
    for step in range(4):
        begin = at
        for text, length in texts.items():
            rows.range(text if "|" in text else f"{text} |fwd", at, at + length)
            at += length
        rows.range(f"Batch {step} |step", begin, at)
    return _said(rows.build())


@pytest.mark.parametrize(
    ("rule", "label"), [("double_precision", "Linear [64,1024]f64 out=64"), ("fusion", "ReLU [64,1024]f32")]
)
def test_the_longest_five_layers_are_named(rule: str, label: str) -> None:
    """Float64 takes twice as long in these layers, and a compiler changes all layers."""
    others = {"fc Linear [64,1024]f32 out=64": 700_000}
    said = _layers({f"net.{number} {label}": 50_000 - number for number in range(6)} | others)[rule]
    assert said.layers == [f"net.{number}" for number in range(5)]
    share = sum(50_000 - number for number in range(6)) / (sum(50_000 - number for number in range(6)) + 700_000)
    assert said.saves == pytest.approx(share / 2 if rule == "double_precision" else 1.0)


def test_layers_of_one_call_in_double_precision_do_not_count() -> None:
    rows = Rows()
    for step, dtype in enumerate(("f64", "f64", "f32")):
        rows.range(f"fc Linear [64,1024]{dtype} out=64 |fwd", 1000 * step, 1000 * step + 900)
    assert "double_precision" not in _said(rows.build())
    assert "double_precision" in _said(Rows().range("fc Linear [64,1024]f64 out=64 |fwd", 0, 900).build())


def test_the_evidence_of_fusion_names_four_modules() -> None:
    names = ("ReLU", "GELU", "SiLU", "Tanh", "Sigmoid")
    said = _layers({f"net.{number} {name} [64,1024]f32": 90_000 - number for number, name in enumerate(names)})[
        "fusion"
    ]
    assert said.evidence == (
        "100% of step time is spent in 5 layers with less than 1 FLOP per byte (ReLU, GELU, SiLU, Tanh). "
        "Compiled code also saves the overhead of calls in all layers"
    )


@pytest.mark.parametrize("rule", ["fusion", "small_layers"])
def test_a_compiler_changes_both_passes_of_all_layers(rule: str) -> None:
    """The passes take 80 % of a step, and 40 % of them the layers of the evidence."""
    text, count = ("act ReLU [64,1024]f32", 1) if rule == "fusion" else ("act ReLU [64,8]f32", 16)
    rows = Rows()
    for step in range(4):
        at = step * 1_000_000
        rows.range(f"Batch {step} |step", at, at + 1_000_000)
        for number in range(count):
            begin = at + number * (320_000 // count)
            rows.range(f"{text} |fwd", begin, begin + 320_000 // count)
        rows.range("fc Linear [64,1024]f32 out=1024 |fwd", at + 320_000, at + 500_000)
        rows.range("Backward |bwd", at + 500_000, at + 800_000)
    profile = rows.build()
    assert _said(profile)[rule].saves == pytest.approx(0.8)
    assert _said(profile)[rule].changes == ("compile", "compile-blocks")
    # The FLOPs of the linear layer, 2 * 64 * 1024 * 1024, take 0.1 ms at this peak, and its bytes less.
    peaks = Peaks("CPU", {"f32": 2 * 64 * 1024 * 1024 / 1e-4}, 1e15, "measured")
    attribution = attribute(profile)
    attribution.meta[GIVEN] = peaks
    said = {advice.rule: advice for advice in advise(attribution)}[rule]
    assert said.saves == pytest.approx(0.8 - 0.1, abs=0.002)


def test_short_calls_are_those_of_layers_in_a_step() -> None:
    """Short calls of two layers: 12 of 10 µs and 6 of 20 µs; the batch of the labels is doubled."""
    rows, at = Rows(), 0
    for step in range(4):
        begin = at
        for layer, count, length in (("a", 12, 10_000), ("b", 6, 20_000), ("c", 1, 260_000)):
            for _ in range(count):
                rows.range(f"{layer} Linear [32,8]f32 out=8 |fwd", at, at + length)
                at += length
        rows.range("train", at, at + 500_000).range(f"Batch {step} |step", begin, at + 500_000)
        at += 500_000
    said = _said(rows.build())["small_layers"]
    assert said.evidence.startswith("24% of step time is spent in 18 short calls of layers per step. Each takes 13 µs")
    assert said.saves == pytest.approx(0.5)  # the whole forward pass
    assert set(said.layers) == {"a", "b"}
    assert said.code.endswith("DataLoader(dataset, batch_size=64)      # 32 now")


def test_own_code_of_the_model_is_named_without_a_layer() -> None:
    """With the place of its class in the source, if it is known."""
    rows = Rows()
    for step in range(4):
        at = 1_000_000 * step
        rows.range(f"Batch {step} |step", at, at + 1_000_000)
        rows.range("Forward Net |fwd", at, at + 900_000).range("fc Linear |fwd", at, at + 500_000)
    said = _said(rows.build())["own_code"]
    assert said.evidence == "40% of step time is spent in (model) Net itself, outside its submodules"
    assert (said.advice, said.layers) == ("Find the slow operation in Net.forward.", [])
    assert said.saves == pytest.approx(0.4)
    placed = _said(rows.build(sources={"Net": "model.py:12"}))["own_code"]
    assert placed.evidence == f"{said.evidence} (model.py:12)"
