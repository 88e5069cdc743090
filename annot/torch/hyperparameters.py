"""What of a module its ranges say beside shapes: the few numbers that its work depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _LPPoolNd, _MaxPoolNd

from annot import tag

__all__ = ["gradients", "hyperparameters"]

_Arguments: TypeAlias = tuple[tuple[str, tag.Value], ...]

_ALWAYS: Final = object()
_SCALARS: Final = (bool, int, float, str, type(None))

# name in the text, attribute (or what gives it), and the default that is left out
_Said: TypeAlias = tuple[str, "str | Callable[[Any], object]", object]


def _has(name: str) -> Callable[[Any], bool]:
    """Whether a module has a parameter; it is not fetched, for a parametrized one would be computed."""

    def has(module: Any) -> bool:
        if vars(module).get(name, module._parameters.get(name)) is not None:
            return True
        return name in getattr(module._modules.get("parametrizations"), "_modules", ())

    return has


def _dtype(module: Any) -> str:
    weight = module._parameters.get("weight")
    return tag.short_dtype(str(torch.get_default_dtype() if weight is None else weight.dtype))


_BIAS: Final[_Said] = ("bias", _has("bias"), True)
_WINDOW: Final[tuple[_Said, ...]] = (
    ("kernel", "kernel_size", _ALWAYS), ("stride", "stride", 1), ("padding", "padding", 0), ("dilation", "dilation", 1),
    ("ceil", "ceil_mode", False),
)  # fmt: skip
_RECURRENT: Final[tuple[_Said, ...]] = (
    ("hidden", "hidden_size", _ALWAYS), ("layers", "num_layers", 1), ("bidirectional", "bidirectional", False),
    ("proj", "proj_size", 0), ("batch_first", "batch_first", False), ("bias", "bias", True),
)  # fmt: skip
_TABLE: Final[tuple[_Said, ...]] = (("num", "num_embeddings", _ALWAYS), ("dim", "embedding_dim", _ALWAYS))
_AFFINE: Final[_Said] = ("affine", _has("weight"), True)
_ADAPTIVE: Final[tuple[_Said, ...]] = (("out", "output_size", _ALWAYS),)

_FAMILIES: Final[dict[type[nn.Module], tuple[_Said, ...]]] = {
    _ConvNd: (
        ("out", "out_channels", _ALWAYS), ("kernel", "kernel_size", _ALWAYS), ("stride", "stride", 1),
        ("padding", "padding", 0), ("output_padding", "output_padding", 0), ("dilation", "dilation", 1),
        ("groups", "groups", 1), _BIAS,
    ),
    nn.Linear: (("out", "out_features", _ALWAYS), _BIAS),
    nn.Bilinear: (("out", "out_features", _ALWAYS), _BIAS),
    nn.Embedding: (*_TABLE, ("dtype", _dtype, "f32")),
    nn.EmbeddingBag: (*_TABLE, ("mode", "mode", "mean"), ("dtype", _dtype, "f32")),
    nn.RNNBase: _RECURRENT,
    nn.RNNCellBase: (("hidden", "hidden_size", _ALWAYS), ("bias", "bias", True)),
    nn.MultiheadAttention: (
        ("heads", "num_heads", _ALWAYS), ("batch_first", "batch_first", False),
        ("bias", lambda module: module.in_proj_bias is not None, True),
        ("bias_kv", lambda module: module.bias_k is not None, False), ("zero_attn", "add_zero_attn", False),
    ),
    nn.TransformerEncoderLayer: (
        ("heads", "self_attn.num_heads", _ALWAYS), ("feed", "linear1.out_features", _ALWAYS),
        ("batch_first", "self_attn.batch_first", False),
    ),
    _BatchNorm: (_AFFINE,),
    _InstanceNorm: (("affine", _has("weight"), False),),
    nn.LayerNorm: (("over", "normalized_shape", _ALWAYS), _AFFINE, _BIAS),
    nn.RMSNorm: (("over", "normalized_shape", _ALWAYS), _AFFINE),
    nn.GroupNorm: (("groups", "num_groups", _ALWAYS), _AFFINE),
    nn.LocalResponseNorm: (("size", "size", _ALWAYS),),
    _MaxPoolNd: _WINDOW,
    _AvgPoolNd: _WINDOW,
    _LPPoolNd: _WINDOW,
    _AdaptiveAvgPoolNd: _ADAPTIVE,
    _AdaptiveMaxPoolNd: _ADAPTIVE,
    nn.PReLU: (("num", "num_parameters", 1),),
    nn.Upsample: (("size", "size", None), ("scale", "scale_factor", None), ("mode", "mode", "nearest")),
    _Loss: (("reduction", "reduction", "mean"),),
}  # fmt: skip
"""What the modules of PyTorch say, by class; a subclass says what the nearest of these does."""

_WITHOUT_GRADIENT: Final = (nn.Embedding, nn.EmbeddingBag)


def hyperparameters(module: nn.Module | None, shown_as: str) -> _Arguments:
    """Return what the ranges of a module say beside shapes; nothing of a class whose work is not known.

    A class of somebody's own that computes as one of PyTorch's says which one: ``base=Conv2d``. One with a
    `forward` of its own may compute anything.

    Args:
        module: the module; None: it is gone.
        shown_as: the class name that its ranges have.

    Example:
        >>> hyperparameters(nn.Conv2d(3, 64, 11, stride=4, bias=False), "Conv2d")
        (('out', 64), ('kernel', (11, 11)), ('stride', (4, 4)), ('bias', False))
    """
    known = _known(module)
    if module is None or known is None:
        return ()
    family = next((said for cls, said in _FAMILIES.items() if issubclass(known, cls)), ())
    based = (("base", known.__name__),) if known.__name__ != shown_as else ()
    return (*based, *_spelt(module, family))


def gradients(module: nn.Module | None, tensors: Iterable[torch.Tensor]) -> _Arguments:
    """Return what the backward range of a module says if it has not both gradients to compute.

    ``grad=weight``: the tensors that came in need none, as those of the first layer; ``grad=input``: its weights
    are frozen. Nothing can be known of a call without gradients: a later one, of the same shapes, may have them.

    Example:
        >>> gradients(nn.Linear(3, 4), [torch.zeros(2, 3)])
        (('grad', 'weight'),)
    """
    known = _known(module)
    if module is None or known is None or issubclass(known, _WITHOUT_GRADIENT) or not torch.is_grad_enabled():
        return ()
    computed = "parametrizations" in module._modules
    weights = [parameter.requires_grad for parameter in module.parameters(recurse=computed)]
    if not weights or any(weights) is any(tensor.requires_grad for tensor in tensors):
        return ()
    return (("grad", "weight" if any(weights) else "input"),)


def _known(module: nn.Module | None) -> type[nn.Module] | None:
    """Return the class of PyTorch that computes what `module` does."""
    own = type(module)
    cls: Any = next((cls for cls in own.__mro__ if cls.__module__.startswith("torch.nn.modules.")), None)
    # What torch.compile wraps around a module has no forward of its own, and so that of all modules.
    if cls in (None, nn.Module) or getattr(own, "forward", None) is not cls.forward:
        return None
    lazy = getattr(module, "cls_to_become", None)
    return lazy if isinstance(lazy, type) else cls


def _spelt(module: nn.Module, family: Iterable[_Said]) -> Iterator[tuple[str, tag.Value]]:
    for name, source, default in family:
        value = source(module) if callable(source) else _attribute(module, source)
        if not _is_default(value, default):
            yield name, _value(value)


def _attribute(module: Any, path: str) -> object:
    """Return an attribute, for example ``linear1.out_features``; None where a class of the family has none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _is_default(value: object, default: object) -> bool:
    if default is _ALWAYS:
        return False
    if value is None or isinstance(value, (tuple, list)):
        return value is None or all(item == default for item in value)
    return value == default


def _value(value: object) -> tag.Value:
    """Return a value as a tag has it.

    Raises:
        TypeError: a tag cannot have it, for example a size that is a symbol.
    """
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(type(item) not in _SCALARS for item in items):
        raise TypeError(f"an argument of a range must be numbers or texts, got {value!r}")
    return items if isinstance(value, (tuple, list)) else items[0]
