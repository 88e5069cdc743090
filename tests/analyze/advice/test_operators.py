"""Advice about operators: each cause on both sides of its threshold, and the planted ones of real traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from operator_traces import A100, H100, NO_NAME, OperatorTrace
from shared_data import shared

from annot.analyze.advice import Advice, Facts, advise, operators
from annot.analyze.advice.operators import cause_of
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute
from annot.read.formats import load

TILED = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SPLIT = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI16x16x16x1_GSU8_WS64"
FLASH2 = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(T1)"
FLASH3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::flash_fwd_x> > >(T1)"
CONV = ["", "", "", "[{s}, {s}]", "[1, 1]", "[{d}, {d}]", "{t}", "[0, 0]", "{g}"]


def _cause(trace: OperatorTrace, folder: Path) -> str | None:
    """The name of the cause of the longest operator."""
    found = cause_of(Facts(trace.attribution(folder)).operators[0])
    return found.name if found else None


def _said(trace: OperatorTrace, folder: Path) -> dict[str, Advice]:
    return {advice.rule: advice for advice in advise(trace.attribution(folder))}


@pytest.mark.parametrize(
    ("left", "right", "cause", "options"),
    [
        ([1, 8192], [8192, 8192], "matrix_vector", {}),
        ([8192, 8192], [8192, 1], "matrix_vector", {}),
        ([120, 8192], [8192, 8192], "skinny", {}),  # 117 of 125 FLOPs per byte
        ([136, 8192], [8192, 8192], None, {}),  # 132
        ([4096, 64], [64, 4096], "skinny", {}),
        ([4096, 4096], [4096, 4096], None, {}),
        ([4096, 4097], [4097, 4096], "misaligned", {}),
        ([4096, 4096], [4096, 4100], "misaligned", {}),
        ([4097, 4096], [4096, 4096], None, {}),  # rows of activations need no alignment
        ([4096, 4100], [4100, 4096], None, {"dtype": "float"}),  # 16 bytes are 4 elements
        ([4096, 4098], [4098, 4096], "misaligned", {"dtype": "float"}),
        ([128 * 5, 8192], [8192, 128 * 8], None, {"kernel": TILED}),  # 40 tiles
        ([128 * 3, 8192], [8192, 128 * 13], "few_tiles", {"kernel": TILED}),  # 39
        ([256, 65536], [65536, 256], "few_tiles", {"kernel": TILED}),
        ([256, 65536], [65536, 256], "few_tiles", {"kernel": SPLIT}),  # 4 tiles and 8 parts of K
        ([640, 65536], [65536, 128], "skinny", {"kernel": SPLIT}),  # 5 tiles and 8 parts of K
        ([99, 128, 128], [99, 128, 128], "small_batched", {}),
        ([99, 129, 128], [99, 128, 128], "skinny", {}),
    ],
)
def test_matrix_multiplications(
    left: list[int], right: list[int], cause: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """Vectors, skinny and misaligned matrices, and few output tiles are slow on any GPU."""
    assert _cause(OperatorTrace().op("aten::mm", left, right, **options), tmp_path) == cause


@pytest.mark.parametrize(
    ("tiles", "cause"), [(131, "few_tiles"), (132, None), (133, "last_wave"), (197, "last_wave"), (198, None)]
)
def test_waves_on_a_known_device(tiles: int, cause: str | None, tmp_path: Path) -> None:
    """132 multiprocessors compute 132 tiles at once, 133 take twice as long, and 198 fill 3/4 of two waves."""
    trace = OperatorTrace(H100).op("aten::mm", [128, 8192], [8192, 128 * tiles], kernel=TILED, us=2000 * tiles // 132)
    facts = Facts(trace.attribution(tmp_path))
    found = cause_of(facts.operators[0])
    assert (found.name if found and found.name in ("few_tiles", "last_wave") else None) == cause


def test_peaks_decide_on_a_known_device(tmp_path: Path) -> None:
    """A large aligned matrix multiplication is slow if it is far below the peak of the device, 989 TFLOP/s."""
    flop = 2 * 8192**3
    for speed, cause in ((0.45, "low_efficiency"), (0.55, None)):
        us = round(flop / (989e12 * speed) * 1e6)
        trace = OperatorTrace(H100).op("aten::mm", [8192, 8192], [8192, 8192], us=us)
        assert _cause(trace, tmp_path) == cause


@pytest.mark.parametrize(
    ("data", "weight", "options", "cause"),
    [
        ([32, 64, 56, 56], [64, 64, 3, 3], {}, None),
        ([32, 64, 56, 56], [64, 64, 3, 3], {"t": "True", "s": 2}, "transposed"),
        ([32, 64, 56, 56], [64, 1, 3, 3], {"g": 64}, "depthwise"),
        ([32, 64, 56, 56], [64, 2, 3, 3], {"g": 32}, "grouped"),
        ([32, 512, 56, 56], [512, 64, 3, 3], {"g": 8}, "grouped"),
        ([32, 512, 56, 56], [520, 64, 3, 3], {"g": 8}, "misaligned"),  # 65 output channels per group: half a tile is 64
        ([32, 64, 56, 56], [256, 64, 1, 1], {}, "pointwise"),
        ([32, 64, 56, 56], [64, 64, 1, 3], {}, "asymmetric"),
        ([32, 64, 56, 56], [64, 64, 3, 1], {}, "asymmetric"),
        ([32, 7, 224, 224], [64, 7, 3, 3], {}, "few_channels"),
        ([32, 8, 224, 224], [64, 8, 3, 3], {}, "skinny"),
        ([32, 64, 56, 56], [64, 64, 3, 3], {"d": 2}, "dilated"),
        ([32, 64, 56, 56], [64, 64, 7, 7], {}, "large_kernel"),
        ([32, 64, 56, 56], [64, 64, 6, 6], {}, None),
        ([1, 512, 7, 7], [512, 512, 3, 3], {}, "few_tiles"),
    ],
)
def test_convolutions(
    data: list[int], weight: list[int], options: dict[str, Any], cause: str | None, tmp_path: Path
) -> None:
    """The kind of a convolution follows from its weight and arguments, else it is slow as a matrix multiplication."""
    values = [text.format(**{"s": 1, "d": 1, "t": "False", "g": 1} | options) for text in CONV]
    assert _cause(OperatorTrace().op("aten::convolution", data, weight, values=values), tmp_path) == cause


@pytest.mark.parametrize(
    ("weight", "options", "cause"),
    [
        ([1024, 1024, 1, 1], {}, "pointwise"),
        ([1024, 1024, 1, 3], {}, "asymmetric"),
        ([1024, 1024, 3, 3], {"d": 2}, "dilated"),
        ([1024, 32, 3, 3], {"g": 32}, "grouped"),
    ],
)
def test_convolutions_near_the_peak_are_fine(
    weight: list[int], options: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    """At 55 % of the roof of an A100 the shape is no reason; at 45 % it is."""
    values = [text.format(**{"s": 1, "d": 1, "t": "False", "g": 1} | options) for text in CONV]
    data = [32, 1024, 56, 56]
    one = OperatorTrace(A100).op("aten::convolution", data, weight, values=values)
    reached = Facts(one.attribution(tmp_path)).operators[0].roof_share  # in 100 µs
    assert reached is not None
    for share in (0.45, 0.55):
        us = round(100 * reached / share)
        trace = OperatorTrace(A100).op("aten::convolution", data, weight, values=values, us=us)
        assert (_cause(trace, tmp_path) == cause) == (share < 0.5)


@pytest.mark.parametrize(("depth", "code"), [(1024, "parts of K"), (1023, "torch.stack(lefts)")])
def test_a_long_k_can_be_split(depth: int, code: str, tmp_path: Path) -> None:
    """K of four times the rows and columns keeps several multiprocessors busy."""
    trace = OperatorTrace().op("aten::mm", [256, depth], [depth, 256], dtype="double")
    found = cause_of(Facts(trace.attribution(tmp_path)).operators[0])
    assert found is not None
    assert found.name == "few_tiles"
    assert code in found.code


@pytest.mark.parametrize(
    ("query", "key", "mask", "cause"),
    [
        ([8, 16, 248, 64], [8, 16, 248, 64], None, "short_sequences"),  # 124 of 125 FLOPs per byte
        ([8, 16, 256, 64], [8, 16, 256, 64], None, None),
        ([8, 16, 4095, 64], [8, 16, 4095, 64], None, None),
        ([8, 16, 4096, 64], [8, 16, 4096, 64], None, "long_sequence"),
        ([8, 16, 1, 64], [8, 16, 2048, 64], None, "decode"),
        ([8, 16, 64, 64], [8, 16, 512, 64], None, "decode"),
        ([8, 16, 65, 64], [8, 16, 512, 64], None, "short_sequences"),
        ([8, 16, 1024, 64], [8, 16, 1024, 64], [8, 1, 1024, 1024], "mask"),
        ([8, 16, 1024, 60], [8, 16, 1024, 60], None, "head_size"),
        ([8, 16, 1024, 256], [8, 16, 1024, 256], None, None),
        ([8, 16, 1024, 264], [8, 16, 1024, 264], None, "head_size"),
    ],
)
def test_attention(query: list[int], key: list[int], mask: list[int] | None, cause: str | None, tmp_path: Path) -> None:
    """Lengths, mask and head size tell what is slow about attention."""
    shapes = [query, key, key, *([mask] if mask else [[]])]
    values = ["", "", "", "", "0.", "False"]
    trace = OperatorTrace().op("aten::scaled_dot_product_attention", *shapes, values=values)
    for event in trace._events:
        if mask is None and "Input type" in event["args"]:
            event["args"]["Input type"][3:] = [""]
    assert _cause(trace, tmp_path) == cause


def test_words_about_attention(tmp_path: Path) -> None:
    """The evidence names the causal mask and the heads that share keys."""
    values = ["", "", "", "0.", "True"]
    name, key = "aten::_scaled_dot_product_flash_attention", [2, 4, 128, 64]
    said = _said(OperatorTrace().op(name, [2, 16, 128, 64], key, key, values=values), tmp_path)
    words = "short sequences (length 128, causal, 2x16 heads, 2x4 key heads)"
    assert words in said["attention_shape"].evidence


@pytest.mark.parametrize(
    ("tokens", "chosen", "cause"),
    [
        (16, 2, "few_tokens_per_expert"),
        (256, 1, "few_tokens_per_expert"),
        (992, 1, "few_tokens_per_expert"),
        (2048, 2, "large_capacity"),
    ],
)
def test_experts(tokens: int, chosen: int, cause: str, tmp_path: Path) -> None:
    """The tokens per expert decide whether the weights of the experts are read for enough computation."""
    shapes = [[tokens, 4096], [16, 8192, 4096], [16, 4096, 4096], [tokens, chosen]]
    trace = OperatorTrace().op("vllm::fused_moe", *shapes)
    assert _cause(trace, tmp_path) == cause
    said = _said(trace, tmp_path)["experts_shape"]
    sparse = "sparse " if chosen == 1 else ""
    few = (
        "few tokens for many experts" if tokens == 16 else "few tokens per expert" if chosen == 1 else "large capacity"
    )
    assert few in said.evidence
    words = f"{tokens} tokens, {sparse}top-{chosen} routing to 16 experts: {tokens * chosen / 16:.0f} each"
    assert words in said.evidence


@pytest.mark.parametrize(("us", "advised"), [(100, True), (99, False)])
def test_a_tenth_of_the_step(us: int, advised: bool, tmp_path: Path) -> None:
    """An operator with 10 % of the run is worth advice, one with 9.9 % is not."""
    trace = OperatorTrace().op("aten::mm", [4096, 4096], [4096, 4096], us=1000 - us)
    trace.op("aten::mm", [4096, 4097], [4097, 4096], us=us)
    said = _said(trace, tmp_path)
    assert set(said) == ({"gemm_shape"} if advised else set())
    if advised:
        evidence = "10% of the run goes to aten::mm [4096,4097]bf16 x [4097,4096]bf16: K=4097 is not a multiple of 8"
        assert said["gemm_shape"].evidence.startswith(evidence)


def test_operators_in_operators_count_once(tmp_path: Path) -> None:
    """The outer operator with known work has all the time; an operator without inputs is not explained."""
    trace = OperatorTrace().op("aten::linear", [1, 4096], [4096, 4096], inner=("aten::addmm",))
    trace.op("mystery", us=50)
    facts = Facts(trace.attribution(tmp_path))
    assert [(one.name, round(one.share, 2)) for one in facts.operators] == [("aten::linear", 0.67), ("mystery", 0.33)]
    assert cause_of(facts.operators[1]) is None
    assert "67% goes to aten::linear [1,4096]bf16 x [4096,4096]bf16: a matrix-vector multiplication" in verdict(facts)


def _attention(first: str, between: tuple[str, ...], us: int = 100) -> OperatorTrace:
    scores = [8, 16, 512, 512]
    trace = OperatorTrace().op(first, [8, 16, 512, 64], [8, 16, 64, 512], us=us)
    for name in between:
        trace.op(name, scores, us=us)
    return trace.op("aten::matmul", scores, [8, 16, 512, 64], us=us).op("aten::linear", [4096, 1024], [1024, 1024])


@pytest.mark.parametrize(
    ("first", "between", "us", "speaks"),
    [
        ("aten::matmul", ("aten::div", "aten::softmax", "aten::dropout"), 100, True),
        ("aten::bmm", ("aten::softmax",), 100, True),
        ("aten::linear", ("aten::softmax",), 100, False),
        ("aten::matmul", ("aten::softmax", "aten::layer_norm"), 100, False),
        ("aten::matmul", ("aten::softmax",), 4, True),
        ("aten::matmul", ("aten::softmax",), 3, False),
    ],
)
def test_attention_in_eager_operations(
    first: str, between: tuple[str, ...], us: int, speaks: bool, tmp_path: Path
) -> None:
    """A matrix multiplication, softmax and a matrix multiplication are attention, whatever elementwise is between."""
    said = _said(_attention(first, between, us), tmp_path)
    assert ("eager_attention" in said) == speaks
    if speaks:
        assert "aten::softmax [8,16,512,512]bf16" in said["eager_attention"].evidence


@pytest.mark.parametrize(
    ("device", "kernel", "us", "speaks"),
    [(H100, FLASH2, 50, True), (H100, FLASH2, 49, False), (H100, FLASH3, 60, False), (A100, FLASH2, 60, False)],
)
def test_an_older_kernel_on_a_newer_device(
    device: dict[str, Any], kernel: str, us: int, speaks: bool, tmp_path: Path
) -> None:
    """FlashAttention-2 with 5 % of the run is slow on Hopper. On Ampere it is the newest."""
    shape = [8, 16, 2048, 64]
    trace = OperatorTrace(device).op("aten::scaled_dot_product_attention", shape, shape, shape, kernel=kernel, us=us)
    trace.op("aten::mm", [4096, 4096], [4096, 4096], us=1000 - us)
    assert ("older_attention" in _said(trace, tmp_path)) == speaks


@pytest.mark.parametrize(
    ("weights", "us", "speaks"),
    [([8, 512, 256], 100, True), ([8, 512, 256], 99, False), ([8, 512, 200], 110, False), ([32000, 512], 110, False)],
)
def test_weights_of_experts_by_index(weights: list[int], us: int, speaks: bool, tmp_path: Path) -> None:
    """An index on matrices that are multiplied then copies weights. An embedding does not."""
    gather = "void at::native::index_elementwise_kernel<128, 4>(int)"
    trace = OperatorTrace().op("aten::index", weights, us=us, kernel=gather)
    trace.op("aten::bmm", [64, 1, 512], [64, 512, 256], us=1000 - us)
    said = _said(trace, tmp_path)
    assert ("gathered_weights" in said) == speaks
    if speaks:
        assert "10% of the run goes to aten::index [8,512,256]bf16" in said["gathered_weights"].evidence


PLANTED = {
    "conv_01_large_spatial_small_ch": r"\[1,3,2048,2048\]f32.*only 3 input channels on an input of 2048x2048",
    "conv_03_asymmetric_kernel": r"\[512,256,1,7\]f32.*asymmetric",
    "conv_05_pointwise_1x1": r"\[2048,1024,1,1\]f32.*pointwise \(1x1\)",
    "conv_07_transposed": r"\[4,512,8,8\]f32.*transposed convolution",
    "gemm_01_compute_few_tiles": r"\[256,131072\]bf16 x \[131072,512\]bf16.*only 4 output tiles",
    "gemm_03_compute_misaligned": r"\[4097,4097\]bf16.*not multiples of 8",
    "moe_01_many_experts_few_tokens": r"\[16,4096\]bf16.*few tokens for many experts \(16 tokens.*64 experts",
    "moe_03_top1_sparse": r"\[512,7168\]bf16.*few tokens.*sparse top-1 routing to 16 experts",
    "moe_05_large_capacity": r"\[4096,8192\]bf16.*large capacity",
    "sdpa_01_long_seq_low_eff": r"\[1,32,32768,128\]bf16.*long sequence.*20% of the roof",
    "sdpa_03_short_seq_overhead": r"\[16,32,128,128\]bf16.*short sequences.*overhead",
}
"""What was planted in the traces of TraceLens, by their names, and the words for it."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_causes(name: str) -> None:
    """The verdict names the planted cause with the operator and its shape, and so does advice."""
    attribution = attribute(load(shared(f"kineto/labelled/{name}.json.gz")))
    facts = Facts(attribution)
    assert re.search(PLANTED[name], verdict(facts))
    assert any(re.search(PLANTED[name], advice.evidence) for advice in advise(attribution, facts))


