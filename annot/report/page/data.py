"""Data of the HTML page: results of the analyses as JSON-serializable values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import polars as pl
import polars.selectors as cs

from annot.analyze.advice import Facts
from annot.analyze.advice.facts import LEAST_CHANGE
from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.analyze.comparison.gate import decide
from annot.analyze.comparison.runs import SUBJECTS
from annot.analyze.gpu_activities import self_times_by_step
from annot.analyze.hardware_counters import default_peaks
from annot.analyze.kernel_names import by_class, short_names, with_classes, with_short_names
from annot.analyze.peaks import Peaks
from annot.analyze.roofline import under_roof
from annot.analyze.run_summary import by_summary, part_names
from annot.analyze.tensor_cores import matrix_units, precision_words
from annot.analyze.timeline import Timeline, timeline
from annot.analyze.verdict import verdict
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_kernel, by_line, line_tree, rows_of_nodes
from annot.attribution.nesting import KEY, Key
from annot.attribution.summary import by_step, summarize
from annot.changes.advice import by_advice
from annot.changes.tried import tried_on
from annot.errors import AnnotError, warn
from annot.report.charts.chart import Chart, shapes
from annot.report.charts.profile_charts import roofline_chart, step_charts
from annot.report.columns import COLUMNS, Column, as_data, per_step
from annot.report.page import texts
from annot.report.table import Table
from annot.report.terminal.table import NO_BOUND
from annot.report.totals import peaks_text
from annot.report.tree import Line, every_fold, folds_of, index_of, layer_lines, other_lines, row_label, with_groups
from annot.report.views import View, find_view, other_views
from annot.util.progress import tell

EVENTS: Final = 100_000
"""Maximum number of events in all timelines of a page."""

_CELLS: Final = 400_000
"""Maximum number of per-step times (layers × steps) in a page."""
_NAMES: Final = 50_000
"""Maximum number of pairs of layer row and kernel name in a page, longest first."""
_KERNELS: Final = 5_000
_MAKING: Final = "making the page"
_VIEWS: Final = 11
"""Progress steps of `run_data`: the rows, shared data, and nine views."""


def report_data(run: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the data of a page with one profile: the result of `run_data`, and the name that the user gave."""
    return {"kind": "report", "source": source, "runs": [run], "ranks": None}


def ranks_data(runs: Sequence[dict[str, Any]], across: pl.DataFrame, meta: dict[str, Any], time: str) -> dict[str, Any]:
    """Return the data of a page with the ranks of a run.

    Args:
        runs: result of `run_data` for each rank with its own views.
        across: differences between ranks by layer, from `annot.runs.skew.across_ranks`.
        meta: metadata of the report of all ranks.
        time: column that is compared.
    """
    ranks = {"across": _columns(across), "time": time, "each": meta["ranks"], "notes": meta["notes"]}
    ranks |= {name: meta.get(name, "") for name in ("cut", "verdict")}
    return {"kind": "report", "source": meta["source"], "runs": list(runs), "ranks": ranks}


def comparison_data(a: Attribution, b: Attribution, names: tuple[str, str], by: str) -> dict[str, Any]:
    """Return the data of a page that compares two profiles, with one table per subject that both support.

    Args:
        a, b: the profiles.
        names: names of the profiles.
        by: subject of the first table, such as `layer`.

    Raises:
        ValueError: the profiles cannot be compared by `by`.
    """
    comparisons: dict[str, Any] = {}
    sides = [digest(a)], [digest(b)]
    for subject in SUBJECTS:
        try:
            comparisons[subject] = compare(*sides, by=subject)
        except ValueError:
            if subject == by:
                raise
    comparison = comparisons[by]
    decision = decide(comparisons["layer"], above=1 + LEAST_CHANGE)
    longer = [cause.text for cause in causes_of(comparisons["layer"], decision, *sides)]
    doubt = [f"{texts.sentence(decision.sentences[-1])}."] if longer and decision.level is None else []
    kernels = list(dict.fromkeys(name for each in comparisons.values() for name in each.kernels))
    return {
        "kind": "compare",
        "source": " → ".join(names),
        "by": by,
        "cards": texts.comparison_cards(comparison, names),
        "reasons": [texts.sentence(reason.text) for reason in comparison.comparability.reasons],
        "notes": [*map(texts.sentence, comparison.notes)],
        "reservations": [*map(texts.sentence, comparison.comparability.reservations)],
        "causes": [*longer, *doubt],
        "tables": {name: _columns(_labeled(each.rows, (a, b))) for name, each in comparisons.items()},
        "kernels": {"texts": kernels, "shorts": [*map(short_names(kernels).get, kernels)]},
        "runs": [{"meta": _meta(summarize(side), name)} for side, name in zip((a, b), names, strict=True)],
    }


