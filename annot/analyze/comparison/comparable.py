"""Whether two profiles can be compared, or are ranks of one run.

Two runs are comparable if they differ in their times only. Layers that torch.compile or TensorFlow fused in one of them
are no difference: eager mode has the rows ``h.0.ln_1`` and ``h.0.attn.c_attn``, a compiled model
``h.0.ln_1+h.0.attn.c_attn``. The time of a fused kernel belongs to several layers, so that the profiles are compared at
the layer around these: ``h.0``.

Ranks can run different layers (stages of a pipeline) on different hosts, and their times differ. A recorded rank and
world size outweigh such differences. Without them, ranks have the same devices and share time by layer and by kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.comparison.digest import device_names
from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_layer
from annot.attribution.nesting import KEY
from annot.labels import layer_path
from annot.labels.tag import FUSED

Layer: TypeAlias = tuple[str, str]
"""Path and phase of a layer or of a fused kernel."""


def fused_layers(a: Collection[Layer], b: Collection[Layer]) -> tuple[set[Layer], set[Layer]]:
    """Return the layers and fused kernels of each profile whose time is elsewhere in the other profile.

    These are the fused kernels of one profile only, and the layers that such a kernel is fused from. Layers with others
    inside remain if both profiles have them: they have most of their work inside.

    Example:
        >>> eager = [("h", "forward"), ("h.ln", "forward"), ("h.fc", "forward"), ("h.drop", "forward")]
        >>> [*map(sorted, fused_layers(eager, [("h", "forward"), ("h.ln+h.fc", "forward")]))]
        [[('h.fc', 'forward'), ('h.ln', 'forward')], [('h.ln+h.fc', 'forward')]]
    """
    layers = set(a), set(b)
    fused = [{layer for layer in side if FUSED in layer[0]} for side in layers]
    only = fused[0] - fused[1], fused[1] - fused[0]
    if not any(only):
        return set(), set()
    members, around = [_members(side) for side in only], [_enclosing(side) for side in layers]
    # Layers of both profiles without others inside, a part of whose time is in a fused kernel.
    cut = (layers[0] & layers[1] & (members[0] | members[1])) - around[0] - around[1]
    sides = []
    for mine, other in ((0, 1), (1, 0)):
        present = layers[other] | members[other] | around[other]
        kernels = {kernel for kernel in only[mine] if not present.isdisjoint(_members([kernel]))}
        alone = (layers[mine] - layers[other]) & (members[other] | _enclosing(members[other]))
        sides.append(kernels | alone | cut)
    return sides[0], sides[1]


def _members(kernels: Iterable[Layer]) -> set[Layer]:
    """Return the layers that kernels are fused from."""
    return {(layer, phase) for path, phase in kernels for layer in layer_path.layers_of(path)}


def _enclosing(layers: Iterable[Layer]) -> set[Layer]:
    """Return the layers around layers and fused kernels."""
    return {(outer, phase) for path, phase in layers for outer in layer_path.around(path)}


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


def _time(a: Attribution, b: Attribution) -> str:
    on_gpu = [bool(side.nodes["gpu_self_ns"].sum() > 0) for side in (a, b)]
    if on_gpu[0] == on_gpu[1]:
        return ""
    return f"only {'A' if on_gpu[0] else 'B'} contains GPU activities"


def _device(a: Attribution, b: Attribution) -> str:
    names = [", ".join(device_names(side)) for side in (a, b)]
    counts = [side.device_busy.filter(pl.col("busy_ns") > 0).height for side in (a, b)]
    return _differ("the devices differ", *names) or _differ("the number of devices differs", *counts)


def _differ(what: str, a: object, b: object) -> str:
    """Describe two values that differ; empty if one of them is unknown."""
    return f"{what}: {a} and {b}" if a and b and a != b else ""


def _profiler(a: Attribution, b: Attribution) -> str:
    return _differ("the profilers differ", _profiler_of(a), _profiler_of(b))


def _profiler_of(attribution: Attribution) -> str:
    """Return the profiler without its version, or the file format if the profile does not name the profiler."""
    name = _VERSION.sub("", str(attribution.meta.get("producer", ""))).removeprefix("NVIDIA ").strip()
    return name or str(attribution.meta.get("format", ""))


def _ranks(a: Attribution, b: Attribution) -> str:
    return _differ("the number of ranks differs", *(side.meta.get("world_size") for side in (a, b)))


def _steps(a: Attribution, b: Attribution) -> str:
    counts = [side.steps.table.height for side in (a, b)]
    if bool(counts[0]) == bool(counts[1]):
        return _differ(
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
    if producers[0] != producers[1] and _profiler_of(a) == _profiler_of(b):
        yield f"the profiler versions differ: {producers[0] or 'unknown'} and {producers[1] or 'unknown'}"
    counts = [side.steps.steady().height for side in (a, b)]
    if all(counts) and counts[0] != counts[1]:
        yield f"times are means over different numbers of steps: {counts[0]:,} and {counts[1]:,}"
    methods = [side.steps.found_by for side in (a, b)]
    if all(counts) and methods[0] != methods[1]:
        yield f"the steps were found by different methods: {methods[0]}; {methods[1]}"
    if bool(device_names(a)) != bool(device_names(b)):
        yield f"{'A' if device_names(b) else 'B'} does not name its device"


_SHARED: Final = 0.5
"""Fraction of the time by layer that profiles of one program share at least; by kernel where they have no layers.

