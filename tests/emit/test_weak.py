"""A dict with weak keys."""

from __future__ import annotations

import gc
import sys
from typing import Any

from annot.util.weak_keys import WeakKeys


class Key:
    """Something that a weak reference can refer to."""

    def __init__(self) -> None:
        self.me: Any = None


def test_entries_go_with_their_keys() -> None:
    """Also with those that are garbage; keys are the same if they are one object."""
    known: WeakKeys[Key, int] = WeakKeys()
    keys = [Key() for _ in range(4)]
    for value, key in enumerate(keys):
        known[key] = value
    known[keys[0]] = 7
    assert known.setdefault(keys[1], 8) == 1
    assert [value for _, value in known.items()] == [7, 1, 2, 3]
    assert list(known) == keys
    del known[keys[3]]
    keys[2].me = keys[2]
    del key, keys[1:]
    gc.collect()
    assert (len(known), known.get(keys[0]), known.get(Key()), known.get(Key(), 5)) == (1, 7, None, 5)


def test_no_python_runs_when_a_key_dies() -> None:
    """CPython drops what a signal handler raises there."""
    known: WeakKeys[Key, int] = WeakKeys()
    key = Key()
    known[key] = 1
    seen: list[str] = []
    sys.setprofile(lambda _, event, __: seen.append(event))
    del key
    sys.setprofile(None)
    assert len(known) == 0
    assert "call" not in seen
