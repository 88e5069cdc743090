"""Hyperparameters of Keras layers for range labels: the few values that determine the work of a layer.

Names follow PyTorch where it has the same hyperparameter, else Keras. `annot.analyze.work` reads both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import keras
from keras import layers

from annot.emit.class_sources import library_class
from annot.keras.layer_paths import children
from annot.labels import tag
from annot.labels.hyperparameters import ALWAYS, Arguments, Hyperparameter, hyperparameter_values


def _layout(layer: Any) -> str:
    """Return the layout of a normalization layer. Axis 1 means channels first."""
    axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
    return "channels_first" if axis == 1 else "channels_last"


def _normalized_sizes(layer: Any) -> tuple[int, ...] | None:
    """Return the normalized sizes if there are several; the input shape gives a single one."""
    weight = layer.gamma if hasattr(layer, "gamma") else layer.scale
    return tuple(weight.shape) if weight is not None and len(weight.shape) > 1 else None


def _added_sizes(name: str, sign: int) -> Callable[[Any], object]:
    """Return a function for the sizes that padding adds before and after each dimension; cropping has sign -1."""

    def value(layer: Any) -> object:
        sizes = getattr(layer, name)
        pairs = sizes if isinstance(sizes[0], (tuple, list)) else (sizes,)
        return tuple(sign * size for pair in pairs for size in pair)

    return value


def _or_none(name: str, unless: str) -> Callable[[Any], object]:
    def value(layer: Any) -> object:
        setting = getattr(layer, name, None)
        return None if setting == getattr(layer, unless, None) else setting

    return value


def _output(layer: Any) -> object:
    shape = layer._output_shape
    return shape[-1] if isinstance(shape, (tuple, list)) and shape else shape


_AFFINE: Final[Hyperparameter] = ("affine", lambda layer: bool(layer.scale or layer.center), True)
_BIAS: Final[Hyperparameter] = ("bias", "use_bias", True)
_DTYPE: Final[Hyperparameter] = ("dtype", lambda layer: tag.short_dtype(layer.variable_dtype), "f32")
_LAYOUT: Final[Hyperparameter] = ("layout", "data_format", "channels_last")
_NORMALIZED: Final[Hyperparameter] = ("layout", _layout, "channels_last")
_WINDOW: Final[tuple[Hyperparameter, ...]] = (
    ("kernel", "kernel_size", ALWAYS),
    ("stride", "strides", 1),
    ("padding", "padding", "valid"),
    ("dilation", "dilation_rate", 1),
)
_FILTERS: Final[Hyperparameter] = ("out", "filters", ALWAYS)
_MULTIPLIER: Final[Hyperparameter] = ("multiplier", "depth_multiplier", 1)
_POOL: Final[tuple[Hyperparameter, ...]] = (
    ("kernel", "pool_size", ALWAYS),
    ("stride", "strides", ALWAYS),
    ("padding", "padding", "valid"),
    _LAYOUT,
)
_RECURRENT: Final[tuple[Hyperparameter, ...]] = (
    ("units", "units", ALWAYS),
    ("sequences", "return_sequences", False),
    ("reset_after", "reset_after", True),
    _BIAS,
)

_DIMENSIONS: Final = re.compile("[123]D")
_FAMILIES: Final[dict[str, tuple[Hyperparameter, ...]]] = {
    "Dense": (("out", "units", ALWAYS), _BIAS),
    "EinsumDense": (
        ("equation", "equation", ALWAYS),
        ("out", "partial_output_shape", ALWAYS),
        ("bias", "bias_axes", None),
    ),
    "DepthwiseConv": (*_WINDOW, _MULTIPLIER, _LAYOUT, _BIAS),
    "SeparableConv": (_FILTERS, *_WINDOW, _MULTIPLIER, _LAYOUT, _BIAS),
    "ConvTranspose": (_FILTERS, *_WINDOW, ("output_padding", "output_padding", None), _LAYOUT, _BIAS),
    "Conv": (_FILTERS, *_WINDOW, ("groups", "groups", 1), _LAYOUT, _BIAS),
    "Embedding": (("num", "input_dim", ALWAYS), ("dim", "output_dim", ALWAYS), _DTYPE),
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU", "SimpleRNNCell", "LSTMCell", "GRUCell"), _RECURRENT),
    "Bidirectional": (("merge", "merge_mode", "concat"),),
    "MultiHeadAttention": (
        ("heads", "_num_heads", ALWAYS),
        ("key_dim", "_key_dim", ALWAYS),
        ("value_dim", _or_none("_value_dim", "_key_dim"), None),
        ("out", _output, None),
        ("bias", "_use_bias", True),
    ),
    "GroupedQueryAttention": (
        ("heads", "num_query_heads", ALWAYS),
        ("key_dim", "head_dim", ALWAYS),
        ("kv_heads", _or_none("num_key_value_heads", "num_query_heads"), None),
        _BIAS,
    ),
    "BatchNormalization": (_AFFINE, _NORMALIZED),
    "GroupNormalization": (("groups", "groups", ALWAYS), _AFFINE, _NORMALIZED),
    "LayerNormalization": (("over", _normalized_sizes, None), ("affine", "scale", True), ("bias", "center", True)),
    "RMSNormalization": (("over", _normalized_sizes, None),),
    **dict.fromkeys(("MaxPooling", "AveragePooling"), _POOL),
    **dict.fromkeys(("GlobalMaxPooling", "GlobalAveragePooling"), (_LAYOUT,)),
    **dict.fromkeys(("AdaptiveMaxPooling", "AdaptiveAveragePooling"), (("out", "output_size", ALWAYS), _LAYOUT)),
    "UpSampling": (("scale", "size", ALWAYS), ("mode", "interpolation", "nearest"), _LAYOUT),
    "ConvLSTM": (_FILTERS, *_WINDOW, ("sequences", "return_sequences", False), _LAYOUT, _BIAS),
    "ZeroPadding": (("more", _added_sizes("padding", 1), ALWAYS), _LAYOUT),
    "Cropping": (("more", _added_sizes("cropping", -1), ALWAYS), _LAYOUT),
    "Dot": (("axes", "axes", ALWAYS),),
    "RepeatVector": (("times", "n", ALWAYS),),
    "AdditiveAttention": (("score", lambda _: "additive", ALWAYS), ("scale", "use_scale", True)),
    "Attention": (("score", "score_mode", ALWAYS),),
    "PReLU": (("num", lambda layer: layer.alpha.shape.num_elements(), 1),),
}
"""Hyperparameters by Keras class, without its number of dimensions. A subclass has those of its first match."""

_ACTIVATIONS: Final = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "leaky_relu": "LeakyReLU",
    "elu": "ELU",
    "selu": "SELU",
    "gelu": "GELU",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "Hardsigmoid",
    "tanh": "Tanh",
    "silu": "SiLU",
    "hard_silu": "Hardswish",
    "mish": "Mish",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "linear": "Identity",
}
"""The layer class that computes the same as `keras.layers.Activation` with a function, by name of the function."""


def hyperparameters(layer: keras.Layer, shown_as: str) -> Arguments:
    """Return the hyperparameters in the labels of a layer; empty for a class whose work is unknown.

    A user's subclass that inherits `call` from a Keras class names that class, as ``base=Conv2D``. `Activation`,
    recurrent layers around a Keras cell and a `Dense` in `TimeDistributed` also have a ``base``. A subclass that
    overrides `call` may compute anything, so its work is unknown.

    Args:
        layer: the layer.
        shown_as: the class name in its labels.

    Returns:
        Pairs of name and value.

    Example:
        >>> hyperparameters(keras.layers.Conv2D(64, 11, strides=4, use_bias=False), "Conv2D")
        (('out', 64), ('kernel', (11, 11)), ('stride', (4, 4)), ('bias', False))
    """
    keras_class = _keras_class(layer)
    if isinstance(layer, keras.Sequential) and type(layer).call is keras.Sequential.call:
        return (("base", "Sequential"),) if shown_as != "Sequential" else ()
    if keras_class is None:
        return ()
    if keras_class is layers.Activation:
        name = _ACTIVATIONS.get(getattr(layer.activation, "__name__", ""))
        return (("base", name),) if name else ()
    if keras_class is layers.RNN:
        arguments = _repeated(layer.cell, layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell)
        return (*arguments, ("sequences", True)) if arguments and layer.return_sequences else arguments
    if keras_class is layers.TimeDistributed:
        return _repeated(layer.layer, layers.Dense)
    names = (_DIMENSIONS.sub("", cls.__name__) for cls in keras_class.__mro__)
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), ())
    based = (("base", keras_class.__name__),) if keras_class.__name__ != shown_as else ()
    return (*based, *hyperparameter_values(layer, family))


def gradients(layer: keras.Layer, weights: bool, inputs: bool) -> Arguments:
    """Return ``grad`` for the label of a backward range that computes only one kind of gradient; otherwise nothing.

    Args:
        layer: the layer.
        weights: whether a weight of the layer needs a gradient.
        inputs: whether an input of the layer needs a gradient.

    Returns:
        ``grad=weight`` or ``grad=input`` as a pair of name and value. Empty if both or neither need a gradient, if the
        work of the layer is unknown, or if its sublayers have their own ranges.

    Example:
        >>> dense = keras.layers.Dense(3)
        >>> dense.build((2, 4))
        >>> gradients(dense, weights=True, inputs=False)
        (('grad', 'weight'),)
    """
    keras_class = _keras_class(layer)
    if keras_class is None or issubclass(keras_class, layers.Embedding) or not layer.variables or weights is inputs:
        return ()
    if any(children("", layer)):  # the sublayers have it
        return ()
    return (("grad", "weight" if weights else "input"),)


def _keras_class(layer: keras.Layer) -> type[Any] | None:
    """Return the Keras layer class whose `call` the layer uses; None for other classes and for models."""
    cls = library_class(type(layer), "keras.src.layers.", "call")
    return None if cls in (layers.Layer, layers.Wrapper) else cls


def _repeated(body: Any, *classes: type[Any]) -> Arguments:
    """Return the hyperparameters of a layer that calls another layer, `body`, once for each time step."""
    keras_class = _keras_class(body) if isinstance(body, keras.Layer) else None
    if keras_class not in classes:
        return ()
    return (("base", keras_class.__name__.removesuffix("Cell")), *hyperparameters(body, keras_class.__name__))
