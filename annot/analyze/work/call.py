"""One call of a layer or operation, parsed from its range label, and its cost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from annot.labels.tag import Tag, TensorSpec, Value
from annot.util.packaged_tables import packaged_table

Shape: TypeAlias = tuple[int, ...]

Gemms: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""Batch, rows, columns and depth of matrix multiplications."""

_DTYPE: Final = re.compile(r"(?:bf|[fiuc]|qu?int)(8|16|32|64|128)|float8_\w+|bool")


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``names.toml``, which explains them."""

    names: dict[str, list[str]]
    layer_of: dict[str, dict[str, str]]
    flops: dict[str, dict[str, tuple[int, int]]]


NAMES: Final = packaged_table("annot.analyze.work", "names.toml", _Names)


class UncountableError(Exception):
    """The label of a call is not enough to compute its work."""


CONTRADICTIONS: Final = (UncountableError, IndexError, ValueError, ArithmeticError)
"""Exceptions of a formula whose shapes and arguments contradict each other. The work is unknown then."""


@dataclass(frozen=True, slots=True)
class Work:
    """Minimum work of a call.

    Args:
        flops: floating-point operations; a multiply-add counts as 2.
        bytes_read, bytes_written: bytes of inputs, parameters and outputs, each moved once.
        params: number of parameters of the layer.
    """

    flops: int
    bytes_read: int
    bytes_written: int
    params: int


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs and bytes of a layer, from which the work of forward and backward is computed.

    Args:
        flops: FLOPs of the forward.
        inputs, outputs: bytes of the inputs and of the outputs.
        weights: bytes of the parameters that the forward reads.
        params: number of parameters.
        to_inputs, to_weights: FLOPs of the gradients with respect to the inputs and to the weights.
        needs_inputs: whether the gradient with respect to the inputs reads the inputs, or outputs of the same size.
            False for a matrix multiplication with weights.
        differentiable: whether the inputs can have gradients. False for indices.
        weight_gradients: bytes of the weight gradients; None: the same as `weights`.
        gemms: the matrix multiplications of the forward.
    """

    flops: int
    inputs: int
    outputs: int
    weights: int = 0
    params: int = 0
    to_inputs: int = 0
    to_weights: int = 0
    needs_inputs: bool = False
    differentiable: bool = True
    weight_gradients: int | None = None
    gemms: Gemms = ()

    def forward(self) -> Work:
        """Return the work of a forward call."""
        return Work(self.flops, self.inputs + self.weights, self.outputs, self.params)

    def backward(self, grad: str = "") -> Work:
        """Return the work of a backward call.

        Args:
            grad: gradients to compute. ``weight``: of the weights only; ``input``: of the inputs only; else of both.
        """
        for_inputs, for_weights = self.differentiable and grad != "weight", self.params > 0 and grad != "input"
        read = self.outputs + self.weights * for_inputs
        read += self.inputs * (for_weights or (for_inputs and self.needs_inputs))
        gradients = self.weights if self.weight_gradients is None else self.weight_gradients
        return Work(
            self.to_inputs * for_inputs + self.to_weights * for_weights,
            read,
            self.inputs * for_inputs + gradients * for_weights,
            self.params,
        )


