"""Advice rules about the training loop: copies, memory, waits for the GPU and ranks."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from annot.analyze.advice import cpu
from annot.analyze.advice.communication import collectives
from annot.analyze.advice.data_loading import data_loading
from annot.analyze.advice.facts import Advice, Facts, Rule
from annot.analyze.advice.launches import cuda_graphs, host_bound
from annot.analyze.part_names import CPU_PARTS, GPU_PARTS
from annot.analyze.step_parts import WORK
from annot.analyze.uneven_steps import excess_of_long_steps
from annot.attribution import REASONS, UNATTRIBUTED
from annot.attribution.attribute import known
from annot.attribution.summary import step_statistics

__all__ = ["RULES"]

_COPY_TO_DEVICE: Final = pl.col("name") == "(copy HtoD)"
_WAITS: Final = {
    r"(?:Device|Ctx)Synchronize": ("remove torch.cuda.synchronize()", "total_loss += loss.detach()      # on the GPU"),
    r"Memcpy": (
        "remove .item(), .cpu() and print(tensor), and copy asynchronously",
        "x = x.to(device, non_blocking=True)      # from pinned memory",
    ),
    "": ("remove .item(), .cpu() and print(tensor)", "total_loss += loss.detach()      # on the GPU"),
}
"""Changes and code by the name of the call that takes the most time; the first match wins."""


def synchronous_copies(facts: Facts) -> Advice | None:
    """Synchronising calls after which the device is idle.

    Evidence: calls of the API that wait for the device, and at least 5 % of the step time in which the device is idle
    during or after them (`annot.analyze.idle.idle_intervals`).
    """
    share = facts.idle["synchronisation"]
    if not facts.on_device or share < 0.05:
        return None
    longest = next(iter(facts.idle_calls.filter(pl.col("cause") == "synchronisation")["name"]), "")
    change, code = next(remedy for pattern, remedy in _WAITS.items() if re.search(pattern, longest))
    return Advice(
        "synchronous_copies",
        f"Avoid waiting for the GPU inside a step: {change}.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['synchronisation'].name}, {_often(facts, 'synchronisation')}",
        f"{code}\nif step % 100 == 0:\n    print(loss.item())",
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
    """GPU memory that is allocated and freed during the steps.

    Evidence: calls of the API that allocate or free memory of the device, and at least 3 % of the step time in which
    the device is idle during them. About as many frees as allocations mean that nothing is kept.
    """
    share = facts.idle["allocation"]
    if not facts.on_device or share < 0.03:
        return None
    calls = facts.idle_calls.filter(pl.col("cause") == "allocation")
    frees = int(calls.filter(pl.col("name").str.contains("(?i)free"))["calls"].sum())
    kept = 2 * frees < int(calls["calls"].sum()) - frees
    return Advice(
        "allocations",
        "Allocate GPU memory once: warm up with the largest input, and let segments of the allocator grow."
        if kept
        else "Keep GPU memory allocated between steps: let the framework cache it.",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['allocation'].name}, {_often(facts, 'allocation')}",
        _GROWS if kept else _CACHES,
        share,
    )


_GROWS: Final = 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"      # before torch is imported'
_CACHES: Final = """\
for name in ('PYTORCH_NO_CUDA_MEMORY_CACHING', 'PYTORCH_NO_HIP_MEMORY_CACHING'):
    os.environ.pop(name, None)           # before torch is imported
# and remove torch.cuda.empty_cache() from the loop"""


def pageable_copies(facts: Facts) -> Advice | None:
    """Host-to-device copies from pageable memory that do not overlap with kernels.

    Evidence: copies that the profile records as copies from pageable memory, with at least 3 % of the step time.
    """
    share = _exposed_copies(facts, ~pl.col("pinned"))
    if share < _LEAST_COPIES:
        return None
    return Advice(
        "pageable_copies",
        "Copy batches from pinned memory while the previous step still runs.",
        f"{share:.0%} of {facts.time} is spent in host-to-device copies from pageable memory that do not overlap with "
        "kernels",
        "DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        share,
    )


_LEAST_COPIES: Final = 0.03
"""Share of the step from which copies to the device are worth a change."""


def host_copies(facts: Facts) -> Advice | None:
    """Host-to-device copies from pinned memory, or from memory of unknown kind, that do not overlap with kernels.

    Evidence: such copies with at least 3 % of the step time.
    """
    pinned, unknown = (_exposed_copies(facts, which) for which in (pl.col("pinned"), pl.col("pinned").is_null()))
    share = min(pinned + unknown, facts.shares["copies"])
    if share < _LEAST_COPIES:
        return None
    memory = "pinned memory" if pinned >= unknown else "host memory (pinned or pageable: the profile does not show it)"
    return Advice(
        "host_copies",
        "Keep data on the GPU that several steps use, copy the rest while kernels run, or move fewer bytes.",
        f"{share:.0%} of {facts.time} is spent in host-to-device copies from {memory} that do not overlap with kernels",
        "with torch.cuda.stream(copies):      # beside the kernels of the step\n"
        "    next_x = next_x.to(device, non_blocking=True)      # from pinned memory, in the model's dtype",
        share,
    )


def _exposed_copies(facts: Facts, memory: pl.Expr) -> float:
    """The share of step time in copies to the device from some memory that do not overlap with kernels."""
    if not known(facts.attribution.meta):
        return 0.0
    return min(facts.share(_COPY_TO_DEVICE & memory), facts.shares["copies"])


