"""Columns out of trace events, so that no event stays in memory longer than its block.

Releases of 2021 wrote the categories as "Kernel", "Runtime", "Memcpy" and so on, and "external id" in small.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

import msgspec
import polars as pl

from annot.read.trace_events import Event

__all__ = ["ANNOTATION", "MIXED", "OPERATOR", "Coarse", "Columns"]

OPERATOR: Final = 0
MIXED: Final = 1
"""An operator or an annotation: the releases of 2021 have one category for both."""
ANNOTATION: Final = 2

_RANGES: Final = {"cpu_op": OPERATOR, "operator": MIXED, "user_annotation": ANNOTATION}
_CALLS_OF_PYTHON: Final = "python_function"
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_COUNTED: Final = "cuda_profiler_range"
_PASSED: Final = frozenset(
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
"""Categories that say nothing of what ran: spans of the profiler itself, and what other events say as well."""
_MODULE: Final = "nn.Module: "
_HALF: Final = 1 << 23
_EARLIEST, _LATEST, _LONGEST = -(10**15), 3 * 10**15, 6 * 10**14
"""Microseconds that an event can begin at and take: no two instants of a file are more than 2^62 ns apart."""
_COARSE: Final = float(1 << 43)
"""From here on a float of microseconds no longer tells nanoseconds apart."""

_COUNTER: Final = {"row": pl.Int64, "name": pl.String, "value": pl.Float64}
_SPAN: Final = {"start": pl.Int64, "length": pl.Int64, "name": pl.Int32}


class Coarse(Exception):  # noqa: N818
    """The times of the events are floats too large to be exact to the nanosecond."""


class _RangeArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward: int | None = msgspec.field(name="Fwd thread id", default=None)


class _ModuleArgs(msgspec.Struct, gc=False):
    python: int | None = msgspec.field(name="Python id", default=None)


class _LaunchArgs(msgspec.Struct, gc=False):
    correlation: int | None = None


class _WorkArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    external_in_small: int | None = msgspec.field(name="external id", default=None)


_Args = TypeVar("_Args", bound=msgspec.Struct)


class _Details(Generic[_Args]):
    """Decodes the arguments of many events at once, and one by one where some are not of the usual types."""

    def __init__(self, kind: type[_Args]) -> None:
        self._kind = kind
        self._keys = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        self._all: msgspec.json.Decoder[list[_Args]] = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]

    def of(self, events: Sequence[Event]) -> list[_Args]:
        """Raise MsgspecError if some are not of the usual types."""
        return self._all.decode(b"[" + b",".join([event.args for event in events]) + b"]")

    def of_one(self, text: msgspec.Raw) -> tuple[_Args, bool]:
        """What can be understood, the rest being None, and whether all could."""
        try:
            given = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return self._kind(), given is None
        found = {name: _integer(given.get(key)) for name, key in self._keys.items()}
        whole = all((found[name] is None) == (given.get(key) is None) for name, key in self._keys.items())
        return self._kind(**found), whole


_RANGE_DETAILS: Final = _Details(_RangeArgs)
_MODULE_DETAILS: Final = _Details(_ModuleArgs)
_LAUNCH_DETAILS: Final = _Details(_LaunchArgs)
_WORK_DETAILS: Final = _Details(_WorkArgs)


class Columns:
    """What the events of one file say, as columns.

    The frames have `start` and `end` in nanoseconds from the file's base, `thread` as in `annot.profile` with
    its process in the higher bits, and `name`, a row of `names`. Each can be taken once.
    """

    incomplete: int
    """How many spans have no beginning or no end that a clock can show."""

    misunderstood: int
    """How many spans have arguments that are not of the usual types."""

    unread: Counter[str]
    """How many spans each category has that is not read."""

    def __init__(self) -> None:
        self.incomplete = 0
        self.misunderstood = 0
        self.unread = Counter()
        self._threads = _Threads()
        self._flows = _Numbers()
        self._names = _Numbers()
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._counted = 0

    def add(self, events: Iterable[Event]) -> None:
        """Append the events of a block.

        Raises:
            OverflowError: there are more threads than have numbers.
            Coarse: read the file again, exactly.
        """
        spans, flows, open_ends = _by_category(events)
        self.incomplete += open_ends
        for category, members in spans.items():
            self._add_spans(category.lower(), members)
        if flows:
            self._append("flows", self._flow_columns(flows))

    @property
    def names(self) -> pl.Series:
        """The different names of the spans, as text."""
        return pl.Series("text", list(self._names), dtype=pl.String)

    @property
    def counters(self) -> pl.DataFrame:
        """The counters of the rows of `counted`: row, name and value."""
        return pl.concat([pl.DataFrame(schema=_COUNTER), *self._frames.pop("counters", [])])

    def ranges(self) -> pl.DataFrame:
        """Operations and annotations: `kind`, and of the arguments `external`, `sequence` and `forward`."""
        more = dict.fromkeys(("external", "sequence", "forward"), pl.Int64)
        return self._frame("ranges", {**_SPAN, "thread": pl.Int64, "kind": pl.Int8, **more})

    def modules(self) -> pl.DataFrame:
        """Calls of `nn.Module`: `python`, a number that grows with the calls."""
        return self._frame("modules", {**_SPAN, "thread": pl.Int64, "python": pl.Int64})

    def launches(self) -> pl.DataFrame:
        """Calls of the runtime and of the driver: `correlation`."""
        return self._frame("launches", {**_SPAN, "thread": pl.Int64, "correlation": pl.Int64})

    def kernels(self) -> pl.DataFrame:
        """Kernels: `correlation`, `device`, `stream`, `bytes` and `external`, but no thread."""
        return self._frame("kernels", _WORK)

    def copies(self) -> pl.DataFrame:
        """Copies and sets of memory, as `kernels`."""
        return self._frame("copies", _WORK)

    def counted(self) -> pl.DataFrame:
        """Stretches of hardware counters: `device` and `row`, of `counters`, but no thread."""
        return self._frame("counted", {**_SPAN, "device": pl.Int64, "row": pl.Int64})

    def flows(self) -> pl.DataFrame:
        """Ends of arrows from forward to backward: thread, start, `flow` and `begins`."""
        return self._frame("flows", {"start": pl.Int64, "thread": pl.Int64, "flow": pl.Int64, "begins": pl.Boolean})

    def _frame(self, table: str, schema: dict[str, Any]) -> pl.DataFrame:
        frames = self._frames.pop(table, [])
        # Times of a block are integers, floats or exact decimals.
        alike = [_in_nanoseconds(pl.concat(group)) for _, group in groupby(frames, lambda frame: frame.dtypes)]
        frame = (
            pl.concat(alike) if alike else pl.DataFrame(schema={**schema, "end": pl.Int64}).drop("length", strict=False)
        )
        absent = pl.col("end").is_null() if "length" in schema else pl.col("start").is_null()
        lost = frame.select(absent.sum()).item()
        self.incomplete += lost
        return frame.filter(~absent) if lost else frame

    def _append(self, table: str, columns: dict[str, pl.Series | list[Any]]) -> None:
        self._frames[table].append(pl.DataFrame(columns))

    def _add_spans(self, category: str, events: list[Event]) -> None:
        if category in _RANGES:
            self._add_ranges(_RANGES[category], events)
        elif category == _CALLS_OF_PYTHON:
            self._add_modules(events)
        elif category.endswith(("runtime", "driver")):
            found = self._details(_LAUNCH_DETAILS, events)
            correlation = _integers([args.correlation for args in found])
            self._append(
                "launches", {**self._span(events), "thread": self._threads_of(events), "correlation": correlation}
            )
        elif category == "kernel" or category in _COPIES:
            table = "kernels" if category == "kernel" else "copies"
            self._append(table, {**self._span(events), **_work(self._details(_WORK_DETAILS, events))})
        elif category == _COUNTED:
            pids = [event.pid for event in events]
            rows = range(self._counted, self._counted + len(events))
            self._counted += len(events)
            self._frames["counters"].append(_counters(rows, events))
            self._append(
                "counted", {**self._span(events), "device": _integers(list(map(_integer, pids))), "row": list(rows)}
            )
        elif category not in _PASSED:
            self.unread[events[0].cat] += len(events)

    def _details(self, details: _Details[_Args], events: Sequence[Event]) -> list[_Args]:
        try:
            return details.of(events)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = [details.of_one(event.args) for event in events]
            self.misunderstood += sum(not whole for _, whole in found)
            return [args for args, _ in found]

    def _add_ranges(self, kind: int, events: list[Event]) -> None:
        found = self._details(_RANGE_DETAILS, events)
        self._append("ranges", {
            **self._span(events),
            "thread": self._threads_of(events),
            "kind": pl.repeat(kind, len(events), dtype=pl.Int8, eager=True),
            "external": _integers([args.external for args in found]),
            "sequence": _integers([args.sequence for args in found]),
            "forward": _integers([args.forward for args in found]),
        })  # fmt: skip

    def _add_modules(self, events: list[Event]) -> None:
        # The other calls of Python functions are many, and no ranges.
        events = [event for event in events if event.name.startswith(_MODULE)]
        if events:
            python = _integers([args.python for args in self._details(_MODULE_DETAILS, events)])
            self._append("modules", {**self._span(events), "thread": self._threads_of(events), "python": python})

    def _span(self, events: Sequence[Event]) -> dict[str, pl.Series | list[Any]]:
        names = self._names
        return {
            "start": _microseconds([event.ts for event in events]),
            "length": _microseconds([event.dur for event in events], 0, _LONGEST),
            "name": pl.Series([names[event.name] for event in events], dtype=pl.Int32),
        }

    def _threads_of(self, events: Sequence[Event]) -> pl.Series:
        threads = self._threads
        return pl.Series([threads[event.pid][event.tid] for event in events], dtype=pl.Int64)

    def _flow_columns(self, events: Sequence[Event]) -> dict[str, pl.Series | list[Any]]:
        return {
            "start": _microseconds([event.ts for event in events]),
            "thread": self._threads_of(events),
            "flow": _integers([self._flows[event.id] for event in events]),
            "begins": [event.ph == "s" for event in events],
        }


_WORK: Final = {
    **_SPAN, "correlation": pl.Int64, "device": pl.Int64, "stream": pl.Int64, "bytes": pl.Int64, "external": pl.Int64,
}  # fmt: skip


def _by_category(events: Iterable[Event]) -> tuple[dict[str, list[Event]], list[Event], int]:
    """The spans of each category, the ends of arrows from forward to backward, and how many ends of spans."""
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


def _work(found: Sequence[_WorkArgs]) -> dict[str, pl.Series | list[Any]]:
    return {
        "correlation": _integers([args.correlation for args in found]),
        "device": _integers([args.device for args in found]),
        "stream": _integers([args.stream for args in found]),
        "bytes": _integers([args.bytes for args in found]),
        "external": _integers([args.external for args in found]).fill_null(
            _integers([args.external_in_small for args in found])
        ),
    }


def _microseconds(
    values: Sequence[int | float | Decimal | None], least: int = _EARLIEST, most: int = _LATEST
) -> pl.Series:
    """Times as they are, as floats or integers; as nanoseconds of 128 bits where they are exact decimals.

    What is no number from `least` to `most` is null.
    """
    kinds = set(map(type, values))
    if Decimal in kinds:
        return pl.Series([_exact(value, least, most) for value in values], dtype=pl.Int128)
    # Too large an integer becomes a null, or infinite as a float, but never another number.
    times = pl.Series(values, dtype=pl.Float64 if float in kinds else pl.Int64, strict=False)
    fits = times.is_between(least, most)  # NaN is above all numbers
    if not fits.all():
        times = pl.select(pl.when(fits).then(times)).to_series()
    farthest = max((abs(end) for end in (times.min(), times.max()) if isinstance(end, (int, float))), default=0)
    if farthest >= _COARSE and float in kinds:
        raise Coarse
    return times


def _in_nanoseconds(frame: pl.DataFrame) -> pl.DataFrame:
    start = _nanoseconds("start", frame.schema["start"])
    if "length" not in frame.columns:
        return frame.with_columns(start)
    end = start + _nanoseconds("length", frame.schema["length"])
    return frame.with_columns(start, end.alias("end")).drop("length")


def _nanoseconds(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column of `_microseconds` as integers; floats up to 2^43 are exact to the nanosecond."""
    time = pl.col(name)
    if dtype == pl.Int128:
        return time.cast(pl.Int64)
    if dtype == pl.Int64:
        return time * 1000
    # The fraction is taken off first: times a thousand, a float of this size is no longer exact.
    whole = time.cast(pl.Int64)
    return whole * 1000 + ((time - whole) * 1000).round().cast(pl.Int64)


