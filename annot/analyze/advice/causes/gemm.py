"""Causes of slow matrix multiplications."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from annot.analyze.advice.causes.cause import TILE, Cause, first_cause
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.tensor_cores import divisor_of
from annot.analyze.work.call import Call
from annot.analyze.work.operators import operator_cost

__all__ = ["gemm_cause"]

_FEWEST_PROCESSORS: Final = 40
"""Multiprocessors of the smallest GPU for data centers since Volta (T4), where the device is unknown."""
_LONG_DEPTH: Final = 4
"""Ratio of K to rows and columns from which splitting K gives work to more multiprocessors."""
_FULL_WAVES: Final = 0.75
"""Share of the multiprocessors that waves of thread blocks use on average, below which the last wave costs time."""


@dataclass(frozen=True, slots=True)
class _Gemm:
    """A matrix multiplication of an operator: M rows, N columns and a depth of K, in a batch."""

    operator: Operator
    dtype: str
    batch: int
    rows: int
    columns: int
    depth: int

    @property
    def sizes(self) -> str:
        return f"M={self.rows}, N={self.columns}, K={self.depth}" + (f", batch {self.batch}" if self.batch > 1 else "")

    @property
    def is_deep(self) -> bool:
        """Whether K is long enough to split; a convolution cannot be split by its user."""
        long = self.depth >= _LONG_DEPTH * max(self.rows, self.columns)
        return long and "conv" not in self.operator.name

    @property
    def tiles(self) -> int:
        high, wide = self.operator.tile or TILE
        return self.batch * -(-self.rows // high) * -(-self.columns // wide)

    @property
    def blocks(self) -> int:
        return self.tiles * self.operator.splits


def gemm_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause of an operator that is one matrix multiplication, or one in a batch; None: another operator."""
    cost = operator_cost(operator.tag) if operator.tag else None
    if cost is None or len(cost.gemms) != 1:
        return None
    return first_cause(_CAUSES, _Gemm(operator, call.tensors[0].dtype, *cost.gemms[0]))


def _vector(gemm: _Gemm) -> Cause | None:
    """A matrix-vector multiplication: each weight is read for one multiply-add."""
    if min(gemm.rows, gemm.columns) > 1 or not gemm.operator.memory_bound:
        return None
    return Cause(
        "matrix_vector",
        f"a matrix-vector multiplication ({gemm.sizes}), which is memory-bound",
        "Multiply more rows at once: use a larger batch, or batch requests. Or store the weights in 8 bits.",
        "y = linear(torch.stack(requests))      # one GEMM for several vectors",
    )


def _few_rows(gemm: _Gemm) -> Cause | None:
    """A memory-bound GEMM of so few rows or columns that they leave half of each tile empty; K is not long."""
    empty = 2 * min(gemm.rows, gemm.columns) <= min(gemm.operator.tile or TILE)
    return _skinny(gemm) if empty and not gemm.is_deep and "conv" not in gemm.operator.name else None


def _few_tiles(gemm: _Gemm) -> Cause | None:
    """Fewer thread blocks, one for each output tile and split of K, than multiprocessors."""
    operator = gemm.operator
    high, wide = operator.tile or TILE
    processors = operator.processors or _FEWEST_PROCESSORS
    if gemm.blocks >= processors:
        return None
    split = f" and {operator.splits} splits of K" if operator.splits > 1 else ""
    busy = f"too few for {processors} multiprocessors" if operator.processors else "too few to keep a GPU busy"
    tiles = f"only {gemm.tiles} output tile{'s' * (gemm.tiles != 1)} of {high}x{wide}{split}"
    return Cause(
        "few_tiles",
        f"{tiles} ({gemm.sizes}), {busy}",
        *(_SPLIT_K if gemm.is_deep else _LARGER),
        1 - gemm.blocks / processors if operator.processors else 1.0,
    )


