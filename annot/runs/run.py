"""A profile from file to report: class `Run`, which the command line, the page and notebooks use."""

from __future__ import annotations

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from annot.analyze.hardware_counters import GIVEN, default_peaks
from annot.attribution.attribute import STEADY, Attribution, attribute
from annot.attribution.layer_tables import by_layer, by_line
from annot.attribution.summary import summarize
from annot.errors import AnnotError, writing
from annot.profile import Profile, Source
from annot.read.beside import only_inside
from annot.read.formats import load, source
from annot.report.table import Options, Order, Table, process
from annot.report.tree import folds_of, with_groups
from annot.report.unknown import MOST_ACTIVITIES
from annot.report.views import View, find_view
from annot.runs.processes import one_process, ranks_in
from annot.runs.profile_files import is_url, local
from annot.runs.selection import ALL, Selection
from annot.util.data_folder import data_folder
from annot.util.progress import tell
from annot.util.whole_files import write_file

if TYPE_CHECKING:
    from annot.analyze.advice import Facts
    from annot.analyze.peaks import Peaks

_log: Final = logging.getLogger(__name__)
_IN_MEMORY: Final = 16 << 20
"""Size in bytes up to which a file is read into memory. Blocks of a larger file are read for each view."""
_LARGEST: Final = 10
"""Kernels in the report of a profile without ranges."""
IN_PYTHON: Final = ".view(); page: .to_html('page.html')"
"""What follows an answer in Python: how to see the rest."""


class Shown(Table):
    """A table that prints itself, and that a notebook displays."""

    def __repr__(self) -> str:
        from annot.report.terminal.table import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from annot.report.page.fragment import as_fragment

        return as_fragment(self)


