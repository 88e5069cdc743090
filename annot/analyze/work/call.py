"""One call of a layer or operation, as the text of its range tells it, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from annot.tag import Tag, TensorSpec, Value

__all__ = ["Call", "Cost", "Formula", "UncountableError", "Work", "broadcast", "item_size"]

Shape: TypeAlias = tuple[int, ...]

_SIZES: Final = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2,
    "u8": 1, "c128": 16, "c64": 8, "c32": 4, "bool": 1, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip


class UncountableError(Exception):
    """What is known of a call does not tell its work."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a call has to do at least.

    Args:
        flops: operations on numbers; a multiply-add is two.
        bytes_read, bytes_written: every tensor that goes in, comes out, or is a parameter, moved once.
        params: parameters of the layer.
    """

    flops: int
    bytes_read: int
    bytes_written: int
    params: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What the work of forward and backward is made of; all sizes are bytes.

    Args:
        flops: of the forward.
        inputs, outputs: what comes in and goes out.
        weights: the parameters as the forward reads them.
        params: how many parameters there are.
        to_inputs, to_weights: FLOPs of the gradients of the inputs and of the weights.
        needs_inputs: whether the gradient of the inputs depends on them (or on the outputs, of the same size), as
            that of a product with weights does not.
        differentiable: whether the inputs can have gradients; indices cannot.
        weight_gradients: the gradients of the weights; None: as large as these.
        gemms: batch, rows, columns and depth of the matrix products that the forward is.
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
    gemms: tuple[tuple[int, int, int, int], ...] = ()

    def forward(self) -> Work:
        """Return the work of a forward call."""
        return Work(self.flops, self.inputs + self.weights, self.outputs, self.params)

    def backward(self, grad: str = "") -> Work:
        """Return the work of a backward.

        Args:
            grad: ``weight``: the inputs need no gradient; ``input``: the weights need none; else both do.
        """
        for_inputs, for_weights = self.differentiable and grad != "weight", self.params > 0 and grad != "input"
        read = self.outputs + self.weights * for_inputs
        read += self.inputs * (for_weights or (for_inputs and self.needs_inputs))
        gradients = self.weights if self.weight_gradients is None else self.weight_gradients
        return Work(
            self.to_inputs * for_inputs + self.to_weights * for_weights, read,
            self.inputs * for_inputs + gradients * for_weights, self.params,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """What came into a layer or operation.

    Args:
        name: class of the layer, or name of the operation.
        tensors: what came in.
        arguments: what else is known, by name.
        alone: whether no layers ran inside.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    arguments: Mapping[str, Value] = field(default_factory=dict)
    alone: bool = True

    @classmethod
    def of(cls, tag: Tag, *, alone: bool = True) -> Call:
        """Return the call of a range; a class that computes as a known one goes by that one's name."""
        arguments = dict(tag.arguments)
        name = tag.op or str(arguments.get("base", tag.module))
        return cls(name, tag.tensors, arguments, alone)

    def shape(self, place: int = 0) -> Shape:
        """Return the sizes of a tensor."""
        if place >= len(self.tensors) or None in self.tensors[place].shape:
            raise UncountableError
        return tuple(size for size in self.tensors[place].shape if size is not None)

    def count(self, place: int = 0) -> int:
        """Return the number of elements of a tensor."""
        return math.prod(self.shape(place))

    def bytes_of(self, place: int = 0) -> int:
        """Return the size of a tensor in bytes."""
        return self.count(place) * item_size(self.tensors[place].dtype)

    @property
    def item(self) -> int:
        """Bytes of an element of the first tensor."""
        self.shape(0)
        return item_size(self.tensors[0].dtype)

    @property
    def product_item(self) -> int:
        """The same, after what autocast does to the operands of matrix products."""
        autocast = self.arguments.get("autocast")
        return item_size(str(autocast)) if autocast else self.item

    def number(self, name: str, default: int | None = None) -> int:
        """Return an argument that is an integer."""
        value = self.arguments.get(name, default)
        if not isinstance(value, int):
            raise UncountableError
        return value

    def numbers(self, name: str, count: int, default: int | None = None) -> Shape:
        """Return an argument that is an integer, or one for each of `count` dimensions."""
        value = self.arguments.get(name, default)
        found = value if isinstance(value, tuple) else (value,)
        if len(found) == 1:
            found *= count
        numbers = tuple(item for item in found if isinstance(item, int))
        if len(found) != count or len(numbers) != count:
            raise UncountableError
        return numbers

    def flag(self, name: str, *, default: bool = True) -> bool:
        """Return an argument that is true or false."""
        return bool(self.arguments.get(name, default))


Formula: TypeAlias = Callable[[Call], Cost]


def item_size(dtype: str) -> int:
    """Return the bytes of an element of a dtype, by the short name that `annot.tag.short_dtype` gives.

    Raises:
        UncountableError: it is not known.

    Example:
        >>> item_size("bf16"), item_size("float8_e4m3fn")
        (2, 1)
    """
    if dtype.startswith("float8_"):
        return 1
    if dtype not in _SIZES:
        raise UncountableError
    return _SIZES[dtype]


def broadcast(*shapes: Shape) -> Shape:
    """Return the sizes of what an operation element by element makes of tensors of these sizes.

    Raises:
        UncountableError: they do not fit.

    Example:
        >>> broadcast((4, 1), (5,))
        (4, 5)
    """
    found = []
    for place in range(-max(map(len, shapes), default=0), 0):
        sizes = {shape[place] for shape in shapes if len(shape) >= -place} - {1}
        if len(sizes) > 1:
            raise UncountableError
        found.append(sizes.pop() if sizes else 1)
    return tuple(found)
