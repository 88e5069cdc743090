"""What of a Keras layer its ranges say beside shapes: the few numbers that its work depends on.

Sizes and words are Keras's own where PyTorch has no other name for the same: `annot.analyze.work` reads both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import keras
from keras import layers

from annot import tag
from annot.hyperparameters import ALWAYS, Arguments, Said, spelt
from annot.keras.paths import runs_alone, sublayers

__all__ = ["gradients", "hyperparameters"]


def _dtype(layer: Any) -> str:
    return tag.short_dtype(layer.variable_dtype)


def _layout(layer: Any) -> str:
    """The layout of a normalisation: its axis counts from the end once the layer is built, or as the user said."""
    axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
    return "channels_first" if axis == 1 else "channels_last"


def _has_scale(layer: Any) -> bool:
    return bool(layer.scale or layer.center)


def _over(layer: Any) -> tuple[int, ...] | None:
    """The sizes that are normalised together, if there are several: of one, the shape of the input tells it."""
    weight = layer.gamma if hasattr(layer, "gamma") else layer.scale
    return tuple(weight.shape) if weight is not None and len(weight.shape) > 1 else None


def _more(name: str, sign: int) -> Callable[[Any], object]:
    """What a padding adds before and behind each dimension."""

    def value(layer: Any) -> object:
        sizes = getattr(layer, name)
        pairs = sizes if isinstance(sizes[0], (tuple, list)) else (sizes,)
        return tuple(sign * size for pair in pairs for size in pair)

    return value


def _or_none(name: str, unless: str) -> Callable[[Any], object]:
    def value(layer: Any) -> object:
        found = getattr(layer, name, None)
        return None if found == getattr(layer, unless, None) else found

    return value


def _output(layer: Any) -> object:
    shape = layer._output_shape
    return shape[-1] if isinstance(shape, (tuple, list)) and shape else shape


_BIAS: Final[Said] = ("bias", "use_bias", True)
_LAYOUT: Final[Said] = ("layout", "data_format", "channels_last")
_WINDOW: Final[tuple[Said, ...]] = (
    ("kernel", "kernel_size", ALWAYS), ("stride", "strides", 1), ("padding", "padding", "valid"),
    ("dilation", "dilation_rate", 1),
)  # fmt: skip
_FILTERS: Final[Said] = ("out", "filters", ALWAYS)
_MULTIPLIER: Final[Said] = ("multiplier", "depth_multiplier", 1)
_POOL: Final[tuple[Said, ...]] = (
    ("kernel", "pool_size", ALWAYS), ("stride", "strides", ALWAYS), ("padding", "padding", "valid"), _LAYOUT,
)  # fmt: skip
_RECURRENT: Final[tuple[Said, ...]] = (
    ("units", "units", ALWAYS), ("sequences", "return_sequences", False), ("reset_after", "reset_after", True), _BIAS,
)  # fmt: skip

_ADAPTIVE: Final[tuple[type[Any], ...]] = tuple(
    getattr(layers, f"Adaptive{kind}Pooling{count}D")
    for kind in ("Average", "Max") for count in (1, 2, 3) if hasattr(layers, f"Adaptive{kind}Pooling{count}D")
)  # fmt: skip

_FAMILIES: Final[dict[tuple[type[Any], ...], tuple[Said, ...]]] = {
    (layers.Dense,): (("out", "units", ALWAYS), _BIAS),
    (layers.EinsumDense,): (
        ("equation", "equation", ALWAYS), ("out", "partial_output_shape", ALWAYS), ("bias", "bias_axes", None),
    ),
    (layers.DepthwiseConv1D, layers.DepthwiseConv2D): (*_WINDOW, _MULTIPLIER, _LAYOUT, _BIAS),
    (layers.SeparableConv1D, layers.SeparableConv2D): (_FILTERS, *_WINDOW, _MULTIPLIER, _LAYOUT, _BIAS),
    (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose): (
        _FILTERS, *_WINDOW, ("output_padding", "output_padding", None), _LAYOUT, _BIAS,
    ),
    (layers.Conv1D, layers.Conv2D, layers.Conv3D): (_FILTERS, *_WINDOW, ("groups", "groups", 1), _LAYOUT, _BIAS),
    (layers.Embedding,): (("num", "input_dim", ALWAYS), ("dim", "output_dim", ALWAYS), ("dtype", _dtype, "f32")),
    (layers.SimpleRNN, layers.LSTM, layers.GRU): _RECURRENT,
    (layers.SimpleRNNCell, layers.LSTMCell, layers.GRUCell): _RECURRENT,
    (layers.Bidirectional,): (("merge", "merge_mode", "concat"),),
    (layers.MultiHeadAttention,): (
        ("heads", "_num_heads", ALWAYS), ("key_dim", "_key_dim", ALWAYS),
        ("value_dim", _or_none("_value_dim", "_key_dim"), None), ("out", _output, None), ("bias", "_use_bias", True),
    ),
    (layers.GroupQueryAttention,): (
        ("heads", "num_query_heads", ALWAYS), ("key_dim", "head_dim", ALWAYS),
        ("kv_heads", _or_none("num_key_value_heads", "num_query_heads"), None), _BIAS,
    ),
    (layers.BatchNormalization,): (("affine", _has_scale, True), ("layout", _layout, "channels_last")),
    (layers.GroupNormalization,): (
        ("groups", "groups", ALWAYS), ("affine", _has_scale, True), ("layout", _layout, "channels_last"),
    ),
    (layers.LayerNormalization,): (("over", _over, None), ("affine", "scale", True), ("bias", "center", True)),
    **({(layers.RMSNormalization,): (("over", _over, None),)} if hasattr(layers, "RMSNormalization") else {}),
    (
        layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D, layers.AveragePooling1D,
        layers.AveragePooling2D, layers.AveragePooling3D,
    ): _POOL,
    (
        layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D,
        layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D,
    ): (_LAYOUT,),
    (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D): (
        ("scale", "size", ALWAYS), ("mode", "interpolation", "nearest"), _LAYOUT,
    ),
    (layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D): (
        _FILTERS, *_WINDOW, ("sequences", "return_sequences", False), _LAYOUT, _BIAS,
    ),
    (layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D): (
        ("more", _more("padding", 1), ALWAYS), _LAYOUT,
    ),
    (layers.Cropping1D, layers.Cropping2D, layers.Cropping3D): (("more", _more("cropping", -1), ALWAYS), _LAYOUT),
    **({_ADAPTIVE: (("out", "output_size", ALWAYS), _LAYOUT)} if _ADAPTIVE else {}),
    (layers.Dot,): (("axes", "axes", ALWAYS),),
    (layers.RepeatVector,): (("times", "n", ALWAYS),),
    (layers.AdditiveAttention,): (("score", lambda _: "additive", ALWAYS), ("scale", "use_scale", True)),
    (layers.Attention,): (("score", "score_mode", ALWAYS),),
    (layers.PReLU,): (("num", lambda layer: layer.alpha.shape.num_elements(), 1),),
}  # fmt: skip
"""What the layers of Keras say, by class; a subclass says what the first of these that it is says."""

_ACTIVATIONS: Final = {
    "relu": "ReLU", "relu6": "ReLU6", "leaky_relu": "LeakyReLU", "elu": "ELU", "selu": "SELU", "gelu": "GELU",
    "sigmoid": "Sigmoid", "hard_sigmoid": "Hardsigmoid", "tanh": "Tanh", "silu": "SiLU", "hard_silu": "Hardswish",
    "mish": "Mish", "softplus": "Softplus", "softsign": "Softsign", "softmax": "Softmax",
    "log_softmax": "LogSoftmax", "linear": "Identity",
}  # fmt: skip
"""The class that does what `keras.layers.Activation` of a function does."""


def hyperparameters(layer: keras.Layer, shown_as: str) -> Arguments:
    """Return what the ranges of a layer say beside shapes; nothing of a class whose work is not known.

    A class of somebody's own that computes as one of Keras's says which one, as ``base=Conv2D``, and so do
    `Activation`, recurrent layers around a cell of Keras and a `Dense` in `TimeDistributed`. One with a `call` of its
    own may compute anything.

    Args:
        layer: the layer.
        shown_as: the class name that its ranges have.

    Example:
        >>> hyperparameters(keras.layers.Conv2D(64, 11, strides=4, use_bias=False), "Conv2D")
        (('out', 64), ('kernel', (11, 11)), ('stride', (4, 4)), ('bias', False))
    """
    known = _known(layer)
    if isinstance(layer, keras.Sequential) and type(layer).call is keras.Sequential.call:
        return (("base", "Sequential"),) if shown_as != "Sequential" else ()
    if known is None:
        return ()
    if known is layers.Activation:
        name = _ACTIVATIONS.get(getattr(layer.activation, "__name__", ""))
        return (("base", name),) if name else ()
    if known is layers.RNN:
        said = _inside(layer.cell, layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell)
        return (*said, ("sequences", True)) if said and layer.return_sequences else said
    if known is layers.TimeDistributed:
        return _inside(layer.layer, layers.Dense)
    family = next((said for classes, said in _FAMILIES.items() if issubclass(known, classes)), ())
    based = (("base", known.__name__),) if known.__name__ != shown_as else ()
    return (*based, *spelt(layer, family))


def gradients(layer: keras.Layer, weights: bool, inputs: bool) -> Arguments:
    """Return what the backward range of a layer says if it has not both gradients to compute.

    Args:
        layer: the layer.
        weights: whether any of its weights needs a gradient.
        inputs: whether any of its inputs does.

    Example:
        >>> dense = keras.layers.Dense(3)
        >>> dense.build((2, 4))
        >>> gradients(dense, weights=True, inputs=False)
        (('grad', 'weight'),)
    """
    known = _known(layer)
    if known is None or issubclass(known, layers.Embedding) or not layer.variables or weights is inputs:
        return ()
    if sublayers(layer) and not runs_alone(layer):  # those say it themselves
        return ()
    return (("grad", "weight" if weights else "input"),)


def _known(layer: keras.Layer) -> type[Any] | None:
    """Return the class of Keras that computes what `layer` does; models compute what their layers do."""
    own: Any = type(layer)
    cls: Any = next((cls for cls in own.__mro__ if cls.__module__.startswith("keras.src.layers.")), None)
    computes_so = cls not in (None, layers.Layer, layers.Wrapper) and own.call is cls.call
    return cls if computes_so else None


def _inside(body: Any, *classes: type[Any]) -> Arguments:
    """Return what a layer says that does what another one does, once for each time step."""
    known = _known(body) if isinstance(body, keras.Layer) else None
    if known not in classes:
        return ()
    return (("base", known.__name__.removesuffix("Cell")), *hyperparameters(body, known.__name__))
