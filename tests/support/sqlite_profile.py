"""Writer for small profiles in the SQLite layout of Nsight Systems, for tests of readers and attribution."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

import polars as pl
from nsys_layouts import LAYOUTS, declared

NVTX = (
    "start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, "
    "uint64Value, int64Value, doubleValue"
)
CALL = "start, end, eventClass, globalTid, correlationId, nameId, returnValue"
KERNEL = "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName"
COPY = "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind"
TABLES = {
    "StringIds": "id, value",
    "NVTX_EVENTS": NVTX,
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL,
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": COPY,
    "META_DATA_EXPORT": "name, value",
}


def process(number: int) -> int:
    """Return the globalPid of a process, above 2**48 as in real profiles."""
    return (1 << 48) | (number << 24)


def thread(number: int, of_process: int = 1) -> int:
    """Return the globalTid of a thread."""
    return process(of_process) | number


class SqliteProfile:
    """Builder that collects rows and writes all tables with rows."""

    def __init__(self, layout: str = "") -> None:
        """Use the columns of a version of Nsight Systems in `LAYOUTS`. Empty: those of `TABLES` and of all rows."""
        self.layout = LAYOUTS[layout] if layout else {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.strings: dict[str, int] = {}
        self.domains: dict[tuple[int, str], int] = {}

    def add(self, table: str, **row: Any) -> None:
        """Add a row. Other columns are NULL."""
        self.rows.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        """Return the id of a registered string."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def domain(self, name: str, of_process: int = 1) -> int:
        """Return the id of a domain of a process. "" is the default domain."""
        if name and (of_process, name) not in self.domains:
            number = 1 + sum(owner == of_process for owner, _ in self.domains)
            self.domains[of_process, name] = number
            self.event(75, 0, None, name, thread(1, of_process), domainId=number)
        return self.domains.get((of_process, name), 0)

    def event(self, kind: int, start: int, end: int | None, text: str | None, tid: int, **more: Any) -> None:
        """Add a row of NVTX_EVENTS with an unregistered string."""
        self.add("NVTX_EVENTS", eventType=kind, start=start, end=end, text=text, globalTid=tid, **more)

    def range(
        self, text: str, start: int, end: int | None, *, kind: int = 59, number: int = 1, of_process: int = 1,
        domain: str = "", **more: Any,
    ) -> None:  # fmt: skip
        """Add a range on thread `number`. Its name is a registered string."""
        more |= {"textId": self.string(text), "domainId": self.domain(domain, of_process)}
        self.event(kind, start, end, None, thread(number, of_process), **more)

    def layer(self, text: str, start: int, end: int | None, **more: Any) -> None:
        """Add a range of annot."""
        self.range(text, start, end, domain="annot", **more)

    def call(
        self, start: int, end: int, correlation: int, *, number: int = 1, of_process: int = 1, kind: int = 0
    ) -> None:  # fmt: skip
        """Add an API call."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=kind, correlationId=correlation,
            globalTid=thread(number, of_process), nameId=self.string("cudaLaunchKernel_v7000"), returnValue=0,
        )  # fmt: skip

    def kernel(
        self,
        start: int,
        end: int,
        correlation: int,
        name: str = "gemm",
        *,
        of_process: int = 1,
        device: int = 0,
        **more: Any,
    ) -> None:
        """Add a kernel without its launch."""
        text = self.string(name)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=device, correlationId=correlation,
            demangledName=text, shortName=text, **{"globalPid": process(of_process), "streamId": 7} | more,
        )  # fmt: skip

    def copy(
        self, start: int, end: int, correlation: int, *, kind: int = 1, of_process: int = 1, **more: Any
    ) -> None:  # fmt: skip
        """Add a copy without its launch."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, deviceId=0, streamId=7, bytes=64, copyKind=kind,
            correlationId=correlation, **{"globalPid": process(of_process)} | more,
        )  # fmt: skip

    def node(
        self, node: int, original: int | None, start: int, *, number: int = 1, of_process: int = 1, kind: int = 77
    ) -> None:  # fmt: skip
        """Add the creation of a CUDA graph node, or of a clone if `original` is given."""
        old = self.layout and "CUDA_GRAPH_NODE_EVENTS" not in self.layout
        self.add(
            "CUDA_GRAPH_EVENTS" if old else "CUDA_GRAPH_NODE_EVENTS", start=start, end=start, eventClass=kind,
            globalTid=thread(number, of_process), graphNodeId=node, originalGraphNodeId=original,
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        """Write the file."""
        connection = sqlite3.connect(path)
        for table, rows in self.rows.items():
            columns = self._columns(table, rows)
            types = [declared(table, column) if self.layout else f'"{column}"' for column in columns]
            connection.execute(f"CREATE TABLE {table} ({', '.join(types)})")
            values = [[row.get(column) for column in columns] for row in rows]
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)
        connection.commit()
        connection.close()
        return path

    def _columns(self, table: str, rows: list[dict[str, Any]]) -> list[str]:
        """Return the columns of a table in the layout. Without a layout, add the columns of all rows."""
        if self.layout:
            return self.layout[table].split(", ")
        named = TABLES[table].split(", ") if table in TABLES else []
        return list(dict.fromkeys([*named, *(name for row in rows for name in row)]))


