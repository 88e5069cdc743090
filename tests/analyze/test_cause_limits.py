"""Where one cause ends and another begins, in runs of a few steps that are made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tables import Rows

from annot.analyze.comparison.causes import Cause, causes, causes_of
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import Digest, digest
from annot.analyze.comparison.gate import decide
from annot.attribution.attribute import attribute
from annot.attribution.nesting import Key

US = 1000
GEMM, OTHER_GEMM = "ampere_bf16_s16816gemm_bf16_128x64_tn", "ampere_bf16_s16816gemm_bf16_256x64_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ROW: Key = ("fc", "Linear", "forward")
FC = "fc Linear [8,64]f32 out=64 |fwd"
NEXT = "norm LayerNorm [8,64]f32 |fwd"
LAST = "head Linear [8,64]f32 out=10 |fwd"

Layer = tuple[str, Sequence[tuple[str, Any]]]
"""Label of a layer, and the names and lengths (µs) of its kernels, or layers inside it."""


def _run(*layers: Layer, gap: float = 0, steps: int = 8, lengths: Sequence[float] = (), **meta: Any) -> Digest:
    """A run whose steps launch the kernels of some layers one after the other.

    Args:
        layers: the layers of a step; a label with ``{}`` has the number of the step there.
        gap: time before the first kernel of a step, µs.
        steps: number of steps.
        lengths: how many times as long each step takes; none: 1.
        meta: metadata of the profile.
    """
    rows, at = Rows(), 0.0
    for step in range(steps):
        longer = lengths[step] if lengths else 1
        begin, at = at, at + gap
        for label, parts in layers:
            at = _add(rows, label.replace("{}", str(step)), parts, at, longer)
        rows.range(f"Batch {step} |step", _ns(begin), _ns(at), domain="annot")
    return digest(attribute(rows.build(**meta)))


def _add(rows: Rows, label: str, parts: Sequence[tuple[str, Any]], at: float, longer: float) -> float:
    """Add a layer from some time (µs), and return when it ends."""
    first = at
    for name, part in parts:
        if isinstance(part, list):
            at = _add(rows, name, part, at, longer)
        else:
            rows.kernel(_ns(at), (_ns(at), _ns(at + part * longer)), name=name)
            at += part * longer
    rows.range(label, _ns(first), _ns(at), domain="annot")
    return at


def _ns(us: float) -> int:
    return round(1000 * us) + 1_000_000


def _cause(a: Digest, b: Digest, row: Key | None = ROW) -> Cause:
    (cause,) = causes([a], [b], [row] if row else [], time="gpu_ns", step=row is None)
    return cause


@pytest.mark.parametrize(("longer", "kind"), [(4.0, "work"), (4.1, "slower work")])
def test_inputs_explain_at_least_half_of_a_factor(longer: float, kind: str) -> None:
    """Twice the elements explain half of four times the time."""
    a, b = _run((FC, [(GEMM, 100)])), _run((FC.replace("[8", "[16"), [(GEMM, 100 * longer)]))
    assert _cause(a, b).kind == kind


def test_inputs_of_the_same_size_explain_with_another_dtype_only() -> None:
    a, slower = _run((FC, [(GEMM, 100)])), [(GEMM, 150)]
    assert _cause(a, _run((FC.replace("f32", "f64"), slower))).kind == "work"
    assert _cause(a, _run((FC.replace("[8,", "[9,"), slower))).kind == "slower work"
    assert _cause(a, _run((FC, slower))).kind == "slower work"


def test_inputs_that_differ_between_steps_are_no_other_work() -> None:
    a, b = (
        _run((f"fc Linear {shape}f32 out=64 |fwd", [(GEMM, us)]))
        for shape, us in (("[{}1,64]", 100), ("[64,{}1]", 150))
    )
    assert _cause(a, b).kind == "slower work"


@pytest.mark.parametrize(("others", "says"), [(1.2, "as in the other layers"), (1.18, "not in the other layers")])
def test_other_layers_take_longer_if_they_have_half_of_the_factor(others: float, says: str) -> None:
    a = _run((FC, [(GEMM, 100)]), (NEXT, [(NORM, 100)]), (LAST, [(GEMM, 100)]))
    b = _run((FC, [(GEMM, 143)]), (NEXT, [(NORM, 100 * others)]), (LAST, [(GEMM, 100 * others)]))
    cause = _cause(a, b)
    assert (cause.kind, says in cause.text) == ("slower work", True), cause.text


@pytest.mark.parametrize(("gap", "kind"), [(60.0, "waits"), (40.0, "slower work")])
def test_a_step_waits_if_half_of_its_growth_is_waiting(gap: float, kind: str) -> None:
    a, b = _run((FC, [(GEMM, 500)]), gap=10), _run((FC, [(GEMM, 550)]), gap=10 + gap)
    cause = _cause(a, b, row=None)
    assert cause.kind == kind, cause.text
    assert ("waiting for launches" in cause.text) == (kind == "waits")


def test_waits_that_grow_like_the_work_are_no_cause() -> None:
    a, b = _run((FC, [(GEMM, 100)]), gap=900), _run((FC, [(GEMM, 130)]), gap=1170)
    assert _cause(a, b, row=None).kind == "slower work"


@pytest.mark.parametrize(("same", "kind"), [(149.0, "kernels"), (151.0, "slower work")])
def test_the_largest_part_of_the_growth_is_the_cause(same: float, kind: str) -> None:
    a = _run((FC, [(GEMM, 100), (NORM, 100)]))
    b = _run((FC, [(OTHER_GEMM, 150), (NORM, same)]))
    assert _cause(a, b).kind == kind


def test_faster_kernels_do_not_hide_further_ones() -> None:
    a = _run((FC, [(GEMM, 100), (NORM, 100)]))
    b = _run((FC, [(GEMM, 80), (NORM, 100), (ADD, 70)]))
    cause = _cause(a, b)
    assert cause.kind == "work"
    assert cause.evidence == (
        "elementwise kernels: 1 per step instead of 0, 70.0 µs longer, by elementwise CUDAFunctor_add",
    )


def test_other_work_is_said_beside_a_larger_cause() -> None:
    a, b = _run((FC, [(GEMM, 100)])), _run((FC, [(GEMM, 1000), (ADD, 20)]))
    cause = _cause(a, b)
    assert cause.kind == "slower work"
    assert (
        cause.evidence[1]
        == "elementwise kernels: 1 per step instead of 0, 20.0 µs longer, by elementwise CUDAFunctor_add"
    )


@pytest.mark.parametrize(("each", "kind"), [(160, "work"), (170, "slower work")])
def test_calls_of_unknown_size_count_as_work(each: int, kind: str) -> None:
    """Two further calls of 100 µs are work, and what three calls take longer is slower work."""
    runs = []
    for calls, us in ((1, 100), (3, each)):
        rows = Rows()
        for start in range(0, 4000 * calls, 1000):
            rows.range("fc Linear |fwd", start * US, (start + us) * US, domain="annot")
        runs.append(digest(attribute(rows.build())))
    (cause,) = causes(runs[:1], runs[1:], [ROW], time="host_ns", step=False)
    assert (cause.kind, "12 calls per step instead of 4" in cause.evidence) == (kind, True)


def test_names_of_models_and_optimizers() -> None:
    labels = ("Forward Net |fwd", "Optimizer SGD |opt")
    a, b = (_run(*((label, [(ADD, us)]) for label in labels)) for us in (100, 150))
    rows = [("", "Net", "forward"), ("", "SGD", "optimizer")]
    names = [cause.sentence.partition(":")[0] for cause in causes([a], [b], rows, time="gpu_ns", step=False)]
    assert names == ["(model) Net forward", "SGD optimizer"]


def test_a_collective_in_a_layer_waits() -> None:
    a, b = _run((FC, [(GEMM, 100), (NCCL, 100)])), _run((FC, [(GEMM, 100), (NCCL, 200)]))
    cause = _cause(a, b)
    assert cause.kind == "waits"
    assert cause.evidence == ("collectives: 200 µs instead of 100 µs for the same calls",)


def test_a_row_inside_another_counts_once() -> None:
    """The outer row has its own kernels, and those of layers inside that are no row."""
    outer, inner = ("block", "Block", "forward"), ("block.fc", "Linear", "forward")
    others: list[Layer] = [(NEXT, [(NORM, 100)]), (LAST, [(GEMM, 100)]), ("relu ReLU |fwd", [(ADD, 100)])]
    a, b = (
        _run(("block Block |fwd", [(ADD, own), ("block.fc Linear |fwd", [(GEMM, us)])]), *others)
        for own, us in ((50, 100), (80, 200))
    )
    step, *of_rows = causes([a], [b], [outer, inner], time="gpu_ns", step=True)
    assert "block.fc Linear forward takes 100 µs of the 130 µs that the step takes longer" in step.text
    assert [cause.evidence[0] for cause in of_rows] == [
        "elementwise kernels: 80.0 µs instead of 50.0 µs for the same calls",
        "matrix multiplications: 200 µs instead of 100 µs for the same calls",
    ]
    (alone,) = causes([a], [b], [outer], time="gpu_ns", step=False)
    assert alone.evidence[:2] == tuple(reversed([cause.evidence[0] for cause in of_rows]))


def test_one_of_three_runs_does_not_decide() -> None:
    plain, odd = _run((FC, [(GEMM, 100)])), _run((FC, [(GEMM, 100), (ADD, 500)]))
    slower = _run((FC, [(GEMM, 150)]))
    (cause,) = causes([plain] * 3, [slower, odd, slower], [ROW], time="gpu_ns", step=False)
    assert cause.evidence[0] == "matrix multiplications: 150 µs instead of 100 µs for the same calls"


def test_a_long_step_does_not_decide() -> None:
    """Twice the elements explain 2.5 times the time, of all steps but one."""
    a = _run((FC, [(GEMM, 100)]))
    b = _run((FC.replace("[8", "[16"), [(GEMM, 250)]), lengths=[1, 1, 1, 1, 1, 1, 50, 1])
    assert _cause(a, b).kind == "work"


def test_waits_of_one_of_three_runs_do_not_decide() -> None:
    plain, slower, waits = (_run((FC, [(GEMM, us)]), gap=gap) for us, gap in ((100, 10), (150, 10), (150, 300)))
    (cause,) = causes([plain] * 3, [waits, slower, slower], [], time="gpu_ns", step=True)
    assert cause.kind == "slower work"


@pytest.mark.parametrize(
    ("gemm", "norm", "says"),
    [
        (1.3, 1.02, "the clock of the GPU"),
        (1.1, 1.3, "the bandwidth"),
        (1.3, 1.2, "1.30 times as long, other kernels 1.20 times."),
    ],
)
def test_kernels_show_the_clock_and_the_bandwidth(gemm: float, norm: float, says: str) -> None:
    a, b = (
        _run(*((label, [(GEMM, 100 * factors[0]), (NORM, 100 * factors[1])]) for label in (FC, NEXT, LAST)))
        for factors in ((1, 1), (gemm, norm))
    )
    cause = _cause(a, b, row=None)
    assert (cause.kind, says in cause.text) == ("slower work", True), cause.text


def test_steps_show_a_growing_and_a_changing_load() -> None:
    layers: list[Layer] = [(FC, [(GEMM, 100)]), (NEXT, [(NORM, 100)])]
    steady = _run(*layers)
    warming = _run(*layers, lengths=[1.1, 1.1, 1.1, 1.1, 1.5, 1.5, 1.5, 1.5])
    uneven = _run(*layers, lengths=[1.2, 1.6] * 4)
    assert (
        "the second half 1.36 times as long as the first, in the baseline 1.00 times"
        in _cause(steady, warming, None).text
    )
    assert "spread over 29% of their median, in the baseline 0%" in _cause(steady, uneven, None).text
    even = _cause(steady, _run(*layers, lengths=[1.3] * 8), None).text
    assert "second half" not in even
    assert "spread over" not in even


def test_threads_are_evidence() -> None:
    layers: list[Layer] = [(FC, [(GEMM, 100)]), (NEXT, [(NORM, 100)])]
    processes = [{"process": 1, "pid": 1, "name": "python", "cpu": {"threads": count}} for count in (8, 2)]
    a = _run(*layers, processes=processes[:1])
    b = _run(*layers, processes=processes[1:], lengths=[1.3] * 8)
    assert "operations run on 2 CPU threads instead of 8" in _cause(a, b, None).text
    assert "threads" not in _cause(a, _run(*layers, processes=processes[:1], lengths=[1.3] * 8), None).text


def test_a_run_without_steps_or_times_of_the_cpu_has_causes() -> None:
    a, b = (
        digest(attribute(Rows().range(FC, 0, 10).kernel(1, (0, us), name=GEMM).build(host_times=False)))
        for us in (100, 150)
    )
    step, row = causes([a], [b], [ROW], time="gpu_ns", step=True)
    assert [step.kind, row.kind] == ["slower work", "slower work"]


def test_short_layers_do_not_show_the_machine() -> None:
    short: list[Layer] = [(f"short.{number} ReLU |fwd", [(ADD, 1)]) for number in range(9)]
    longer: list[Layer] = [(label, [(ADD, 2)]) for label, _ in short]
    a = _run((FC, [(GEMM, 1000)]), (NEXT, [(NORM, 500)]), (LAST, [(GEMM, 500)]), *short)
    b = _run((FC, [(GEMM, 1500)]), (NEXT, [(NORM, 500)]), (LAST, [(GEMM, 500)]), *longer)
    assert "the other layers take 1.00 times as long" in _cause(a, b).evidence


def test_rows_that_are_all_slower_alike_are_the_machine() -> None:
    rows = [ROW, ("norm", "LayerNorm", "forward"), ("head", "Linear", "forward")]
    a, b = (_run((FC, [(GEMM, us)]), (NEXT, [(NORM, us)]), (LAST, [(GEMM, us)])) for us in (100, 130))
    step, *of_rows = causes([a], [b], rows, time="gpu_ns", step=True)
    assert "in all layers" in step.sentence
    assert all("as in the other layers" in cause.sentence for cause in of_rows)


def test_an_undecided_step_is_noise_and_a_row_that_stands_out_is_not() -> None:
    layers = [(f"h.{number} Linear |fwd", GEMM) for number in range(12)]
    lengths = [1, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1, 1.02, 0.98, 1.01, 0.99]
    a, b, c = (
        _run(*((label, [(name, us if number else first)]) for number, (label, name) in enumerate(layers)),
             lengths=lengths, steps=len(lengths))
        for us, first in ((100, 100), (130, 130), (100, 150))
    )  # fmt: skip
    for other, kinds in ((b, {("noise", None)}), (c, {("slower work", ("h.0", "Linear", "forward"))}), (a, set())):
        comparison = compare([a], [other])
        found = causes_of(comparison, decide(comparison, above=1.05), [a], [other])
        assert {(cause.kind, cause.row) for cause in found} == kinds
