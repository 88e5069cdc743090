"""Why attention, experts, reductions and gradients of embeddings are slow, in words, and what a kernel's name shows."""

from __future__ import annotations

from typing import Any

import pytest
from operator_traces import operator

from annot.analyze.advice.operators import cause_of

SLOW, FAST = {"roof_share": 0.49}, {"roof_share": 0.5}
GEMM, SOFTMAX = "ampere_bf16_s16816gemm_bf16_128x64_ldg8", "void softmax_warp_forward<float, float, float, 9>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >"


def _attention(query: str, key: str = "", options: str = "", mask: str = "") -> str:
    tensors = [query, key or query, key or query, *([mask] if mask else [])]
    inputs = " ".join(f"[{tensor}]bf16" for tensor in tensors)
    return f"aten scaled_dot_product_attention {inputs} {options}".strip()


@pytest.mark.parametrize(
    ("text", "facts", "name", "words"),
    [
        (
            _attention("2,16,99,64"), {"kernels": (GEMM, SOFTMAX), "roof_share": 0.25}, "math",
            "attention in separate kernels for matrix multiplication and softmax (length 99, not causal, 2x16 heads) "
            "at 25% of the roof, which writes the scores to memory",
        ),
        (_attention("2,16,99,64"), {"kernels": (GEMM, SOFTMAX, FLASH)}, "short_sequences", "short sequences (length 9"),
        (_attention("2,16,99,64"), {"kernels": (GEMM,)}, "short_sequences", "short sequences (length 99, not causal"),
        (
            _attention("2,16,1,64", "2,4,8,64", "is_causal=True"), {}, "decode",
            "memory-bound attention of 1 query to 8 keys",
        ),
        (_attention("2,16,2,64", "2,4,16,64"), {}, "decode", "memory-bound attention of 2 queries to 16 keys"),
        (
            _attention("2,16,2,64", "2,4,15,64", "is_causal=True"), {}, "short_sequences",
            "short sequences (lengths 2 and 15, causal, 2x16 heads, 2x4 key heads), mostly overhead",
        ),
        (_attention("2,16,2,64", "2,4,16,64"), {"memory": False}, None, ""),
        (_attention("2,16,4095,64"), {}, "short_sequences", "short sequences (length 4095, not causal, 2x16 heads)"),
        (_attention("2,16,4096,64"), {}, "long_sequence", "a long sequence (length 4096, not causal, 2x16 heads)"),
        (_attention("2,16,4095,64", "2,16,4096,64"), {}, "long_sequence", "a long sequence (lengths 4095 and 4096, no"),
        (_attention("2,16,4096,64", "2,16,4095,64"), {}, "long_sequence", "a long sequence (lengths 4096 and 4095, no"),
        (
            _attention("2,16,99,64", mask="2,1,99,99"), {"memory": False, "roof_share": 0.6}, "mask",
            "attention with an explicit mask [2,1,99,99]bf16 at 60% of the roof, so that kernels cannot skip masked",
        ),
        (_attention("2,16,99,60"), {"memory": False}, "head_size", "attention with head size 60, which fused kernels"),
        (_attention("2,16,99,264"), {"memory": False}, "head_size", "attention with head size 264, which fused kernel"),
        (_attention("2,16,99,256"), {"memory": False}, None, ""),
        (_attention("2,16,99,8"), {"memory": False}, None, ""),
        (
            _attention("2,16,99,64"), {"memory": False} | SLOW, "low_efficiency",
            "attention (length 99, not causal, 2x16 heads) at 49% of the roof",
        ),
        (_attention("2,16,99,64"), {"memory": False} | FAST, None, ""),
        # A backward has the gradient first.
        (
            "aten scaled_dot_product_attention_backward [2,16,99,60]bf16 [2,16,99,64]bf16 [2,16,77,64]bf16 "
            "[2,16,77,64]bf16", {}, "short_sequences", "short sequences (lengths 99 and 77, not causal, 2x16 heads)",
        ),
        (
            "aten scaled_dot_product_attention_backward [2,16,99,64]bf16 [2,16,99,64]bf16 [2,16,77,64]bf16 "
            "[2,16,77,64]bf16", {"memory": False}, None, "",
        ),
    ],
)  # fmt: skip
def test_attention(text: str, facts: dict[str, Any], name: str | None, words: str) -> None:
    cause = cause_of(operator(text, **facts))
    assert (cause and cause.name) == name
    assert cause is None or cause.words.startswith(words)


