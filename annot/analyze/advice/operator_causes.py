"""Operators, and why attention, experts of a mixture, reductions and gradients of embeddings are slow on a GPU.

Each rule states its evidence: the shapes and arguments of the operator, or the roof of a known device. Sources: Dao et
al., "FlashAttention-2" (arXiv 2307.08691), section 3.2; Shazeer et al., arXiv 1701.06538, section 3.1 (batches of
experts); PyTorch, `torch.nn.Embedding` (sparse gradients).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from annot.analyze.advice.texts import texts
from annot.analyze.kernel_names import MATRIX, classify
from annot.analyze.work.call import Call
from annot.analyze.work.operators import REDUCTIONS, Mixture, mixture_of, reduced_dimensions
from annot.labels.tag import Tag

LOW_ROOF: Final = 0.5
"""Share of the roof below which a tuned library kernel is slow."""
TILE: Final = (128, 128)
"""Output tile of a GEMM whose kernel names none: the usual one of cuBLAS and hipBLASLt for large matrices."""


_MOST_TENSORS: Final = 4
_TILE_NAME: Final = re.compile(r"_MT(\d+)x(\d+)x\d+|(?<![\dx])(\d{2,3})x(\d{2,3})(?![\dx]*\d{3})")
_SPLITS: Final = re.compile(r"_GSU([1-9]\d{0,3})_")


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of an operator with the same inputs, in one phase.

    Args:
        group: its number in `annot.analyze.roofline.OperatorTable`.
        name: name of the operator, such as ``aten::mm``.
        tag: the call with its inputs; None: unknown.
        share: fraction of the step time (0 to 1) that its GPU activities take.
        kernels: names of its kernels, the longest first.
        flops, bytes: work of a call; None: unknown.
        roof_share: achieved performance relative to the roof, 0 to 1; None: the device or the work is unknown.
        ridge: FLOPs per byte from which the operator is compute-bound on the device, or on any device if the device is
            unknown.
        processors: number of multiprocessors (AMD: compute units); None: unknown.
        device: name of the device; empty: unknown.
        units: name of its matrix units, `annot.analyze.tensor_cores.matrix_units`.
        multiplies: fraction of its GPU time (0 to 1) in kernels that multiply matrices, or of unknown kind. The
            rest converts or copies.
        from_host: fraction of its GPU time (0 to 1) in copies from or to the host.
    """

    group: int
    name: str
    tag: Tag | None
    share: float
    kernels: tuple[str, ...]
    flops: float | None
    bytes: float | None
    roof_share: float | None
    ridge: float
    processors: int | None
    device: str
    units: str
    multiplies: float = 1.0
    from_host: float = 0.0

    @property
    def in_pieces(self) -> bool:
        """Whether separate kernels multiply matrices and compute softmax, as attention without a fused kernel does."""
        kinds = {classify(name).kind for name in self.kernels}
        return bool(kinds & {"gemm", "softmax"} == {"gemm", "softmax"}) and "attention" not in kinds

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None: unknown."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def memory_bound(self) -> bool:
        """Whether the operator reads and writes memory for longer than it computes, on a device at its peaks."""
        return self.intensity is not None and self.intensity < self.ridge

    @property
    def title(self) -> str:
        """Name and shapes, as ``aten::mm [8,16]bf16 x [16,4]bf16``; three equal shapes, as of attention, stand once."""
        return self._titled(_MOST_TENSORS)

    @property
    def short_title(self) -> str:
        """Title with two shapes at most."""
        return self._titled(2)

    def _titled(self, most: int) -> str:
        shapes = [*map(str, self.tag.tensors)] if self.tag else []
        shapes = shapes[:1] if len(shapes) > 2 and len(set(shapes)) == 1 else shapes
        more = ["…"] if len(shapes) > most or (self.tag and self.tag.omitted) else []
        return f"{self.name} {' x '.join(shapes[:most] + more)}".strip()

    @property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of the output tiles in the name of the longest kernel that multiplies matrices."""
        names = (name for name in self.kernels if classify(name).kind in MATRIX)
        match = next((match for name in names if (match := _TILE_NAME.search(name))), None)
        if match is None:
            return None
        rows, columns = (int(size) for size in match.groups() if size)
        return rows, columns

    @property
    def splits(self) -> int:
        """Number of parts of K that the longest kernel computes beside each other, by its name (Tensile: GSU)."""
        match = _SPLITS.search(self.kernels[0]) if self.kernels else None
        return int(match[1]) if match else 1


@dataclass(frozen=True, slots=True)
class Cause:
    """What is slow about an operator.

    Args:
        name: name of the cause.
        words: the cause with its numbers, as a clause.
        advice: the change, as a sentence; empty: the profile does not show what to change.
        code: code to write.
        saves: upper bound of the part of the operator's time that the change saves, 0 to 1.
        changes: names of the changes that realize the advice, as in `annot.analyze.advice.facts.Advice`.
    """

    name: str
    words: str
    advice: str = ""
    code: str = ""
    saves: float = 1.0
    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, words: str, saves: float = 1.0, **values: object) -> Cause:
        """Return a cause with the texts of its name, in which `values` replace the fields in braces."""
        text = texts().causes[name].filled(**values)
        return cls(name, words, text.advice, text.code, saves, text.changes)


Family: TypeAlias = Callable[[Operator, Call], Cause | None]
"""Return the cause of an operator of one family; None: its shape and arguments are fine."""
_Subject = TypeVar("_Subject")


def first_cause(causes: Iterable[Callable[[_Subject], Cause | None]], subject: _Subject) -> Cause | None:
    """Return the first cause that applies to a subject."""
    return next((cause for rule in causes if (cause := rule(subject)) is not None), None)


def is_fast(operator: Operator) -> bool:
    """Whether an operator reaches so much of the roof of its device that its shape does not slow it."""
    computes = 1.0 if operator.memory_bound else operator.multiplies
    return operator.roof_share is not None and operator.roof_share >= LOW_ROOF * computes


def _roof_words(operator: Operator) -> str:
    """Return the share of the roof as a phrase with a leading space; empty: unknown."""
    return "" if operator.roof_share is None else f" at {operator.roof_share:.0%} of the roof"


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
        return _roof_words(self.operator)


def attention_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause that follows from lengths, mask, head size and kernels of an attention operator."""
    first = int("backward" in call.name)  # a backward has the gradient first
    attention = _Attention(operator, call, call.shape(first), call.shape(first + 1))
    cause = first_cause(_ATTENTION_CAUSES, attention)
    return None if cause is None else replace(cause, saves=1 - (operator.roof_share or 0.0))


