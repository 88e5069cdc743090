"""Rules about the training loop: data loading, copies, memory, waits for the GPU, and communication between ranks."""

from __future__ import annotations

import math
import re
from typing import Final

import polars as pl

from annot.analyze.advice.facts import (
    LEAST_CHANGE,
    LEAST_SETTING,
    LEAST_SHARE,
    OUTSIDE_RANGES,
    Advice,
    Facts,
    Loader,
)
from annot.analyze.advice.texts import Text, texts
from annot.analyze.communication import UNNAMED, Collectives, collectives_of
from annot.analyze.cpu_parts import COMPUTED, GPU_PARTS
from annot.analyze.peaks import short_time
from annot.analyze.step_parts import WORK
from annot.attribution.attribute import known
from annot.attribution.layer_tables import LAYER_PHASES
from annot.attribution.steps import fetches
from annot.labels.tag import Tag

_LEAST_NAMED: Final = 0.01
"""Share of the step from which the evidence names an operation."""
_MOST_NAMED: Final = 3

_ANY: Final = Text("", "Find the rank that the others wait for, and communicate less often.")


def collectives(facts: Facts) -> Advice | None:
    """Exposed communication: ranks exchange data or wait for the slowest rank.

    Evidence: collectives on a device that also computes, or ranges of collectives in processes without a GPU, with at
    least 5 % of the step time while nothing else runs; the operation with the most exposed time, from its message, its
    range or its kernel; and whether this operation belongs to a backward pass.
    """
    share = facts.shares["collectives"]
    computes = facts.on_cpu or (facts.on_device and facts.shares["kernels"] + facts.shares["tensor_cores"] > 0)
    if share < LEAST_CHANGE or not computes:
        return None
    calls = collectives_of(facts.attribution)
    times = _exposed(calls, facts.wall_ns)
    longest = next(iter(times), UNNAMED)
    remedy = _overlap_remedy(facts, calls, longest)
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
        remedy.advice,
        f"{share:.0%} of {facts.time} is {GPU_PARTS['collectives'].name} {spent}",
        f"{facts.ranks_command} --columns communication      # which rank is late\n{remedy.code}".rstrip(),
        share,
    )


def _exposed(calls: Collectives, wall: int) -> dict[str, float]:
    """Return the share of step time (0 to 1) in which each operation is exposed, the longest first."""
    rows = calls.table.with_row_index("row").select(pl.col("row").cast(pl.Int64), "operation")
    waits = calls.exposed.join(rows, "row").with_columns(pl.col("operation").str.strip_suffix(".wait"))
    sums = waits.group_by("operation").agg(pl.col("ns").sum()).sort("ns", "operation", descending=[True, False])
    return {operation: ns / wall for operation, ns in sums.iter_rows() if ns}


def _overlap_remedy(facts: Facts, calls: Collectives, operation: str) -> Text:
    """Return the advice and the code for the operation that takes the most exposed time."""
    if operation.startswith("broadcast") and not facts.has_backward:
        return _ANY
    rows = calls.table.filter(pl.col("operation").str.starts_with(operation), pl.col("wall_ns") > 0)
    in_forward = bool((rows["phase"] == "forward").all())
    direction = "backward" if facts.has_backward and not in_forward else "forward"
    remedies = next((ways for name, ways in texts().collectives.items() if operation.startswith(name)), {})
    return remedies.get("any" if facts.has_backward is None or "any" in remedies else direction, _ANY)


def _library(facts: Facts, calls: Collectives) -> str:
    """Return the backend of processes without a GPU and a space, such as ``gloo ``; empty: unknown."""
    gloo = "gloo" if calls.table["layer"].str.starts_with("gloo:").any() else ""
    return f"{facts.cpu.get('backend', gloo)} ".lstrip()


