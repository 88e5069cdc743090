"""Names that are made up: ``Linear``, ``Linear#2`` and so on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Numbered", "numbered"]


def numbered(name: str, number: int) -> str:
    """Return a name with a number, which the first one does not show."""
    return name if number == 1 else f"{name}#{number}"


@dataclass(slots=True)
class _Numbers:
    """The numbers from `next` on have not been given, and `freed`, in order, not any more."""

    next: int = 1
    freed: list[int] = field(default_factory=list)


class Numbered:
    """The lowest free number of a name, without a look at all that are taken.

    Args:
        taken: returns whether somebody has a numbered name.
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
        """Note that nobody has a numbered name any more."""
        plain, sign, number = name.rpartition("#")
        for numbers, freed in ((self._of.get(name), "1"), (self._of.get(plain) if sign else None, number)):
            if numbers is not None and freed.isdecimal() and int(freed) < numbers.next:
                place = bisect_left(numbers.freed, int(freed))
                if numbers.freed[place : place + 1] != [int(freed)]:
                    numbers.freed.insert(place, int(freed))

    def clear(self) -> None:
        """Forget all names."""
        self._of.clear()
