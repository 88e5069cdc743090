"""Comparison of two profiles of the same training: speedups with confidence intervals, and changed kernels.

The change of a layer may be that of the layers inside it. A comparison shows a change at the rows where it took place.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, Literal, TypeAlias, get_args

import polars as pl

from annot.analyze.comparison.comparable import Comparability, comparability
from annot.analyze.comparison.digest import device_names, digest
from annot.analyze.comparison.fused import fused_layers
from annot.analyze.comparison.nesting import Nesting, Times, Tree
from annot.analyze.gpu_activities import range_self_times, sums_by_group
from annot.analyze.kernel_names import classify
from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import modules_of_keys, phases_of_nodes
from annot.attribution.nesting import KEY, Key
from annot.attribution.range_trees import Forest
from annot.attribution.summary import step_spans
from annot.labels.tag import COMPILED


def _nesting_of(sides: Sequence[tuple[Attribution, Mapping[Key, int], Sequence[float]]]) -> Nesting:
    """Return the nesting of rows, given both profiles, the row of each layer, and the self time of each node (ns)."""
    trees = []
    for attribution, row_of, own in sides:
        forest = attribution.forest
        of_key = [row_of.get(key, NONE) for key in forest.keys.names]
        trees.append(Tree([of_key[key] for key in forest.nodes.keys], forest.nodes.parents, own))
    a, b = trees
    return Nesting((a, b))


Subject: TypeAlias = Literal["layer", "module", "phase", "kind", "kernel"]
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
"""Groupings for the rows of a comparison; class: kinds of kernels."""

Folds: TypeAlias = Mapping[tuple[str, str], str]
"""The path that repeated layers share, such as ``layers.*``, by layer and module."""
_Kernels: TypeAlias = Mapping[Key, set[str]]
_OF_NAMES: Final = ("kind", "kernel")
"""Groupings of kernels rather than layers."""
_QUANTILE: Final = 0.975  # two-sided interval of 95 %
_FEW: Final = {1: 12.706, 2: 4.303}
"""Quantiles of the t distribution for 1 and 2 degrees of freedom, where the series expansion is inaccurate."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between the times of two profiles, a and b.

    Args:
        by: the grouping of the rows.
        rows: the columns of the grouping (layer, module, phase; class; name); a_ns, b_ns (means, Float64; null: absent
            from that run); difference_ns (b minus a); speedup (a / b; above 1: b is faster); speedup_low, speedup_high
            (95 % confidence interval; null: fewer than two steps in a run); share (of the longer of the two runs,
            0 to 1); only_in ("a", "b" or null); and for layers explained (true: rows inside or around the layer have
            its change; see `_add_explained`), own_difference_ns (the difference of the time that counts to the row:
            without rows inside that have own differences; null: none; these add up to the difference of the total),
            fused (true: the time is in fused kernels of one of the runs; see `annot.analyze.comparison.comparable`),
            kernels_gone, kernels_new (lists: kernels that the layer itself launches only
            in a, only in b). The largest slowdown comes first.
        whole: the same numbers for the total time, attributed or not.
        step_time: the same numbers for the wall-clock time of a step, including idle time; None: a run without steps.
        time: "gpu_ns" or "host_ns".
        steps: number of steps in a and in b that the means cover; None: means over whole profiles.
        devices: names of the devices in a and in b; "": unknown.
        comparability: differences other than time.
        nesting: layers inside each other; None: other rows.
        folded: for layers, `rows` with repeated layers as one row, and the column folded: their number, else null.
    """

    by: Subject
    rows: pl.DataFrame
    whole: dict[str, Any]
    time: str
    steps: tuple[int, int] | None
    step_time: dict[str, Any] | None = None
    devices: tuple[str, str] = ("", "")
    comparability: Comparability = field(default_factory=Comparability)
    nesting: Nesting | None = None
    folded: pl.DataFrame | None = None

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels in the rows, in order."""
        rows = self.rows
        lists = [rows[name].explode() for name in ("kernels_gone", "kernels_new") if name in rows.columns]
        columns = lists + ([rows["name"]] if "name" in rows.columns else [])
        return [name for names in columns for name in names.drop_nulls().unique(maintain_order=True)]


