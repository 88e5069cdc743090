"""Advice about the loop around the model: data, copies, launches, ranks."""

from __future__ import annotations

import shlex

import polars as pl

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.bottleneck import step_batches
from annot.analyze.pieces import pieces
from annot.correlate import UNATTRIBUTED
from annot.correlate.host_times import known
from annot.correlate.step_rows import step_statistics

__all__ = [
    "batch_size",
    "collectives",
    "coverage",
    "cuda_graphs",
    "data_loading",
    "pageable_copies",
    "stragglers",
    "synchronous_copies",
    "uneven_steps",
]

_SHORT_NS = 10_000
"""Kernels shorter than this, in the mean, cost about as much to launch as to run."""


def data_loading(facts: Facts) -> Advice | None:
    """Steps that wait for data."""
    waited, length = (int(facts.steps[name].sum() or 0) for name in ("data_ns", "host_ns"))
    share = waited / (waited + length) if waited else 0.0
    if share < 0.1:
        return None
    return Advice(
        "data_loading",
        "Load data with workers, ahead of the step that needs it.",
        f"{share:.0%} of the time of {facts.steps.height:,} steps is waiting for data",
        "DataLoader(dataset, num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4)",
        share,
    )


def synchronous_copies(facts: Facts) -> Advice | None:
    """Calls that wait for a device, which then has nothing to do."""
    count, waited = facts.waits
    whole = int(facts.steps["host_ns"].sum() or 0) or int(facts.attribution.nodes["host_self_ns"].sum())
    share = min(waited / whole, 1.0) if whole else 0.0
    if not known(facts.attribution.meta) or share < 0.1 or facts.idle_share < 0.05:
        return None
    steps = facts.steps.height
    often = f"{count / steps:,.1f} times a step" if steps else f"{count:,} times"
    return Advice(
        "synchronous_copies",
        "Do not wait for the device inside a step: no .item(), .cpu() or print of a tensor, and copies that overlap.",
        f"the host waits {often} for the device, {share:.0%} of the time, and the device has nothing to do for "
        f"{facts.idle_share:.0%} of its time",
        "x = x.to(device, non_blocking=True)      # from pinned memory\nif step % 100 == 0:\n    print(loss.item())",
        share,
    )


def pageable_copies(facts: Facts) -> Advice | None:
    """Copies to a device during which it computes nothing."""
    if not known(facts.attribution.meta) or not facts.gpu_ns:
        return None
    if facts.work.filter(pl.col("name") == "(copy HtoD)").is_empty():
        return None
    work = pieces(facts.attribution, ("process", "device", "start", "end", "kernel", "name"))
    work = work.filter(pl.col("kernel") | (pl.col("name") == "(copy HtoD)")).drop_nulls(["start", "end"]).sort("start")
    # A kernel that began before a copy, and the next one after it, tell whether anything ran beside it.
    done = pl.when("kernel").then("end").cum_max().forward_fill().over("process", "device").fill_null(0)
    begins = pl.when("kernel").then("start").backward_fill().over("process", "device")
    exposed = pl.min_horizontal("end", begins) - pl.max_horizontal("start", done)
    alone = work.select(pl.when(~pl.col("kernel")).then(exposed.clip(0)).sum()).item()
    share = alone / facts.gpu_ns
    if share < 0.05:
        return None
    return Advice(
        "pageable_copies",
        "Copy batches from pinned memory while the step before still runs.",
        f"copies to the device during which it computes nothing take {share:.0%} of the device time",
        "DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        min(share, 1.0),
    )


