"""Tables of a profile, the common result of all readers, independent of the file format.

Times are integers in ns on one clock per file and may be negative. `process` and `thread` are opaque numbers. Equal
numbers mean the same process or thread, and a thread number belongs to one process only. Columns that a format lacks
are null.

`meta` is a dictionary. Every reader sets

    source    str         the file, as named by the user
    format    str         name of the reader, such as "nsys_sqlite"
    producer  str         tool that wrote the file, with its version; empty if unknown
    notes     list[str]   sentences about lost, cut or unsupported data, shown in every report

and, if it differs from the default,

    host_times  bool          false: the file lacks host times, and the times of ranges and launches are only an order
                              (0, 1, 2, ...)
    totals      bool          true: the file has totals instead of a timeline. A range or a kernel stands for all its
                              calls, and the kernels follow each other without a gap
    devices       list[dict]  a dictionary per GPU, with the names and units of the file
    other_devices  dict[str, int]  number of skipped events by device that annot does not support, as {"MTIA": 12}
    software      dict        versions by name, such as {"CUDA": "12.4"}
    cpu           str         model of the CPU
    processes     list[dict]  process, pid and name of each process; rank, world_size and cpu (threads, cores, ranks,
                              backend; see `annot.labels.marks`) and loaders (a dictionary per DataLoader: workers,
                              persistent, pinned; dataset and source) if known
    sources       dict[str, str]  file and line of module classes or of their `forward`, as "model.py:12, net.py:7"
    scopes        list[str]   texts of scope marks; see `annot.labels.marks`
    works         list[str]   texts of marks about the work of operators; see `annot.labels.marks`
    program       dict        command, folder and script of `annot run`; see `annot.util.program.Program.facts`
    utc_start_ns  int         time 0 of the profile, in ns since 1970
    analysis_start_ns  int    start of the collection (ns), the zero of relative times in Nsight Systems
    rank        int           rank of the process, if the profile has only one rank
    world_size  int           number of ranks
    cut         str           sentence about events that the profiler could not write, shown above the verdict
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "pick_all",
    "pinned_memory",
]

Schema: TypeAlias = Mapping[str, type[pl.DataType]]
Rows: TypeAlias = pl.DataFrame | Sequence[Mapping[str, Any] | tuple[Any, ...]]
"""A table, or its rows: dictionaries of columns, or values of all columns in the order of the schema."""

LATEST: Final = 1 << 61
"""Limit of the absolute value of times (ns), so that all differences fit into 64 bits."""

RANGES: Final[Schema] = {
    "id": pl.Int64,  # unique in the table; breaks ties between ranges that start and end together
    "process": pl.Int64,
    "thread": pl.Int64,  # thread of the start
    "end_thread": pl.Int64,  # thread of the end, if it differs; otherwise null
    "domain": pl.String,  # "" is NVTX's default domain
    "category": pl.String,  # "" means uncategorized
    "text": pl.String,
    "kind": pl.String,  # "push": push/pop range; "start": start/end range, which may cross others
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns; null: still open at the end of the capture
    "payload": pl.String,  # decimal text, so that 64-bit integers stay exact
    "color": pl.Int64,  # 0xAARRGGBB
    "role": pl.String,  # one of `annot.profile.ROLES`; null: determined by the text
    "sequence": pl.Int64,  # autograd's sequence number; the same for a backward and its forward operation
    "forward_thread": pl.Int64,  # thread of the forward operation of a backward operation; null: unknown
    "call": pl.String,  # an operation with its inputs as in `annot.labels.tag` ("aten mm [2,3]f32 [3,4]f32 |op")
}
"""NVTX ranges and ranges of frameworks, on the host."""

ROLES: Final = ("annotation", "module", "operator", "backward")
"""Roles of ranges: an annotation, or one of the ranges that a framework records: a call of a module (`text` is its path
or class), an operation, or an operation of the backward pass. The launches of an operation belong to the layer around
it, those of a backward operation to the layer of its forward operation."""

MARKS: Final[Schema] = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "domain": pl.String,
    "category": pl.String,
    "text": pl.String,
    "start": pl.Int64,  # ns
    "payload": pl.String,  # see `RANGES`
}
"""NVTX marks."""

LAUNCHES: Final[Schema] = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "correlation": pl.Int64,  # unique per process only
    "name": pl.String,
    "kernel": pl.String,  # name of the kernel that the call launches; null: unknown
    "grid": pl.String,  # sizes of the grid and of a block, "32,2,1 256,1,1"; null: unknown
}
"""API calls on the host that can launch GPU activities."""

_ORIGIN: Final[Schema] = {
    "origin_thread": pl.Int64,
    "origin_start": pl.Int64,  # ns
}
"""Host thread and time that determine the layer of a GPU activity instead of its launch: its capture into a CUDA graph,
or the operation that the file records as its cause. Null: the launch determines the layer. The thread is one of
`Profile.ranges` or of `Profile.captured`."""

_ACTIVITY: Final[Schema] = {
    "process": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "start": pl.Int64,  # ns
    "end": pl.Int64,  # ns
    "correlation": pl.Int64,  # null: unknown launch
}

KERNELS: Final[Schema] = {
    **_ACTIVITY,
    "name": pl.String,
    "grid": pl.String,  # see `LAUNCHES`
    **_ORIGIN,
}
"""Kernels on a device. A CUDA graph that was traced as a whole is one kernel."""

COPIES: Final[Schema] = {
    **_ACTIVITY,
    "kind": pl.String,  # "HtoD", "DtoH", "DtoD", ..., "memset"
    "bytes": pl.Int64,
    "pinned": pl.Boolean,  # whether the host memory of a copy is pinned (false: pageable); null: unknown, or no copy
    **_ORIGIN,
}
"""Copies and memsets on a device."""

WORK: Final[Schema] = {
    **{name: dtype for name, dtype in KERNELS.items() if name not in ("grid", *_ORIGIN)},
    "kernel": pl.Boolean,  # false: a copy or memset, whose name is its kind in parentheses
    "pinned": pl.Boolean,  # see `COPIES`
    **_ORIGIN,
}
"""GPU activities: kernels, copies and memsets."""

METRICS: Final[Schema] = {
    "kernel": pl.Int64,  # row of the table of kernels, from 0
    "name": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
}
"""Hardware counters of individual kernels."""


_SCHEMAS: Final = {
    "ranges": RANGES,
    "marks": MARKS,
    "launches": LAUNCHES,
    "kernels": KERNELS,
    "copies": COPIES,
    "metrics": METRICS,
    "captured": RANGES,
}


class Source(Protocol):
    """Input of the attribution: a `Profile`, or a file larger than memory that is read in blocks.

    Blocks may omit columns that are entirely null. String columns may be `pl.Categorical` or `pl.Enum`.
    """

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata; the module docstring lists the keys."""

    @property
    def marks(self) -> pl.DataFrame:
        """Rows of `MARKS`. Marks unrelated to layers may be omitted."""

    @property
    def captured(self) -> pl.DataFrame:
        """Rows of `RANGES`: the ranges in which other profiles captured CUDA graphs.

        Of the other tables, only the column `origin_thread` has their threads.
        """

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all ranges (rows of `RANGES`). Each call starts from the beginning."""

    def last_launch(self) -> int | None:
        """Return the end of the last API call (ns), or None without API calls."""

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all API calls (rows of `LAUNCHES`). Each call starts from the beginning."""

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield all GPU activities (rows of `WORK`), by start if the file is in order.

        Each call starts from the beginning.
        """


@dataclass(frozen=True, slots=True)
class Profile:
    """One recorded run as tables.

    Args:
        ranges: a row per range (`RANGES`).
        marks: a row per mark (`MARKS`).
        launches: a row per API call (`LAUNCHES`).
        kernels: a row per kernel (`KERNELS`).
        copies: a row per copy or memset (`COPIES`).
        metrics: a row per kernel and counter (`METRICS`).
        meta: metadata; the module docstring lists the keys.
        captured: a row per range in which another profile captured a CUDA graph; see `Source`.
    """

    ranges: pl.DataFrame
    marks: pl.DataFrame
    launches: pl.DataFrame
    kernels: pl.DataFrame
    copies: pl.DataFrame
    metrics: pl.DataFrame
    meta: dict[str, Any]
    captured: pl.DataFrame

    @classmethod
    def build(cls, meta: dict[str, Any], **tables: Rows | None) -> Profile:
        """Return a profile with tables as for `Profile`. Missing tables are empty, missing columns are null.

        Args:
            meta: metadata; the module docstring lists the keys.
            tables: tables or rows by name: ranges, marks, launches, kernels, copies, metrics, captured.

        Raises:
            TypeError: the type of a column differs from the schema, or the name of a table is unknown.
            ValueError: a table has a column that is missing from the schema.

        Example:
            >>> kernel = {"process": 1, "start": 10, "end": 25, "correlation": 7, "name": "gemm"}
            >>> profile = Profile.build({"source": "by hand"}, kernels=[kernel])
            >>> profile.kernels.select("name", "start", "device").row(0)
            ('gemm', 10, None)
            >>> profile.ranges.height
            0
        """
        conformed = {name: conform(tables.pop(name, None), schema) for name, schema in _SCHEMAS.items()}
        if tables:
            raise TypeError(f"tables must be among {', '.join(_SCHEMAS)}, got {', '.join(tables)}")
        return cls(meta={"source": "", "format": "", "producer": "", "notes": []} | meta, **conformed)

    def range_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the table of ranges; see `Source`."""
        yield self.ranges

    def last_launch(self) -> int | None:
        """Return the end of the last API call; see `Source`."""
        return max(self.launches["end"].top_k(1), default=None)

    def launch_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield the table of API calls, if it has rows; see `Source`."""
        if self.launches.height:
            yield self.launches

    def work_blocks(self) -> Iterator[pl.DataFrame]:
        """Yield kernels, copies and memsets, if there are any, as one table in order of start; see `Source`."""
        if self.kernels.height or self.copies.height:
            work = [kernels_as_work(self.kernels), copies_as_work(self.copies)]
            yield pl.concat(work).sort("start", maintain_order=True)


def kernels_as_work(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `KERNELS` as rows of `WORK`."""
    return kernels.with_columns(kernel=pl.lit(True), pinned=pl.lit(None, pl.Boolean)).select(list(WORK))