class Frames(ABC):
    """The frames of a profile or of ranks, each computed once; those of ranks have the column `rank` first."""

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Rows of `annot.correlate`, with FLOPs, bytes and parameters, and the fold of each layer."""
        return self._frame("layer")

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """A row per kernel name, longest total first."""
        return self._frame("kernel")

    @cached_property
    def steps(self) -> pl.DataFrame:
        """A row per step."""
        return self._frame("step")

    @cached_property
    def summary(self) -> pl.DataFrame:
        """A row per item of the summary: shares of the step time, Tensor Cores, kernels, devices."""
        return self._frame("summary")

    @cached_property
    def advice(self) -> pl.DataFrame:
        """A row per piece of advice: what to change, the most it saves, evidence, code and layers."""
        return self._frame("advice")

    def to_json(self, path: str | os.PathLike[str], by: str = "layer", **options: Any) -> None:
        """Write a view as JSON: `meta`, and a list of rows. `options` are those of `view`; sums by default."""
        from annot.report.export.json_csv_parquet import as_json

        chunks = as_json(self.view(by, **{"total": True, "draw": False} | options))
        write_file(path, (chunk.encode() for chunk in chunks), force=True)

    def metrics(self, by: str = "layer", **options: Any) -> dict[str, float]:
        """Return the numbers of a view by name, for ``wandb.log`` and ``mlflow.log_metrics``; times in ms, per step.

        Args:
            by: what a row is, as in `view`.
            options: other arguments of `view`, such as ``depth=1`` for fewer metrics.
        """
        from annot.report.export.metrics import metrics

        return metrics(self.view(by, **{"draw": False} | options))

    @abstractmethod
    def __repr__(self) -> str:
        """Return the answer: verdict, hottest rows and the best advice."""

    view: Callable[..., Any]
    """Return a view, to print or to write."""

    @property
    @abstractmethod
    def _table(self) -> object:
        """The view that prints as the profile or ranks."""

    @abstractmethod
    def _frame(self, by: str) -> pl.DataFrame:
        """Return the rows of a view; sums."""


class Run(Frames):
    """A profile, attributed to layers on first use.

    A notebook displays the layers with bars and charts.

    Args:
        profile: path or URL of the profile, or a profile from `annot.load`.
        selection: ranges, steps and process to use.

    Raises:
        TypeError: `profile` is neither a path nor a profile.
    """

    def __init__(self, profile: str | os.PathLike[str] | Source, selection: Selection = ALL) -> None:
        self.selection = selection
        self._profile: Source | None = None
        self._is_file = isinstance(profile, str | os.PathLike)
        if isinstance(profile, str | os.PathLike):
            self.path = os.fspath(profile)
        elif hasattr(profile, "work_blocks"):
            self._profile, self.path = profile, str(profile.meta.get("source", ""))
        else:
            raise TypeError(f"profile must be a Profile from annot.load or a path, got {type(profile).__name__}")
        self._files = ExitStack()
        weakref.finalize(self, self._files.close)
        self._sources: dict[bool, Source] = {}
        self._attributed: dict[tuple[bool, bool], Attribution] = {}

    @property
    def source(self) -> Source:
        """The profile, read in blocks where the file is large."""
        return self._source(calls=False)

    @property
    def attribution(self) -> Attribution:
        """The ranges with their layers and times, of the selected steps."""
        return self._attribution()

    @property
    def attribution_with_calls(self) -> Attribution:
        """`attribution` with the names of API calls, which timelines, the summary and the advice need."""
        return self._attribution(calls=True)

    @cached_property
    def file(self) -> Path:
        """The file of the profile; of a URL a temporary copy."""
        return Path(self.path) if os.path.exists(self.path) else self._files.enter_context(local(self.path))

    @cached_property
    def verdict(self) -> str:
        """One sentence: time of a step, device, and where most of this time goes; empty: no kernels or times."""
        from annot.analyze.verdict import verdict

        return verdict(self.facts)

    @cached_property
    def facts(self) -> Facts:
        """Quantities that the verdict and the advice use, computed on demand."""
        from annot.analyze.advice import Facts

        return Facts(self.attribution_with_calls, folds_of(self.attribution_with_calls))

    @cached_property
    def advice(self) -> pl.DataFrame:
        """A row per piece of advice: what to change, the most it saves, evidence, code and layers."""
        from annot.changes.advice import by_advice

        return by_advice(self.attribution_with_calls, self.facts)

    def _short_advice(self) -> pl.DataFrame:
        """The advice for lines below a table, which cite `annot try` if the user has results of it."""
        folder = data_folder("tried")
        if folder is not None and folder.exists():
            return self.advice
        from annot.analyze.advice import by_advice

        return by_advice(self.attribution_with_calls, self.facts)

    @property
    def meta(self) -> dict[str, Any]:
        """Totals and notes; see `annot.attribution.summarize`."""
        return self._meta(self.attribution)

    def view(
        self,
        by: str = "layer",
        columns: str = "time",
        *,
        each: bool = False,
        depth: int | None = None,
        top: int | None = None,
        min_share: float = 0.0,
        sort: Order = "order",
        total: bool = False,
        brief: bool = False,
        expand: str | Sequence[str] = (),
        draw: bool = True,
    ) -> Shown:
        """Return a view of the profile, to print or to write.

        Args:
            by: what a row is: layer, module, kind, kernel, op, step, expert, stage or phase; or the name of a view.
            columns: what to say about it: time, work, roofline, tensor, memory, communication or all.
            each: single executions instead of sums (layers and kernels).
            depth: levels of layers below the outermost, 0 or more; deeper layers count in their ancestor. None: all.
            top: number of rows to keep, the longest, 1 or more; None: all.
            min_share: leave out rows below this share of the total time, 0 to 1 (0.05 is 5%).
            sort: "order" keeps the order of appearance (kernels: longest total first); "time": longest first.
            total: sums over the selected steps or the whole profile; false: the mean of a step without warm-up, if
                the profile has steps.
            brief: also make the breakdown of the step time and the advice, if the profile is small.
            expand: path of layers, such as ``layers`` or ``layers.7``, or several, that tables by layer show one by
                one instead of in folds; ``""``: all layers.
            draw: whether the view is printed; false: only its rows and meta are needed, for a file.

        Raises:
            AnnotError: the profile cannot be read, or lacks the selected steps.
            TypeError: an argument has another type.
            ValueError: the view does not exist, or an argument is out of range.
        """
        view = find_view(by, columns, each=each)
        options = Options(
            depth=depth, expand=expand, min_share=min_share, sort=sort, top=top, draw=draw, total=total, brief=brief
        )
        return self.make_table(view, options)

    def make_table(self, view: View, options: Options) -> Shown:
        """Return a view of the profile; see `view`."""
        options.check(view)
        draw, total = options.draw, options.total
        attribution = self.attribution_for(view, total=total)
        meta = self._meta(attribution)
        advice = self._short_advice().to_dicts() if options.brief and self.is_small(attribution) else None
        if advice is not None or view.key == "summary":
            meta["verdict"], meta["without_warmup"] = self.verdict, self.facts.parts.without_warmup
        if advice is not None and view.key == "layer":
            meta["advice"] = len(advice)
        tell("making the table")
        _log.info("view %s of %s", view.key, self.path)
        rows = self.advice if view.key == "advice" else self._rows(view, attribution)
        if "roof_share" in rows.columns:
            meta["peaks"] = default_peaks(attribution).as_meta()
            _log.info("peaks: %s", meta["peaks"]["source"])
        kernels = options.brief and draw and view.key == "layer" and meta["kernels"] and not meta["attributed_gpu_ns"]
        instead = [self.view("kind", total=total), self.view("kernel", top=_LARGEST, total=total)] if kernels else ()
        lines = by_line(attribution) if view.folds or options.depth is not None else None
        table = Shown(view, rows, meta, advice=advice or (), instead=instead, lines=lines)
        if draw and advice is not None:
            peaks = default_peaks(attribution)
            bounds = _bounds(attribution, peaks) if view.layout == "tree" else {}
            table = replace(table, shares=self._shares(), bounds=bounds, has_peaks=peaks.bandwidth is not None)
        steps = self.steps_in(attribution) if view.sums and not total else 0
        return process(table, replace(options, steps=steps))

    def attribution_for(self, view: View, *, total: bool = False) -> Attribution:
        """Return the attribution from which a view takes its rows; `total` as in `view`."""
        return self._attribution(calls=view.calls, steady=not total and view.sums)

    def of_processes(self) -> list[Run]:
        """Return a run for each process with layers or steps, or else for each process with ranges.

        Raises:
            AnnotError: no process has ranges.
        """
        runs = [Run(self.path, replace(self.selection, process=process)) for process in ranks_in(self.source)]
        for run in runs:
            run._profile = self.source
        return runs

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page with all views, which works offline.

        Raises:
            AnnotError: the file cannot be written.
        """
        from annot.report.page.render import as_page

        write_file(path, [as_page(self.page(), f"{self.path} · annot")], force=True)

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline for Perfetto and chrome://tracing; compressed if the name ends in .gz.

        Raises:
            AnnotError: the file cannot be written.
        """
        from annot.report.export.chrome_trace import write_trace_file

        with writing(path):
            write_trace_file(self.attribution_with_calls, self.path, Path(path), force=True)

    def page(self, **options: Any) -> dict[str, Any]:
        """Return the data of the HTML page with this profile."""
        from annot.report.page.data import report_data

        return report_data(self.page_of_run(**options), self.path)

    def page_of_run(self, **options: Any) -> dict[str, Any]:
        """Return the part of the page data about this profile; `options` of `annot.report.page.data.run_data`."""
        from annot.report.page.data import run_data

        attribution = self.attribution_with_calls  # first, because it serves all views of a profile without steps
        layers = self.view("layer", "all", draw=False)
        return run_data(attribution, self.path, layers, shown=self.attribution_for(layers.view), **options)

    def _meta(self, attribution: Attribution) -> dict[str, Any]:
        from annot.analyze.tensor_cores import matrix_units

        meta = summarize(attribution) | {"matrix_units": matrix_units(attribution.meta)}
        return meta | ({"source": self.path} if self.path else {})

    def _shares(self) -> dict[str, float]:
        """The share of each part of the step time by its name; empty if the times of the devices are unknown."""
        from annot.analyze.run_summary import part_names

        if not self.facts.is_time_known:
            return {}
        shares = self.facts.shares
        return {name.name: shares[key] for key, name in part_names(self.attribution_with_calls).items() if shares[key]}

    @staticmethod
    def is_small(attribution: Attribution) -> bool:
        """Return whether the profile is small enough for a verdict and advice with each report."""
        return int(attribution.nodes.select(pl.col("kernels") + pl.col("copies")).sum().item()) <= MOST_ACTIVITIES

    @staticmethod
    def steps_in(attribution: Attribution) -> int:
        """Return the number of steps that the rows of an attribution cover; 0 if they cover more, or several kinds."""
        steps = attribution.steps.chosen()
        if attribution.steps.choice is None or steps["kind"].n_unique() > 1:
            return 0
        return steps["step"].n_unique()

    def _attribution(self, *, calls: bool = False, steady: bool = False) -> Attribution:
        steady = steady and self.selection.steps is None
        profile = self._source(calls)
        calls = calls or isinstance(profile, Profile)  # a profile in memory has the names of API calls
        for key, attribution in self._attributed.items():
            # Without steps, those after the warm-up are the whole profile.
            if key[0] >= calls and (key[1] == steady or attribution.steps.table.is_empty()):
                return attribution
        attribution = self._attributed[calls, steady] = self._attribute(profile, steady)
        return attribution

    def _source(self, calls: bool) -> Source:
        if self._profile is not None:
            return self._profile
        if (cached := self._sources.get(calls)) is not None:
            return cached
        small = self.file.is_file() and self.file.stat().st_size <= _IN_MEMORY
        try:
            with only_inside(self.selection.within):
                opened = load(self.file) if small else source(self.file, calls=calls)
                if self.selection.captures or opened.meta["format"] == "kineto":
                    from annot.runs.captures import with_capture_files

                    opened = with_capture_files(opened, self.selection.captures, self.file)
        except AnnotError as error:  # name the URL that the user gave, not its local copy
            message = str(error).replace(str(self.file), self.path) if is_url(self.path) else str(error)
            raise AnnotError(message) from None
        if isinstance(opened, Profile):
            self._profile = opened
        self._sources[calls] = opened
        return opened

    def _attribute(self, profile: Source, steady: bool) -> Attribution:
        selection = self.selection
        if selection.process is not None:
            profile = one_process(profile, selection.process)
        tell("attributing GPU time to layers")
        steps: slice | Literal["steady"] | None = STEADY if steady else selection.steps
        whole = next((other.whole for other in self._attributed.values() if other.source is profile), None)
        named = {name: getattr(selection, name) for name in ("domain", "step_range", "step_kind")}
        try:
            attribution = attribute(profile, steps=steps, whole=whole, **named)
        except ValueError as error:
            if not self._is_file or not selection.of_steps:
                raise
            raise AnnotError(str(error)) from None  # the options are valid, but the profile lacks these steps
        if selection.peaks is None:
            return attribution
        return replace(attribution, meta=attribution.meta | {GIVEN: selection.peaks})

    def _frame(self, by: str) -> pl.DataFrame:
        view = find_view(by)
        return self._rows(view, self._attribution(calls=view.calls))

    @staticmethod
    def _rows(view: View, attribution: Attribution) -> pl.DataFrame:
        """The rows of a view; those by layer have the fold of each layer."""
        rows = view.rows(attribution)
        if not view.folds or not {"layer", "module", "phase"} <= set(rows.columns):
            return rows
        return with_groups(rows, by_line(attribution))

    def __repr__(self) -> str:
        from annot.report.terminal.layout import plain_text
        from annot.report.terminal.table import print_answer

        return plain_text(partial(print_answer, self._table, more=IN_PYTHON, reasons=".view('advice')")).rstrip("\n")

    def _repr_html_(self) -> str:
        from annot.report.charts.profile_charts import pictures
        from annot.report.page.fragment import as_fragment

        attribution = self.attribution_for(self._table.view)
        return as_fragment(self._table, pictures(attribution))

    @cached_property
    def _table(self) -> Shown:
        return self.view(brief=True)


def _bounds(attribution: Attribution, peaks: Peaks) -> dict[tuple[str, str, str], str]:
    """Return what bounds each layer, for the answer."""
    if peaks.bandwidth is None and attribution.device_busy.is_empty():  # neither a roof nor a device that waits
        return {}
    from annot.analyze.roofline import layer_roofline

    rows = layer_roofline(attribution, peaks).drop_nulls("bound")
    columns = rows.select("layer", "module", "phase", "bound")
    return {(layer, module, phase): bound for layer, module, phase, bound in columns.iter_rows()}


def view_of(path: str, selection: Selection, view: View, options: Options) -> Shown:
    """Return a view of a file; a task for `annot.runs.executors`."""
    return Run(path, selection).make_table(view, options)


def page_of(path: str, selection: Selection) -> dict[str, Any]:
    """Return the page data of a file; a task for `annot.runs.executors`."""
    return Run(path, selection).page()


def correlate(
    profile: Source,
    *,
    domain: str | None = None,
    steps: slice | None = None,
    step_range: str | None = None,
    step_kind: str | None = None,
) -> pl.DataFrame:
    """Return host and GPU time by layer: a row per layer, module class and phase.

    Rows are in order of first appearance. The layer ``""`` stands for the whole model, the whole backward pass and the
    optimizer, which differ in module and phase. Epochs, batches and waits for data are the layers ``(epoch)``,
    ``(batch)`` and ``(data)``. A range of another tool is a layer named by its text. The last rows, ``(unattributed)``,
    hold the GPU activities outside any range, with the reason as module, so that `gpu_self_ns` adds up to the total GPU
    time exactly.

    Args:
        profile: the profile, as returned by `annot.load`.
        domain: NVTX domain of the ranges to use ("" is the default domain), or None for all domains.
        steps: numbers of the steps to use, or None for the whole profile, including time outside steps.
        step_range: text of the ranges that are the steps, with ``#`` for any number. None detects the steps.
        step_kind: kind of the steps to use, such as ``decode``, or None for all kinds.

    Returns:
        layer, module, phase: text. The phase is forward, backward, recompute (a forward that runs again
            for the backward), optimizer, data or other.
        calls: number of ranges.
        host_ns: total host time of the ranges. A layer inside itself counts once. Concurrent layers, as in a
            TensorFlow graph, can add up to more than the host time of the layer around them.
        host_self_ns: host self time.
        gpu_ns, gpu_self_ns: total and self time of the kernels, copies and memsets launched in the ranges.
        gpu_busy_ns: time in which devices were busy with them. Concurrent streams count once, devices are added up.
        gpu_span_ns: time from their first start to their last end.
        gpu_by_sequence_ns: part of gpu_self_ns that was launched by backward operations and attributed by sequence
            number.
        gpu_by_time_ns: part of gpu_self_ns that was launched outside any range of its own thread, while this was the
            innermost range of another thread.
        kernels, copies: number of kernels, and of copies and memsets, in gpu_self_ns.
        kernels_total: number of kernels in gpu_ns.
        memory_source, memory_change_bytes, memory_peak_bytes: only in profiles recorded with ``memory=True``. The
            source (``rss`` or ``cuda:N``), the change from start to end of the ranges, added up over the calls, and
            the peak use during any call.
        shapes: list of the input shapes, most frequent first, at most 8.

    Raises:
        TypeError: `profile` is not a profile.
        ValueError: the profile lacks the selected steps, ranges with the text of `step_range`, or ranges in the domain.

    Example:
        >>> from annot.profile import Profile
        >>> ranges = {"id": [1], "process": [1], "thread": [1], "domain": ["annot"], "kind": ["push"],
        ...           "text": ["fc Linear [4,8]f32 |fwd"], "start": [0], "end": [900]}
        >>> correlate(Profile.build({}, ranges=pl.DataFrame(ranges))).row(0, named=True)["host_ns"]
        900
    """
    if isinstance(profile, str | os.PathLike):
        raise TypeError(f"profile must be a Profile, as returned by annot.load, got {type(profile).__name__}")
    return by_layer(Run(profile, Selection(domain, steps, step_range, step_kind)).attribution)
