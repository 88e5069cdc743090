"""Digests of simulated runs on a noisy machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from annot.analyze.comparison.digest import TABLES, Digest


def simulated(
    random: np.random.Generator,
    *,
    slower: float = 0.0,
    layer: int = 20,
    layers: int = 60,
    steps: int = 40,
    dominant: float = 0.0,
    tails: float = np.inf,
    machine: float = 0.05,
) -> Digest:
    """Return a run of a net of layers whose times have the noise of a machine that does other work.

    The machine slows all layers of a run alike, by steps that depend on each other, in bursts, and each layer of a run
    by itself by 1.5 %.

    Args:
        random: the source of randomness.
        slower: how much longer one layer takes.
        layer: the number of this layer.
        layers: number of layers.
        steps: number of steps.
        dominant: share of the time in the layer that may be slower; 0: all take as long.
        tails: degrees of freedom of the t distribution of the noise of layers between runs.
        machine: standard deviation of the logarithm of the time of runs.
    """
    own = np.full(layers, 100_000.0)
    if dominant:
        own[layer] = own[0] * (layers - 1) * dominant / (1 - dominant)
    if slower:
        own[layer] *= 1 + slower
    noise = random.normal(size=layers) if np.isinf(tails) else random.standard_t(tails, layers)
    own *= np.exp(0.015 * noise + machine * random.normal())
    each = np.exp(0.03 * random.normal(size=(steps, layers)))
    common = np.zeros(steps)
    for step in range(1, steps):
        common[step] = 0.7 * common[step - 1] + 0.02 * random.normal()
    burst = np.where(random.random((steps, layers)) < 0.02, random.exponential(2.0, (steps, layers)), 0)
    times = (own * each * (np.exp(common)[:, None] + burst)).astype(np.int64)
    nodes, numbers = np.meshgrid(np.arange(1, layers + 1), np.arange(steps))
    return _digest(times.ravel(), nodes.ravel(), numbers.ravel(), times.sum(axis=1))


def _digest(ns: Any, node: Any, step: Any, totals: Any) -> Digest:
    count, number = len(totals), int(node.max())
    columns: dict[str, dict[str, Any]] = {
        "steps": {"step": range(count), "process": [0] * count, "start_ns": np.cumsum(totals) - totals,
                  "step_ns": totals, "data_ns": [0] * count, "gpu_ns": totals, "kernels": [number] * count},
        "nodes": {"parent": [-1] + [0] * number, "layer": ["net", *(f"net.{place}" for place in range(number))],
                  "module": ["Net", *(f"Layer{place}" for place in range(number))],
                  "phase": ["forward"] * (number + 1), "calls": [count] * (number + 1)},
        "times": {"node": node, "step": step, "host_ns": ns, "gpu_ns": ns, "calls": [1] * len(ns),
                  "activities": [1] * len(ns)},
    }  # fmt: skip
    tables = {}
    for name, schema in TABLES.items():
        values = columns.get(name, dict.fromkeys(schema, ()))
        tables[name] = pl.DataFrame([pl.Series(column, values[column]).cast(dtype) for column, dtype in schema.items()])
    meta: dict[str, Any] = {
        **dict.fromkeys(("source", "format", "producer", "cut", "cpu"), ""),
        "host_times": True,
        "rank": None,
        "world_size": None,
        "devices": ["made"],
        "device_count": 1,
        "on_gpu": True,
        "step_count": count,
        "step_kind": "step",
        "steps_found_by": "ranges",
        "autocast": [],
        "compiled": False,
        "versions": {},
        "threads": [],
    }
    return Digest(meta=meta, **tables)