def compare(
    a: Attribution, b: Attribution, *, by: Subject = "layer", folds: tuple[Folds, Folds] | None = None
) -> Comparison:
    """Compare the times of two profiles, the largest slowdown first.

    Times are GPU times if both profiles contain GPU activities, else CPU times. They are means per step without warm-up
    if both profiles have steps, else totals of the whole profile. The confidence interval of a speedup follows from
    the variance between steps: Welch's t interval of the logarithm of the ratio (delta method).

    Args:
        a: the baseline profile.
        b: the profile to compare with the baseline.
        by: the grouping of the rows; times of layers and module classes include nested layers.
        folds: the path that repeated layers of `a` and of `b` share in `Comparison.folded`; None: no such table.

    Raises:
        ValueError: `by` is not in `SUBJECTS`; `by` groups kernels and a profile is without GPU activities; or the
            profiles, or their selected steps, contain no times.
    """
    if by not in SUBJECTS:
        raise ValueError(f"by must be one of {', '.join(SUBJECTS)}, got {by!r}")
    device = all(side.nodes["gpu_self_ns"].sum() > 0 for side in (a, b))
    if by in _OF_NAMES and not device:
        raise ValueError(f"profiles without GPU activities cannot be compared by {by}")
    per_step = all(side.steps.table.height for side in (a, b))
    sides = [_Side(side, by, device, per_step) for side in (a, b)]
    whole = _single(*(side.means(None) for side in sides))
    if whole is None:
        raise ValueError("neither profile contains times to compare")
    longer = max(whole["a_ns"] or 0, whole["b_ns"] or 0)
    nesting, folded = None, None
    if by == "layer":
        rows, nesting = _layers(sides, longer, ({}, {}))
        folded = None if folds is None else _add_numbers(_layers(sides, longer, folds)[0], folds)
    else:
        of_a, of_b = (side.means(by) for side in sides)
        rows = _compared(of_a, of_b, longer)
    return Comparison(
        by=by,
        rows=rows,
        whole=whole,
        time="gpu_ns" if device else "host_ns",
        steps=(sides[0].count, sides[1].count) if per_step else None,
        step_time=_single(*map(_step_time, (a, b))) if per_step else None,
        devices=(", ".join(device_names(a)), ", ".join(device_names(b))),
        comparability=comparability([digest(a)], [digest(b)]),
        nesting=nesting,
        folded=folded,
    )


def _layers(sides: Sequence[_Side], longer: float, folds: tuple[Folds, Folds]) -> tuple[pl.DataFrame, Nesting]:
    """The rows of layers, repeated layers as one row, and their nesting."""
    of_a, of_b = _match_new_classes(*(side.means("layer", of) for side, of in zip(sides, folds, strict=True)))
    rows = _compared(of_a, of_b, longer)
    places, fused = [], set[int]()
    apart = fused_layers(*(side.layers() for side in sides))
    for side, of, row_of, elsewhere in zip(sides, folds, _rows_of_layers(rows), apart, strict=True):
        names = side.attribution.forest.keys.names
        row_of_key = {key: row_of[fold] for key in names if (fold := _fold(key, of)) in row_of}
        places.append((side.attribution, row_of_key, side.self_times()))
        fused |= {row for (layer, _, phase), row in row_of_key.items() if (layer, phase) in elsewhere}
    rows = rows.with_columns(fused=pl.int_range(pl.len()).is_in(sorted(fused)))
    nesting = _nesting_of(places)
    names_of = [_kernel_names(side.attribution, of) for side, of in zip(sides, folds, strict=True)]
    return _add_kernels(_add_explained(rows, nesting, longer), *names_of), nesting


def _fold(key: Key, folds: Folds) -> Key:
    """The key of a layer, or of the repeated layers that it is one of."""
    layer, module, phase = key
    path = folds.get((layer, module))
    return key if path is None else (path, COMPILED if module.startswith(COMPILED) else module, phase)


