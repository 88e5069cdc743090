"""Sentences for the notes of a profile, `Profile.meta["notes"]`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import Final

__all__ = ["counted", "listed", "sentences"]

_NOUN: Final = re.compile(r"\{([^{}]+)\}")
_MOST_NAMED: Final = 3


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, the singular of a noun with a regular plural.

    Example:
        >>> counted(1, "copy"), counted(1234, "copy"), counted(2, "graph launch"), counted(3, "replay")
        ('1 copy', '1,234 copies', '2 graph launches', '3 replays')
    """
    if number == 1:
        return f"1 {noun}"
    if re.search(r"[^aeiou]y$", noun):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def listed(names: Collection[str]) -> str:
    """Return names, separated by commas. A long list ends with the number of the other names.

    Example:
        >>> listed(["a.json", "b.json"]), listed([f"{number}.json" for number in range(9)])
        ('a.json, b.json', '0.json, 1.json, 2.json and 6 more')
    """
    shown = ", ".join(islice(names, _MOST_NAMED))
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED:,} more"


def sentences(notes: Counter[str]) -> list[str]:
    """Return the notes that apply. The first noun in braces gets the count of the note.

    Example:
        >>> sentences(Counter({"annot skipped {range} without a thread.": 2, "annot skipped {invalid event}.": 0}))
        ['annot skipped 2 ranges without a thread.']
    """
    matches = ((text, number, _NOUN.search(text)) for text, number in notes.items() if number)
    return [text.replace(noun[0], counted(number, noun[1]), 1) if noun else text for text, number, noun in matches]
