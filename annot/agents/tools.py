"""The tools of the server: a few lines each over `Run`, `Table` and comparisons, whose numbers they do not change."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from annot.agents.answers import LONGEST, answer, overview
from annot.agents.explain import KEYS, explain_kernel, explain_layer, is_known
from annot.agents.folders import Folders, RefusedError
from annot.analyze.advice.facts import LEAST_CHANGE
from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.analyze.comparison.gate import decide
from annot.attribution.nesting import KEY
from annot.report.export.document import MIN_CHARS
from annot.report.export.markdown import markdown
from annot.report.table import Options, Table, process
from annot.report.terminal.compare import comparison_table
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
    *("gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "host_ns", "wall_ns", "whole_ns", "cut"),
)
"""Totals of a profile, as in the meta of JSON."""
_COMPARED: Final = (
    *("a", "b", "comparable", "reasons", "time", "runs", "steps", "step_time", "whole", "causes", "notes"),
    "reservations",
)
"""Facts of a comparison, as in the meta of JSON."""
_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "layer": (*KEY, "batch"),
    "module": ("module", "phase", "batch"),
    "phase": ("phase", "batch"),
    "kernel": ("name",),
    "kind": ("kind", "library", "tensor_cores"),
    "op": ("op", "phase", "inputs"),
    "step": ("process", "step"),
    "expert": ("path", "phase"),
    "stage": ("process", "action", "phase", "stage", "microbatch"),
    "summary": ("section", "item", "text"),
    "advice": ("rule",),
}
"""Columns that identify a row, by what a row is."""
_EXECUTION: Final = ("process", "thread", "device", "stream", "start_ns")
"""Columns that identify an execution."""
_LAST_LINES: Final = 10
_LAST_CHARS: Final = 600
"""Most lines and characters of the output of a command that failed, in an error."""
Subject: TypeAlias = Literal["layer", "module", "phase", "kind", "kernel"]
"""Rows of a comparison."""
Part: TypeAlias = Literal["all", "itself", "inside", "kernels", "layers", "try"]
"""Lists of an explanation."""


class Tools:
    """The tools. Their docstrings are the descriptions that a language model reads.

    Args:
        folders: the folders whose profiles may be read.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._runs: dict[tuple[Path, int, int], Run] = {}

    def open(self, path: str = ".", cursor: int = 0) -> str:
        """List the profiles in a folder, or return what a profile contains: format, steps, totals, notes, its views.

        Times end in _ns (nanoseconds), sizes in _bytes; shares are 0 to 1. Totals are sums over the whole profile.

        Args:
            path: a folder or a profile, relative to the first folder of the server.
            cursor: 0, or next_cursor of the answer before, for more profiles or notes.
        """
        file = self._folders.existing(path)
        if self._folders.is_listed(file):
            paths = self._folders.profiles(file)
            listed = [{"profile": self._folders.name(each), "size_bytes": each.stat().st_size} for each in paths]
            facts: dict[str, Any] = {"next": "open(path=PROFILE) or summary(profile=PROFILE)"}
            return _page(facts, listed, cursor, name="profiles", keys=("profile",))
        run = self._run(path)
        meta = run.view("layer", total=True, draw=False).meta
        groups: dict[str, list[str]] = {}
        for key, view in views().items():
            groups.setdefault(view.by, []).append(key)
        facts = {"profile": self._folders.name(file)} | {name: meta[name] for name in _META}
        facts["devices"] = [device.get("name") or device for device in run.source.meta.get("devices") or ()]
        facts["views"] = {by: ", ".join(keys) for by, keys in groups.items()}
        facts["next"] = "summary(profile), then rows(profile, view) or explain_row(profile, layer)"
        return _page(facts, meta["notes"], cursor, name="notes")

    def summary(self, profile: str, max_chars: int = 4_000) -> str:
        """Return the answer in Markdown: verdict, parts of the step, hottest rows, advice, and what annot cannot say.

        The heading of the rows has their unit, and says whether times are per step without warm-up or in total.

        Args:
            profile: name of the profile.
            max_chars: maximum length of the answer, 500 to 8000. The last line says what is left out.
        """
        if not MIN_CHARS <= max_chars <= LONGEST:
            raise ValueError(f"max_chars must be from {MIN_CHARS} to {LONGEST}, got {max_chars}")
        table = self._run(profile).view(brief=True)
        view = "" if table.meta["attributed_gpu_ns"] or not table.instead else ', view="kernel"'
        rows = f"rows(profile{view}, per_step=true)"
        more = f"{rows}, open(path=profile)" if max_chars == LONGEST else f"summary(profile, max_chars={LONGEST})"
        return markdown(table, max_chars=max_chars, more=more, reasons="advice(profile)", is_answer=True)

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
            texts = rows.select(pl.col(*keys, "^short$").cast(pl.String).str.contains(contains, literal=True))
            rows = rows.filter(texts.select(pl.any_horizontal(pl.all())).to_series())
        if asked.sums:
            steps = table.meta.get("per_step")
            facts["scope"] = f"mean of a step, of {steps} steps" if steps else "sums over the whole profile"
        if unknown:
            facts["unknown_columns"] = ", ".join(unknown)
        if rows.is_empty():
            facts["reason"] = table.nothing or f"no row has {contains!r} in its key"
        return _page(facts, rows.select(names), cursor, limit=limit, keys=keys)

    def explain_row(
        self,
        profile: str,
        layer: str | None = None,
        module: str | None = None,
        phase: str | None = None,
        kernel: str | None = None,
        part: Part = "all",
        cursor: int = 0,
    ) -> str:
        """Explain a layer or a kernel: metrics, shapes, source line, bound, what is inside, kernels, what to try.

        `itself` has the rows of the layer itself: its FLOPs, bytes, kernels and _self_ns are without the layers
        inside. `with_inside` has its totals with everything inside, `inside` the layers directly inside and
        `kernels` all kernels, hottest first, `try` the advice. Times are sums over the whole profile.

        Args:
            profile: name of the profile.
            layer: path of the layer, its group or its name in summary, such as "layers.*.attn". "" is the whole model.
            module: class of the layer; null: all.
            phase: forward, backward, ...; null: all.
            kernel: instead of a layer: the name of a kernel, in full or short. `layers` has those that launch it.
            part: all: the beginning of each list; or the one list of which cursor gets more rows.
            cursor: number of rows of this list to skip.
        """
        run = self._run(profile)
        if (layer is None) == (kernel is None):
            raise ValueError("explain_row expects either layer or kernel: copy one from rows(profile)")
        if kernel is not None:
            found = explain_kernel(run, profile, kernel)
        else:
            asked = {name: text for name, text in (("module", module), ("phase", phase)) if text is not None}
            found = explain_layer(run, profile, str(layer), asked)
        if part == "all":
            more = "explain_row with the same arguments, part=NAME OF THE LIST and cursor={cursor}"
            return overview(found.facts, found.lists, more, KEYS)
        if part not in found.lists:
            raise ValueError(f"part must be all or one of {', '.join(found.lists)}, got {part!r}")
        return _page({}, found.lists[part], cursor, name=part, keys=KEYS)

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
        return _page({name: table.meta[name] for name in _COMPARED}, table.shown, cursor, limit=limit, keys=KEYS)

    def advice(self, profile: str, limit: int = _ROWS, cursor: int = 0) -> str:
        """Return what to try, the largest saving first: evidence, code, the command that measures it.

        `saves` is the largest possible saving as a share of the step (1: no bound is known).

        Args:
            profile: name of the profile.
            limit: maximum number of pieces of advice, 1 to 200. Long code and lists are cut less with 1.
            cursor: 0, or next_cursor of the answer before.
        """
        table = self._run(profile).view("advice", draw=False)
        facts = {"next": "explain_row(profile, layer), or run the command in trial"}
        facts = facts if table.rows.height else {"reason": table.nothing}
        return _page(facts, table.rows, cursor, limit=limit, name="advice", keys=("rule",))

    def record(self, command: list[str], profile: str, seconds: int = 600, force: bool = False) -> str:
        """Run a command under a profiler, with ranges of every PyTorch and Keras layer, and write a new profile.

        Args:
            command: command and arguments, such as ["python", "train.py"], run in the first folder of the server.
            profile: name of the new profile, without suffix.
            seconds: time limit, 1 to 3600.
            force: true: replace the profile and the output of an earlier call.
        """
        from annot.collect.collectors import choose
        from annot.collect.logged_run import TIMED_OUT, LoggedRun, last_lines

        if not command or not 1 <= seconds <= 3600:
            raise ValueError(f"record expects a command, and seconds from 1 to 3600, got {command} and {seconds}")
        suffix = choose("auto").suffix
        path = self._folders.resolve(profile if profile.endswith(suffix) else profile + suffix)
        log = self._folders.resolve(f"{path}.txt")
        if (taken := [self._folders.name(file) for file in (path, log) if os.path.lexists(file)]) and not force:
            raise RefusedError(f"{taken[0]} exists. Call record with another name, or with force=true to replace it")
        if not path.parent.is_dir():
            raise RefusedError(f"{self._folders.name(path.parent)} is not a folder. Call record with another name")
        path.unlink(missing_ok=True)  # so that a profile is one of this command
        run = LoggedRun(
            command=command, profile=path, log=log, layers=True, folder=self._folders.first, timeout=seconds
        )
        status, name = run.run(), self._folders.name(path)
        if problem := run.problem(status):
            problem = problem if status in (0, TIMED_OUT) else f"exit status {status}"
            written = f'. summary(profile="{name}") reads what was recorded' if path.exists() else ""
            output = f"The output ends with: {last_lines(log, _LAST_LINES)[-_LAST_CHARS:]}{written}"
            raise RefusedError(f"the command failed: {problem}. Call record again with force=true. {output}")
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
        which = f"did you mean {' or '.join(near)}?" if near else f"views: {', '.join(views())}"
        raise RefusedError(f"annot has no view {name!r}; {which}") from None