@pytest.mark.parametrize(
    "name", ["tracelens_mi300_resnet18_train_nnmodule_seq", "tracelens_h100_bert_small_nnmodule", "hta_cpu_only"]
)
def test_operators_of_little_time_are_silent(name: str) -> None:
    """Operators with a few percent of the steps, or on a CPU, are not why these runs are slow."""
    said = {advice.rule for advice in advise(attribute(load(shared(f"kineto/{name}.json.gz"))))}
    assert said.isdisjoint(rule.__name__ for rule in operators.RULES)


def test_an_older_kernel_in_a_real_profile() -> None:
    """The chat of Qwen on an H100 calls FlashAttention-2 through PyTorch."""
    said = advise(attribute(load(shared("kineto/more/tracelens_h100_qwen15_chat.json.gz"))))
    found = next(advice for advice in said if advice.rule == "older_attention")
    assert "kernels of FlashAttention-2 on NVIDIA H100" in found.evidence
    assert "Attention" in found.layers[0]


@pytest.mark.parametrize(("tensors", "shown"), [(2, "[8,8]bf16 x [8,8]bf16"), (3, "[8,8]bf16 x [8,8]bf16 x …")])
def test_verdicts_show_two_shapes(tensors: int, shown: str, tmp_path: Path) -> None:
    """The verdict has two shapes of an operator, the evidence all of up to four."""
    shapes = [[8, 8], [8, 8], [4, 8]][:tensors]
    facts = Facts(OperatorTrace().op("mine::fused", *shapes).attribution(tmp_path))
    assert facts.operators[0].title == "mine::fused " + " x ".join(f"[{a},{b}]bf16" for a, b in shapes)
    assert f"100% goes to mine::fused {shown}." in verdict(facts)


