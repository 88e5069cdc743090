"""Changes that act on a single layer of a PyTorch model, by the names that `annot try` gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Context = AbstractContextManager[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A change of the calls of one layer, which leaves no trace after a call or a block of calls."""

    compiled: Mapping[str, Any] | None = None
    """Arguments of `torch.compile`; None: the layer is not compiled."""
    each: Callable[[str], Context] = lambda device: nullcontext()
    """Context of each forward, from the type of the device."""
    block: Callable[[], Context] = nullcontext
    """Context of several calls with their backward passes."""
    channels_last: bool = False
    """Whether tensors with four dimensions are in the memory format channels_last."""
    dtype: torch.dtype | None = None
    """Dtype with the precision of the least precise results; None: that of the layer without a change."""
    on_cuda: bool = False
    """Whether the change acts only on CUDA devices."""

    def misfit(self, module: torch.nn.Module, tensors: list[torch.Tensor], device: str) -> str:
        """Return why the change does not act on a layer, a clause; empty: it may."""
        if self.on_cuda and device != "cuda":
            return f"it acts only on CUDA devices, and the layer runs on {device}"
        if self.channels_last and not any(tensor.dim() == 4 for tensor in (*module.parameters(), *tensors)):
            return "no parameter or argument of the layer has four dimensions"
        return ""


def _autocast(dtype: torch.dtype) -> Alternative:
    return Alternative(each=lambda device: torch.autocast(device, dtype), dtype=dtype)


def _attention(backend: SDPBackend) -> Alternative:
    return Alternative(block=lambda: sdpa_kernel(backend))


@contextmanager
def _tf32() -> Iterator[None]:
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        yield
    finally:
        torch.backends.cudnn.benchmark = before


ALTERNATIVES: Final[Mapping[str, Alternative]] = {
    "compile": Alternative(compiled={}),
    "compile-blocks": Alternative(compiled={}),
    "compile-reduce-overhead": Alternative(compiled={"mode": "reduce-overhead"}),
    "compile-max-autotune": Alternative(compiled={"mode": "max-autotune"}),
    "bf16": _autocast(torch.bfloat16),
    "fp16": _autocast(torch.float16),
    "tf32": Alternative(block=_tf32, dtype=torch.float16, on_cuda=True),  # TF32 has as many digits as float16
    "channels-last": Alternative(channels_last=True),
    "cudnn-benchmark": Alternative(block=_cudnn_benchmark, on_cuda=True),
    "sdpa-flash": _attention(SDPBackend.FLASH_ATTENTION),
    "sdpa-efficient": _attention(SDPBackend.EFFICIENT_ATTENTION),
    "sdpa-math": _attention(SDPBackend.MATH),
}
"""The changes by name. A change of the whole program, such as a fused optimizer, is not among them."""
