"""Advice about the loop around the model: data, copies, launches, the host, ranks."""

from __future__ import annotations

import shlex

import polars as pl

from annot.analyze.advice.facts import Advice, Facts
from annot.analyze.bottleneck import step_batches
from annot.analyze.step_parts import WORK
from annot.correlate import UNATTRIBUTED
from annot.correlate.host_times import known
from annot.correlate.step_rows import step_statistics

__all__ = [
    "allocations",
    "batch_size",
    "collectives",
    "coverage",
    "cuda_graphs",
    "data_loading",
    "host_bound",
    "pageable_copies",
    "stragglers",
    "synchronous_copies",
    "uneven_steps",
]

_SHORT_NS = 10_000
"""Kernels shorter than this, in the mean, cost about as much to launch as to run."""


def data_loading(facts: Facts) -> Advice | None:
    """Steps in which devices, or on a CPU everything, wait for data."""
    share = facts.shares["data"]
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
    """Calls that wait for a device, which has nothing to do at their end."""
    share = facts.idle["synchronisation"]
    if not facts.on_device or share < 0.05:
        return None
    return Advice(
        "synchronous_copies",
        "Do not wait for the device inside a step: no .item(), .cpu() or print of a tensor, and copies that overlap.",
        f"{share:.0%} of the time of the steps devices have nothing to do because the host waits for them, "
        f"{_often(facts, 'synchronisation')}",
        "x = x.to(device, non_blocking=True)      # from pinned memory\nif step % 100 == 0:\n    print(loss.item())",
        share,
    )


def _often(facts: Facts, cause: str) -> str:
    """How often, and in which call most of the time, the host does what keeps devices idle."""
    rows = facts.idle_calls.filter(pl.col("cause") == cause)
    if rows.is_empty():
        return "in calls whose names the profile does not tell"
    count, steps = int(rows["calls"].sum()), facts.steps.height
    often = f"{count / steps:,.1f} times a step" if steps else f"{count:,} times"
    return f"{often}, most of it in {rows['name'][0]}"


def allocations(facts: Facts) -> Advice | None:
    """Memory of devices that is allocated and freed in the steps."""
    share = facts.idle["allocation"]
    if not facts.on_device or share < 0.03:
        return None
    return Advice(
        "allocations",
        "Keep memory of the device instead of allocating and freeing it in each step: let the framework cache it.",
        f"{share:.0%} of the time of the steps devices have nothing to do while the host allocates or frees their "
        f"memory, {_often(facts, 'allocation')}",
        "for name in ('PYTORCH_NO_CUDA_MEMORY_CACHING', 'PYTORCH_NO_HIP_MEMORY_CACHING'):\n"
        "    os.environ.pop(name, None)           # before torch is imported\n"
        "# and no torch.cuda.empty_cache() in the loop",
        share,
    )


def pageable_copies(facts: Facts) -> Advice | None:
    """Copies to a device in the steps during which it computes nothing."""
    share = min(facts.share(pl.col("name") == "(copy HtoD)"), facts.shares["copies"])
    if not known(facts.attribution.meta) or share < 0.03:
        return None
    return Advice(
        "pageable_copies",
        "Copy batches from pinned memory while the step before still runs.",
        f"copies to the device during which it computes nothing take {share:.0%} of the time of the steps",
        "DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        share,
    )


def cuda_graphs(facts: Facts) -> Advice | None:
    """A device that waits for launches, in steps that are all alike, as a graph must be."""
    share = facts.idle["launch"]
    if share < 0.1 or not _fits_a_graph(facts):
        return None
    kernels = facts.steps["kernels"]
    same = "each step has the same" if kernels.len() > 1 else "the run has"
    count = facts.calls(pl.col("kernel"))
    return Advice(
        "cuda_graphs",
        "Launch each step as a CUDA graph: it is bound by launches.",
        f"{share:.0%} of the time of the steps devices wait for the next launch, and {same} {count:,.0f} kernels of "
        f"{facts.mean_kernel_ns / 1000:.1f} µs",
        'model = torch.compile(model, mode="reduce-overhead")',
        share, facts.idle_layers,
    )  # fmt: skip


def _fits_a_graph(facts: Facts) -> bool:
    """Whether steps have the same kernels, short ones, and are not launched as graphs yet."""
    kernels = facts.steps["kernels"]
    alike = kernels.len() < 2 or kernels.min() == kernels.max()
    enough = facts.calls(pl.col("kernel")) >= 10
    return facts.on_device and alike and enough and facts.mean_kernel_ns <= 5 * _SHORT_NS and not facts.graphs


def host_bound(facts: Facts) -> Advice | None:
    """A device that has nothing to do because the host is busy with something else than launching."""
    python, launch = facts.idle["python"], facts.idle["launch"]
    share = python if _fits_a_graph(facts) else python + launch
    if not facts.on_device or not known(facts.attribution.meta) or share < 0.1:
        return None
    source = shlex.quote(str(facts.attribution.meta.get("source", "PROFILE")))
    return Advice(
        "host_bound",
        "Give devices work ahead of time: they wait for what Python and the framework do between launches.",
        f"{share:.0%} of the time of the steps devices have nothing to do, and the host waits neither for them nor for "
        f"data: {', '.join(_gaps(facts, share > python))}",
        f"annot report {source} --by bottleneck\nmodel = torch.compile(model)",
        share, facts.idle_layers,
    )  # fmt: skip


