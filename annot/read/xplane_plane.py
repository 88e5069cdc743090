"""One plane of an XPlane file with its names spelt out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["LIMIT", "Plane", "decode", "whole"]

LIMIT: Final = 1 << 62
"""No number of a launch is as large."""


def decode(name: bytes) -> str:
    """Return text of a file; what is not UTF-8 is replaced."""
    return name.decode("utf-8", "replace")


def whole(stat: Any) -> int:
    """Return the number of a statistic, signed or not; 0 if it is none."""
    return int(stat.int64_value or stat.uint64_value)


class Plane:
    """A plane, and what its events and statistics are called.

    Args:
        message: of the type XPlane.
    """

    def __init__(self, message: Any) -> None:
        self.message = message
        self.name = decode(message.name)
        self.names: Mapping[int, str] = {entry.key: decode(entry.value.name) for entry in message.event_metadata}
        """Names of events by their numbers."""
        self._texts = {entry.key: decode(entry.value.name) for entry in message.stat_metadata}

    def uses(self, names: Iterable[str]) -> dict[int, str]:
        """Return the numbers of the statistics with these names, in small letters, that the plane has."""
        wanted = frozenset(names)
        return {number: text.lower() for number, text in self._texts.items() if text.lower() in wanted}

    def constants(self, uses: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Return the statistics of interest that all events with the same number share."""
        found = {entry.key: self.found(entry.value.stats, uses) for entry in self.message.event_metadata}
        return {number: stats for number, stats in found.items() if stats}

    def found(self, stats: Iterable[Any], uses: Mapping[int, str]) -> dict[str, Any]:
        """Return the statistics of interest by name."""
        return {use: stat for stat in stats if (use := uses.get(stat.metadata_id))}

    def text(self, stat: Any) -> str:
        """Return the text of a statistic, which may stand among the names of statistics; empty if it has none."""
        reference = stat.ref_value
        return self._texts.get(reference, "") if reference else decode(stat.str_value)

    def properties(self) -> dict[str, str | int | float]:
        """Return the statistics of the plane itself: those of a device are its properties."""
        return {self._texts.get(stat.metadata_id, ""): self._value(stat) for stat in self.message.stats}

    def _value(self, stat: Any) -> str | int | float:
        return self.text(stat) or whole(stat) or float(stat.double_value) or 0
