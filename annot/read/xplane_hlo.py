"""Which operation an instruction of XLA stands for, as the compiled programs in a file say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from annot.read.xplane_plane import Plane, decode, whole
from annot.read.xplane_proto import messages

__all__ = ["Instructions"]


class Instructions:
    """The programs of a file; each is decoded when one of its instructions is asked for.

    Args:
        planes: those of the file that hold metadata.
    """

    def __init__(self, planes: Iterable[Plane]) -> None:
        self._programs: dict[int, bytes] = {}
        self._numbers: dict[str, int | None] = {}  # None: several programs have the name
        self._operations: dict[int, Mapping[str, str]] = {}
        self.broken = 0
        """How many programs could not be decoded."""
        for plane in planes:
            self._add(plane)

    def operation(self, plane: Plane, stats: Mapping[str, Any]) -> str | None:
        """Return the name of the operation that an event's instruction comes from, None if it is not known.

        Args:
            plane: that of the event.
            stats: of the event, with `hlo_op`, and `program_id` or `hlo_module`.
        """
        program = whole(stats["program_id"]) if "program_id" in stats else None
        if program not in self._programs and "hlo_module" in stats:
            program = self._numbers.get(plane.text(stats["hlo_module"]))
        if program is None or program not in self._programs:
            return None
        if program not in self._operations:
            self._operations[program] = self._decoded(self._programs[program])
        return self._operations[program].get(plane.text(stats["hlo_op"]))

    def _add(self, plane: Plane) -> None:
        uses = plane.uses(("hlo proto", "program_id"))
        for number, stats in plane.constants(uses).items():
            if "hlo proto" not in stats:
                continue
            module = plane.names[number].partition("(")[0]  # "jit_step(18)"
            program = whole(stats["program_id"]) if "program_id" in stats else number
            self._programs[program] = stats["hlo proto"].bytes_value
            self._numbers[module] = None if module in self._numbers else program

    def _decoded(self, program: bytes) -> Mapping[str, str]:
        from google.protobuf.message import DecodeError

        try:
            module = messages().HloProto.FromString(program).hlo_module
        except DecodeError:
            self.broken += 1
            return {}
        return {
            decode(instruction.name): decode(instruction.metadata.op_name)
            for computation in module.computations
            for instruction in computation.instructions
            if instruction.metadata.op_name
        }
