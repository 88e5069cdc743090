"""Columns of Nsight Systems SQLite exports by version, in the order of real files.

The columns of 2020.3 are reconstructed from the ones known to be missing in that version.
"""

from __future__ import annotations

_NVTX_2020 = (
    "start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, "
    "uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue"
)
_NVTX_2022 = f"{_NVTX_2020}, jsonTextId, jsonText"
_CALL_2020 = "start, end, eventClass, globalTid, correlationId, nameId, returnValue"
_LAUNCH = (
    "registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, "
    "localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId"
)
_COPY = (
    "bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, "
    "migrationCause, graphNodeId, virtualAddress"
)
_WHERE = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
_GREEN = _WHERE.replace("streamId", "greenContextId, streamId")
_NODES = "start, end, eventClass, globalTid, nameId, graphNodeId, originalGraphNodeId"
_GRAPHS = "start, end, eventClass, globalTid, nameId, graphId, originalGraphId, graphExecId"
_KERNEL_2026 = (
    "qmdBulkReleaseDone, qmdPreexitDone, qmdLastCtaDone, graphId, clusterX, clusterY, clusterZ, "
    "clusterSchedulingPolicy, maxPotentialClusterSize, maxActiveClusters, sharedMemoryRequestedPercentage"
)


def _layout(nvtx: str, call: str, where: str, kernel: str, copy: str, **more: str) -> dict[str, str]:
    return {
        "StringIds": "id, value",
        "NVTX_EVENTS": nvtx,
        "CUPTI_ACTIVITY_KIND_RUNTIME": call,
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{where}, {kernel}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{where}, {copy}",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{where}, value, bytes, graphNodeId, memKind",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{where}, graphId, graphExecId",
        **more,
    }


_NAMES = "demangledName, shortName, mangledName, launchType, cacheConfig"
_CALL_2022 = f"{_CALL_2020}, callchainId"
_META = {"META_DATA_EXPORT": "name, value", "META_DATA_CAPTURE": "name, value", "PROCESSES": "globalPid, pid, name"}

LAYOUTS = {
    "2020.3": _layout(
        _NVTX_2020, _CALL_2020, _WHERE, f"demangledName, shortName, launchType, {_LAUNCH}", _COPY,
        CUDA_GRAPH_EVENTS=_NODES,
    ),
    "2022.2": _layout(
        _NVTX_2022, _CALL_2022, _WHERE, f"{_NAMES}, {_LAUNCH}, sharedMemoryLimitConfig", _COPY,
        CUDA_GRAPH_EVENTS=_NODES, EXPORT_META_DATA="name, value", PROCESSES="globalPid, pid, name",
    ),
    "2023.4": _layout(
        _NVTX_2022, _CALL_2022, _GREEN, f"{_NAMES}, {_LAUNCH}, sharedMemoryLimitConfig", _COPY,
        CUDA_GRAPH_EVENTS=_NODES, **_META,
    ),
    "2024.6": _layout(
        f"{_NVTX_2022}, binaryData", _CALL_2022, _GREEN, f"{_NAMES}, {_LAUNCH}, sharedMemoryLimitConfig", _COPY,
        CUDA_GRAPH_NODE_EVENTS=_NODES, CUDA_GRAPH_EVENTS=_GRAPHS, **_META,
    ),
    "2025.1": _layout(
        f"{_NVTX_2022}, binaryData", _CALL_2022, _GREEN, f"{_NAMES}, {_LAUNCH}, sharedMemoryLimitConfig",
        f"{_COPY}, copyCount", CUDA_GRAPH_NODE_EVENTS=_NODES, CUDA_GRAPH_EVENTS=_GRAPHS, **_META,
    ),
    "2026.2": _layout(
        f"{_NVTX_2022}, binaryData", _CALL_2022, _GREEN,
        f"{_NAMES}, {_LAUNCH}, sharedMemoryLimitConfig, {_KERNEL_2026}, tensorSizeMinusOneElements",
        f"{_COPY}, copyCount", CUDA_GRAPH_NODE_EVENTS=_NODES, CUDA_GRAPH_EVENTS=_GRAPHS, **_META,
    ),
}  # fmt: skip

_TEXTS = {"text", "value", "name", "jsonText", "tensorSizeMinusOneElements"}
_REALS = {"doubleValue", "floatValue"}


def declared(table: str, column: str) -> str:
    """Return the SQL declaration of a column in Nsight Systems exports."""
    if (table, column) == ("StringIds", "id"):
        return '"id" INTEGER NOT NULL PRIMARY KEY'
    kind = "TEXT" if column in _TEXTS and table != "CUPTI_ACTIVITY_KIND_MEMSET" else "INTEGER"
    return f'"{column}" {"REAL" if column in _REALS else "BLOB" if column == "binaryData" else kind}'
