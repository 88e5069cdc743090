"""Explanations of a layer and of a kernel: its own metrics, what is inside, its kernels, and what to try."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.agents.answers import cut_key
from annot.agents.folders import RefusedError
from annot.analyze.kernel_names import layer_names, with_classes
from annot.attribution.attribute import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.layer_tables import LAYER_PHASES, by_line, line_tree, rows_of_nodes
from annot.attribution.nesting import KEY
from annot.report.table import Table
from annot.report.terminal.hot_rows import line_sources
from annot.report.totals import peaks_text
from annot.report.tree import row_label
from annot.runs.run import Run

KEYS: Final = (*KEY, "name")
"""Columns that identify rows of an explanation."""
_WITH_INSIDE: Final = ("other",)
"""Phases of ranges of the program, which have all phases inside."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about a layer or a kernel.

    Args:
        facts: facts about it.
        lists: rows by name: `itself`, the rows of the view; kernels and layers, hottest first; advice.
    """

    facts: Mapping[str, Any]
    lists: Mapping[str, Sequence[Mapping[str, Any]]]


def explain_layer(run: Run, profile: str, layer: str, asked: Mapping[str, str]) -> Explanation:
    """Explain a layer with everything inside.

    Args:
        run: the profile.
        profile: its name, for messages.
        layer: path of the layer, its group, or its label in tables.
        asked: module and phase of its rows, as far as they matter.

    Raises:
        RefusedError: the profile lacks the layer. Every profile has the layer "".
    """
    table = run.view("layer", "all", total=True, draw=False)
    rows = _rows_of(table, profile, layer, asked)
    attribution = run.attribution_for(table.view, total=True)
    phase = asked.get("phase", "other")
    block = _Block.of(attribution, table, rows, None if phase in _WITH_INSIDE else phase)
    unknown = [name for name in rows.columns if rows.height and not is_known(table, table.rows, name)]
    advice = run.advice.to_dicts()
    named = {*block.lines["layer"], *rows["group"].drop_nulls(), *map(_label, rows.select(*KEY).to_dicts())}
    helpful = [row for row in advice if not layer or named & {*row["layers"], *row["where"]}]
    facts = {"scope": "sums over the whole profile", "source": block.source, "with_inside": block.totals}
    facts |= {"peaks": peaks_text(table.meta["peaks"])} if "peaks" in table.meta else {}
    facts |= {"unknown_columns": ", ".join(unknown)} if unknown else {}
    facts |= {} if helpful else {"advice": "No advice names this layer. Call advice(profile) for all."}
    tried = [{name: row[name] for name in ("rule", "advice", "saves", "trial")} for row in helpful]
    lists = {"itself": rows.drop(unknown).to_dicts(), "inside": block.children, "kernels": block.kernels, "try": tried}
    return Explanation(facts, lists)


def explain_kernel(run: Run, profile: str, name: str) -> Explanation:
    """Explain a kernel or copy by its name, in full, cut as in answers, or short: its row, and its layers.

    Raises:
        RefusedError: the profile lacks the kernel.
    """
    table = run.view("kernel", total=True, draw=False)
    names = {each for each in table.rows["name"] if name in (each, cut_key(each))}
    rows = table.rows.filter(pl.col("name").is_in([*names]) | (pl.col("short") == name))
    if rows.is_empty():
        raise RefusedError(_missing(profile, "kernel", name, table.rows["short"]))
    launched = layer_names(run.attribution_for(table.view, total=True)).join(rows, on="name", how="semi")
    layers = launched.sort("gpu_ns", descending=True, maintain_order=True).select(*KEY, "calls", "gpu_ns")
    return Explanation(
        {"scope": "sums over the whole profile"}, {"itself": rows.to_dicts(), "layers": layers.to_dicts()}
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Some lines of the layer table with all lines inside, in one phase or in all.

    Args:
        table: the view of all metrics.
        attribution: the profile.
        chosen: numbers of the lines; `NONE`: that around the outermost lines.
        lines: rows of the lines and of the lines inside, see `annot.attribution.layer_tables.by_line`.
        phase: the phase; None: all.
    """

    table: Table
    attribution: Attribution
    chosen: Collection[int]
    lines: pl.DataFrame
    phase: str | None

    @classmethod
    def of(cls, attribution: Attribution, table: Table, rows: pl.DataFrame, phase: str | None) -> _Block:
        """Return the lines of rows by layer."""
        tree = line_tree(attribution)
        if rows.is_empty():  # the whole profile
            return cls(table, attribution, {NONE}, by_line(attribution), phase)
        keys = {*rows.select(KEY).iter_rows()}
        names = {key[:2] for key in keys}
        chosen = {
            number
            for number, (layer, module, named) in enumerate(tree.names)
            if ((layer, module, named) in keys if named else (layer, module) in names)
        }
        inside = set[int]()
        for number, parent in enumerate(tree.parents):  # a parent comes before the lines inside
            if number in chosen or parent in inside:
                inside.add(number)
        lines = by_line(attribution).filter(pl.col("line").is_in([*inside]))
        return cls(table, attribution, chosen, _of_phase(lines, phase), phase)

    @property
    def source(self) -> str | None:
        """File and line of the class, or of the innermost class around it; None: unknown."""
        sources = line_sources(by_line(self.attribution))
        return next((sources[line] for line in sorted(self.chosen) if line in sources), None)

    @property
    def totals(self) -> dict[str, Any]:
        """Times and counts with everything inside; None: unknown."""
        table, lines = self.table, self.lines
        names = {"gpu_ns": "gpu_self_ns", "host_ns": "host_self_ns", "kernels": "kernels", "copies": "copies"}
        totals = {name: int(lines[own].sum()) if table.knows(own) else None for name, own in names.items()}
        time = totals[table.time]
        share = time / table.whole if time is not None and table.whole else None
        inside = lines.filter(pl.col("is_layer") & ~pl.col("line").is_in([*self.chosen]))
        return {**totals, "share": share, "layers": inside["line"].n_unique(), **self._work()}

    def _work(self) -> dict[str, Any]:
        """FLOPs of all layers; if some are unknown, those of the others, and the share of time without FLOPs."""
        own, every = self.table.own_time, by_line(self.attribution)
        keys = ["layer", "module", "own"]
        if "flops" not in self.table.rows.columns:
            return {"flops": None}
        known = self.table.rows.select(*KEY[:2], "flops", own="phase")
        elsewhere = every.join(self.lines, on="line", how="anti").select(keys).drop_nulls()
        lines = self.lines.filter(pl.col("own").is_in(LAYER_PHASES)).group_by(keys).agg(pl.col(own).sum())
        rows = lines.join(elsewhere, on=keys, how="anti").join(known, on=keys, how="left")
        counted = rows.drop_nulls("flops")
        whole, flops = int(lines[own].sum()), int(counted["flops"].sum())
        lost = whole - int(counted[own].sum())
        if not counted.height or (lost and not flops):
            return {"flops": None}
        if not lost:
            return {"flops": flops}
        return {"flops": None, "flops_of_known_layers": flops, "flops_unknown_share": lost / whole}

    @property
    def children(self) -> list[dict[str, Any]]:
        """Layers and ranges directly inside with their time, the hottest first."""
        time = self.table.time
        rows = self.lines.filter(pl.col("parent").is_in([*self.chosen]) & ~pl.col("line").is_in([*self.chosen]))
        sums = rows.group_by("layer", "module", maintain_order=True).agg(pl.col(time).sum())
        return sums.sort(time, descending=True, maintain_order=True).to_dicts()

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Kernels and copies of the layer and all inside, the hottest first."""
        names, nodes = self.attribution.names, rows_of_nodes(self.attribution)
        rows = nodes[names["node"]].hstack(names.select(pl.col("name").cast(pl.String), "kernel", "calls", "gpu_ns"))
        rows = _of_phase(rows.filter(pl.col("line").is_in(self.lines["line"].unique().implode())), self.phase)
        sums = rows.group_by("name", "kernel", "phase", maintain_order=True).agg(pl.col("calls", "gpu_ns").sum())
        hottest = with_classes(sums).sort("gpu_ns", descending=True, maintain_order=True)
        return hottest.select("name", "phase", "kind", "tensor_cores", "calls", "gpu_ns").to_dicts()


def _of_phase(rows: pl.DataFrame, phase: str | None) -> pl.DataFrame:
    return rows if phase is None else rows.filter(phase=phase)


def is_known(table: Table, rows: pl.DataFrame, name: str) -> bool:
    """Return whether the profile has data for a column of some rows."""
    return table.knows(name) and rows[name].null_count() < rows.height


def _rows_of(table: Table, profile: str, layer: str, asked: Mapping[str, str]) -> pl.DataFrame:
    """The rows of a layer, with a module or phase; none for the layer "" of a profile without a model."""
    label = re.sub(r" ×[\d,]+$", "", layer).replace(r"\|", "|")  # as tables in Markdown have it
    of_layer = table.rows.filter(
        pl.Series([label in _names(row) for row in table.rows.select(*KEY, "group").to_dicts()], dtype=pl.Boolean)
    )
    if of_layer.is_empty() and (layer or asked):
        raise RefusedError(_missing(profile, "layer", layer, table.rows["layer"]))
    rows = of_layer.filter(pl.lit(True), **asked)
    if rows.is_empty() and asked:
        raise RefusedError(_no_row(layer, asked, of_layer))
    return rows


def _names(row: Mapping[str, Any]) -> Iterable[str]:
    """Path of a layer, its group, and these with the class, as in tables."""
    return row["layer"], cut_key(row["layer"]), row["group"], f"{row['group']} {row['module']}", _label(row)


def _label(row: Mapping[str, Any]) -> str:
    return " ".join(row_label(row)).strip()


def _no_row(layer: str, asked: Mapping[str, str], rows: pl.DataFrame) -> str:
    """What to ask instead of a module or phase that a layer does not have."""
    wrong = " and ".join(f"{name} {text!r}" for name, text in asked.items())
    found = (f"{name} {' or '.join(map(repr, rows[name].unique(maintain_order=True)))}" for name in asked)
    return f"layer {layer!r} has no row with {wrong}. It has {', '.join(found)}"


def _missing(profile: str, row: str, name: str, names: pl.Series) -> str:
    near = difflib.get_close_matches(name, names.unique(maintain_order=True).to_list(), 3)
    which = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f'{profile} has no {row} {name!r}.{which} Call rows(profile="{profile}", view="{row}") for the names'