@pytest.mark.parametrize(
    ("name", "shape", "dim", "us", "cause"),
    [
        ("aten::sum", [4096, 4096], "[0]", 100, "strided_reduction"),
        ("aten::sum", [4096, 4096], "[1]", 100, "memory_bound"),
        ("aten::sum", [4096, 4096], "[-2]", 100, "strided_reduction"),
        ("aten::mean", [64, 256, 4096], "[0, 1]", 200, "strided_reduction"),
        ("aten::mean", [64, 256, 4096], "[0, 2]", 100, "memory_bound"),
        ("aten::amax", [4096, 4096], "", 100, "memory_bound"),
        ("aten::argmax", [4096, 4096], "0", 100, "strided_reduction"),
        ("aten::sum", [4096, 4096], "6", 100, "memory_bound"),  # a dtype, not a dimension
        ("aten::sum", [4096, 4096, 1], "[1]", 100, "memory_bound"),
        ("aten::sum", [4096, 4096], "[0]", 33, "strided_reduction"),  # 0.499 of 2,039 GB/s
        ("aten::sum", [4096, 4096], "[0]", 32, "memory_bound"),
    ],
)
def test_reductions(name: str, shape: list[int], dim: str, us: int, cause: str, tmp_path: Path) -> None:
    """Reducing another dimension than the last is why less than half of the memory bandwidth is reached."""
    trace = OperatorTrace(A100).op(name, shape, us=us, values=["", dim])
    trace._events[0]["args"] |= {"Input Dims": [shape, []], "Input type": ["c10::BFloat16", "ScalarList"]}
    assert _cause(trace, tmp_path) == cause


