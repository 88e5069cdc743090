"""Advice rule about communication between ranks, by the operation that takes the most exposed time."""

from __future__ import annotations

from typing import Final, TypeAlias

import polars as pl

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.collectives import Collectives, collectives_of
from annot.analyze.messages import UNNAMED
from annot.analyze.part_names import GPU_PARTS

__all__ = ["collectives"]

_LEAST: Final = 0.05
"""Share of the step from which exposed communication is worth a change."""
_LEAST_NAMED: Final = 0.01
"""Share of the step from which the evidence names an operation."""
_MOST_NAMED: Final = 3

_RANK: Final = "Find the rank that the others wait for"
_GRADIENTS: Final = (
    f"{_RANK}, and overlap the all-reduce of gradients with the backward pass.",
    "DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)\n"
    "with model.no_sync():      # accumulate the gradients of several batches",
)
_TENSORS: Final = (
    f"{_RANK}, and all-reduce less: split layers among fewer ranks, or replicate small layers.",
    "dist.all_reduce(x, async_op=True)      # and wait where the result is used",
)
_SHARDS: Final = (
    f"{_RANK}, and gather the parameters of the next layer while this layer computes.",
    "FullyShardedDataParallel(model, forward_prefetch=True)\n"
    "fully_shard(model, reshard_after_forward=False)      # if the parameters fit: backward gathers nothing",
)
_SPLITS: Final = (
    f"{_RANK}, and gather less: replicate small layers, or split layers among fewer ranks.",
    "dist.all_gather_into_tensor(out, x, async_op=True)      # and wait where the result is used",
)
_EXCHANGE: Final = (
    "Give all ranks the same amount to exchange, and compute something else during the all-to-all.",
    "work = dist.all_to_all_single(received, sent, async_op=True)\n"
    "...      # what does not need the result, such as the dense layers\n"
    "work.wait()",
)
_BUFFERS: Final = (
    f"{_RANK}, and broadcast less: DistributedDataParallel sends all buffers before each forward.",
    "DistributedDataParallel(model, broadcast_buffers=False)      # if ranks may differ in their buffers",
)
_STAGES: Final = (
    "Find the late rank, and let transfers overlap with compute: NCCL runs pipeline stages and all-to-all as "
    "send and receive.",
    "Schedule1F1B(stage, n_microbatches=16)      # more micro-batches: stages wait less for each other",
)
_ANY: Final = (f"{_RANK}, and communicate less often.", "")

_Remedy: TypeAlias = tuple[str, str]
_BY_OPERATION: Final[dict[str, dict[bool | None, _Remedy]]] = {
    "all_reduce": {True: _GRADIENTS, False: _TENSORS},
    "all_gather": {True: _SHARDS, False: _SPLITS},
    "reduce_scatter": {True: _SHARDS, False: _SPLITS},
    "all_to_all": dict.fromkeys((True, False, None), _EXCHANGE),
    "send": dict.fromkeys((True, False, None), _STAGES),
    "recv": dict.fromkeys((True, False, None), _STAGES),
}
"""Advice and code by the beginning of the operation, and by whether it belongs to a backward pass (None: unknown)."""


def collectives(facts: Facts) -> Advice | None:
    """Exposed communication: ranks exchange data or wait for the slowest rank.

    Evidence: collectives on a device that also computes, or ranges of collectives in processes without a GPU, with at
    least 5 % of the step time while nothing else runs; the operation with the most exposed time, from its message, its
    range or its kernel; and whether this operation belongs to a backward pass.
    """
    share = facts.shares["collectives"]
    computes = facts.on_cpu or (facts.on_device and facts.shares["kernels"] + facts.shares["tensor_cores"] > 0)
    if share < _LEAST or not computes:
        return None
    calls = collectives_of(facts.attribution)
    times = _exposed(calls, facts.wall_ns)
    longest = next(iter(times), UNNAMED)
    advice, code = _remedy(facts, calls, longest)
    named = [f"{ratio:.0%} {name}" for name, ratio in times.items() if ratio >= _LEAST_NAMED and name != UNNAMED]
    several = f"collectives ({', '.join(named[:_MOST_NAMED])})" if len(named) > 1 else ""
    operations = several or ("collectives" if longest == UNNAMED else longest)
    spent = (
        f"in {operations}, including the wait for the slowest rank"
        if facts.on_device
        else f"in {_library(facts, calls)}{operations}{_backward_share(facts, calls)}"
    )
    return Advice(
        "collectives",
        advice,
        f"{share:.0%} of {facts.time} is {GPU_PARTS['collectives'].name} {spent}",
        "\n".join(filter(None, (f"{facts.ranks_command} --columns communication      # which rank is late", code))),
        share,
    )


def _exposed(calls: Collectives, wall: int) -> dict[str, float]:
    """Return the share of step time (0 to 1) in which each operation is exposed, the longest first."""
    rows = calls.table.with_row_index("row").select(pl.col("row").cast(pl.Int64), "operation")
    waits = calls.exposed.join(rows, "row").with_columns(pl.col("operation").str.strip_suffix(".wait"))
    sums = waits.group_by("operation").agg(pl.col("ns").sum()).sort("ns", "operation", descending=[True, False])
    return {operation: ns / wall for operation, ns in sums.iter_rows() if ns}


def _remedy(facts: Facts, calls: Collectives, operation: str) -> _Remedy:
    """Return the advice and the code for the operation that takes the most exposed time."""
    rows = calls.table.filter(pl.col("operation").str.starts_with(operation), pl.col("wall_ns") > 0)
    in_forward = rows.height > 0 and bool((rows["phase"] == "forward").all())
    if operation.startswith("broadcast"):  # a training run sends buffers in its forward pass
        return _BUFFERS if facts.has_backward and in_forward else _ANY
    of_backward = None if facts.has_backward is None else facts.has_backward and not in_forward
    remedies = _BY_OPERATION.items()
    of_operation = next((ways for name, ways in remedies if operation.startswith(name)), dict[bool | None, _Remedy]())
    return of_operation.get(of_backward, _ANY)


def _library(facts: Facts, calls: Collectives) -> str:
    """Return the backend of processes without a GPU and a space, such as ``gloo ``; empty: unknown."""
    gloo = "gloo" if calls.table["layer"].str.starts_with("gloo:").any() else ""
    return f"{facts.cpu.get('backend', gloo)} ".lstrip()


def _backward_share(facts: Facts, calls: Collectives) -> str:
    """Return the share of the backward pass that communication takes in processes without a GPU."""
    waits = int(calls.exposed.filter(pl.col("phase") == "backward")["ns"].sum())
    backward = waits + facts.shares["backward"] * facts.wall_ns
    return f", {waits / backward:.0%} of the backward pass" if waits >= 0.01 * backward > 0 else ""
