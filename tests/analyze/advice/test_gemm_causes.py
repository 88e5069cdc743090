"""Why matrix multiplications and convolutions are slow: each cause from both sides of its threshold, in words."""

from __future__ import annotations

from typing import Any

import pytest
from operator_traces import operator

from annot.analyze.advice.operators import cause_of

TILED = "ampere_bf16_s16816gemm_bf16_{}_ldg8_f2f_stages_32x5_tn"
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}x32_cudnn"
SPLIT = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI16x16x16x1_GSU8_WS64"


def _kernel(tile: str) -> dict[str, Any]:
    return {"kernels": (TILED.format(tile),)}


def _mm(rows: int, depth: int, columns: int, dtype: str = "bf16") -> str:
    return f"aten mm [{rows},{depth}]{dtype} [{depth},{columns}]{dtype}"


def _bmm(batch: int, rows: int, depth: int, columns: int) -> str:
    return f"aten bmm [{batch},{rows},{depth}]bf16 [{batch},{depth},{columns}]bf16"


@pytest.mark.parametrize(
    ("text", "facts", "name", "words"),
    [
        (_mm(1, 64, 99), {}, "matrix_vector", "a matrix-vector multiplication (M=1, N=99, K=64), which is memory-boun"),
        (_mm(99, 64, 1), {}, "matrix_vector", "a matrix-vector multiplication (M=99, N=1, K=64), which is memory-boun"),
        (_bmm(2, 1, 64, 99), {}, "matrix_vector", "a matrix-vector multiplication (M=1, N=99, K=64, batch 2), which i"),
        (_mm(2, 64, 99), {}, "skinny", "a skinny matrix multiplication (M=2, N=99, K=64)"),
        (_mm(1, 64, 99), {"memory": False}, "few_tiles", "only 1 output tile of 128x128 (M=1, N=99, K=64), too few to"),
        # Few rows or columns leave half of a tile empty, unless K can be split.
        (_mm(64, 8192, 8192), {}, "skinny", "a skinny matrix multiplication (M=64, N=8192, K=8192), memory-bound with"),
        (_mm(64, 8192, 3000), {"memory": False}, "few_tiles", "only 24 output tiles of 128x128 (M=64, N=3000, K=8192)"),
        (_mm(65, 8192, 3000), {}, "few_tiles", "only 24 output tiles of 128x128 (M=65, N=3000, K=8192), too few to "),
        (_mm(32, 64, 320), _kernel("64x256"), "skinny", "a skinny matrix multiplication (M=32, N=320, K=64)"),
        (_mm(33, 64, 320), _kernel("64x256"), "few_tiles", "only 2 output tiles of 64x256 (M=33, N=320, K=64)"),
        (_mm(64, 1023, 256), {}, "skinny", "a skinny matrix multiplication (M=64, N=256, K=1023)"),
        (_mm(64, 1024, 256), {}, "few_tiles", "only 2 output tiles of 128x128 (M=64, N=256, K=1024)"),
        (_mm(256, 1024, 64), {}, "few_tiles", "only 2 output tiles of 128x128 (M=256, N=64, K=1024)"),
        # An unknown device has at least 40 multiprocessors.
        (_mm(5 * 128, 512, 8 * 128), {"memory": False}, None, ""),
        (_mm(5 * 128, 512, 8 * 128 - 128), {"memory": False}, "few_tiles", "only 35 output tiles of 128x128"),
        (_bmm(39, 128, 512, 128), {"memory": False}, "few_tiles", "only 39 output tiles of 128x128 (M=128, N=128, K=5"),
        (_bmm(40, 128, 512, 128), {"memory": False}, None, ""),
        (_mm(129, 512, 128), {"memory": False}, "few_tiles", "only 2 output tiles of 128x128"),
        (
            _mm(256, 65536, 256), {"memory": False, "kernels": (SPLIT,), "processors": 33}, "few_tiles",
            "only 4 output tiles of 128x128 and 8 splits of K (M=256, N=256, K=65536), too few for 33 multiprocessors",
        ),
        (_mm(256, 65536, 256), {"memory": False, "kernels": (SPLIT,), "processors": 32}, None, ""),
        (
            _mm(256, 65536, 256), {"memory": False, "kernels": (SPLIT.replace("GSU8", "GSU2"),)}, "few_tiles",
            "only 4 output tiles of 128x128 and 2 splits of K",
        ),
        (
            _mm(128, 512, 128 * 50), {"memory": False, "processors": 40, **_kernel("128x128")}, "last_wave",
            "50 thread blocks on 40 multiprocessors run in 2 waves, and the last wave is 25% full",
        ),
        (_mm(128, 512, 128 * 59), {"memory": False, "processors": 40, **_kernel("128x128")}, "last_wave", "59 thread "),
        (_mm(128, 512, 128 * 60), {"memory": False, "processors": 40, **_kernel("128x128")}, None, ""),
        (_mm(128, 512, 128 * 40), {"memory": False, "processors": 40, **_kernel("128x128")}, None, ""),
        (_mm(128, 512, 128 * 59), {"memory": False, "processors": 40}, None, ""),  # the tile is unknown
        # 16 bytes are 8 elements of 16 bits, and 4 of 32 bits.
        (
            _mm(4096, 512, 4100), {"memory": False}, "misaligned",
            "N=4100 is not a multiple of 8 (bf16), so that rows are not aligned to 16 bytes",
        ),
        (_mm(4096, 516, 4096), {"memory": False}, "misaligned", "K=516 is not a multiple of 8 (bf16)"),
        (_mm(4097, 516, 4100), {"memory": False}, "misaligned", "M=4097, N=4100, K=516 are not multiples of 8 (bf16)"),
        (_mm(4097, 512, 4096), {"memory": False}, None, ""),
        (_mm(4096, 516, 4100, "f32"), {"memory": False}, None, ""),
        ("aten mm [4096,516]bf16 [516,4096]f32", {"memory": False}, "misaligned", "K=516 is not a multiple of 8 (bf16"),
        (_mm(4096, 516, 4102, "f32"), {"memory": False}, "misaligned", "N=4102 is not a multiple of 4 (f32)"),
        (_mm(4096, 513, 4097, "f64"), {"memory": False}, "misaligned", "N=4097, K=513 are not multiples of 2 (f64)"),
        (
            _bmm(99, 128, 16, 32), {"bytes": 8e6}, "small_batched",
            "99 small matrix multiplications (M=128, N=32, K=16), memory-bound with 0.125 FLOPs per byte",
        ),
        (_bmm(99, 128, 129, 16), {}, "skinny", "a skinny matrix multiplication (M=128, N=16, K=129)"),
        (_bmm(99, 16, 16, 129), {}, "skinny", "a skinny matrix multiplication (M=16, N=129, K=16)"),
        (_bmm(2, 16, 16, 16), {}, "small_batched", "2 small matrix multiplications (M=16, N=16, K=16), memory-bound w"),
        (_bmm(1, 16, 16, 16), {}, "skinny", "a skinny matrix multiplication (M=16, N=16, K=16)"),
        (_bmm(99, 16, 16, 16), {"memory": False}, None, ""),
    ],
)  # fmt: skip
def test_matrix_multiplications(text: str, facts: dict[str, Any], name: str | None, words: str) -> None:
    cause = cause_of(operator(text, **facts))
    assert (cause and cause.name) == name or (name is None and cause is not None and cause.name == "memory_bound")
    assert cause is None or cause.words.startswith(words)


