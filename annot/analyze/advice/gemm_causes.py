"""Why a matrix multiplication or a convolution is slow on a GPU: a small rule for each cause.

Sources: NVIDIA, "Matrix Multiplication Background User's Guide" (tiles, waves, alignment of 16 bytes) and
"Convolutional Layers User's Guide".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from annot.analyze.advice.operator_causes import TILE, Cause, Operator, first_cause, is_fast
from annot.analyze.tensor_cores import divisor_of
from annot.analyze.work.call import Call
from annot.analyze.work.operators import operator_cost

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
    def matrix(self) -> str:
        """Sizes of a matrix multiplication of the batch, in words."""
        return f"M={self.rows}, N={self.columns}, K={self.depth}"

    @property
    def sizes(self) -> str:
        return self.matrix + (f", batch {self.batch}" if self.batch > 1 else "")

    @property
    def intensity(self) -> str:
        """The arithmetic intensity of a memory-bound multiplication in words."""
        return f"memory-bound with {self.operator.intensity:.3g} FLOPs per byte"

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
    return first_cause(_GEMM_CAUSES, _Gemm(operator, call.tensors[0].dtype, *cost.gemms[0]))


def _vector(gemm: _Gemm) -> Cause | None:
    """A matrix-vector multiplication: each weight is read for one multiply-add."""
    if min(gemm.rows, gemm.columns) > 1 or not gemm.operator.memory_bound:
        return None
    return Cause.of("matrix_vector", f"a matrix-vector multiplication ({gemm.sizes}), which is memory-bound")


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
    if not processors or not gemm.operator.tile:
        return None
    waves = gemm.blocks / processors
    used = waves / math.ceil(waves)
    if used >= _FULL_WAVES:
        return None
    return Cause.of(
        "last_wave",
        f"{gemm.blocks} thread blocks on {processors} multiprocessors run in {math.ceil(waves)} waves, and the last "
        f"wave is {waves % 1:.0%} full",
        1 - used,
    )


def _misaligned(gemm: _Gemm) -> Cause | None:
    """Rows of a matrix that are not aligned to 16 bytes, as fast loads and Tensor Cores require.

    The number of rows of activations does not count: rows are not contiguous.
    """
    divisor = divisor_of(gemm.dtype) or 1
    odd = [f"{name}={size}" for name, size in (("N", gemm.columns), ("K", gemm.depth)) if size % divisor]
    if not odd:
        return None
    if gemm.rows % divisor:
        odd.insert(0, f"M={gemm.rows}")
    return Cause.of(
        "misaligned",
        f"{', '.join(odd)} {'is not a multiple' if len(odd) == 1 else 'are not multiples'} of {divisor} "
        f"({gemm.dtype}), so that rows are not aligned to 16 bytes",
        divisor=divisor,
    )


def _small_batch(gemm: _Gemm) -> Cause | None:
    """A memory-bound batch of GEMMs that each fit into one tile."""
    small = gemm.batch > 1 and max(gemm.rows, gemm.columns, gemm.depth) <= min(TILE)
    if not small or not gemm.operator.memory_bound:
        return None
    return Cause.of("small_batched", f"{gemm.batch} small matrix multiplications ({gemm.matrix}), {gemm.intensity}")


def _skinny(gemm: _Gemm) -> Cause | None:
    """A GEMM with a small dimension, which makes it memory-bound."""
    if not gemm.operator.memory_bound:
        return None
    words = f"a skinny matrix multiplication ({gemm.matrix}), {gemm.intensity}"
    smallest = min(gemm.rows, gemm.columns)
    if gemm.depth < smallest:
        advice = "Fuse the operations that follow: the output is larger than the inputs."
        return Cause("skinny", words, advice, "model = torch.compile(model)", changes=("compile",))
    more = "rows" if smallest == gemm.rows else "columns"
    advice = f"Multiply more {more} at once, with a larger batch. Or store the weights in 8 bits."
    return Cause("skinny", words, advice, "loader = DataLoader(dataset, batch_size=2 * batch_size)")


_GEMM_CAUSES: Final = (_vector, _small_batch, _few_rows, _few_tiles, _last_wave, _misaligned, _skinny)


_LARGE_KERNEL: Final = 7
"""Size of a kernel from which several 3x3 kernels reach as far with less than half of the multiply-adds."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution or its backward, with the shapes of its input and weight."""

    operator: Operator
    call: Call
    data: tuple[int, ...]
    weight: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, operator: Operator, call: Call) -> _Convolution:
        of_gradient = call.name.endswith("_backward")
        return cls(operator, call, call.shape(int(of_gradient)), call.shape(1 + of_gradient), call.number("groups", 1))

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.weight[2:]

    @property
    def size(self) -> str:
        return _times(self.kernel)

    def numbers(self, name: str) -> tuple[int, ...]:
        """An argument with a number for each dimension of the kernel, 1 by default."""
        return self.call.numbers(name, len(self.kernel), 1)


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def convolution_cause(operator: Operator, call: Call) -> Cause | None:
    """Return the cause that follows from the weight and the arguments of a convolution, else that of its GEMM."""
    return first_cause(_CONVOLUTION_CAUSES, _Convolution.of(operator, call)) or gemm_cause(operator, call)