def _add_numbers(rows: pl.DataFrame, folds: tuple[Folds, Folds]) -> pl.DataFrame:
    """Add the number of layers of each row, in the profile with more of them; null: a single layer."""
    counts = [Counter(_fold((*layer, ""), of)[:2] for layer in of) for of in folds]
    numbers = []
    for layer, module in rows.select("layer", "module").iter_rows():
        before, after = _classes(module)
        numbers.append(max(counts[0][layer, before], counts[1][layer, after]) or None)
    return rows.with_columns(folded=pl.Series(numbers, dtype=pl.Int64))


def is_step_slower(comparison: Comparison, threshold: float) -> bool:
    """Return whether the step time grew significantly: b / a is above a threshold, such as 1.05."""
    time = comparison.step_time
    if time is None or time["speedup"] is None or time["speedup"] * threshold >= 1:
        return False
    return threshold < 1 or time["speedup_high"] is None or bool(time["speedup_high"] < 1)


def regressions(comparison: Comparison, threshold: float, *, least_share: float = 0.01) -> pl.DataFrame:
    """Return the rows that are significantly slower by more than a factor, and new rows, each regression once.

    A layer is left out if it would not be slower by the factor without the returned layers inside it.

    With fewer than two steps in a run the confidence interval is unknown, and only the ratio counts. New rows may
    replace rows that are gone: they count if they take more than `threshold` times the time of the rows that are gone.

    Args:
        comparison: the comparison of two profiles.
        threshold: allowed ratio of times b / a, such as 1.05.
        least_share: minimum share of the longer run (0 to 1); shorter rows are ignored.

    Raises:
        ValueError: the threshold is not above 0.
    """
    if not threshold > 0:
        raise ValueError(f"the threshold must be above 0, got {threshold:g}")
    slower = pl.col("speedup") * threshold < 1
    significant = pl.col("speedup_high").is_null() | (pl.col("speedup_high") < 1)
    apart = pl.lit(False) if comparison.nesting is None else pl.col("fused")
    new, gone = pl.col("a_ns").is_null() & ~apart, pl.col("b_ns").is_null() & ~apart
    sums = comparison.rows.select(pl.col("b_ns").filter(new).sum(), pl.col("a_ns").filter(gone).sum()).row(0)
    worse = (slower & ~apart & (significant | (threshold < 1))) | (new & pl.lit(sums[0] > threshold * sums[1]))
    least = least_share * max(comparison.whole[side] or 0 for side in ("a_ns", "b_ns"))
    regressed = comparison.rows.select((worse & (pl.col("share") >= least_share)).arg_true()).to_series().to_list()
    if comparison.nesting is None:
        return comparison.rows[regressed]
    kept = comparison.nesting.at_their_place(
        regressed, lambda _, times: times[1] > threshold * times[0] and max(times) >= least
    )
    return comparison.rows[sorted(kept)]


_NUMBERS: Final = ("a_ns", "b_ns", "difference_ns", "speedup", "speedup_low", "speedup_high", "share", "only_in")


_MATTERS: Final = 0.001
"""Change of the time of a layer, as a share of the run, that is worth a row. Smaller ones count to the layer around."""
_REST: Final = 0.25
"""Smallest share of the change of a layer that is in no row inside it, for the layer to have a row of its own."""
_ROUNDING_NS: Final = 0.01


