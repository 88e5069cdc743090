"""Operation, size and process group of collectives, from the texts of their ranges and the names of their kernels."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Final

import polars as pl

from annot.analyze.work.call import UncountableError, item_size
from annot.labels import tag

__all__ = ["COLLECTIVE", "UNNAMED", "Message", "bus_factor", "message_of", "messages", "operations"]

COLLECTIVE: Final = (pl.col("phase") == "collective") | pl.col("layer").str.contains(
    r"^(?:c10d::|nccl:|gloo:|mpi:|nccl[A-Z]|record_param_comms$)"
)
"""Whether a layer and phase are the range of a collective itself: by annot, PyTorch or NCCL."""
UNNAMED: Final = "collective"
"""Operation of a collective whose kernel and ranges do not name it."""
_KERNEL: Final = (
    r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather|scatter|send|recv)"
)
_NAMES: Final = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}  # fmt: skip
_MESSAGE: Final = {
    "operation": pl.String, "group": pl.String, "ranks": pl.Int64, "bytes": pl.Int64, "factor": pl.Float64,
}  # fmt: skip
_SPREAD: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Message:
    """What the label of a collective says.

    Args:
        operation: name of the operation, such as ``all_reduce``.
        group: name of the process group; empty: unknown.
        ranks: number of ranks in the group; None: unknown.
        bytes: size of the message; None: unknown.
    """

    operation: str
    group: str = ""
    ranks: int | None = None
    bytes: int | None = None


def message_of(text: str) -> Message | None:
    """Return the message of a label of annot, or of a call that Kineto recorded; None for other texts.

    Example:
        >>> message_of("Collective all_reduce@default_pg:8 [1024]f32 |coll")
        Message(operation='all_reduce', group='default_pg', ranks=8, bytes=4096)
    """
    tagged = tag.parse(text)
    if tagged is None or tagged.phase != "collective":
        return None
    operation, _, group = tagged.module.partition("@")
    name, _, ranks = group.rpartition(":")
    for joined, words in _NAMES.items():  # "_allgather_base" of PyTorch's C++
        operation = operation.removeprefix("_").replace(joined, words)
    return Message(operation, name, int(ranks) if ranks.isdecimal() else None, _bytes(tagged))


def _bytes(tagged: tag.Tag) -> int | None:
    """The size of all tensors; None if a tensor, a size or a dtype is unknown."""
    tensors = tagged.tensors
    shapes = [[size for size in tensor.shape if size is not None] for tensor in tensors]
    if tagged.omitted or not shapes or any(None in tensor.shape for tensor in tensors):
        return None
    try:
        return sum(math.prod(shape) * item_size(tensor.dtype) for shape, tensor in zip(shapes, tensors, strict=True))
    except UncountableError:
        return None


def bus_factor(operation: str, ranks: int | None) -> float | None:
    """Return the ratio of bus bandwidth to bytes per second; None: the operation or the group is unknown.

    The factors are those of NCCL's tests (``doc/PERFORMANCE.md`` of NVIDIA/nccl-tests). With n ranks, the factor is
    2(n-1)/n for all-reduce; (n-1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter; and 1 for
    broadcast, reduce, send and receive. The size of a message is its larger side: the output of an all-gather, the
    input of a reduce-scatter.

    Example:
        >>> bus_factor("all_reduce", 8), bus_factor("all_gather_into_tensor", 8), bus_factor("broadcast", 8)
        (1.75, 0.875, 1.0)
    """
    if ranks is None or ranks < 2:
        return None
    factor = (ranks - 1) / ranks
    if operation.startswith("all_reduce"):
        return 2 * factor
    if operation.startswith(_SPREAD):
        return factor
    return 1.0 if operation.startswith(("broadcast", "reduce", "send", "recv")) else None


def messages(texts: pl.Series, labels: pl.Series) -> pl.DataFrame:
    """Return operation, group, ranks, bytes and factor (see `bus_factor`) of collectives; null: unknown.

    Args:
        texts: the text of each label, or of its call.
        labels: the label of each collective, a row in `texts` or null.
    """
    distinct = labels.drop_nulls().unique()
    parsed = [(label, message_of(text)) for label, text in zip(distinct, texts.gather(distinct), strict=True)]
    rows = [
        (label, *astuple(message), bus_factor(message.operation, message.ranks))
        for label, message in parsed
        if message is not None
    ]
    table = pl.DataFrame(rows, schema={"label": labels.dtype, **_MESSAGE}, orient="row")
    return labels.to_frame("label").join(table, on="label", how="left", maintain_order="left").drop("label")


def operations(names: pl.Series) -> pl.Series:
    """Return the operation of each kernel name, such as ``all_reduce``; ``collective`` if the name does not show it.

    Example:
        >>> operations(pl.Series(["ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "rcclGenericKernel"])).to_list()
        ['all_reduce', 'collective']
    """
    words = names.cast(pl.String).str.extract(_KERNEL).str.to_lowercase().str.replace_all("_", "")
    return words.replace(_NAMES).fill_null(UNNAMED)