def _separate_kernels(attention: _Attention) -> Cause | None:
    """Separate kernels for matrix multiplication and softmax."""
    if not attention.operator.in_pieces:
        return None
    return Cause.of(
        "math",
        f"attention in separate kernels for matrix multiplication and softmax ({attention.sizes}){attention.roof}, "
        "which writes the scores to memory",
    )


def _decode(attention: _Attention) -> Cause | None:
    """Memory-bound attention of few queries to many keys."""
    length, source = attention.length, attention.source
    if not attention.operator.memory_bound or _MORE_KEYS * length > source:
        return None
    return Cause.of(
        "decode",
        f"memory-bound attention of {length} quer{'y' if length == 1 else 'ies'} to {source} keys{attention.roof}",
    )


def _short_sequences(attention: _Attention) -> Cause | None:
    """Memory-bound attention of sequences that are shorter than `_LONG`."""
    if not attention.operator.memory_bound or max(attention.length, attention.source) >= _LONG:
        return None
    return Cause.of("short_sequences", f"short sequences ({attention.sizes}), mostly overhead{attention.roof}")


def _mask(attention: _Attention) -> Cause | None:
    """An explicit mask: a fourth tensor of a forward."""
    call = attention.call
    if len(call.tensors) <= 3 or "backward" in call.name:
        return None
    return Cause.of(
        "mask",
        f"attention with an explicit mask {call.tensors[3]}{attention.roof}, so that kernels cannot skip masked blocks",
    )


