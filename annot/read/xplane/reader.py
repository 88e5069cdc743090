"""Reader for the XPlane files (``*.xplane.pb``) of the profilers of TensorFlow, JAX and XLA.

A file is one protocol buffer message. It contains a plane per device and planes of the host. A plane has lines (streams
or threads) of events. Events have named statistics. The whole file belongs to one process.

Devices: an event on the line of a stream is a kernel, copy or memset. A plane without streams (TPU) has a line
``XLA Ops``, whose innermost events are used instead. Lines that the profiler derives, such as
``TensorFlow Name Scope``, are ignored.

Host: an event with a correlation id is the launch of a device activity. The operations of TensorFlow
(``model/dense/MatMul:MatMul``) and XLA become operators. Their name scopes become ranges around them, with the scope as
layer path (see `annot.labels.name_scopes` and `annot.read.xplane.host`). An event with a step number becomes a
training step. Events of the runtime become operators, not layers: events on its threads, and events with its names. All
other events are annotations.

Device activities name the operation that launched them (statistics ``name``, ``hlo_op``, ``tf_op``, ``annotation``). If
the launch is outside the events of that operation, the ranges of its scopes, or a range with its name, are added around
the launch. If the launch is unknown, they are added around the activity, on a thread that represents the stream.

Times are picoseconds since the start of a line. Start and end of an event are rounded down to nanoseconds. Adjacent
events therefore stay adjacent, and their durations add up to the total.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.labels import tag
from annot.labels.marks import SCOPES_FILE
from annot.labels.name_scopes import Scopes
from annot.profile import COPIES, KERNELS, LAUNCHES, Profile, Schema, pick
from annot.read.beside import read_small
from annot.read.text import sentences
from annot.read.xplane.device import Activities, read_device
from annot.read.xplane.host import Host, Kind, Ranges
from annot.read.xplane.plane import Instructions, Plane, decode, messages
from annot.util.distribution import install_command
from annot.util.protobuf import parse

NAME: Final = "xplane"

_PROCESS: Final = 0
_MOST_RANGES: Final = 20_000_000
_LARGEST_SCOPES: Final = 1 << 24
_MOST_NOTES: Final = 20
_LONGEST_NOTE: Final = 500
_FIRST: Final = re.compile(
    rb"\x0a[\x80-\xff]{0,8}[\x01-\x7f]"  # field planes, and its length
    rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"  # field id
    rb"\x12([\x01-\x7f])"  # field name, and its length
    rb"(?=/host:|/device:|/virtualdevice:|#Chip|Task Environment|Host CPUs|Syscalls)([ -~]*)"
)
_DEVICES: Final = ("/device:", "/virtualdevice:", "#Chip")
_METADATA: Final = "/host:metadata"
# Host planes without events that annot uses.
_IGNORED: Final = frozenset({_METADATA, "/host:tfstreamz", "/host:python-tracer", "/host:__ScopeRangeCallStack__"})


def sniff(path: Path, head: bytes) -> bool:
    """Return whether a file begins with a plane of a known name; see `annot.read.formats.Reader`.

    A folder must be a log directory of the TensorFlow or JAX profiler.
    """
    if not head:
        return path.is_dir() and bool(_captures(path))
    first = _FIRST.match(head)
    return first is not None and len(first[2]) >= first[1][0]


def read(path: Path) -> Profile:
    """Read an XPlane file; see `annot.read.formats.Reader`."""
    captures = _captures(path) if path.is_dir() else [path]
    if len(captures) > 1:
        raise AnnotError(f"{path} contains {len(captures)} XPlane files. Pass one of them, such as {captures[-1]}.")
    [path] = captures
    space = _parsed(path)
    try:
        with _disable_collection():
            return _profile(path, space)
    except OverflowError as error:
        raise AnnotError(f"{path} cannot be read: {error}") from None


def _captures(folder: Path) -> list[Path]:
    """Return the XPlane files in a folder or log directory, newest capture last."""
    return sorted(file for pattern in ("*", "plugins/profile/*/*") for file in folder.glob(f"{pattern}.xplane.pb"))


@contextmanager
def _disable_collection() -> Iterator[None]:
    """Disable garbage collection. It takes half of the time, and the millions of new objects have no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parsed(path: Path) -> Any:
    try:
        return parse(messages().XSpace, path.read_bytes())
    except ImportError:
        raise AnnotError(f"{path} is an XPlane file, which requires protobuf: {install_command('xplane')}") from None
    except ValueError:
        raise AnnotError(f"{path} is truncated or damaged: it is not a complete XPlane message") from None