def _labeled(rows: pl.DataFrame, sides: Sequence[Attribution]) -> pl.DataFrame:
    """Add label, remark and group (the fold, or null), as in the layer table, to rows by layer."""
    if "layer" not in rows.columns:
        return rows
    lines = [with_groups(lines, lines) for lines in map(by_line, sides)]
    groups = pl.concat([side.select(*KEY[:2], "group") for side in lines])
    rows = rows.join(groups.unique(KEY[:2], keep="first"), on=KEY[:2], how="left", maintain_order="left")
    labels = [row_label(row) for row in rows.select(KEY).iter_rows(named=True)]
    return rows.with_columns(
        label=pl.Series([label for label, _ in labels], dtype=pl.String),
        remark=pl.Series([remark for _, remark in labels], dtype=pl.String),
    )


def run_data(
    attribution: Attribution,
    source: str,
    layers: Table,
    *,
    name: str = "",
    rank: int | None = None,
    events: int = EVENTS,
    shown: Attribution | None = None,
) -> dict[str, Any]:
    """Return the data of all views of one profile or rank.

    Args:
        attribution: the profile, for the timeline, the steps, the summary and the advice.
        layers: the view ``detail``, per step if the profile has steps.
        shown: the attribution from which `layers` comes; None: `attribution`.
        source: file of the profile, as given by the user.
        name: label of the run in the page, such as ``rank 3``.
        rank: rank number.
        events: maximum number of events in the timeline.
    """
    tell(_MAKING, 0, _VIEWS, "views")
    shown, steps = shown or attribution, layers.meta.get("per_step", 1)
    rows = _rows(shown, layers.rows.drop("group"), steps)
    tell(_MAKING, 1, _VIEWS, "views")
    made = _views(attribution, shown, rows, steps, events)
    made["verdict"], made["advice"], made["tried"], without_warmup = made.pop("findings")
    lines, meta, peaks = _lines(rows), layers.meta, default_peaks(attribution)
    units = matrix_units(attribution.meta)
    made["advice"] = advice_data(made["advice"], lines)
    made["texts"] = _texts(made, meta, source, peaks, units, without_warmup=without_warmup)
    made["parts"] = _parts(made["summary"], lines, steps)
    made["summary"] = _columns(made["summary"])
    folded = _roofline_folds(rows, lines, peaks)
    charts = _charts(made["steps"], rows, lines, folded, peaks)
    made["steps"] = _steps(made["steps"], made["timeline"].start_ns)
    made["timeline"] = _timeline(attribution, rows, made["timeline"])
    tell(_MAKING, _VIEWS, _VIEWS, "views")
    return {
        "units": units,
        "name": name,
        "rank": rank,
        "meta": _meta(meta, source),
        "time": "gpu_ns" if _has_device(meta) else "host_ns",
        "rows": _columns(_name_precisions(rows, units)),
        **lines,
        "charts": charts,
        "roofline_folds": _columns(_name_precisions(folded, units)),
        "shares": part_names(attribution),
        **made,
    }


def _views(attribution: Attribution, shown: Attribution, rows: pl.DataFrame, steps: int, events: int) -> dict[str, Any]:
    """The data of the views by name, in the order in which they are computed; see `run_data`."""
    tables = (find_view("layer", "communication"), *other_views())
    # Views with the highest memory use come first, while little else is in memory.
    views: dict[str, Callable[[], Any]] = {
        "findings": lambda: _findings(attribution),
        "summary": lambda: by_summary(attribution),
        "timeline": lambda: timeline(attribution, events),
        "layer_steps": lambda: _layer_steps(attribution, shown, rows),
        "names": lambda: _names(shown, rows, steps),
        "steps": lambda: by_step(attribution),
        "kernels": lambda: _kernels(shown, steps),
        "classes": lambda: _columns(_step_means(by_class(shown), steps)),
        "more": lambda: [table for view in tables if (table := _table(view, shown, steps))],
    }
    made: dict[str, Any] = {}
    for number, (key, make) in enumerate(views.items(), 2):
        tell(_MAKING, number, _VIEWS, "views")
        made[key] = make()
    return made