def _head_size(attention: _Attention) -> Cause | None:
    """A head size that fused kernels pad or do not support."""
    width = attention.query[-1]
    if not width % _HEAD_DIVISOR and width <= _LARGEST_HEAD:
        return None
    words = f"attention with head size {width}{attention.roof}, which fused kernels pad or do not support"
    return Cause.of("head_size", words)


def _older_kernel(attention: _Attention) -> Cause | None:
    """A length of at least `_LONG`, as the work grows with its square, or a low share of the roof of a known device."""
    share = attention.operator.roof_share
    if max(attention.length, attention.source) >= _LONG:
        name, what = "long_sequence", "a long sequence"
    elif share is not None and share < LOW_ROOF:
        name, what = "low_efficiency", "attention"
    else:
        return None
    return Cause(
        name,
        f"{what} ({attention.sizes}){attention.roof}",
        "Use the newest attention kernel for this GPU, or attend to a sliding window or to blocks.",
        _KERNELS_OF_AMD if "AMD" in attention.operator.device else _KERNELS_OF_NVIDIA,
    )


_KERNELS_OF_AMD: Final = 'torch.backends.cuda.preferred_rocm_fa_library("ck")      # instead of AOTriton'
_KERNELS_OF_NVIDIA: Final = (
    "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):\n    out = model(x)"
)
_ATTENTION_CAUSES: Final = (_separate_kernels, _decode, _short_sequences, _mask, _head_size, _older_kernel)


_ROWS: Final = 16
"""Rows of the smallest matrix instruction; fewer rows leave it partly empty."""


def experts_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause that follows from the mean number of tokens per expert; None: unknown sizes."""
    mixture = mixture_of(call.tensors)
    if mixture is None:
        return None
    rows = mixture.tokens * mixture.chosen / mixture.experts
    return _few_tokens(mixture, rows) if operator.memory_bound else _large_capacity(mixture, rows)


def _routing(mixture: Mixture, rows: float) -> str:
    mean = f"{rows:.0f}" if rows >= 2 else f"{rows:.2g}"
    return (
        f"{mixture.tokens} tokens, {'sparse ' * (mixture.chosen == 1)}top-{mixture.chosen} routing to "
        f"{mixture.experts} experts: {mean} each"
    )


def _few_tokens(mixture: Mixture, rows: float) -> Cause:
    """Memory-bound experts: the weights of each are read for few tokens."""
    few = "few tokens for many experts" if rows < _ROWS else "few tokens per expert"
    return Cause.of("few_tokens_per_expert", f"{few} ({_routing(mixture, rows)})")


def _large_capacity(mixture: Mixture, rows: float) -> Cause:
    """Compute-bound experts."""
    return Cause.of("large_capacity", f"large capacity ({_routing(mixture, rows)}), compute-bound")


def reduction_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause of a reduction whose elements are not neighbours in memory; None: another operator.

    Evidence: dimensions that a reduction of a contiguous tensor reduces, without the last one, and less than half of
    the memory bandwidth of a known device.
    """
    if call.name not in REDUCTIONS:
        return None
    dimensions = reduced_dimensions(call)
    apart = math.prod(call.shape()[max(dimensions, default=0) + 1 :])
    if apart <= 1 or is_fast(operator):
        return None
    which = f"dimension{'s' * (len(dimensions) > 1)} {', '.join(map(str, dimensions))}"
    return Cause.of(
        "strided_reduction",
        f"a reduction over {which}, whose elements are {apart} elements apart in memory{_roof_words(operator)}",
        1 - (operator.roof_share or 0.0),
    )


def embedding_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause of a dense gradient of an embedding: it has more rows than the indices can reach.

    Evidence: the number of rows of the table and of the indices of ``aten::embedding_dense_backward``.
    """
    if call.name != "embedding_dense_backward":
        return None
    rows, indices = call.number("num"), call.count(1)
    if rows <= indices:
        return None
    return Cause.of(
        "dense_gradient",
        f"a dense gradient of {rows:,} rows, of which {indices:,} indices reach at most {indices / rows:.0%}",
        1 - indices / rows,
    )
