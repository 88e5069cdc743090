"""Where each layer of a Keras model stands: Keras's own names, joined by ``/``, each layer under one path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import keras

__all__ = ["SEPARATOR", "children", "named_sublayers", "paths", "runs_alone", "sublayers"]

SEPARATOR: Final = "/"
"""What stands between the names of a path; Keras allows it in no name of a layer."""

_LOOPS: Final = (keras.layers.RNN, keras.layers.TimeDistributed)
"""Layers that call what is inside them once for each time step, in a loop that TensorFlow runs."""


def paths(model: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """Yield the model and every layer in it that can have ranges, each with its path.

    A layer that stands in several places has the path of the first. Two layers of one name under one parent, as
    subclassed models may have, are told apart by ``_1``, ``_2`` …. What a recurrent layer or `TimeDistributed` calls
    for each time step has no path, nor have input layers, which are never called.

    Args:
        model: a model or layer; its own path is its name.

    Example:
        >>> import keras
        >>> inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="fc")], name="inner")
        >>> [path for path, _ in paths(keras.Sequential([inner], name="outer"))]
        ['outer', 'outer/inner', 'outer/inner/fc']
    """
    pending: list[tuple[str, keras.Layer]] = [(model.name, model)]
    seen: set[int] = set()
    while pending:
        path, layer = pending.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield path, layer
        pending.extend(reversed(list(children(path, layer))))


def children(path: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """Yield the layers right below the one at `path`, with their paths."""
    if not runs_alone(layer):
        for name, child in named_sublayers(layer):
            yield f"{path}{SEPARATOR}{name}", child


def named_sublayers(layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """Yield the layers right below a layer, each with a name that none of the others has."""
    taken: dict[str, keras.Layer] = {}
    for child in sublayers(layer):
        if isinstance(child, keras.layers.InputLayer):
            continue
        name, number = child.name, 0
        while taken.setdefault(name, child) is not child:
            number += 1
            name = f"{child.name}_{number}"
        yield name, child


def sublayers(layer: Any) -> list[keras.Layer]:
    """Return the layers that a layer keeps; a list that is kept by an attribute counts as its items."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def runs_alone(layer: keras.Layer) -> bool:
    """Return whether what is inside a layer has no ranges of its own."""
    return isinstance(layer, _LOOPS)
