"""Causes of slow convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from annot.analyze.advice.causes.cause import CHANNELS_LAST, TILE, Cause, first_cause, is_fast
from annot.analyze.advice.causes.gemm import gemm_cause
from annot.analyze.advice.operator_facts import Operator
from annot.analyze.tensor_cores import divisor_of
from annot.analyze.work.call import Call
from annot.analyze.work.operators import operator_cost

__all__ = ["convolution_cause"]

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
    return first_cause(_CAUSES, _Convolution.of(operator, call)) or gemm_cause(operator, call)


def _transposed(convolution: _Convolution) -> Cause | None:
    """A transposed convolution."""
    call, kernel = convolution.call, convolution.kernel
    if not call.flag("transposed", default="transpose" in call.name):
        return None
    stride = convolution.numbers("stride")
    windows = " with overlapping windows" if kernel != stride else ""
    return Cause(
        "transposed",
        f"a transposed convolution (kernel {convolution.size}, stride {_times(stride)}){windows}",
        "Replace the transposed convolution with upsampling and a convolution, or a convolution and PixelShuffle.",
        "torch.nn.Sequential(torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(inputs, outputs, 3, padding=1))",
    )


def _depthwise(convolution: _Convolution) -> Cause | None:
    """A depthwise convolution, which multiplies no matrices: one input channel in each group."""
    if convolution.groups == 1 or convolution.weight[1] > 1:
        return None
    return Cause(
        "depthwise",
        f"a depthwise convolution ({convolution.groups} groups of 1 input channel), which cannot use "
        f"{convolution.operator.units} well",
        "Use channels-last tensors, and fuse the depthwise convolution with its neighbors.",
        f"{CHANNELS_LAST}\nmodel = torch.compile(model)",
    )


def _grouped(convolution: _Convolution) -> Cause | None:
    """A grouped convolution whose output channels per group leave half of each tile empty."""
    groups, inputs = convolution.groups, convolution.weight[1]
    outputs = convolution.weight[0] // groups
    if groups == 1 or 2 * outputs > min(convolution.operator.tile or TILE) or is_fast(convolution.operator):
        return None
    return Cause(
        "grouped",
        f"a grouped convolution: {groups} groups of {inputs} input and {outputs} output channels, too few to use "
        f"{convolution.operator.units} well",
        "Use fewer groups with more channels each, or channels-last tensors.",
        f"{CHANNELS_LAST}\nmodel = torch.compile(model)",
    )


def _pointwise(convolution: _Convolution) -> Cause | None:
    """A 1x1 convolution, unless it is as fast as a matrix multiplication of its size."""
    operator = convolution.operator
    if math.prod(convolution.kernel) > 1 or is_fast(operator):
        return None
    cost = operator_cost(operator.tag) if operator.tag else None
    gemm = " with M={}, N={}, K={}".format(*cost.gemms[0][1:]) if cost else ""
    return Cause(
        "pointwise",
        f"a pointwise (1x1) convolution, equivalent to a matrix multiplication{gemm}",
        "Compute the 1x1 convolution as a GEMM: use channels-last tensors, or a linear layer over the channels.",
        f"{CHANNELS_LAST}\n# or: y = torch.nn.functional.linear(x.permute(0, 2, 3, 1), weight[:, :, 0, 0], bias)",
    )


def _asymmetric(convolution: _Convolution) -> Cause | None:
    """A kernel with sides of different length."""
    if len(set(convolution.kernel)) == 1 or is_fast(convolution.operator):
        return None
    size = convolution.size
    return Cause(
        "asymmetric",
        f"an asymmetric {size} kernel; libraries are tuned for square kernels",
        f"Replace the {size} kernel with a square one, or try other algorithms and channels-last tensors.",
        f"torch.backends.cudnn.benchmark = True\n{CHANNELS_LAST}",
    )


def _few_channels(convolution: _Convolution) -> Cause | None:
    """Fewer input channels than 16 bytes hold, as in the first layer of an image model."""
    channels, divisor = convolution.data[1], divisor_of(convolution.call.tensors[0].dtype)
    if not divisor or channels >= divisor or is_fast(convolution.operator):
        return None
    return Cause(
        "few_channels",
        f"only {channels} input channel{'s' * (channels != 1)} on an input of {_times(convolution.data[2:])}, too few "
        f"to use {convolution.operator.units} well",
        f"Pad the input channels to {divisor}, or use space-to-depth (pixel_unshuffle).",
        "x = torch.nn.functional.pixel_unshuffle(x, 2)      # 4 times the channels, a quarter of the extent",
    )


def _dilated(convolution: _Convolution) -> Cause | None:
    """A dilated convolution."""
    dilation = convolution.numbers("dilation")
    if max(dilation) == 1 or is_fast(convolution.operator):
        return None
    return Cause(
        "dilated",
        f"a dilated convolution (dilation {_times(dilation)}), for which libraries have few algorithms",
        "Let cuDNN benchmark its algorithms, and use channels-last tensors.",
        f"torch.backends.cudnn.benchmark = True\n{CHANNELS_LAST}",
    )


def _large_kernel(convolution: _Convolution) -> Cause | None:
    """A kernel of at least 7 in a dimension. Its number of multiply-adds is what takes time, also at a high peak."""
    if max(convolution.kernel) < _LARGE_KERNEL:
        return None
    size, count = convolution.size, math.prod(convolution.kernel)
    return Cause(
        "large_kernel",
        f"a large {size} kernel ({count} multiply-adds per input channel)",
        f"Replace the {size} kernel with several 3x3 kernels.",
        "torch.nn.Conv2d(inputs, outputs, 3, padding=1)",
    )


_CAUSES: Final = (
    _transposed, _depthwise, _grouped, _pointwise, _asymmetric, _few_channels, _dilated, _large_kernel,
)  # fmt: skip
