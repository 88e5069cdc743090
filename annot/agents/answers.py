"""Answers in JSON that fit into the context of a language model, and say what was cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

LONGEST: Final = 8_000
"""Maximum length of an answer in characters, about 2,000 tokens."""
_TEXTS: Final = (1_000, 200, 40)
"""Maximum lengths of texts in an answer. The shorter ones apply if a row does not fit."""
_ITEMS: Final = 8
"""Maximum number of items of a list inside a row."""
_REST: Final = 200
"""Characters of the notes about cut rows."""


def answer(
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    name: str = "rows",
    first: int = 0,
    total: int | None = None,
) -> str:
    """Return an answer with as many rows as fit.

    Args:
        facts: what the answer says beside the rows.
        rows: the rows from `first`; None: the answer has no rows. Their unknown values and empty lists are left out.
        name: key of the rows.
        first: number of rows before these.
        total: number of all rows, of which `next_cursor` gets more; None: `rows` has all.

    Raises:
        ValueError: the facts or the first row do not fit.

    Example:
        >>> answer({"unit": "ns"}, [{"layer": "fc", "gpu_ns": 5, "flops": None}])
        '{"unit":"ns","rows":[{"layer":"fc","gpu_ns":5}]}'
    """
    for most in _TEXTS:
        head, texts = _text(_cut(facts, most)), [_text(_known(_cut(row, most))) for row in rows or ()]
        sizes = accumulate((len(text) + 1 for text in texts), initial=len(head) + _REST)
        kept = sum(size <= LONGEST for size in sizes) - 1
        if kept >= min(1, len(texts)):
            break
    else:
        raise ValueError("the answer is too long: ask for fewer columns")
    if rows is None:
        return head
    left = (len(texts) if total is None else total - first) - kept
    more = f',"left_out_rows":{left}' if left else ""
    more += f',"next_cursor":{first + kept}' if left and total is not None else ""
    return f"{head[:-1]}{',' if facts else ''}{_text(name)}:[{','.join(texts[:kept])}]{more}}}"


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace").decode()  # half of a surrogate pair stays an escape of JSON


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and value != []}


def _cut(value: Any, most: int) -> Any:
    """A value with long texts and lists cut, which then say so."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}… ({len(value) - most:,} more characters were cut)"
    if isinstance(value, Mapping):
        return {name: _cut(item, most) for name, item in value.items()}
    if isinstance(value, list):
        more = [f"… ({len(value) - _ITEMS:,} more were cut)"] if len(value) > _ITEMS else []
        return [*(_cut(item, most) for item in value[:_ITEMS]), *more]
    return value
