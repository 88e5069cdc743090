"""Collect trace events as columns, so that an event stays in memory only as long as its block.

The arguments of many events are decoded at once. Times are microseconds as integers, floats or decimals, converted to
exact nanoseconds.

PyTorch releases of 2021 write the categories as "Kernel", "Runtime", "Memcpy" and so on, and the key "external id" in
lower case.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
import polars as pl

from annot.read.kineto.flows import MODULE, ModuleSources, StackArgs
from annot.read.kineto.operator_calls import MESSAGE, VIEWS, call_text, message_text
from annot.read.kineto.trace_events import Event

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
        "graph_event_node",
        "graph_host_node",
    }
)
"""Categories that annot ignores: spans of the profiler itself, and repetitions of other events."""
PROCESS: Final = pl.col("thread") & pl.lit(~0xFFFFFF, pl.Int64)
"""Process of a thread."""
_HALF: Final = 1 << 23
_COUNTER: Final = {"row": pl.Int64, "name": pl.String, "value": pl.Float64}


class Columns:
    """The events of a file as tables, each of which can be read once.

        ranges          operations and annotations, with `kind` and `call`, an index into `calls` (null: unknown inputs)
        modules         calls of `nn.Module`, with `python`, an id that increases with each call
        launches        calls of the CUDA runtime and driver
        kernels         kernels
        copies          copies and memsets
        counter_ranges  ranges of hardware counters, with `row` (of `counters`)
        flows           both ends of the arrows from forward to backward

    The tables have the columns `start` and, except for flows, `end` in ns, `thread` as in `annot.profile` with the
    process in the higher bits, `process`, and `name`, an index into `names`. `kernel` of launches is
    an index into `names`, `grid` of launches, kernels and copies an index into `grids`, and `layer` of kernels and
    copies an index into `layers`.
    """

    def __init__(self) -> None:
        self.incomplete = 0  # number of spans without a valid start or end time
        self.invalid_args = 0  # number of spans with arguments of unexpected types
        self.annotated = 0  # number of GPU activities whose graph node has an annotation
        self.unsupported: Counter[str] = Counter()  # number of spans by category that annot does not support
        self.sources = ModuleSources()
        self._threads = _Threads()
        self._flows = _Numbers()
        self._names = _Numbers()
        self._calls = _Numbers()
        self._grids = _Numbers()
        self._layers = _Numbers()
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._counter_rows = 0
        self.runtimes: set[str] = set()  # categories of the calls of runtimes and drivers
        for category in ("cpu_op", "runtime", "kernel", "gpu_memcpy", _COUNTER_RANGE):  # all tables exist
            self._add_spans(category, [])
        self._append("modules", self._thread_span([], MODULE_ARGS))
        self._add_flows([])

    def add(self, events: Iterable[Event]) -> None:
        """Append the events of a block.

        After an `InexactTimesError`, read the file again with an exact `TraceFile`.
        """
        spans, flows, open_ends = _split_by_category(events)
        self.incomplete += open_ends
        for category, members in spans.items():
            self._add_spans(category.lower(), members)
        if flows:
            self._add_flows(flows)

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
        sizes = [b" ".join(b",".join(re.findall(rb"\d+", size)) for size in both).decode() for both in self._grids]
        return pl.Series("grid", sizes, dtype=pl.String)

    @property
    def layers(self) -> pl.DataFrame:
        """Text and role of the unique annotations of graph nodes."""
        return pl.DataFrame(list(self._layers), {"text": pl.String, "role": pl.String}, orient="row")

    @property
    def counters(self) -> pl.DataFrame:
        """Values of the hardware counters: row (of `counter_ranges`), name and value."""
        return pl.concat(self._frames.pop("counters"))

    def table(self, name: str, base: int) -> pl.DataFrame:
        """Return the rows of a table with valid times, and count the others in `incomplete`.

        `base` is the base time of the file in ns on the clock of the profile.
        """
        # The times of a block are integers, floats or decimals.
        groups = groupby(self._frames.pop(name), lambda frame: frame.dtypes)
        frame = pl.concat([in_nanoseconds(pl.concat(group)) for _, group in groups])
        absent = frame["end" if "end" in frame.columns else "start"].is_null()
        lost = int(absent.sum())
        self.incomplete += lost
        shifted = [pl.col(time) + base for time in ("start", "end") if time in frame.columns]
        process = [PROCESS.alias("process")] if "thread" in frame.columns else []
        return (frame.filter(~absent) if lost else frame).with_columns(*shifted, *process)

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
            _name_copies(events)
            details = self._details(ACTIVITY_ARGS, events)
            details["external"] = details["external"].fill_null(details.pop("external_lower_case"))
            del details["node"]
            self._append("kernels" if category == "kernel" else "copies", {**self._span(events), **details})
        elif category == _COUNTER_RANGE:
            rows = range(self._counter_rows, self._counter_rows + len(events))
            self._counter_rows += len(events)
            self._frames["counters"].append(_counters(rows, events))
            device = integers([integer(event.pid) for event in events])
            self._append("counter_ranges", {**self._span(events), "device": device, "row": integers(rows)})
        elif category not in _IGNORED:
            self.unsupported[events[0].cat] += len(events)

    def _add_flows(self, events: list[Event]) -> None:
        columns = {
            "start": microseconds([event.ts for event in events]),
            "thread": self._threads_of(events),
            "flow": integers([self._flows[event.id] for event in events]),
            "begins": pl.Series([event.ph == "s" for event in events], dtype=pl.Boolean),
        }
        self._append("flows", columns)

    def _add_ranges(self, kind: int, events: list[Event]) -> None:
        """Append operations and annotations, with the inputs of operators that are more than views."""
        events = sorted(events, key=lambda event: (event.name in VIEWS, event.name == MESSAGE))
        args = self._args(RANGE_ARGS, events)
        calls = [values.call(event.name) for event, values in zip(events, args, strict=True)]
        columns = {
            **self._span_and_thread(events),
            **argument_columns(RANGE_ARGS, args),
            "kind": pl.repeat(kind, len(events), dtype=pl.Int8, eager=True),
            "call": _numbered(self._calls, calls),
        }
        self._append("ranges", columns)

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


_NO_TEXT: Final = msgspec.Raw(b"")
"""Arguments that `Details` leaves undecoded. All others are integers."""


class _RangeArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward: int | None = msgspec.field(name="Fwd thread id", default=None)
    # Operators
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_TEXT)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_TEXT)
    # Messages of collectives
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_NO_TEXT)
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_NO_TEXT)
    ranks: msgspec.Raw = msgspec.field(name="Group size", default=_NO_TEXT)
    sent: msgspec.Raw = msgspec.field(name="In msg nelems", default=_NO_TEXT)
    received: msgspec.Raw = msgspec.field(name="Out msg nelems", default=_NO_TEXT)
    dtype: msgspec.Raw = _NO_TEXT

    def call(self, name: str) -> tuple[Any, ...] | None:
        """Return the function that makes the text of the call, and its arguments; None: unknown inputs."""
        if name == MESSAGE and len(self.collective):
            fields = (self.collective, self.group, self.ranks, self.sent, self.received, self.dtype)
            return message_text, *map(bytes, fields)
        if len(self.dims) and name not in VIEWS and name != MESSAGE:
            return call_text, name, *map(bytes, (self.dims, self.types, self.values))
        return None


class _ModuleArgs(msgspec.Struct, gc=False):
    python: int | None = msgspec.field(name="Python id", default=None)


class _LaunchArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    correlation: int | None = None
    kernel: msgspec.Raw = _NO_TEXT
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT


class _ActivityArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    external_lower_case: int | None = msgspec.field(name="external id", default=None)
    node: int | None = msgspec.field(name="graph node id", default=None)
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT
    module: msgspec.Raw = msgspec.field(name="module_fqn", default=_NO_TEXT)
    name: msgspec.Raw = _NO_TEXT
    text: msgspec.Raw = msgspec.field(name="str", default=_NO_TEXT)
    annotation: msgspec.Raw = _NO_TEXT


_ANNOTATION_KEYS: Final = {"module_fqn": "module", "name": "name", "str": "text", "annotation": "annotation"}


class _CopyArgs(msgspec.Struct, gc=False):
    kind: str = msgspec.field(name="copy kind")
    source: str = msgspec.field(name="src kind")
    target: str = msgspec.field(name="dst kind")


_COPY_ARGS: Final = msgspec.json.Decoder(_CopyArgs)


def _name_copies(events: Iterable[Event]) -> None:
    """Name the copies of PyTorch's CUPTI backend, which are all ``Memcpy``, by their arguments, as Kineto does."""
    for event in events:
        if event.name == "Memcpy":
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                args = _COPY_ARGS.decode(event.args)
                event.name = f"Memcpy {args.kind} ({args.source.title()} -> {args.target.title()})"


