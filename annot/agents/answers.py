"""Answers in JSON that fit into the context of a language model, and say what was cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

LONGEST: Final = 8_000
"""Maximum length of an answer in characters, about 2,000 tokens."""
_LONGEST_KEY: Final = 1_000
"""Maximum length of a text in a key. It does not depend on the rest of the answer, so that keys stay the same."""
_REST: Final = 200
"""Characters of the notes about cut rows."""


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of a long answer stays.

    Args:
        text: maximum length of texts.
        items: maximum number of items of a list.
    """

    text: int
    items: int


_ROOMS: Final = (_Room(1_000, 8), _Room(200, 8), _Room(200, 3), _Room(40, 1))
"""What stays of texts and lists, until all facts and a row fit."""


def answer(
    facts: Mapping[str, Any],
    rows: Sequence[Any] | None = None,
    *,
    name: str = "rows",
    first: int = 0,
    total: int | None = None,
    keys: Collection[str] = (),
) -> str:
    """Return an answer with as many rows as fit.

    Args:
        facts: what the answer says beside the rows.
        rows: the rows from `first`; None: the answer has no rows. Their unknown values and empty lists are left out.
        name: key of the rows.
        first: number of rows before these.
        total: number of all rows, of which `next_cursor` gets more; None: `rows` has all.
        keys: names of the values that identify a row.

    Raises:
        ValueError: the facts or the first row do not fit.

    Example:
        >>> answer({"unit": "ns"}, [{"layer": "fc", "gpu_ns": 5, "flops": None}])
        '{"unit":"ns","rows":[{"layer":"fc","gpu_ns":5}]}'
    """
    left = 0 if rows is None else (len(rows) if total is None else total - first)
    for room in (_Room(LONGEST, LONGEST), *_ROOMS):
        head = _text(_cut(facts, room, keys))
        texts = [_text(_known(_cut(row, room, keys))) for row in rows or ()]
        sizes = accumulate((len(text) + 1 for text in texts), initial=len(head) + _REST)
        kept = sum(size <= LONGEST for size in sizes) - 1
        if kept == len(texts) or (room in _ROOMS and kept >= min(1, len(texts))):
            break
    else:
        raise ValueError("the answer is too long: ask for fewer columns")
    if rows is None:
        return head
    more = f',"left_out_rows":{left - kept}' if left > kept else ""
    more += f',"next_cursor":{first + kept}' if left > kept and total is not None else ""
    return f"{head[:-1]}{',' if facts else ''}{_text(name)}:[{','.join(texts[:kept])}]{more}}}"


def overview(facts: Mapping[str, Any], lists: Mapping[str, Sequence[Any]], more: str, keys: Collection[str]) -> str:
    """Return an answer with the beginning of several lists of rows.

    Args:
        facts: what the answer says beside the lists.
        lists: the lists by name. Unknown values and empty lists in their rows are left out.
        more: the call for the rest of a list, in which ``{cursor}`` stands for the number of rows that are there.
        keys: names of the values that identify a row.

    Raises:
        ValueError: the facts and the first row of each list do not fit.
    """
    for room in (_Room(1_000, 20), _Room(1_000, 12), *_ROOMS):
        shown = {name: [_known(row) for row in rows[: room.items]] for name, rows in lists.items()}
        left = {name: len(rows) - room.items for name, rows in lists.items() if len(rows) > room.items}
        rest = {"left_out_rows": left, "next": more.format(cursor=room.items)} if left else {}
        text = _text(_cut({**facts, **shown, **rest}, room, keys))
        if len(text) <= LONGEST:
            return text
    raise ValueError("the answer is too long: ask for one part")


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace").decode()  # half of a surrogate pair stays an escape of JSON


def _known(row: Any) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if value is not None and value != []}


def cut_key(text: str) -> str:
    """Return a text of a key as answers have it: cut if it is very long, with a checksum that makes it unique."""
    if len(text) <= _LONGEST_KEY:
        return text
    checksum = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[:_LONGEST_KEY]}… ({len(text) - _LONGEST_KEY:,} more characters were cut: {checksum})"


def _cut(value: Any, room: _Room, keys: Collection[str]) -> Any:
    """A value with long texts and lists cut, which then say so."""
    if isinstance(value, str) and len(value) > room.text:
        return f"{value[: room.text]}… ({len(value) - room.text:,} more characters were cut)"
    if isinstance(value, Mapping):
        return {
            name: cut_key(item) if name in keys and isinstance(item, str) else _cut(item, room, keys)
            for name, item in value.items()
        }
    if isinstance(value, list):
        more = [f"… ({len(value) - room.items:,} more were cut)"] if len(value) > room.items else []
        return [*(_cut(item, room, keys) for item in value[: room.items]), *more]
    return value
