"""Causes of longer times, planted in real profiles."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl
import pytest
from edited_profiles import Planted, real

from annot.analyze.comparison.causes import Cause, Kind, causes
from annot.analyze.comparison.digest import digest
from annot.attribution.nesting import Key
from annot.profile import Profile

RESNET: Final = "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"
LINEAR: Final = "kineto/more/param_linear.json.gz"
DDP: Final = "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz"
TRANSFORMER: Final = "transformer.sqlite.gz"
ON_CPU: Final = "resnet without GPU activities"
"""The trace of `RESNET` with its operators, as a trace of a CPU."""

CONV: Final = ("Sequential_1.BasicBlock_2.Conv2d_5", "Conv2d", "forward")
NORM: Final = ("BatchNorm2d_0", "BatchNorm2d", "backward")
RELU: Final = ("ReLU_0", "ReLU", "forward")
HEAD: Final = ("Linear_0", "Linear", "forward")
GEMMS: Final = ("aten::linear", "", "other")
CLAMPS: Final = ("aten::relu", "", "other")
QUERY: Final = ("encoder.0.attention.query", "Linear", "forward")
QUERY_GRAD: Final = ("encoder.0.attention.query", "Linear", "backward")
ATTENTION: Final = ("encoder.0.attention", "Attention", "forward")
SGD: Final = ("", "SGD", "optimizer")
DATA: Final = ("(data)", "", "data")

ADD: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
GELU: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"
UNALIGNED: Final = "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>>"
SOFTMAX: Final = "void softmax_warp_forward<float, c10::BFloat16, float, 11, false, false>"
FLASH: Final = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
SPLIT: Final = "void splitKreduce_kernel<32, 16, int, float, float, float, float>"
TENSOR: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SINGLE: Final = "ampere_sgemm_128x64_tn"
MS: Final = 1_000_000


@functools.cache
def base(name: str) -> Planted:
    if name == ON_CPU:
        profile = base(RESNET).profile
        return Planted(Profile.build(profile.meta, ranges=profile.ranges, marks=profile.marks))
    return Planted(real(name))


Change = Callable[[Planted], Planted]
Pair = tuple[Planted, Planted]


@dataclass(frozen=True)
class Case:
    """A profile, its change, and which causes a row or the step should get."""

    profile: str
    change: Callable[[Planted], Planted]
    expected: Kind
    row: Key | None = None
    says: str = ""
    before: Callable[[Planted], Planted] = lambda run: run
    decided: bool = True


def _longer(row: Key, factor: float, names: str = "") -> Change:
    return lambda run: run.longer(run.kernels_of(row[0], row[2], names), factor)


def _renamed(row: Key, name: str, names: str = "", factor: float = 1.8) -> Change:
    def change(run: Planted) -> Planted:
        which = run.kernels_of(row[0], row[2], names)
        return run.renamed(which, name).longer(which, factor)

    return change


def _repeated(row: Key, name: str | None = None, names: str = "") -> Change:
    return lambda run: run.repeated(run.kernels_of(row[0], row[2], names), name)


def _stretched(row: Key, factor: float) -> Change:
    return lambda run: run.stretched(run.calls_of(row[0], row[2]), factor)


def _relabelled(row: Key, old: str, new: str, factor: float, column: str = "text") -> Change:
    def change(run: Planted) -> Planted:
        calls = run.calls_of(row[0], row[2])
        return run.relabelled(row[0], row[2], old, new, column).stretched(calls, factor)

    return change


def _both(first: Change, second: Change) -> Change:
    return lambda run: second(first(run))


def _slowed(factor: float) -> Change:
    return lambda run: run.slowed(factor)


def _waiting(ns: int) -> Change:
    """A wait at the beginning of each step on a CPU."""
    return lambda run: run.waiting(run.steps()["start"] + 1, ns)


def _idle(ns: int) -> Change:
    """A wait in the first gap between the GPU activities of each step."""

    def change(run: Planted) -> Planted:
        gaps = run.gaps(5000).alias("gap").to_frame()
        steps = run.steps().select("start").join_asof(gaps, left_on="start", right_on="gap", strategy="forward")
        return run.waiting(steps["gap"].drop_nulls(), ns)

    return change


def _with_operation(row: Key, name: str, ns: int) -> Change:
    """A further operation at the end of each call of a layer."""

    def change(run: Planted) -> Planted:
        longer = run.waiting(run.calls_of(row[0], row[2])["end"] - 1, ns)
        calls = longer.calls_of(row[0], row[2]).with_columns(start=pl.col("end") - ns, end=pl.col("end") - 1)
        like = longer.profile.ranges.filter(pl.col("role") == "operator").head(1).drop("thread", "start", "end")
        new = calls.join(like, how="cross").with_columns(text=pl.lit(name), call=None, sequence=None)
        return longer.with_ranges(longer.profile.ranges, new.cast(dict(longer.profile.ranges.schema)))

    return change


CASES: Final[dict[str, Case]] = {
    # The same kernels or calls take longer.
    "kernels of a convolution": Case(RESNET, _longer(CONV, 1.6), "slower work", CONV, "not in the other layers"),
    "kernels of a norm": Case(RESNET, _longer(NORM, 1.2), "slower work", NORM, "not in the other layers"),
    "kernels of a matrix product": Case(
        LINEAR, _longer(GEMMS, 1.3), "slower work", GEMMS, "matrix multiplications: 3.59 ms"
    ),
    "a call on the CPU": Case(TRANSFORMER, _stretched(QUERY, 1.6), "slower work", QUERY, "ops=True"),
    "a backward on the CPU": Case(TRANSFORMER, _stretched(QUERY_GRAD, 1.3), "slower work", QUERY_GRAD, "not in"),
    "the optimizer on the CPU": Case(TRANSFORMER, _stretched(SGD, 2), "slower work", SGD, "not in"),
    "everything, a row on the GPU": Case(RESNET, _slowed(1.3), "slower work", CONV, "as in the other layers"),
    "everything, a row on the CPU": Case(TRANSFORMER, _slowed(1.3), "slower work", QUERY, "as in the other layers"),
    "everything, a step on the GPU": Case(LINEAR, _slowed(1.2), "slower work", None, "in all layers"),
    "everything, a step on the CPU": Case(TRANSFORMER, _slowed(1.2), "slower work", None, "in all layers"),
    "a call on the CPU with operations": Case(ON_CPU, _stretched(CONV, 1.5), "slower work", CONV, "operations"),
    # Other kernels for the same work.
    "another convolution": Case(RESNET, _renamed(CONV, "miopenSp3AsmConv_v30_3_1_gfx9_fp16", "igemm"), "kernels", CONV),
    "without Tensor Cores": Case(
        RESNET, _renamed(CONV, SINGLE, "igemm"), "kernels", CONV, "which do not use Matrix Cores, instead of"
    ),
    "another matrix product": Case(LINEAR, _renamed(GEMMS, SINGLE), "kernels", GEMMS, SINGLE),
    "a product in two kernels": Case(
        LINEAR, _both(_repeated(GEMMS, SPLIT), _renamed(GEMMS, SINGLE, "volta_sgemm")), "kernels", GEMMS
    ),
    "softmax beside products instead of attention": Case(
        LINEAR,
        _both(_repeated(GEMMS, SOFTMAX), _renamed(GEMMS, SINGLE, "flash")),
        "kernels",
        GEMMS,
        before=_renamed(GEMMS, FLASH, factor=1),
    ),
    "unaligned tensors": Case(
        LINEAR, _renamed(CLAMPS, UNALIGNED), "kernels", CLAMPS, before=_renamed(CLAMPS, ADD, factor=1)
    ),
    "TF32 is off": Case(
        LINEAR,
        _renamed(GEMMS, SINGLE),
        "kernels",
        GEMMS,
        "do not use Tensor Cores, instead of",
        before=_renamed(GEMMS, TENSOR, factor=1),
    ),
    # Other work.
    "kernels run twice": Case(RESNET, _repeated(CONV), "work", CONV, "2 per step instead of 1"),
    "a further elementwise kernel": Case(RESNET, _repeated(NORM, ADD), "work", NORM, "elementwise kernels: 1 per step"),
    "elementwise kernels run twice": Case(LINEAR, _repeated(CLAMPS), "work", CLAMPS, "42 per step instead of 21"),
    "another activation": Case(LINEAR, _renamed(CLAMPS, GELU), "work", CLAMPS, "Gelu"),
    "calls run twice": Case(
        TRANSFORMER, lambda run: run.called_twice(QUERY[0], QUERY[2]), "work", QUERY, "2 calls per step instead of 1"
    ),
    "a layer inside is called twice": Case(
        TRANSFORMER,
        lambda run: run.called_twice(QUERY[0], QUERY[2]),
        "work",
        ATTENTION,
        "query Linear forward: 2 calls per step instead of 1",
    ),
    "longer sequences": Case(
        TRANSFORMER, _relabelled(QUERY, r"\[4,64,", "[4,128,", 2), "work", QUERY, "2.00 times the FLOPs"
    ),
    "larger batches on the GPU": Case(
        RESNET, _both(_relabelled(CONV, r"\[512,", "[1024,", 1, "call"), _longer(CONV, 1.9)), "work", CONV, "[1024,"
    ),
    "double precision": Case(
        TRANSFORMER, _relabelled(QUERY, "f32", "f64", 1.9), "work", QUERY, "f64 out=512 instead of"
    ),
    "another class": Case(
        TRANSFORMER,
        _relabelled(QUERY, " Linear ", " LoRA ", 2),
        "work",
        ("encoder.0.attention.query", "Linear → LoRA", "forward"),
        "its class is LoRA",
    ),
    "other parameters": Case(TRANSFORMER, _relabelled(QUERY, "out=512", "out=1024", 2), "work", QUERY, "out=1024"),
    "a new layer": Case(
        TRANSFORMER,
        _relabelled(QUERY, "attention.query", "attention.lora", 1),
        "work",
        ("encoder.0.attention.lora", "Linear", "forward"),
        "does not have",
    ),
    "a further operation": Case(ON_CPU, _with_operation(CONV, "aten::mul", 9 * MS), "work", CONV, "operations: "),
    # Waits.
    "for data": Case(TRANSFORMER, _stretched(DATA, 300), "waits", None, "waiting for data"),
    "for data, as a row": Case(TRANSFORMER, _stretched(DATA, 300), "waits", DATA),
    "outside ranges": Case(TRANSFORMER, _waiting(200 * MS), "waits", None, "outside ranges"),
    "for launches": Case(
        LINEAR, lambda run: run.waiting(run.gaps(5000), 100_000), "waits", None, "waiting for launches"
    ),
    "for the CPU": Case(LINEAR, _idle(20 * MS), "waits", None, "waiting for the CPU"),
    "for slow code on the CPU": Case(
        LINEAR, lambda run: run.stretched(run.idle(), 2), "waits", None, "times as long on the CPU"
    ),
    "for other ranks": Case(
        DDP,
        lambda run: run.longer(run.profile.kernels["name"].str.contains("(?i)nccl"), 20),
        "waits",
        None,
        "collectives",
    ),
    "for other ranks, as a row": Case(
        DDP,
        lambda run: run.longer(run.profile.kernels["name"].str.contains("(?i)nccl"), 3),
        "waits",
        ("nccl:all_reduce", "", "other"),
    ),
    # Undecided.
    "all alike": Case(TRANSFORMER, _slowed(1.2), "noise", None, "half of the layers take 1.20 to 1.20", decided=False),
    "waits of a pair": Case(LINEAR, _idle(20 * MS), "noise", None, "waiting for the CPU", decided=False),
    "a layer of a pair": Case(RESNET, _longer(CONV, 1.6), "noise", CONV, decided=False),
    "other kernels of a pair": Case(LINEAR, _renamed(GEMMS, SINGLE), "kernels", GEMMS, decided=False),
    "further calls of a pair": Case(LINEAR, _repeated(CLAMPS), "work", CLAMPS, decided=False),
}


@functools.cache
def _cause(name: str) -> Cause:
    case = CASES[name]
    a = case.before(base(case.profile))
    runs = [[digest(run.attribution)] for run in (a, case.change(a))]
    time = "gpu_ns" if a.profile.kernels.height else "host_ns"
    rows = [] if case.row is None else [case.row]
    every = causes(*runs, rows, time=time, step=case.row is None, decided=case.decided)
    return next(cause for cause in every if cause.row == case.row)


@pytest.mark.parametrize("name", CASES)
def test_planted_causes_are_named(name: str) -> None:
    cause = _cause(name)
    assert cause.kind == CASES[name].expected, cause.text
    assert CASES[name].says in cause.text


def test_no_cause_is_named_for_another() -> None:
    """The confusion table has numbers on its diagonal only."""
    table = Counter((case.expected, _cause(name).kind) for name, case in CASES.items())
    assert {planted for planted, _ in table} == {"work", "kernels", "slower work", "waits", "noise"}
    assert all(planted == named for planted, named in table), table
    assert table.total() >= 30
