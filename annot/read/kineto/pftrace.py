"""Decode the events of a Perfetto trace (``.pftrace``) of torch.profiler in blocks, in constant memory.

PyTorch 2.14 and later can record GPUs through CUPTI without Kineto (``cupti_monitor``, since 2.15 ``CuspyConfig``), and
then write a file that ends in ``.pftrace`` in Perfetto's own format instead of JSON. The file is one message
``perfetto.protos.Trace``, compressed with gzip. PyTorch's writer is ``torch/csrc/profiler/cuspy/cuspy_pftrace.cpp``.

The trace has a packet per event. Names, categories and tracks (threads) come first and have numbers. Events of threads
are slices: a group of begins, and then as many ends in the same order. The n-th end of the file therefore belongs to
its n-th begin. GPU activities are render stages, whose arguments are texts.

This format lacks what the JSON of the same run has: properties of devices, versions, ranks, directions of copies, and
arrows. PyTorch also shortens a GPU activity that overlaps the next one of its stream.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from annot.errors import AnnotError
from annot.read.kineto.columns import ARGUMENTS
from annot.read.kineto.trace_events import NO_ARGS, Event, FileBytes
from annot.util.distribution import install_command
from annot.util.protobuf import BYTES, DOUBLE, INT64, UINT64, Fields, message_classes, parse

_VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
FIRST: Final = re.compile(rb"\n" + _VARINT + rb"@" + _VARINT + rb"P" + _VARINT)
"""First bytes of the trace: a packet that begins with its timestamp and the number of its sequence."""

_PACKET: Final = re.compile(rb"\n(" + _VARINT + rb")")
_BLOCK: Final = 1 << 20
_SHORTEST, _LONGEST = 8, 1 << 24
"""Limits of the bytes of a packet. One packet has all names of the trace. A small damaged file thus has neither many
millions of packets nor of messages in one packet."""
_BEGIN, _END = 1, 2  # TrackEvent.Type

_NAMED: Final[Fields] = (("iid", 1, UINT64), ("name", 2, BYTES))
_SIZE: Final[Fields] = (("x", 1, INT64), ("y", 2, INT64), ("z", 3, INT64))
_FIELDS: Final[dict[str, Fields]] = {
    "Trace": (("packet", 1, ["TracePacket"]),),
    "TracePacket": (
        ("timestamp", 8, UINT64),
        ("track_event", 11, "TrackEvent"),
        ("interned_data", 12, "InternedData"),
        ("gpu_render_stage_event", 53, "GpuRenderStageEvent"),
        ("track_descriptor", 60, "TrackDescriptor"),
    ),
    "TrackEvent": (
        ("category_iids", 3, [UINT64]),
        ("debug_annotations", 4, ["DebugAnnotation"]),
        ("type", 9, INT64),
        ("name_iid", 10, UINT64),
        ("track_uuid", 11, UINT64),
    ),
    "DebugAnnotation": (
        ("bool_value", 2, INT64),
        ("int_value", 4, INT64),
        ("double_value", 5, DOUBLE),
        ("string_value", 6, BYTES),
        ("name", 10, BYTES),
        ("array_values", 12, ["DebugAnnotation"]),
    ),
    "InternedData": (
        ("event_categories", 1, ["Named"]),
        ("event_names", 2, ["Named"]),
        ("gpu_specifications", 24, ["Named"]),
    ),
    "Named": _NAMED,
    "GpuRenderStageEvent": (
        ("duration", 2, UINT64),
        ("extra_data", 6, ["ExtraData"]),
        ("gpu_id", 11, INT64),
        ("stage_iid", 14, UINT64),
        ("name_iid", 20, UINT64),
        ("launch", 21, "ComputeKernelLaunch"),
    ),
    "ExtraData": (("name", 1, BYTES), ("value", 2, BYTES)),
    "ComputeKernelLaunch": (("grid_size", 1, "Dim3"), ("workgroup_size", 2, "Dim3")),
    "Dim3": _SIZE,
    "TrackDescriptor": (("uuid", 1, UINT64), ("thread", 4, "ThreadDescriptor")),
    "ThreadDescriptor": (("pid", 1, INT64), ("tid", 2, INT64)),
    # The same trace, of which only the ends of slices are decoded.
    "Ends": (("packet", 1, ["EndPacket"]),),
    "EndPacket": (("timestamp", 8, UINT64), ("track_event", 11, "End")),
    "End": (("type", 9, INT64), ("track_uuid", 11, UINT64)),
}

_CATEGORIES: Final = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node",
    "HostNode": "graph_host_node",
}
"""Categories that the JSON of the same run has, by the name of the render stage."""
_ARGUMENTS: Final = {name.encode(): name for name in ARGUMENTS}
_OF_ACTIVITIES: Final = _ARGUMENTS | {b"device id": "device", b"stream id": "stream"}
"""Arguments of GPU activities, some of which have other names in JSON."""


@functools.cache
def messages() -> Any:
    """Return an object with the message classes `Trace` and `Ends`. They are created on the first call."""
    return message_classes("annot.perfetto", _FIELDS, ("Trace", "Ends"))


class PftraceFile:
    """A Perfetto trace as events of a `TraceFile`, with the same attributes and methods. It can be read once."""

    def __init__(self, path: Path, *, exact: bool = False, block: int = _BLOCK) -> None:
        self.top: dict[str, Any] = {}
        self.invalid = 0  # number of skipped events, which have no known name or thread
        self._path = path
        self._exact = exact
        self._block = block
        self._base = 0
        self._names: dict[int, str] = {}
        self._categories: dict[int, str] = {}
        self._stages: dict[int, str] = {}
        self._threads: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def blocks(self) -> Iterator[list[Event]]:
        """Yield the events in the order of the file, as a list for each block."""
        ends = self._ends()
        for packets in self._packets("Trace"):
            yield [event for packet in packets if (event := self._event(packet, ends)) is not None]
        if next(ends, None):
            raise self._unordered()

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Return time and thread of the ends of all slices, and note the first time of the file as its base."""
        times, threads = array("Q"), array("Q")
        for packets in self._packets("Ends"):
            for packet in packets:
                self._base = self._base or packet.timestamp
                if packet.track_event.type == _END:
                    times.append(packet.timestamp)
                    threads.append(packet.track_event.track_uuid)
        self.top["baseTimeNanoseconds"] = self._base
        return zip(times, threads, strict=True)

    def _packets(self, message: str) -> Iterator[Any]:
        """Yield the packets of each block, decoded as a message of `_FIELDS`."""
        with closing(FileBytes(self._path)) as content:
            while size := self._whole_packets(content):
                data = content.window(size)
                try:
                    yield parse(getattr(messages(), message), data).packet
                except ImportError:
                    what = f"is a Perfetto trace, which requires protobuf: {install_command('pftrace')}"
                    raise AnnotError(f"{self._path} {what}") from None
                except ValueError:
                    raise self._damage(content.at) from None
                content.skip(size)

    def _whole_packets(self, content: FileBytes) -> int:
        """Return the size of the complete packets in the next block, at least one; 0 at the end of the file."""
        data = content.window(self._block)
        size = end = 0
        while start := _PACKET.match(data, size):
            length = _number(start[1])
            end = start.end() + length
            if end > len(data) or length < _SHORTEST:
                break
            size = end
        if size or not data:
            return size
        if len(data) < end <= _LONGEST and len(content.window(end)) == end:
            return end
        raise self._damage(content.at)

    def _event(self, packet: Any, ends: Iterator[tuple[int, int]]) -> Event | None:
        if packet.HasField("track_event"):
            return self._slice(packet, packet.track_event, ends)
        if packet.HasField("gpu_render_stage_event"):
            return self._activity(packet, packet.gpu_render_stage_event)
        for names, interned in (
            (self._names, packet.interned_data.event_names),
            (self._categories, packet.interned_data.event_categories),
            (self._stages, packet.interned_data.gpu_specifications),
        ):
            names.update((entry.iid, _text(entry.name)) for entry in interned)
        track = packet.track_descriptor
        if track.HasField("thread"):
            self._threads[track.uuid] = (track.thread.pid, track.thread.tid)
        return None

    def _slice(self, packet: Any, event: Any, ends: Iterator[tuple[int, int]]) -> Event | None:
        if event.type != _BEGIN:
            return None
        end, thread = next(ends, (0, None))
        if thread != event.track_uuid:
            raise self._unordered()
        if not event.category_iids:  # overhead of CUPTI and synchronization, which annot ignores in JSON, too
            return None
        category = self._categories.get(event.category_iids[0])
        args = {
            name: _value(annotation)
            for annotation in event.debug_annotations
            if (name := _ARGUMENTS.get(annotation.name))
        }
        name, track = self._names.get(event.name_iid), self._threads.get(event.track_uuid, (None, None))
        return self._span(packet.timestamp, end, category, name, *track, args=args)

    def _activity(self, packet: Any, event: Any) -> Event | None:
        stage = self._stages.get(event.stage_iid)
        args: dict[str, Any] = {
            name: _text(entry.value) for entry in event.extra_data if (name := _OF_ACTIVITIES.get(entry.name))
        }
        if event.HasField("launch"):
            args["grid"], args["block"] = _sizes(event.launch.grid_size), _sizes(event.launch.workgroup_size)
        end = packet.timestamp + event.duration
        name = self._names.get(event.name_iid, stage)
        category = _CATEGORIES.get(stage, stage) if stage else None
        return self._span(packet.timestamp, end, category, name, event.gpu_id, args=args)

    def _span(
        self, start: int, end: int, category: str | None, name: str | None, process: int | None = None,
        thread: int | None = None, *, args: dict[str, Any],
    ) -> Event | None:  # fmt: skip
        if category is None or name is None or process is None:
            self.invalid += 1
            return None
        ts, dur = (Decimal(time) / 1000 if self._exact else time / 1000 for time in (start - self._base, end - start))
        encoded = msgspec.Raw(msgspec.json.encode(args)) if args else NO_ARGS
        return Event("X", category, name, process, thread, ts, dur, encoded)

    def _unordered(self) -> AnnotError:
        what = "is a Perfetto trace whose slices are not in the order in which torch.profiler writes them"
        return AnnotError(f"{self._path} {what}")

    def _damage(self, at: int) -> AnnotError:
        return AnnotError(f"{self._path} is not a complete Perfetto trace: a packet is damaged at byte {at:,}")


@functools.lru_cache(maxsize=1 << 14)
def _number(varint: bytes) -> int:
    """Return the number of a varint. The lengths of packets repeat."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


def _text(text: bytes) -> str:
    return text.decode(errors="replace")


def _sizes(dimensions: Any) -> list[int]:
    return [dimensions.x, dimensions.y, dimensions.z]


def _value(annotation: Any) -> Any:
    """Return the value of an argument of a slice. PyTorch writes an empty list as an argument without a value."""
    for field in ("int_value", "double_value", "bool_value"):
        if annotation.HasField(field):
            return getattr(annotation, field)
    if annotation.HasField("string_value"):
        return _text(annotation.string_value)
    return [_value(entry) for entry in annotation.array_values]