def _backward_share(facts: Facts, calls: Collectives) -> str:
    """Return the share of the backward pass that communication takes in processes without a GPU."""
    waits = int(calls.exposed.filter(pl.col("phase") == "backward")["ns"].sum())
    backward = waits + facts.shares["backward"] * facts.wall_ns
    return f", {waits / backward:.0%} of the backward pass" if waits >= 0.01 * backward > 0 else ""


_AFRESH: Final = 3
"""Generations of worker processes that show a restart in each epoch. Two can be those of two loaders."""
_ON_GPU: Final = 8
"""Worker processes to try beside a GPU, where the number of cores is unknown."""


def data_loading(facts: Facts) -> Advice | None:
    """Steps in which devices, or the process if it uses none, wait for data.

    Evidence: ranges around the wait for each batch, with at least 10 % of the step time. Advice about worker processes
    needs to know whether the loader has some: from the ranges of their fetches, from the loader's mark, or from the
    iterator that torch.profiler names. Single late batches need steps of which most hardly wait.
    """
    share = facts.shares["data"]
    if share < LEAST_SHARE:
        return None
    late = _late_steps(facts)
    rule = "late_batches" if late.height else "data_loading"
    advice, code, *changes = _remedy_of_late_batches(facts, late) if late.height else _workers_remedy(facts, share)
    return Advice(rule, advice, _evidence(facts, share), code, share, changes=tuple(changes))


def _late_steps(facts: Facts) -> pl.DataFrame:
    """The steps that wait for data, if the others hardly wait: step, batch, data_ns; the longest first.

    Several workers deliver their batches together, so that one step of several waits although all batches are slow.
    """
    steps = facts.steps.select("step", "batch", "data_ns", "step_ns").sort("data_ns", descending=True)
    late = steps.filter(pl.col("data_ns") > pl.col("data_ns").mean())
    usual = _median(steps["data_ns"]) * steps.height
    bursts = facts.loader.workers or (_ON_GPU if facts.loader.some else 1)
    few = late.height * bursts < steps.height / 2 and usual < LEAST_SHARE * int(steps["step_ns"].sum())
    return late if few else late.clear()


def _remedy_of_late_batches(facts: Facts, late: pl.DataFrame) -> tuple[str, ...]:
    """Return what to change if few batches are late, the code, and names of changes."""
    of = f"{late.height} of {facts.steps.height:,} batches {'is' if late.height == 1 else 'are'} late"
    code = f"annot report {facts.source} --by step"
    if (late["batch"] == 0).all() and facts.loader.some and not facts.loader.persistent:
        advice = f"Keep the worker processes of the DataLoader between epochs: {of}."
        return advice, f"{_loader(facts, 0)}\n{code}", "persistent"
    return f"Find out why single batches take long, such as the first of an epoch or large samples: {of}.", code


def _workers_remedy(facts: Facts, share: float) -> tuple[str, ...]:
    """Return what to change, the code, and names of changes.

    More workers are advised only if they could hide more of the wait.
    """
    loader, needed = facts.loader, workers_needed(facts, share)
    code = _loader(facts, needed)
    if loader.workers is None:
        unknown = "Load data in worker processes, or in more of them if the loader has some. Or make loading cheaper."
        more = "Load data in more worker processes, or make loading cheaper."
        return more if loader.some else unknown, code, "workers"
    if not loader.workers:
        return "Load data in worker processes, before the step needs it.", code, "workers"
    if needed > loader.workers:
        return "Load data in more worker processes.", code, "workers"
    if _generations(facts) >= _AFRESH and not loader.persistent:
        keep = "Keep the worker processes of the DataLoader between epochs: starting them makes steps wait."
        return keep, code, "persistent"
    return (
        "Make loading cheaper: prepare the samples once, before training.",
        "samples = [dataset[i] for i in range(len(dataset))]      # if they fit into memory\n"
        f"DataLoader(samples, num_workers={loader.workers}, persistent_workers=True)",
    )