@pytest.mark.parametrize(("rows", "cause"), [(8193, "dense_gradient"), (8192, "memory_bound")])
def test_gradients_of_embeddings(rows: int, cause: str, tmp_path: Path) -> None:
    """A dense gradient is sparse for certain if the table has more rows than the batch has indices."""
    trace = OperatorTrace().op("aten::embedding_dense_backward", [8, 1024, 64], [8, 1024], values=["", "", str(rows)])
    trace._events[0]["args"] |= {
        "Input Dims": [[8, 1024, 64], [8, 1024], []],
        "Input type": ["float", "long", "Scalar"],
    }
    assert _cause(trace, tmp_path) == cause


@pytest.mark.parametrize(
    ("name", "us", "kernel", "rule"),
    [
        ("aten::cat", 100, NO_NAME, "concatenations"),
        ("aten::cat", 99, NO_NAME, ""),
        ("aten::clone", 110, NO_NAME, "tensor_copies"),
        ("aten::to", 110, NO_NAME, "casts"),
        ("aten::to", 110, "Memcpy HtoD (Pinned -> Device)", ""),
        ("aten::copy_", 110, "Memcpy DtoD (Device -> Device)", "tensor_copies"),
        ("aten::index_put_", 110, NO_NAME, ""),
    ],
)
def test_copies(name: str, us: int, kernel: str, rule: str, tmp_path: Path) -> None:
    """Copies on the device with 10 % of the run are worth advice, those with less or of the host are not."""
    matrix = [4096, 4096]
    trace = OperatorTrace().op("aten::mm", matrix, matrix, us=500).op(name, matrix, us=us, kernel=kernel)
    if kernel.startswith("Memcpy"):
        trace._events[-1] |= {"cat": "gpu_memcpy"}
    trace.op("aten::mm", matrix, matrix, us=500 - us)
    said = _said(trace, tmp_path)
    assert set(said) & {"concatenations", "casts", "tensor_copies"} == ({rule} if rule else set())