def stragglers(facts: Facts) -> Advice | None:
    """A device that is busy for much longer than the others of the run.

    Evidence: GPU activities of at least two devices; the longest busy time is 1.2 times the median of the devices, and
    longer than it by at least 5 % of the step time.
    """
    busy = facts.step_time.filter(pl.col("share").is_in(WORK)).group_by("process", "device")
    rows = busy.agg(pl.col("ns").sum().alias("busy_ns"), pl.col("wall_ns").first()).filter(pl.col("busy_ns") > 0)
    times = rows["busy_ns"].sort().to_list()
    if not facts.on_device or len(times) < 2 or times[-1] < 1.2 * (median := times[(len(times) - 1) // 2]):
        return None
    process, device, longest, wall = rows.sort("busy_ns", "process", "device", descending=[True, False, False]).row(0)
    if longest - median < 0.05 * wall:
        return None
    return Advice(
        "stragglers",
        "Find out why one GPU is busy for longer than the others: uneven batches, a slow CPU or a slow GPU.",
        f"GPU {device} of {facts.name_of(process)} is busy {longest / median:.2f} times as long as the median of "
        f"{len(times)} GPUs",
        f"annot report {facts.source} --by-process"
        if facts.processes > 1
        else f"annot report {facts.source} -o run.html      # with the timeline of each GPU",
        (longest - median) / wall,
    )


_WHOLE_GRAPH: Final = r"^CUDA graph \d+$"
"""Names of CUDA graphs that Nsight Systems or nvprof traced as a whole; see `annot.profile`."""
_EXPLAINED: Final[dict[str, tuple[Rule, ...]]] = {
    "data": (data_loading,),
    "synchronisation": (synchronous_copies,),
    "allocation": (allocations,),
    "launch": (cuda_graphs, host_bound),
    "host": (host_bound,),
    "collectives": (collectives,),
    "copies": (pageable_copies, host_copies),
    "forward": (cpu.own_code,),
    "optimizer": (cpu.optimizer,),
    "other_ranges": (cpu.outside_phases,),
    "outside_ranges": (cpu.outside_phases,),
}
"""Rules that advise on a part of the step."""


def uneven_steps(facts: Facts) -> Advice | None:
    """Step times that vary so much that their mean is misleading, for a reason that no other rule advises on.

    Evidence: host times of at least 8 steps whose interquartile range is at least 20 % of the median, and what the
    steps above the median spend more time on. Silent if other rules advise on the causes of at least half of this
    excess. It is a symptom, so it saves nothing by itself and comes after all advice on causes.
    """
    times = step_statistics(facts.all_steps) if known(facts.attribution.meta) else None
    if times is None or facts.steps.height < 8 or not times["median"] or times["iqr"] < 0.2 * times["median"]:
        return None
    excess = excess_of_long_steps(facts.attribution, facts.steps, facts.parts)
    explained = sum(ratio for cause, ratio in excess.items() if any(rule(facts) for rule in _EXPLAINED.get(cause, ())))
    if explained >= 0.5:
        return None
    names = {**GPU_PARTS, **CPU_PARTS}
    causes = [f"{ratio:.0%} is {names[cause].name}" for cause, ratio in excess.items() if ratio >= 0.1]
    of_excess = f"; of the time that long steps take more, {' and '.join(causes[:2])}" if causes else ""
    of_kernels = excess.get("kernels", 0) + excess.get("tensor_cores", 0) >= 0.5
    why = "their GPU work differs" if of_kernels else "their times vary"
    return Advice(
        "uneven_steps",
        f"Compare steps of similar length only: {why}.",
        f"The interquartile range of step time is {times['iqr'] / times['median']:.0%} of the median{of_excess}",
        f"annot report {facts.source} --by step",
        0.0,
    )


def coverage(facts: Facts) -> Advice | None:
    """GPU time that was launched outside any range.

    Evidence: at least 30 % of the GPU time was launched by recorded calls outside any range. GPU activities without a
    recorded launch do not count, because no range could own them. If the steps have most of the GPU time, only their
    GPU time counts, as in the table of layers. If most of it are CUDA graphs that were traced as a whole, ranges do not
    help: another recording does.
    """
    nodes = facts.attribution.nodes.hstack(facts.attribution.forest.layers_of_nodes())
    outside = (pl.col("layer") == UNATTRIBUTED) & (pl.col("module") == REASONS[0])
    rows, time = facts.work.rename({"wall_ns": "ns"}), "the GPU time of the steps"
    if not facts.steps.height or 2 * int(rows["ns"].sum()) < int(nodes["gpu_self_ns"].sum()):
        rows = nodes.select("layer", "module", ns="gpu_self_ns", calls=pl.col("kernels") + pl.col("copies"))
        time = "GPU time"
    ns, count = rows.filter(outside).select("ns", "calls").sum().row(0)
    share = ns / max(int(rows["ns"].sum()), 1)
    if share < 0.3:
        return None
    whole_graphs = facts.work.filter(outside, pl.col("name").str.contains(_WHOLE_GRAPH))
    if 2 * int(whole_graphs["wall_ns"].sum()) > int(facts.work.filter(outside)["wall_ns"].sum()):
        return Advice(
            "coverage",
            "Record the kernels of CUDA graphs, so that GPU time is attributed to them and to layers.",
            f"{share:.0%} of {time} was launched outside any range, mostly as CUDA graphs that were traced as a whole",
            "nsys profile --cuda-graph-trace=node -o run python train.py",
            0.0,
        )
    return Advice(
        "coverage",
        "Wrap training in ranges, so that GPU time is attributed to layers.",
        f"{share:.0%} of {time}, {count:,} kernels and copies, was launched outside any range",
        "with annot.emit_ranges(model):\n    train()",
        0.0,
    )


RULES: Final[tuple[Rule, ...]] = (
    data_loading, synchronous_copies, pageable_copies, host_copies, allocations, stragglers, collectives, uneven_steps,
    coverage,
)  # fmt: skip