def _loader(facts: Facts, workers: int) -> str:
    """Code of a DataLoader with at least so many workers."""
    pinned = ", pin_memory=True" if facts.on_device and not facts.loader.pinned else ""
    ahead = ", prefetch_factor=4" if facts.on_device else ""
    count = max(workers, facts.loader.workers or 1)
    return f"DataLoader(dataset, num_workers={count}, persistent_workers=True{pinned}{ahead})"


def workers_needed(facts: Facts, share: float) -> int:
    """Number of workers that could hide the wait, at the speed of one more fetch per step; at most one per core."""
    if facts.on_device:
        return _ON_GPU
    needed = ((facts.loader.workers or 0) + 1) + math.floor(share / max(1 - share, 0.01))
    return min(needed, max(1, int(facts.cpu.get("cores", _ON_GPU)) // int(facts.cpu.get("ranks", 1))))


def _evidence(facts: Facts, share: float) -> str:
    waits = f"{share:.0%} of {facts.time} is spent {GPU_PARTS['data'].name}{_times(facts, share)}"
    datasets = facts.loader.datasets[:_MOST_NAMED]
    of = f" of {' and '.join(datasets)}" if datasets else ""
    return waits if facts.in_keras else f"{waits}; {_loaded_by(facts.loader)}{of}"


def _times(facts: Facts, share: float) -> str:
    """The wait of the median step and of the longest wait, and the rest of a step on the CPU; empty without steps."""
    steps = facts.steps.sort("data_ns", descending=True)
    if steps.height < 2 or not steps["data_ns"][0]:
        return ""
    median, most = (short_time(ns) for ns in (_median(steps["data_ns"]), steps["data_ns"][0]))
    each = f", {median} in each of {steps.height:,} steps"
    if median != most:
        each = f", {median} in the median of {steps.height:,} steps and {most} before step {steps['step'][0]}"
    rest = short_time((1 - share) * facts.wall_ns / steps.height)
    return each if facts.on_device else f"{each}, while the rest of a step takes {rest}"


def _loaded_by(loader: Loader) -> str:
    if loader.workers is None:
        unknown = "the profile does not show whether worker processes load the data"
        return "worker processes of the DataLoader load the data" if loader.some else unknown
    by = {0: "the process itself loads the data", 1: "1 DataLoader worker loads the data"}
    return by.get(loader.workers, f"{loader.workers} DataLoader workers load the data")


def _median(times: pl.Series) -> float:
    return float(times.quantile(0.5) or 0)


def _generations(facts: Facts) -> int:
    """Number of processes of one worker that follow one another: each starts after the one before has ended."""
    forest = facts.attribution.whole
    rows = forest.every_range()
    rows = rows.filter(fetches(forest.labels).gather(rows["label"]))
    process = forest.threads.table["process_code"].gather(rows["thread"])
    rows = rows.with_columns(process, number=forest.labels["number"].gather(rows["label"]))
    lives = rows.group_by("number", "process_code").agg(pl.col("start").min(), pl.col("end").max()).sort("start")
    later = pl.col("start") >= pl.col("end").cum_max().shift(1).over("number")
    counts = lives.with_columns(later=later).group_by("number").agg(generations=1 + pl.col("later").sum())
    return int(counts["generations"].max() or 0)  # type: ignore[arg-type]


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
    during or after them (`annot.analyze.gpu_activities.idle_intervals`).
    """
    share = facts.idle["synchronisation"]
    if not facts.on_device or share < LEAST_CHANGE:
        return None
    longest = next(iter(facts.idle_calls.filter(pl.col("cause") == "synchronisation")["name"]), "")
    change, code = next(remedy for pattern, remedy in _WAITS.items() if re.search(pattern, longest))
    return Advice.of(
        "synchronous_copies",
        f"{share:.0%} of {facts.time} is spent {GPU_PARTS['synchronisation'].name}, {_often(facts, 'synchronisation')}",
        share,
        change=change,
        code=code,
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
    if not facts.on_device or share < LEAST_SETTING:
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
    if share < LEAST_SETTING:
        return None
    return Advice.of(
        "pageable_copies",
        f"{share:.0%} of {facts.time} is spent in host-to-device copies from pageable memory that do not overlap with "
        "kernels",
        share,
    )


def host_copies(facts: Facts) -> Advice | None:
    """Host-to-device copies from pinned memory, or from memory of unknown kind, that do not overlap with kernels.

    Evidence: such copies with at least 3 % of the step time.
    """
    pinned, unknown = (_exposed_copies(facts, which) for which in (pl.col("pinned"), pl.col("pinned").is_null()))
    share = min(pinned + unknown, facts.shares["copies"])
    if share < LEAST_SETTING:
        return None
    memory = "pinned memory" if pinned >= unknown else "host memory (pinned or pageable: the profile does not show it)"
    return Advice.of(
        "host_copies",
        f"{share:.0%} of {facts.time} is spent in host-to-device copies from {memory} that do not overlap with kernels",
        share,
    )


def _exposed_copies(facts: Facts, memory: pl.Expr) -> float:
    """The share of step time in copies to the device from some memory that do not overlap with kernels."""
    if not known(facts.attribution.meta):
        return 0.0
    return min(facts.share(_COPY_TO_DEVICE & memory), facts.shares["copies"])


def stragglers(facts: Facts) -> Advice | None:
    """A device that is busy, or without a GPU a process that computes, for much longer than the others of the run.

    Evidence: GPU activities of at least two devices, or phases of at least two processes; the longest time is 1.2 times
    the median, and on devices longer than it by at least 5 % of the step time.
    """
    parts = WORK if facts.on_device else COMPUTED if facts.on_cpu else ()
    sums = facts.step_time.filter(pl.col("share").is_in(parts)).group_by("process", "device")
    rows = sums.agg(pl.col("ns").sum(), pl.col("wall_ns").first()).filter((pl.col("ns") > 0) | facts.on_cpu)
    times = rows["ns"].sort().to_list()
    if len(times) < 2 or times[-1] < 1.2 * (median := times[(len(times) - 1) // 2]):
        return None
    process, device, longest, wall = rows.sort("ns", "process", "device", descending=[True, False, False]).row(0)
    if facts.on_device and longest - median < LEAST_CHANGE * wall:
        return None
    who = f"one {'GPU is busy' if facts.on_device else 'process computes'} for longer than the others"
    why = "uneven batches, a slow CPU or a slow GPU" if facts.on_device else "uneven batches, or a core that it shares"
    name, steps = facts.name_of(process), 1e6 * max(facts.steps.height / len(times), 1)
    evidence = (
        f"GPU {device} of {name} is busy {longest / median:.2f} times as long as the median of {len(times)} GPUs"
        if facts.on_device
        else f"{name.capitalize()} computes for {longest / steps:,.1f} ms in each step, the median of {len(times)} "
        f"processes for {median / steps:,.1f} ms"
    )
    options = "--by-process" if facts.processes > 1 else "-o run.html      # with the timeline of each GPU"
    code = f"annot report {facts.source} {options}"
    return Advice("stragglers", f"Find out why {who}: {why}.", evidence, code, (longest - median) / wall)


_WHOLE_GRAPH: Final = r"^CUDA graph \d+$"
"""Names of CUDA graphs that Nsight Systems or nvprof traced as a whole; see `annot.profile`."""


def coverage(facts: Facts) -> Advice | None:
    """GPU time that was launched outside any range.

    Evidence: at least 30 % of the GPU time was launched by recorded calls outside any range. GPU activities without a
    recorded launch do not count, because no range could own them. If the steps have most of the GPU time, only their
    GPU time counts, as in the table of layers. If most of it are CUDA graphs that were traced as a whole, ranges do not
    help: another recording does.
    """
    nodes = facts.attribution.nodes.hstack(facts.attribution.forest.layers_of_nodes())
    rows, time = facts.work.rename({"wall_ns": "ns"}), "the GPU time of the steps"
    if not facts.steps.height or 2 * int(rows["ns"].sum()) < int(nodes["gpu_self_ns"].sum()):
        rows = nodes.select("layer", "module", ns="gpu_self_ns", calls=pl.col("kernels") + pl.col("copies"))
        time = "GPU time"
    ns, count = rows.filter(OUTSIDE_RANGES).select("ns", "calls").sum().row(0)
    share = ns / max(int(rows["ns"].sum()), 1)
    if share < 0.3:
        return None
    whole_graphs = facts.work.filter(OUTSIDE_RANGES, pl.col("name").str.contains(_WHOLE_GRAPH))
    if 2 * int(whole_graphs["wall_ns"].sum()) > int(facts.work.filter(OUTSIDE_RANGES)["wall_ns"].sum()):
        return Advice(
            "coverage",
            "Record the kernels of CUDA graphs, so that GPU time is attributed to them and to layers.",
            f"{share:.0%} of {time} was launched outside any range, mostly as CUDA graphs that were traced as a whole",
            "nsys profile --cuda-graph-trace=node -o run python train.py",
            0.0,
        )
    return Advice.of(
        "coverage", f"{share:.0%} of {time}, {count:,} kernels and copies, was launched outside any range", 0.0
    )


def recomputation(facts: Facts) -> Advice | None:
    """Layers whose forward runs again in the backward pass, to keep fewer activations in memory.

    Evidence: ranges of recomputed layers, with at least 5 % of the step time. On a GPU it is that of their GPU
    activities, without a GPU the part of the time of all layers.
    """
    time = "gpu_self_ns" if facts.on_device else "host_self_ns"
    again = pl.col("phase") == "recompute"
    rows = facts.layers.filter(again, pl.col(time) > 0).sort(time, "layer", descending=[True, False])
    share = facts.share(again) if facts.on_device else _share_without_gpu(facts, int(rows[time].sum()))
    if share < LEAST_CHANGE:
        return None
    layers = rows.filter(pl.col("layer") != "")["layer"].unique(maintain_order=True)
    return Advice.of(
        "recomputation",
        f"{share:.0%} of {facts.time} is spent in the forward of {rows.select('layer', 'module').n_unique():,} layers "
        "that run again in the backward pass (activation checkpointing)",
        share,
        layers.head(5).to_list(),
    )


def _share_without_gpu(facts: Facts, ns: int) -> float:
    """The share of step time of self time (ns) in layers; 0 on a GPU."""
    whole = int(facts.layers.filter(pl.col("phase").is_in(LAYER_PHASES))["host_self_ns"].sum())
    return (facts.shares["forward"] + facts.shares["backward"]) * ns / whole if facts.on_cpu and whole else 0.0


def double_precision(facts: Facts) -> Advice | None:
    """Layers that compute in 64 bits.

    Evidence: labels with a float64 first input, or with float64 weights, in every call, with at least 10 % of the step
    time. In float32, a CPU computes twice as fast; a GPU may be faster still, so that the time itself is the bound.
    """
    double = [layer for layer, tags in facts.tags.items() if all(map(_is_double, tags))]
    share = facts.share_of_layers(double)
    if share < LEAST_SHARE:
        return None
    slower = ", at half the throughput of float32" if facts.on_cpu else ""
    return Advice.of(
        "double_precision",
        f"{share:.0%} of {facts.time} is spent in layers with float64 inputs or weights{slower}",
        share / 2 if facts.on_cpu else share,
        double[:5],
    )


def _is_double(tag: Tag) -> bool:
    return tag.tensors[0].dtype == "f64" or ("weights", "f64") in tag.arguments


RULES: Final = (
    data_loading,
    synchronous_copies,
    pageable_copies,
    host_copies,
    allocations,
    stragglers,
    collectives,
    recomputation,
    double_precision,
)
