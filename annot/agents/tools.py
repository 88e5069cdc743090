"""The tools of the server: a few lines each over `Run`, `Table` and comparisons, whose numbers they do not change."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from annot.agents.answers import LONGEST, answer
from annot.agents.folders import Folders, RefusedError
from annot.analyze.advice.facts import LEAST_CHANGE
from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.analyze.comparison.gate import decide
from annot.analyze.kernel_names import layer_names, with_short_names
from annot.attribution.nesting import KEY
from annot.report.export.document import MIN_CHARS
from annot.report.export.markdown import markdown
from annot.report.table import Options, Table, process
from annot.report.terminal.compare import comparison_table
from annot.report.totals import peaks_text
from annot.report.tree import row_label
from annot.report.views import View, find_view, views
from annot.runs.run import Run
from annot.runs.selection import Selection

_OPEN: Final = 4
"""Number of profiles that stay open."""
_ROWS: Final = 20
_MOST_ROWS: Final = 200
_ALL: Final = 1 << 40
"""More rows than a table has. The option `top` of tables also sorts."""
_META: Final = (
    *("format", "producer", "processes", "ranges", "kernels", "copies"),
    *("steps", "step_ns", "step_kind", "steps_missing", "warmup_left_out"),
    *("gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "host_ns", "wall_ns", "whole_ns", "cut", "notes"),
)
"""Totals of a profile, as in the meta of JSON."""
_COMPARED: Final = (
    *("a", "b", "comparable", "reasons", "time", "runs", "steps", "step_time", "whole", "causes", "notes"),
    "reservations",
)
"""Facts of a comparison, as in the meta of JSON."""
Subject: TypeAlias = Literal["layer", "module", "phase", "kind", "kernel"]
"""Rows of a comparison."""


class Tools:
    """The tools. Their docstrings are the descriptions that a language model reads.

    Args:
        folders: the folders whose profiles may be read.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._runs: dict[tuple[Path, int, int], Run] = {}

    def open(self, path: str = ".") -> str:
        """List the profiles in a folder, or return what a profile contains: format, steps, totals, notes, its views.

        Times end in _ns (nanoseconds), sizes in _bytes; shares are 0 to 1. Totals are sums over the whole profile.

        Args:
            path: a folder or a profile, relative to the first folder of the server.
        """
        file = self._folders.existing(path)
        if self._folders.is_listed(file):
            paths = self._folders.profiles(file)
            listed = [{"profile": self._folders.name(each), "size_bytes": each.stat().st_size} for each in paths]
            return answer({"next": "open(path=PROFILE) or summary(profile=PROFILE)"}, listed, name="profiles")
        run = self._run(path)
        meta = run.view("layer", total=True, draw=False).meta
        groups: dict[str, list[str]] = {}
        for key, view in views().items():
            groups.setdefault(view.by, []).append(key)
        facts = {"profile": self._folders.name(file)} | {name: meta[name] for name in _META}
        facts["devices"] = [device.get("name") or device for device in run.source.meta.get("devices") or ()]
        facts["views"] = {by: ", ".join(keys) for by, keys in groups.items()}
        return answer(facts | {"next": "summary(profile), then rows(profile, view) or explain_row(profile, layer)"})

    def summary(self, profile: str, max_chars: int = 4_000) -> str:
        """Return the answer in Markdown: verdict, parts of the step, hottest rows, advice, and what annot cannot say.

        Times of rows are those of a step without warm-up, in the unit of their heading.

        Args:
            profile: name of the profile.
            max_chars: maximum length of the answer, 500 to 8000. The last line says what is left out.
        """
        if not MIN_CHARS <= max_chars <= LONGEST:
            raise ValueError(f"max_chars must be from {MIN_CHARS} to {LONGEST}, got {max_chars}")
        table = self._run(profile).view(brief=True)
        return markdown(table, max_chars=max_chars, more="rows(profile)", reasons="advice(profile)", is_answer=True)

    def rows(
        self,
        profile: str,
        view: str = "layer",
        columns: list[str] | None = None,
        contains: str = "",
        per_step: bool = False,
        sort: Literal["time", "order"] = "time",
        limit: int = _ROWS,
        cursor: int = 0,
    ) -> str:
        """Return rows of a view, with the numbers of `annot PROFILE --format json`.

        Args:
            profile: name of the profile.
            view: layer, module, phase, kernel, kind, op, step, summary, advice; or with what to say about them:
                layer_work, layer_roofline, layer_tensor, layer_memory, layer_communication, layer_all, ...; see open.
            columns: names of columns; null: those of the printed table; ["*"]: all. Key columns always come with them.
            contains: return only rows with this text in a key column, such as "layers.7".
            per_step: true: mean of a step without warm-up; false: sums over the whole profile.
            sort: time: the longest first (layers: self time); order: by first occurrence.
            limit: maximum number of rows, 1 to 200. Fewer come if they do not fit.
            cursor: 0, or next_cursor of the answer before.
        """
        asked = _view(view)
        table = self._run(profile).make_table(
            asked, Options(top=_ALL if sort == "time" else None, total=not per_step, draw=False)
        )
        keys, names, unknown = _columns(table, columns)
        rows, facts = table.rows, dict[str, Any](view=asked.key, key=keys)
        if contains:
            rows = rows.filter(pl.any_horizontal(pl.col(keys).cast(pl.String).str.contains(contains, literal=True)))
        if asked.sums:
            steps = table.meta.get("per_step")
            facts["scope"] = f"mean of a step, of {steps} steps" if steps else "sums over the whole profile"
        if unknown:
            facts["unknown_columns"] = ", ".join(unknown)
        if rows.is_empty():
            facts["reason"] = table.nothing or f"no row has {contains!r} in its key"
        return _page(facts, rows.select(names), limit, cursor)

    def explain_row(
        self,
        profile: str,
        layer: str | None = None,
        module: str | None = None,
        phase: str | None = None,
        kernel: str | None = None,
    ) -> str:
        """Explain a layer or a kernel: all metrics, shapes, source line, bound, its kernels or layers, what to try.

        Times are sums over the whole profile.

        Args:
            profile: name of the profile.
            layer: path of the layer, its group or its name in summary, such as "layers.*.attn". "" is the whole model.
            module: class of the layer; null: all.
            phase: forward, backward, ...; null: all.
            kernel: instead of a layer: the name of a kernel, in full or short.
        """
        run = self._run(profile)
        if (layer is None) == (kernel is None):
            raise ValueError("explain_row expects either layer or kernel: copy one from rows(profile)")
        if kernel is not None:
            return _kernel(run, profile, kernel)
        table = run.view("layer", "all", total=True, draw=False)
        asked = {name: text for name, text in (("module", module), ("phase", phase)) if text is not None}
        of_layer = table.rows.filter(_is_layer(table.rows, str(layer)))
        if of_layer.is_empty():
            raise RefusedError(_nothing(profile, "layer", str(layer), table.rows["layer"]))
        rows = of_layer.filter(pl.lit(True), **asked)
        if rows.is_empty():
            raise RefusedError(_no_row(str(layer), asked, of_layer))
        unknown = [name for name in rows.columns if not _is_known(table, rows, name)]
        facts: dict[str, Any] = {"unknown_columns": ", ".join(unknown)} if unknown else {}
        if "peaks" in table.meta:
            facts["peaks"] = peaks_text(table.meta["peaks"])
        attribution = run.attribution_for(table.view, total=True)
        kernels = with_short_names(layer_names(attribution).join(rows, on=KEY, how="semi"), attribution)
        facts["kernels"] = _longest(kernels, (*KEY[2:], "short", "kind", "tensor_cores", "calls"))
        named = {*rows["layer"], *rows["group"].drop_nulls()}
        advice = [row for row in run.advice.to_dicts() if named & {*row["layers"], *row["where"]}]
        facts["try"] = [{name: row[name] for name in ("advice", "saves", "trial")} for row in advice]
        facts["try"] = facts["try"] or "No advice names this layer. Call advice(profile) for all."
        return answer(facts, rows.drop(unknown).to_dicts())

    def compare(self, a: str, b: str, by: Subject = "layer", limit: int = _ROWS, cursor: int = 0) -> str:
        """Compare two profiles: step time, causes, and the rows whose time changes most, with their uncertainty.

        A speedup above 1 means that B is faster. Times are per step if both profiles have steps. Rows whose change
        the rows inside them explain are left out.

        Args:
            a: name of the baseline.
            b: name of the profile to compare.
            by: layer, module, phase, kind (of kernel) or kernel.
            limit: maximum number of rows, 1 to 200. Fewer come if they do not fit.
            cursor: 0, or next_cursor of the answer before.
        """
        sides = [[digest(self._run(name).attribution)] for name in (a, b)]
        comparison = compare(*sides, by=by)
        causes = causes_of(comparison, decide(comparison, above=1 + LEAST_CHANGE), *sides)
        table = process(comparison_table(comparison, a, b, causes), Options(top=_ALL))
        return _page({name: table.meta[name] for name in _COMPARED}, table.shown, limit, cursor)

    def advice(self, profile: str) -> str:
        """Return what to try, the largest saving first: evidence, code, the command that measures it.

        `saves` is the largest possible saving as a share of the step (1: no bound is known).

        Args:
            profile: name of the profile.
        """
        table = self._run(profile).view("advice", draw=False)
        facts = {"next": "explain_row(profile, layer), or run the command in trial"}
        return answer(facts if table.rows.height else {"reason": table.nothing}, table.rows.to_dicts(), name="advice")

    def record(self, command: list[str], profile: str, seconds: int = 600) -> str:
        """Run a command under a profiler, with ranges of every PyTorch and Keras layer, and write a new profile.

        Args:
            command: command and arguments, such as ["python", "train.py"], run in the first folder of the server.
            profile: name of the new profile, without suffix.
            seconds: time limit, 1 to 3600.
        """
        from annot.collect.collectors import choose
        from annot.collect.logged_run import LoggedRun

        if not command or not 1 <= seconds <= 3600:
            raise ValueError(f"record expects a command, and seconds from 1 to 3600, got {command} and {seconds}")
        suffix = choose("auto").suffix
        path = self._folders.resolve(profile if profile.endswith(suffix) else profile + suffix)
        log = self._folders.resolve(f"{path}.txt")
        if taken := [self._folders.name(file) for file in (path, log) if os.path.lexists(file)]:
            raise RefusedError(f"{taken[0]} exists. Call record with another name")
        if not path.parent.is_dir():
            raise RefusedError(f"{self._folders.name(path.parent)} is not a folder. Call record with another name")
        run = LoggedRun(
            command=command, profile=path, log=log, layers=True, folder=self._folders.first, timeout=seconds
        )
        if problem := run.problem(run.run()):
            raise RefusedError(f"the command failed: {problem}. Read {self._folders.name(log)}, and call record again")
        name = self._folders.name(path)
        return answer({"profile": name, "output": self._folders.name(log), "next": f'summary(profile="{name}")'})

    def _run(self, profile: str) -> Run:
        """The profile, open since an earlier call if the file has not changed."""
        path = self._folders.profile(profile)
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        run = self._runs.pop(key, None)
        if run is None:
            run = Run(path, Selection(within=self._folders.paths))
        self._runs[key] = run
        while len(self._runs) > _OPEN:
            del self._runs[next(iter(self._runs))]
        return run


