"""Dotted paths of the modules of a model, in the format of `torch.nn.Module.named_modules`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

OPTIMIZED: Final = "OptimizedModule"
"""Class name of the wrapper that `torch.compile` returns for a module."""

MAX_PATHS: Final = 64
"""Maximum number of paths of one shared module."""

_WRAPPED: Final = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "ActivationWrapper": "_checkpoint_wrapped_module",
}
"""Attribute with the wrapped module, by class of the wrapper.

The attribute is left out of paths: a layer has the same path with and without the wrapper.
"""


def paths(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every path and module. A shared module has a path under each parent. Cycles are skipped."""
    pending: list[tuple[str, torch.nn.Module, frozenset[int]]] = [("", model, frozenset())]
    counts: dict[int, int] = {}
    while pending:
        path, module, above = pending.pop()
        counts[id(module)] = counts.get(id(module), 0) + 1
        if counts[id(module)] > MAX_PATHS:
            continue
        above |= {id(module)}
        original = inner(module)
        if original is not module:
            pending.append((path, original, above))
            if hides_inner(module):
                yield path, module
            continue
        yield path, module
        below = [(join(path, name), child, above) for name, child in children(module) if id(child) not in above]
        pending.extend(reversed(below))


def path_to(module: torch.nn.Module, holder: torch.nn.Module, *, deep: bool) -> tuple[str, torch.nn.Module] | None:
    """Return the path of a module below `holder`, and the module at that path.

    This also searches plain attributes of `holder`, and lists, tuples and dicts in them. PyTorch does not register
    modules in these. If `module` is inside a module found there, path and module are those of the outer one. With
    `deep`, this searches all submodules, not only the children.
    """
    below = _path_below(holder, module, deep=deep)
    if below is not None:
        return below, module
    for name, value in _items(vars(holder)):
        if name != "_modules":
            for path, top in _modules_in(name, value, depth=2):
                if top is module or _path_below(top, module, deep=deep) is not None:
                    return path, top
    return None


def _path_below(top: torch.nn.Module, module: torch.nn.Module, *, deep: bool) -> str | None:
    """Return the path from `top` to a module, or None."""
    pending: list[tuple[str, torch.nn.Module]] = [("", top)]
    seen = {id(top)}
    while pending:
        path, here = pending.pop()
        for name, child in children(here):
            if child is module:
                return join(path, name)
            if deep and id(child) not in seen:
                seen.add(id(child))
                pending.append((join(path, name), child))
    return None


def _modules_in(path: str, value: Any, depth: int) -> Iterator[tuple[str, torch.nn.Module]]:
    if isinstance(value, torch.nn.Module):
        yield path, value
    elif depth and isinstance(value, (list, tuple, dict)):
        items = _items(value) if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _modules_in(join(path, str(name)), item, depth - 1)


def join(path: str, name: str) -> str:
    """Join two paths, each of which may be empty."""
    return f"{path}.{name}" if path and name else path or name


def class_name(module: torch.nn.Module) -> str:
    """Return the class name in the user's code, instead of that of a lazy, scripted, sharded or compiled module."""
    cls = type(inner(module))
    if issubclass(cls, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", cls.__name__))
    becomes = getattr(cls, "cls_to_become", None)
    if isinstance(becomes, type):
        return becomes.__name__
    # fully_shard creates a class FSDPLinear(FSDPModule, Linear), replicate a class DDPLinear(DDP, Linear).
    sharded = cls.__bases__[-1].__name__ if len(cls.__bases__) == 2 else ""
    return sharded if sharded and cls.__name__ in (f"FSDP{sharded}", f"DDP{sharded}") else cls.__name__


def inner(module: Any) -> Any:
    """Return the module inside a wrapper of `torch.compile`, or the module itself."""
    return module._modules.get("_orig_mod", module) if type(module).__name__ == OPTIMIZED else module


def unwrapped(module: Any) -> Any:
    """Return the module inside the wrappers of `torch.compile`, DDP and the like, or the module itself."""
    while module is not None:
        kind: Any = type(module)
        name = _wrapped(kind)
        if name is None or module._modules.get(name) is None:
            break
        module = inner(module._modules[name])
    return module


def hides_inner(module: Any) -> bool:
    """Return whether a call of a compiled module bypasses the patched `__call__` of the module inside."""
    function = getattr(getattr(module.forward, "_torchdynamo_orig_callable", None), "__func__", None)
    return not getattr(function, "__module__", "").startswith("annot.")


def is_keras(module: object) -> bool:
    """Return whether a module is a Keras layer. Keras does not register its sublayers as PyTorch submodules."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(module, getattr(keras, "Layer", ()))


def children(module: Any) -> Iterable[tuple[str, Any]]:
    """Return names and modules of the children."""
    if is_keras(module):
        from annot.keras.layer_paths import named_sublayers

        return named_sublayers(module)
    wrapped = _wrapped(type(module))  # type: ignore[arg-type]  # a class is hashable
    children = _items(module._modules)
    return [("" if name == wrapped else name, child) for name, child in children if child is not None]


def _items(mapping: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping that finalizers and other threads may change: copying a dict is atomic."""
    return (dict(mapping) if isinstance(mapping, dict) else mapping).items()


@functools.lru_cache(1024)
def _wrapped(cls: type[Any]) -> str | None:
    """Return the attribute with the wrapped module in this class, or None."""
    return next((_WRAPPED[base.__name__] for base in cls.__mro__ if base.__name__ in _WRAPPED), None)