def _add_explained(rows: pl.DataFrame, nesting: Nesting, longer: float) -> pl.DataFrame:
    """Add the columns `explained` and `own_difference_ns` of `Comparison.rows`.

    The change of a layer is that of its self time plus those of the layers inside. A layer is a place if its change
    without that of places inside is at least `_MATTERS` of the run and `_REST` of its whole change. It gathers the
    small changes inside. All other layers inside a place are explained. Outside places, a layer is explained if the
    rows inside have more than 1 - `_REST` of its change. The outermost rows have what counts to no other row. The time
    of fused kernels counts to the layer around.
    """
    changes: list[float] = rows["difference_ns"].to_list()

    def is_own(row: int, times: Times) -> bool:
        return abs(times[1] - times[0]) + _ROUNDING_NS >= _REST * abs(changes[row])

    def matters(row: int, times: Times) -> bool:
        return abs(times[1] - times[0]) >= _MATTERS * longer and is_own(row, times)

    every = (~rows["fused"]).arg_true().to_list()
    places = nesting.at_their_place(every, matters)
    small, outermost = set(every) - nesting.inside(places), nesting.outermost()
    shown: set[int] = set()

    def has_own(row: int, times: Times) -> bool:
        if row in places or (row in small and is_own(row, times)):
            shown.add(row)
        return row in shown or row in outermost

    kept = nesting.at_their_place({*places, *small, *outermost}, has_own)
    own = [kept[row][1] - kept[row][0] if row in kept else None for row in range(rows.height)]
    explained = pl.Series("explained", [row not in shown for row in range(rows.height)])
    return rows.with_columns(explained, pl.Series("own_difference_ns", own, pl.Float64))


def _rows_of_layers(rows: pl.DataFrame) -> tuple[dict[Key, int], dict[Key, int]]:
    """Return the row of each layer of the first and of the second profile."""
    of_a, of_b = {}, {}
    for row, (layer, module, phase) in enumerate(rows.select(KEY).iter_rows()):
        before, after = _classes(module)
        of_a[layer, before, phase] = of_b[layer, after, phase] = row
    return of_a, of_b


def _classes(module: str) -> tuple[str, str]:
    """The class of a layer in both runs: ``A → B`` if it changed."""
    before, _, after = module.partition(" → ")
    return before, after or before


