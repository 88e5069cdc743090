"""Why the shape of an operator is slow on a GPU: matrix multiplications, convolutions, attention and experts.

Each cause follows from the shapes and arguments alone, or from the roof of a known device. Sources: NVIDIA, "Matrix
Multiplication Background User's Guide" (tiles, waves, alignment of 16 bytes) and "Convolutional Layers User's Guide";
Dao et al., "FlashAttention-2" (arXiv 2307.08691), section 3.2; Shazeer et al., arXiv 1701.06538, section 3.1 (batches
of experts).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from annot.analyze.advice.operator_facts import Operator
from annot.analyze.tensor_cores import divisor_of
from annot.analyze.work.call import Call, UncountableError
from annot.analyze.work.operators import mixture_of, operator_cost

__all__ = ["Cause", "cause_of"]

_FEWEST_PROCESSORS: Final = 40
"""Multiprocessors of the smallest GPU for data centers since Volta (T4), where the device is unknown."""
_TILE: Final = (128, 128)
"""Output tile of a GEMM whose kernel names none: the usual one of cuBLAS and hipBLASLt for large matrices."""
_ROWS: Final = 16
"""Rows of the smallest matrix instruction; fewer rows leave it partly empty."""
_LONG_DEPTH: Final = 4
"""Ratio of K to rows and columns from which splitting K gives work to more multiprocessors."""
_MORE_KEYS: Final = 8
"""Keys per query from which attention mostly reads keys and values, as in decoding."""
_LONG: Final = 4096
"""Length from which attention computes more than the linear layers of a model with a width of up to 4096."""
_LOW_ROOF: Final = 0.5
"""Share of the roof below which a tuned library kernel of large matrices is slow."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What is slow about an operator.

    Args:
        name: name of the cause.
        words: the cause with its numbers, as a clause.
        advice: the change, as a sentence; empty: nothing to change is known.
        code: code to write.
        saves: upper bound of the part of the operator's time that the change saves, 0 to 1.
    """

    name: str
    words: str
    advice: str = ""
    code: str = ""
    saves: float = 1.0


def cause_of(operator: Operator) -> Cause | None:
    """Return why an operator is slow; None: its inputs are unknown, or nothing is wrong with them."""
    if operator.tag is None or operator.tag.phase != "op":
        return None
    call = Call.of(operator.tag)
    family = next((family for word, family in _FAMILIES.items() if word in call.name), None)
    try:
        found = family(operator, call) if family else _gemm(operator)
    except (UncountableError, IndexError, ValueError, ArithmeticError):
        return None
    return found or _low_roof(operator) or _low_intensity(operator)


def _low_roof(operator: Operator) -> Cause | None:
    """A compute-bound operator whose kernels that multiply are far below the roof of a known device.

    It saves at most what separates it from `_LOW_ROOF`: a profile does not show that more is possible.
    """
    if operator.roof_share is None or operator.memory_bound or not operator.multiplies:
        return None
    reached = operator.roof_share / operator.multiplies
    if reached >= _LOW_ROOF:
        return None
    return Cause(
        "low_efficiency", f"{operator.roof_share:.0%} of the peak of the device at this precision",
        "Let the compiler or the library choose another kernel.",
        'model = torch.compile(model, mode="max-autotune")', operator.multiplies * (1 - reached / _LOW_ROOF),
    )  # fmt: skip


def _low_intensity(operator: Operator) -> Cause | None:
    """An operator that moves more bytes than a device can compute with. It has no advice: fusing needs two."""
    if not operator.memory_bound or operator.intensity is None:
        return None
    roof = "" if operator.roof_share is None else f", {operator.roof_share:.0%} of the memory bandwidth"
    return Cause("memory_bound", f"memory-bound with {operator.intensity:.2g} FLOPs per byte{roof}")


# ------------------------------------------------------------------ matrix multiplications


def _gemm(operator: Operator) -> Cause | None:
    cost = operator_cost(operator.tag) if operator.tag else None
    if cost is None or len(cost.gemms) != 1:
        return None
    sizes = cost.gemms[0]
    dtype = operator.tag.tensors[0].dtype if operator.tag else ""
    return (
        _vector(operator, *sizes)
        or _few_rows(operator, *sizes)
        or _few_tiles(operator, *sizes)
        or _misaligned(dtype, *sizes[1:])
        or _skinny(operator, *sizes)
    )


def _few_rows(operator: Operator, batch: int, rows: int, columns: int, depth: int) -> Cause | None:
    """A memory-bound GEMM of so few rows or columns that they leave half of each tile empty; K is not long."""
    empty = 2 * min(rows, columns) <= min(operator.tile or _TILE)
    if not empty or depth >= _LONG_DEPTH * max(rows, columns) or "conv" in operator.name:
        return None
    return _skinny(operator, batch, rows, columns, depth)


def _vector(operator: Operator, batch: int, rows: int, columns: int, depth: int) -> Cause | None:
    """A matrix-vector multiplication: each weight is read for one multiply-add."""
    if min(rows, columns) > 1 or not operator.memory_bound:
        return None
    return Cause(
        "matrix_vector",
        f"a matrix-vector multiplication ({_sizes(batch, rows, columns, depth)}), which is memory-bound",
        "Multiply more rows at once: use a larger batch, or batch requests. Or store the weights in 8 bits.",
        "y = linear(torch.stack(requests))      # one GEMM for several vectors",
    )  # fmt: skip


def _few_tiles(operator: Operator, batch: int, rows: int, columns: int, depth: int) -> Cause | None:
    """Fewer output tiles than multiprocessors, or a last wave that leaves most of them idle."""
    high, wide = operator.tile or _TILE
    tiles = batch * -(-rows // high) * -(-columns // wide)
    blocks = tiles * operator.splits
    processors = operator.processors or _FEWEST_PROCESSORS
    known = operator.processors is not None
    if blocks >= processors:
        return _last_wave(blocks, processors) if known and operator.tile else None
    long = depth >= _LONG_DEPTH * max(rows, columns) and "conv" not in operator.name
    split = f" and {operator.splits} splits of K" if operator.splits > 1 else ""
    busy = f"too few for {processors} multiprocessors" if known else "too few to keep a GPU busy"
    words = (
        f"only {tiles} output tile{'s' * (tiles != 1)} of {high}x{wide}{split} "
        f"({_sizes(batch, rows, columns, depth)}), {busy}"
    )
    return Cause("few_tiles", words, *(_SPLIT_K if long else _LARGER), 1 - blocks / processors if known else 1.0)


def _sizes(batch: int, rows: int, columns: int, depth: int) -> str:
    """The sizes of a matrix multiplication, and the size of the batch if it has several."""
    return f"M={rows}, N={columns}, K={depth}" + (f", batch {batch}" if batch > 1 else "")


_SPLIT_K: Final = (
    "Split K across more multiprocessors (split-K, stream-K), or batch several multiplications.",
    "parts = torch.bmm(a.view(m, s, k // s).transpose(0, 1), b.view(s, k // s, n))      # s parts of K\n"
    "c = parts.sum(0)",
)
_LARGER: Final = (
    "Make each multiplication larger: use a larger batch, or batch several multiplications.",
    "c = torch.bmm(torch.stack(lefts), torch.stack(rights))",
)


def _last_wave(tiles: int, processors: int) -> Cause | None:
    waves = tiles / processors
    used = waves / math.ceil(waves)
    if used >= 0.75:
        return None
    return Cause(
        "last_wave",
        f"{tiles} thread blocks on {processors} multiprocessors run in {math.ceil(waves)} waves, and the last wave is "
        f"{waves % 1:.0%} full",
        "Choose sizes that fill whole waves, or a kernel with smaller tiles.",
        'model = torch.compile(model, mode="max-autotune")', 1 - used,
    )  # fmt: skip


def _misaligned(dtype: str, rows: int, columns: int, depth: int) -> Cause | None:
    """Rows of a matrix that are not aligned to 16 bytes, as fast loads and Tensor Cores require.

    The number of rows of activations does not count: rows are not contiguous.
    """
    divisor = divisor_of(dtype)
    odd = [f"{name}={size}" for name, size in (("N", columns), ("K", depth)) if divisor and size % divisor]
    if not odd:
        return None
    if rows % (divisor or 1):
        odd.insert(0, f"M={rows}")
    return Cause(
        "misaligned",
        f"{', '.join(odd)} {'is not a multiple' if len(odd) == 1 else 'are not multiples'} of {divisor} "
        f"({dtype}), so that rows are not aligned to 16 bytes",
        f"Pad the sizes to multiples of {divisor}; 64 is better.",
        f"size = -(-size // {divisor}) * {divisor}\nx = torch.nn.functional.pad(x, (0, size - x.shape[-1]))",
    )  # fmt: skip


def _skinny(operator: Operator, batch: int, rows: int, columns: int, depth: int) -> Cause | None:
    """A GEMM with a small dimension, or a batch of small GEMMs, which makes it memory-bound."""
    if not operator.memory_bound:
        return None
    if batch > 1 and max(rows, columns, depth) <= min(_TILE):
        return Cause(
            "small_batched",
            f"{batch} small matrix multiplications (M={rows}, N={columns}, K={depth}), memory-bound with "
            f"{operator.intensity:.3g} FLOPs per byte",
            "Fuse small matrix multiplications with the operations around them, or combine them into larger ones.",
            "model = torch.compile(model)",
        )  # fmt: skip
    name, _ = min((("M", rows), ("N", columns), ("K", depth)), key=lambda named: named[1])
    words = (
        f"a skinny matrix multiplication (M={rows}, N={columns}, K={depth}), memory-bound with "
        f"{operator.intensity:.3g} FLOPs per byte"
    )
    if name == "K":
        return Cause("skinny", words, "Fuse the operations that follow: the output is larger than the inputs.",
                     "model = torch.compile(model)")  # fmt: skip
    more = "rows" if name == "M" else "columns"
    return Cause(
        "skinny", words,
        f"Multiply more {more} at once, with a larger batch. Or store the weights in 8 bits.",
        "loader = DataLoader(dataset, batch_size=2 * batch_size)",
    )  # fmt: skip


# ------------------------------------------------------------------ convolutions


def _convolution(operator: Operator, call: Call) -> Cause | None:
    of_gradient = call.name.endswith("_backward")
    data, weight = call.shape(int(of_gradient)), call.shape(1 + of_gradient)
    kernel, groups = weight[2:], call.number("groups", 1)
    size = "x".join(map(str, kernel))
    last = "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"
    if call.flag("transposed", default="transpose" in call.name):
        stride = call.numbers("stride", len(kernel), 1)
        overlap = [f"{length}/{step}" for length, step in zip(kernel, stride, strict=True) if length != step]
        windows = " with overlapping windows" if overlap else ""
        return Cause(
            "transposed",
            f"a transposed convolution (kernel {size}, stride {'x'.join(map(str, stride))}){windows}",
            "Replace the transposed convolution with upsampling and a convolution, or a convolution and PixelShuffle.",
            "torch.nn.Sequential(torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(inputs, outputs, 3, padding=1))",
        )  # fmt: skip
    if groups > 1:
        deep = weight[1] == 1
        each = f"{weight[1]} channel{'s' * (weight[1] != 1)} per group"
        return Cause(
            "depthwise" if deep else "grouped",
            f"a {'depthwise' if deep else 'grouped'} convolution ({groups} groups, {each}), too few channels to "
            f"use {operator.units} well",
            "Use channels-last tensors, and fuse the depthwise convolution with its neighbors."
            if deep else "Use fewer groups with more channels each, or channels-last tensors.",
            f"{last}\nmodel = torch.compile(model)",
        )  # fmt: skip
    if math.prod(kernel) == 1:
        sizes = operator_cost(operator.tag).gemms[0][1:] if operator.tag and not of_gradient else None  # type: ignore[union-attr]
        gemm = f" with M={sizes[0]}, N={sizes[1]}, K={sizes[2]}" if sizes else ""
        return Cause(
            "pointwise", f"a pointwise (1x1) convolution, equivalent to a matrix multiplication{gemm}",
            "Compute the 1x1 convolution as a GEMM: use channels-last tensors, or a linear layer over the channels.",
            f"{last}\n# or: y = torch.nn.functional.linear(x.permute(0, 2, 3, 1), weight[:, :, 0, 0], bias)",
        )  # fmt: skip
    if len(set(kernel)) > 1:
        return Cause(
            "asymmetric", f"an asymmetric {size} kernel; libraries are tuned for square kernels",
            f"Replace the {size} kernel with a square one, or try other algorithms and channels-last tensors.",
            f"torch.backends.cudnn.benchmark = True\n{last}",
        )  # fmt: skip
    channels, divisor = data[1] if len(data) > 1 else 0, divisor_of(call.tensors[0].dtype)
    if divisor and channels < divisor:
        extent = "x".join(map(str, data[2:]))
        return Cause(
            "few_channels",
            f"only {channels} input channel{'s' * (channels != 1)} on an input of {extent}, too few to use "
            f"{operator.units} well",
            f"Pad the input channels to {divisor}, or use space-to-depth (pixel_unshuffle).",
            "x = torch.nn.functional.pixel_unshuffle(x, 2)      # 4 times the channels, a quarter of the extent",
        )  # fmt: skip
    dilation = call.numbers("dilation", len(kernel), 1)
    if max(dilation) > 1:
        return Cause(
            "dilated",
            f"a dilated convolution (dilation {'x'.join(map(str, dilation))}), for which libraries have few algorithms",
            "Let cuDNN benchmark its algorithms, and use channels-last tensors.",
            f"torch.backends.cudnn.benchmark = True\n{last}",
        )  # fmt: skip
    if max(kernel) >= 7:
        return Cause(
            "large_kernel", f"a large {size} kernel ({math.prod(kernel)} multiply-adds per input channel)",
            f"Replace the {size} kernel with several 3x3 kernels.", "torch.nn.Conv2d(inputs, outputs, 3, padding=1)",
        )  # fmt: skip
    return _gemm(operator)


# ------------------------------------------------------------------ attention


def _attention(operator: Operator, call: Call) -> Cause | None:
    first = int("backward" in call.name)  # a backward has the gradient first
    query, key = call.shape(first), call.shape(first + 1)
    *heads, length, width = query
    source, count = key[-2], math.prod(heads)
    lengths = f"length {length}" if length == source else f"lengths {length} and {source}"
    lengths += ", causal" if call.flag("is_causal", default=False) else ", no causal mask"
    shared = f" that share {math.prod(key[:-2])} key heads" if math.prod(key[:-2]) < count else ""
    roof = "" if operator.roof_share is None else f" at {operator.roof_share:.0%} of the roof"
    saves = 1 - (operator.roof_share or 0.0)
    if operator.in_pieces:
        return Cause(
            "math",
            f"attention in separate kernels for matrix multiplication and softmax ({lengths}, {count} heads in total)"
            f"{roof}, which writes the scores to memory",
            "Meet the conditions of a fused attention kernel: 16-bit inputs, a supported head size and mask.",
            "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):\n"
            "    out = model(x)      # warns why it cannot be used",
            saves,
        )  # fmt: skip
    if operator.memory_bound and _MORE_KEYS * length <= source:
        return Cause(
            "decode",
            f"memory-bound attention of {length} quer{'y' if length == 1 else 'ies'} to {source} keys{roof}",
            "Decode more sequences at once, split the keys across multiprocessors, or share keys among heads (GQA).",
            "out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache)      # split over keys", saves,
        )  # fmt: skip
    if operator.memory_bound and max(length, source) < _LONG:
        return Cause(
            "short_sequences",
            f"short sequences ({lengths}, {count} heads in total{shared}){roof}, dominated by memory and overhead",
            "Give each call more work: pack sequences, use a larger batch, or fuse attention with its neighbors.",
            'model = torch.compile(model, mode="reduce-overhead")', saves,
        )  # fmt: skip
    if len(call.tensors) > 3 and not first:
        return Cause(
            "mask",
            f"attention with an explicit mask {call.tensors[3]}{roof}, so that kernels cannot skip masked blocks",
            "Use is_causal=True, or FlexAttention, which skip masked blocks.",
            "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)", saves,
        )  # fmt: skip
    if width % 8 or width > 256:
        return Cause(
            "head_size", f"attention with head size {width}{roof}, which fused kernels pad or do not support",
            "Use a head size of 64 or 128.", "heads = width // 128", saves,
        )  # fmt: skip
    slow = operator.roof_share is not None and operator.roof_share < _LOW_ROOF
    if max(length, source) >= _LONG or slow:
        grows = "; its work grows with the square of the length"
        name = "long_sequence" if max(length, source) >= _LONG else "low_efficiency"
        return Cause(
            name,
            f"{'a long sequence' if name == 'long_sequence' else 'attention'} ({lengths}, {count} heads in total"
            f"{shared}){roof}{grows if name == 'long_sequence' else ''}",
            "Use the newest attention kernel for this GPU, or attend to a sliding window or to blocks.",
            _KERNELS_OF_AMD if "AMD" in operator.device else _KERNELS_OF_NVIDIA, saves,
        )  # fmt: skip
    return None


_KERNELS_OF_AMD: Final = 'torch.backends.cuda.preferred_rocm_fa_library("ck")      # instead of AOTriton'
_KERNELS_OF_NVIDIA: Final = (
    "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):\n    out = model(x)"
)


# ------------------------------------------------------------------ experts


def _experts(operator: Operator, call: Call) -> Cause | None:
    mixture = mixture_of(call.tensors)
    if mixture is None:
        return None
    rows = mixture.tokens * mixture.chosen / mixture.experts
    mean = f"{rows:.0f}" if rows >= 2 else f"{rows:.2g}"
    words = (
        f"{mixture.tokens} tokens with {'sparse ' * (mixture.chosen == 1)}top-{mixture.chosen} routing to "
        f"{mixture.experts} experts, a mean of {mean} per expert"
    )
    if operator.memory_bound:
        few = "few tokens for many experts" if rows < _ROWS else "few tokens per expert"
        return Cause(
            "few_tokens_per_expert",
            f"{few} ({words}), which is memory-bound",
            "Route more tokens to each expert: use larger batches, expert parallelism or fewer experts. Or store the "
            "weights in 8 bits.",
            "tokens = torch.bincount(expert_ids.flatten(), minlength=experts)      # tokens of each expert",
        )  # fmt: skip
    return Cause(
        "large_capacity",
        f"large capacity ({words}), which is compute-bound",
        "Balance the load of the experts, and reduce the capacity to the tokens that they get. Or compute in 8 bits.",
        "capacity = math.ceil(1.25 * tokens * top_k / experts)",
    )  # fmt: skip


_FAMILIES: Final = {"conv": _convolution, "attention": _attention, "moe": _experts, "experts": _experts}
"""Words in the names of operators, and how they are explained."""
