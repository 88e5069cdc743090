"""Numbered names: ``Linear``, ``Linear#2`` and so on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Numbered", "numbered"]


def numbered(name: str, number: int) -> str:
    """Return a name with a number. The number 1 is left out."""
    return name if number == 1 else f"{name}#{number}"


@dataclass(slots=True)
class _Numbers:
    """Free numbers of one name: `freed`, in ascending order, and all from `next` on."""

    next: int = 1
    freed: list[int] = field(default_factory=list)


class Numbered:
    """Allocator of the lowest free number of a name. It does not test all numbers in use.

    Args:
        taken: returns whether a numbered name is in use.
    """

    def __init__(self, taken: Callable[[str], bool]) -> None:
        self._taken = taken
        self._of: dict[str, _Numbers] = {}

    def lowest(self, name: str) -> str:
        """Return the numbered name with the lowest number that is free."""
        numbers = self._of.setdefault(name, _Numbers())
        while self._taken(found := numbered(name, numbers.freed[0] if numbers.freed else numbers.next)):
            if numbers.freed:
                del numbers.freed[0]
            else:
                numbers.next += 1
        return found

    def free(self, name: str) -> None:
        """Release a numbered name."""
        plain, sign, number = name.rpartition("#")
        for numbers, freed in ((self._of.get(name), "1"), (self._of.get(plain) if sign else None, number)):
            if numbers is not None and freed.isdecimal() and int(freed) < numbers.next:
                index = bisect_left(numbers.freed, int(freed))
                if numbers.freed[index : index + 1] != [int(freed)]:
                    numbers.freed.insert(index, int(freed))

    def clear(self) -> None:
        """Forget all names."""
        self._of.clear()