@pytest.mark.parametrize(
    ("text", "facts", "saves"),
    [
        (_mm(128, 512, 1280), {"processors": 40}, 0.75),
        (_mm(128, 512, 1280), {}, 1.0),
        (_mm(128, 512, 128 * 50), {"processors": 40, **_kernel("128x128")}, 1 - 50 / 80),
        (_mm(4096, 512, 4100), {}, 1.0),
    ],
)
def test_a_known_device_bounds_the_saving(text: str, facts: dict[str, Any], saves: float) -> None:
    cause = cause_of(operator(text, memory=False, **facts))
    assert cause is not None
    assert cause.saves == pytest.approx(saves)


@pytest.mark.parametrize(
    ("text", "memory", "advice"),
    [
        (_mm(256, 1024, 255), False, "Split K across more multiprocessors"),
        (_mm(256, 1023, 255), False, "Make each multiplication larger"),
        (_mm(255, 1024, 256), False, "Split K across more multiprocessors"),
        (_mm(255, 1023, 256), False, "Make each multiplication larger"),
        (_mm(16, 64, 8192), True, "Multiply more rows at once"),
        (_mm(8192, 64, 16), True, "Multiply more columns at once"),
        (_mm(4096, 64, 4096), True, "Fuse the operations that follow"),
    ],
)
def test_the_smallest_dimension_decides_what_to_change(text: str, memory: bool, advice: str) -> None:
    cause = cause_of(operator(text, memory=memory))
    assert cause is not None
    assert cause.advice.startswith(advice)


