"""Profile for TensorBoard: times per step and layer, layer table, charts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.analyze.gpu_activities import by_layer_and_step
from annot.attribution.attribute import Attribution
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.report.charts.profile_charts import pictures
from annot.report.charts.raster import as_png, can_draw
from annot.report.export import tfevents
from annot.report.table import Table
from annot.report.tree import row_label
from annot.report.units import count, duration, printable
from annot.report.views import find_view
from annot.util.whole_files import created

FILE: Final = "events.out.tfevents.0.annot"
"""Name of the file. TensorBoard recognizes event files by ``tfevents`` in the name."""
_STEP_TIMES: Final = ("step_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "gpu_ns")


def write_tensorboard(attribution: Attribution, source: str, path: Path, *, force: bool) -> None:
    """Write the log folder `path` for TensorBoard; the other arguments are those of `write_trace_file`."""
    content = b"".join(event_file(attribution, source))  # before mkdir, so that an error leaves no folder
    path.mkdir(parents=True, exist_ok=True)
    with created(path / FILE, force=force) as file:
        file.write(content)


def event_file(attribution: Attribution, source: str) -> Iterator[bytes]:
    """Yield the records of an event file.

    Scalars are ``step/...`` (ms) and the total time of each layer in each step, such as
    ``forward ms/features.0 Conv2d``: GPU time, or host time in profiles without GPU activity. A profile without steps
    has one value per layer, the time of the whole profile. Texts are ``layers`` and ``summary``. Images are the charts
    of `annot.report.charts.profile_charts.pictures`; they need Pillow. The wall time of the records is the start of
    the profile, or 0 if that is unknown. `source` is the name of the profile.

    Raises AnnotError if the package protobuf is not installed.
    """
    wall_time = (attribution.meta.get("utc_start_ns") or 0) / 1e9
    report = Table(find_view("layer"), by_layer(attribution), summarize(attribution) | {"source": source})
    yield tfevents.version(wall_time)
    yield from _step_scalars(attribution, wall_time)
    yield from _layer_scalars(attribution, report, wall_time)
    yield tfevents.text(wall_time, "layers", _layer_table(report))
    yield tfevents.text(wall_time, "summary", _summary(report.meta))
    if can_draw():
        for name, chart in pictures(attribution).items():
            yield tfevents.image(wall_time, name, *as_png(chart))


def _step_scalars(attribution: Attribution, wall_time: float) -> Iterator[bytes]:
    """One value per step and kind of time, for each process."""
    steps = by_step(attribution)
    zero, processes = steps["start_ns"].min(), steps["process"].unique(maintain_order=True).to_list()
    for row in steps.iter_rows(named=True):
        owner = f" of process {processes.index(row['process']) + 1}" if len(processes) > 1 else ""
        values = {
            f"step{owner}/{'time' if name == 'step_ns' else name.removesuffix('_ns')} ms": row[name] / 1e6
            for name in _STEP_TIMES
            if row[name] is not None
        }
        since = 0 if row["start_ns"] is None or not isinstance(zero, int) else row["start_ns"] - zero
        yield tfevents.scalars(wall_time + since / 1e9, row["step"], values)


def _layer_scalars(attribution: Attribution, report: Table, wall_time: float) -> Iterator[bytes]:
    per_step = by_layer_and_step(attribution)
    if per_step.is_empty():
        per_step = report.rows.with_columns(step=pl.lit(0, pl.Int64))
    for (step,), rows in per_step.group_by("step", maintain_order=True):
        timed = rows.drop_nulls(report.time).iter_rows(named=True)
        values = {f"{row['phase']} ms/{_label(row)}": row[report.time] / 1e6 for row in timed}
        yield tfevents.scalars(wall_time, int(str(step)), values)


def _label(row: dict[str, Any]) -> str:
    return printable(" ".join(filter(None, row_label(row))))


def _layer_table(report: Table) -> str:
    """Return the columns of the view, sums, as Markdown."""
    view = replace(report.view, columns=("phase", *report.view.columns))
    rows, columns = replace(report, view=view).cells()
    lines = [(*row_label(row), *(column.show(row) for column in columns), ", ".join(row["shapes"][:1])) for row in rows]
    return _markdown(("Layer", "Module", *(column.full_title for column in columns), "Input"), lines)


def _summary(meta: dict[str, Any]) -> str:
    host, step = meta["host_ns"], meta["step_ns"]
    facts = (
        ("Profile", meta["source"]),
        ("Written by", meta["producer"]),
        ("GPU time", duration(meta["gpu_ns"])),
        ("GPU time in ranges", duration(meta["attributed_gpu_ns"])),
        ("Host time in ranges", "" if host is None else duration(host)),
        *((name, count(meta[name.lower()])) for name in ("Ranges", "Kernels", "Steps")),
        ("Median step", "" if step is None else duration(step["median"])),
        *(("Note", note) for note in meta["notes"]),
    )
    return _markdown(("", ""), facts)


def _markdown(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    table = [list(heads), *map(list, lines)]
    table.insert(1, ["---"] * len(table[0]))
    return "\n".join("| " + " | ".join(cell if cell == "---" else _plain(cell) for cell in row) + " |" for row in table)


def _plain(text: str) -> str:
    """Escape a text for Markdown and HTML."""
    return re.sub(r"[^\w .,()%/-]|_", lambda match: f"&#{ord(match[0])};", printable(text))
