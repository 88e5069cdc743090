"""Causes of slow attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from annot.analyze.advice.causes.cause import LOW_ROOF, Cause, first_cause, roof_words
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.work.call import Call

__all__ = ["attention_cause"]

_MORE_KEYS: Final = 8
"""Keys per query from which attention mostly reads keys and values, as in decoding."""
_LONG: Final = 4096
"""Length from which attention computes more than the linear layers of a model with a width of up to 4096."""
_LARGEST_HEAD: Final = 256
"""Largest head size of FlashAttention-2."""
_HEAD_DIVISOR: Final = 8
"""FlashAttention-2 pads head sizes to multiples of this."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention with the shapes of its queries and keys: batch, heads, length and head size."""

    operator: Operator
    call: Call
    query: tuple[int, ...]
    key: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.query[-2]

    @property
    def source(self) -> int:
        """Number of keys."""
        return self.key[-2]

    @property
    def sizes(self) -> str:
        """Lengths, mask and heads in words."""
        same = self.length == self.source
        lengths = f"length {self.length}" if same else f"lengths {self.length} and {self.source}"
        causal = "causal" if self.call.flag("is_causal", default=False) else "not causal"
        heads, keys = ("x".join(map(str, shape[:-2])) for shape in (self.query, self.key))
        shared = f", {keys} key heads" if math.prod(self.key[:-2]) < math.prod(self.query[:-2]) else ""
        return f"{lengths}, {causal}, {heads} heads{shared}"

    @property
    def roof(self) -> str:
        return roof_words(self.operator)

    @property
    def saves(self) -> float:
        return 1 - (self.operator.roof_share or 0.0)


def attention_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause that follows from lengths, mask, head size and kernels of an attention operator."""
    first = int("backward" in call.name)  # a backward has the gradient first
    return first_cause(_CAUSES, _Attention(operator, call, call.shape(first), call.shape(first + 1)))


def _separate_kernels(attention: _Attention) -> Cause | None:
    """Separate kernels for matrix multiplication and softmax."""
    if not attention.operator.in_pieces:
        return None
    return Cause(
        "math",
        f"attention in separate kernels for matrix multiplication and softmax ({attention.sizes}){attention.roof}, "
        "which writes the scores to memory",
        "Meet the conditions of a fused attention kernel: 16-bit inputs, a supported head size and mask.",
        "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):\n"
        "    out = model(x)      # warns why it cannot be used",
        attention.saves,
    )


def _decode(attention: _Attention) -> Cause | None:
    """Memory-bound attention of few queries to many keys."""
    length, source = attention.length, attention.source
    if not attention.operator.memory_bound or _MORE_KEYS * length > source:
        return None
    return Cause(
        "decode",
        f"memory-bound attention of {length} quer{'y' if length == 1 else 'ies'} to {source} keys{attention.roof}",
        "Decode more sequences at once, split the keys across multiprocessors, or share keys among heads (GQA).",
        "out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache)      # split over keys",
        attention.saves,
    )


def _short_sequences(attention: _Attention) -> Cause | None:
    """Memory-bound attention of sequences that are shorter than `_LONG`."""
    if not attention.operator.memory_bound or max(attention.length, attention.source) >= _LONG:
        return None
    return Cause(
        "short_sequences",
        f"short sequences ({attention.sizes}), mostly overhead{attention.roof}",
        "Give each call more work: pack sequences, use a larger batch, or fuse attention with its neighbors.",
        'model = torch.compile(model, mode="reduce-overhead")',
        attention.saves,
    )


def _mask(attention: _Attention) -> Cause | None:
    """An explicit mask: a fourth tensor of a forward."""
    call = attention.call
    if len(call.tensors) <= 3 or "backward" in call.name:
        return None
    return Cause(
        "mask",
        f"attention with an explicit mask {call.tensors[3]}{attention.roof}, so that kernels cannot skip masked blocks",
        "Use is_causal=True, or FlexAttention, which skip masked blocks.",
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        attention.saves,
    )


def _head_size(attention: _Attention) -> Cause | None:
    """A head size that fused kernels pad or do not support."""
    width = attention.query[-1]
    if not width % _HEAD_DIVISOR and width <= _LARGEST_HEAD:
        return None
    return Cause(
        "head_size", f"attention with head size {width}{attention.roof}, which fused kernels pad or do not support",
        "Use a head size of 64 or 128.", "heads = width // 128", attention.saves,
    )  # fmt: skip


def _long_sequence(attention: _Attention) -> Cause | None:
    """A length of at least `_LONG`: the work of attention grows with the square of the length."""
    if max(attention.length, attention.source) < _LONG:
        return None
    return _newer_kernel("long_sequence", "a long sequence", attention)


def _low_efficiency(attention: _Attention) -> Cause | None:
    """A low share of the roof of a known device."""
    share = attention.operator.roof_share
    return None if share is None or share >= LOW_ROOF else _newer_kernel("low_efficiency", "attention", attention)


def _newer_kernel(name: str, what: str, attention: _Attention) -> Cause:
    return Cause(
        name,
        f"{what} ({attention.sizes}){attention.roof}",
        "Use the newest attention kernel for this GPU, or attend to a sliding window or to blocks.",
        _KERNELS_OF_AMD if "AMD" in attention.operator.device else _KERNELS_OF_NVIDIA,
        attention.saves,
    )


_KERNELS_OF_AMD: Final = 'torch.backends.cuda.preferred_rocm_fa_library("ck")      # instead of AOTriton'
_KERNELS_OF_NVIDIA: Final = (
    "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):\n    out = model(x)"
)
_CAUSES: Final = (
    _separate_kernels, _decode, _short_sequences, _mask, _head_size, _long_sequence, _low_efficiency,
)  # fmt: skip
