"""Texts that readers parse and write: encodings, localised numbers, time units, and sentences for the notes.

Users redirect the CSV output of NVIDIA's profilers from a terminal to a file. A Windows shell adds a byte order mark or
writes UTF-16, and lines of the profiled program and of the profiler stand between the rows.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Collection
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Final

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_NUMBER: Final = re.compile(r"[-+]?[0-9][0-9.,'\u00a0\u202f]*(?:e[-+]?[0-9]{1,3})?|[-+]?\.[0-9]+", re.IGNORECASE)
_GROUPED: Final = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_GROUPED_BY_DOTS: Final = re.compile(r"[-+]?[0-9]{1,3}(?:(?:\.[0-9]{3})+,[0-9]*|(?:\.[0-9]{3}){2,})")

_LATEST: Final = 1 << 62  # ns; the sum of two such times fits in 64 bits
_SYMBOLS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NANOSECONDS: Final = _SYMBOLS | {f"{symbol}econd": ns for symbol, ns in _SYMBOLS.items()}

_NOUN: Final = re.compile(r"\{([^{}]+)\}")
_MOST_NAMED: Final = 3


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8 or UTF-16, with line feeds as line ends."""
    return decoded(path.read_bytes())


def decoded(data: bytes) -> str:
    """Return UTF-8 text, or UTF-16 text after a byte order mark. Invalid bytes become U+FFFD."""
    text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8-sig", "replace")
    return text.replace("\r\n", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}")


def split_line(line: str, delimiter: str = ",") -> list[str]:
    """Return the fields of one line, or an empty list if the line is not CSV."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a field above csv.field_size_limit, or a bare carriage return
        return []


def integer(text: str) -> int | None:
    """Return the integer in a text of fewer than 19 digits, or None for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def number(text: str) -> float | None:
    """Return the finite number in a text, or None for any other text.

    The profilers format numbers in the locale of the profiled program. In an ambiguous text, a comma separates
    thousands and a point separates decimals.

    Example:
        >>> number("1,234.5"), number("1.234,5"), number("0,25"), number("1,024"), number("nan")
        (1234.5, 1234.5, 0.25, 1024.0, None)
    """
    plain = _plain(text)
    if plain is None:
        return None
    value = float(plain)
    return value if math.isfinite(value) else None


def nanoseconds(text: str, unit: str) -> int | None:
    """Return a time in ns, or None if the text is not a number or the unit is not a unit of time.

    Units are "ns", "us", "ms", "s", or a long form such as "usecond".

    Example:
        >>> nanoseconds("35863.518000", "us"), nanoseconds("1,5", "msecond"), nanoseconds("3", "byte")
        (35863518, 1500000, None)
    """
    plain, factor = _plain(text), _NANOSECONDS.get(unit.strip())
    if plain is None or factor is None:
        return None
    exact = Decimal(plain) * factor
    return round(exact) if abs(exact) < _LATEST else None


def _plain(text: str) -> str | None:
    text = text.strip()
    if len(text) > 64 or not _NUMBER.fullmatch(text):
        return None
    text = re.sub("['\u00a0\u202f]", "", text)
    if _GROUPED.fullmatch(text):
        return text.replace(",", "")
    if _GROUPED_BY_DOTS.fullmatch(text):
        text = text.replace(".", "")
    text = text.replace(",", ".", 1)
    return text if "," not in text and text.count(".") < 2 else None


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
