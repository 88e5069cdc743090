"""The range of one call of a layer: pushed and popped by Python, or opened and closed by operations around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from annot import emit
from annot.tf import ops
from annot.tf.eager import is_watched
from annot.tf.sites import Site, tensors_among
from annot.tf.weights import Gate, read

__all__ = ["call_in_range", "call_through_operations"]


def call_in_range(site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a layer inside a range that this thread opens and closes."""
    emit.push(site.forward(tensors_among(args, kwargs)))
    try:
        return call(*args, **kwargs)
    finally:
        emit.pop()


def call_through_operations(
    site: Site,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    weights: Callable[..., Sequence[Any]],
    forward: bool,
    backward: bool,
) -> Any:
    """Call a layer whose inputs and weights come through operations that open its range.

    Its outputs go through those that close it. The range of the backward opens where the first gradient of an output
    is there, and closes where those of the inputs and weights are.

    Args:
        site: where the layer stands.
        call: what it does.
        args, kwargs: what it is called with.
        weights: returns the variables whose gradients the backward range waits for, by whether the inputs need one.
        forward: whether its forward has a range.
        backward: whether its backward has one.
    """
    tensors = tensors_among(args, kwargs)
    inputs = _watched_first(tensors)
    needs_inputs = bool(inputs) and is_watched(inputs[0])
    variables = weights(needs_inputs=needs_inputs)
    watched = [(one, value) for one, value in zip(variables, read(variables), strict=True) if is_watched(value)]
    values = [value for _, value in watched]
    grad_event = None
    if backward and (values or needs_inputs):
        grad_event = site.backward(tensors, weights=bool(values), inputs=needs_inputs)
    event = site.forward(tensors) if forward else None
    passed, token = ops.begin([*values, *inputs], event, grad_event, open_tensors=site.open_tensors(tensors))
    args, kwargs = _replaced((args, dict(kwargs)), inputs, passed[len(values) :])
    try:
        with Gate((one for one, _ in watched), passed[: len(values)]):
            outputs = call(*args, **kwargs)
    except BaseException:
        ops.abandon(token)
        raise
    results = _watched_first(tree.flatten(outputs))
    return _replaced(outputs, results, ops.finish(results, token))


def _watched_first(values: Sequence[Any]) -> list[Any]:
    """Return the dense tensors, each once; ragged and sparse ones stay as they are.

    What comes out of the first operation counts as watched if anything that goes in is, so the first one should be.
    """
    dense = {id(value): value for value in values if isinstance(value, tf.Tensor)}
    return sorted(dense.values(), key=lambda tensor: not is_watched(tensor))


def _replaced(nest: Any, tensors: Sequence[Any], by: Sequence[Any]) -> Any:
    """Return the nest with other tensors in the places of these, which have their Keras masks."""
    others = {id(tensor): other for tensor, other in zip(tensors, by, strict=False) if tensor is not other}
    if not others:
        return nest
    for tensor in tensors:
        mask = getattr(tensor, "_keras_mask", None)
        if mask is not None and id(tensor) in others:
            others[id(tensor)]._keras_mask = mask
    return tree.map_structure(lambda value: others.get(id(value), value), nest)