def _exact(value: float | Decimal | None, least: int, most: int) -> int | None:
    if value is None or not math.isfinite(value) or not least <= value <= most:
        return None
    if isinstance(value, float) and abs(value) >= _COARSE:
        raise Coarse
    return round(Decimal(repr(value) if isinstance(value, float) else value) * 1000)


def _integers(values: Sequence[int | None]) -> pl.Series:
    """Numbers of more than 64 bits become nulls."""
    return pl.Series(values, dtype=pl.Int64, strict=False)


def _integer(value: object) -> int | None:
    try:
        return msgspec.convert(value, int | None, strict=False)
    except msgspec.ValidationError:
        return None


def _counters(rows: Iterable[int], events: Iterable[Event]) -> pl.DataFrame:
    numbered = zip(rows, events, strict=True)
    found = [(row, *counter) for row, event in numbered for counter in _numbers_in(event.args).items()]
    return pl.DataFrame(found, _COUNTER, orient="row")


def _numbers_in(args: msgspec.Raw) -> dict[str, float]:
    try:
        given = msgspec.json.decode(args)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    numbers = (int, float)
    return {name: float(value) for name, value in given.items() if type(value) in numbers} if given else {}


class _Numbers(dict[Any, int]):
    """Numbers new keys from 0 on."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class _Ids(dict[Any, int]):
    """Ids of 23 bits stand for themselves, others and names for the next free number above; all plus `base`."""

    def __init__(self, base: int = 0) -> None:
        super().__init__()
        self._base = base
        self._others = _Numbers()

    def __missing__(self, key: int | str | None) -> int:
        number: object = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        small = number if isinstance(number, int) and 0 <= number < _HALF else _HALF + self._others[number]
        if small >= 2 * _HALF:
            raise OverflowError("there are more than 8,388,608 processes or threads")
        self[key] = self._base + small
        return self[key]


class _Threads(dict[Any, _Ids]):
    """The numbers of the threads of each process."""

    def __init__(self) -> None:
        super().__init__()
        self._processes = _Ids()

    def __missing__(self, key: int | str | None) -> _Ids:
        threads = self[key] = _Ids(self._processes[key] << 24)
        return threads