class _Side:
    """The times of one profile by step."""

    def __init__(self, attribution: Attribution, by: Subject, device: bool, per_step: bool) -> None:
        self.attribution = attribution
        self._steps, self.count = None, 1
        if per_step:
            self._steps = attribution.steps.steady().select("step", process_code="process")
            self.count = self._steps.height
        keys = ("name" if by in _OF_NAMES else "node", *_STEP)
        name = pl.col("name").cast(pl.Categorical)
        columns = ("node", "process_code", "step", name, pl.col("gpu_ns").alias("time_ns"))
        blocks = (block.select(columns) for block in attribution.activity_blocks())
        times = blocks if device else iter([range_self_times(attribution)])
        self._times = _summed(pl.concat([_summed(self._steady_times(block), keys) for block in times]), keys)

    def _steady_times(self, times: pl.DataFrame) -> pl.DataFrame:
        """The times in steady steps; without steps, all times as one step."""
        if self._steps is not None:
            return times.join(self._steps, on=["process_code", "step"], how="semi")
        return times.with_columns(step=pl.lit(0, pl.Int32), process_code=pl.lit(0, pl.Int32))

    def layers(self) -> set[tuple[str, str]]:
        """Return path and phase of the layers with times."""
        names = self.means("layer").select("layer", "phase")
        return set(names.iter_rows())

    def self_times(self) -> list[float]:
        """Return the mean self time of each node of the layer paths (ns)."""
        own = [0.0] * len(self.attribution.forest.nodes)
        sums = self._times.filter(pl.col("node") != NONE).group_by("node").agg(pl.col("time_ns").sum())
        for node, time_ns in sums.iter_rows():
            own[node] = time_ns / self.count
        return own

    def means(self, by: Subject | None, folds: Folds | None = None) -> pl.DataFrame:
        """Return the columns of the grouping, mean_ns and variance (of the mean over its square; null: one step)."""
        names, per_step = self._grouped(by, folds or {})
        # Floating-point sums depend on the order of the rows.
        per_step = per_step.with_columns(pl.col("time_ns").cast(pl.Float64)).sort("group", *_STEP)
        total, squares, count = pl.col("time_ns").sum(), (pl.col("time_ns") ** 2).sum(), self.count
        mean = total / count
        variance = ((squares - total**2 / count) / (count - 1)).clip(0) if count > 1 else pl.lit(None, pl.Float64)
        rows = per_step.group_by("group").agg(mean.alias("mean_ns"), (variance / count / mean**2).alias("variance"))
        rows = rows.with_columns(freedom=pl.lit(count - 1, pl.Int64)).filter(pl.col("mean_ns") > 0)
        return pl.concat([names[rows["group"]], rows.drop("group")], how="horizontal")

    def _grouped(self, by: Subject | None, folds: Folds) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The columns of the grouping by group, and the times with a row per group and step."""
        forest, times = self.attribution.forest, self._times
        if by in ("layer", "module"):
            names, of_key = modules_of_keys(forest) if by == "module" else _folded_keys(forest, folds)
            of_node = [of_key[key] for key in forest.nodes.keys]
            return names, sums_by_group(self.attribution, times, of_node, *_STEP)
        if by is None:
            named = pl.repeat("all", times.height, eager=True).alias("all")
        elif by == "phase":
            named = phases_of_nodes(forest).gather(times["node"])
        else:
            named = times["name"].cast(pl.String)
        if by == "kind":
            distinct = named.unique()
            kinds = [classify(name or "").kind for name in distinct]
            named = named.replace_strict(distinct, kinds, return_dtype=pl.String).alias("kind")
        names = named.unique(maintain_order=True).to_frame()
        numbered = names.select(pl.first().alias("named"), group=pl.int_range(pl.len(), dtype=pl.Int32))
        grouped = times.with_columns(named.alias("named")).join(numbered, on="named", how="left", nulls_equal=True)
        return names, _summed(grouped, ["group", *_STEP])


def _folded_keys(forest: Forest, folds: Folds) -> tuple[pl.DataFrame, list[int]]:
    """Return layer, module and phase of each layer or fold, and the number of the one of each key."""
    numbers: dict[Key, int] = {}
    of_key = [numbers.setdefault(_fold(key, folds), len(numbers)) for key in forest.keys.names]
    return pl.DataFrame(list(numbers), schema=dict.fromkeys(KEY, pl.String), orient="row"), of_key


_STEP: Final = ("process_code", "step")
_ONE: Final = {"all": pl.String, "mean_ns": pl.Float64, "variance": pl.Float64, "freedom": pl.Int64}


def _summed(times: pl.DataFrame, keys: Iterable[str]) -> pl.DataFrame:
    return times.group_by(keys).agg(pl.col("time_ns").sum())


def _step_time(attribution: Attribution) -> pl.DataFrame:
    """The mean wall-clock time of a step in the layout of `_Side.means`."""
    steady = attribution.steps.steady().select("step", process_code="process")
    rows = step_spans(attribution).join(steady, on=["process_code", "step"], how="semi")
    sums = rows.group_by("process_code", "step", maintain_order=True).agg((pl.col("end") - pl.col("start")).sum())
    spans = sums["end"].cast(pl.Float64)
    mean, count = spans.mean(), len(spans)
    if not isinstance(mean, float) or mean <= 0:
        return pl.DataFrame(schema=_ONE)
    of_step = spans.var() if count > 1 else None
    variance = of_step / count / mean**2 if isinstance(of_step, float) else None
    row = {"all": "all", "mean_ns": mean, "variance": variance, "freedom": count - 1}
    return pl.DataFrame([row], schema=_ONE)


def _single(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, Any] | None:
    """Compare two tables of at most one row; None: both are empty."""
    rows = _compared(a, b, 1.0)
    return rows.select(_NUMBERS).row(0, named=True) if rows.height else None


def _match_new_classes(a: pl.DataFrame, b: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Match layers whose module class changed: their module becomes ``A → B``."""
    path = ["layer", "phase"]
    alone = [
        table.join(other, on=list(KEY), how="anti").filter(pl.len().over(path) == 1).select(KEY)
        for table, other in ((a, b), (b, a))
    ]
    pairs = alone[0].join(alone[1], on=path, suffix="_b")
    renamed = pl.format("{} → {}", "module", "module_b").alias("renamed")
    to = pairs.filter(pl.col("layer") != UNATTRIBUTED).with_columns(renamed)
    sides = []
    for side, module in ((a, "module"), (b, "module_b")):
        names = to.select("layer", "phase", "renamed", module=pl.col(module))
        joined = side.join(names, on=list(KEY), how="left", maintain_order="left")
        sides.append(joined.with_columns(pl.coalesce("renamed", "module").alias("module")).drop("renamed"))
    return sides[0], sides[1]


