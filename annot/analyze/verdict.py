"""One sentence about a profile, or about the ranks of a run.

For a profile: the time of a step, the device, and where most of this time goes. For ranks: the time of a step, the
devices, the slowest rank, and who waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import polars as pl

from annot.analyze.advice.facts import LEAST_CHANGE, LEAST_SHARE, OUTSIDE_RANGES, Facts
from annot.analyze.advice.kernels import outside_matrix_units
from annot.analyze.advice.operators import longest_operator
from annot.analyze.communication import collectives_of
from annot.analyze.cpu_parts import GPU_PARTS, around_others, main_layer, repeated_layers
from annot.analyze.kernel_names import MATRIX, patterns
from annot.analyze.peaks import cpu_name, gpu_name, gpus, short_time
from annot.analyze.run_summary import by_summary, part_names
from annot.analyze.tensor_cores import matrix_units
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.ingest import EPOCH
from annot.labels.foreign import BATCH, DATA
from annot.labels.layer_path import named, with_parent

_MOST: Final = 0.5
"""Share of the GPU time outside ranges above which the sentence begins with it."""
_LONGEST_NAME: Final = 64
"""Maximum number of characters of the name of a layer, so that the sentence has three lines of 80."""
_NO_LAYERS: Final = (UNATTRIBUTED, "", EPOCH, BATCH, DATA)
_WAITS: Final = ("data", "collectives")


def verdict(facts: Facts) -> str:
    """Return a sentence with the time of a step, the device, and where most of this time goes.

    Percentages are shares of the step time, as in `annot.analyze.run_summary.by_summary`. The sentence names a part of
    at least 10 %, and a layer of at least 5 %. It is empty for a profile without times.

    Args:
        facts: quantities of the profile.

    Example:
        >>> import polars as pl
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear |fwd"], "start": [0], "end": [900_000]}
        >>> verdict(Facts(attribute(Profile.build({}, ranges=pl.DataFrame(ranges))))).partition(":")[0]
        'Run 900 µs on CPU'
    """
    if not facts.wall_ns:
        return _without_times(facts)
    if not facts.is_time_known:
        return f"{_subject(facts)} on {_device(facts)}: {_unknown_time(facts)}."
    on_device = [*_unattributed_share(facts), *_busy(facts), *_work(facts)] if facts.on_device else []
    clauses = on_device or _cpu_clauses(facts)
    what = f": {', and '.join(clauses)}" if clauses else ""
    return f"{_subject(facts)} on {_device(facts)}{what}."


def _subject(facts: Facts) -> str:
    """The time of a step, of several processes if they use no GPU; without steps that of the run on one device."""
    several = facts.processes if facts.wall_ns and facts.on_cpu else 1
    what = "ranks" if facts.ranked else "processes"
    return f"{_time(facts)}{f' of {several} {what}' if several > 1 else ''}"


def _time(facts: Facts) -> str:
    """The mean time of a step, to which parts and rows add up, and the median if it is printed differently."""
    if facts.step_lengths is None:
        warmup = " without warm-up" if facts.parts.without_warmup else ""
        return f"Run {short_time(facts.wall_ns / facts.devices)}{warmup}"
    kind = next(iter(facts.attribution.steps.steady()["kind"]), None)
    name = f"{kind} step" if kind else "step"
    mean, median = (short_time(facts.step_lengths[item]) for item in ("mean", "median"))
    more = "" if mean == median else f" (mean; median {median})"
    return f"{name[0].upper()}{name[1:]} {mean}{more}"


def _device(facts: Facts) -> str:
    """The devices that ran kernels or copies in the steps, or in the run if it has no times."""
    meta = facts.attribution.meta
    if facts.wall_ns and not facts.on_device and facts.other_devices:
        return " and ".join(facts.other_devices)
    if facts.wall_ns and facts.on_cpu:
        return cpu_name(meta) or "CPU"
    return gpus(facts.busy.height or facts.attribution.device_busy.height or 1, gpu_name(meta))


def _unknown_time(facts: Facts) -> str:
    """Why the time of the device is unknown."""
    if skipped := sum(facts.other_devices.values()):
        events = "1 event" if skipped == 1 else f"{skipped:,} events"
        return f"annot does not support this device and skipped its {events}, so its time is unknown"
    return "the profile lacks the times of most GPU activities, so the time of the GPU is unknown"


def _unattributed_share(facts: Facts) -> list[str]:
    """How much of the GPU time a profile with ranges leaves outside them, if that is most of it."""
    sums = facts.layers.select(pl.col("gpu_self_ns").filter(OUTSIDE_RANGES).sum(), whole=pl.col("gpu_self_ns").sum())
    outside_ns, whole_ns = sums.row(0)
    share = outside_ns / max(whole_ns, 1)
    if share <= _MOST or facts.attribution.whole.every_range().is_empty():
        return []
    return [f"{share:.0%} of the GPU time lies outside any range"]


def _busy(facts: Facts) -> list[str]:
    """How much of the time devices are idle, and mostly why. Totals do not show that."""
    if facts.attribution.meta.get("totals"):
        return []
    busy, several = facts.busy["ns"].sum() / facts.wall_ns, facts.busy.height > 1
    idle = 1 - busy
    gpu = "the GPUs" if several else "the GPU"
    if idle < LEAST_CHANGE:
        return [f"{gpu} {'are' if several else 'is'} busy {busy:.0%}"]
    cause, share = max(facts.idle.items(), key=lambda pair: pair[1])
    why = f", mostly {GPU_PARTS[cause].name} ({share:.0%})" if share > idle / 2 else ""
    return [f"{gpu} {'idle' if several else 'idles'} {idle:.0%}{why}"]


def _work(facts: Facts) -> list[str]:
    """The part of the GPU work that a change could avoid, else the most frequent kind of kernels."""
    units = matrix_units(facts.attribution.meta)
    slow = outside_matrix_units(facts)
    candidates: list[tuple[float, str, pl.Expr | None]] = [
        (facts.shares["collectives"], f"to {GPU_PARTS['collectives'].name}", None),
        (facts.shares["copies"], f"to {GPU_PARTS['copies'].name}", None),
    ]
    if slow is not None:
        candidates.append((facts.share(slow), f"to float32 matrix multiplications outside {units}", slow))
    share, words, which = max(candidates, key=lambda candidate: candidate[0])
    if clause := _operator(facts, share):
        return [clause]
    if share < LEAST_SHARE:
        share, words, which = _longest_kind(facts, units)
    if share < LEAST_SHARE:
        return []
    layer = "" if which is None else _operator_of(facts, which, share) or _layer(facts, which, share)
    return [f"{share:.0%} goes {words}{layer}"]


def _operator(facts: Facts, least: float) -> str:
    """The longest operator with its shape and why it is slow, in a profile without modules; empty: others take more."""
    longest = None if (facts.layers["module"] != "").any() else longest_operator(facts)
    if longest is None:
        return ""
    operator, cause = longest
    kind = _longest_kind(facts, "")[0]
    if operator.share < max(LEAST_SHARE, kind / 2, least if cause else least + LEAST_SHARE):
        return ""
    return f"{operator.share:.0%} goes to {operator.short_title}{f': {cause.words}' if cause else ''}"


def _operator_of(facts: Facts, which: pl.Expr, whole: float) -> str:
    """The longest operator with matching kernels and its share of the step, in a profile without modules."""
    names = set(facts.work.filter(which, pl.col("kernel"))["name"])
    matches = (operator for operator in facts.operators if operator.tag and names.intersection(operator.kernels))
    longest = None if (facts.layers["module"] != "").any() else next(matches, None)
    return "" if longest is None else _named(longest.title, min(longest.share, whole), whole)


def _longest_kind(facts: Facts, units: str) -> tuple[float, str, pl.Expr]:
    """The share, the words and the kernels of the kind of kernels that takes most of the step."""
    kernels = facts.work.filter(pl.col("kernel") & pl.col("kind").is_in(list(patterns().words)))
    sums = kernels.group_by("kind", "tensor").agg(pl.col("wall_ns").sum()).sort("wall_ns", "kind", descending=True)
    if sums.is_empty():
        return 0.0, "", pl.lit(value=False)
    kind, tensor, _ = sums.row(0)
    which = pl.col("kernel") & (pl.col("kind") == kind) & pl.col("tensor").eq_missing(pl.lit(tensor))
    where = f" on {units}" if tensor and kind in MATRIX else ""
    return facts.share(which), f"to {patterns().words[kind]}{where}", which


def _layer(facts: Facts, which: pl.Expr, whole: float) -> str:
    """The layer with the most time in matching GPU activities, and its share of the step."""
    rows = facts.work.filter(which, ~pl.col("layer").is_in(_NO_LAYERS))
    return "".join(
        _named(name, ns / facts.wall_ns, whole, mostly)
        for name, ns, _, mostly in _longest(facts, _folded(facts, rows), "wall_ns")
    )


def _longest(facts: Facts, rows: pl.DataFrame, ns: str) -> list[tuple[str, int, tuple[str, str], str]]:
    """The layer, or repeated layers, with the most time, in rows of `_folded`; none without rows.

    Returns:
        Name, time (ns), key, and which of repeated layers has most of the time, as a clause; empty: none has.
    """
    if facts.folds is None:
        sums = repeated_layers(rows, ns)
    else:
        sums = rows.group_by("layer", "module").agg(pl.col(ns).sum().alias("ns"))
    longest = sums.sort("ns", "layer", "module", descending=[True, False, False]).head(1)
    names = longest.select("layer", "module", "ns").iter_rows()
    return [
        (
            _short(named(with_parent(layer, facts.model_class), module)),
            time,
            (layer, module),
            _mostly(facts, rows.filter(pl.col("layer") == layer, pl.col("module") == module), ns),
        )
        for layer, module, time in names
    ]


def _mostly(facts: Facts, rows: pl.DataFrame, ns: str) -> str:
    """Which of the layers of a fold has most of its time, as a clause; empty: none has."""
    layer = main_layer(dict(rows.group_by("member").agg(pl.col(ns).sum()).iter_rows()))
    return f", mostly {_short(with_parent(layer, facts.model_class))}" if layer else ""


def _folded(facts: Facts, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in which a repeated layer has the path of its fold, and its own in the column ``member``."""
    folds = facts.folds or {}
    paths = [folds.get((layer, module), layer) for layer, module in rows.select("layer", "module").iter_rows()]
    return rows.with_columns(member="layer", layer=pl.Series(paths, dtype=pl.String))


