"""The messages of XPlane files: planes with the names of their events and statistics, and compiled programs.

The fields are those of ``tsl/profiler/protobuf/xplane.proto``, and of the messages in ``xla/service/hlo.proto`` that
name instructions. Unused fields are omitted. Text fields are declared as bytes, because profiles contain invalid UTF-8.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

from annot.profile import LATEST
from annot.util.protobuf import BYTES, DOUBLE, INT64, UINT64, Fields, message_classes, parse

_FIELDS: Final[dict[str, Fields]] = {
    "XSpace": (("planes", 1, ["XPlane"]), ("errors", 2, [BYTES]), ("warnings", 3, [BYTES])),
    "XPlane": (
        ("id", 1, INT64),
        ("name", 2, BYTES),
        ("lines", 3, ["XLine"]),
        ("event_metadata", 4, ["XEventEntry"]),
        ("stat_metadata", 5, ["XStatEntry"]),
        ("stats", 6, ["XStat"]),
    ),
    "XLine": (("id", 1, INT64), ("name", 2, BYTES), ("timestamp_ns", 3, INT64), ("events", 4, ["XEvent"])),
    "XEvent": (("metadata_id", 1, INT64), ("offset_ps", 2, INT64), ("duration_ps", 3, INT64), ("stats", 4, ["XStat"])),
    "XStat": (
        ("metadata_id", 1, INT64),
        ("double_value", 2, DOUBLE),
        ("uint64_value", 3, UINT64),
        ("int64_value", 4, INT64),
        ("str_value", 5, BYTES),
        ("bytes_value", 6, BYTES),
        ("ref_value", 7, UINT64),
    ),
    "XEventEntry": (("key", 1, INT64), ("value", 2, "XEventMetadata")),  # entry of a map field
    "XEventMetadata": (("name", 2, BYTES), ("stats", 5, ["XStat"])),
    "XStatEntry": (("key", 1, INT64), ("value", 2, "XStatMetadata")),
    "XStatMetadata": (("name", 2, BYTES),),
    "HloProto": (("hlo_module", 1, "HloModuleProto"),),
    "HloModuleProto": (("name", 1, BYTES), ("computations", 3, ["HloComputationProto"]), ("id", 5, INT64)),
    "HloComputationProto": (("instructions", 2, ["HloInstructionProto"]),),
    "HloInstructionProto": (("name", 1, BYTES), ("metadata", 7, "OpMetadata")),
    "OpMetadata": (("op_name", 2, BYTES),),
}


@functools.cache
def messages() -> Any:
    """Return an object with the message classes `XSpace` and `HloProto`. They are created on the first call."""
    return message_classes("annot.xplane", _FIELDS, ("XSpace", "HloProto"))


LIMIT: Final = 1 << 62
"""Correlation ids are smaller. Greater values are damage."""


def decode(name: bytes) -> str:
    """Return the text of bytes. Invalid UTF-8 becomes U+FFFD."""
    return name.decode("utf-8", "replace")


def integer(stat: Any) -> int:
    """Return the signed or unsigned integer of a message XStat, 0 for other types."""
    return int(stat.int64_value or stat.uint64_value)


class Plane:
    """A message XPlane."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.name = decode(message.name)
        self.names: Mapping[int, str] = {entry.key: decode(entry.value.name) for entry in message.event_metadata}
        """Event names by event metadata id."""
        self.invalid = 0  # number of events with times out of range
        self._texts = {entry.key: decode(entry.value.name) for entry in message.stat_metadata}

    def timed(self, line: Any, wanted: Container[int] | None = None) -> Iterator[tuple[Any, int, int]]:
        """Yield the events of a line with start and end in ns, and count those with times out of range in `invalid`.

        `wanted` has the metadata ids of the events; None: all.
        """
        base = line.timestamp_ns
        for event in line.events:
            if wanted is None or event.metadata_id in wanted:
                offset = event.offset_ps
                start = base + offset // 1000
                end = base + (offset + event.duration_ps) // 1000
                if -LATEST < start <= end < LATEST:
                    yield event, start, end
                else:
                    self.invalid += 1

    def stat_names(self, names: Iterable[str]) -> dict[int, str]:
        """Return the existing statistics with these names: lower-case names by metadata id."""
        selected = frozenset(names)
        return {number: text.lower() for number, text in self._texts.items() if text.lower() in selected}

    def constants(self, stat_names: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Return the selected statistics of the event metadata, by event metadata id."""
        selected = {
            entry.key: {name: stat for stat in entry.value.stats if (name := stat_names.get(stat.metadata_id))}
            for entry in self.message.event_metadata
        }
        return {number: stats for number, stats in selected.items() if stats}

    def text(self, stat: Any) -> str:
        """Return the text of a statistic, or "". The text can be a reference to the name of another statistic."""
        reference = stat.ref_value
        return self._texts.get(reference, "") if reference else decode(stat.str_value)

    def properties(self) -> dict[str, str | int | float]:
        """Return the statistics of the plane itself, such as the properties of a device."""
        return {
            self._texts.get(stat.metadata_id, ""): self.text(stat) or integer(stat) or float(stat.double_value) or 0
            for stat in self.message.stats
        }


class Instructions:
    """The compiled programs in the metadata planes of a file. A program is decoded on first use."""

    def __init__(self, planes: Iterable[Plane]) -> None:
        self._programs: dict[int, bytes] = {}
        self._numbers: dict[str, int | None] = {}  # None: the name is ambiguous
        self._operations: dict[int, Mapping[str, str]] = {}
        self.broken = 0  # number of programs that could not be decoded
        for plane in planes:
            stat_names = plane.stat_names(("hlo proto", "program_id"))
            programs = {number: stats for number, stats in plane.constants(stat_names).items() if "hlo proto" in stats}
            for number, stats in programs.items():
                module = plane.names[number].partition("(")[0]  # "jit_step(18)"
                program = integer(stats["program_id"]) if "program_id" in stats else number
                self._programs[program] = stats["hlo proto"].bytes_value
                self._numbers[module] = None if module in self._numbers else program

    def operation(self, plane: Plane, stats: Mapping[str, Any]) -> str | None:
        """Return the name of the operation of an instruction, or None if it is unknown.

        The event of the plane has the statistics `hlo_op`, and `program_id` or `hlo_module`.
        """
        program = integer(stats["program_id"]) if "program_id" in stats else None
        if program not in self._programs and "hlo_module" in stats:
            program = self._numbers.get(plane.text(stats["hlo_module"]))
        if program is None or program not in self._programs:
            return None
        if program not in self._operations:
            self._operations[program] = self._decoded(self._programs[program])
        return self._operations[program].get(plane.text(stats["hlo_op"]))

    def _decoded(self, program: bytes) -> Mapping[str, str]:
        try:
            module = parse(messages().HloProto, program).hlo_module
        except ValueError:
            self.broken += 1
            return {}
        return {
            decode(instruction.name): decode(instruction.metadata.op_name)
            for computation in module.computations
            for instruction in computation.instructions
            if instruction.metadata.op_name
        }
