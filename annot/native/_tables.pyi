"""Read SQLite tables and process their columns.

Arguments and results are Arrow columns: Int32 or Int64 unless stated otherwise. Row -1 means "no row".
"""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, Protocol, Self, TypeAlias, final

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self) -> object: ...

_Column: TypeAlias = _ArrowStream
"""A column of an Arrow library in one chunk, such as `polars.Series.rechunk`."""

_Kind: TypeAlias = Literal["integer", "alias", "text"]
"""Kind of an SQLite column; "alias" is an INTEGER PRIMARY KEY."""

@final
class Column:
    """Column for Arrow libraries such as polars."""

    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the schema and the array as capsules (Arrow PyCapsule interface)."""

class Unsupported(Exception):  # noqa: N818
    """The file is valid but must be read through SQLite."""

@final
class Scan:
    """Iterator over batches of rows of an SQLite table, each a dict of columns (Int64 or text) by name.

    Args:
        path: the SQLite file.
        root: first page of the table.
        columns: (name, index in the table, kind) of each column; index -1 is the rowid.
        batch_rows: rows per batch, from 1 to 2^26.
        filter: (index, kind, values) reads only rows with one of the values.

    Raises:
        ValueError: an argument is invalid or the file is damaged.
        Unsupported: the file must be read through SQLite.
    """

    def __new__(
        cls,
        path: str | bytes | PathLike[str] | PathLike[bytes],
        root: int,
        columns: Sequence[tuple[str, int, _Kind]],
        batch_rows: int,
        filter: tuple[int, Literal["integer", "alias"], Sequence[int]] | None = None,  # noqa: A002
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Column]: ...

@final
class Tree:
    """Sorted ranges that nest: thread (Int32), start and end (Int64), parent (Int32)."""

    def __new__(cls, thread: _Column, start: _Column, end: _Column, parent: _Column, /) -> Self: ...
    def owners(self, thread: _Column, start: _Column, end: _Column, /) -> Column:
        """Return the row of the innermost range around each call (Int32), or -1."""

@final
class LaunchTable:
    """Value and step of each launch, by process and correlation id."""

    def __new__(cls) -> Self: ...
    def put(self, process: _Column, correlation: _Column, value: _Column, step: _Column, /) -> int:
        """Store launches (Int32, Int64, Int32, Int32). Return how many ids were known; their first launch is kept."""

    def get(self, process: _Column, correlation: _Column, /) -> tuple[Column, Column]:
        """Return the values and the steps (Int32) of launches; -2^31 for unknown ids."""

@final
class Busy:
    """Busy time of each device by key; parallel activities count once."""

    def __new__(cls, node_parent: _Column, node_key: _Column, keys: int) -> Self: ...
    def add(self, node: _Column, device: _Column, start: _Column, end: _Column, /) -> bool:
        """Add GPU activities (Int32, Int32, Int64, Int64). Return whether their starts ascend."""

    def result(self) -> tuple[Column, Column, Column, Column, Column]:
        """Return columns with a row per key and device: key, device, busy_ns, first_ns, last_ns."""

def crossing(thread: _Column, start: _Column, end: _Column, weight: _Column, foreign: _Column, /) -> Column:
    """Return which ranges (Boolean) to leave out so that the others nest; `foreign` (Boolean) is left out always."""

def parents(thread: _Column, end: _Column, /) -> tuple[Column, Column]:
    """Return the parent row and the depth (Int32) of ranges that nest."""

def paths(parent: _Column, key: _Column, /) -> tuple[Column, Column, Column]:
    """Return the trie of the chains of keys (Int32): node of each row, parent and key of each node."""

def enclosing(start: _Column, end: _Column, key: _Column, above: _Column, /) -> Column:
    """Return the row of the shortest range around each one (Int32), or -1."""

def innermost(
    start: _Column, end: _Column, thread: _Column, parent: _Column, by_end: _Column, /
) -> tuple[Column, Column, Column, Column]:
    """Return the number of innermost ranges at each moment, and the thread, moment (Int64) and row of each change."""