def _view(name: str) -> View:
    try:
        return find_view(name)
    except ValueError:
        near = difflib.get_close_matches(name, views(), 3)
        which = f"Did you mean {' or '.join(near)}?" if near else "open(path=PROFILE) lists all views."
        raise RefusedError(f"there is no view {name!r}. {which}") from None


def _columns(table: Table, asked: list[str] | None) -> tuple[list[str], list[str], list[str]]:
    """The key columns, the columns of the answer, and those that the profile knows nothing about, which it lacks."""
    view, rows = table.view, table.rows
    names = ("rule", "section", *KEY, "short" if "short" in rows.columns else view.label, "inputs", "process", "batch")
    keys = [name for name in dict.fromkeys(names) if name in rows.columns]
    if asked is None:
        asked = [column.name for column in view.shown] + [view.end] if view.shown else rows.columns
        asked = [name for name in asked if name in rows.columns]
    wanted = [*dict.fromkeys((*keys, *(rows.columns if "*" in asked else asked)))]
    if wrong := [name for name in wanted if name not in rows.columns]:
        raise RefusedError(f"there is no column {wrong[0]!r}. Choose from {', '.join(rows.columns)}")
    unknown = [name for name in wanted if rows.height and not _is_known(table, rows, name)]
    return keys, [name for name in wanted if name not in unknown], unknown