def cuda_graphs(facts: Facts) -> Advice | None:
    """A device that waits for launches, in steps that are all alike, as a graph must be."""
    kernels = facts.steps["kernels"]
    alike = kernels.len() > 0 and kernels.min() == kernels.max()
    if facts.idle_share < 0.3 or (kernels.len() > 1 and not alike) or facts.mean_kernel_ns > 5 * _SHORT_NS:
        return None
    same = f", and each step has the same {kernels[0]:,}" if kernels.len() > 1 else " between"
    return Advice(
        "cuda_graphs",
        "Launch each step as a CUDA graph: it is bound by launches.",
        f"devices wait for launches {facts.idle_share:.0%} of their time{same} kernels of "
        f"{facts.mean_kernel_ns / 1000:.1f} µs",
        'model = torch.compile(model, mode="reduce-overhead")',
        facts.idle_share, facts.idle_layers,
    )  # fmt: skip


def batch_size(facts: Facts) -> Advice | None:
    """Kernels so short that they cost more to launch than to run."""
    sizes = [size for _, size in step_batches(facts.attribution)]
    if not sizes or facts.idle_share < 0.3 or not 0 < facts.mean_kernel_ns < _SHORT_NS:
        return None
    size = max(set(sizes), key=sizes.count)
    return Advice(
        "batch_size",
        "Take larger batches, by powers of 2 as far as memory allows, and the learning rate with them.",
        f"kernels of batches of {size} run {facts.mean_kernel_ns / 1000:.1f} µs, and devices wait for launches "
        f"{facts.idle_share:.0%} of their time",
        f"DataLoader(dataset, batch_size={max(8, -(-size // 8) * 8) * 2})",
        facts.idle_share,
    )


def stragglers(facts: Facts) -> Advice | None:
    """Devices of one run of which one is busy for much longer than the others."""
    busy = facts.attribution.device_busy.select("process", "device", "busy_ns").filter(pl.col("busy_ns") > 0)
    times = busy["busy_ns"].sort().to_list()
    if len(times) < 2 or times[-1] < 1.2 * (median := times[(len(times) - 1) // 2]):
        return None
    process, device, longest = busy.sort("busy_ns", descending=True).row(0)
    source = shlex.quote(str(facts.attribution.meta.get("source", "PROFILE")))
    return Advice(
        "stragglers",
        "Find out why one device has more to do than the others: batches of unequal length, a slow host or device.",
        f"device {device} of process {process} is busy {longest / median:.2f} times as long as the median of "
        f"{len(times)} devices",
        f"annot report {source} --by-process",
        1 - median / longest,
    )


def collectives(facts: Facts) -> Advice | None:
    """Much device time in which ranks talk to each other, or wait for the slowest."""
    share = facts.share(pl.col("kind") == "collective")
    if share < 0.2:
        return None
    return Advice(
        "collectives",
        "See which rank the others wait for, and let communication overlap with the backward pass.",
        f"{share:.0%} of the device time are collectives, which wait for the slowest rank",
        "annot report 'run_rank*.sqlite'\n"
        "DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)",
        share,
    )


def uneven_steps(facts: Facts) -> Advice | None:
    """Steps whose lengths differ so much that means say little."""
    spread = step_statistics(facts.all_steps) if known(facts.attribution.meta) else None
    if spread is None or facts.steps.height < 8 or not spread["median"] or spread["iqr"] < 0.2 * spread["median"]:
        return None
    share = spread["iqr"] / spread["median"]
    source = shlex.quote(str(facts.attribution.meta.get("source", "PROFILE")))
    return Advice(
        "uneven_steps",
        "Look at steps that are alike: those here differ.",
        f"half of the steps differ by more than {share:.0%} of the median",
        f"annot report {source} --by step",
        min(share, 1.0),
    )


def coverage(facts: Facts) -> Advice | None:
    """Much device time that lies in no range."""
    lost = facts.work.filter(pl.col("layer") == UNATTRIBUTED)
    share = facts.share(pl.col("layer") == UNATTRIBUTED)
    if share < 0.3:
        return None
    kernels = int(lost["calls"].sum())
    return Advice(
        "coverage",
        "Put ranges around the model, so that its layers can be told apart.",
        f"{share:.0%} of the device time, {kernels:,} kernels and copies, lie in no range",
        "with annot.emit_ranges(model):\n    train()",
        share,
    )