def _compared(of_a: pl.DataFrame, of_b: pl.DataFrame, longer: float) -> pl.DataFrame:
    """The rows of both runs (`_Side.means`) side by side with `_NUMBERS`, the largest slowdown first."""
    keys = [name for name in of_a.columns if name == "all" or name not in _ONE]
    rows = of_a.join(of_b, on=keys, how="full", coalesce=True, suffix="_b")
    rows, a, b = rows.rename({"mean_ns": "a_ns", "mean_ns_b": "b_ns"}), pl.col("a_ns"), pl.col("b_ns")
    rows = rows.with_columns(
        difference_ns=b.fill_null(0) - a.fill_null(0),
        speedup=a / b,
        share=pl.max_horizontal(a, b) / (longer or 1),
        only_in=pl.when(b.is_null()).then(pl.lit("a")).when(a.is_null()).then(pl.lit("b")),
    )
    columns = ("variance", "variance_b", "freedom", "freedom_b")
    factor = [_factor(*row) for row in rows.select(columns).iter_rows()]
    rows = rows.with_columns(pl.Series("factor", factor, pl.Float64))
    rows = rows.with_columns(
        speedup_low=pl.col("speedup") / pl.col("factor"), speedup_high=pl.col("speedup") * pl.col("factor")
    )
    losses = [pl.col("difference_ns"), pl.max_horizontal("a_ns", "b_ns")]
    rows = rows.sort(*losses, *keys, descending=[True, True, *(False for _ in keys)])
    return rows.select(*keys, *_NUMBERS)


def _factor(a: float | None, b: float | None, freedom_a: int | None, freedom_b: int | None) -> float | None:
    """Confidence interval of the ratio of two means as a factor; see `compare`."""
    if a is None or b is None or not freedom_a or not freedom_b:
        return None
    both = a + b
    if not both:
        return 1.0
    freedom = both**2 / (a**2 / freedom_a + b**2 / freedom_b)  # Welch–Satterthwaite equation
    return math.exp(min(_t_quantile(freedom) * math.sqrt(both), 700))


def _t_quantile(freedom: float) -> float:
    """The 0.975 quantile of the t distribution (Cornish–Fisher expansion; Abramowitz and Stegun 26.7.5)."""
    if freedom < 3:
        return _FEW[max(int(freedom), 1)]
    z = NormalDist().inv_cdf(_QUANTILE)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _add_kernels(rows: pl.DataFrame, of_a: _Kernels, of_b: _Kernels) -> pl.DataFrame:
    """Add the kernels that the layer itself launches in only one of the runs."""
    gone, new = [], []
    for layer, module, phase in rows.select(KEY).rows():
        before, after = _classes(module)
        in_a, in_b = of_a.get((layer, before, phase), set()), of_b.get((layer, after, phase), set())
        gone.append(sorted(in_a - in_b))
        new.append(sorted(in_b - in_a))
    lists = pl.List(pl.String)
    return rows.with_columns(pl.Series("kernels_gone", gone, lists), pl.Series("kernels_new", new, lists))


def _kernel_names(attribution: Attribution, folds: Folds) -> _Kernels:
    names, keys = attribution.forest.keys.names, attribution.forest.nodes.keys
    kernels: defaultdict[Key, set[str]] = defaultdict(set)
    for node, name in attribution.names.filter("kernel").select("node", "name").iter_rows():
        kernels[_fold(names[keys[node]], folds)].add(name)
    return kernels
