"""Write XPlane files event by event, and decode the wire format without a schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from annot.read.xplane.plane import messages


class PlaneWriter:
    """Builder of a plane. Names of events and statistics get ids in order of appearance."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self._names: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def line(self, name: str, number: int = 0, timestamp_ns: int = 0) -> Any:
        return self.message.lines.add(name=name.encode(), id=number, timestamp_ns=timestamp_ns)

    def event(self, line: Any, name: str, start_ps: int, length_ps: int, /, **stats: object) -> Any:
        number = self.name(name)
        event = line.events.add(metadata_id=number, offset_ps=start_ps, duration_ps=length_ps)
        self.stats(event, **stats)
        return event

    def name(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            self.message.event_metadata.add(key=self._names[name]).value.name = name.encode()
        return self._names[name]

    def constants(self, name: str, /, **stats: object) -> None:
        """Add statistics shared by all events with this name."""
        number = self.name(name)
        self.stats(next(entry.value for entry in self.message.event_metadata if entry.key == number), **stats)

    def stats(self, owner: Any, /, **stats: object) -> None:
        for name, value in stats.items():
            stat = owner.stats.add(metadata_id=self._stat(name.replace("_proto", " Proto")))
            if isinstance(value, int):
                stat.int64_value = value
            elif isinstance(value, bytes):
                stat.bytes_value = value
            else:
                stat.ref_value = self._stat(str(value))

    def _stat(self, name: str) -> int:
        if name not in self._stats:
            self._stats[name] = len(self._stats) + 1
            self.message.stat_metadata.add(key=self._stats[name]).value.name = name.encode()
        return self._stats[name]


class XPlaneProfile:
    """Builder of a file."""

    def __init__(self) -> None:
        self.space = messages().XSpace()

    def plane(self, name: str) -> PlaneWriter:
        return PlaneWriter(self.space.planes.add(name=name.encode()))

    def program(self, name: str, number: int, operations: dict[str, str]) -> None:
        """Add a compiled program: the operation of each instruction."""
        proto = messages().HloProto()
        computation = proto.hlo_module.computations.add()
        for instruction, operation in operations.items():
            computation.instructions.add(name=instruction.encode()).metadata.op_name = operation.encode()
        self.plane("/host:metadata").constants(name, Hlo_proto=proto.SerializeToString(), program_id=number)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.space.SerializeToString())
        return path


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and content of each field of a message: an integer for a varint, otherwise bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 2: -1, 5: 4}[key & 7]
        length = varint() if length < 0 else length
        yield key >> 3, message[place : place + length]
        place += length
