"""One sentence about the ranks of a run: the time of a step, the devices, the slowest rank, and who waits for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import polars as pl

from annot.analyze.advice import Facts
from annot.analyze.collectives import collectives_of
from annot.analyze.device_names import cpu_name, gpu_name, gpus, short_time
from annot.analyze.part_names import GPU_PARTS
from annot.analyze.step_parts import WORK

__all__ = ["RankTimes", "ranks_verdict", "times_of_rank"]

_LEAST: Final = 0.05
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
    times, meta = facts.step_time, facts.attribution.meta
    if not facts.wall_ns:
        return None
    devices = times.select("process", "device").n_unique()
    busy = times.filter(pl.col("share").is_in(WORK), pl.col("ns") > 0).select("process", "device").n_unique()
    sums = collectives_of(facts.attribution).table.group_by("operation").agg(pl.col("wall_ns").sum())
    longest = sums.sort("wall_ns", "operation", descending=[True, False])["operation"].head(1).to_list()
    return RankTimes(
        facts.wall_ns / devices if step_ns is None else step_ns,
        facts.shares.get("collectives", 0.0),
        "".join(longest).removesuffix(".wait"),
        step_ns is not None,
        busy if facts.on_device else 0,
        gpu_name(meta) if facts.on_device else cpu_name(meta),
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
    if over < _LEAST:
        clauses = [f"no rank is more than {_LEAST:.0%} slower than the others"]
    elif over < 1:
        clauses = [f"rank {slowest} is the slowest by {over:.0%}"]
    else:
        clauses = [f"rank {slowest} is slower than the others by a factor of {over + 1:.1f}"]
    wait = (median(_waiting(times) for times in others) - _waiting(ranks[slowest])) / whole
    if over >= _LEAST and wait >= _LEAST_WAIT:
        who = "the other one waits" if len(others) == 1 else "the others wait"
        clauses.append(f"{who} {wait:.0%} of the {subject} for it in {_operation(others)}")
    elif (share := median(times.waiting for times in ranks.values())) >= _LEAST:
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