Beside layers, `_LEAST` of the time by kernel is enough: kernels depend on the sizes of the inputs.
"""
_LONGEST: Final = 60
_MOST: Final = 1000
"""Number of names with the longest times that are compared."""


@dataclass(frozen=True, slots=True)
class Program:
    """What distinguishes the program of a profile from others.

    Args:
        profiler: name of the profiler or the format.
        rank, world_size: as recorded; None: unknown.
        on_gpu: whether it has GPU activities.
        devices: names of the devices.
        layers: time (ns) by name, with ``#`` for numbers, as stages have other numbers; empty if most of the time is in
            no layer.
        kernels: time (ns) by name.
    """

    profiler: str
    rank: int | None
    world_size: int | None
    on_gpu: bool
    devices: str
    layers: Mapping[str, int]
    kernels: Mapping[str, int]


def program_of(attribution: Attribution) -> Program:
    """Return the program of a profile."""
    nodes, meta = attribution.nodes, attribution.meta
    on_gpu = bool(nodes["gpu_self_ns"].sum() > 0)
    time = nodes["gpu_self_ns" if on_gpu else "host_self_ns"].cast(pl.Int64)
    name = pl.col("layer").str.replace_all(r"\d+", "#")
    rows = attribution.forest.layers_of_nodes().select("layer", name=name, ns=time)
    layers = rows.filter(pl.col("layer") != UNATTRIBUTED)
    most = 2 * layers["ns"].sum() > rows["ns"].sum()
    kernels = attribution.names.select(name=pl.col("name").cast(pl.String), ns="gpu_ns")
    return Program(
        profiler=_profiler_of(attribution),
        rank=meta.get("rank"),
        world_size=meta.get("world_size"),
        on_gpu=on_gpu,
        devices=", ".join(device_names(attribution)),
        layers=_times(layers) if most else {},
        kernels=_times(kernels),
    )


def difference(a: Program, b: Program) -> str:
    """Return why two profiles are not ranks of one run, a clause in which A and B name them; empty if they are."""
    if reason := _differ("the profilers differ", a.profiler, b.profiler) or _differ(
        "the numbers of ranks differ", a.world_size, b.world_size
    ):
        return reason
    if a.world_size == b.world_size and (a.world_size or 1) > 1 and a.rank != b.rank:
        return ""
    if a.on_gpu != b.on_gpu:
        return f"only {'A' if a.on_gpu else 'B'} contains GPU activities"
    return _differ("the devices differ", a.devices, b.devices) or _other_program(a, b)


def _other_program(a: Program, b: Program) -> str:
    layers, kernels = (a.layers, b.layers), (a.kernels, b.kernels)
    checks = [("layers", layers, _SHARED), ("kernels", kernels, _LEAST if all(layers) else _SHARED)]
    for what, times, least in checks:
        if all(times) and _shared(*times) < least:
            first, second = (max(time, key=time.__getitem__)[:_LONGEST] for time in times)
            return f"they have other {what}, such as {first} in A and {second} in B"
    return ""


def _shared(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Return the fraction of the time in names that both have, that of the profile in which it is larger."""
    return max(
        sum(ns for name, ns in times.items() if name in other) / max(sum(times.values()), 1)
        for times, other in ((a, b), (b, a))
    )


def _times(rows: pl.DataFrame) -> dict[str, int]:
    times = rows.group_by("name").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
    return dict(times.sort("ns", "name", descending=[True, False]).head(_MOST).iter_rows())
