"""Simulated runs of commits: profiles with chosen times of layers, noise between and inside runs."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

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
        noise: standard deviation of the logarithm of each time of a run, and of the speed of the machine in the run.
    """
    rows, now = Rows(), 0
    machine = random.gauss(0, 3 * noise)
    of_run = {layer: ns * 2.718 ** (machine + random.gauss(0, noise)) for layer, ns in times.items()}
    for step in range(STEPS):
        start = now
        layers = []
        for layer, ns in of_run.items():
            end = now + round(ns * 2.718 ** random.gauss(0, noise))
            layers.append((f"{layer} Linear |fwd", now, end))
            now = end
        rows.range(f"Batch {step}", start, now)
        for text, begin, end in layers:
            rows.range(text, begin, end)
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
            self._pairs[key] = self._run(a), self._run(b)
        return self._pairs[key]

    def kept(self) -> int:
        """Return the number of runs."""
        return 2 * len(self._pairs)

    def _run(self, commit: Commit) -> Digest:
        times = self._commits[commit.subject]
        if isinstance(times, str):
            raise SkipError(times)
        return simulated_run(times, self._random, self._noise)
