"""The Chrome trace that torch.profiler writes: ranges, launches, kernels and copies.

Processes and threads are numbers there, or names for rows that are not threads. A kernel's "process" is its
device, so it gets the process of its launch. Times are microseconds, relative to `baseTimeNanoseconds`.
"""

from __future__ import annotations

import functools
import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from annot import tag
from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LAUNCHES, RANGES, Profile, Schema

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "kineto"

# Releases of 2021 wrote "Kernel", "Runtime", "Memcpy" and so on.
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime"})
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_OPERATORS: Final = frozenset({"cpu_op", "operator"})
_GZIP: Final = b"\x1f\x8b"
_SNIFFED: Final = 1 << 20
_HALF: Final = 1 << 23


class _Args(msgspec.Struct, gc=False):
    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = 0
    dur: int | float = 0
    args: _Args | None = None


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    texts: dict[str, str] = msgspec.field(name="annot_texts", default_factory=dict)
    """Domains of the ranges that annot opened with a text of the user's, as `annot run` adds them."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is JSON with trace events, plain or compressed; see `annot.read.Reader`."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _SNIFFED)
        except zlib.error:
            return False
    return head.lstrip().startswith(b"{") and (b'"traceEvents"' in head or b'"schemaVersion"' in head)


def read(path: Path) -> Profile:
    """Read a trace; see `annot.read.Reader`.

    Raises:
        AnnotError: the file is cut or damaged, or is not a trace.
    """
    trace = _decode(path, _content(path))
    complete = [event for event in trace.events if event.ph == "X"]
    clock = _Clock(trace.base)
    ranges = [event for event in complete if _is_range(event, trace.texts)]
    calls = [event for event in complete if event.cat.lower() in _LAUNCHES]
    owners = {_args(event).correlation: _process(event.pid) for event in calls}
    try:
        return Profile.build(
            {"source": str(path), "format": NAME, "producer": "torch.profiler"},
            ranges=_ranges(ranges, clock, trace.texts),
            launches=_launches(calls, clock),
            kernels=_kernels([event for event in complete if event.cat.lower() == "kernel"], clock, owners),
            copies=_copies([event for event in complete if event.cat.lower() in _COPIES], clock, owners),
        )
    except (OverflowError, pl.exceptions.PolarsError) as error:
        raise AnnotError(f"{path} holds a number out of range: {error}") from None


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except EOFError:
        raise AnnotError(f"{path} is cut: the compressed data end too early") from None
    except (OSError, zlib.error) as error:
        raise AnnotError(f"{path} cannot be read: {error}") from None


def _decode(path: Path, content: bytes) -> _Trace:
    try:
        return msgspec.json.decode(content, type=_Trace, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnnotError(f"{path} is not a whole trace of torch.profiler: {error}") from None


class _Clock:
    def __init__(self, base: int) -> None:
        self._base = base

    def times(self, events: Sequence[_Event]) -> dict[str, list[int]]:
        """The columns `start` and `end` of events, in nanoseconds."""
        starts = [self._base + _nanoseconds(event.ts) for event in events]
        ends = [start + _nanoseconds(event.dur) for start, event in zip(starts, events, strict=True)]
        return {"start": starts, "end": ends}


def _nanoseconds(microseconds: float) -> int:
    """The fraction is taken off first: times a thousand, a float of this size is no longer exact."""
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def _is_range(event: _Event, texts: dict[str, str]) -> bool:
    """torch files ranges that cost little under operators, so annot's are known by their texts."""
    category = event.cat.lower()
    ours = category in _OPERATORS and (event.name in texts or _is_ours(event.name))
    return ours or category == "user_annotation"


@functools.cache
def _is_ours(name: str) -> bool:
    return tag.parse(name) is not None


def _ranges(events: Sequence[_Event], clock: _Clock, texts: dict[str, str]) -> pl.DataFrame:
    return _frame(
        RANGES,
        **clock.times(events),
        id=list(range(len(events))),
        process=[_process(event.pid) for event in events],
        thread=[_thread(event) for event in events],
        domain=[tag.DOMAIN if _is_ours(event.name) else texts.get(event.name, "") for event in events],
        category=[""] * len(events),
        text=[event.name for event in events],
        kind=["push"] * len(events),
    )


def _launches(events: Sequence[_Event], clock: _Clock) -> pl.DataFrame:
    return _frame(
        LAUNCHES,
        **clock.times(events),
        process=[_process(event.pid) for event in events],
        thread=[_thread(event) for event in events],
        correlation=[_args(event).correlation for event in events],
        name=[event.name for event in events],
    )


def _kernels(events: Sequence[_Event], clock: _Clock, owners: dict[int | None, int]) -> pl.DataFrame:
    return _frame(
        KERNELS,
        **clock.times(events),
        **_places(events, owners),
        name=[event.name for event in events],
    )


def _copies(events: Sequence[_Event], clock: _Clock, owners: dict[int | None, int]) -> pl.DataFrame:
    return _frame(
        COPIES,
        **clock.times(events),
        **_places(events, owners),
        kind=[_copy_kind(event.name) for event in events],
        bytes=[_args(event).bytes for event in events],
    )


def _places(events: Sequence[_Event], owners: dict[int | None, int]) -> dict[str, list[int | None]]:
    # What was launched before the trace began belongs to the process that launched the rest.
    default = next(iter(owners.values()), 0)
    details = [_args(event) for event in events]
    return {
        "process": [owners.get(detail.correlation, default) for detail in details],
        "device": [detail.device for detail in details],
        "stream": [detail.stream for detail in details],
        "correlation": [detail.correlation for detail in details],
    }


def _frame(schema: Schema, **columns: Sequence[Any]) -> pl.DataFrame:
    return pl.DataFrame(columns, schema={name: schema[name] for name in columns})


def _args(event: _Event) -> _Args:
    return event.args or _NO_ARGS


_NO_ARGS: Final = _Args()


def _process(pid: int | str) -> int:
    return _small(pid) << 24


def _thread(event: _Event) -> int:
    return _process(event.pid) | _small(event.tid)


def _small(number: int | str) -> int:
    """Ids of 23 bits stand for themselves, others and names for the next free number above."""
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    return number if isinstance(number, int) and 0 <= number < _HALF else _HALF + _numbered(number)


@functools.cache
def _numbered(name: int | str) -> int:
    return _numbered.cache_info().currsize


def _copy_kind(name: str) -> str:
    """The kind that "Memcpy HtoD (Pageable -> Device)" speaks of.

    Example:
        >>> _copy_kind("Memcpy HtoD (Pageable -> Device)"), _copy_kind("Memset (Device)")
        ('HtoD', 'memset')
    """
    kind = re.match(r"memcpy\s+(\w+)", name, re.IGNORECASE)
    return kind[1] if kind else "memset" if name.lower().startswith("memset") else "unknown"
