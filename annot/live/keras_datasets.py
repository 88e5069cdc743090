"""Facts about the elements of a `tf.data.Dataset`, from its pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_RANDOM: Final = {"Shuffle", "ShuffleAndRepeat", "Random"}
_REPEATABLE: Final = {"ReadVariableOp", "Assert", "ReadFile", "LookupTableFindV2"}
"""Operations that TensorFlow counts as stateful, but that give the same values in each epoch."""


def transformations(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the transformations of a pipeline, the last first, each with its name and data set.

    Example:
        >>> [name for name, _ in transformations(tf.data.Dataset.range(9).shuffle(9).batch(3))]
        ['Batch', 'Shuffle', 'Range']
    """
    yield type(dataset).__name__.strip("_").removesuffix("Dataset"), dataset
    for source in dataset._inputs():
        yield from transformations(source)


def is_prefetched(dataset: Any) -> bool:
    """Return whether a pipeline ends with `prefetch`."""
    return next(name for name, _ in transformations(dataset) if name != "Options") == "Prefetch"


def why_not_cached(dataset: Any, most: int, memory: int) -> str:
    """Return why `cache` at the end of a pipeline cannot help or would change the training; empty: it may help.

    Args:
        dataset: the data set.
        most: largest number of batches of an epoch.
        memory: available memory (bytes). The cache may take half of it.
    """
    steps = list(transformations(dataset))
    names = {name for name, _ in steps}
    length = int(dataset.cardinality())
    if "Cache" in names:
        return "the data set has a cache"
    if names & _RANDOM:
        return "the data set shuffles, and a cache belongs before the shuffle"
    operation = next((kind for _, step in steps for kind in _stateful_operations(step)), "")
    if operation:
        return f"{operation} in the data set may give other data in each epoch"
    if length < 0:
        return "the data set repeats without end" if length == tf.data.INFINITE_CARDINALITY else "its size is unknown"
    if length < 2:
        return "the data set has one batch"
    if length > most:
        return f"an epoch has {length} batches, and a cache helps from the second epoch on"
    element = _element_bytes(dataset)
    if element is None:
        return "the size of its elements is unknown"
    if 2 * element * length > memory:
        return f"the data set has {element * length / 1e9:.1f} GB, more than half of the available memory"
    return ""


def _stateful_operations(dataset: Any) -> Iterator[str]:
    """Yield the operations in the functions of a transformation whose results may differ in each epoch."""
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        bodies = [graph.node, *(nested.node_def for nested in graph.library.function)]
        for kind in dict.fromkeys(node.op for nodes in bodies for node in nodes):
            if kind not in _REPEATABLE and _is_stateful(op_def_registry.get(kind)):
                yield kind


def _is_stateful(definition: Any) -> bool:
    """Return whether results of an operation may depend on more than its inputs. Those of calls depend on the body."""
    return definition is not None and definition.is_stateful and all(part.type != "func" for part in definition.attr)


def _element_bytes(dataset: Any) -> int | None:
    """Return the size of the first element; None: it has sparse, ragged or text tensors."""
    values: list[Any] = tf.nest.flatten(next(iter(dataset)))
    if not all(isinstance(value, tf.Tensor) and value.dtype.size for value in values):
        return None
    if any(value.dtype == tf.string for value in values):
        return None
    return sum(int(value.dtype.size) * int(math.prod(value.shape)) for value in values)


def available_bytes() -> int:
    """Return the memory of the machine that is available without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)
