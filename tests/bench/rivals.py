"""What others do to put a range around every layer, written anew in their manner, for `bench_rivals.py`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import nvtx
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = [
    "HAS_MONAI",
    "Enter",
    "dict_hooks",
    "full_hooks",
    "monai_ranges",
    "nvtx_profile",
    "recorded_functions",
    "torch_profiler",
]

Enter = Callable[[], AbstractContextManager[object]]

HAS_MONAI = importlib.util.find_spec("monai") is not None


def full_hooks(model: nn.Module) -> Enter:
    """Forward hooks and full backward hooks that push and pop ``name: Class``, as NeMo's autonvtx has them."""

    @contextmanager
    def enter() -> Iterator[None]:
        handles: list[Any] = []
        for path, module in model.named_modules():
            text = f"{path.rpartition('.')[2]}: {type(module).__name__}"
            handles += [
                module.register_forward_pre_hook(_pushing(f"{text} forward")),
                module.register_forward_hook(_pop),
                module.register_full_backward_pre_hook(_pushing(f"{text} backward")),
                module.register_full_backward_hook(_pop),
            ]
        yield from _until_left(handles)

    return enter


def dict_hooks(model: nn.Module) -> Enter:
    """Forward hooks whose text is a dictionary of path and shapes, made at each call, as vLLM and SGLang have them."""

    def pushing(path: str) -> Callable[..., None]:
        def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            shapes = [list(tensor.size()) for tensor in inputs if isinstance(tensor, Tensor)]
            nvtx.push_range(str({"Module": path, "Inputs": shapes}))

        return before

    @contextmanager
    def enter() -> Iterator[None]:
        handles: list[Any] = []
        for path, module in model.named_modules():
            handles += [module.register_forward_pre_hook(pushing(path)), module.register_forward_hook(_pop)]
        yield from _until_left(handles)

    return enter


def monai_ranges(model: nn.Module) -> Enter:
    """MONAI's own Range on every module; for a PyTorch without NVTX it gets the `nvtx` package instead."""
    module = importlib.import_module("monai.utils.nvtx")
    if not hasattr(torch._C, "_nvtx"):
        setattr(module, "_nvtx", SimpleNamespace(rangePushA=nvtx.push_range, rangePop=nvtx.pop_range))  # noqa: B010

    @contextmanager
    def enter() -> Iterator[None]:
        modules = list(model.modules())
        for layer in modules:
            module.Range()(layer)
        try:
            yield
        finally:
            for layer in modules:
                del layer.forward

    return enter


def recorded_functions(model: nn.Module) -> Enter:
    """`torch.profiler.record_function` around every module by hooks, with no profiler running."""

    def hooks(text: str) -> tuple[Callable[..., None], Callable[..., None]]:
        opened: list[Any] = []

        def before(*_: object) -> None:
            opened.append(record_function(text))
            opened[-1].__enter__()

        def after(*_: object) -> None:
            opened.pop().__exit__(None, None, None)

        return before, after

    @contextmanager
    def enter() -> Iterator[None]:
        handles: list[Any] = []
        for path, module in model.named_modules():
            before, after = hooks(path)
            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
        yield from _until_left(handles)

    return enter


def torch_profiler() -> AbstractContextManager[object]:
    """torch.profiler, as it is used to get shapes per operation."""
    return profile(activities=[ProfilerActivity.CPU], record_shapes=True)


@contextmanager
def nvtx_profile() -> Iterator[None]:
    """`nvtx.Profile`: a range around every Python and C function that is called."""
    profiler = nvtx.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()


def _pushing(text: str) -> Callable[..., None]:
    def before(*_: object) -> None:
        nvtx.push_range(text)

    return before


def _pop(*_: object) -> None:
    nvtx.pop_range()


def _until_left(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
