"""Advice: each rule has a profile where it speaks and one where it is silent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from advice_commands import check_commands
from advice_runs import (
    CONV,
    CONV_KERNEL,
    ELEMENTWISE,
    LAYOUT,
    NCCL,
    P100,
    SINGLE,
    TENSOR,
    US,
    V100,
    Run,
    advice_on,
    lost_kernels,
)
from matrices import every_third
from sqlite_profile import in_float32, training

from annot.analyze.advice import RULES, advise, by_advice, cpu, operators
from annot.analyze.advice.texts import texts
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.profile import Profile
from annot.read.formats import load

SHORT = [(TENSOR, 4)] * 30
TRIED = [(f"{CONV_KERNEL}_stage{stage}", 100) for stage in (3, 4)]

CASES: dict[str, tuple[Run, Run]] = {
    "data_loading": (Run(wait=101), Run(wait=99)),
    "synchronous_copies": (
        Run(gap=100, calls=[("cudaStreamSynchronize_v3020", 400)]),
        Run(gap=100, calls=[("cudaMemcpyAsync_v3020", 40)]),
    ),
    "pageable_copies": (Run(copy=29), Run(copy=27)),
    "host_copies": (Run(copy=29, pinned=True), Run(copy=27, pinned=True)),
    "cuda_graphs": (Run(kernels=[(TENSOR, 4)] * 10, gap=8), Run(kernels=[(TENSOR, 4)] * 9, gap=8)),
    "allocations": (
        Run(gap=100, calls=[("hipFree", 31)]),
        Run(gap=100, calls=[("cudaFreeAsync_v11020", 90)]),
    ),
    "host_bound": (Run(gap=101), Run(gap=95)),
    "short_kernels": (Run(kernels=SHORT), Run(kernels=[(TENSOR, 4), (TENSOR, 900)])),
    "batch_size": (Run(kernels=[(TENSOR, 9)] * 30, gap=8), Run(kernels=[(TENSOR, 10)] * 30, gap=8)),
    "stragglers": (Run(devices=(0, 1, 2), slow=2), Run(devices=(0, 1, 2))),
    "collectives": (
        Run(kernels=[(TENSOR, 948), (NCCL, 52)]),
        Run(kernels=[(TENSOR, 952), (NCCL, 48)]),
    ),
    "double_precision": (Run(text="net.a Linear [64,1024]f64 |fwd"), Run()),
    "recomputation": (Run(text="net.a Linear [64,1024]bf16 |re"), Run()),
    "uneven_steps": (Run(steps=12, slower=205), Run(steps=12, slower=200)),
    "coverage": (Run(steps=0), Run()),  # the profile of `lost_kernels`
    "mixed_precision": (Run(kernels=[(SINGLE, 900)]), Run(kernels=[(SINGLE, 900)], meta={"devices": [P100]})),
    "multiples_of_eight": (
        Run(kernels=[("cutlass_80_simt_hgemm_128x64", 900)], text="net.a Linear [64,1023]bf16 |fwd"),
        Run(kernels=[("cutlass_80_simt_hgemm_128x64", 900)], text="net.a Linear [64,1024]bf16 |fwd"),
    ),
    "channels_last": (
        Run(kernels=[(CONV_KERNEL, 948), (LAYOUT, 52)], text=CONV),
        Run(kernels=[(CONV_KERNEL, 952), (LAYOUT, 48)], text=CONV),
    ),
    "cudnn_benchmark": (
        Run(kernels=[(CONV_KERNEL, 900)], text=CONV),
        Run(kernels=[(CONV_KERNEL, 900)], text=CONV, first=TRIED),
    ),
    "fusion": (
        Run(kernels=[(TENSOR, 500), (ELEMENTWISE, 200), (ELEMENTWISE, 200)]),
        Run(kernels=[(TENSOR, 500), (ELEMENTWISE, 400)]),  # a lone operation, and nothing to fuse it with
    ),
    "optimizer": (Run(optimizer=300), Run(optimizer=20)),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_rule_speaks_and_is_silent(rule: str) -> None:
    """A rule speaks where its evidence is, with numbers and something to try, and not where it is not."""
    speaks, silent = CASES[rule]
    profile = lost_kernels() if rule == "coverage" else speaks.build()
    said = {advice.rule: advice for advice in advise(attribute(profile))}
    assert rule in said
    assert any(char.isdigit() for char in said[rule].evidence)
    assert said[rule].code
    assert 0 <= said[rule].saves <= 1
    assert (said[rule].saves == 0) == (rule in ("coverage", "uneven_steps"))
    assert rule not in advice_on(silent)


def test_every_rule_has_a_case() -> None:
    """No rule goes without a test."""
    assert {rule.__name__ for rule in RULES if rule not in (*cpu.RULES, *operators.RULES)} == set(CASES)


def test_nothing_to_advise() -> None:
    """A run on Tensor Cores that waits for nothing needs no advice; nor does an empty profile."""
    assert advice_on(Run()) == {}
    assert advise(attribute(Profile.build({}))) == []


def test_evidence_has_the_numbers() -> None:
    """What is said is what the profile holds."""
    assert advice_on(Run(wait=300))["data_loading"].evidence == (
        "25% of step time is spent waiting for data, 300 µs in each of 4 steps; the profile does not show whether "
        "worker processes load the data"
    )
    graphs = advice_on(Run(kernels=SHORT, gap=8))["cuda_graphs"]
    assert graphs.evidence == (
        "67% of step time is spent waiting for launches, and each step runs the same 30 kernels, 4.0 µs on average"
    )
    assert graphs.layers == ["net.a"]
    straggler = advice_on(Run(devices=(0, 1, 2), slow=2))["stragglers"]
    assert straggler.evidence.startswith("GPU 2 of process 1 is busy 2.00 times as long as the median of 3 GPUs")


def test_most_time_comes_first() -> None:
    """The piece of advice that is about the most time stands on top."""
    table = by_advice(attribute(Run(kernels=[(SINGLE, 500), (ELEMENTWISE, 200), (ELEMENTWISE, 200)], wait=300).build()))
    assert table["rule"].to_list() == ["mixed_precision", "fusion", "data_loading"]
    assert table["saves"].is_sorted(descending=True)
    assert table.row(0, named=True)["layers"] == ["net.a"]


def test_code_is_python_or_a_command() -> None:
    """What is to be tried can be copied: it compiles, or it is a command of annot with options that exist."""
    said = [advice for speaks, _ in CASES.values() for advice in advise(attribute(speaks.build()))]
    assert sum(map(check_commands, said)) >= 5
    for advice in said:
        if advice.rule != "coverage":
            lines = [line for line in advice.code.split("\n") if not line.startswith("annot ")]
            compile(
                "\n".join(lines).replace("(model.parameters(), ..., ", "(model.parameters(), "), advice.rule, "exec"
            )


# The advice "coverage" is about no layer.
@pytest.mark.parametrize("rule", every_third(rule for rule in CASES if rule != "coverage"))
def test_keras_is_not_told_to_write_pytorch(rule: str) -> None:
    """Where layers are those of Keras, what is to be tried is Keras or TensorFlow, and can be copied."""
    speaks = replace(CASES[rule][0])
    speaks.text = speaks.text.replace("net.", "net/")
    for advice in advice_on(speaks).values():
        said = advice.code + advice.advice
        assert not re.search(r"torch|DataLoader|DistributedDataParallel|\.item\(|channels_last\)", said), advice
        lines = [line for line in advice.code.split("\n") if not line.startswith("annot ")]
        compile("\n".join(lines), advice.rule, "exec")
    assert (rule in advice_on(speaks)) == (rule != "cudnn_benchmark")


_COMPILED = ("compile", "compile-blocks")
CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "data_loading": (("workers",), ("prefetch", "cache")),
    "synchronous_copies": ((), ("steps-per-execution",)),
    "pageable_copies": (("pinned",), ("prefetch",)),
    "host_copies": ((), ("prefetch",)),
    "cuda_graphs": (("compile-reduce-overhead", "cuda-graphs"), ("jit",)),
    "host_bound": ((*_COMPILED, "compile-reduce-overhead", "cuda-graphs"), ("steps-per-execution", "no-eager")),
    "short_kernels": ((*_COMPILED, "compile-reduce-overhead"), ("jit",)),
    "mixed_precision": (("bf16", "tf32"), ("mixed-bf16",)),
    "channels_last": (("channels-last",), ()),
    "cudnn_benchmark": (("cudnn-benchmark",), ()),
    "fusion": (_COMPILED, ("jit",)),
    "optimizer": (("fused", "foreach"), ("jit",)),
}
"""Changes of PyTorch and of Keras that rules name. Other rules name none."""


@pytest.mark.parametrize("rule", sorted(set(CASES) - {"coverage"}))
def test_rules_name_the_changes_of_the_framework(rule: str) -> None:
    of_torch, of_keras = CHANGES.get(rule, ((), ()))
    speaks = replace(CASES[rule][0])
    assert advice_on(speaks)[rule].changes == of_torch
    speaks.text = speaks.text.replace("net.", "net/")
    if rule != "cudnn_benchmark":
        assert advice_on(speaks)[rule].changes == of_keras


@pytest.mark.parametrize(("devices", "dtype"), [([], "bfloat16"), ([V100], "float16")])
def test_keras_gets_a_policy_of_the_dtype_that_the_device_has(devices: list[dict[str, object]], dtype: str) -> None:
    run = Run([(SINGLE, 900)], text="net/a Dense [64,1024]f32 |fwd", meta={"devices": devices})
    said = advice_on(run)["mixed_precision"]
    assert said.code == f'keras.mixed_precision.set_global_policy("mixed_{dtype}")'
    assert said.changes == ("mixed-bf16" if dtype == "bfloat16" else "mixed-fp16",)
    in_torch = advice_on(replace(run, text="net.a Linear [64,1024]f32 |fwd"))["mixed_precision"]
    assert in_torch.changes == (("bf16", "tf32") if dtype == "bfloat16" else ("fp16",))


@pytest.mark.parametrize(
    ("at", "below"),
    [
        # Quartiles of 902 and 1,103 µs around a median of 1,002.5 µs: 20.05 %.
        (Run(steps=12, slower=201), Run(steps=12, slower=200)),
        (Run(steps=8, slower=250), Run(steps=7, slower=250)),
        # Of 600 µs that long steps take more, `host_bound` advises on 299 or on 301.
        (Run(steps=12, lengths=(1000, 1600) * 6, slower=301), Run(steps=12, lengths=(1000, 1600) * 6, slower=299)),
    ],
)
def test_steps_are_uneven_from_a_threshold_on(at: Run, below: Run) -> None:
    assert "uneven_steps" in advice_on(at)
    assert "uneven_steps" not in advice_on(below)


@pytest.mark.parametrize(
    ("run", "why", "causes"),
    [
        (
            Run(steps=13, lengths=(902, 1902) * 6 + (902,), slower=900),
            "their GPU work differs", "90% is Tensor Cores and 10% is waiting for launches",
        ),
        (Run(steps=13, lengths=(902, 1902) * 6 + (902,), slower=901), "their GPU work differs", "90% is Tensor Cores"),
        (
            Run([(TENSOR, 2000)], steps=13, lengths=(2002, 2502) * 6 + (2002,), slower=251),
            "their GPU work differs", "50% is Tensor Cores and 50% is waiting for launches",
        ),
        (
            Run([(TENSOR, 2000)], steps=13, lengths=(2002, 2502) * 6 + (2002,), slower=249),
            "their times vary", "50% is waiting for launches and 50% is Tensor Cores",
        ),
        (
            Run([("k", 2000)], steps=13, lengths=(2002, 2502) * 6 + (2002,), slower=251),
            "their GPU work differs", "50% is other kernels and 50% is waiting for launches",
        ),
    ],
)  # fmt: skip
def test_uneven_steps_name_what_long_steps_spend_their_time_on(run: Run, why: str, causes: str) -> None:
    said = advice_on(run)["uneven_steps"]
    assert said.advice == f"Compare steps of similar length only: {why}."
    assert said.evidence.partition("long steps take more, ")[2] == causes


def test_uneven_steps_with_a_reason_get_the_advice_on_it() -> None:
    """Steps that wait for launches of other code get advice on that, and not on the variation that follows."""
    said = advice_on(Run(steps=12, lengths=(1000, 1500) * 6))
    assert "host_bound" in said
    assert "uneven_steps" not in said
    kernels = advice_on(Run(steps=12, slower=250))["uneven_steps"]
    assert kernels.advice == "Compare steps of similar length only: their GPU work differs."
    assert kernels.evidence.endswith("of the time that long steps take more, 100% is Tensor Cores")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command and return what it printed."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> str:
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    return run


def test_report_of_advice_and_its_line(printed: Callable[..., str], tmp_path: Path) -> None:
    """`--by advice` prints what, why, where and how; the table of layers says how many pieces there are."""
    path = in_float32(training(device=True)).write(tmp_path / "run.sqlite")
    lines = printed("report", path, "--by", "advice").partition("\n\n")[2].splitlines()
    assert lines[0] == "1. Run matrix multiplications on Tensor Cores: use bfloat16, or at least TF32."
    assert lines[1] == "   Saves: at most 94.6% of the step"
    assert lines[2].startswith(
        "   Why: 95% of step time is spent in float32 matrix multiplications outside Tensor Cores"
    )
    assert lines[3] == "   Where: features.0, classifier.1"
    below = " ".join(printed("report", path, "--by", "layer").split())
    assert "Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least TF32. Saves at most" in below
    assert below.endswith("94.6% of the step. Reasons and code: annot report … --by advice")
    host = training(device=False).write(tmp_path / "host.sqlite")
    assert "dvice" not in printed("report", host)
    assert "\n\nNo advice for this profile" in printed("report", host, "--by", "advice")


def test_report_of_bottlenecks(printed: Callable[..., str], tmp_path: Path) -> None:
    """The table has the phases and batch sizes, and no column of which nothing is known."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    lines = printed("report", path, "--columns", "roofline", "--total").partition("\n\n")[2].splitlines()
    assert lines[0] == "Roofline and bottleneck of each layer in total, ms"
    heads = lines[1].split()
    assert heads[:7] == ["Layer", "Phase", "Time", "Share", "FLOP/s", "FLOP/B", "Batch"]
    assert not {"Bound", "Roof", "Stall"} & set(heads)
    backward = [line for line in lines if line[2:].startswith("features.0 Conv2d") and "backward" in line]
    assert backward[-1].split()[2:5] == ["backward", "1.500", "43.1%"]
    rows = printed("report", path, "--columns", "roofline", "--format", "csv").splitlines()
    assert [row.split(",")[3] for row in rows if row.startswith("features.0,Conv2d,backward")] == ["32", "16"]