@pytest.mark.parametrize(("roof_share", "saves"), [(None, 1.0), (0.25, 0.75)])
def test_attention_saves_what_is_missing_to_the_roof(roof_share: float | None, saves: float) -> None:
    for text in (_attention("2,16,99,64"), "aten sum [64,64]bf16 dim=0,"):
        cause = cause_of(operator(text, roof_share=roof_share))
        assert cause is not None
        assert cause.saves == saves


@pytest.mark.parametrize(("device", "code"), [("AMD Instinct MI300X", "preferred_rocm_fa"), ("NVIDIA H100", "CUDNN")])
def test_newer_kernels_are_those_of_the_vendor(device: str, code: str) -> None:
    cause = cause_of(operator(_attention("2,16,4096,64"), device=device))
    assert cause is not None
    assert code in cause.code


def _experts(tokens: int, chosen: int, experts: int = 16) -> str:
    return f"vllm fused_moe [{tokens},64]bf16 [{experts},128,64]bf16 [{experts},64,64]bf16 [{tokens},{chosen}]bf16"


@pytest.mark.parametrize(
    ("text", "memory", "words"),
    [
        (_experts(120, 2), True, "few tokens for many experts (120 tokens, top-2 routing to 16 experts: 15 each)"),
        (
            _experts(255, 1),
            True,
            "few tokens for many experts (255 tokens, sparse top-1 routing to 16 experts: 16 each)",
        ),
        (_experts(128, 2), True, "few tokens per expert (128 tokens, top-2 routing to 16 experts: 16 each)"),
        (_experts(16, 2), True, "few tokens for many experts (16 tokens, top-2 routing to 16 experts: 2 each)"),
        (_experts(15, 2), True, "few tokens for many experts (15 tokens, top-2 routing to 16 experts: 1.9 each)"),
        (
            _experts(2048, 2),
            False,
            "large capacity (2048 tokens, top-2 routing to 16 experts: 256 each), compute-bound",
        ),
    ],
)
def test_experts(text: str, memory: bool, words: str) -> None:
    cause = cause_of(operator(text, memory=memory))
    assert cause is not None
    assert cause.words == words


@pytest.mark.parametrize(
    ("text", "facts", "words"),
    [
        ("aten sum [64,32]bf16 dim=0,", {}, "a reduction over dimension 0, whose elements are 32 elements apart in me"),
        ("aten sum [64,32]bf16 dim=0,", SLOW, "a reduction over dimension 0, whose elements are 32 elements apart in "),
        ("aten sum [64,32]bf16 dim=0,", FAST, "memory-bound with 1 FLOPs per byte, 50% of the memory bandwidth"),
        ("aten sum [64,32]bf16 dim=1,", {}, "memory-bound with 1 FLOPs per byte"),
        ("aten mean [8,4,6,5]bf16 dim=0,1", {}, "a reduction over dimensions 0, 1, whose elements are 30 elements apa"),
        ("aten mean [8,4,6,5]bf16 dim=1,2", {}, "a reduction over dimensions 1, 2, whose elements are 5 elements apar"),
        ("aten mean [8,4,2]bf16 dim=1,", {}, "a reduction over dimension 1, whose elements are 2 elements apart"),
        ("aten mean [8,4,1]bf16 dim=1,", {}, "memory-bound with 1 FLOPs per byte"),
        ("aten exp [64,32]bf16", {}, "memory-bound with 1 FLOPs per byte"),
        ("aten embedding_dense_backward [8,4,16]f32 [8,4]i64 num=33", {}, "a dense gradient of 33 rows, of which 32 i"),
        ("aten embedding_dense_backward [8,4,16]f32 [8,4]i64 num=32", {}, "memory-bound with 1 FLOPs per byte"),
    ],
)  # fmt: skip
def test_reductions_and_embeddings(text: str, facts: dict[str, Any], words: str) -> None:
    cause = cause_of(operator(text, **facts))
    assert cause is not None
    assert cause.words.startswith(words)


def test_dense_gradients_save_the_rows_that_no_index_reaches() -> None:
    cause = cause_of(operator("aten embedding_dense_backward [8,4,16]f32 [8,4]i64 num=128"))
    assert cause is not None
    assert cause.saves == 0.75
    assert cause.words == "a dense gradient of 128 rows, of which 32 indices reach at most 25%"


