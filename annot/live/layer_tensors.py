"""Tensors of a recorded call: copies that keep strides, tensors in containers, and differences."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from typing import Any, Final, TypeVar

import torch

from annot.live.request import Difference

T = TypeVar("T")
_REPLACE: Final = "replace"
"""Key of the memo of `copy.deepcopy` with the function that makes tensors."""


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the first of each dimension that `expand` repeats: the elements that have memory.

    Example:
        >>> without_repeats(torch.zeros(3, 1).expand(3, 5)).shape
        torch.Size([3, 1])
    """
    if tensor.layout != torch.strided:
        return tensor
    for axis, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


class StoredTensor:
    """Copy of a tensor in the memory of the host.

    Raises:
        TypeError: the tensor is sparse, nested, quantized, or of a subclass such as DTensor.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            raise TypeError(f"a {type(tensor).__name__} with layout {tensor.layout} among its arguments is not copied")
        with torch.no_grad():
            once = without_repeats(tensor.detach())
            self._values = _strided_copy(once, once.stride(), torch.device("cpu"))
        self._stride, self._shape = once.stride(), tensor.shape
        self.device, self.requires_grad = tensor.device, tensor.requires_grad

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that have memory."""
        return self._values.nbytes

    def tensor(self) -> torch.Tensor:
        """Return a tensor with the values, strides, device and `requires_grad` of the first one."""
        with torch.inference_mode(False), torch.no_grad():
            copy = _strided_copy(self._values, self._stride, self.device).expand(self._shape).detach()
        return copy.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[Any, Any]) -> torch.Tensor:
        return memo[_REPLACE](self)  # type: ignore[no-any-return]


def restored(stored: T, replace: Callable[[StoredTensor], torch.Tensor]) -> T:
    """Return a copy of an object in which `replace` makes a tensor of each stored one.

    Example:
        >>> stored = [StoredTensor(torch.ones(2)), "sum"]
        >>> restored(stored, StoredTensor.tensor)
        [tensor([1., 1.]), 'sum']
    """
    return copy.deepcopy(stored, {_REPLACE: replace})  # type: ignore[dict-item]  # other keys are identities


def _strided_copy(tensor: torch.Tensor, stride: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=device).copy_(tensor)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested containers: lists, tuples, dicts, dataclasses."""
    inside: Iterable[Any]
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, (list, tuple)):
        inside = value
    elif is_dataclass(value) and not isinstance(value, type):
        inside = list(vars(value).values()) if hasattr(value, "__dict__") else ()
    else:
        yield value
        return
    for item in inside:
        yield from leaves(item)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers, each once.

    Example:
        >>> x = torch.ones(2)
        >>> len(tensors_of({"a": x, "b": [x, None, 3]}))
        1
    """
    return list({id(leaf): leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)}.values())


def device_of(arguments: Any, module: torch.nn.Module) -> torch.device:
    """Return the device of the first tensor among arguments, else of the first parameter of a module, else the CPU."""
    tensor = next(chain(tensors_of(arguments), module.parameters()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def difference(tensors: Sequence[torch.Tensor | None], reference: Sequence[torch.Tensor | None]) -> Difference | None:
    """Return the difference of tensors from reference tensors; None: they do not correspond.

    Example:
        >>> difference([torch.tensor([3.0, 4.5])], [torch.tensor([3.0, 4.0])])
        Difference(largest=0.5, relative=0.1, same_bits=False)
    """
    shapes = [[None if tensor is None else tensor.shape for tensor in side] for side in (tensors, reference)]
    if shapes[0] != shapes[1]:
        return None
    pairs = [
        (a.detach(), b.detach()) for a, b in zip(tensors, reference, strict=True) if a is not None and b is not None
    ]
    differences = [(a.to(_widest(b)) - b.to(_widest(b))).abs() for a, b in pairs]
    largest = max((float(values.max()) for values in differences if values.numel()), default=0.0)
    norm = math.hypot(*(float(values.norm()) for values in differences))
    of_reference = math.hypot(*(float(b.to(_widest(b)).norm()) for _, b in pairs))
    relative = norm / of_reference if of_reference else (math.inf if norm else 0.0)
    # The maximum of Python and of PyTorch differ for NaN: the norm has it in any case.
    finite = math.isfinite(norm) and math.isfinite(relative)
    return Difference(
        largest=largest if finite else None,
        relative=relative if finite else None,
        same_bits=all(_same_bits(a, b) for a, b in pairs),
    )


def _widest(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