def test_copies_of_a_serving_engine(tmp_path: Path) -> None:
    """Users of an engine do not write its operators."""
    trace = OperatorTrace().op("aten::cat", [4096, 4096])
    assert "concatenations" in _said(trace, tmp_path)
    trace._add("user_annotation", "step[DECODE bs=32]", ts=0, dur=200)
    assert "concatenations" not in _said(trace, tmp_path)


@pytest.mark.parametrize(("second", "speaks"), [(25, True), (24, False)])
def test_shapes_with_the_same_cause_count_together(second: int, speaks: bool, tmp_path: Path) -> None:
    """An operator with less than 2.5 % of the run does not count."""
    trace = OperatorTrace().op("aten::mm", [4096, 4096], [4096, 4096], us=924 - second)
    trace.op("aten::mm", [4096, 4097], [4097, 4096], us=76).op("aten::mm", [4096, 4098], [4098, 4096], us=second)
    said = _said(trace, tmp_path).get("gemm_shape")
    assert (said is not None) == speaks
    if said is not None:
        shapes = "[4096,4097]bf16 x [4097,4096]bf16"
        assert said.evidence.startswith(f"8% of the run goes to aten::mm {shapes} (10% with 1 other shape): K=4097 ")
        assert said.saves == pytest.approx(0.101)
        assert said.layers == []


