"""The times of the runs of a comparison: means, and samples that one hiccup does not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.comparison.digest import Digest
from annot.analyze.comparison.nesting import Times
from annot.analyze.comparison.statistics import effective_number
from annot.analyze.kernel_names import classify
from annot.attribution.column_ops import NONE, known
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import phases_of_nodes
from annot.attribution.nesting import KEY, Key, Keys, Nodes
from annot.labels.tag import COMPILED

Subject: TypeAlias = Literal["layer", "module", "phase", "kind", "kernel"]
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
"""Groupings for the rows of a comparison; kind: kinds of kernels."""

Folds: TypeAlias = Mapping[tuple[str, str], str]
"""The path that repeated layers share, such as ``layers.*``, by layer and module."""

_BLOCKS: Final = 10
"""Most blocks of consecutive steps that a run is divided into."""
_FEW: Final = 2
"""Number of steps whose mean is not robust."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times per step of some rows or nodes; those of the runs of a come before those of b.

    Args:
        means: the mean of each run.
        samples: robust times; see `Runs`.
    """

    means: list[Times]
    samples: list[Times]

    def inclusive(self, nodes: Nodes, groups: Sequence[int], number: int) -> Measured:
        """Return the sums of nodes and the nodes inside by group; a group inside itself counts once."""
        counted = [
            group if is_outermost else NONE for group, is_outermost in zip(groups, nodes.outermost(groups), strict=True)
        ]
        return Measured(
            *(summed(_folded_up(columns, nodes.parents), counted, number) for columns in (self.means, self.samples))
        )


def _folded_up(values: Sequence[Times], parents: Sequence[int]) -> list[Times]:
    """The sums of each node and the nodes inside. A parent comes before its children."""
    columns = [list(column) for column in zip(*values, strict=True)]
    for totals in columns:
        for node in range(len(totals) - 1, -1, -1):
            if parents[node] != NONE:
                totals[parents[node]] += totals[node]
    return list(zip(*columns, strict=True))


def summed(values: Sequence[Times], groups: Sequence[int], number: int) -> list[Times]:
    """Return the sums of each group (-1: none) below a number.

    Example:
        >>> summed([(1, 2), (3, 4), (5, 6)], [0, -1, 0], 1)
        [(6.0, 8.0)]
    """
    columns = []
    for column in zip(*values, strict=True):
        sums = [0.0] * number
        for group, value in zip(groups, column, strict=True):
            if group != NONE:
                sums[group] += value
        columns.append(sums)
    return list(zip(*columns, strict=True))


class Runs:
    """The runs of both sides of a comparison, with their layer paths in one tree.

    A sample is a robust time per step: that of the steps with time, times their fraction of the steps. That of typical
    steps is the mean of the middle half: up to a quarter of the steps can have any time. Other programs on the machine
    only ever add time, so that on a busy machine the mean of the fastest steps varies far less. The samples are those
    of runs, or if there is one run on each side, those of blocks of consecutive steps, at most as many as the run has
    independent steps.

    Args:
        a, b: the runs of each side.
        folds: the path that repeated layers of each side share; they have one path in the tree.
        fastest: share of the steps, the fastest, that samples are from; None: typical steps.

    Raises:
        ValueError: a side has no run.
    """

    def __init__(
        self,
        a: Sequence[Digest],
        b: Sequence[Digest],
        folds: tuple[Folds, Folds] = ({}, {}),
        *,
        fastest: float | None = None,
    ) -> None:
        if not a or not b:
            raise ValueError("a comparison needs a run on each side")
        self.runs, self.folds, self.fastest = [*a, *b], folds, fastest
        self.sizes = len(a), len(b)
        """Number of runs of each side."""
        self.on_gpu = all(run.meta["on_gpu"] for run in self.runs)
        self.per_step = all(run.meta["step_count"] for run in self.runs)
        self.between_runs = max(self.sizes) > 1
        """Whether samples are those of runs."""
        self._times = [self._counted(run.times) for run in self.runs]
        self._blocks = [self._divided(table, run) for table, run in zip(self._times, self.runs, strict=True)]
        samples = [blocks["block"].n_unique() for blocks in self._blocks]
        self.samples = sum(samples[: len(a)]), sum(samples[len(a) :])
        """Number of samples of each side."""
        self.keys, self.nodes, self._paths = Keys(), Nodes(), list[pl.Series]()
        for place, run in enumerate(self.runs):
            of = folds[place >= len(a)]
            paths: list[int] = []
            for parent, *key in run.nodes.select("parent", *KEY).iter_rows():
                number = self.keys.number(fold((key[0], key[1], key[2]), of))
                paths.append(self.nodes.extend(NONE if parent == NONE else paths[parent], [number]))
            self._paths.append(pl.Series("group", paths, pl.Int32))

    def _counted(self, table: pl.DataFrame) -> pl.DataFrame:
        """The compared times by step, those of whole profiles as one step."""
        rows = table.with_columns(ns="gpu_ns" if self.on_gpu else "host_ns").filter(pl.col("ns") != 0)
        return rows if self.per_step else rows.with_columns(step=pl.lit(0, pl.Int32))

    def _divided(self, times: pl.DataFrame, run: Digest) -> pl.DataFrame:
        """The block of each step: step, block, steps (in the block)."""
        count = run.steps.height if self.per_step else 1
        number = 1
        if not self.between_runs and count > 1:
            number = max(min(_BLOCKS, int(effective_number(_totals(times, count)))), _FEW)
        blocks = pl.DataFrame({"step": pl.int_range(count, dtype=pl.Int32, eager=True)})
        return blocks.with_columns(block=pl.col("step") * number // count).with_columns(steps=pl.len().over("block"))

    def sides(self, means: Times) -> tuple[float, float]:
        """Return the means of the runs of each side."""
        return fmean(means[: self.sizes[0]]), fmean(means[self.sizes[0] :])

    @property
    def steps(self) -> tuple[int, int] | None:
        """Number of steps of each side; None: whole profiles are compared."""
        counts = [run.steps.height for run in self.runs]
        return (sum(counts[: self.sizes[0]]), sum(counts[self.sizes[0] :])) if self.per_step else None

    @property
    def step_totals(self) -> list[list[float]]:
        """The time of everything in each step of each run."""
        return [_totals(times, blocks.height) for times, blocks in zip(self._times, self._blocks, strict=True)]

    @cached_property
    def longer(self) -> float:
        """The mean time of everything on the longer side (ns)."""
        return max(self.sides(self.whole.means[0]))

    @cached_property
    def of_nodes(self) -> Measured:
        """The self times of the nodes of the tree."""
        tables = []
        for times, paths in zip(self._times, self._paths, strict=True):
            inside = times.filter(pl.col("node") != NONE)
            tables.append(inside.with_columns(paths.gather(inside["node"])))
        return self._measured(tables, len(self.nodes))

    def of_rows(self, by: Subject) -> tuple[list[tuple[str, ...]], Measured]:
        """Return the names of phases, kinds or kernels, and their times."""
        if by == "phase":
            phase = phases_of_nodes(self.nodes, self.keys.names)
            tables = [
                times.with_columns(name=phase.gather(paths.gather(known(times["node"]))).fill_null(UNATTRIBUTED))
                for times, paths in zip(self._times, self._paths, strict=True)
            ]
        else:
            tables = [self._counted(run.activities) for run in self.runs]
        if by == "kind":
            kinds = {name: classify(name).kind for table in tables for name in table["name"].unique()}
            tables = [table.with_columns(pl.col("name").replace_strict(kinds)) for table in tables]
        names = list(dict.fromkeys(name for table in tables for name in table["name"].unique(maintain_order=True)))
        number = {name: place for place, name in enumerate(names)}
        tables = [table.with_columns(group=pl.col("name").replace_strict(number)) for table in tables]
        return [(name,) for name in names], self._measured(tables, len(names))

    @cached_property
    def whole(self) -> Measured:
        """The time of everything, attributed or not."""
        return self._measured([times.with_columns(group=pl.lit(0)) for times in self._times], 1)

    @property
    def step_time(self) -> Measured | None:
        """The wall-clock time of a step; None: a run does not have it."""
        if not self.per_step or any(run.steps["step_ns"].null_count() for run in self.runs):
            return None
        return self._measured([run.steps.select("step", group=pl.lit(0), ns="step_ns") for run in self.runs], 1)

    def _measured(self, tables: Sequence[pl.DataFrame], number: int) -> Measured:
        """Return the times of groups, given group (below a number), step and ns of each run."""
        means: list[list[float]] = []
        samples: list[list[float]] = []
        ns = pl.col("ns")
        for table, blocks in zip(tables, self._blocks, strict=True):
            by_step = table.group_by("group", "step").agg(ns.sum())
            means.append(_column(by_step.group_by("group").agg(ns.sum() / blocks.height), number))
            location, steps = _typical(ns, self.fastest), pl.col("steps").first()
            robust = pl.when((ns.len() == 1) & (steps > _FEW)).then(0.0).otherwise(location * ns.len() / steps)
            of_block = by_step.join(blocks, on="step").group_by("group", "block").agg(robust)
            columns = of_block.partition_by("block", as_dict=True, include_key=False)
            numbers = blocks["block"].unique().sort()
            samples += [_column(columns.get((block,), pl.DataFrame()), number) for block in numbers]
        return Measured(list(zip(*means, strict=True)), list(zip(*samples, strict=True)))


def _typical(ns: pl.Expr, fastest: float | None) -> pl.Expr:
    """The mean of the middle half, or of a share of the fastest."""
    if fastest is not None:
        return ns.sort().head((ns.len() * fastest).ceil().cast(pl.UInt32)).mean()
    cut = (ns.len() + 1) // 4
    return ns.sort().slice(cut, ns.len() - 2 * cut).mean()


def _totals(times: pl.DataFrame, count: int) -> list[float]:
    """The sums of each of the steps."""
    return _column(times.group_by("step").agg(pl.col("ns").cast(pl.Float64).sum()), count)


def _column(values: pl.DataFrame, number: int) -> list[float]:
    """The values of numbered groups; 0 for those without."""
    column = [0.0] * number
    for group, value in values.iter_rows():
        column[group] = value
    return column


def fold(key: Key, folds: Folds) -> Key:
    """Return the key of a layer, or of the repeated layers that it is one of."""
    layer, module, phase = key
    path = folds.get((layer, module))
    return key if path is None else (path, COMPILED if module.startswith(COMPILED) else module, phase)
