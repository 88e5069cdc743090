"""Numbered names: ``Linear``, ``Linear#2`` and so on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

__all__ = ["Numbered", "numbered"]


def numbered(name: str, number: int) -> str:
    """Return a name with a number. The number 1 is left out."""
    return name if number == 1 else f"{name}#{number}"


class Numbered:
    """Allocator of the lowest free number of a name. It does not test all numbers in use.

    Args:
        taken: returns whether a numbered name is in use.
    """

    def __init__(self, taken: Callable[[str], bool]) -> None:
        self._taken = taken
        self._free: dict[str, list[int]] = {}  # ascending numbers by name; all from the last one on are free

    def lowest(self, name: str) -> str:
        """Return the numbered name with the lowest number that is free."""
        free = self._free.setdefault(name, [1])
        while self._taken(found := numbered(name, free[0])):
            if len(free) == 1:
                free.append(free[0] + 1)
            del free[0]
        return found

    def free(self, name: str) -> None:
        """Release a numbered name."""
        plain, sign, number = name.rpartition("#")
        for free, freed in ((self._free.get(name), "1"), (self._free.get(plain) if sign else None, number)):
            if free is not None and freed.isdecimal() and int(freed) < free[-1]:
                index = bisect_left(free, int(freed))
                if free[index] != int(freed):
                    free.insert(index, int(freed))

    def clear(self) -> None:
        """Forget all names."""
        self._free.clear()
