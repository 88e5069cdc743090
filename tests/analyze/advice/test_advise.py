"""Advice: each rule has a profile where it speaks and one where it is silent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from advice_commands import check_commands
from advice_runs import ELEMENTWISE, LAYOUT, NCCL, P100, SINGLE, TENSOR, US, V100, Run, advice_on
from matrices import every_third
from sqlite_profile import in_float32, training
from tables import Rows

from annot.analyze.advice import RULES, Facts, advise, by_advice, cpu, operators
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.profile import Profile
from annot.read.formats import load

CONV = "net.conv Conv2d [64,3,224,224]bf16 |fwd"
CONV_KERNEL = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn"
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
    "uneven_steps": (Run(steps=12, slower=205), Run(steps=12, slower=200)),
    "coverage": (Run(steps=0), Run()),  # the profile of `_lost`
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


def _lost() -> Profile:
    """Kernels outside of all ranges."""
    return (
        Rows().kernel(10, (20, 900)).range("net.a Linear [8,8]f32 |fwd", 1000, 1100).kernel(1010, (1020, 1100)).build()
    )


@pytest.mark.parametrize("rule", CASES)
def test_rule_speaks_and_is_silent(rule: str) -> None:
    """A rule speaks where its evidence is, with numbers and something to try, and not where it is not."""
    speaks, silent = CASES[rule]
    profile = _lost() if rule == "coverage" else speaks.build()
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


def test_gpus_that_are_as_slow_have_one_order() -> None:
    """The first of them is named, in every run."""
    built = Run(devices=(0, 1, 2, 3, 9), slow=2).build()
    slow = built.kernels.filter(pl.col("device") == 9)
    more = [slow.with_columns(pl.lit(device, slow["device"].dtype).alias("device")) for device in (8, 7, 6)]
    profile = Profile.build(
        built.meta, ranges=built.ranges, launches=built.launches, kernels=pl.concat([built.kernels, *more])
    )
    said = {advice.rule: advice for advice in advise(attribute(profile))}
    assert said["stragglers"].evidence.startswith("GPU 6 of process 1 is busy 2.00 times as long")


def test_what_to_try_depends_on_the_device() -> None:
    """A V100 has no bfloat16 and no TF32, so it is told float16 with a scaler."""
    single = [(SINGLE, 900)]
    assert "bfloat16" in advice_on(Run(kernels=single))["mixed_precision"].code
    volta = advice_on(Run(kernels=single, meta={"devices": [V100]}))["mixed_precision"]
    assert "float16" in volta.code
    assert "GradScaler" in volta.code
    assert "bfloat16" not in volta.code


@pytest.mark.parametrize(
    ("text", "kernel", "advised"),
    [
        ("net.a Linear [64,64]f32 out=64 |fwd", "triton_tem_fused_mm_3", False),
        ("net.a Linear [64,60]f16 out=64 |fwd", "triton_tem_fused_mm_3", False),
        ("net.a Linear [64,64]f16 out=64 |fwd", "gemvx_kernel", False),
        ("net.a Linear [64,64]f32 out=64 autocast=bf16 |fwd", "gemvx_kernel", False),
        ("net.a Linear [64,64]f32 out=64 |fwd", "gemvx_kernel", True),
    ],
)
def test_no_advice_on_what_nobody_knows(text: str, kernel: str, advised: bool) -> None:
    """A product whose kernel does not tell, or whose layer says half precision, is not called one in 32 bits."""
    said = advice_on(Run(kernels=[(kernel, 900)], text=text))
    assert ("mixed_precision" in said) == advised
    assert "multiples_of_eight" not in said


@pytest.mark.parametrize(("length", "advised"), [(110, True), (90, False)])
def test_fusing_needs_a_tenth_of_the_step(length: int, advised: bool) -> None:
    """Two memory-bound kernels beside each other with 11 % of the step are worth advice, with 9 % they are not."""
    kernels = [(TENSOR, 1000 - length), (ELEMENTWISE, length // 2), (ELEMENTWISE, length // 2)]
    assert ("fusion" in advice_on(Run(kernels=kernels))) == advised
    triton = [(TENSOR, 500), ("triton_poi_fused_add_relu_0", 200), ("triton_poi_fused_add_relu_0", 200)]
    assert "fusion" not in advice_on(Run(kernels=triton))


def test_turing_has_no_bfloat16() -> None:
    """Without a data sheet the compute capability shows what Tensor Cores support."""
    turing = {"name": "NVIDIA GeForce RTX 2080 Ti", "computeMajor": 7, "computeMinor": 5, "numSms": 68}
    advice = advice_on(Run(kernels=[(SINGLE, 900)], meta={"devices": [turing]}))["mixed_precision"]
    assert "float16" in advice.advice
    assert "bfloat16" not in advice.advice + advice.code


def test_names_without_a_unit_are_no_claim() -> None:
    """A kernel that names a dtype and no unit may use TF32 on Tensor Cores."""
    kernels = [("void cutlass::gemm_nn_128x128<float>(float*, float*)", 500), ("elementwise_add", 490)]
    for text in ("net.a Linear [64,1024]f32 |fwd", "net.a Linear |fwd"):
        assert advice_on(Run(kernels=kernels, text=text)) == {}


def test_graphs_need_steps_that_are_alike() -> None:
    """Steps with different kernels cannot be one graph."""
    steps = advice_on(Run(kernels=SHORT, gap=8, steps=2, first=[(TENSOR, 4)]))
    assert "cuda_graphs" not in steps


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


def test_five_layers_with_idle_time_are_named() -> None:
    rows = Rows()
    for layer in range(6):
        begin = 1000 * (layer + 1)
        rows.range(f"net.{layer} Linear |fwd", begin * US, (begin + 999) * US)
        rows.kernel((begin + 1) * US, ((begin + 500 + layer) * US, (begin + 990) * US), name=TENSOR)
    assert Facts(attribute(rows.build())).idle_layers == [f"net.{layer}" for layer in (5, 4, 3, 2, 1)]


@pytest.mark.parametrize(("gap", "layers"), [(10, ["net.a", "net.b"]), (9, ["net.a"])])
def test_layers_with_little_idle_time_are_not_named(gap: int, layers: list[str]) -> None:
    """A place of idle time has at least a tenth of it: 10 of 100 µs, and not 9 of 99."""
    rows = Rows()
    for layer, begin, idle in (("net.first", 100, 0), ("net.a", 1000, 90), ("net.b", 2000, gap)):
        start = begin + idle
        rows.kernel((begin + 1) * US, (start * US, (start + 50) * US), name=TENSOR)
        rows.range(f"{layer} Linear [64,1024]bf16 |fwd", begin * US, (start + 60) * US)
    assert Facts(attribute(rows.build())).idle_layers == layers


def test_both_sides_of_other_thresholds() -> None:
    """Rules with several conditions are silent if one of them fails."""
    graph = [(TENSOR, 50)] * 30
    assert "cuda_graphs" in advice_on(Run(kernels=graph, gap=8))
    assert "cuda_graphs" not in advice_on(Run(kernels=[(TENSOR, 51)] * 30, gap=8))
    wait = ("cudaStreamSynchronize_v3020", 1)
    assert "cuda_graphs" in advice_on(Run(kernels=graph, gap=8, calls=[wait] * 2))
    waiting = advice_on(Run(kernels=graph, gap=8, calls=[wait] * 3))  # a graph cannot contain waits
    assert "cuda_graphs" not in waiting
    assert "host_bound" in waiting
    waits = Run(gap=100, calls=[("cudaStreamSynchronize_v3020", 80)])
    assert 0.05 <= advice_on(waits)["synchronous_copies"].saves < 0.06
    assert "synchronous_copies" not in advice_on(Run(gap=100, calls=[("cudaStreamSynchronize_v3020", 65)]))
    short = [(TENSOR, 9)] * 30
    assert "batch_size" not in advice_on(Run(kernels=short, gap=0))
    assert "uneven_steps" in advice_on(Run(steps=8, slower=250))
    assert "uneven_steps" not in advice_on(Run(steps=7, slower=250))
    late = Run(devices=(0, 1), kernels=[(TENSOR, 90)], lengths=(1000,) * 4, slow=2)
    assert "stragglers" in advice_on(late)
    assert "stragglers" not in advice_on(replace(late, kernels=[(TENSOR, 40)]))


HALF, ODD = "cutlass_80_simt_hgemm_128x64", "net.a Linear [64,1023]bf16 |fwd"
ALONE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)"


@pytest.mark.parametrize(
    ("rule", "at", "below"),
    [
        # Steps take 2 µs more than their kernels: 50 of 1,000 µs, and 49.
        ("mixed_precision", Run([(SINGLE, 50), (TENSOR, 948)]), Run([(SINGLE, 49), (TENSOR, 949)])),
        ("multiples_of_eight", Run([(HALF, 50), (TENSOR, 948)], text=ODD), Run([(HALF, 49), (TENSOR, 949)], text=ODD)),
        ("channels_last", Run([(LAYOUT, 50), (TENSOR, 948)]), Run([(LAYOUT, 49), (TENSOR, 949)])),
        ("data_loading", Run([(TENSOR, 898)], wait=100), Run([(TENSOR, 899)], wait=99)),
        (
            "cudnn_benchmark",
            Run([(CONV_KERNEL, 100), (TENSOR, 898)], text=CONV),
            Run([(CONV_KERNEL, 99), (TENSOR, 899)], text=CONV),
        ),
        # The first step runs at most 1.1 times as many kernels.
        (
            "cudnn_benchmark",
            Run([(CONV_KERNEL, 40)] * 20, text=CONV, first=TRIED),
            Run([(CONV_KERNEL, 40)] * 19, text=CONV, first=TRIED),
        ),
        (
            "cudnn_benchmark",
            Run([(CONV_KERNEL, 900)], text=CONV, steps=2),
            Run([(CONV_KERNEL, 900)], text=CONV, steps=1),
        ),
        ("fusion", Run([(ELEMENTWISE, 50)] * 2 + [(TENSOR, 898)]), Run([(ELEMENTWISE, 49)] * 2 + [(TENSOR, 900)])),
        ("short_kernels", Run([(TENSOR, 9)] * 10 + [(SINGLE, 500)]), Run([(TENSOR, 9)] * 9 + [(SINGLE, 300)])),
        ("short_kernels", Run([(TENSOR, 9)] * 11), Run([(TENSOR, 10)] * 11)),
        ("short_kernels", Run([(TENSOR, 8)] * 25 + [(SINGLE, 1798)]), Run([(TENSOR, 8)] * 25 + [(SINGLE, 1799)])),
        ("optimizer", Run(optimizer=200), Run(optimizer=199)),
        ("stragglers", *(Run([(TENSOR, 500)], devices=(0, 1, 2), slow=slow) for slow in (1.2, 1.198))),
        ("synchronous_copies", *(Run(gap=100, calls=[("cudaStreamSynchronize_v3020", us)]) for us in (67, 66))),
        ("optimizer", Run([(TENSOR, 6788)], optimizer=210), Run([(TENSOR, 6789)], optimizer=210)),
    ],
)  # fmt: skip
def test_rules_speak_from_their_threshold_on(rule: str, at: Run, below: Run) -> None:
    assert rule in advice_on(at)
    assert rule not in advice_on(below)


@pytest.mark.parametrize(
    ("pinned", "rule", "words"),
    [
        (False, "pageable_copies", "from pageable memory"), (True, "host_copies", "from pinned memory"),
        (None, "host_copies", "the profile does not show it"),
    ],
)  # fmt: skip
def test_advice_on_copies_reads_the_kind_of_memory(pinned: bool | None, rule: str, words: str) -> None:
    """Pinned memory is advised where the profile shows pageable memory, and nowhere else."""
    said = advice_on(Run(copy=200, pinned=pinned))
    assert words in said[rule].evidence
    assert {"pageable_copies", "host_copies"} & said.keys() == {rule}
    assert ("pin_memory" in said[rule].code) == (pinned is False)


WAITS = {
    "cudaDeviceSynchronize_v3020": "torch.cuda.synchronize()", "cudaMemcpy_v3020": "copy asynchronously",
    "cudaStreamSynchronize_v3020": ".item()",
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_the_call_that_waits_is_what_to_remove(name: str) -> None:
    """An explicit synchronisation is not told to copy asynchronously."""
    assert WAITS[name] in advice_on(Run(gap=100, calls=[(name, 400)]))["synchronous_copies"].advice


def test_memory_that_is_freed_and_memory_that_grows() -> None:
    """Allocations without frees are those of a cache that grows, which the caching allocator cannot avoid."""
    grows = advice_on(Run(gap=300, calls=[("cudaMalloc_v3020", 200)]))["allocations"]
    assert "expandable_segments" in grows.code
    again = advice_on(Run(gap=300, calls=[("cudaMalloc_v3020", 100), ("cudaFree_v3020", 100)]))["allocations"]
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in again.code


def test_uneven_steps_with_a_reason_get_the_advice_on_it() -> None:
    """Steps that wait for launches of other code get advice on that, and not on the variation that follows."""
    said = advice_on(Run(steps=12, lengths=(1000, 1500) * 6))
    assert "host_bound" in said
    assert "uneven_steps" not in said
    kernels = advice_on(Run(steps=12, slower=250))["uneven_steps"]
    assert kernels.advice == "Compare steps of similar length only: their GPU work differs."
    assert kernels.evidence.endswith("of the time that long steps take more, 100% is Tensor Cores")


def test_coverage_is_about_launches_that_ranges_could_own() -> None:
    """Kernels without a recorded launch lie in no range whatever the program does; nor does time outside the steps."""
    lost = _lost()
    unknown = lost.kernels.with_columns(pl.when(pl.col("end") != 900).then("correlation").alias("correlation"))
    assert "coverage" in {one.rule for one in advise(attribute(lost))}
    assert "coverage" not in {one.rule for one in advise(attribute(replace(lost, kernels=unknown)))}
    rows = Rows()
    for step in range(4):
        at = 1000 + 1000 * step
        rows.range(f"Batch {step} |step", at, at + 900).range("fc Linear |fwd", at, at + 900)
        rows.kernel(at + 10, (at + 10, at + 600))
    before = rows.kernel(10, (20, 900)).build()
    inside = rows.kernel(990, (5900, 9900)).build()
    assert "coverage" not in {one.rule for one in advise(attribute(before))}  # 27 % of GPU time
    assert "coverage" in {one.rule for one in advise(attribute(inside))}  # most of the GPU time is outside the steps


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


def test_launch_bound_and_cpu_bound_runs() -> None:
    """A run is bound by what takes longer: waiting for launches of less than 1 ms, or for other code of the CPU."""
    short, long = (advice_on(Run(kernels=[(TENSOR, 100)] * 9, gap=gap))["host_bound"] for gap in (900, 1100))
    assert short.advice.endswith("the run is launch-bound.")
    assert "is spent waiting for launches of " in short.evidence
    assert long.advice.endswith("the run is CPU-bound.")
    assert "is spent waiting for the CPU" in long.evidence


INDUCTOR, GRAPH = "triton_poi_fused_add_relu_0", ("cudaGraphLaunch_v10000", 1)


@pytest.mark.parametrize(
    ("kernel", "text", "calls", "code", "evidence"),
    [
        (TENSOR, "net.a Linear |fwd", [], "model = torch.compile(model)", "on average"),
        (INDUCTOR, "net.a Linear |fwd", [], 'mode="reduce-overhead")', "the model is compiled"),
        (TENSOR, "CompiledGraph#0 |other", [], 'mode="reduce-overhead")', "the model is compiled"),
        (TENSOR, "Torch-Compiled Region: 0/0", [GRAPH], "fullgraph=True)", "compiled and launches CUDA graphs"),
        (TENSOR, "net.a Linear |fwd", [GRAPH], "with torch.cuda.graph(graph):", "the run launches CUDA graphs"),
        (INDUCTOR, "step[DECODE bs=32]", [], "without --disable-cuda-graph", "the model is compiled"),
        (TENSOR, "step[DECODE bs=32]", [GRAPH], "--max-running-requests", "the run launches CUDA graphs"),
        (
            TENSOR,
            "execute_31_context_0(sq0sk0sqsq0sqsk0)_generation_31(sq31sk9)",
            [],
            "SGLang: without --dis",
            "on average",
        ),
        (TENSOR, "execute_new_1_cached_3", [], "without --enforce-eager", "on average"),
        (TENSOR, "[Executor] _forward_step 7: 1 ctx reqs, 31 gen reqs", [], "graphs.yaml", "on average"),
    ],
)
def test_what_saves_launches_depends_on_what_the_run_has(
    kernel: str, text: str, calls: list[tuple[str, int]], code: str, evidence: str
) -> None:
    """Compiled code, captured graphs and serving engines need other changes than torch.compile."""
    said = advice_on(Run(kernels=[(kernel, 100)] * 9, gap=900, text=text, calls=calls))["host_bound"]
    assert code in said.code
    assert said.code.count("torch.compile") == ("compile" in code or "mode" in code or "fullgraph" in code)
    assert evidence in said.evidence


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


@pytest.mark.parametrize(("written_as", "is_cuda"), [("nsys_sqlite", True), ("kineto", False), ("xplane", False)])
def test_only_frameworks_write_some_formats(written_as: str, is_cuda: bool) -> None:
    """A trace of torch.profiler is of PyTorch, whatever its kernels are."""
    profile = Run(kernels=[("saxpy(int, float)", 100)] * 9, text="solve").build()
    facts = Facts(attribute(replace(profile, meta=profile.meta | {"format": written_as})))
    assert facts.in_cuda == is_cuda


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


def test_graphs_that_were_traced_as_a_whole_need_another_recording() -> None:
    """Ranges around the launch of a graph do not tell its kernels apart."""
    lost = _lost()
    assert "emit_ranges" in {one.rule: one for one in advise(attribute(lost))}["coverage"].code
    graphs = lost.kernels.with_columns(name=pl.lit("CUDA graph 4"))
    said = {one.rule: one for one in advise(attribute(replace(lost, kernels=graphs)))}["coverage"]
    assert "--cuda-graph-trace=node" in said.code
    assert "traced as a whole" in said.evidence


@pytest.mark.parametrize(("outside", "advised"), [(30, True), (29, False)])
def test_coverage_needs_three_tenths_of_the_gpu_time_outside_ranges(outside: int, advised: bool) -> None:
    rows = Rows().kernel(10, (20, 20 + outside)).range("net.a Linear [8,8]f32 |fwd", 1000, 1100)
    said = advise(attribute(rows.kernel(1010, (1020, 1120 - outside)).build()))
    assert ("coverage" in {advice.rule for advice in said}) == advised
