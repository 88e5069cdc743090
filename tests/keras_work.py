"""Expected work of Keras layers that nothing was run of, and TensorFlow's own count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import keras
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2_as_graph

from annot.analyze.work import Work, expected
from annot.tag import Tag, TensorSpec
from annot.tf.hyperparameters import hyperparameters

__all__ = ["PRODUCTS", "parameters", "profiled", "symbolic", "work_of", "work_of_layers"]

PRODUCTS: Final = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "BatchMatMul")
"""Operations of TensorFlow that are matrix products."""


def parameters(model: Any) -> int:
    """Return how many weights learn."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def work_of(layer: Any, *specs: TensorSpec) -> Work | None:
    """Return the work of a forward call."""
    name = type(layer).__name__
    return expected(Tag("x", name, "forward", specs, arguments=hyperparameters(layer, name)))


def symbolic(build: Callable[[], Any], *inputs: Any) -> Any:
    """Return a model whose weights take no memory; one that is not built is called with `inputs`."""
    with keras.StatelessScope(initialize_variables=False):
        model = build()
        if inputs:
            model(*inputs)
        return model


def work_of_layers(model: Any) -> dict[str, Work | None]:
    """Return the work of each layer that was called with symbolic tensors, for one sample, in order of their calls."""
    found = []
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if layer._inbound_nodes and not list(layer._flatten_layers(include_self=False)):
            node = layer._inbound_nodes[-1]
            specs = (TensorSpec((1, *tensor.shape[1:]), "f32") for tensor in node.input_tensors)
            found.append((layer.path, work_of(layer, *specs)))
    return dict(found)


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
