"""Map XLA instructions to operations with the compiled programs in an XPlane file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from annot.read.xplane.plane import Plane, decode, integer
from annot.read.xplane.proto import messages
from annot.util.protobuf import parse

__all__ = ["Instructions"]


class Instructions:
    """The compiled programs in the metadata planes of a file. A program is decoded on first use."""

    def __init__(self, planes: Iterable[Plane]) -> None:
        self._programs: dict[int, bytes] = {}
        self._numbers: dict[str, int | None] = {}  # None: the name is ambiguous
        self._operations: dict[int, Mapping[str, str]] = {}
        self.broken = 0
        """Number of programs that could not be decoded."""
        for plane in planes:
            self._add(plane)

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

    def _add(self, plane: Plane) -> None:
        stat_names = plane.stat_names(("hlo proto", "program_id"))
        for number, stats in plane.constants(stat_names).items():
            if "hlo proto" not in stats:
                continue
            module = plane.names[number].partition("(")[0]  # "jit_step(18)"
            program = integer(stats["program_id"]) if "program_id" in stats else number
            self._programs[program] = stats["hlo proto"].bytes_value
            self._numbers[module] = None if module in self._numbers else program

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
