"""Advice rules about the training loop: copies, launches, the CPU and ranks."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.advice import cpu
from annot.analyze.advice.data_loading import data_loading
from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.bottlenecks import step_batches
from annot.analyze.part_names import GPU_PARTS
from annot.analyze.step_parts import WORK
from annot.attribution import UNATTRIBUTED
from annot.attribution.host_times import known
from annot.attribution.step_table import step_statistics

__all__ = ["RULES"]

_SHORT_NS = 10_000
"""Kernels with a shorter mean duration take about as long to launch as to run."""


def synchronous_copies(facts: Facts) -> Advice | None:
    """Synchronising calls after which the device is idle."""
    share = facts.idle["synchronisation"]
    if not facts.on_device or share < 0.05:
        return None
    return Advice(
        "synchronous_copies",
        "Avoid waiting for the GPU inside a step: remove .item(), .cpu() and print(tensor), and copy asynchronously.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['synchronisation'].name}, {_often(facts, 'synchronisation')}",
        "x = x.to(device, non_blocking=True)      # from pinned memory\nif step % 100 == 0:\n    print(loss.item())",
        share,
    )


def _often(facts: Facts, cause: str) -> str:
    """How often the calls of a cause occur, and which call takes the most time."""
    rows = facts.idle_calls.filter(pl.col("cause") == cause)
    if rows.is_empty():
        return "in unnamed calls"
    count, steps = int(rows["calls"].sum()), facts.steps.height
    often = f"{count / steps:,.1f} times per step" if steps else f"{count:,} times"
    return f"{often}, mostly in {rows['name'][0]}"


def allocations(facts: Facts) -> Advice | None:
    """GPU memory that is allocated and freed during the steps."""
    share = facts.idle["allocation"]
    if not facts.on_device or share < 0.03:
        return None
    return Advice(
        "allocations",
        "Keep GPU memory allocated between steps: let the framework cache it.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['allocation'].name}, {_often(facts, 'allocation')}",
        "for name in ('PYTORCH_NO_CUDA_MEMORY_CACHING', 'PYTORCH_NO_HIP_MEMORY_CACHING'):\n"
        "    os.environ.pop(name, None)           # before torch is imported\n"
        "# and remove torch.cuda.empty_cache() from the loop",
        share,
    )


def pageable_copies(facts: Facts) -> Advice | None:
    """Host-to-device copies that do not overlap with kernels."""
    share = min(facts.share(pl.col("name") == "(copy HtoD)"), facts.shares["copies"])
    if not known(facts.attribution.meta) or share < 0.03:
        return None
    return Advice(
        "pageable_copies",
        "Copy batches from pinned memory while the previous step still runs.",
        f"{share:.0%} of {facts.time} is spent in host-to-device copies that do not overlap with kernels",
        "DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        share,
    )


def cuda_graphs(facts: Facts) -> Advice | None:
    """A launch-bound run whose steps launch the same kernels, as a CUDA graph requires."""
    share = facts.idle["launch"]
    if share < 0.1 or not _fits_a_graph(facts):
        return None
    kernels = facts.steps["kernels"]
    same = "each step runs the same" if kernels.len() > 1 else "the run has"
    count = facts.calls(pl.col("kernel"))
    return Advice(
        "cuda_graphs",
        "Launch each step as a CUDA graph: the run is launch-bound.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and {same} "
        f"{count:,.0f} kernels, {facts.mean_kernel_ns / 1000:.1f} µs on average",
        'model = torch.compile(model, mode="reduce-overhead")',
        share, facts.idle_layers,
    )  # fmt: skip


def _fits_a_graph(facts: Facts) -> bool:
    """Whether the steps launch the same short kernels, without CUDA graphs."""
    kernels = facts.steps["kernels"]
    alike = kernels.len() < 2 or kernels.min() == kernels.max()
    enough = facts.calls(pl.col("kernel")) >= 10
    return facts.on_device and alike and enough and facts.mean_kernel_ns <= 5 * _SHORT_NS and not facts.graphs


def host_bound(facts: Facts) -> Advice | None:
    """A CPU-bound run: the GPU is idle while the CPU runs Python or framework code."""
    host, launch = facts.idle["host"], facts.idle["launch"]
    share = host if _fits_a_graph(facts) else host + launch
    if not facts.on_device or not known(facts.attribution.meta) or share < 0.1:
        return None
    count, mean = facts.calls(pl.col("kernel")), facts.mean_kernel_ns / 1000
    gaps = [f"{host:.0%} of {facts.time} is spent {GPU_PARTS['host'].name}"]
    if share > host and launch >= 0.01:
        waits = f"{launch:.0%} of it {GPU_PARTS['launch'].name} of {count:,.0f} kernels, {mean:.1f} µs on average"
        gaps.append(waits)
    return Advice(
        "host_bound",
        "Reduce the CPU time between launches: the run is CPU-bound.",
        ", and ".join(gaps),
        f"annot report {facts.source} --by bottleneck\nmodel = torch.compile(model)",
        share, facts.idle_layers,
    )  # fmt: skip


def batch_size(facts: Facts) -> Advice | None:
    """Small batches, whose kernels take longer to launch than to run."""
    sizes = [size for _, size in step_batches(facts.attribution)]
    share = facts.idle["launch"]
    if not sizes or share < 0.1 or not 0 < facts.mean_kernel_ns < _SHORT_NS:
        return None
    size = max(set(sizes), key=sizes.count)
    return Advice(
        "batch_size",
        "Double the batch size while it fits into memory, and scale the learning rate with it.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['launch'].name}, and kernels take "
        f"{facts.mean_kernel_ns / 1000:.1f} µs on average at batch size {size}",
        f"DataLoader(dataset, batch_size={max(8, -(-size // 8) * 8) * 2})",
        share,
    )


def stragglers(facts: Facts) -> Advice | None:
    """A device that is busy for much longer than the others of the run."""
    busy = facts.step_time.filter(pl.col("share").is_in(WORK)).group_by("process", "device")
    rows = busy.agg(pl.col("ns").sum().alias("busy_ns"), pl.col("wall_ns").first()).filter(pl.col("busy_ns") > 0)
    times = rows["busy_ns"].sort().to_list()
    if not facts.on_device or len(times) < 2 or times[-1] < 1.2 * (median := times[(len(times) - 1) // 2]):
        return None
    process, device, longest, wall = rows.sort("busy_ns", descending=True).row(0)
    return Advice(
        "stragglers",
        "Find out why one GPU is busy for longer than the others: uneven batches, a slow CPU or a slow GPU.",
        f"GPU {device} of process {process} is busy {longest / median:.2f} times as long as the median of "
        f"{len(times)} GPUs",
        f"annot report {facts.source} --by-process",
        (longest - median) / wall,
    )


def collectives(facts: Facts) -> Advice | None:
    """Exposed communication: ranks exchange data or wait for the slowest rank."""
    if not facts.on_device:
        return cpu.waiting_for_ranks(facts)
    share = facts.shares["collectives"]
    if share < 0.05:
        return None
    return Advice(
        "collectives",
        "Find the rank that the others wait for, and overlap communication with the backward pass.",
        f"{share:.0%} of {facts.time} is {GPU_PARTS['collectives'].name}, including the wait for the slowest rank",
        f"{facts.ranks_command}\nDistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)",
        share,
    )


def uneven_steps(facts: Facts) -> Advice | None:
    """Step times that vary so much that their mean is misleading."""
    times = step_statistics(facts.all_steps) if known(facts.attribution.meta) else None
    if times is None or facts.steps.height < 8 or not times["median"] or times["iqr"] < 0.2 * times["median"]:
        return None
    lengths = facts.steps["host_ns"].sort()
    longer = (lengths - lengths[lengths.len() // 4]).clip(0).sum()
    return Advice(
        "uneven_steps",
        "Find out why step times vary, or compare steps of similar length only.",
        f"The interquartile range of step time is {times['iqr'] / times['median']:.0%} of the median",
        f"annot report {facts.source} --by step",
        float(longer / lengths.sum()),
    )


def coverage(facts: Facts) -> Advice | None:
    """GPU time that was launched outside any range."""
    nodes = facts.attribution.nodes.hstack(facts.attribution.forest.layers_of_nodes())
    lost, whole = nodes.filter(pl.col("layer") == UNATTRIBUTED), int(nodes["gpu_self_ns"].sum())
    if not whole or lost["gpu_self_ns"].sum() < 0.3 * whole:
        return None
    share, count = int(lost["gpu_self_ns"].sum()) / whole, int((lost["kernels"] + lost["copies"]).sum())
    return Advice(
        "coverage",
        "Wrap training in ranges, so that GPU time is attributed to layers.",
        f"{share:.0%} of GPU time, {count:,} kernels and copies, was launched outside any range",
        "with annot.emit_ranges(model):\n    train()",
        0.0,
    )


RULES: Final[tuple[Rule, ...]] = (
    data_loading,
    synchronous_copies,
    pageable_copies,
    allocations,
    cuda_graphs,
    host_bound,
    batch_size,
    stragglers,
    collectives,
    uneven_steps,
    coverage,
)