@pytest.mark.parametrize(
    ("facts", "saves"),
    [
        ({"roof_share": 0.25}, 0.5), ({"roof_share": 0.49}, 1 - 0.49 / 0.5), ({"roof_share": 0.5}, None),
        ({"roof_share": None}, None), ({"roof_share": 0.25, "memory": True}, None),
        # 80 % of the time is in kernels that multiply.
        ({"roof_share": 0.25, "multiplies": 0.8}, 0.8 * (1 - 0.25 / 0.8 / 0.5)),
        ({"roof_share": 0.4, "multiplies": 0.8}, None),
        ({"roof_share": 0.4, "multiplies": 0.81}, 0.81 * (1 - 0.4 / 0.81 / 0.5)),
    ],
)  # fmt: skip
def test_half_of_the_roof_is_enough(facts: dict[str, Any], saves: float | None) -> None:
    """What separates an operator from half of the roof is the saving, for the kernels that multiply."""
    cause = cause_of(operator("aten mm [8192,8192]bf16 [8192,8192]bf16", **({"memory": False} | facts)))
    assert (cause is not None and cause.name == "low_efficiency") == (saves is not None)
    if cause is not None and saves is not None:
        assert cause.saves == pytest.approx(saves)
        assert cause.words == f"{facts['roof_share']:.0%} of the peak of the device at this precision"


@pytest.mark.parametrize(
    ("kernels", "tile", "splits"),
    [
        ((), None, 1), (("ampere_sgemm_128x64_nn",), (128, 64), 1), (("ampere_sgemm_32x128_nn",), (32, 128), 1),
        ((SOFTMAX, "ampere_sgemm_128x64_nn"), (128, 64), 1),
        (("Cijk_Ailk_Bljk_BBS_BH_MT64x96x32_MI16x16_GSU3_WS64",), (64, 96), 3),
        (("Cijk_Ailk_Bljk_BBS_BH_MT64x96x32_MI16x16_GSU3_WS64", "Cijk_MT128x128x8_GSU9_"), (64, 96), 3),
        (("ampere_sgemm_128x64_nn", "Cijk_Ailk_Bljk_BBS_BH_MT64x96x32_MI16x16_GSU3_WS64"), (128, 64), 1),
        (("sgemm_nn",), None, 1),
    ],
)  # fmt: skip
def test_tile_and_splits_are_those_in_the_name_of_the_longest_kernel(
    kernels: tuple[str, ...], tile: tuple[int, int] | None, splits: int
) -> None:
    multiplication = operator("aten mm [8,8]bf16 [8,8]bf16", kernels=kernels)
    assert (multiplication.tile, multiplication.splits) == (tile, splits)


@pytest.mark.parametrize(
    ("tensors", "title", "short"),
    [
        ("", "my::op", "my::op"), ("[8]bf16", "my::op [8]bf16", "my::op [8]bf16"),
        ("[8]bf16 [8]bf16", "my::op [8]bf16 x [8]bf16", "my::op [8]bf16 x [8]bf16"),
        ("[8]bf16 [8]bf16 [8]bf16", "my::op [8]bf16", "my::op [8]bf16"),
        ("[1]bf16 [2]bf16 [3]bf16 [4]bf16", "my::op [1]bf16 x [2]bf16 x [3]bf16 x [4]bf16",
         "my::op [1]bf16 x [2]bf16 x …"),
        ("[1]bf16 [2]bf16 [3]bf16 [4]bf16 [5]bf16", "my::op [1]bf16 x [2]bf16 x [3]bf16 x [4]bf16 x …",
         "my::op [1]bf16 x [2]bf16 x …"),
        ("[1]bf16 +3", "my::op [1]bf16 x …", "my::op [1]bf16 x …"),
    ],
)  # fmt: skip
def test_titles_have_up_to_four_shapes(tensors: str, title: str, short: str) -> None:
    named = operator(f"my op {tensors}".strip())
    assert (named.title, named.short_title) == (title, short)


@pytest.mark.parametrize(
    ("flops", "moved", "ridge", "memory_bound"),
    [(99.0, 10.0, 10.0, True), (100.0, 10.0, 10.0, False), (None, 10.0, 10.0, False), (1.0, None, 10.0, False),
     (0.0, 10.0, 10.0, True), (1.0, 0.0, 10.0, False)],
)  # fmt: skip
def test_operators_below_the_ridge_are_memory_bound(
    flops: float | None, moved: float | None, ridge: float, memory_bound: bool
) -> None:
    assert operator("my op", flops=flops, bytes=moved, ridge=ridge).memory_bound == memory_bound