def _name_precisions(rows: pl.DataFrame, units: str) -> pl.DataFrame:
    """Rows with the words for precisions that the terminal shows too."""
    words = {name: precision_words(name, units) for name in rows["precision"].drop_nulls().unique()}
    return rows.with_columns(pl.col("precision").replace(words))


def _has_device(meta: dict[str, Any]) -> bool:
    return bool(meta["kernels"] or meta["copies"])


def _texts(
    made: dict[str, Any], meta: dict[str, Any], source: str, peaks: Peaks, units: str, *, without_warmup: bool
) -> dict[str, Any]:
    """The sentences of the page by what they are about; `made` has the results of `_views` as tables."""
    summary, device = made["summary"], _has_device(meta)
    return {
        "machine": texts.software(summary, meta),
        "about": texts.facts_of_profile(summary, meta, source),
        "totals": texts.totals_of_run(summary, meta, units, device=device),
        "whole": texts.whole_text(summary, meta, device=device, without_warmup=without_warmup),
        "breakdown": texts.breakdown_text(summary, meta, device=device),
        "peaks": peaks_text(peaks.as_meta(), units),
        "steps": texts.steps_text(made["steps"].height, meta),
        "timeline": texts.timeline_text(made["timeline"]),
    }


def _findings(attribution: Attribution) -> tuple[str, pl.DataFrame, dict[str, Any] | None, bool]:
    """The verdict, the advice, what was tried, and whether the time of the run lacks warm-up."""
    facts = Facts(attribution, folds_of(attribution))
    tried = texts.tried_changes(tried_on(facts).values())
    return verdict(facts), by_advice(attribution, facts), tried, facts.parts.without_warmup


