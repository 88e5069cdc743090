"""Paths of the layers in a Keras model: Keras's names joined by ``/``, one path per layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import keras

SEPARATOR: Final = "/"
"""Separator of the names in a path. Keras rejects it in layer names."""

_LOOPS: Final = (keras.layers.RNN, keras.layers.TimeDistributed)
"""Layers that call their inner layer once for each time step, in a loop that TensorFlow runs."""


def paths(model: keras.Layer, path: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """Yield the model and every layer in it that can have ranges, each with its path.

    A layer that is used several times has its first path. Layers with the same name under one parent, as in some
    subclassed models, get the suffixes ``_1``, ``_2`` …. The paths leave out input layers, which are never called, and
    layers that a recurrent layer or `TimeDistributed` calls for each time step.

    Args:
        model: a model or layer.
        path: its path; empty: its name.

    Example:
        >>> import keras
        >>> inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="fc")], name="inner")
        >>> [path for path, _ in paths(keras.Sequential([inner], name="outer"))]
        ['outer', 'outer/inner', 'outer/inner/fc']
    """
    pending: list[tuple[str, keras.Layer]] = [(path or model.name, model)]
    seen: set[int] = set()
    while pending:
        path, layer = pending.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield path, layer
        pending.extend(reversed(list(children(path, layer))))


def children(path: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """Yield the direct sublayers of the layer at `path` that can have ranges, with their paths."""
    if not isinstance(layer, _LOOPS):
        for name, child in named_sublayers(layer):
            yield f"{path}{SEPARATOR}{name}", child


def named_sublayers(layer: Any) -> Iterator[tuple[str, keras.Layer]]:
    """Yield the direct sublayers of a layer, also those in lists that are its attributes, each with a unique name."""
    taken: dict[str, keras.Layer] = {}
    for child in layer._flatten_layers(include_self=False, recursive=False):
        if isinstance(child, keras.layers.InputLayer):
            continue
        name, number = child.name, 0
        while taken.setdefault(name, child) is not child:
            number += 1
            name = f"{child.name}_{number}"
        yield name, child