class Details:
    """Decode the arguments of many events at once, or one by one if some have unexpected types."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        fields = msgspec.structs.fields(kind)
        self.keys = {field.name: field.encode_name for field in fields if field.type is not msgspec.Raw}
        self.texts = {field.name for field in fields if field.type is msgspec.Raw}
        self._all: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]

    def of(self, events: Sequence[Event]) -> list[Any]:
        """Return the arguments of events, or raise MsgspecError if one has an unexpected type."""
        return self._all.decode(b"[" + b",".join([event.args for event in events]) + b"]")

    def of_one(self, text: msgspec.Raw) -> tuple[Any, bool]:
        """Return the arguments, None if their type is unexpected, and whether all types were expected."""
        try:
            return msgspec.json.decode(text, type=self._kind, strict=False), True
        except (msgspec.MsgspecError, UnicodeDecodeError):
            given = decoded(text)
        if not isinstance(given, dict):
            return self._kind(), given is None
        values = {name: integer(given.get(key)) for name, key in self.keys.items()}
        valid = all((values[name] is None) == (given.get(key) is None) for name, key in self.keys.items())
        return self._kind(**values), valid


RANGE_ARGS: Final = Details(_RangeArgs)
MODULE_ARGS: Final = Details(_ModuleArgs)
LAUNCH_ARGS: Final = Details(_LaunchArgs)
ACTIVITY_ARGS: Final = Details(_ActivityArgs)
ARGUMENTS: Final = frozenset(
    field.encode_name
    for kind in (_RangeArgs, _ModuleArgs, _LaunchArgs, _ActivityArgs, StackArgs)
    for field in msgspec.structs.fields(kind)
)
"""Names of the arguments that annot reads."""


def argument_columns(details: Details, args: Sequence[Any]) -> dict[str, pl.Series]:
    """Return the integer arguments of events as columns."""
    return {name: integers(list(map(attrgetter(name), args))) for name in details.keys}


def text_of(value: msgspec.Raw) -> str | None:
    """Return the text in a JSON value; None: it is absent or no text."""
    text = decoded(value) if bytes(value) else None
    return text if isinstance(text, str) else None


def annotation_of(args: _ActivityArgs) -> tuple[str, str] | None:
    """Return text and role of the annotation of a graph node, None without one."""
    return annotation({key: text_of(getattr(args, name)) for key, name in _ANNOTATION_KEYS.items()})


def integers(values: Sequence[int | None]) -> pl.Series:
    """Return 64-bit integers. Greater integers become null."""
    return pl.Series(values, dtype=pl.Int64, strict=False)


def integer(value: object) -> int | None:
    """Return an integer or a text with one; None: another value."""
    try:
        return msgspec.convert(value, int | None, strict=False)
    except msgspec.ValidationError:
        return None


def decoded(text: msgspec.Raw) -> Any:
    """Return the value of JSON text, None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# Layers of replayed graph nodes, which `torch.profiler` writes with ``cuda_graph_annotations`` into a trace. An