def _conv(data: str, weight: str, options: str = "", name: str = "convolution", grad: str = "") -> str:
    return f"aten {name} {grad} [{data}]bf16 [{weight}]bf16 {options}".replace("  ", " ").strip()


DATA, FAST, SLOW = "32,64,56,56", {"roof_share": 0.5}, {"roof_share": 0.49}


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (_conv(DATA, "64,64,3,3"), None, ""),
        (
            _conv(DATA, "64,64,3,3", "stride=2,2 transposed=True"), "transposed",
            "a transposed convolution (kernel 3x3, stride 2x2) with overlapping windows",
        ),
        (
            _conv(DATA, "64,64,2,2", "stride=2,2", "conv_transpose2d"), "transposed",
            "a transposed convolution (kernel 2x2, stride 2x2)",
        ),
        (
            _conv(DATA, "64,1,3,3", "groups=64"), "depthwise",
            "a depthwise convolution (64 groups of 1 input channel), which cannot use Tensor Cores well",
        ),
        (
            _conv("32,128,56,56", "128,64,3,3", "groups=2"), "grouped",
            "a grouped convolution: 2 groups of 64 input and 64 output channels, too few to use Tensor Cores well",
        ),
        (_conv("32,128,56,56", "144,64,3,3", "groups=2"), None, ""),
        (_conv(DATA, "64,1,3,3"), None, ""),
        (_conv(DATA, "256,64,1,1"), "pointwise", "a pointwise (1x1) convolution, equivalent to a matrix multiplicatio"),
        (_conv(DATA, "64,64,1,2"), "asymmetric", "an asymmetric 1x2 kernel; libraries are tuned for square kernels"),
        (
            _conv("32,7,224,112", "64,7,3,3"), "few_channels",
            "only 7 input channels on an input of 224x112, too few to use Tensor Cores well",
        ),
        (_conv("32,1,224,112", "64,1,3,3"), "few_channels", "only 1 input channel on an input of 224x112, too few to"),
        (_conv("32,8,224,224", "64,8,3,3"), None, ""),
        (_conv(DATA, "64,64,3,3", "dilation=2,2"), "dilated", "a dilated convolution (dilation 2x2), for which librar"),
        (_conv(DATA, "64,64,3,3", "dilation=1,2"), "dilated", "a dilated convolution (dilation 1x2), for which librar"),
        (_conv(DATA, "64,64,7,7"), "large_kernel", "a large 7x7 kernel (49 multiply-adds per input channel)"),
        (_conv(DATA, "64,64,6,6"), None, ""),
        # A backward has the gradient first.
        (
            _conv("32,7,224,112", "64,7,3,3", name="convolution_backward", grad="[32,64,222,110]bf16"), "few_channels",
            "only 7 input channels on an input of 224x112, too few to use Tensor Cores well",
        ),
        (_conv(DATA, "64,64,7,7", name="convolution_backward", grad="[32,8,50,50]bf16"), "large_kernel", "a large 7x7"),
    ],
)  # fmt: skip
def test_convolutions(text: str, name: str | None, words: str) -> None:
    cause = cause_of(operator(text, memory=False, processors=4))
    assert (cause and cause.name) == name
    assert cause is None or cause.words.startswith(words)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (_conv("32,128,56,56", "128,64,3,3", "groups=2"), "grouped"), (_conv(DATA, "256,64,1,1"), "pointwise"),
        (_conv(DATA, "64,64,1,2"), "asymmetric"), (_conv("32,7,224,112", "64,7,3,3"), "few_channels"),
        (_conv(DATA, "64,64,3,3", "dilation=2,2"), "dilated"),
    ],
)  # fmt: skip
def test_convolutions_at_half_of_the_roof_are_fast(text: str, name: str) -> None:
    slow, fast = (cause_of(operator(text, memory=False, processors=4, **facts)) for facts in (SLOW, FAST))
    assert slow is not None
    assert slow.name == name
    assert fast is None or fast.name != name


@pytest.mark.parametrize(
    ("outputs", "tile", "name"),
    [(128, "128x128", "grouped"), (136, "128x128", None), (64, "64x256", "grouped"), (72, "64x256", None)],
)
def test_groups_fill_at_most_half_of_a_tile(outputs: int, tile: str, name: str | None) -> None:
    """Of two groups, each has half of the output channels."""
    text = _conv("32,128,56,56", f"{outputs},64,3,3", "groups=2")
    cause = cause_of(operator(text, memory=False, processors=4, kernels=(CONV.format(tile),)))
    assert (cause and cause.name) == name
