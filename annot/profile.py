"""The tables that every later stage works on, whatever format a profile came from.

Times are integer nanoseconds on one clock per file; they may be negative. `process` and `thread` are opaque
numbers: equal means the same process or thread, and a thread number belongs to one process only. A column
that a format does not know is null.

`meta` is a plain dictionary; every reader sets

    source    str         the file, as the user named it
    format    str         the reader's name, such as "nsys_sqlite"
    producer  str         what wrote the file, with its version; empty if the file does not say
    notes     list[str]   what was lost, cut or not understood: one sentence each, shown in every report

and, where it differs from the default,

    host_times  bool      false: the file knows no times on the host; those of ranges and launches are only an
                          order (0, 1, 2, ...), from which nothing but "lies in" and "comes before" follows
    devices       list[dict]  a GPU each, with the file's own names and units
    processes     list[dict]  process, pid and name of those in the profile; rank and world_size of those that say them
    scopes        list[str]   what annot's marks say of the name scopes of layers; see `annot.scope_text`
    utc_start_ns  int         time 0 of the profile, in ns since 1970
    analysis_start_ns  int    when Nsight Systems began to collect (ns): what its tools call relative times count from
    rank        int       number of the process among those that train together, if the profile is of one only
    world_size  int       how many train together
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import polars as pl

__all__ = [
    "COPIES",
    "KERNELS",
    "LATEST",
    "LAUNCHES",
    "MARKS",
    "METRICS",
    "RANGES",
    "ROLES",
    "WORK",
    "Profile",
    "Schema",
    "Source",
    "conform",
    "copies_as_work",
    "kernels_as_work",
    "pick",
]

Schema: TypeAlias = Mapping[str, type[pl.DataType]]

LATEST: Final = 1 << 61
"""No clock of a profile shows more, in ns, nor less than its negative: all differences of times fit into 64 bits."""

RANGES: Final[Schema] = {
    "id": pl.Int64,  # unique in the table; breaks ties between ranges that start and end together
    "process": pl.Int64,
    "thread": pl.Int64,  # where it began
    "end_thread": pl.Int64,  # where it ended, if that is another thread; else null
    "domain": pl.String,  # "" is NVTX's default domain
    "category": pl.String,  # "" is none
    "text": pl.String,
    "kind": pl.String,  # "push": pushed and popped; "start": started and ended, which may cross others
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns; null: still open when the capture ended
    "payload": pl.String,  # the number as decimal text, so that 64 bits stay exact
    "color": pl.Int64,  # 0xAARRGGBB
    "role": pl.String,  # null: what the range is stands in its text; else see `annot.profile.ROLES`
    "sequence": pl.Int64,  # autograd's number of the operation; a backward operation bears that of its forward one
    "forward_thread": pl.Int64,  # of a backward operation: the thread of its forward one; null: not known
}
"""Annotated stretches of host time."""

ROLES: Final = ("annotation", "module", "operator", "backward")
"""What a range can be: somebody's annotation, or recorded by the framework itself: a call of a module (`text`
is its path or class), an operation, an operation of the backward pass. Operations are no layers: what they
launch belongs to the layer around them, that of a backward operation to the layer of its forward one."""

MARKS: Final[Schema] = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "domain": pl.String,
    "category": pl.String,
    "text": pl.String,
    "start": pl.Int64,  # ns
    "payload": pl.String,  # as that of a range
}
"""Annotated instants."""

LAUNCHES: Final[Schema] = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "correlation": pl.Int64,  # unique per process only
    "name": pl.String,
}
"""API calls on the host that can lead to work on a device."""

_ORIGIN: Final[Schema] = {
    "origin_thread": pl.Int64,
    "origin_start": pl.Int64,  # ns
}
"""The host instant to which work belongs, where that is not its launch: when it was captured into a CUDA
graph, or the operation that the file names as its cause. Null: the launch decides."""

KERNELS: Final[Schema] = {
    "process": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "correlation": pl.Int64,  # null: the launch is not known
    "name": pl.String,
    **_ORIGIN,
}
"""Kernels on a device; also a CUDA graph that was traced as one piece."""

COPIES: Final[Schema] = {
    "process": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "correlation": pl.Int64,
    "kind": pl.String,  # "HtoD", "DtoH", "DtoD", ..., "memset"
    "bytes": pl.Int64,
    **_ORIGIN,
}
"""Copies and sets of memory by a device."""

WORK: Final[Schema] = {
    **{name: dtype for name, dtype in KERNELS.items() if name not in _ORIGIN},
    "kernel": pl.Boolean,  # false: a copy or set, whose name says its kind in parentheses
    **_ORIGIN,
}
"""All that ran on a device: kernels, copies and sets in one table."""

METRICS: Final[Schema] = {
    "kernel": pl.Int64,  # row of the table of kernels, from 0
    "name": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
}
"""Hardware counters of single kernels."""


class Source(Protocol):
    """What the correlator reads: a `Profile`, or a file too large for memory that is read in blocks.

    Columns of blocks may be left out where all is null, and texts may be `pl.Categorical` or `pl.Enum`.
    """

    @property
    def meta(self) -> dict[str, Any]:
        """Where the profile comes from, as above."""

    @property
    def marks(self) -> pl.DataFrame:
        """The marks, as `MARKS`; those that say nothing of layers may be left out."""

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all ranges, as `RANGES`; each call of this function starts anew."""

    def last_launch(self) -> int | None:
        """Return when the last API call ended (ns), None if there was none."""

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all API calls, as `LAUNCHES`; each call of this function starts anew."""

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all that ran on devices, as `WORK`, by start as far as the file is in order; each call starts anew."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One recorded run as tables.

    Args:
        ranges: a row per range, as `RANGES`.
        marks: a row per mark, as `MARKS`.
        launches: a row per API call, as `LAUNCHES`.
        kernels: a row per kernel, as `KERNELS`.
        copies: a row per copy or set of memory, as `COPIES`.
        metrics: a row per kernel and counter, as `METRICS`.
        meta: where the profile comes from and what is wrong with it; the keys stand above.
    """

    ranges: pl.DataFrame
    marks: pl.DataFrame
    launches: pl.DataFrame
    kernels: pl.DataFrame
    copies: pl.DataFrame
    metrics: pl.DataFrame
    meta: dict[str, Any]

    @classmethod
    def build(
        cls,
        meta: dict[str, Any],
        *,
        ranges: pl.DataFrame | None = None,
        marks: pl.DataFrame | None = None,
        launches: pl.DataFrame | None = None,
        kernels: pl.DataFrame | None = None,
        copies: pl.DataFrame | None = None,
        metrics: pl.DataFrame | None = None,
    ) -> Profile:
        """Return a profile of the given tables; what is not given is empty, what a table lacks is null.

        Raises:
            TypeError: a column is not of the type that its schema says.
            ValueError: a table has a column that its schema does not know.

        Example:
            >>> kernel = {"process": 1, "start": 10, "end": 25, "correlation": 7, "name": "gemm"}
            >>> profile = Profile.build({"source": "by hand"}, kernels=pl.DataFrame([kernel]))
            >>> profile.kernels.columns
            ['process', 'device', 'stream', 'start', 'end', 'correlation', 'name']
            >>> profile.ranges.height
            0
        """
        return cls(
            conform(ranges, RANGES),
            conform(marks, MARKS),
            conform(launches, LAUNCHES),
            conform(kernels, KERNELS),
            conform(copies, COPIES),
            conform(metrics, METRICS),
            {"source": "", "format": "", "producer": "", "notes": []} | meta,
        )

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the table of ranges; see `Source`."""
        yield self.ranges

    def last_launch(self) -> int | None:
        """Return when the last API call ended; see `Source`."""
        return max(self.launches["end"].top_k(1), default=None)

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the table of API calls; see `Source`."""
        yield self.launches

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield kernels, copies and sets as one table, by start; see `Source`."""
        yield pl.concat([kernels_as_work(self.kernels), copies_as_work(self.copies)]).sort("start", maintain_order=True)


def kernels_as_work(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `KERNELS` as rows of `WORK`."""
    return kernels.with_columns(kernel=pl.lit(True)).select(list(WORK))


def copies_as_work(copies: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `COPIES` as rows of `WORK`: ``(copy HtoD)``, ``(memset)``."""
    kind = pl.col("kind")
    name = pl.format("({})", pl.when(kind == "memset").then(kind).otherwise(pl.format("copy {}", kind)))
    return copies.with_columns(name.alias("name"), kernel=pl.lit(False)).select(list(WORK))


def conform(table: pl.DataFrame | None, schema: Schema) -> pl.DataFrame:
    """Return the table with exactly the columns of the schema, in its order; see `Profile.build`."""
    if table is None:
        return pl.DataFrame(schema=dict(schema))
    unknown = [name for name in table.columns if name not in schema]
    if unknown:
        raise ValueError(f"columns must be among {', '.join(schema)}, got {', '.join(unknown)}")
    for name, dtype in table.schema.items():
        if dtype not in (schema[name], pl.Null):
            raise TypeError(f"column {name} must be {schema[name].__name__}, got {dtype}")
    return table.select(
        pl.col(name).cast(dtype) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )


def pick(table: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Return the columns of the schema, whatever else the table has; see `Profile.build`."""
    return conform(table.select(name for name in schema if name in table.columns), schema)
