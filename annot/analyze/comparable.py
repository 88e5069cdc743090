"""Check whether two runs are comparable: differences between them other than their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.fused_layers import fused_layers
from annot.analyze.gpu_activities import KEY
from annot.attribution import UNATTRIBUTED, Attribution, by_layer

__all__ = ["Comparability", "Reason", "comparability", "device_names", "differ", "profiler_of"]

Kind: TypeAlias = Literal[
    "time", "device", "profiler", "ranks", "steps", "layers", "kernels", "calls", "shapes", "dtypes"
]

_OTHER_PROGRAM: Final = ("time", "steps", "layers", "kernels", "calls")
"""Kinds of reasons that make the ratio of total times meaningless."""
_LEAST: Final = 0.1
"""Differences count if the affected layers take more than this fraction of a run."""
_DTYPE: Final = re.compile(r"(?<=\])[a-z]\w*")
_VERSION: Final = re.compile(r"[\d(].*")


@dataclass(frozen=True, slots=True)
class Reason:
    """A difference between two runs: its subject, and the values of both runs as a sentence without its full stop."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Comparability:
    """Result of the check whether two runs, A and B, are comparable.

    Args:
        reasons: differences that make the runs incomparable; empty: they are comparable.
        notes: differences that do not affect the comparison.
    """

    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether the runs differ only in their times."""
        return not self.reasons

    @property
    def same_program(self) -> bool:
        """Whether both ran the same program: the ratio of total times is meaningful despite other differences."""
        return not any(reason.kind in _OTHER_PROGRAM for reason in self.reasons)


def comparability(a: Attribution, b: Attribution) -> Comparability:
    """Return whether two runs, a baseline and another, are comparable, and the reasons if they are not."""
    checks: tuple[Callable[[Attribution, Attribution], str], ...]
    checks = (_time, _device, _profiler, _ranks, _steps, _layers, _kernels, _calls, _shapes, _dtypes)
    texts = ((kind, check(a, b)) for kind, check in zip(get_args(Kind), checks, strict=True))
    return Comparability(tuple(Reason(kind, text) for kind, text in texts if text), tuple(_notes(a, b)))


def device_names(attribution: Attribution) -> list[str]:
    """Return the distinct names of the devices that the run used, or of all devices if the used ones are unknown."""
    devices: list[dict[str, Any]] = list(attribution.meta.get("devices", ()))
    numbered = {device.get("cuDevice", device.get("id")): device for device in devices}
    used = [numbered[number] for number in attribution.device_busy["device"].unique().sort() if number in numbered]
    return list(dict.fromkeys(str(device["name"]) for device in used or devices if device.get("name")))


def _time(a: Attribution, b: Attribution) -> str:
    on_gpu = [bool(side.nodes["gpu_self_ns"].sum() > 0) for side in (a, b)]
    if on_gpu[0] == on_gpu[1]:
        return ""
    return f"only {'A' if on_gpu[0] else 'B'} contains GPU activities"


def _device(a: Attribution, b: Attribution) -> str:
    names = [", ".join(device_names(side)) for side in (a, b)]
    counts = [side.device_busy.filter(pl.col("busy_ns") > 0).height for side in (a, b)]
    return differ("the devices differ", *names) or differ("the number of devices differs", *counts)


def differ(what: str, a: object, b: object) -> str:
    """Describe two values that differ; empty if one of them is unknown."""
    return f"{what}: {a} and {b}" if a and b and a != b else ""


def _profiler(a: Attribution, b: Attribution) -> str:
    return differ("the profilers differ", profiler_of(a), profiler_of(b))


def profiler_of(attribution: Attribution) -> str:
    """Return the profiler without its version, or the file format if the profile does not name the profiler."""
    name = _VERSION.sub("", str(attribution.meta.get("producer", ""))).removeprefix("NVIDIA ").strip()
    return name or str(attribution.meta.get("format", ""))


def _ranks(a: Attribution, b: Attribution) -> str:
    return differ("the number of ranks differs", *(side.meta.get("world_size") for side in (a, b)))


def _steps(a: Attribution, b: Attribution) -> str:
    counts = [side.steps.table.height for side in (a, b)]
    if bool(counts[0]) == bool(counts[1]):
        return differ(
            "the kinds of the steps differ", *(next(iter(side.steps.steady()["kind"]), None) for side in (a, b))
        )
    in_a, in_b = ("no steps" if not steps else f"{steps:,} step{'s' if steps > 1 else ''}" for steps in counts)
    return f"A has {in_a}, B has {in_b}, so whole runs are compared"


def _layers(a: Attribution, b: Attribution) -> str:
    rows = [by_layer(side).select(KEY).filter(pl.col("layer") != UNATTRIBUTED) for side in (a, b)]
    apart = fused_layers(*(layers.select("layer", "phase").rows() for layers in rows))
    sides = []
    for side, layers, fused in zip((a, b), rows, apart, strict=True):
        own = layers.join(_own(side, a, b), on=KEY, how="left").with_columns(pl.col("ns").fill_null(0))
        # Foreign labels may contain step numbers or file names: replace their digits before matching.
        name = pl.when(pl.col("module") == "").then(pl.col("layer").str.replace_all(r"\d+", "#")).otherwise("layer")
        is_fused = pl.Series([layer in fused for layer in own.select("layer", "phase").iter_rows()], dtype=pl.Boolean)
        name = pl.when(is_fused).then(pl.lit("")).otherwise(name)  # compared as the model
        own = own.group_by(name.alias("layer"), "phase").agg(pl.col("ns").sum())
        sides.append(own.select("ns", name=pl.struct("layer", "phase")))
    return _only(sides[0], sides[1], _layer_name, "layers")


def _layer_name(row: dict[str, str]) -> str:
    return f"{row['layer'] or '(model)'} {row['phase']}"


def _kernels(a: Attribution, b: Attribution) -> str:
    """Kernels of only one run, checked if half of the GPU time is unattributed."""
    sides = [side.nodes["gpu_self_ns"].sum() for side in (a, b)]
    outside = [_own(side, a, b).filter(pl.col("layer") == UNATTRIBUTED)["ns"].sum() for side in (a, b)]
    if not all(sides) or all(2 * lost < total for lost, total in zip(outside, sides, strict=True)):
        return ""
    names = [side.names.group_by(pl.col("name").cast(pl.String)).agg(ns=pl.col("gpu_ns").sum()) for side in (a, b)]
    return _only(names[0], names[1], lambda name: name[:60], "kernels")


def _only(a: pl.DataFrame, b: pl.DataFrame, text: Callable[[Any], str], what: str) -> str:
    """Describe names that occur in one run only and take more than `_LEAST` of its time."""
    clauses = []
    for letter, side, other in (("A", a, b), ("B", b, a)):
        alone = side.join(other, on="name", how="anti").sort("ns", "name", descending=[True, False])
        whole, mine = int(side["ns"].sum()), int(alone["ns"].sum())
        share = mine / whole if whole else 0.0
        if share > _LEAST:
            clauses.append(f"{what} only in {letter} take {share:.0%} of its time, such as {text(alone['name'][0])}")
    return "; ".join(clauses)


def _own(side: Attribution, a: Attribution, b: Attribution) -> pl.DataFrame:
    """Self time of each layer: layer, module, phase, ns. GPU time if both runs have GPU activities, else CPU time."""
    device = all(run.nodes["gpu_self_ns"].sum() > 0 for run in (a, b))
    time = side.nodes["gpu_self_ns" if device else "host_self_ns"]
    rows = side.forest.layers_of_nodes().with_columns(time.cast(pl.Int64).alias("ns"))
    return rows.group_by(KEY).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)


def _calls(a: Attribution, b: Attribution) -> str:
    """Without steps, whole runs are compared, so layers must have the same number of calls."""
    if a.steps.table.height or b.steps.table.height:
        return ""
    rows, whole = _shared_layers(a, b)
    other = rows.filter(pl.col("calls") != pl.col("calls_b"))
    if other["ns"].sum() <= _LEAST * whole:
        return ""
    row = other.row(0, named=True)
    counts = f"{_layer_name(row)} {row['calls']:,} and {row['calls_b']:,}"
    return f"neither run has steps, and the numbers of calls differ: {counts}"


def _shared_layers(a: Attribution, b: Attribution) -> tuple[pl.DataFrame, int]:
    """Layers of both runs with their calls and shapes, longest in A first; and the total time of A."""
    sides = []
    for side in (a, b):
        shapes = pl.col("shapes").list.explode().drop_nulls().unique().sort()
        rows = by_layer(side).filter(pl.col("layer") != UNATTRIBUTED)
        sides.append(rows.group_by("layer", "phase").agg(pl.col("calls").sum(), shapes))
    own = _own(a, a, b).group_by("layer", "phase").agg(pl.col("ns").sum())
    rows = sides[0].join(sides[1], on=["layer", "phase"], suffix="_b").join(own, on=["layer", "phase"])
    return rows.sort("ns", "layer", "phase", descending=[True, False, False]), int(own["ns"].sum())


def _shapes(a: Attribution, b: Attribution) -> str:
    return _differing_inputs(a, b, "shapes", lambda texts: {_DTYPE.sub("", text) for text in texts})


def _dtypes(a: Attribution, b: Attribution) -> str:
    casts = [set(side.forest.labels["text"].str.extract(r" autocast=(\w+)").drop_nulls()) for side in (a, b)]
    if casts[0] != casts[1]:
        first, second = (", ".join(sorted(dtypes)) or "none" for dtypes in casts)
        return f"the autocast dtypes differ: {first} and {second}"
    return _differing_inputs(a, b, "dtypes", lambda texts: {kind for text in texts for kind in _DTYPE.findall(text)})


def _differing_inputs(a: Attribution, b: Attribution, what: str, extract: Callable[[Iterable[str]], set[str]]) -> str:
    """Describe layers whose inputs differ between the runs, if they take more than `_LEAST` of the time."""
    rows, _ = _shared_layers(a, b)
    pairs = [(row, extract(row["shapes"]), extract(row["shapes_b"])) for row in rows.iter_rows(named=True)]
    complete = [pair for pair in pairs if pair[1] and pair[2]]
    other = [pair for pair in complete if not pair[1] & pair[2]]
    if sum(row["ns"] for row, _, _ in other) <= _LEAST * sum(row["ns"] for row, _, _ in complete):
        return ""
    row, in_a, in_b = other[0]
    return f"the input {what} differ: {_layer_name(row)} {min(in_a)} and {min(in_b)}"


def _notes(a: Attribution, b: Attribution) -> Iterable[str]:
    producers = [str(side.meta.get("producer", "")) for side in (a, b)]
    if producers[0] != producers[1] and profiler_of(a) == profiler_of(b):
        yield f"the profiler versions differ: {producers[0] or 'unknown'} and {producers[1] or 'unknown'}"
    counts = [side.steps.steady().height for side in (a, b)]
    if all(counts) and counts[0] != counts[1]:
        yield f"times are means over different numbers of steps: {counts[0]:,} and {counts[1]:,}"
    methods = [side.steps.found_by for side in (a, b)]
    if all(counts) and methods[0] != methods[1]:
        yield f"the steps were found by different methods: {methods[0]}; {methods[1]}"
    if bool(device_names(a)) != bool(device_names(b)):
        yield f"{'A' if device_names(b) else 'B'} does not name its device"