def copies_as_work(copies: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `COPIES` as rows of `WORK`: ``(copy HtoD)``, ``(memset)``."""
    kind = pl.col("kind")
    name = pl.format("({})", pl.when(kind == "memset").then(kind).otherwise(pl.format("copy {}", kind)))
    return copies.with_columns(name.alias("name"), kernel=pl.lit(False)).select(list(WORK))


def pinned_memory(pageable: pl.Expr, pinned: pl.Expr) -> pl.Expr:
    """Return the column `pinned` of `COPIES`: a copy is as slow as the pageable memory on either of its sides.

    Args:
        pageable: whether one side is pageable host memory (Boolean, or null).
        pinned: whether one side is pinned host memory.
    """
    return pl.when(pageable).then(pl.lit(False)).when(pinned).then(pl.lit(True)).alias("pinned")


def conform(table: Rows | None, schema: Schema) -> pl.DataFrame:
    """Return the table with exactly the columns of the schema, in its order.

    Args:
        table: columns of the schema. Missing columns become null.
        schema: names and types of the columns.

    Raises:
        TypeError: the type of a column differs from the schema.
        ValueError: the table has a column that is missing from the schema.
    """
    if not isinstance(table, pl.DataFrame):
        return pl.DataFrame(table, dict(schema), orient="row")
    unknown = [name for name in table.columns if name not in schema]
    if unknown:
        raise ValueError(f"columns must be among {', '.join(schema)}, got {', '.join(unknown)}")
    for name, dtype in table.schema.items():
        coded = schema[name] == pl.String and dtype in (pl.Categorical, pl.Enum)
        if dtype not in (schema[name], pl.Null) and not coded:
            raise TypeError(f"column {name} must be {schema[name].__name__}, got {dtype}")
    return table.select(
        pl.col(name).cast(dtype) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )


def pick(table: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Return the columns of the schema, as `conform`, and drop other columns.

    Raises:
        TypeError: the type of a column differs from the schema.
    """
    return conform(table.select(name for name in schema if name in table.columns), schema)


def pick_all(blocks: Iterable[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    """Return the rows of all blocks, each as `pick` returns it."""
    return pl.concat([conform(None, schema), *(pick(block, schema) for block in blocks)])
