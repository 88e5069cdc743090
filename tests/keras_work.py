"""Expected work of Keras layers that nothing was run of, and TensorFlow's own count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2_as_graph

from annot.analyze.work import Work, expected
from annot.keras.hyperparameters import hyperparameters
from annot.tag import Tag, TensorSpec

__all__ = ["PRODUCTS", "parameters", "profiled", "symbolic", "without_weights", "work_of"]

_Built = TypeVar("_Built")

PRODUCTS: Final = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "BatchMatMul")
"""Operations of TensorFlow that are matrix products."""


def parameters(model: Any) -> int:
    """Return how many weights learn."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def work_of(layer: Any, *specs: TensorSpec) -> Work | None:
    """Return the work of a forward call."""
    name = type(layer).__name__
    return expected(Tag("x", name, "forward", specs, arguments=hyperparameters(layer, name)))


def without_weights(build: Callable[[], _Built]) -> _Built:
    """Return what `build` does, in a thread of its own: one that goes on, Keras lets make the weights later."""

    def run() -> _Built:
        with keras.StatelessScope(initialize_variables=False):
            return build()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def symbolic(build: Callable[[], Any]) -> tuple[Any, list[tuple[Any, Work | None]]]:
    """Return a model whose weights take no memory, and the work of its layers.

    Args:
        build: makes a model that calls its layers with symbolic tensors.

    Returns:
        The model, and each layer of one without layers inside with its work for one sample.
    """
    shapes: dict[int, tuple[Any, tuple[int, ...]]] = {}
    original = keras.Layer.__call__

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args and hasattr(args[0], "shape") else None
        if first is not None:
            shapes[id(layer)] = layer, (1, *first.shape[1:])
        return original(layer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Layer, "__call__", call)
        model = without_weights(build)
    leaves = [layer for layer in model._flatten_layers() if not list(layer._flatten_layers(include_self=False))]
    called = [shapes[id(layer)] for layer in leaves if id(layer) in shapes]
    return model, [(layer, work_of(layer, TensorSpec(shape, "f32"))) for layer, shape in called]


def profiled(run: Callable[..., Any], *inputs: Any) -> int:
    """Return the operations of matrix products by TensorFlow's profiler, which computes them from its graph."""
    function = tf.function(run).get_concrete_function(*inputs)
    frozen, _ = convert_variables_to_constants_v2_as_graph(function)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(frozen.graph.as_graph_def())
    builder = tf.compat.v1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    root = tf.compat.v1.profiler.profile(graph, cmd="op", options=options)
    return sum(flops for name, flops in _by_operation(root) if name in PRODUCTS)


def _by_operation(node: Any) -> Iterator[tuple[str, int]]:
    yield node.name, node.float_ops
    for child in node.children:
        yield from _by_operation(child)