def _transposed(convolution: _Convolution) -> Cause | None:
    """A transposed convolution."""
    call, kernel = convolution.call, convolution.kernel
    if not call.flag("transposed", default="transpose" in call.name):
        return None
    stride = convolution.numbers("stride")
    windows = " with overlapping windows" if kernel != stride else ""
    return Cause.of(
        "transposed", f"a transposed convolution (kernel {convolution.size}, stride {_times(stride)}){windows}"
    )


def _depthwise(convolution: _Convolution) -> Cause | None:
    """A depthwise convolution, which multiplies no matrices: one input channel in each group."""
    if convolution.groups == 1 or convolution.weight[1] > 1:
        return None
    return Cause.of(
        "depthwise",
        f"a depthwise convolution ({convolution.groups} groups of 1 input channel), which cannot use "
        f"{convolution.operator.units} well",
    )


def _grouped(convolution: _Convolution) -> Cause | None:
    """A grouped convolution whose output channels per group leave half of each tile empty."""
    groups, inputs = convolution.groups, convolution.weight[1]
    outputs = convolution.weight[0] // groups
    if groups == 1 or 2 * outputs > min(convolution.operator.tile or TILE) or is_fast(convolution.operator):
        return None
    return Cause.of(
        "grouped",
        f"a grouped convolution: {groups} groups of {inputs} input and {outputs} output channels, too few to use "
        f"{convolution.operator.units} well",
    )


def _pointwise(convolution: _Convolution) -> Cause | None:
    """A 1x1 convolution, unless it is as fast as a matrix multiplication of its size."""
    operator = convolution.operator
    if math.prod(convolution.kernel) > 1 or is_fast(operator):
        return None
    cost = operator_cost(operator.tag) if operator.tag else None
    gemm = " with M={}, N={}, K={}".format(*cost.gemms[0][1:]) if cost else ""
    return Cause.of("pointwise", f"a pointwise (1x1) convolution, equivalent to a matrix multiplication{gemm}")


def _asymmetric(convolution: _Convolution) -> Cause | None:
    """A kernel with sides of different length."""
    if len(set(convolution.kernel)) == 1 or is_fast(convolution.operator):
        return None
    size = convolution.size
    return Cause.of("asymmetric", f"an asymmetric {size} kernel; libraries are tuned for square kernels", size=size)


def _few_channels(convolution: _Convolution) -> Cause | None:
    """Fewer input channels than 16 bytes hold, as in the first layer of an image model."""
    channels, divisor = convolution.data[1], divisor_of(convolution.call.tensors[0].dtype)
    if not divisor or channels >= divisor or is_fast(convolution.operator):
        return None
    return Cause.of(
        "few_channels",
        f"only {channels} input channel{'s' * (channels != 1)} on an input of {_times(convolution.data[2:])}, too few "
        f"to use {convolution.operator.units} well",
        divisor=divisor,
    )


def _dilated(convolution: _Convolution) -> Cause | None:
    """A dilated convolution."""
    dilation = convolution.numbers("dilation")
    if max(dilation) == 1 or is_fast(convolution.operator):
        return None
    return Cause.of(
        "dilated", f"a dilated convolution (dilation {_times(dilation)}), for which libraries have few algorithms"
    )


def _large_kernel(convolution: _Convolution) -> Cause | None:
    """A kernel of at least 7 in a dimension. Its number of multiply-adds is what takes time, also at a high peak."""
    if max(convolution.kernel) < _LARGE_KERNEL:
        return None
    size, count = convolution.size, math.prod(convolution.kernel)
    return Cause.of("large_kernel", f"a large {size} kernel ({count} multiply-adds per input channel)", size=size)


_CONVOLUTION_CAUSES: Final = (
    _transposed,
    _depthwise,
    _grouped,
    _pointwise,
    _asymmetric,
    _few_channels,
    _dilated,
    _large_kernel,
)