def _gaps(facts: Facts, short: bool) -> list[str]:
    """What the host does between launches, by how long the gaps are."""
    python, launch = facts.idle["python"], facts.idle["launch"]
    count, mean = facts.calls(pl.col("kernel")), facts.mean_kernel_ns / 1000
    said = [f"{python:.0%} in Python, more than a millisecond at a time"]
    if short and launch >= 0.01:
        said.insert(0, f"{launch:.0%} between launches of {count:,.0f} kernels of {mean:.1f} µs")
    return said


def batch_size(facts: Facts) -> Advice | None:
    """Kernels so short that they cost more to launch than to run."""
    sizes = [size for _, size in step_batches(facts.attribution)]
    share = facts.idle["launch"]
    if not sizes or share < 0.1 or not 0 < facts.mean_kernel_ns < _SHORT_NS:
        return None
    size = max(set(sizes), key=sizes.count)
    return Advice(
        "batch_size",
        "Take larger batches, by powers of 2 as far as memory allows, and the learning rate with them.",
        f"kernels of batches of {size} run {facts.mean_kernel_ns / 1000:.1f} µs, and {share:.0%} of the time of the "
        "steps devices wait for the next launch",
        f"DataLoader(dataset, batch_size={max(8, -(-size // 8) * 8) * 2})",
        share,
    )


def stragglers(facts: Facts) -> Advice | None:
    """Devices of one run of which one is busy for much longer than the others."""
    busy = facts.step_time.filter(pl.col("share").is_in(WORK)).group_by("process", "device")
    rows = busy.agg(pl.col("ns").sum().alias("busy_ns"), pl.col("wall_ns").first()).filter(pl.col("busy_ns") > 0)
    times = rows["busy_ns"].sort().to_list()
    if len(times) < 2 or times[-1] < 1.2 * (median := times[(len(times) - 1) // 2]):
        return None
    process, device, longest, wall = rows.sort("busy_ns", descending=True).row(0)
    source = shlex.quote(str(facts.attribution.meta.get("source", "PROFILE")))
    return Advice(
        "stragglers",
        "Find out why one device has more to do than the others: batches of unequal length, a slow host or device.",
        f"device {device} of process {process} is busy {longest / median:.2f} times as long as the median of "
        f"{len(times)} devices",
        f"annot report {source} --by-process",
        (longest - median) / wall,
    )


def collectives(facts: Facts) -> Advice | None:
    """Much time in which ranks do nothing but talk to each other, or wait for the slowest."""
    share = facts.shares["collectives"]
    if share < 0.05:
        return None
    what = "devices compute nothing beside" if facts.on_device else "the process does nothing but"
    return Advice(
        "collectives",
        "See which rank the others wait for, and let communication overlap with the backward pass.",
        f"{share:.0%} of the time of the steps {what} collectives, which wait for the slowest rank",
        "annot report 'run_rank*.sqlite'\n"
        "DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)",
        share,
    )


def uneven_steps(facts: Facts) -> Advice | None:
    """Steps whose lengths differ so much that means say little."""
    spread = step_statistics(facts.all_steps) if known(facts.attribution.meta) else None
    if spread is None or facts.steps.height < 8 or not spread["median"] or spread["iqr"] < 0.2 * spread["median"]:
        return None
    lengths = facts.steps["host_ns"].sort()
    longer = (lengths - lengths[lengths.len() // 4]).clip(0).sum()
    source = shlex.quote(str(facts.attribution.meta.get("source", "PROFILE")))
    return Advice(
        "uneven_steps",
        "Look at steps that are alike: those here differ.",
        f"half of the steps differ by more than {spread['iqr'] / spread['median']:.0%} of the median",
        f"annot report {source} --by step",
        float(longer / lengths.sum()),
    )


def coverage(facts: Facts) -> Advice | None:
    """Much device time that lies in no range."""
    nodes, lost = facts.attribution.nodes, _lost(facts)
    whole = int(nodes["gpu_self_ns"].sum())
    if not whole or lost["gpu_self_ns"].sum() < 0.3 * whole:
        return None
    share, pieces = int(lost["gpu_self_ns"].sum()) / whole, int((lost["kernels"] + lost["copies"]).sum())
    return Advice(
        "coverage",
        "Put ranges around the model, so that its layers can be told apart.",
        f"{share:.0%} of the device time, {pieces:,} kernels and copies, lie in no range",
        "with annot.emit_ranges(model):\n    train()",
        0.0,
    )


def _lost(facts: Facts) -> pl.DataFrame:
    """The nodes of what belongs to no range."""
    names, keys = facts.attribution.forest.keys.names, facts.attribution.forest.nodes.keys
    outside = pl.Series([names[key][0] == UNATTRIBUTED for key in keys], dtype=pl.Boolean)
    return facts.attribution.nodes.filter(outside)
