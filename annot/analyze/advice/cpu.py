"""Advice rules for processes without a GPU: threads, ranks, small layers, precision, code outside the phases."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from annot.analyze.advice.facts import LEAST_CHANGE, LEAST_ON_CPU, LEAST_SETTING, LEAST_SHARE, Advice, Facts
from annot.analyze.cpu_parts import COMPUTED, around_others, repeated_layers
from annot.analyze.roofline import layer_roofline
from annot.analyze.work.layer_work import by_layer_with_work
from annot.attribution.layer_tables import LAYER_PHASES
from annot.labels.tag import parse

_SHORT_NS: Final = 30_000
"""A call of a layer with less self time spends about as long in Python and in PyTorch's dispatcher as it computes."""
_WITH_FUSED: Final = {"Adam": 0.1, "AdamW": 0.1, "SGD": 0.3}
"""Optimizers with a fused step on CPUs, and the smallest measured ratio of its time to theirs: 0.1 to 0.2 for Adam and
AdamW, 0.3 (small parameters) to 0.9 for SGD (PyTorch 2.13, 2 cores)."""


def threads(facts: Facts) -> Advice | None:
    """Fewer threads than cores, or ranks whose threads compete for cores.

    Evidence: annot's mark with threads, cores and ranks, and phases that compute for at least 20 % of the step time.
    """
    cpu, computing = facts.cpu, _computing(facts)
    if computing < LEAST_ON_CPU or not {"threads", "cores"} <= cpu.keys():
        return None
    count, cores, ranks = (int(cpu.get(name, 1)) for name in ("threads", "cores", "ranks"))
    each = max(1, cores // ranks)
    if count * ranks <= cores and count >= each:
        return None
    of_rank = f" in each of {ranks} ranks" if ranks > 1 else ""
    busy = f"and forward, backward and optimizer take {computing:.0%} of {facts.time}"
    few = count < each
    return Advice(
        "threads",
        "Use all CPU cores." if few else "Use at most one thread per core.",
        f"PyTorch computes with {_counted(count, 'thread')}{of_rank} on {_counted(cores, 'core')}, {busy}",
        f"torch.set_num_threads({each})      # or OMP_NUM_THREADS={each}",
        computing * (1 - count / each) if few else computing + facts.shares["collectives"],
        changes=("threads",),
    )


def _saved_by_compiling(facts: Facts) -> float:
    """Upper bound of the share of step time (0 to 1) that compiling the model saves.

    A compiler replaces all code of the model in forward and backward: Python, the dispatcher and the operators. What
    stays is the time that the FLOPs need at the peak of the CPU, if both are known.
    """
    rows = layer_roofline(facts.attribution, facts.peaks).filter(pl.col("bound") == "compute")
    least_ns = rows.select((pl.col("time_ns") * pl.col("roof_share")).clip(upper_bound=pl.col("self_ns")).sum()).item()
    whole_ns = facts.layers.filter(pl.col("phase").is_in(LAYER_PHASES))["host_self_ns"].sum()
    passes = facts.shares["forward"] + facts.shares["backward"]
    return passes * (1 - least_ns / whole_ns) if whole_ns else passes


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _computing(facts: Facts) -> float:
    """Share of step time in which the process computes a phase; 0 on a GPU."""
    return 0.0 if not facts.on_cpu else sum(facts.shares[phase] for phase in COMPUTED)


def small_layers(facts: Facts) -> Advice | None:
    """Calls of layers that are too short to be worth their overhead.

    Evidence: ranges of layers with less than 30 µs of self time per call, at least 10 of them in a step, with at least
    20 % of the step time.
    """
    named = (pl.col("layer") != "") | (pl.col("module") != "")
    rows = facts.layers.filter(
        named & pl.col("phase").is_in(LAYER_PHASES), pl.col("calls") > 0, pl.col("host_self_ns") > 0
    )
    short = rows.filter(pl.col("host_self_ns") < _SHORT_NS * pl.col("calls"))
    whole, ns = (int(table["host_self_ns"].sum()) for table in (rows, short))
    share = _computing(facts) * ns / whole if whole else 0.0
    calls = int(short["calls"].sum())
    each = calls / max(facts.all_steps.height, 1)
    if share < LEAST_ON_CPU or each < 10:
        return None
    names = short.filter(pl.col("layer") != "").sort("host_self_ns", descending=True)["layer"]
    size = facts.batch
    batch = "" if size is None else f"\nDataLoader(dataset, batch_size={2 * size})      # {size} now"
    return Advice.of(
        "small_layers",
        f"{share:.0%} of {facts.time} is spent in {each:,.0f} short calls of layers per step. Each takes "
        f"{ns / calls / 1000:.0f} µs, mostly in Python and the dispatcher",
        _saved_by_compiling(facts),
        names.unique(maintain_order=True).head(5).to_list(),
        batch=batch,
    )


def own_code(facts: Facts) -> Advice | None:
    """A layer whose `forward` computes much outside its submodules.

    Evidence: a layer with layers inside it and at least 20 % of the step time outside them, repeated layers together.
    """
    longest = _own_code(facts).head(1).rows()
    if not longest:
        return None
    (layer, module, ns, _), wall = longest[0], facts.wall_ns
    if not wall or ns < LEAST_ON_CPU * wall:
        return None
    rows = facts.layers.filter(pl.col("module") == module)
    name, paths = f"{layer or '(model)'} {module}", re.escape(layer).replace(r"\*", r"\d+")
    source = rows["source"].drop_nulls().first() if "source" in rows.columns else None
    where = "" if source is None else f" ({source!s})"
    layers = rows.filter(pl.col("layer").str.contains(f"^{paths}$"))["layer"].unique(maintain_order=True)
    return Advice.of(
        "own_code",
        f"{ns / wall:.0%} of {facts.time} is spent in {name} itself, outside its submodules{where}",
        ns / wall,
        [path for path in layers.head(5) if path],
        module=module,
    )


def _own_code(facts: Facts) -> pl.DataFrame:
    """The times of layers that contain others, outside these, as `repeated_layers`; empty on a GPU."""
    if not facts.on_cpu:
        return repeated_layers(facts.cpu_layers.clear(), "ns")
    rows = facts.cpu_layers.filter(pl.col("part") != "optimizer", pl.col("module") != "")
    return repeated_layers(rows.filter(around_others(rows["layer"])), "ns")


def fusion(facts: Facts) -> Advice | None:
    """Layers that move more bytes than they compute FLOPs, and whose calls are long enough to be worth it.

    Evidence: labels with shapes, from which FLOPs and bytes follow: less than 1 FLOP per byte, most bytes activations,
    at least 30 µs per call, and at least 10 % of the step time.
    """
    if not facts.on_cpu:
        return None
    work = by_layer_with_work(facts.attribution)
    low = (pl.col("flops") > 0) & (pl.col("flops") < pl.col("bytes"))
    read = 8 * pl.col("params").fill_null(0) * pl.col("calls")  # fusion saves moving activations, not parameters
    low &= read < pl.col("bytes")
    long = pl.col("host_self_ns") >= _SHORT_NS * pl.col("calls")
    rows = work.filter((pl.col("phase") == "forward") & (pl.col("module") != "") & low & long)
    layers = rows.sort("host_self_ns", "layer", descending=[True, False])["layer"].to_list()
    share = facts.share_of_layers(layers)
    if share < LEAST_SHARE:
        return None
    modules = rows.group_by("module").agg(pl.col("host_self_ns").sum()).sort("host_self_ns", "module", descending=True)
    own = int(_own_code(facts)["ns"].sum()) / facts.wall_ns  # its work is unknown, and a compiler can fuse it
    of_own = f", and {own:.0%} in the forward methods of other layers, outside their submodules"
    more = of_own if own >= LEAST_CHANGE else ""
    return Advice.of(
        "fusion",
        f"{share:.0%} of {facts.time} is spent in {_counted(len(layers), 'layer')} with less than 1 FLOP per byte "
        f"({', '.join(modules['module'].head(4))}){more}. "
        "Compiled code also saves the overhead of calls in all layers",
        _saved_by_compiling(facts),
        layers[:5],
    )


def optimizer(facts: Facts) -> Advice | None:
    """An optimizer that updates parameters in several passes, where PyTorch has a fused one.

    Evidence: the label of an optimizer with a fused step on CPUs that names no ``fused``, in a recording with annot's
    mark about threads, with at least 3 % of the step time.
    """
    # Recordings without the mark about threads are too old to say whether a step is fused.
    if not facts.on_cpu or not facts.cpu or facts.shares["optimizer"] < LEAST_SETTING:
        return None
    texts = facts.attribution.forest.labels.filter(pl.col("phase") == "optimizer")["text"]
    steps = [tag for tag in map(parse, texts) if tag is not None and tag.module in _WITH_FUSED and not tag.layer]
    slow = {tag.module: dict(tag.arguments).get("params") for tag in steps if "fused" not in dict(tag.arguments)}
    rows = facts.cpu_layers.filter(
        pl.col("part") == "optimizer", pl.col("layer") == "", pl.col("module").is_in(list(slow))
    )
    share = float(rows["ns"].sum() / facts.wall_ns) if facts.wall_ns else 0.0
    if share < LEAST_SETTING:
        return None
    name = rows["module"][0]
    counts = slow[name]
    params = sum(count for count in (counts if isinstance(counts, tuple) else (counts,)) if isinstance(count, int))
    of = f" with {params:,} parameters" if params else ""
    return Advice.of(
        "optimizer",
        f"{share:.0%} of {facts.time} is spent in steps of {name}{of} without fused=True",
        share * (1 - _WITH_FUSED[name]),
        name=name,
    )


def outside_phases(facts: Facts) -> Advice | None:
    """Time of the steps outside forward, backward, optimizer, communication and data loading.

    Evidence: ranges of phases, and at least 20 % of the step time outside them.
    """
    inside, outside = facts.shares["other_ranges"], facts.shares["outside_ranges"]
    if _computing(facts) == 0 or inside + outside < LEAST_ON_CPU:
        return None
    clauses = [
        f"{share:.0%} {where}"
        for share, where in ((inside, "in other ranges"), (outside, "outside any range"))
        if share >= 0.005
    ]
    return Advice.of(
        "outside_phases",
        f"{inside + outside:.0%} of {facts.time} lies outside these phases: {', '.join(clauses)}",
        inside + outside,
    )


RULES: Final = (threads, own_code, small_layers, fusion, optimizer, outside_phases)
