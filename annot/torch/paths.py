"""From a model to the dotted paths of its modules, as `torch.nn.Module.named_modules` gives them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

__all__ = [
    "MAX_PATHS", "OPTIMIZED", "class_name", "hides_inner", "inner", "is_keras", "join", "path_to", "paths", "unwrapped",
]  # fmt: skip

OPTIMIZED: Final = "OptimizedModule"
"""Class name of what `torch.compile` wraps a module in."""

MAX_PATHS: Final = 64
"""How many paths of one module that stands in many places are told apart."""

_WRAPPED: Final = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "ActivationWrapper": "_checkpoint_wrapped_module",
}
"""The attribute that holds the wrapped module, by class of the wrapper.

It adds no name to a path: a layer has the same path in a run with and without the wrapper.
"""


def paths(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield every path to every module, each module under all its parents, but not round in circles."""
    pending: list[tuple[str, torch.nn.Module, frozenset[int]]] = [("", model, frozenset())]
    places: dict[int, int] = {}
    while pending:
        path, module, above = pending.pop()
        places[id(module)] = places.get(id(module), 0) + 1
        if places[id(module)] > MAX_PATHS:
            continue
        above |= {id(module)}
        original = inner(module)
        if original is not module:
            pending.append((path, original, above))
            if hides_inner(module):
                yield path, module
            continue
        yield path, module
        children = [(join(path, name), child, above) for name, child in _children(module) if id(child) not in above]
        pending.extend(reversed(children))


def path_to(module: torch.nn.Module, holder: torch.nn.Module, *, deep: bool) -> tuple[str, torch.nn.Module] | None:
    """Return where `holder` keeps a module: a path, and the module there.

    Plain attributes of `holder` count too, and lists, tuples and dicts in them: PyTorch does not register such modules.
    If `module` is inside one of these, the path is that of the latter, and so is the module returned.

    Args:
        module: the module to find.
        holder: the module to search.
        deep: search the modules below the children too.
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
    """Return the path from `top` to a module."""
    pending: list[tuple[str, torch.nn.Module]] = [("", top)]
    seen = {id(top)}
    while pending:
        path, here = pending.pop()
        for name, child in _children(here):
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
    """Return the path of `name` below `path`; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def class_name(module: torch.nn.Module) -> str:
    """Return the name of the class that the user wrote: not that of a lazy, scripted, sharded or compiled one."""
    cls = type(inner(module))
    if issubclass(cls, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", cls.__name__))
    becomes = getattr(cls, "cls_to_become", None)
    if isinstance(becomes, type):
        return becomes.__name__
    # fully_shard makes a class FSDPLinear(FSDPModule, Linear), and replicate DDPLinear(DDP, Linear).
    sharded = cls.__bases__[-1].__name__ if len(cls.__bases__) == 2 else ""
    return sharded if sharded and cls.__name__ in (f"FSDP{sharded}", f"DDP{sharded}") else cls.__name__


def inner(module: Any) -> Any:
    """Return the module that `torch.compile` wrapped in this one, or this one."""
    return module._modules.get("_orig_mod", module) if type(module).__name__ == OPTIMIZED else module


def unwrapped(module: Any) -> Any:
    """Return the module inside wrappers that add no name to a path, or this one."""
    while module is not None:
        kind: Any = type(module)
        name = _wrapped(kind)
        if name is None or module._modules.get(name) is None:
            break
        module = inner(module._modules[name])
    return module


def hides_inner(module: Any) -> bool:
    """Return whether a call of what `torch.compile` made goes round the stand-in for the `__call__` inside."""
    function = getattr(getattr(module.forward, "_torchdynamo_orig_callable", None), "__func__", None)
    return not getattr(function, "__module__", "").startswith("annot.")


def is_keras(module: object) -> bool:
    """Return whether a module is a layer of Keras, which keeps its layers elsewhere than PyTorch does."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(module, getattr(keras, "Layer", ()))


def _children(module: Any) -> Iterable[tuple[str, Any]]:
    """Return the modules right below one, by name."""
    if is_keras(module):
        from annot.keras.paths import named_sublayers

        return named_sublayers(module)
    wrapped = _wrapped(type(module))  # type: ignore[arg-type]  # a class is hashable
    children = _items(module._modules)
    return [("" if name == wrapped else name, child) for name, child in children if child is not None]


def _items(mapping: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of what finalizers and other threads may change; a list of items is not made at once."""
    return (dict(mapping) if isinstance(mapping, dict) else mapping).items()


@functools.lru_cache(1024)
def _wrapped(cls: type[Any]) -> str | None:
    """Return the attribute in which modules of this class hold the one that they wrap."""
    return next((_WRAPPED[base.__name__] for base in cls.__mro__ if base.__name__ in _WRAPPED), None)