def test_the_cause_with_the_most_time_is_named(tmp_path: Path) -> None:
    """Two shapes that are misaligned take more time than one vector; their number is in the evidence."""
    trace = (
        OperatorTrace().op("aten::mm", [4096, 4096], [4096, 4096], us=300).op("aten::mv", [4096, 4096], [4096], us=250)
    )
    trace.op("aten::mm", [4096, 4097], [4097, 4096], us=200).op("aten::mm", [4096, 4098], [4098, 4096], us=150)
    said = _said(trace.op("aten::mm", [4096, 4099], [4099, 4096], us=100), tmp_path)["gemm_shape"]
    assert said.evidence.startswith(
        "20% of the run goes to aten::mm [4096,4097]bf16 x [4097,4096]bf16 (45% with 2 other shapes): K"
    )


def test_the_saving_of_a_cause_is_that_of_its_operators(tmp_path: Path) -> None:
    """29 of 132 multiprocessors are busy for half of the run."""
    trace = OperatorTrace(H100).op("aten::mm", [128, 8192], [8192, 128 * 29], kernel=TILED, us=1000)
    said = _said(trace.op("mystery", us=1000), tmp_path)["gemm_shape"]
    assert said.saves == pytest.approx(0.5 * (1 - 29 / 132))


def test_an_older_kernel_takes_at_most_twice_as_long(tmp_path: Path) -> None:
    shape = [8, 16, 2048, 64]
    trace = OperatorTrace(H100).op("aten::scaled_dot_product_attention", shape, shape, shape, kernel=FLASH2, us=400)
    said = _said(trace.op("mystery", us=600), tmp_path)["older_attention"]
    assert said.saves == pytest.approx(0.2)
    assert said.evidence == (
        "40% of the run is spent in attention kernels of FlashAttention-2 on NVIDIA H100 80GB HBM3"
    )


