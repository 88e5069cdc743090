"""Rules about kernels and launches: each threshold from both sides, and the numbers of the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from advice_runs import CONV, CONV_KERNEL, ELEMENTWISE, LAYOUT, SINGLE, TENSOR, US, V100, Run, advice_on, without_steps
from operator_traces import A100

from annot.analyze.advice import Advice, Facts
from annot.attribution.attribute import attribute

HALF, ODD = "cutlass_80_simt_hgemm_128x64", "net.a Linear [64,1023]bf16 |fwd"
SHORT = [(TENSOR, 4)] * 30
TRIED = [(f"{CONV_KERNEL}_stage{stage}", 100) for stage in (3, 4)]
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)"
COPY = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
INDUCTOR = "triton_poi_fused_add_relu_0"
NINE = [(TENSOR, 9)] * 100 + [(TENSOR, 10)] * 4
GRAPH = ("cudaGraphLaunch_v10000", 1)
WAIT = ("cudaStreamSynchronize_v3020", 1)


def _after(gap: int, kernels: list[tuple[str, int]], **more: Any) -> Run:
    """A run in which the device is idle before the first kernel of each step (µs)."""
    return Run(kernels, gap=(gap, *[0] * (len(kernels) - 1)), **more)


@pytest.mark.parametrize(
    ("rule", "at", "below"),
    [
        # Steps take 2 µs more than their kernels: 50 of 1,000 µs, and 49.
        ("cuda_graphs", Run([(TENSOR, 4)] * 10, gap=8), Run([(TENSOR, 4)] * 9, gap=8)),
        ("mixed_precision", Run([(SINGLE, 50), (TENSOR, 948)]), Run([(SINGLE, 49), (TENSOR, 949)])),
        ("multiples_of_eight", Run([(HALF, 50), (TENSOR, 948)], text=ODD), Run([(HALF, 49), (TENSOR, 949)], text=ODD)),
        ("channels_last", Run([(LAYOUT, 50), (TENSOR, 948)]), Run([(LAYOUT, 49), (TENSOR, 949)])),
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
        # Two of three elementwise kernels run one after the other: 100 of 1,000 µs, and of 1,001.
        (
            "fusion",
            Run([(ELEMENTWISE, 50)] * 2 + [(TENSOR, 424), (ELEMENTWISE, 50), (TENSOR, 424)]),
            Run([(ELEMENTWISE, 50)] * 2 + [(TENSOR, 424), (ELEMENTWISE, 50), (TENSOR, 425)]),
        ),
        ("short_kernels", Run([(TENSOR, 9)] * 10 + [(SINGLE, 500)]), Run([(TENSOR, 9)] * 9 + [(SINGLE, 300)])),
        ("short_kernels", Run([(TENSOR, 9)] * 11), Run([(TENSOR, 10)] * 11)),
        ("short_kernels", Run([(TENSOR, 8)] * 25 + [(SINGLE, 1798)]), Run([(TENSOR, 8)] * 25 + [(SINGLE, 1799)])),
        ("optimizer", Run(optimizer=200), Run(optimizer=199)),
        ("optimizer", Run([(TENSOR, 6788)], optimizer=210), Run([(TENSOR, 6789)], optimizer=210)),
        # The device waits for launches for 105 of 1,050 µs, and for 104 of 1,049 µs.
        ("cuda_graphs", _after(108, [(TENSOR, 47)] * 20, steps=1), _after(107, [(TENSOR, 47)] * 20, steps=1)),
        ("batch_size", _after(108, NINE, steps=1), _after(107, NINE, steps=1)),
        ("cuda_graphs", Run([(TENSOR, 50)] * 10, gap=8), Run([(TENSOR, 50)] * 9 + [(TENSOR, 51)], gap=8)),
        ("cuda_graphs", Run(SHORT, gap=8, calls=[WAIT] * 2), Run(SHORT, gap=8, calls=[WAIT] * 3)),
        ("cuda_graphs", Run(SHORT, gap=8), Run(SHORT, gap=8, calls=[GRAPH])),
        ("cuda_graphs", Run(SHORT, gap=8, steps=1), Run(SHORT, gap=8, steps=2, first=[(TENSOR, 4)])),
        # It waits for 400 of 4,000 µs and for 396 of 3,996 µs.
        ("host_bound", Run(gap=98), Run(gap=97)),
        ("host_bound", Run([(TENSOR, 100)] * 10, gap=50, steps=1), Run([(TENSOR, 100)] * 9, gap=50, steps=1)),
        ("host_bound", Run([(TENSOR, 100)], gap=50, steps=2), Run([(TENSOR, 100)], gap=50, steps=1)),
        ("batch_size", Run([(TENSOR, 9)] * 9 + [(TENSOR, 18)], gap=8), Run([(TENSOR, 9)] * 9 + [(TENSOR, 19)], gap=8)),
    ],
)
def test_rules_speak_from_their_threshold_on(rule: str, at: Run, below: Run) -> None:
    assert rule in advice_on(at)
    assert rule not in advice_on(below)


@pytest.mark.parametrize(
    ("rule", "run", "percent", "words", "saves"),
    [
        (
            "cuda_graphs",
            Run(SHORT, gap=8, steps=1),
            65,
            "waiting for launches, and the step runs 30 kernels, 4.0 µs on average",
            237 / 362,
        ),
        (
            "cuda_graphs",
            Run([(TENSOR, 49)] * 10 + [(TENSOR, 4)] * 10, gap=8, steps=2),
            23,
            "waiting for launches, and each step runs the same 20 kernels, 26.5 µs on average",
            (2 * 160 - 1) / (2 * 692),
        ),
        # A CUDA graph saves the waits for launches.
        (
            "host_bound",
            Run([(TENSOR, 40)] * 10, gap=(1100, *[10] * 9)),
            69,
            "waiting for the CPU",
            1098 / 1592,
        ),
        (
            "host_bound",
            Run([(TENSOR, 100)] * 2, gap=(1100, 10)),
            84,
            "waiting for the CPU, and 1% waiting for launches of 2 kernels, 100.0 µs on average",
            1112 / 1312,
        ),
        ("host_bound", Run([(TENSOR, 100)] * 2, gap=(1100, 9)), 84, "waiting for the CPU", 1111 / 1311),
        (
            "batch_size",
            Run([(TENSOR, 9)] * 30, gap=8),
            47,
            "waiting for launches, and kernels take 9.0 µs on average at batch size 64",
            (4 * 240 + 3) / (4 * 512),
        ),
        (
            "mixed_precision",
            Run([(SINGLE, 600), (TENSOR, 398)]),
            60,
            "in float32 matrix multiplications outside Tensor Cores",
            0.6,
        ),
        # 19.5 TFLOP/s in float32 and 312 on Tensor Cores.
        (
            "mixed_precision",
            Run([(SINGLE, 600), (TENSOR, 398)], meta={"devices": [A100]}),
            60,
            "in float32 matrix multiplications outside Tensor Cores",
            0.6 * (1 - 19.5 / 312),
        ),
        (
            "multiples_of_eight",
            Run([(HALF, 600), (TENSOR, 398)], text="net.a Linear [64,1023]f16 out=1001 |fwd"),
            60,
            "in matrix multiplications outside Tensor Cores with sizes not divisible by 8, such as 1001, 1023",
            0.6,
        ),
        (
            "channels_last",
            Run([(LAYOUT, 600), (TENSOR, 398)]),
            60,
            "in conversions between NCHW and NHWC",
            0.6,
        ),
        (
            "cudnn_benchmark",
            Run([(CONV_KERNEL, 600), (TENSOR, 398)], text=CONV),
            60,
            "in convolutions with constant shapes, and the first step runs no extra kernels",
            0.6,
        ),
        (
            "fusion",
            Run([(ELEMENTWISE, 60)] * 4 + [(TENSOR, 379), (ELEMENTWISE, 60), (TENSOR, 319)]),
            24,
            "in 4 elementwise, normalisation, softmax and reduction kernels that run one after another",
            0.24,
        ),
        (
            "short_kernels",
            Run([(TENSOR, 4)] * 20 + [(SINGLE, 318)]),
            20,
            "in 20 short kernels, 4.0 µs on average",
            0.2,
        ),
    ],
)
def test_evidence_has_the_numbers(rule: str, run: Run, percent: int, words: str, saves: float) -> None:
    said = advice_on(run)[rule]
    assert said.evidence == f"{percent}% of step time is spent {words}"
    assert said.saves == pytest.approx(saves)
    assert said.layers == ([] if rule == "batch_size" else [run.text.split()[0]])


def test_kernels_of_the_optimizer_are_counted_in_each_of_its_steps() -> None:
    said = advice_on(Run(optimizer=250))["optimizer"]
    assert said.evidence == "250 kernels per optimizer step take 22% of step time"
    assert said.saves == pytest.approx(250 / 1152)


def test_what_to_try_depends_on_the_device() -> None:
    """A V100 has no bfloat16 and no TF32, so it is told float16 with a scaler."""
    single = [(SINGLE, 900)]
    assert "bfloat16" in advice_on(Run(kernels=single))["mixed_precision"].code
    volta = advice_on(Run(kernels=single, meta={"devices": [V100]}))["mixed_precision"]
    assert "float16" in volta.code
    assert "GradScaler" in volta.code
    assert "bfloat16" not in volta.code
    assert "bfloat16" in advice_on(Run(kernels=single, meta={"devices": [A100]}))["mixed_precision"].code
    assert "bfloat16" in advice_on(Run(kernels=single, meta={"devices": [{"name": "X"}]}))["mixed_precision"].code


@pytest.mark.parametrize(
    ("text", "kernel", "advised"),
    [
        ("net.a Linear [64,64]f32 out=64 |fwd", "triton_tem_fused_mm_3", False),
        ("net.a Linear [64,60]f16 out=64 |fwd", "triton_tem_fused_mm_3", False),
        ("net.a Linear [64,64]f16 out=64 |fwd", "gemvx_kernel", False),
        ("net.a Linear [64,64]f32 out=64 autocast=bf16 |fwd", "gemvx_kernel", False),
        ("net.a Linear [64,64]f32 out=64 |fwd", "gemvx_kernel", True),
        ("net.a Linear [64,64]f32 [64,64]i64 |fwd", "gemvx_kernel", True),
        ("net.a Linear [64,64]bf16 [64,64]f32 |fwd", "gemvx_kernel", False),
        ("net.a Linear [64,64]f32 out=64 |fwd", HALF, False),
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


def test_launch_bound_and_cpu_bound_runs() -> None:
    """A run is bound by what takes longer: waiting for launches of less than 1 ms, or for other code of the CPU."""
    short, long = (advice_on(Run(kernels=[(TENSOR, 100)] * 9, gap=gap))["host_bound"] for gap in (900, 1100))
    assert short.advice.endswith("the run is launch-bound.")
    assert "is spent waiting for launches of " in short.evidence
    assert long.advice.endswith("the run is CPU-bound.")
    assert "is spent waiting for the CPU" in long.evidence


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


@pytest.mark.parametrize(("size", "twice"), [(1, 16), (8, 16), (9, 32), (60, 128), (64, 128)])
def test_twice_the_batch_size_is_a_multiple_of_sixteen(size: int, twice: int) -> None:
    run = Run([(TENSOR, 9)] * 10, gap=10, text=f"net.a Linear [{size},1024]bf16 |fwd")
    assert advice_on(run)["batch_size"].code == f"DataLoader(dataset, batch_size={twice})"
    assert "learning rate" not in advice_on(run)["batch_size"].advice
    training = replace(run, kernels=[*run.kernels, ("layer_norm_backward", 9)])
    assert "scale the learning rate with it" in advice_on(training)["batch_size"].advice


def test_copies_have_no_batch_size() -> None:
    """Nor does a run without kernels."""
    profile = Run([(TENSOR, 9)] * 10, gap=10, copy=9).build()
    assert "batch_size" in advice_on(profile)
    none = replace(profile, kernels=profile.kernels.clear())
    assert Facts(attribute(none)).idle["launch"] > 0.1
    assert "batch_size" not in advice_on(none)


def test_graphs_need_steps() -> None:
    assert "cuda_graphs" in advice_on(Run(SHORT, gap=8))
    assert "cuda_graphs" not in advice_on(without_steps(Run(SHORT, gap=8)))


@pytest.mark.parametrize(
    ("text", "command"),
    [("net.a Linear |fwd", "--columns roofline"), ("work |fwd", "--columns all"), ("", "")],
)
def test_the_command_shows_the_layers_that_wait(text: str, command: str) -> None:
    """The roofline is about layers of models, and a run without ranges has no table of layers."""
    profile = Run([(TENSOR, 100)] * 9, gap=1500, text=text or "x").build()
    said = advice_on(profile if text else replace(profile, ranges=profile.ranges.clear()))["host_bound"]
    assert ("annot report PROFILE" in said.code) == bool(command)
    assert command in said.code


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("Linear [64,1023]bf16", "1023"), ("Linear [64,1024]f16 out=1001", "1001"), ("Linear [1023,64]f16", None),
        ("Linear [64,1023]f16 out=1001", "1001, 1023"), ("Conv2d [64,3,224,224]f16 out=64", "3"),
        ("Conv2d [64,8,223,223]f16 out=64", None), ("Linear [64,1023]f32", None), ("Linear [1023]bf16", None),
        ("Linear [64,1023]bf16 [64,1024]bf16", "1023"), ("Linear [64,1024]bf16 [64,1023]bf16", None),
        ("Linear [64,1024]bf16 out=1000", None), ("Linear [1023,1]bf16", "1"),
    ],
)  # fmt: skip
def test_sizes_that_are_not_divisible_by_eight(text: str, sizes: str | None) -> None:
    """Channels of a convolution, features of other layers, and outputs, in 16 bits."""
    said = advice_on(Run([(HALF, 900)], text=f"net.a {text} |fwd"))
    assert ("multiples_of_eight" in said) == (sizes is not None)
    if sizes is not None:
        assert said["multiples_of_eight"].evidence.endswith(f"not divisible by 8, such as {sizes}")


def test_convolutions_of_several_shapes_are_not_benchmarked() -> None:
    rows = Run([(CONV_KERNEL, 900)], text=CONV)
    profile = rows.build()
    assert "cudnn_benchmark" in advice_on(profile)
    first = pl.col("text").str.replace("224,224", "192,192", literal=True)
    shapes = pl.when(pl.col("start") < 1_000 * US * 11).then(first).otherwise("text").alias("text")
    several = replace(profile, ranges=profile.ranges.with_columns(shapes))
    assert several.ranges["text"].n_unique() == profile.ranges["text"].n_unique() + 1
    assert "cudnn_benchmark" not in advice_on(several)
    assert "cudnn_benchmark" not in advice_on(Run([(CONV_KERNEL, 900)], text="net.a Linear [64,1024]bf16 |fwd"))


def _chain(*kernels: tuple[str, int, int]) -> dict[str, Advice]:
    """Advice on steps of kernels: name, length (µs) and stream."""
    profile = Run([(name, us) for name, us, _ in kernels]).build()
    streams = pl.Series("stream", [stream for _, _, stream in kernels] * 4, profile.kernels["stream"].dtype)
    return advice_on(replace(profile, kernels=profile.kernels.with_columns(streams)))


@pytest.mark.parametrize(
    ("kernels", "share"),
    [
        (((ELEMENTWISE, 100, 7), (ELEMENTWISE, 100, 7), (TENSOR, 798, 7)), 0.2),
        # On the second stream they follow those of the step before.
        (((ELEMENTWISE, 100, 7), (ELEMENTWISE, 100, 8), (TENSOR, 798, 7)), 0.1),
        (((ELEMENTWISE, 100, 7), (TENSOR, 798, 7), (ELEMENTWISE, 100, 8)), 0.1),
        # Calls of one reduction are independent, and two reductions are not.
        (((NORM, 100, 7), (NORM, 100, 7), (TENSOR, 798, 7)), None),
        (((NORM, 150, 7), (SUM, 150, 7), (TENSOR, 698, 7)), 0.3),
        (((NORM, 150, 7), (ELEMENTWISE, 150, 7), (TENSOR, 698, 7)), 0.3),
        (((ELEMENTWISE, 150, 7), (NORM, 150, 7), (TENSOR, 698, 7)), 0.3),
        # A copy is memory-bound, too; Triton's kernels are fused already.
        (((ELEMENTWISE, 150, 7), (COPY, 100, 7), (TENSOR, 748, 7)), 0.15),
        (((ELEMENTWISE, 150, 7), (INDUCTOR[:7] + "mine", 100, 7), (TENSOR, 748, 7)), None),
    ],
)
def test_kernels_are_fused_with_their_neighbors(kernels: tuple[tuple[str, int, int], ...], share: float | None) -> None:
    said = _chain(*kernels)
    assert ("fusion" in said) == (share is not None)
    if share is not None:
        assert said["fusion"].saves == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Optimizer Adam", "Adam"), ("Optimizer.step#AdamW.step", "AdamW"), ("Optimizer.zero_grad#SGD.zero_grad", "SGD")],
)
def test_the_fused_optimizer_is_that_of_the_range(text: str, name: str) -> None:
    profile = Run(optimizer=250).build()
    text_of = pl.col("text").str.replace("Optimizer Adam |opt", text if "#" in text else f"{text} |opt", literal=True)
    said = advice_on(replace(profile, ranges=profile.ranges.with_columns(text_of)))["optimizer"]
    assert said.code == f"torch.optim.{name}(model.parameters(), ..., fused=True)"


def test_kernels_of_a_compiled_model_are_not_fused_again() -> None:
    chain = [(ELEMENTWISE, 50)] * 4 + [(TENSOR, 4)] * 20
    assert {"fusion", "short_kernels"} <= advice_on(Run(chain)).keys()
    assert not {"fusion", "short_kernels"} & advice_on(Run(chain, text="CompiledGraph#0 |other")).keys()


def test_layers_of_several_dtypes_are_no_claim() -> None:
    run = Run([("gemvx_kernel", 900)], text="net.a Linear [64,64]f32 out=64 |fwd")
    profile = run.build()
    assert "mixed_precision" in advice_on(profile)
    first = pl.col("text").str.replace("f32", "bf16", literal=True)
    texts = pl.when(pl.col("start") < 11_000 * US).then(first).otherwise("text").alias("text")
    assert "mixed_precision" not in advice_on(replace(profile, ranges=profile.ranges.with_columns(texts)))


def test_kernels_of_the_optimizer_are_not_those_of_the_model() -> None:
    said = advice_on(Run(optimizer=300))
    assert "optimizer" in said
    assert not {"fusion", "short_kernels"} & said.keys()