def advice_data(advice: pl.DataFrame, lines: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the advice of the page: a saving without a bound is null, and ``where`` has the layers that it concerns.

    Layers are places of lines; several of the same outermost fold are the place of the fold. Other names stay names.

    Args:
        advice: the result of `annot.changes.advice.by_advice`.
        lines: ``lines``, ``folds`` and ``top`` of `run_data`.
    """
    places = {line["title"]: place for place, line in reversed([*enumerate(lines["lines"])]) if "other" not in line}
    folds = _outermost_folds(lines)
    where = []
    for layers in advice["layers"]:
        groups: dict[int | str, list[int | str]] = {}
        for layer in layers:
            place = places.get(layer, layer)
            groups.setdefault(folds.get(place, place), []).append(place)
        where.append([fold if len(members) > 1 else members[0] for fold, members in groups.items()])
    saves = pl.when(pl.col("saves") < NO_BOUND).then("saves")
    return _columns(advice.with_columns(saves)) | {"where": where}


def _parts(summary: pl.DataFrame, lines: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """The longest layers of each part of the step, per step, with their places; rows of several layers come last.

    Rows name a layer by its title and class, an optimizer by its class.
    """
    by_title: dict[str, int] = {}
    by_class: dict[tuple[str, str], int] = {}
    for place, line in enumerate((*lines["lines"], *lines["folds"])):
        by_title.setdefault(f"{line['title']} {line['module']}".strip(), place)
        for name in (line["module"], f"{line['layer']} {line['module']}"):
            for phase in line.get("rows", ()):
                by_class.setdefault((phase, name), place)
    several = pl.col("count").is_not_null()
    rows = summary.filter(section="parts").sort(several, pl.when(~several).then(-pl.col("ns")), maintain_order=True)
    names = [re.sub(r" ×[\d,]+$", "", text) for text in rows["text"]]
    return [
        {
            "part": row["item"],
            "text": row["text"],
            "ns": row["ns"] / steps,
            "share": row["share"],
            "place": by_title.get(name, by_class.get((row["item"], name))),
        }
        for row, name in zip(rows.iter_rows(named=True), names, strict=True)
    ]


def _outermost_folds(lines: Mapping[str, Any]) -> dict[int | str, int]:
    """Map the members of each fold in the folded table to the place of the fold."""
    first, pending, folds = len(lines["lines"]), [*lines["top"]], dict[int | str, int]()
    while pending:
        place = pending.pop()
        fold = lines["folds"][place - first] if place >= first else None
        folds.update(dict.fromkeys(fold["members"], place) if fold else {})
        pending += (fold or lines["lines"][place]).get("inside", [])
    return folds


def _meta(meta: dict[str, Any], source: str) -> dict[str, Any]:
    devices = [device | {"process": str(device["process"])} for device in meta["devices"]]
    return meta | {"source": source, "devices": devices}


def _rows(attribution: Attribution, details: pl.DataFrame, steps: int) -> pl.DataFrame:
    """The rows of the lines, per step, with the other columns of the rows by layer. Rows of several lines repeat."""
    lines = _step_means(by_line(attribution), steps).drop("gpu_busy_ns")
    others = details.drop(name for name in lines.columns if name in details.columns and name not in KEY)
    others = others.rename({"phase": "own"})
    return lines.join(others, on=["layer", "module", "own"], how="left", maintain_order="left")


_Lines: TypeAlias = dict[str, list[Any]]


def _lines(rows: pl.DataFrame) -> _Lines:
    """The lines of the layer table with the row index of each phase, the folds, and the places of the outermost."""
    index = {key: number for number, key in enumerate(rows.select("line", "phase").iter_rows())}
    layers, others = layer_lines(rows), other_lines(rows)
    lines, above = list[dict[str, Any]](), list[int]()
    for place, line in enumerate((*layers, *others)):
        above[line.depth :] = [place]
        first = next(iter(line.phases.values()))
        rows_of_phases = {phase: index[line.number, phase] for phase in line.phases}
        other = {"other": True} if place >= len(layers) else {}
        parent = above[-2] if line.depth else -1
        lines.append(_named(line, row_label(first)[0]) | {"rows": rows_of_phases, "parent": parent} | other)
    folds = _folds(layers, len(lines))
    inside = _inside(lines, folds)
    for place, line_or_fold in enumerate((*lines, *folds)):
        line_or_fold |= {"inside": inside[place]} if place in inside else {}
    return {"lines": lines, "folds": folds, "top": inside.get(-1, [])}


def _named(line: Line, title: str) -> dict[str, Any]:
    return {"label": line.label, "module": line.module, "layer": line.key[0], "title": title}


def _inside(lines: list[dict[str, Any]], folds: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Map each line and fold (-1: none) to the places directly inside: folds instead of their members."""
    fold_of = {
        (fold["parent"], member): len(lines) + number for number, fold in enumerate(folds) for member in fold["members"]
    }
    inside: dict[int, dict[int, None]] = {}
    for place, line in enumerate(lines):
        parent = line["parent"]
        inside.setdefault(parent, {})[fold_of.get((parent, place), place)] = None
    for place, fold in enumerate(folds, len(lines)):
        inside.setdefault(fold["parent"], {})[place] = None
    return {place: [*places] for place, places in inside.items()}


def _folds(lines: list[Line], first: int) -> list[dict[str, Any]]:
    """The folds, with their members as places of lines. The places of folds follow those of the lines, from `first`."""
    places = {id(line): place for place, line in enumerate(lines)}
    folds: list[dict[str, Any]] = []
    for fold, above in every_fold(lines):
        places[id(fold)] = first + len(folds)
        members = [places[id(line)] for line in fold.members]
        parent = -1 if above is None else places[id(above)]
        indices = [index_of(line, fold) for line in fold.members]
        inside = {"parent": parent, "members": members, "indices": indices}
        folds.append(_named(fold, fold.key[0]) | {"count": fold.count} | inside)
    return folds


def _layer_steps(attribution: Attribution, shown: Attribution, rows: pl.DataFrame) -> dict[str, Any]:
    """The self times of the rows in each step, for the first steps that fit into `_CELLS`.

    `shown` has the steps of the rows, `attribution` has all steps.
    """
    lines = pl.Series("line", line_tree(attribution).same_lines(line_tree(shown)), pl.Int64)
    of_nodes = rows_of_nodes(attribution)
    of_nodes = of_nodes.with_columns(lines.gather(of_nodes["line"]))
    table = pl.DataFrame(schema={"row": pl.Int64, "step": pl.Int64})
    for name, times in self_times_by_step(attribution).items():
        placed = times.hstack(of_nodes[times["node"]]).rename({"time_ns": f"{name}_self_ns"})
        sums = placed.group_by("line", "phase", "step").agg(pl.col(f"{name}_self_ns").sum())
        table = table.join(_numbered(sums, rows), on=["row", "step"], how="full", coalesce=True)
    table = table.with_columns(cs.ends_with("_ns").fill_null(0)).sort("step", "row")
    steps = table["step"].unique().sort()
    kept = steps
    if table.height > _CELLS and steps.len():
        kept = steps.head(max(1, _CELLS * steps.len() // table.height))
        table = table.filter(pl.col("step").is_in(kept.to_list()))
    return {"steps": steps.len(), "kept": kept.len(), **_columns(table)}


def _numbered(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace line and phase by the row index in the layer table."""
    number = rows.select("line", "phase").with_row_index("row")
    numbered = table.join(number, on=["line", "phase"], how="inner", maintain_order="left").drop("line", "phase")
    return numbered.select(pl.col("row").cast(pl.Int64), pl.exclude("row"))


def _step_means(table: pl.DataFrame, steps: int) -> pl.DataFrame:
    return table if steps == 1 else per_step(table, COLUMNS.values(), steps)


def _names(attribution: Attribution, rows: pl.DataFrame, steps: int) -> dict[str, Any]:
    """The GPU activities of each row without its children, longest first, with names as indices of a list."""
    activities = attribution.names.select(pl.col("name").cast(pl.String), "kernel", "calls", "gpu_ns", "node")
    activities = activities.hstack(rows_of_nodes(attribution)[activities["node"]])
    by_name = activities.group_by("line", "phase", "name", "kernel").agg(pl.col("calls", "gpu_ns").sum())
    sums = with_classes(by_name)
    table = _numbered(_step_means(sums, steps), rows).sort("gpu_ns", "row", "name", descending=[True, False, False])
    texts = table["name"].head(_NAMES)
    coded, names = _coded(texts)
    kept = table.head(_NAMES).with_columns(coded.alias("name"))
    every = attribution.names["name"].unique().cast(pl.String).drop_nulls()
    shorts = [*map(short_names([*names, *every]).get, names)]
    return {"texts": names, "shorts": shorts, "total": table.height, "rows": _columns(kept)}


def _coded(texts: pl.Series) -> tuple[pl.Series, list[str]]:
    """Encode texts as indices of a list of distinct texts."""
    distinct = texts.unique(maintain_order=True)
    numbers = pl.DataFrame({"text": distinct}).with_row_index("number")
    coded = pl.DataFrame({"text": texts}).join(numbers, on="text", how="left", maintain_order="left", nulls_equal=True)
    return coded["number"].cast(pl.Int64), [text or "" for text in distinct]


def _table(view: View, attribution: Attribution, steps: int) -> dict[str, Any] | None:
    """A view as a table; None if a view of another package fails. The page leaves out views without rows."""
    try:
        rows = view.rows(attribution)
    except AnnotError as error:
        warn(f"The page lacks a table: {error}")
        return None
    if view.sums and steps > 1:
        rows = per_step(rows, view.shown, steps)
    columns = [Column(view.label, view.label.capitalize(), "text"), *view.shown]
    return {"name": view.key, "heading": view.heading, "columns": as_data(columns), "rows": _columns(rows)}


def _steps(steps: pl.DataFrame, start: int) -> dict[str, Any]:
    """The steps, with times since the start: JavaScript numbers cannot represent every 64-bit time in ns."""
    return _columns(steps.with_columns(pl.col("start_ns") - start, pl.col("process").cast(pl.String)))


def _roofline_folds(rows: pl.DataFrame, lines: _Lines, peaks: Peaks) -> pl.DataFrame:
    """The roofline of each fold and phase: place, layer, module, phase and the columns of `under_roof`."""
    points = rows.with_row_index("row").filter((pl.col("intensity") > 0) & (pl.col("flops_per_s") > 0))
    places = [
        (place, fold["layer"], fold["module"], row)
        for place, fold in enumerate(lines["folds"], len(lines["lines"]))
        for member in fold["members"]
        for row in lines["lines"][member]["rows"].values()
    ]
    schema = {"place": pl.Int64, "layer": pl.String, "module": pl.String, "row": pl.UInt32}
    fold_points = pl.DataFrame(places, schema, orient="row").join(points.drop("layer", "module"), on="row")
    precision = pl.col("precision")
    sums = fold_points.group_by("place", "layer", "module", "phase", maintain_order=True).agg(
        pl.col("flops", "bytes", "time_ns", "gpu_idle_ns", "gpu_launch_ns").sum(),
        pl.when(precision.n_unique() == 1).then(precision.first()).alias("precision"),
    )
    return under_roof(sums, peaks).drop("roof")


def _charts(
    steps: pl.DataFrame, rows: pl.DataFrame, lines: _Lines, folded: pl.DataFrame, peaks: Peaks
) -> dict[str, list[dict[str, Any]]]:
    """The drawings of the steps of each process and of the roofline, whose points are links to their layers."""
    inside = {place for fold in lines["folds"] for place in fold["members"]}
    place_of = {row: place for place, line in enumerate(lines["lines"]) for row in line["rows"].values()}
    places = pl.Series("place", [place_of.get(row) for row in range(rows.height)], pl.Int64)
    single = rows.with_columns(places).filter(~places.is_in(list(inside)).fill_null(False))
    for place, fold in enumerate(lines["folds"], len(lines["lines"])):
        if fold["parent"] in inside:  # in a single layer of another fold
            inside.add(place)
    outer = folded.filter(~pl.col("place").is_in(list(inside)))
    some = pl.concat([single, outer], how="diagonal_relaxed")
    links = pl.concat_str(pl.lit("layer/"), "place").fill_null("").alias("link")
    roofline = roofline_chart(some.with_columns(links), peaks, (1200, 480))
    return {
        "steps": [_drawing(chart) for chart in step_charts(steps, (1200, 320))],
        "roofline": [_drawing(roofline)] if roofline.series else [],
    }


def _drawing(chart: Chart) -> dict[str, Any]:
    return {"title": chart.title, "size": chart.size, "shapes": shapes(chart)}


def _kernels(attribution: Attribution, steps: int) -> dict[str, Any]:
    table = _step_means(by_kernel(attribution), steps)
    rows = with_short_names(with_classes(table.head(_KERNELS)), attribution)
    return {"total": table.height, **_columns(rows)}


def _timeline(attribution: Attribution, rows: pl.DataFrame, drawn: Timeline) -> dict[str, Any]:
    index: dict[Key, int] = {}
    for number, key in enumerate(rows.select("layer", "module", "own").iter_rows()):
        index.setdefault(key, number)  # events of a layer with several lines show the first
    row_of_key = pl.Series([index.get(key, -1) for key in attribution.forest.keys.names], dtype=pl.Int64)
    cells = drawn.cells
    names = [drawn.events["text"], *([cells.sums["text"].cast(pl.String)] if cells else [])]
    codes, texts = _coded(pl.concat(names))
    events = drawn.events.select("lane", "row", "start_ns", "length_ns", of="key")
    events = events.with_columns(codes.head(events.height).alias("text"), row_of_key.gather(events["of"]).alias("of"))
    counts = {name: getattr(drawn, name) for name in ("total", "every", "left_out")}
    data = {"lanes": drawn.lanes, "texts": texts, **counts, **_columns(events), "cells": cells}
    if cells:
        of, text = row_of_key.gather(cells.sums["key"]), codes.slice(events.height)
        sums = cells.sums.select("cell", "calls", "length_ns", of.alias("of"), text.alias("text"))
        data["cells"] = {"bounds": cells.bounds, "busy": _columns(cells.busy), "sums": _columns(sums)}
    return data


def _columns(table: pl.DataFrame) -> dict[str, list[Any]]:
    """A table as lists by column. JSON does not support NaN and infinity, so they become null."""
    finite = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)
        for name, dtype in table.schema.items()
        if dtype.is_float()
    ]
    return table.with_columns(finite).to_dict(as_series=False)