@pytest.mark.parametrize(
    ("device", "newer"),
    [
        ({"name": "NVIDIA X", "computeMajor": 9}, True), ({"name": "NVIDIA X", "computeMajor": 8}, False),
        ({"name": "AMD X", "computeMajor": 9}, False), ({"name": "NVIDIA X"}, False), ({"name": "GH200"}, True),
        ({"name": "NVIDIA H800"}, True), ({"name": "NVIDIA A800"}, False), ({"name": "NVIDIA B200"}, True),
    ],
)  # fmt: skip
def test_newer_devices_are_hopper_and_later(device: dict[str, Any], newer: bool, tmp_path: Path) -> None:
    shape = [8, 16, 2048, 64]
    trace = OperatorTrace({"id": 0, **device})
    trace.op("aten::scaled_dot_product_attention", shape, shape, shape, kernel=FLASH2)
    assert ("older_attention" in _said(trace, tmp_path)) == newer


def test_kernels_of_few_queries_are_not_older(tmp_path: Path) -> None:
    """They read keys and values as fast as newer kernels."""
    shapes, values = [[8, 16, 1, 64], [8, 16, 2048, 64], [8, 16, 2048, 64]], ["", "", "", "0.", "True"]
    name = "aten::_scaled_dot_product_flash_attention"
    trace = OperatorTrace(H100).op(name, *shapes, kernel=FLASH2, values=values)
    assert "older_attention" not in _said(trace, tmp_path)


def test_copies_of_one_kind_count_together(tmp_path: Path) -> None:
    matrix = [4096, 4096]
    trace = OperatorTrace().op("aten::mm", matrix, matrix, us=900).op("aten::cat", [64, 64], us=40)
    said = _said(trace.op("aten::stack", matrix, us=60), tmp_path)["concatenations"]
    assert said.saves == pytest.approx(0.1)
    assert said.evidence == (
        "10% of the run goes to concatenations, which copy each input, of which 6% to aten::stack [4096,4096]bf16"
    )


@pytest.mark.parametrize(
    ("types", "rule"), [(("float", "c10::BFloat16"), "casts"), (("float", "float"), "tensor_copies")]
)
def test_copies_between_dtypes_are_casts(types: tuple[str, str], rule: str, tmp_path: Path) -> None:
    trace = OperatorTrace().op("aten::copy_", [4096, 4096], [4096, 4096])
    trace._events[0]["args"]["Input type"] = [*types]
    assert {"casts", "tensor_copies"} & _said(trace, tmp_path).keys() == {rule}


@pytest.mark.parametrize(
    ("weights", "operand", "speaks"),
    [
        ([8, 512, 256], [64, 512, 256], True), ([8, 256, 512], [64, 512, 256], True),
        ([8, 512, 1], [64, 512, 1], False),
        ([8, 512, 2], [64, 512, 2], True), ([512, 256], [512, 256], False),
    ],
)  # fmt: skip
def test_gathered_weights_have_the_sizes_of_an_operand(
    weights: list[int], operand: list[int], speaks: bool, tmp_path: Path
) -> None:
    """Matrices have at least two rows and columns, and a batch."""
    trace = OperatorTrace().op("aten::gather", weights, us=300).op("aten::matmul", [64, 1, 512], operand, us=700)
    said = _said(trace, tmp_path)
    assert ("gathered_weights" in said) == speaks
    if speaks:
        assert said["gathered_weights"].saves == pytest.approx(0.3)