@dataclass(frozen=True, slots=True)
class Call:
    """Inputs and arguments of one call of a layer or operation.

    Args:
        name: class of the layer, or name of the operation.
        tensors: shape and dtype of each input.
        arguments: the other arguments in the label, by name.
        alone: whether the call ran without other layers inside.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    arguments: Mapping[str, Value] = field(default_factory=dict)
    alone: bool = True

    @classmethod
    def of(cls, tag: Tag, *, alone: bool = True) -> Call:
        """Return the call of a range. A class with a known base class takes the name of that base class."""
        arguments = dict(tag.arguments)
        name = tag.op or str(arguments.get("base", tag.module))
        return cls(name, tag.tensors, arguments, alone)

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of an input."""
        if index >= len(self.tensors) or None in self.tensors[index].shape:
            raise UncountableError
        return tuple(size for size in self.tensors[index].shape if size is not None)

    def count(self, index: int = 0) -> int:
        """Return the number of elements of an input."""
        return math.prod(self.shape(index))

    def bytes_of(self, index: int = 0) -> int:
        """Return the size of an input in bytes."""
        return self.count(index) * item_size(self.tensors[index].dtype)

    @property
    def all_bytes(self) -> int:
        """Size of all inputs in bytes."""
        return sum(map(self.bytes_of, range(len(self.tensors))))

    @property
    def is_channels_first(self) -> bool:
        """Whether a layer of Keras has its channels before its spatial dimensions."""
        return self.arguments.get("layout") == "channels_first"

    def spatial(self, count: int) -> tuple[int, int, Shape]:
        """Return batch, channels and the `count` spatial sizes of the first input.

        In PyTorch the batch dimension is optional. Keras's classes, such as Conv2D, are channels last by default.
        """
        shape, in_keras = self.shape(), any(f"{number}D" in self.name for number in "123")
        if len(shape) not in (count + 2, count + 1 + in_keras):
            raise UncountableError
        if in_keras and not self.is_channels_first:
            return shape[0], shape[-1], shape[1:-1]
        return (shape[0] if len(shape) == count + 2 else 1), shape[-count - 1], shape[-count:]

    @property
    def item(self) -> int:
        """Bytes per element of the first input."""
        self.shape(0)
        return item_size(self.tensors[0].dtype)

    @property
    def product_item(self) -> int:
        """Bytes per element of the operands of a matrix multiplication, after autocast."""
        autocast = self.arguments.get("autocast")
        return item_size(str(autocast)) if autocast else self.item

    def number(self, name: str, default: int | None = None) -> int:
        """Return an integer argument."""
        value = self.arguments.get(name, default)
        if not isinstance(value, int):
            raise UncountableError
        return value

    def numbers(self, name: str, count: int, default: int | None = None) -> Shape:
        """Return an argument as `count` integers; a single integer is repeated for each dimension."""
        value = self.arguments.get(name, default)
        values = value if isinstance(value, tuple) else (value,)
        if len(values) == 1:
            values *= count
        numbers = tuple(item for item in values if isinstance(item, int))
        if len(values) != count or len(numbers) != count:
            raise UncountableError
        return numbers

    def flag(self, name: str, *, default: bool = True) -> bool:
        """Return a Boolean argument."""
        return bool(self.arguments.get(name, default))


Formula: TypeAlias = Callable[[Call], Cost]


def item_size(dtype: str) -> int:
    """Return the bytes per element of a dtype, a short name of `annot.labels.tag.short_dtype`."""
    match = _DTYPE.fullmatch(dtype)
    if match is None:
        raise UncountableError
    return int(match[1] or 8) // 8


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape of several shapes; UncountableError if they cannot be broadcast."""
    dimensions = []
    for index in range(-max(map(len, shapes), default=0), 0):
        sizes = {shape[index] for shape in shapes if len(shape) >= -index} - {1}
        if len(sizes) > 1:
            raise UncountableError
        dimensions.append(sizes.pop() if sizes else 1)
    return tuple(dimensions)


def output_sizes(call: Call, sizes: Shape, kernel: Shape) -> Shape:
    """Return the spatial output sizes of a convolution or a pooling.

    PyTorch and Keras define ``same`` and ``valid`` alike. Sources:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv2d.html and ``torch.nn.MaxPool2d.html``.
    """
    stride, dilation = call.numbers("stride", len(kernel), 1), call.numbers("dilation", len(kernel), 1)
    padding = call.arguments.get("padding", 0)
    if padding in ("same", "causal"):
        return tuple(-(-size // step) for size, step in zip(sizes, stride, strict=True))
    pads = (0,) * len(kernel) if padding == "valid" else call.numbers("padding", len(kernel), 0)
    outputs = []
    for size, pad, wide, length, step in zip(sizes, pads, dilation, kernel, stride, strict=True):
        room = size + 2 * pad - wide * (length - 1) - 1
        steps = room // step
        if call.flag("ceil", default=False):
            steps = -(-room // step)
            steps -= steps * step >= size + pad  # PyTorch drops a window that starts in the right padding
        outputs.append(steps + 1)
    return tuple(outputs)