def _profile(path: Path, space: Any) -> Profile:
    planes = [Plane(message) for message in space.planes]
    devices = [plane for plane in planes if plane.name.startswith(_DEVICES)]
    scopes, activities = Scopes(_scope_texts(path)), Activities()
    instructions = Instructions(plane for plane in planes if plane.name == _METADATA)
    for plane in devices:
        read_device(plane, activities, instructions, scopes)
    operations = _launched_operations(activities)
    host = Host(operations, instructions, scopes)
    for plane in planes:
        if plane.name.startswith("/host:") and plane.name not in _IGNORED:
            host.read(plane)
    ranges = Ranges(scopes.levels, _MOST_RANGES)
    for thread, events in enumerate(host.events):
        ranges.add(thread, sorted(events))
    recorded = len(ranges) > 0 or bool(host.launches["start"])
    if not recorded and not activities.start:
        raise AnnotError(": ".join([f"{path} contains no events of a host or device", *_profiler_messages(space)[:1]]))
    origins = _add_origins(activities, host, operations, scopes, ranges)
    meta = _meta(path, planes, devices) | ({} if recorded else {"host_times": False})
    meta["notes"] = [*_profiler_messages(space), *_notes(planes, instructions, origins)]
    process = pl.lit(_PROCESS, pl.Int64).alias("process")
    rows = _table(activities, origins).with_columns(process)
    same = {"domain": pl.lit(""), "category": pl.lit(""), "kind": pl.lit("push")}
    return Profile.build(
        meta,
        ranges=ranges.table().with_columns(process, **same),
        launches=pl.DataFrame(host.launches, schema=_columns(LAUNCHES, host.launches)).with_columns(process),
        kernels=pick(rows.filter(pl.col("kind").is_null()), KERNELS),
        copies=pick(rows.filter(pl.col("kind").is_not_null()), COPIES),
    )


def _table(activities: Activities, origins: _Origins) -> pl.DataFrame:
    columns = {name: getattr(activities, name) for name in ("device", "stream", "start", "end", "correlation")}
    columns |= zip(("origin_thread", "origin_start"), origins, strict=True)
    table = pl.DataFrame(columns, schema=_columns(KERNELS, columns))
    schema = _columns({**KERNELS, **COPIES}, ("name", "kind", "bytes", "pinned"))
    kinds = pl.DataFrame([kind[:4] for kind in activities.kinds], schema=schema, orient="row")
    kinds = kinds[pl.Series(activities.kind, dtype=pl.Int64)]
    correlation = pl.when(pl.col("correlation") != 0).then("correlation")
    return table.with_columns(correlation.alias("correlation"), *kinds.get_columns())


def _columns(schema: Schema, names: Iterable[str]) -> Schema:
    return {name: schema[name] for name in names}


def _scope_texts(path: Path) -> list[str]:
    """Return annot's texts on name scopes. TensorFlow writes the profile three folders below its log directory."""
    for folder in [*path.absolute().parents][:4]:
        if texts := read_small(folder / SCOPES_FILE, _LARGEST_SCOPES):
            return decode(texts).splitlines()
    return []


def _meta(path: Path, planes: Sequence[Plane], devices: Sequence[Plane]) -> dict[str, Any]:
    """Return `Profile.meta`. Only JAX writes its version to the file."""
    versions = [plane.properties() for plane in planes if plane.name == _METADATA]
    jax = next((version["jax_version"] for version in versions if "jax_version" in version), None)
    return {
        "source": str(path),
        "format": NAME,
        "producer": "" if jax is None else f"JAX {jax}",
        "devices": [{"name": plane.name} | plane.properties() for plane in devices],
    }


