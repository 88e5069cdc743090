"""Two runs side by side, and what their steps have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.util.weak_keys import once_for_each

LEVEL: Final = 0.01
"""Probability from which a difference between the steps of two runs can be chance."""
_OUTER: Final = 0.1
"""Share of the steps below and above the usual values of a run: an epoch ends with another batch, or a validation."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two runs, as a sentence without its full stop; empty: nothing. `share` is of the time."""

    text: str = ""
    share: float = 1.0

    def __bool__(self) -> bool:
        """Whether the runs differ."""
        return bool(self.text)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs with their names in sentences, such as A and B."""

    runs: tuple[Digest, Digest]
    names: tuple[str, str]

    @property
    def per_step(self) -> bool:
        """Whether both runs have steps."""
        return all(run.meta["step_count"] for run in self.runs)

    @property
    def time(self) -> str:
        """The time that is compared: GPU time if both runs have GPU activity."""
        return "gpu_ns" if all(run.meta["on_gpu"] for run in self.runs) else "host_ns"


@once_for_each
def layers_by_step(run: Digest) -> pl.DataFrame:
    """Return a row per layer and step with events: layer, module, phase, name, step, process and sums of `times`.

    Labels of other tools may contain step numbers or file names: in `name`, their digits are ``#``.
    """
    nodes = run.nodes.with_columns(node=pl.int_range(pl.len(), dtype=pl.Int32)).drop("parent", "calls")
    digits = pl.col("layer").str.replace_all(r"\d+", "#")
    nodes = nodes.with_columns(name=pl.when(pl.col("module") == "").then(digits).otherwise("layer"))
    rows = run.times.join(nodes.filter(pl.col("layer") != UNATTRIBUTED), on="node")
    rows = rows.group_by("layer", "module", "phase", "name", "step").agg(
        pl.col("host_ns", "gpu_ns", "calls", "activities").sum()
    )
    return rows.join(run.steps.select("step", "process"), on="step", how="left")


@once_for_each
def layer_sums(run: Digest) -> pl.DataFrame:
    """Return a row per name and phase of layers.

    The columns are name, phase, module, gpu_ns, host_ns, gpu_ns_steps (number of steps with GPU activities),
    host_ns_steps (number of steps with ranges), and of (number of steps of the processes with such layers).
    """
    rows = layers_by_step(run)
    times = ("gpu_ns", "host_ns")
    sums = rows.group_by("name", "phase").agg(
        pl.col("module").max(),
        pl.col(times).sum(),
        gpu_ns_steps=pl.col("step").filter(pl.col("activities") > 0).n_unique(),
        host_ns_steps=pl.col("step").n_unique(),
    )
    counts = run.steps.group_by("process").agg(of=pl.len())
    of = rows.select("name", "phase", "process").unique().join(counts, on="process")
    return sums.join(of.group_by("name", "phase").agg(pl.col("of").sum()), on=["name", "phase"])


def is_gone(steps: int, of: int, others: int) -> bool:
    """Return whether what some steps of a run have is missing in all steps of another run for a reason.

    What every step has is missing for a reason. What some steps have, such as a validation, can be missing by chance.

    Example:
        >>> is_gone(3, of=3, others=1), is_gone(1, of=39, others=39), is_gone(20, of=40, others=40)
        (True, False, True)
    """
    return steps >= of or is_rarer(0, others, steps, of)


def is_rarer(steps: int, of: int, others: int, of_others: int) -> bool:
    """Return whether less of the steps of a run have something than of another run, by more than chance.

    Steps are exchanged between the runs: the probability is that of Fisher's exact test.

    Example:
        >>> is_rarer(2, 12, 7, 7), is_rarer(2, 4, 3, 3)
        (True, False)
    """
    every = math.comb(of + of_others, steps + others)
    ways = sum(math.comb(of, k) * math.comb(of_others, steps + others - k) for k in range(steps + 1))
    return steps * of_others < others * of and ways / every < LEVEL


def differ_by_step(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether the usual values of a step differ between two runs.

    Usual values are those without the least and the greatest tenth. They differ if their intervals have no value in
    common, and that cannot be chance: in each run, the value is the same in all steps, or there are enough steps.

    Example:
        >>> differ_by_step([4.0], [4.0]), differ_by_step([4.0] * 3, [1.0] * 9), differ_by_step([4.0, 5.0], [3.0, 2.0])
        (False, True, False)
    """
    (low_a, high_a), (low_b, high_b) = usual(a), usual(b)
    if low_a <= high_b and low_b <= high_a:
        return False
    return (low_a == high_a and low_b == high_b) or 2 / math.comb(len(a) + len(b), len(a)) < LEVEL


def usual(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value of a step, without the outer tenths."""
    ordered = sorted(values)
    outer = int(_OUTER * len(ordered))
    return ordered[outer], ordered[len(ordered) - 1 - outer]
