"""Collect trace events as columns, so that an event stays in memory only as long as its block.

PyTorch releases of 2021 write the categories as "Kernel", "Runtime", "Memcpy" and so on, and the key "external id" in
lower case.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
import polars as pl

from annot.read.kineto.event_args import (
    ACTIVITY_ARGS,
    CALL_ARGS,
    LAUNCH_ARGS,
    MESSAGE_ARGS,
    MODULE_ARGS,
    RANGE_ARGS,
    Details,
    annotation_of,
    argument_columns,
    decoded,
    integer,
    integers,
    text_of,
)
from annot.read.kineto.event_times import LONGEST, in_nanoseconds, microseconds
from annot.read.kineto.messages import MESSAGE
from annot.read.kineto.module_sources import MODULE, ModuleSources
from annot.read.kineto.operator_calls import VIEWS
from annot.read.kineto.trace_events import Event

__all__ = ["ANNOTATION", "MIXED", "OPERATOR", "Columns"]

OPERATOR: Final = 0
MIXED: Final = 1
"""An operator or an annotation. PyTorch releases of 2021 have one category for both."""
ANNOTATION: Final = 2

_RANGES: Final = {"cpu_op": OPERATOR, "operator": MIXED, "user_annotation": ANNOTATION}
_PYTHON_FUNCTION: Final = "python_function"
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_COUNTER_RANGE: Final = "cuda_profiler_range"
_IGNORED: Final = frozenset(
    {
        "trace",
        "overhead",
        "gpu_user_annotation",
        "cuda_sync",
        "cuda_event",
        "cpu_instant_event",
        "external_correlation",
    }
)
"""Categories that annot ignores: spans of the profiler itself, and repetitions of other events."""
_HALF: Final = 1 << 23
_COUNTER: Final = {"row": pl.Int64, "name": pl.String, "value": pl.Float64}
_SPAN: Final = {"start": pl.Int64, "length": pl.Int64, "name": pl.Int32}
_THREAD: Final = {**_SPAN, "thread": pl.Int64}
_LAUNCH: Final = {**_THREAD, "correlation": pl.Int64, "external": pl.Int64, "kernel": pl.Int32, "grid": pl.Int32}
_ACTIVITY: Final = {
    **_SPAN,
    **dict.fromkeys(("correlation", "device", "stream", "bytes", "external"), pl.Int64),
    **dict.fromkeys(("grid", "layer"), pl.Int32),
}
_TABLES: Final[dict[str, dict[str, Any]]] = {
    "ranges": {
        **_THREAD,
        **dict.fromkeys(("external", "sequence", "forward"), pl.Int64),
        "kind": pl.Int8,
        "call": pl.Int32,
    },
    "modules": {**_THREAD, "python": pl.Int64},
    "launches": _LAUNCH,
    "kernels": _ACTIVITY,
    "copies": _ACTIVITY,
    "counter_ranges": {**_SPAN, "device": pl.Int64, "row": pl.Int64},
    "flows": {"start": pl.Int64, "thread": pl.Int64, "flow": pl.Int64, "begins": pl.Boolean},
}
"""Columns of the tables, with `length` instead of `end`."""


class Columns:
    """The events of a file as tables, each of which can be read once.

        ranges          operations and annotations, with `kind` and `call`, an index into `calls` (null: unknown inputs)
        modules         calls of `nn.Module`, with `python`, an id that increases with each call
        launches        calls of the CUDA runtime and driver
        kernels         kernels
        copies          copies and memsets
        counter_ranges  ranges of hardware counters, with `row` (of `counters`)
        flows           both ends of the arrows from forward to backward

    The tables have the columns `start` and, except for flows, `end` in ns since the base time of the file, `thread` as
    in `annot.profile` with the process in the higher bits, and `name`, an index into `names`. `kernel` of launches is
    an index into `names`, `grid` of launches, kernels and copies an index into `grids`, and `layer` of kernels and
    copies an index into `layers`.
    """

    def __init__(self) -> None:
        self.incomplete = 0  # number of spans without a valid start or end time
        self.invalid_args = 0  # number of spans with arguments of unexpected types
        self.annotated = 0  # number of GPU activities whose graph node has an annotation
        self.unsupported: Counter[str] = Counter()  # number of spans by category that annot does not support
        self.runtimes: set[str] = set()  # categories of the calls of runtimes and drivers
        self.sources = ModuleSources()
        self._threads = _Threads()
        self._flows = _Numbers()
        self._names = _Numbers()
        self._calls = _Numbers()
        self._grids = _Numbers()
        self._layers = _Numbers()
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._counter_rows = 0

    def add(self, events: Iterable[Event]) -> None:
        """Append the events of a block.

        After an `InexactTimesError`, read the file again with an exact `TraceFile`.
        """
        spans, flows, open_ends = _split_by_category(events)
        self.incomplete += open_ends
        for category, members in spans.items():
            self._add_spans(category.lower(), members)
        if flows:
            self._append(
                "flows",
                {
                    "start": microseconds([event.ts for event in flows]),
                    "thread": self._threads_of(flows),
                    "flow": integers([self._flows[event.id] for event in flows]),
                    "begins": [event.ph == "s" for event in flows],
                },
            )

    @property
    def names(self) -> pl.Series:
        """The unique names of the spans."""
        return pl.Series("text", list(self._names), dtype=pl.String)

    @property
    def calls(self) -> pl.Series:
        """The unique calls of operators and messages of collectives, as texts of `annot.labels.tag`."""
        return pl.Series("call", [text(*arguments) for text, *arguments in self._calls], dtype=pl.String)

    @property
    def grids(self) -> pl.Series:
        """The unique sizes of a grid and its blocks, as in `annot.profile.LAUNCHES`."""
        sizes = (f"{grid.decode(errors='replace')} {block.decode(errors='replace')}" for grid, block in self._grids)
        return pl.Series("grid", [re.sub(r"[^\d, ]|(?<=,) ", "", text) for text in sizes], dtype=pl.String)

    @property
    def layers(self) -> pl.DataFrame:
        """Text and role of the unique annotations of graph nodes."""
        return pl.DataFrame(list(self._layers), {"text": pl.String, "role": pl.String}, orient="row")

    @property
    def counters(self) -> pl.DataFrame:
        """Values of the hardware counters: row (of `counter_ranges`), name and value."""
        return pl.concat([pl.DataFrame(schema=_COUNTER), *self._frames.pop("counters", [])])

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of a table with valid times, and count the others in `incomplete`."""
        # The times of a block are integers, floats or decimals.
        groups = groupby(self._frames.pop(name, [pl.DataFrame(schema=_TABLES[name])]), lambda frame: frame.dtypes)
        frame = pl.concat([in_nanoseconds(pl.concat(group)) for _, group in groups])
        absent = frame["end" if "end" in frame.columns else "start"].is_null()
        lost = int(absent.sum())
        self.incomplete += lost
        return frame.filter(~absent) if lost else frame

    def _append(self, table: str, columns: Mapping[str, pl.Series | list[Any]]) -> None:
        self._frames[table].append(pl.DataFrame(columns))

    def _add_spans(self, category: str, events: list[Event]) -> None:
        if category in _RANGES:
            self._add_ranges(_RANGES[category], events)
        elif category == _PYTHON_FUNCTION:
            # annot does not use calls of other Python functions, which are frequent.
            if modules := [index for index, event in enumerate(events) if event.name.startswith(MODULE)]:
                self.sources.add(events, modules)
                self._append("modules", self._thread_span([events[index] for index in modules], MODULE_ARGS))
        elif category.endswith(("runtime", "driver")):
            self.runtimes.add(category)
            self._append("launches", self._thread_span(events, LAUNCH_ARGS))
        elif category == "kernel" or category in _COPIES:
            details = self._details(ACTIVITY_ARGS, events)
            details["external"] = details["external"].fill_null(details.pop("external_lower_case"))
            del details["node"]
            self._append("kernels" if category == "kernel" else "copies", {**self._span(events), **details})
        elif category == _COUNTER_RANGE:
            rows = range(self._counter_rows, self._counter_rows + len(events))
            self._counter_rows += len(events)
            self._frames["counters"].append(_counters(rows, events))
            device = integers([integer(event.pid) for event in events])
            self._append("counter_ranges", {**self._span(events), "device": device, "row": list(rows)})
        elif category not in _IGNORED:
            self.unsupported[events[0].cat] += len(events)

    def _add_ranges(self, kind: int, events: list[Event]) -> None:
        """Append operations and annotations, with the inputs of operators that are more than views."""
        calls: list[Event] = []
        messages: list[Event] = []
        others: list[Event] = []
        for event in events:
            (messages if event.name == MESSAGE else others if event.name in VIEWS else calls).append(event)
        counted, inputs = calls + messages, self._args(CALL_ARGS, calls) + self._args(MESSAGE_ARGS, messages)
        texts = [values.call(event.name) for event, values in zip(counted, inputs, strict=True)]
        members, args = counted + others, inputs + self._args(RANGE_ARGS, others)
        self._append("ranges", {
            **self._span_and_thread(members), **argument_columns(RANGE_ARGS, args),
            "kind": pl.repeat(kind, len(members), dtype=pl.Int8, eager=True),
            "call": _numbered(self._calls, [*texts, *[None] * len(others)]),
        })  # fmt: skip

    def _details(self, details: Details, events: Sequence[Event]) -> dict[str, pl.Series]:
        """Return each argument as a column."""
        args = self._args(details, events)
        columns = argument_columns(details, args)
        if "kernel" in details.texts:
            columns["kernel"] = _numbered(self._names, [text_of(values.kernel) for values in args])
        if "grid" in details.texts:
            sizes = [(bytes(values.grid), bytes(values.block)) for values in args]
            columns["grid"] = _numbered(self._grids, [size if size[0] else None for size in sizes])
        if "module" in details.texts:
            columns["layer"] = _numbered(
                self._layers, [annotation_of(values) if values.node else None for values in args]
            )
            self.annotated += columns["layer"].count()
        return columns

    def _args(self, details: Details, events: Sequence[Event]) -> list[Any]:
        try:
            return details.of(events)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            each = [details.of_one(event.args) for event in events]
            self.invalid_args += sum(not valid for _, valid in each)
            return [args for args, _ in each]

    def _thread_span(self, events: Sequence[Event], details: Details) -> dict[str, pl.Series]:
        return {**self._span_and_thread(events), **self._details(details, events)}

    def _span_and_thread(self, events: Sequence[Event]) -> dict[str, pl.Series]:
        return {**self._span(events), "thread": self._threads_of(events)}

    def _span(self, events: Sequence[Event]) -> dict[str, pl.Series]:
        names = self._names
        return {
            "start": microseconds([event.ts for event in events]),
            "length": microseconds([event.dur for event in events], 0, LONGEST),
            "name": pl.Series([names[event.name] for event in events], dtype=pl.Int32),
        }

    def _threads_of(self, events: Sequence[Event]) -> pl.Series:
        threads = self._threads
        return pl.Series([threads[event.pid][event.tid] for event in events], dtype=pl.Int64)


