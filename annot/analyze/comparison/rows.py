"""The rows of a comparison: their numbers, and for layers where changes took place."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import polars as pl

from annot.analyze.comparison.evidence import Evidence, RowEvidence, Shift
from annot.analyze.comparison.fused import fused_layers
from annot.analyze.comparison.nesting import Nesting, Times
from annot.analyze.comparison.runs import Runs, Subject, fold, summed
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import modules_of_keys
from annot.attribution.nesting import KEY, Key
from annot.profile import Schema

NAMES: Final[Mapping[Subject, tuple[str, ...]]] = {
    "layer": KEY, "module": KEY[1:], "phase": ("phase",), "kind": ("kind",), "kernel": ("name",),
}  # fmt: skip
"""Columns with the name of a row."""
_NUMBERS: Final[Schema] = {
    **dict.fromkeys(("a_ns", "b_ns", "difference_ns", "speedup", "speedup_low", "speedup_high", "share"), pl.Float64),
    "only_in": pl.String,
    "relative_speedup": pl.Float64,
    "p": pl.Float64,
}
_Name: TypeAlias = tuple[str, ...]
_NUMBERED: Final = re.compile(r"\d+")
_Kernels: TypeAlias = Mapping[Key, set[str]]


@dataclass(frozen=True, slots=True)
class Table:
    """The compared rows of a grouping; see `annot.analyze.comparison.compare.Comparison`."""

    rows: pl.DataFrame
    evidence: RowEvidence
    nesting: Nesting | None = None
    own: Sequence[Times] = ()


def numbers(a: float, b: float, change: Shift | None, longer: float) -> dict[str, Any]:
    """Return the numbers of a row, given its mean times (0: absent) and that of everything on the longer side."""
    change = change or Shift(b / a if a else 0.0, None, None, None)
    factors = (change.factor, change.high, change.low, change.relative and change.relative.factor)
    speedup, low, high, relative = (1 / factor if factor else None for factor in factors)
    return {
        "a_ns": a or None,
        "b_ns": b or None,
        "difference_ns": b - a,
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "share": max(a, b) / (longer or 1),
        "only_in": "a" if not b else None if a else "b",
        "relative_speedup": relative,
        "p": change.p,
    }


def rows_of(runs: Runs, by: Subject, evidence: Evidence) -> Table:
    """Return the rows of a grouping, the largest slowdown first."""
    if by == "layer":
        return _layers(runs, evidence)
    if by == "module":
        names, of_key = modules_of_keys(runs.keys.names)
        return _nested(runs, by, names, of_key, evidence)
    of_rows, times = runs.of_rows(by)
    order = _order(of_rows, times.means, runs)
    samples = [times.samples[row] for row in order]
    changes = RowEvidence(evidence, samples, samples, {}, [None] * len(order), runs.whole.samples[0])
    return Table(_frame(by, [(of_rows[row], *runs.sides(times.means[row])) for row in order], changes, runs), changes)


def folded_layers(runs: Runs, evidence: Evidence) -> pl.DataFrame:
    """Return the rows of layers, those that share a path as one, and the column folded.

    It has the number of these layers, on the side with more of them; null: a single layer.
    """
    rows, folded = _layers(runs, evidence).rows, []
    counts = [Counter(fold((*layer, ""), of)[:2] for layer in of) for of in runs.folds]
    for layer, module in rows.select("layer", "module").iter_rows():
        before, after = classes_of(module)
        folded.append(max(counts[0][layer, before], counts[1][layer, after]) or None)
    return rows.with_columns(folded=pl.Series(folded, dtype=pl.Int64))


def _nested(
    runs: Runs,
    by: Subject,
    names: Sequence[_Name],
    of_key: Sequence[int],
    evidence: Evidence,
    apart: Collection[int] = (),
) -> Table:
    """The rows of layers, given the name of each row, and the row of each layer.

    The time of the rows in `apart` belongs to the rows around.
    """
    own, of_node = runs.of_nodes, [of_key[key] for key in runs.nodes.keys]
    times = own.inclusive(runs.nodes, of_node, len(names))
    order = _order(names, times.means, runs)
    places = {row: place for place, row in enumerate(order)}
    nesting = Nesting([places.get(row, NONE) for row in of_node], runs.nodes.parents)
    samples = [times.samples[row] for row in order]
    kept = {places[row] for row in places if row not in apart}
    of_rows = summed(own.samples, nesting.nearest(kept), len(order))
    groups = [tuple(_NUMBERED.sub("#", part) for part in names[row]) for row in order]
    changes = RowEvidence(evidence, samples, of_rows, nesting.inside_each(), groups, runs.whole.samples[0])
    rows = _frame(by, [(names[row], *runs.sides(times.means[row])) for row in order], changes, runs)
    return Table(rows, changes, nesting, own.samples)


def _order(names: Sequence[_Name], means: Sequence[Times], runs: Runs) -> list[int]:
    """The rows with time, the largest slowdown first."""
    sides = [runs.sides(times) for times in means]
    rows = [row for row, times in enumerate(sides) if any(times)]
    return sorted(rows, key=lambda row: (sides[row][0] - sides[row][1], -max(sides[row]), names[row]))


def _frame(by: Subject, rows: Sequence[tuple[_Name, float, float]], changes: RowEvidence, runs: Runs) -> pl.DataFrame:
    """The table of rows, given the name and mean times of each."""
    columns = NAMES[by]
    records = [
        dict(zip(columns, name, strict=True)) | numbers(a, b, change, runs.longer)
        for (name, a, b), change in zip(rows, changes.shifts, strict=True)
    ]
    return pl.DataFrame(records, schema={**dict.fromkeys(columns, pl.String), **_NUMBERS})


def _layers(runs: Runs, evidence: Evidence) -> Table:
    """The rows of layers, with the columns that only they have."""
    keys = runs.keys.names
    sides = _with_time(runs)
    renamed = _renamed(*sides)
    names = list(dict.fromkeys(renamed.get(key, key) for key in keys if key in sides[0] or key in sides[1]))
    numbered = {name: number for number, name in enumerate(names)}
    fused = set[tuple[str, str]]().union(*fused_layers(*([(name, phase) for name, _, phase in side] for side in sides)))
    apart = {number for (layer, _, phase), number in numbered.items() if (layer, phase) in fused}
    of_key = [numbered.get(renamed.get(key, key), NONE) for key in keys]
    table = _nested(runs, "layer", names, of_key, evidence, apart)
    is_fused = [(layer, phase) in fused for layer, _, phase in table.rows.select(KEY).iter_rows()]
    rows = table.rows.with_columns(fused=pl.Series(is_fused, dtype=pl.Boolean))
    assert table.nesting is not None
    rows = _add_explained(rows, table.nesting, [runs.sides(times) for times in runs.of_nodes.means], runs.longer)
    return replace(table, rows=_add_kernels(rows, *_kernel_names(runs)))


def _with_time(runs: Runs) -> tuple[set[Key], set[Key]]:
    """The layers of each side that have time."""
    keys = runs.keys.names
    means = runs.of_nodes.inclusive(runs.nodes, runs.nodes.keys, len(keys)).means
    a, b = ({key for key, times in zip(keys, means, strict=True) if runs.sides(times)[side]} for side in (0, 1))
    return a, b


def _renamed(a: set[Key], b: set[Key]) -> dict[Key, Key]:
    """Match layers whose class changed: their class becomes ``A → B``."""
    alone = [defaultdict[tuple[str, str], list[str]](list) for _ in "ab"]
    for modules, only in zip(alone, (a - b, b - a), strict=True):
        for layer, module, phase in only:
            modules[layer, phase].append(module)
    renamed: dict[Key, Key] = {}
    for (layer, phase), before in alone[0].items():
        after = alone[1].get((layer, phase), ())
        if len(before) == len(after) == 1 and layer != UNATTRIBUTED:
            both = layer, f"{before[0]} → {after[0]}", phase
            renamed |= {(layer, before[0], phase): both, (layer, after[0], phase): both}
    return renamed


def classes_of(module: str) -> tuple[str, str]:
    """Return the class of a layer on both sides: ``A → B`` if it changed.

    Example:
        >>> classes_of("Linear → LoRA"), classes_of("Linear")
        (('Linear', 'LoRA'), ('Linear', 'Linear'))
    """
    before, _, after = module.partition(" → ")
    return before, after or before


_MATTERS: Final = 0.001
"""Change of the time of a layer, as a share of the run, that is worth a row. Smaller ones count to the layer around."""
_REST: Final = 0.25
"""Smallest share of the change of a layer that is in no row inside it, for the layer to have a row of its own."""
_ROUNDING_NS: Final = 0.01


def _add_explained(rows: pl.DataFrame, nesting: Nesting, own: Sequence[Times], longer: float) -> pl.DataFrame:
    """Add the columns `explained` and `own_difference_ns` of `Comparison.rows`.

    The change of a layer is that of its self time plus those of the layers inside. A layer is a place if its change
    without that of places inside is at least `_MATTERS` of the run and `_REST` of its whole change. It gathers the
    small changes inside. All other layers inside a place are explained. Outside places, a layer is explained if the
    rows inside have more than 1 - `_REST` of its change. The outermost rows have what counts to no other row. The time
    of fused kernels counts to the layer around. `own` has the mean self times of each node in a and b.
    """
    changes: list[float] = rows["difference_ns"].to_list()

    def is_own(row: int, times: Times) -> bool:
        return abs(times[1] - times[0]) + _ROUNDING_NS >= _REST * abs(changes[row])

    def matters(row: int, times: Times) -> bool:
        return abs(times[1] - times[0]) >= _MATTERS * longer and is_own(row, times)

    every = (~rows["fused"]).arg_true().to_list()
    places = nesting.at_their_place(every, own, matters)
    small, outermost = set(every) - nesting.inside(places), nesting.outermost()
    shown: set[int] = set()

    def has_own(row: int, times: Times) -> bool:
        if row in places or (row in small and is_own(row, times)):
            shown.add(row)
        return row in shown or row in outermost

    kept = nesting.at_their_place({*places, *small, *outermost}, own, has_own)
    differences = [kept[row][1] - kept[row][0] if row in kept else None for row in range(rows.height)]
    explained = pl.Series("explained", [row not in shown for row in range(rows.height)])
    return rows.with_columns(explained, pl.Series("own_difference_ns", differences, pl.Float64))


def _add_kernels(rows: pl.DataFrame, of_a: _Kernels, of_b: _Kernels) -> pl.DataFrame:
    """Add the kernels that the layer itself launches in only one of the runs."""
    gone, new = [], []
    for layer, module, phase in rows.select(KEY).rows():
        before, after = classes_of(module)
        in_a, in_b = of_a.get((layer, before, phase), set()), of_b.get((layer, after, phase), set())
        gone.append(sorted(in_a - in_b))
        new.append(sorted(in_b - in_a))
    lists = pl.List(pl.String)
    return rows.with_columns(pl.Series("kernels_gone", gone, lists), pl.Series("kernels_new", new, lists))


def _kernel_names(runs: Runs) -> tuple[_Kernels, _Kernels]:
    """The kernels that each layer launches itself in any run of each side."""
    sides = defaultdict[Key, set[str]](set), defaultdict[Key, set[str]](set)
    for place, run in enumerate(runs.runs):
        side = place >= runs.sizes[0]
        keys = [fold(key, runs.folds[side]) for key in run.nodes.select(KEY).iter_rows()]
        for node, name in run.kernels.filter("kernel").select("node", "name").iter_rows():
            if node != NONE:
                sides[side][keys[node]].add(name)
    return sides
