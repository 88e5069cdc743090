"""PyTorch device type without hardware, so that autograd runs its backwards on device threads.

Its tensors wrap CPU tensors, and all operations run on the CPU. Only autograd treats them as another device. A process
must register the device type once, before its first backward.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from compiled_once import compiled
from torch.utils._pytree import tree_leaves, tree_map

NAME = "silent"
_LIBRARY = torch.library.Library("aten", "IMPL")


def build(compiler: str) -> Path:
    """Compile the device guard and return its library."""
    root = Path(torch.__file__).parent
    source = Path(__file__).with_suffix(".cpp")
    options = ["-std=c++20", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    paths = [f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10"]
    return compiled([compiler, *options], [source], *paths, version=torch.__version__)


def register(library: Path, count: int) -> None:
    """Register `count` devices ``silent:0``, ``silent:1``, … with PyTorch."""
    from torch.utils.backend_registration import _DummyPrivateUse1Hook

    os.environ["SILENT_DEVICES"] = str(count)
    ctypes.CDLL(str(library))
    torch.utils.rename_privateuse1_backend(NAME)  # type: ignore[attr-defined]
    torch._register_device_module(NAME, _make_module())
    _LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    torch._C._acc.register_python_privateuseone_hook(_DummyPrivateUse1Hook())  # type: ignore[no-untyped-call]


def _make_module() -> Any:
    from torch.utils.backend_registration import _DummyBackendModule

    class Module(_DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

    return Module()  # type: ignore[no-untyped-call]


class Silent(torch.Tensor):
    """Tensor on a silent device."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Silent:
        made: Silent = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=device, strides=inner.stride()
        )
        made.wrapped = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        device = next(one.device for one in tree_leaves((args, kwargs)) if isinstance(one, cls))
        result = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        return tree_map(lambda one: cls(one, device) if isinstance(one, torch.Tensor) else one, result)


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    return Silent(torch.empty(size, dtype=dtype, device="cpu"), device)


def _inner(value: Any) -> Any:
    return value.wrapped if isinstance(value, Silent) else value


def put(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Copy a tensor to ``cpu`` or to a silent device. The backward copies the gradient back."""
    copied: torch.Tensor = _Copy.apply(tensor, torch.device(device))
    return copied


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.device = tensor.device
        return _copy(tensor, device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return put(gradients[0], ctx.device), None


def _copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    inner: torch.Tensor = _inner(tensor).clone()
    return inner if device.type == "cpu" else Silent(inner, device)