@pytest.mark.parametrize("view", ["--by advice", "--columns roofline"])
def test_several_profiles_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], view: str) -> None:
    """Advice is about one rank."""
    paths = [str(training(device=True).write(tmp_path / f"rank{rank}.sqlite")) for rank in range(2)]
    assert main(["report", *paths, *view.split()]) == 1
    assert f"{view} needs a single rank: use --rank N" in capsys.readouterr().err


def test_waits_are_read_from_exports(tmp_path: Path) -> None:
    """The names of API calls come from the file, so that waiting shows for real profiles, too."""
    profile = training(device=True)
    for zero in (0, 2_200 * US):
        profile.call(zero + 900 * US, zero + 1_600 * US, 5_000 + zero)
        profile.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["nameId"] = profile.string("cudaDeviceSynchronize_v3020")
    for row in profile.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["end"] = row["start"] + (row["end"] - row["start"]) // 20
    said = {advice.rule: advice for advice in advise(attribute(load(profile.write(tmp_path / "run.sqlite"))))}
    assert said["synchronous_copies"].evidence.startswith("45% of step time is spent synchronising, 1.0 times per step")


INDUCTOR, GRAPH = "triton_poi_fused_add_relu_0", ("cudaGraphLaunch_v10000", 1)


@pytest.mark.parametrize(
    ("kernel", "text", "code"),
    [
        ("saxpy(int, float, float const*, float*)", "solve", "cudaGraphLaunch"),
        ("saxpy(int, float, float const*, float*)", "net.a Linear |fwd", "torch.compile"),
        ("void at::native::vectorized_elementwise_kernel<4>", "solve", "torch.compile"),
    ],
)
def test_programs_without_a_framework_get_cuda_calls(kernel: str, text: str, code: str) -> None:
    """PyTorch code helps neither a CUDA program nor its author."""
    said = advice_on(Run(kernels=[(kernel, 100)] * 9, gap=900, text=text))
    assert code in said["host_bound"].code
    of_pytorch = [advice.rule for advice in said.values() if "torch" in advice.code or "Loader" in advice.code]
    assert bool(of_pytorch) == (code == "torch.compile")
    assert any(advice.changes for advice in said.values()) == (code == "torch.compile")


def test_batches_of_a_serving_engine_are_not_those_of_a_loader() -> None:
    """The size of a batch is a number of requests there."""
    short = [(TENSOR, 9)] * 30
    run = Run(kernels=short, gap=8)
    assert "batch_size" in advice_on(run)
    profile = run.build()
    steps = pl.col("text").str.replace(r"Batch (\d+) \|step", "step[DECODE bs=3$1]")
    served = replace(profile, ranges=profile.ranges.with_columns(steps))
    said = {advice.rule: advice for advice in advise(attribute(served))}
    assert "batch_size" not in said
    assert "--disable-cuda-graph" in said["cuda_graphs"].code


def test_texts_belong_to_rules() -> None:
    """Each translation is of a rule, and each collective has advice and code."""
    assert {*texts().pytorch, *texts().keras, *texts().cuda} <= {rule.__name__ for rule in RULES}  # type: ignore[attr-defined]
    assert all(text.advice and text.code for passes in texts().collectives.values() for text in passes.values())
    assert {name for passes in texts().collectives.values() for name in passes} == {"backward", "forward", "any"}