def _is_layer(rows: pl.DataFrame, name: str) -> pl.Series:
    """Whether each row is of a layer: `name` is its path, its group, or one of these with the class, as in tables."""
    label = re.sub(r" ×[\d,]+$", "", name)
    return pl.Series(
        [
            label in (row["layer"], row["group"], f"{row['group']} {row['module']}", " ".join(row_label(row)).strip())
            for row in rows.select(*KEY, "group").iter_rows(named=True)
        ],
        dtype=pl.Boolean,
    )


def _is_known(table: Table, rows: pl.DataFrame, name: str) -> bool:
    return table.knows(name) and rows[name].null_count() < rows.height


def _page(facts: Mapping[str, Any], rows: pl.DataFrame, limit: int, cursor: int) -> str:
    if not 1 <= limit <= _MOST_ROWS:
        raise ValueError(f"limit must be from 1 to {_MOST_ROWS}, got {limit}. Use next_cursor for more rows")
    if cursor and not 0 <= cursor < rows.height:
        raise ValueError(f"cursor must be next_cursor of an answer, got {cursor}, and there are {rows.height} rows")
    facts = {**facts, "rows_total": rows.height}
    return answer(facts, rows.slice(cursor, limit).to_dicts(), first=cursor, total=rows.height)


def _longest(rows: pl.DataFrame, names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows with the most GPU time, some of their columns."""
    return rows.sort("gpu_ns", descending=True, maintain_order=True).select(*names, "gpu_ns").to_dicts()


def _kernel(run: Run, profile: str, name: str) -> str:
    """The answer about a kernel: its row, and the layers that launch it."""
    table = run.view("kernel", total=True, draw=False)
    rows = table.rows.filter((pl.col("name") == name) | (pl.col("short") == name))
    if rows.is_empty():
        raise RefusedError(_nothing(profile, "kernel", name, table.rows["short"]))
    launched = layer_names(run.attribution_for(table.view, total=True)).join(rows, on="name", how="semi")
    return answer({"layers": _longest(launched, (*KEY, "calls"))}, rows.to_dicts())


def _no_row(layer: str, asked: Mapping[str, str], rows: pl.DataFrame) -> str:
    """What to ask instead of a module or phase that a layer does not have."""
    wrong = " and ".join(f"{name} {text!r}" for name, text in asked.items())
    found = (f"{name} {' or '.join(map(repr, rows[name].unique(maintain_order=True)))}" for name in asked)
    return f"layer {layer!r} has no row with {wrong}. It has {', '.join(found)}"


def _nothing(profile: str, row: str, name: str, names: pl.Series) -> str:
    near = difflib.get_close_matches(name, names.unique(maintain_order=True).to_list(), 3)
    which = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f'there is no {row} {name!r}.{which} Call rows(profile="{profile}", view="{row}") for the names'