def _columns(table: Table, asked: list[str] | None) -> tuple[list[str], list[str], list[str]]:
    """The key columns, the columns of the answer, and those that the profile knows nothing about, which it lacks."""
    view, rows = table.view, table.rows
    names = _KEYS.get(view.by) or view.keys or (KEY if view.label == "layer" else (view.label,))
    if view.group == "each":
        names = (*names, *_EXECUTION)
    keys = [name for name in names if name in rows.columns and not (rows.height and rows[name].is_null().all())]
    if asked is None:
        asked = [column.name for column in view.shown] + [view.end] if view.shown else rows.columns
        asked = [name for name in asked if name in rows.columns]
    wanted = [*dict.fromkeys((*keys, *(rows.columns if "*" in asked else asked)))]
    if wrong := [name for name in wanted if name not in rows.columns]:
        raise RefusedError(f"view {view.key} has no column {wrong[0]!r}; columns: {', '.join(rows.columns)}")
    unknown = [name for name in wanted if rows.height and name not in keys and not is_known(table, rows, name)]
    return keys, [name for name in wanted if name not in unknown], unknown


def _page(
    facts: Mapping[str, Any],
    rows: pl.DataFrame | Sequence[Any],
    cursor: int,
    *,
    limit: int = _MOST_ROWS,
    name: str = "rows",
    keys: Sequence[str] = (),
) -> str:
    """The answer with some rows, from the cursor on."""
    if not 1 <= limit <= _MOST_ROWS:
        raise ValueError(f"limit must be from 1 to {_MOST_ROWS}, got {limit}. Use next_cursor for more rows")
    if cursor and not 0 <= cursor < len(rows):
        raise ValueError(f"cursor must be next_cursor of an answer, got {cursor}; the number of {name} is {len(rows)}")
    part = rows[cursor : cursor + limit]
    shown = part.to_dicts() if isinstance(part, pl.DataFrame) else part
    facts = {**facts, f"{name}_total": len(rows)}
    return answer(facts, shown, name=name, first=cursor, total=len(rows), keys=keys)
