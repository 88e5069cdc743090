"""Simulated runs of commits: digests with chosen times of layers, noise between and inside runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import exp
from random import Random

import polars as pl
from tables import Rows

from annot.analyze.comparison.digest import Digest, digest
from annot.attribution.attribute import attribute
from annot.bisect.pairs import Pair, Pairs, SkipError
from annot.bisect.repository import Commit

STEPS = 12


def simulated_run(times: Mapping[str, float], random: Random, noise: float) -> Digest:
    """Return a run of steps in which layers take these times (ns).

    Args:
        times: time of each layer.
        random: source of the noise.
        noise: standard deviation of the logarithm of the time of a layer in a run, and of that in a step. That of the
            speed of the machine in a run is three times as large.
    """
    run, machine = _run(tuple(times)), random.gauss(0, 3 * noise)
    of_run = {layer: ns * exp(machine + random.gauss(0, noise)) for layer, ns in times.items()}
    names = run.nodes["layer"].gather(run.times["node"])
    measured = [round(of_run.get(name, 0.0) * exp(random.gauss(0, noise))) for name in names]
    table = run.times.with_columns(host_ns=pl.Series(measured, dtype=pl.Int64))
    lengths = dict(table.group_by("step").agg(pl.col("host_ns").sum()).iter_rows())
    step_ns = pl.col("step").replace_strict(lengths, return_dtype=pl.Int64)
    return replace(run, times=table, steps=run.steps.with_columns(step_ns=step_ns))


@cache
def _run(layers: tuple[str, ...]) -> Digest:
    """Return the digest of a run with these layers in each step."""
    rows, length = Rows(), 10 * len(layers)
    for step in range(STEPS):
        rows.range(f"Batch {step}", step * length, (step + 1) * length)
        for number, layer in enumerate(layers):
            start = step * length + 10 * number
            rows.range(f"{layer} Linear |fwd", start, start + 10)
    return digest(attribute(rows.build()))


class SimulatedPairs(Pairs):
    """Pairs of simulated runs.

    Args:
        commits: times of the layers of each commit by its subject, or why it does not run.
        noise: see `simulated_run`.
        seed: of the noise.
    """

    def __init__(self, commits: Mapping[str, Mapping[str, float] | str], noise: float, seed: int) -> None:
        self._commits, self._noise, self._random = commits, noise, Random(seed)
        self._pairs: dict[tuple[str, str, int], Pair] = {}

    def pair(self, a: Commit, b: Commit, number: int) -> Pair:
        """Return a pair of runs."""
        key = a.subject, b.subject, number
        if key not in self._pairs:
            self._pairs[key] = self._simulated(a), self._simulated(b)
        return self._pairs[key]

    def kept(self) -> int:
        """Return the number of runs."""
        return 2 * len(self._pairs)

    def _simulated(self, commit: Commit) -> Digest:
        times = self._commits[commit.subject]
        if isinstance(times, str):
            raise SkipError(times)
        return simulated_run(times, self._random, self._noise)