def _short(name: str) -> str:
    """A name of at most `_LONGEST_NAME` characters, shortened in the middle, since paths share prefixes."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _named(name: str, share: float, whole: float, mostly: str = "") -> str:
    if share < LEAST_CHANGE:
        return ""
    return f", {'most of it in' if share > whole / 2 else 'the largest share in'} {name} ({share:.0%}{mostly})"


def _cpu_clauses(facts: Facts) -> list[str]:
    """The longest part of the steps of processes without a GPU, the longest layer, and long waits."""
    names = part_names(facts.attribution)
    long = [name for name in names if facts.shares[name] >= LEAST_SHARE]
    if not long:
        return []
    longest, *others = sorted(long, key=lambda name: -facts.shares[name])
    waits = [name for name in others if name in _WAITS]
    first, *more = [f"{facts.shares[name]:.0%} {names[name].name}" for name in (longest, *waits)]
    return [first, *_layer_on_cpu(facts), *more]


def _layer_on_cpu(facts: Facts) -> list[str]:
    """The layer with the most time in forward and backward."""
    layers = facts.cpu_layers.filter(
        pl.col("part").is_in(["forward", "backward"]), (pl.col("layer") + pl.col("module")) != ""
    )
    itself = pl.when(around_others(layers["layer"])).then(pl.lit(" itself")).otherwise(pl.lit(""))
    layers = _folded(facts, layers).with_columns(
        pl.when(pl.col("layer") == "").then(pl.lit("(model)")).otherwise("layer").alias("layer"),
        pl.concat_str("module", itself).alias("module"),
    )
    return [
        f"{ns / facts.wall_ns:.0%} in {name} ({_phases(layers, *key)}{mostly})"
        for name, ns, key, mostly in _longest(facts, layers, "ns")
        if ns >= LEAST_CHANGE * facts.wall_ns
    ]


def _phases(rows: pl.DataFrame, layer: str, module: str) -> str:
    """The phases of a layer in words, or those of all layers for the pattern of several."""
    own = rows.filter(pl.col("layer") == layer, pl.col("module") == module)
    present = set((rows if own.is_empty() else own)["part"])
    return " and ".join(phase for phase in ("forward", "backward") if phase in present)


def _without_times(facts: Facts) -> str:
    """The sentence of a profile that counts kernels, and has no times."""
    summary = by_summary(facts.attribution)
    count = summary.filter(pl.col("section") == "kernels", pl.col("item") == "all")["count"].sum()
    names = "1 kernel" if count == 1 else f"{count:,} kernels"
    return f"{names} on {_device(facts)}: the profile has no times." if count else ""


_LEAST_SLOWER: Final = 0.05
"""Difference between ranks, as share of the time of the others, from which a rank is slow."""
_LEAST_WAIT: Final = 0.01
"""Smallest share of the step for which the sentence mentions a wait."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times and devices of one rank.

    Args:
        ns: mean time of a step, or time of a run without steps.
        waiting: share of this time (0 to 1) in exposed collectives.
        operation: the longest collective; "": none.
        stepped: whether the rank has steps.
        gpus: number of its GPUs, 0 on a CPU.
        device: name of the GPUs or of the CPU; "": unknown.
    """

    ns: float
    waiting: float
    operation: str
    stepped: bool
    gpus: int
    device: str

    @property
    def work_ns(self) -> float:
        """Time (ns) outside exposed collectives: other ranks wait for it."""
        return self.ns * (1 - self.waiting)


def times_of_rank(facts: Facts, step_ns: float | None) -> RankTimes | None:
    """Return the times of a rank from its profile, or None without times.

    Args:
        facts: quantities of its profile.
        step_ns: mean time of a step; None: no steps.
    """
    meta = facts.attribution.meta
    if not facts.wall_ns:
        return None
    sums = collectives_of(facts.attribution).table.group_by("operation").agg(pl.col("wall_ns").sum())
    longest = sums.sort("wall_ns", "operation", descending=[True, False])["operation"].head(1).to_list()
    return RankTimes(
        ns=facts.wall_ns / facts.devices if step_ns is None else step_ns,
        waiting=facts.shares["collectives"],
        operation="".join(longest).removesuffix(".wait"),
        stepped=step_ns is not None,
        gpus=facts.busy.height if facts.on_device else 0,
        device=gpu_name(meta) if facts.on_device else cpu_name(meta),
    )


def ranks_verdict(ranks: Mapping[int, RankTimes]) -> str:
    """Return a sentence with the time of a step, the devices, the slowest rank, and how long the others wait for it.

    A rank is the slowest if its time outside exposed collectives is at least 5 % longer than the median of the others.

    Args:
        ranks: times of each rank by its number. With fewer than two, the sentence is empty.

    Example:
        >>> ranks = {rank: RankTimes(1e6, 0.3, "broadcast", True, 1, "T4") for rank in range(3)}
        >>> ranks_verdict(ranks | {3: RankTimes(1e6, 0.1, "broadcast", True, 1, "T4")})
        'Step 1.00 ms on 4 × T4: rank 3 is the slowest by 29%, and the others wait 20% of the step for it in broadcast.'
    """
    if len(ranks) < 2:
        return ""
    slowest = max(ranks, key=lambda rank: (ranks[rank].work_ns, -rank))
    others = [times for rank, times in ranks.items() if rank != slowest]
    usual = median(times.work_ns for times in others)
    over = ranks[slowest].work_ns / usual - 1 if usual else 0.0
    whole = median(times.ns for times in ranks.values())
    subject = "step" if all(times.stepped for times in ranks.values()) else "run"
    if over < _LEAST_SLOWER:
        clauses = [f"no rank is more than {_LEAST_SLOWER:.0%} slower than the others"]
    elif over < 1:
        clauses = [f"rank {slowest} is the slowest by {over:.0%}"]
    else:
        clauses = [f"rank {slowest} is slower than the others by a factor of {over + 1:.1f}"]
    wait = (median(_waiting(times) for times in others) - _waiting(ranks[slowest])) / whole
    if over >= _LEAST_SLOWER and wait >= _LEAST_WAIT:
        who = "the other one waits" if len(others) == 1 else "the others wait"
        clauses.append(f"{who} {wait:.0%} of the {subject} for it in {_operation(others)}")
    elif (share := median(times.waiting for times in ranks.values())) >= _LEAST_SLOWER:
        clauses.append(f"{share:.0%} {GPU_PARTS['collectives'].name}, mostly in {_operation(ranks.values())}")
    return f"{subject.capitalize()} {short_time(whole)} {_devices(ranks.values())}: {', and '.join(clauses)}."


def _waiting(times: RankTimes) -> float:
    return times.ns * times.waiting


def _operation(ranks: Collection[RankTimes]) -> str:
    return max(ranks, key=_waiting).operation or "collectives"


def _devices(ranks: Collection[RankTimes]) -> str:
    names = {times.device for times in ranks}
    name = names.pop() if len(names) == 1 else ""
    if all(times.gpus for times in ranks):
        return f"on {gpus(sum(times.gpus for times in ranks), name)}"
    return f"of {len(ranks)} ranks{f' on {name}' * bool(name)}"