def _profiler_messages(space: Any) -> list[str]:
    """Return the errors and warnings of the profiler."""
    return [" ".join(decode(text[:_LONGEST_NOTE]).split()) for text in (*space.errors, *space.warnings)][:_MOST_NOTES]


def _notes(planes: Sequence[Plane], instructions: Instructions, origins: _Origins) -> list[str]:
    by_name = (
        "annot attributes {GPU activity} to layers by operation name, because the launch does not identify the layer. "
        "The host time of these layers includes their GPU time."
    )
    counts = {
        "annot skipped {event} with times out of range.": sum(plane.invalid for plane in planes),
        "annot could not decode {compiled program}. Some operations have no name scopes.": instructions.broken,
        by_name: sum(start is not None for start in origins[1]),
    }
    return sentences(Counter(counts))


_Origins = tuple[list[int | None], list[int | None]]
"""Thread and time (ns) of the range of each activity. None if the launch determines the range."""


def _launched_operations(activities: Activities) -> dict[int, str]:
    """Return the operation of each correlation id. A CUDA graph launch has several operations; the first one counts."""
    by_kind = [kind.operation for kind in activities.kinds]
    operations: dict[int, str] = {}
    for correlation, kind in zip(activities.correlation, activities.kind, strict=True):
        if correlation and (operation := by_kind[kind]) is not None:
            operations.setdefault(correlation, operation)
    return operations


def _add_origins(
    activities: Activities, host: Host, operations: Mapping[int, str], scopes: Scopes, ranges: Ranges
) -> _Origins:
    """Add ranges around activities whose launch does not lead to their operation, and return their thread and time.

    Each stream gets a new thread. On this thread, the activities replace the launches. Overlapping activities end where
    the next one begins. If the host has no training steps, the steps of the devices are added too.
    """
    streams = _unlaunched_rows(activities, frozenset(host.launches["correlation"]), operations, scopes)
    threads: list[int | None] = [None] * len(activities.start)
    starts: list[int | None] = [None] * len(activities.start)
    named = [kind.operation or kind.name for kind in activities.kinds]
    kinds = [Kind(scopes.add(operation).name, operation=operation) for operation in named]
    for rows in streams:
        thread = host.thread()
        rows.sort(key=activities.start.__getitem__)
        events = []
        for row, after in pairwise([*rows, rows[-1]]):
            start, end = activities.start[row], activities.end[row]
            end = end if after == row else min(end, activities.start[after])
            events.append((start, -end, row, kinds[activities.kind[row]]))
            threads[row], starts[row] = thread, start
        ranges.add(thread, sorted(events), shares=True)
    if streams and not host.steps:
        steps = [(start, -end, row, _step(name)) for row, (start, end, name) in enumerate(activities.steps)]
        ranges.add(host.thread(), sorted(steps))
    return threads, starts


def _unlaunched_rows(
    activities: Activities, launches: frozenset[int], operations: Mapping[int, str], scopes: Scopes
) -> list[list[int]]:
    """Return the rows of activities whose launch does not lead to their operation, for each stream."""
    streams: dict[tuple[int, int], list[int]] = {}
    levels = [None if kind.operation is None else scopes.levels(kind.operation) for kind in activities.kinds]
    for row, (correlation, kind) in enumerate(zip(activities.correlation, activities.kind, strict=True)):
        if levels[kind] is None:
            continue
        if correlation not in launches or scopes.levels(operations[correlation]) != levels[kind]:
            streams.setdefault((activities.device[row], activities.stream[row]), []).append(row)
    return list(streams.values())


def _step(name: str) -> Kind:
    if name.isdecimal() and len(name) < 19:
        return Kind(tag.format(tag.Tag(phase="step", step=int(name))), None)
    return Kind(name, "annotation")