# annotated activity has ``graph node id`` and the layer: ``module_fqn`` has the path of a module (torchtitan), ``name``
# or ``str`` (PyTorch 2.13) the text of `mark_kernels`. Inductor marks with paths that begin with Dynamo's name
# of the model, ``L.``, and joins those of a fused kernel with `` + ``. The CUPTI monitor of PyTorch writes all
# annotations of a node as JSON into ``annotation``.
_MODEL: Final = "L."
_FUSED: Final = " + "


def annotation(args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return text and role of the annotation in the arguments of a graph node, or None.

    Example:
        >>> annotation({"module_fqn": "layers.0.mlp"}), annotation({"name": "loss"})
        (('layers.0.mlp', 'module'), ('loss', 'annotation'))
        >>> annotation({"str": "L.layers.0.norm + L.layers.0.mlp"})
        ('layers.0.norm+layers.0.mlp', 'module')
        >>> annotation({"annotation": '[{"str": "L.layers.0.mlp"}]'})
        ('layers.0.mlp', 'module')
    """
    module, text = (args.get(key) for key in ("module_fqn", "annotation"))
    if module and isinstance(module, str):
        return module, "module"
    name = args.get("name") or args.get("str")
    if name and isinstance(name, str):
        return _marked(name)
    return _listed(text) if text and isinstance(text, str) else None


def _marked(text: str) -> tuple[str, str]:
    """Return text and role for a text of `mark_kernels`, which is a path of modules if Inductor wrote it."""
    paths = text.split(_FUSED)
    if all(path.startswith(_MODEL) and len(path) > len(_MODEL) for path in paths):
        return "+".join(path.removeprefix(_MODEL) for path in paths), "module"
    return text, "annotation"


def _listed(text: str) -> tuple[str, str] | None:
    """Return text and role for a list of annotations as JSON, of which later ones replace earlier ones, or a text."""
    try:
        annotations = json.loads(text)
    except (ValueError, RecursionError):
        return text, "annotation"
    args: dict[str, Any] = {}
    for entry in annotations if isinstance(annotations, list) else [annotations]:
        args |= entry if isinstance(entry, dict) else {"name": entry}
    return annotation({key: value for key, value in args.items() if key != "annotation"})


_EARLIEST, _LATEST, LONGEST = -(10**15), 3 * 10**15, 6 * 10**14
"""Limits of start time and duration in microseconds. Two times in a file differ by less than 2^62 ns."""
_COARSE: Final = float(1 << 43)
"""Smallest time in microseconds at which a float is not exact to the nanosecond."""


class InexactTimesError(Exception):
    """The times of the events are floats that are too large to be exact to the nanosecond."""


def microseconds(
    values: Sequence[int | float | Decimal | None], least: int = _EARLIEST, most: int = _LATEST
) -> pl.Series:
    """Return times in microseconds as floats or integers, and decimals in nanoseconds as Int128.

    Values that are not numbers between `least` and `most` are null.
    """
    kinds = set(map(type, values))
    if Decimal in kinds:
        return pl.Series([_exact(value, least, most) for value in values], dtype=pl.Int128)
    # polars converts an integer that is too large to null, or to infinity in a float column.
    times = pl.Series(values, dtype=pl.Float64 if float in kinds else pl.Int64, strict=False)
    fits = times.is_between(least, most)  # polars orders NaN above all numbers
    if not fits.all():
        times = pl.select(pl.when(fits).then(times)).to_series()
    farthest = max((abs(end) for end in (times.min(), times.max()) if isinstance(end, (int, float))), default=0)
    if farthest >= _COARSE and float in kinds:
        raise InexactTimesError
    return times


def in_nanoseconds(frame: pl.DataFrame) -> pl.DataFrame:
    """Return events with `start`, and `end` in place of `length`, in ns."""
    start = _nanoseconds("start", frame.schema["start"])
    if "length" not in frame.columns:
        return frame.with_columns(start)
    end = start + _nanoseconds("length", frame.schema["length"])
    return frame.with_columns(start, end.alias("end")).drop("length")


def _nanoseconds(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column of `microseconds` in ns. Floats up to 2^43 µs are exact to the nanosecond."""
    time = pl.col(name)
    if dtype == pl.Int128:
        return time.cast(pl.Int64)
    if dtype == pl.Int64:
        return time * 1000
    # Integer and fraction are converted separately: 1000 times a float of this size is not exact.
    whole = time.cast(pl.Int64)
    return whole * 1000 + ((time - whole) * 1000).round().cast(pl.Int64)


def _exact(value: float | Decimal | None, least: int, most: int) -> int | None:
    if value is None or not math.isfinite(value) or not least <= value <= most:
        return None
    if isinstance(value, float) and abs(value) >= _COARSE:
        raise InexactTimesError
    return round(Decimal(repr(value) if isinstance(value, float) else value) * 1000)