_SPLIT_K: Final = (
    "Split K across more multiprocessors (split-K, stream-K), or batch several multiplications.",
    "parts = torch.bmm(a.view(m, s, k // s).transpose(0, 1), b.view(s, k // s, n))      # s parts of K\n"
    "c = parts.sum(0)",
)
_LARGER: Final = (
    "Make each multiplication larger: use a larger batch, or batch several multiplications.",
    "c = torch.bmm(torch.stack(lefts), torch.stack(rights))",
)


def _last_wave(gemm: _Gemm) -> Cause | None:
    """A last wave of thread blocks that leaves most multiprocessors of a known device idle, with a known tile."""
    processors = gemm.operator.processors
    if not processors or not gemm.operator.tile or gemm.blocks < processors:
        return None
    waves = gemm.blocks / processors
    used = waves / math.ceil(waves)
    if used >= _FULL_WAVES:
        return None
    return Cause(
        "last_wave",
        f"{gemm.blocks} thread blocks on {processors} multiprocessors run in {math.ceil(waves)} waves, and the last "
        f"wave is {waves % 1:.0%} full",
        "Choose sizes that fill whole waves, or a kernel with smaller tiles.",
        'model = torch.compile(model, mode="max-autotune")',
        1 - used,
    )


def _misaligned(gemm: _Gemm) -> Cause | None:
    """Rows of a matrix that are not aligned to 16 bytes, as fast loads and Tensor Cores require.

    The number of rows of activations does not count: rows are not contiguous.
    """
    divisor = divisor_of(gemm.dtype)
    sizes = (("N", gemm.columns), ("K", gemm.depth))
    odd = [f"{name}={size}" for name, size in sizes if divisor and size % divisor]
    if not odd:
        return None
    if gemm.rows % (divisor or 1):
        odd.insert(0, f"M={gemm.rows}")
    return Cause(
        "misaligned",
        f"{', '.join(odd)} {'is not a multiple' if len(odd) == 1 else 'are not multiples'} of {divisor} "
        f"({gemm.dtype}), so that rows are not aligned to 16 bytes",
        f"Pad the sizes to multiples of {divisor}; 64 is better.",
        f"size = -(-size // {divisor}) * {divisor}\nx = torch.nn.functional.pad(x, (0, size - x.shape[-1]))",
    )


def _small_batch(gemm: _Gemm) -> Cause | None:
    """A memory-bound batch of GEMMs that each fit into one tile."""
    small = gemm.batch > 1 and max(gemm.rows, gemm.columns, gemm.depth) <= min(TILE)
    if not small or not gemm.operator.memory_bound:
        return None
    return Cause(
        "small_batched",
        f"{gemm.batch} small matrix multiplications (M={gemm.rows}, N={gemm.columns}, K={gemm.depth}), memory-bound "
        f"with {gemm.operator.intensity:.3g} FLOPs per byte",
        "Fuse small matrix multiplications with the operations around them, or combine them into larger ones.",
        "model = torch.compile(model)",
    )


def _skinny(gemm: _Gemm) -> Cause | None:
    """A GEMM with a small dimension, which makes it memory-bound."""
    if not gemm.operator.memory_bound:
        return None
    smallest = min(gemm.rows, gemm.columns, gemm.depth)
    words = (
        f"a skinny matrix multiplication (M={gemm.rows}, N={gemm.columns}, K={gemm.depth}), memory-bound with "
        f"{gemm.operator.intensity:.3g} FLOPs per byte"
    )
    if smallest not in (gemm.rows, gemm.columns):
        return Cause("skinny", words, "Fuse the operations that follow: the output is larger than the inputs.",
                     "model = torch.compile(model)")  # fmt: skip
    more = "rows" if smallest == gemm.rows else "columns"
    return Cause(
        "skinny",
        words,
        f"Multiply more {more} at once, with a larger batch. Or store the weights in 8 bits.",
        "loader = DataLoader(dataset, batch_size=2 * batch_size)",
    )


_CAUSES: Final = (_vector, _small_batch, _few_rows, _few_tiles, _last_wave, _misaligned, _skinny)
