"""A plane of an XPlane file, with access to the names of its events and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["LIMIT", "Plane", "decode", "integer"]

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
        self._texts = {entry.key: decode(entry.value.name) for entry in message.stat_metadata}

    def stat_names(self, names: Iterable[str]) -> dict[int, str]:
        """Return the existing statistics with these names: lower-case names by metadata id."""
        selected = frozenset(names)
        return {number: text.lower() for number, text in self._texts.items() if text.lower() in selected}

    def constants(self, stat_names: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Return the selected statistics of the event metadata, by event metadata id."""
        found = {entry.key: self.found(entry.value.stats, stat_names) for entry in self.message.event_metadata}
        return {number: stats for number, stats in found.items() if stats}

    def found(self, stats: Iterable[Any], stat_names: Mapping[int, str]) -> dict[str, Any]:
        """Return the selected statistics by name."""
        return {name: stat for stat in stats if (name := stat_names.get(stat.metadata_id))}

    def text(self, stat: Any) -> str:
        """Return the text of a statistic, or "". The text can be a reference to the name of another statistic."""
        reference = stat.ref_value
        return self._texts.get(reference, "") if reference else decode(stat.str_value)

    def properties(self) -> dict[str, str | int | float]:
        """Return the statistics of the plane itself, such as the properties of a device."""
        return {self._texts.get(stat.metadata_id, ""): self._value(stat) for stat in self.message.stats}

    def _value(self, stat: Any) -> str | int | float:
        return self.text(stat) or integer(stat) or float(stat.double_value) or 0
