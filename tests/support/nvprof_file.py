"""Writer for SQLite files of nvprof 11.8, for tests of the reader. nvprof itself can read these files."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

ZERO = 1_600_000_000_000_000_000
"""Start of the sample in ns, beyond the integers that a double represents exactly."""

_CALL = "cbid, start, end, processId, threadId, correlationId, returnValue"
_LAUNCHED = (
    "cacheConfig, sharedMemoryConfig, registersPerThread, partitionedGlobalCacheRequested, "
    "partitionedGlobalCacheExecuted, start, end, completed, deviceId, contextId, streamId, gridX, gridY, gridZ, "
    "blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, "
    "correlationId, gridId, name, queued, submitted, launchType, isSharedMemoryCarveoutRequested, "
    "sharedMemoryCarveoutRequested, sharedMemoryExecuted, graphNodeId, shmemLimitConfig, graphId, "
    "pAccessPolicyWindow, channelID, channelType, clusterX, clusterY, clusterZ, clusterSchedulingPolicy, "
    "localMemoryTotal_v2"
)
_DEVICE = (
    "flags, globalMemoryBandwidth, globalMemorySize, constantMemorySize, l2CacheSize, numThreadsPerWarp, "
    "coreClockRate, numMemcpyEngines, numMultiprocessors, maxIPC, maxWarpsPerMultiprocessor, "
    "maxBlocksPerMultiprocessor, maxSharedMemoryPerMultiprocessor, maxRegistersPerMultiprocessor, "
    "maxRegistersPerBlock, maxSharedMemoryPerBlock, maxThreadsPerBlock, maxBlockDimX, maxBlockDimY, maxBlockDimZ, "
    "maxGridDimX, maxGridDimY, maxGridDimZ, computeCapabilityMajor, computeCapabilityMinor, id, eccEnabled, uuid, "
    "name, isCudaVisible, isMigEnabled, gpuInstanceId, computeInstanceId, migUuid"
)
_BLOBS = {"cacheConfig": 1, "pAccessPolicyWindow": 8, "uuid": 16, "migUuid": 16, "objectId": 12, "payload": 8}
TABLES = {
    "RUNTIME": _CALL,
    "DRIVER": _CALL,
    "CONCURRENT_KERNEL": _LAUNCHED,
    "MEMCPY": "copyKind, srcKind, dstKind, flags, bytes, start, end, deviceId, contextId, streamId, correlationId, "
    "runtimeCorrelationId, graphNodeId, graphId, channelID, channelType",
    "MEMSET": "value, bytes, start, end, deviceId, contextId, streamId, correlationId, flags, memoryKind, "
    "graphNodeId, graphId, channelID, channelType",
    "MARKER": "flags, timestamp, id, objectKind, objectId, name, domain",
    "MARKER_DATA": "flags, id, payloadKind, payload, color, category",
    "CONTEXT": "contextId, deviceId, computeApiKind, nullStreamId",
    "DEVICE": _DEVICE,
}


class NvprofFile:
    """Builder of a file.

    Args:
        path: file to write.
        process: process id of added calls and ranges.
        thread: thread id of added calls and ranges.
    """

    def __init__(self, path: Path, process: int = 1234, thread: int = 0x7F12345) -> None:
        self.path, self.process, self.thread = path, process, thread
        self._database = sqlite3.connect(path)
        self._strings = {"-- null --": 0}
        self._ranges = 0
        self._execute('CREATE TABLE StringTable("_id_" INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL UNIQUE)')
        self._execute("INSERT INTO StringTable VALUES(0, '-- null --')")
        self._execute("CREATE TABLE Version(version INTEGER)")
        self._execute("INSERT INTO Version VALUES(11)")
        for table, columns in TABLES.items():
            typed = ", ".join(
                f'"{name}" {"BLOB" if name in _BLOBS else "INT"} NOT NULL' for name in columns.split(", ")
            )
            self._execute(
                f'CREATE TABLE CUPTI_ACTIVITY_KIND_{table}("_id_" INTEGER PRIMARY KEY AUTOINCREMENT, {typed})'
            )
        self.add("DEVICE", id=0, name=self.string("Tesla P4"), computeCapabilityMajor=6, computeCapabilityMinor=1)
        self.add("CONTEXT", contextId=1, nullStreamId=7)

    def _execute(self, sql: str, values: Any = ()) -> None:
        self._database.execute(sql, values)

    def string(self, text: str) -> int:
        """Return the id of a string."""
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self._execute("INSERT INTO StringTable VALUES(?, ?)", (self._strings[text], text))
        return self._strings[text]

    def add(self, table: str, **row: Any) -> None:
        """Add a row. Other columns are 0."""
        columns = TABLES[table].split(", ")
        values = [row.pop(name, bytes(_BLOBS[name]) if name in _BLOBS else 0) for name in columns]
        assert not row, row
        quoted = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table}({quoted}) VALUES({marks})", values)

    def range(
        self, text: str, start: int, end: int | None, *, domain: str = "", kind: int = 2, thread: int | None = None,
        end_thread: int | None = None,
    ) -> None:  # fmt: skip
        """Add a range. `kind` is the kind of its object: 1 a process, 2 a thread."""
        self._ranges += 1
        named = self.string(domain) if domain else 0
        place = {"id": self._ranges, "objectKind": kind, "domain": named}
        where = self.object(thread)
        self.add("MARKER", flags=2, timestamp=ZERO + start, objectId=where, name=self.string(text), **place)
        if end is not None:
            where = self.object(end_thread or thread)
            self.add("MARKER", flags=4, timestamp=ZERO + end, objectId=where, name=0, **place)
        self.add("MARKER_DATA", flags=2, id=self._ranges, color=0xFF00FF00, category=3)

    def mark(self, text: str, at: int) -> None:
        """Add a mark."""
        place = {"objectKind": 2, "objectId": self.object(), "domain": 0}
        self.add("MARKER", flags=1, id=9999, timestamp=ZERO + at, name=self.string(text), **place)

    def object(self, thread: int | None = None) -> bytes:
        """Return the object id of a thread of the process."""
        return struct.pack("<IQ", self.process, self.thread if thread is None else thread)

    def call(
        self, correlation: int, start: int, end: int, number: int, *, table: str = "RUNTIME", thread: int | None = None
    ) -> None:
        """Add an API call with the callback id `number`."""
        self.add(
            table, cbid=number, start=ZERO + start, end=ZERO + end, processId=self.process,
            threadId=self.thread if thread is None else thread, correlationId=correlation,
        )  # fmt: skip

    def kernel(self, correlation: int, start: int, end: int, name: str) -> None:
        """Add a kernel."""
        self.add(
            "CONCURRENT_KERNEL", start=ZERO + start, end=ZERO + end, completed=ZERO + end, contextId=1, streamId=7,
            gridX=1, gridY=1, gridZ=1, blockX=128, blockY=1, blockZ=1, registersPerThread=32, gridId=correlation,
            correlationId=correlation, name=self.string(name),
        )  # fmt: skip

    def copy(self, correlation: int, start: int, end: int, size: int, *, kind: int = 1) -> None:
        """Add a copy."""
        place = {"contextId": 1, "streamId": 7, "correlationId": correlation, "srcKind": 1, "dstKind": 3}
        self.add("MEMCPY", copyKind=kind, bytes=size, start=ZERO + start, end=ZERO + end, **place)

    def set(self, correlation: int, start: int, end: int, size: int) -> None:
        """Add a memset."""
        place = {"contextId": 1, "streamId": 7, "correlationId": correlation}
        self.add("MEMSET", bytes=size, start=ZERO + start, end=ZERO + end, **place)

    def write(self) -> Path:
        """Close the file."""
        self._database.commit()
        self._database.close()
        return self.path


def sample(path: Path) -> Path:
    """Write the file for which ``tests/data/nvprof_*.csv`` are the output of nvprof 11.8."""
    file = NvprofFile(path)
    file.range("Forward Net [4,8]f32 |fwd", 100, 5000, domain="annot")
    file.range("fc Linear [4,8]f32 |fwd", 200, 2500, domain="annot")
    file.range("step", 50, 9000, kind=1)
    file.range('he said "x", y', 5500, 5600)
    file.range("two\nlines", 5700, 5800)
    file.mark("hello", 700)
    file.call(1, 300, 400, 211)
    file.kernel(1, 1000, 3500, "_Z7kernelAPfi")
    file.call(2, 3000, 3100, 211)
    file.kernel(2, 4000, 4700, "_Z7kernelBPfi")
    file.call(3, 6000, 6100, 307, table="DRIVER")
    file.kernel(3, 7000, 7300, "_Z7kernelAPfi")
    file.call(4, 8000, 8900, 31)
    file.copy(4, 8200, 8600, 4096)
    file.call(5, 9100, 9200, 51)
    file.set(5, 9300, 9350, 1024)
    return file.write()
