"""Expected work of Keras layers without running them, and TensorFlow's own FLOP count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2_as_graph

from annot.analyze.work.call import Work
from annot.analyze.work.formulas import expected
from annot.keras.hyperparameters import hyperparameters
from annot.labels.tag import Tag, TensorSpec

__all__ = ["MATMULS", "parameters", "profiled", "symbolic", "without_weights", "work_of"]

_Built = TypeVar("_Built")

MATMULS: Final = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "BatchMatMul")
"""TensorFlow operations that are matrix multiplications."""


def parameters(model: Any) -> int:
    """Return the number of trainable weights."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def work_of(layer: Any, *specs: TensorSpec) -> Work | None:
    """Return the work of a forward call."""
    name = type(layer).__name__
    return expected(Tag("x", name, "forward", specs, arguments=hyperparameters(layer, name)))


def without_weights(build: Callable[[], _Built]) -> _Built:
    """Call `build` in a new thread. Keras 3 keeps deferred weights per thread and would initialize them later."""

    def run() -> _Built:
        with keras.StatelessScope(initialize_variables=False):
            return build()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def symbolic(build: Callable[[], Any]) -> tuple[Any, list[tuple[Any, Work | None]]]:
    """Return a model without allocated weights, and the work of its layers.

    Args:
        build: builds a model that calls its layers with symbolic tensors.

    Returns:
        The model, and each layer without sublayers with its work for one sample.
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
    """Return the FLOPs of matrix multiplications, as TensorFlow's profiler computes them from the graph."""
    function = tf.function(run).get_concrete_function(*inputs)
    frozen, _ = convert_variables_to_constants_v2_as_graph(function)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(frozen.graph.as_graph_def())
    builder = tf.compat.v1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    root = tf.compat.v1.profiler.profile(graph, cmd="op", options=options)
    return sum(flops for name, flops in _by_operation(root) if name in MATMULS)


def _by_operation(node: Any) -> Iterator[tuple[str, int]]:
    yield node.name, node.float_ops
    for child in node.children:
        yield from _by_operation(child)