def to_parquet(path: Path, folder: Path, *, narrow: bool = False) -> Path:
    """Write the tables of an SQLite file like Nsight Systems with ``--type=parquetdir``.

    Args:
        path: SQLite file.
        folder: folder to create.
        narrow: use the smallest types, unsigned where possible, and dictionaries for texts.
    """
    folder.mkdir()
    connection = sqlite3.connect(path)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        rows = connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid')
        names = [column[0] for column in rows.description]
        frame = pl.DataFrame(rows.fetchall(), schema=names, orient="row", infer_schema_length=None)
        (frame.select(map(_narrowed, frame)) if narrow else frame).write_parquet(folder / f"{table}.parquet")
    connection.close()
    return folder


def _narrowed(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column.cast(pl.Categorical)
    if column.dtype == pl.Int64 and column.drop_nulls().ge(0).all():
        column = column.cast(pl.UInt64)
    return column.shrink_dtype() if column.dtype.is_integer() else column


def training(*, device: bool) -> SqliteProfile:
    """Return two steps of a small network: forward, backward, optimizer, data loading, and kernels with `device`."""
    profile = SqliteProfile()
    us = 1000
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    profile.layer("Epoch 0 |epoch", 0, 4400 * us, kind=60)
    for step in range(2):
        zero = step * 2200 * us
        profile.layer("Data |data", zero + 10 * us, zero + 160 * us)
        profile.layer(f"Batch {step} |step", zero + 180 * us, zero + 2150 * us, kind=60)
        _forward(profile, zero + 200 * us, 32 - 16 * step)
        _backward(profile, zero + 1000 * us)
        profile.layer("Optimizer SGD |opt", zero + 1900 * us, zero + 2100 * us)
        if device:
            _work(profile, zero, 100 * step + 1)
    if device:
        profile.kernel(4300 * us, 4330 * us, 999, "launched before the capture")
    return profile


def _forward(profile: SqliteProfile, zero: int, batch: int) -> None:
    us = 1000
    profile.layer(f"Forward AlexNet [{batch},3,224,224]f32 |fwd", zero, zero + 700 * us)
    profile.layer(f"features Sequential [{batch},3,224,224]f32 |fwd", zero + 10 * us, zero + 510 * us)
    profile.layer(f"features.0 Conv2d [{batch},3,224,224]f32 |fwd", zero + 20 * us, zero + 420 * us)
    profile.layer(f"features.1 ReLU [{batch},64,55,55]f32 |fwd", zero + 430 * us, zero + 500 * us)
    profile.layer(f"classifier.1 Linear [{batch},9216]f32 |fwd", zero + 520 * us, zero + 690 * us)
    profile.range("augment", zero + 710 * us, zero + 750 * us)


def _backward(profile: SqliteProfile, zero: int) -> None:
    us = 1000
    profile.layer("Backward |bwd", zero, zero + 850 * us)
    profile.layer("Backward AlexNet |bwd", zero + 20 * us, zero + 840 * us)
    profile.layer("classifier.1 Linear |bwd", zero + 30 * us, zero + 230 * us)
    profile.layer("features Sequential |bwd", zero + 240 * us, zero + 830 * us)
    profile.layer("features.1 ReLU |bwd", zero + 250 * us, zero + 290 * us)
    profile.layer("features.0 Conv2d |bwd", zero + 300 * us, zero + 820 * us)


def _work(profile: SqliteProfile, zero: int, correlation: int) -> None:
    """Add a launch in each leaf, a copy in the batch, and a kernel outside any range."""
    us = 1000
    launches = [
        (190, 50, "copy"), (230, 900, "conv_fwd"), (640, 20, "relu_fwd"), (730, 300, "gemm"), (1040, 600, "gemm"),
        (1260, 30, "relu_bwd"), (1350, 1500, "conv_bwd"), (1950, 80, "sgd"), (2190, 5, "stray"),
    ]  # fmt: skip
    for index, (at, length, name) in enumerate(launches):
        start = zero + (at + 20) * us
        profile.call(zero + at * us, zero + (at + 5) * us, correlation + index)
        if name == "copy":
            profile.copy(start, start + length * us, correlation + index)
        else:
            profile.kernel(start, start + length * us, correlation + index, name)


FLOAT32: Final = {
    "gemm": "ampere_sgemm_128x64_tn", "conv_fwd": "ampere_scudnn_128x64_nn", "conv_bwd": "ampere_scudnn_128x64_nt",
}  # fmt: skip


def in_float32(profile: SqliteProfile) -> SqliteProfile:
    """Give the kernels of `training` names that show float32 outside Tensor Cores."""
    for row in profile.rows["StringIds"]:
        row["value"] = FLOAT32.get(row["value"], row["value"])
    return profile
