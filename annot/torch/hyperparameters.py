"""Hyperparameters in the ranges of a module: those that determine its FLOPs and memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _LPPoolNd, _MaxPoolNd

from annot.emit.class_sources import library_class
from annot.labels import tag
from annot.labels.hyperparameters import ALWAYS, Arguments, Hyperparameter, hyperparameter_values
from annot.torch.module_paths import is_keras


def _has(name: str) -> Callable[[Any], bool]:
    """Return a test for a parameter. It avoids getattr, which would compute a parametrized one."""

    def has(module: Any) -> bool:
        if vars(module).get(name, module._parameters.get(name)) is not None:
            return True
        return name in getattr(module._modules.get("parametrizations"), "_modules", ())

    return has


def _dtype(module: Any) -> str:
    weight = module._parameters.get("weight")
    return tag.short_dtype(str(torch.get_default_dtype() if weight is None else weight.dtype))


_BIAS: Final[Hyperparameter] = ("bias", _has("bias"), True)
_WINDOW: Final[tuple[Hyperparameter, ...]] = (
    ("kernel", "kernel_size", ALWAYS),
    ("stride", "stride", 1),
    ("padding", "padding", 0),
    ("dilation", "dilation", 1),
    ("ceil", "ceil_mode", False),
)
_RECURRENT: Final[tuple[Hyperparameter, ...]] = (
    ("hidden", "hidden_size", ALWAYS),
    ("layers", "num_layers", 1),
    ("bidirectional", "bidirectional", False),
    ("proj", "proj_size", 0),
    ("batch_first", "batch_first", False),
    ("bias", "bias", True),
)
_TABLE: Final[tuple[Hyperparameter, ...]] = (("num", "num_embeddings", ALWAYS), ("dim", "embedding_dim", ALWAYS))
_AFFINE: Final[Hyperparameter] = ("affine", _has("weight"), True)
_ADAPTIVE: Final[tuple[Hyperparameter, ...]] = (("out", "output_size", ALWAYS),)

_FAMILIES: Final[dict[type[nn.Module], tuple[Hyperparameter, ...]]] = {
    _ConvNd: (
        ("out", "out_channels", ALWAYS),
        ("kernel", "kernel_size", ALWAYS),
        ("stride", "stride", 1),
        ("padding", "padding", 0),
        ("output_padding", "output_padding", 0),
        ("dilation", "dilation", 1),
        ("groups", "groups", 1),
        _BIAS,
    ),
    nn.Linear: (("out", "out_features", ALWAYS), _BIAS),
    nn.Bilinear: (("out", "out_features", ALWAYS), _BIAS),
    nn.Embedding: (*_TABLE, ("dtype", _dtype, "f32")),
    nn.EmbeddingBag: (*_TABLE, ("mode", "mode", "mean"), ("dtype", _dtype, "f32")),
    nn.RNNBase: _RECURRENT,
    nn.RNNCellBase: (("hidden", "hidden_size", ALWAYS), ("bias", "bias", True)),
    nn.MultiheadAttention: (
        ("heads", "num_heads", ALWAYS),
        ("batch_first", "batch_first", False),
        ("bias", lambda module: module.in_proj_bias is not None, True),
        ("bias_kv", lambda module: module.bias_k is not None, False),
        ("zero_attn", "add_zero_attn", False),
    ),
    nn.TransformerEncoderLayer: (
        ("heads", "self_attn.num_heads", ALWAYS),
        ("feed", "linear1.out_features", ALWAYS),
        ("batch_first", "self_attn.batch_first", False),
    ),
    _BatchNorm: (_AFFINE,),
    _InstanceNorm: (("affine", _has("weight"), False),),
    nn.LayerNorm: (("over", "normalized_shape", ALWAYS), _AFFINE, _BIAS),
    nn.RMSNorm: (("over", "normalized_shape", ALWAYS), _AFFINE),
    nn.GroupNorm: (("groups", "num_groups", ALWAYS), _AFFINE),
    nn.LocalResponseNorm: (("size", "size", ALWAYS),),
    _MaxPoolNd: _WINDOW,
    _AvgPoolNd: _WINDOW,
    _LPPoolNd: _WINDOW,
    _AdaptiveAvgPoolNd: _ADAPTIVE,
    _AdaptiveMaxPoolNd: _ADAPTIVE,
    nn.PReLU: (("num", "num_parameters", 1),),
    nn.Upsample: (("size", "size", None), ("scale", "scale_factor", None), ("mode", "mode", "nearest")),
    _Loss: (("reduction", "reduction", "mean"),),
}
"""Hyperparameters by module class of PyTorch. A subclass has those of the first matching class."""

_WITHOUT_GRADIENT: Final = (nn.Embedding, nn.EmbeddingBag)


def hyperparameters(module: nn.Module | None, shown_as: str) -> Arguments:
    """Return the hyperparameters of a module. Empty for a class whose computation is unknown.

    A user-defined subclass that inherits `forward` from a class of PyTorch names that class: ``base=Conv2d``. The
    computation of a subclass that overrides `forward` is unknown. `shown_as` is the class name in the module's ranges.

    Example:
        >>> hyperparameters(nn.Conv2d(3, 64, 11, stride=4, bias=False), "Conv2d")
        (('out', 64), ('kernel', (11, 11)), ('stride', (4, 4)), ('bias', False))
    """
    if is_keras(module):
        from annot.keras.hyperparameters import hyperparameters as of_keras

        return of_keras(module, shown_as)
    torch_class = _torch_class(module)
    if module is None or torch_class is None:
        return ()
    family = next((parameters for cls, parameters in _FAMILIES.items() if issubclass(torch_class, cls)), ())
    based = (("base", torch_class.__name__),) if torch_class.__name__ != shown_as else ()
    return (*based, *hyperparameter_values(module, family))


def gradients(module: nn.Module | None, tensors: Iterable[torch.Tensor]) -> Arguments:
    """Return the hyperparameter `grad` of a module whose backward computes only one of its two gradients.

    ``grad=weight``: its input tensors do not require gradients, as in the first layer. ``grad=input``: its weights are
    frozen. The result is empty if gradients are disabled, because a later call with the same shapes may enable them.

    Example:
        >>> gradients(nn.Linear(3, 4), [torch.zeros(2, 3)])
        (('grad', 'weight'),)
    """
    cls = _torch_class(module)
    if module is None or cls is None or issubclass(cls, _WITHOUT_GRADIENT) or not torch.is_grad_enabled():
        return ()
    computed = "parametrizations" in module._modules
    weights = [parameter.requires_grad for parameter in module.parameters(recurse=computed)]
    if not weights or any(weights) is any(tensor.requires_grad for tensor in tensors):
        return ()
    return (("grad", "weight" if any(weights) else "input"),)


def double_weights(module: nn.Module | None, tensors: Iterable[torch.Tensor]) -> Arguments:
    """Return the hyperparameter `weights` of a module with float64 parameters and without float64 inputs.

    Its `forward` casts the inputs, so that their dtypes do not show in what it computes.

    Example:
        >>> double_weights(nn.Linear(3, 4, dtype=torch.float64), [torch.zeros(2, 3)])
        (('weights', 'f64'),)
    """
    parameters = () if module is None else module._parameters.values()
    double = any(parameter is not None and parameter.dtype is torch.float64 for parameter in parameters)
    return (("weights", "f64"),) if double and all(tensor.dtype is not torch.float64 for tensor in tensors) else ()


def _torch_class(module: nn.Module | None) -> type[nn.Module] | None:
    """Return the class of PyTorch whose `forward` the module runs, or None."""
    cls = library_class(type(module), "torch.nn.modules.", "forward")
    if cls in (None, nn.Module):  # OptimizedModule of torch.compile inherits the forward of nn.Module
        return None
    lazy = getattr(module, "cls_to_become", None)
    return lazy if isinstance(lazy, type) else cls
