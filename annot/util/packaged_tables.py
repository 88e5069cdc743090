"""Tables in TOML that are files of the package."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def packaged_table(package: str, name: str, kind: type[T], decode: Callable[[Any], Any] | None = None) -> T:
    """Return the contents of a file.

    Args:
        package: the package that has the file.
        name: its name.
        kind: type of the contents.
        decode: makes objects of types that TOML lacks, such as patterns; None: there are none.
    """
    hook = None if decode is None else lambda _, value: decode(value)
    return msgspec.toml.decode((files(package) / name).read_bytes(), type=kind, dec_hook=hook)
