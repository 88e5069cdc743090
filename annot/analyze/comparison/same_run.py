"""Whether two profiles are ranks of one run.

Ranks can run different layers (stages of a pipeline) on different hosts, and their times differ. A recorded rank and
world size outweigh such differences. Without them, ranks have the same devices and share time by layer and by kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.comparison.digest import device_names
from annot.attribution.attribute import Attribution
from annot.attribution.gpu_time import UNATTRIBUTED

_SHARED: Final = 0.5
"""Fraction of the time by layer that profiles of one program share at least; by kernel where they have no layers.

Beside layers, a smaller share of the time by kernel is enough: kernels depend on the sizes of the inputs.
"""
_LEAST: Final = 0.1
"""Fraction of the time by kernel beside layers."""
_LONGEST: Final = 60
_MOST: Final = 1000
"""Number of names with the longest times that are compared."""


_VERSION: Final = re.compile(r"[\d(].*")


def profiler_of(meta: Mapping[str, Any]) -> str:
    """Return the profiler without its version, or the file format if the profile does not name the profiler.

    Example:
        >>> profiler_of({"producer": "NVIDIA Nsight Systems 2026.1"})
        'Nsight Systems'
    """
    name = _VERSION.sub("", str(meta.get("producer", ""))).removeprefix("NVIDIA ").strip()
    return name or str(meta.get("format", ""))


def differ(what: str, a: object, b: object) -> str:
    """Describe two values that differ; empty if one of them is unknown.

    Example:
        >>> differ("the devices differ", "A100", "H100"), differ("the devices differ", "", "H100")
        ('the devices differ: A100 and H100', '')
    """
    return f"{what}: {a} and {b}" if a and b and a != b else ""


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
        profiler=profiler_of(attribution.meta),
        rank=meta.get("rank"),
        world_size=meta.get("world_size"),
        on_gpu=on_gpu,
        devices=", ".join(device_names(attribution)),
        layers=_times(layers) if most else {},
        kernels=_times(kernels),
    )


def difference(a: Program, b: Program) -> str:
    """Return why two profiles are not ranks of one run, a clause in which A and B name them; empty if they are."""
    if reason := differ("the profilers differ", a.profiler, b.profiler) or differ(
        "the numbers of ranks differ", a.world_size, b.world_size
    ):
        return reason
    if a.world_size == b.world_size and (a.world_size or 1) > 1 and a.rank != b.rank:
        return ""
    if a.on_gpu != b.on_gpu:
        return f"only {'A' if a.on_gpu else 'B'} contains GPU activities"
    return differ("the devices differ", a.devices, b.devices) or _other_program(a, b)


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