def _split_by_category(events: Iterable[Event]) -> tuple[dict[str, list[Event]], list[Event], int]:
    """Return the spans by category, both ends of the arrows from forward to backward, and the number of "B" events.

    Begin and end events ("B" and "E") are not supported.
    """
    spans: defaultdict[str, list[Event]] = defaultdict(list)
    flows = []
    others: Counter[str] = Counter()
    for event in events:
        if event.ph == "X":
            spans[event.cat].append(event)
        elif event.cat == "fwdbwd" and event.ph in ("s", "f"):
            flows.append(event)
        else:
            others[event.ph] += 1
    return spans, flows, others["B"]


def _numbered(numbers: _Numbers, values: Iterable[Any]) -> pl.Series:
    """Return the number of each value, null for None."""
    return pl.Series([None if value is None else numbers[value] for value in values], dtype=pl.Int32)


def _counters(rows: Iterable[int], events: Iterable[Event]) -> pl.DataFrame:
    numbered = zip(rows, events, strict=True)
    counters = [
        (row, name, float(value))
        for row, event in numbered
        for name, value in (decoded(event.args) or {}).items()
        if type(value) in (int, float)
    ]
    return pl.DataFrame(counters, _COUNTER, orient="row")


class _Numbers(dict[Any, int]):
    """Dense ids in order of appearance."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class _Ids(dict[Any, int]):
    """Map process and thread ids to 24 bits, plus `base`. Ids of 23 bits stay the same; others get the next free id."""

    def __init__(self, base: int = 0) -> None:
        super().__init__()
        self._base = base
        self._others = _Numbers()

    def __missing__(self, key: int | str | None) -> int:
        number: object = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        small = number if isinstance(number, int) and 0 <= number < _HALF else _HALF + self._others[number]
        if small >= 2 * _HALF:
            raise OverflowError("more than 8,388,608 processes or threads")
        self[key] = self._base + small
        return self[key]


class _Threads(dict[Any, _Ids]):
    """Thread ids of each process."""

    def __init__(self) -> None:
        super().__init__()
        self._processes = _Ids()

    def __missing__(self, key: int | str | None) -> _Ids:
        threads = self[key] = _Ids(self._processes[key] << 24)
        return threads
