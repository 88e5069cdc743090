"""Write a trace of torch.profiler's CUPTI backend as JSON and as a Perfetto trace, from a trace of Kineto.

    python tests/support/cuspy_traces.py TRACE.json.gz OUT

writes ``OUT.json.gz`` and ``OUT.pftrace.gz`` with PyTorch's own exporter, which needs no GPU. The events of the CPU
stay as Kineto wrote them. The calls of the runtime and driver and the activities of the GPU become the columns that
the backend collects from CUPTI. Requires PyTorch 2.14 or later, built for CUDA, and ``cupti-python``.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

_NEW, _OLD = "torch.profiler._cuspy.trace", "torch.profiler._cupti.monitor_trace"  # PyTorch 2.15, 2.14
exporter: Any = import_module(_NEW if find_spec("torch.profiler._cuspy") else _OLD)

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_APIS = {"cuda_runtime": exporter.Runtime_api_trace_cbid, "cuda_driver": exporter.Driver_api_trace_cbid}
_DIRECTIONS = {name: number for number, name in exporter._MEMCPY_KIND_NAMES.items()}
_MEMORIES = {name: number for number, name in exporter._MEMORY_KIND_NAMES.items()}
_UNKNOWN = ("dynamic_shared_memory", "priority", "queued", "channel", "channel_type", "flags", "value", "memory_kind")

Events = list[dict[str, Any]]


def _column(events: Events, key: str) -> Any:
    return np.array([event["args"].get(key, 0) for event in events], dtype=np.int64)


def _times(events: Events, base: int) -> dict[str, Any]:
    start = np.array([base + round(event["ts"] * 1000) for event in events], dtype=np.int64)
    length = np.array([round(event["dur"] * 1000) for event in events], dtype=np.int64)
    return {"start_ns": start, "end_ns": start + length, "correlation_id": _column(events, "correlation")}


def _activities(events: Events, base: int) -> dict[str, Any]:
    none, zero = np.full(len(events), None, dtype=object), np.zeros(len(events), dtype=np.int64)
    sizes = {
        f"{name}_{axis}": np.array([event["args"].get(name, (1, 1, 1))[place] for event in events], dtype=np.int64)
        for name in ("grid", "block")
        for place, axis in enumerate("xyz")
    }
    words = [event["name"].replace("(", " ").replace(")", " ").lower().split() for event in events]
    kinds = [[word for word in line if word in _MEMORIES] for line in words]
    columns = {
        **_times(events, base),
        **(sizes if events[0]["cat"] == "kernel" else {}),
        "device_id": _column(events, "device"),
        "context_id": _column(events, "context"),
        "stream_id": _column(events, "stream"),
        "registers_per_thread": _column(events, "registers per thread"),
        "static_shared_memory": _column(events, "shared memory"),
        "bytes": _column(events, "bytes"),
        "copy_kind": np.array([_DIRECTIONS.get(event["name"][7:11], 0) for event in events]),
        "src_kind": np.array([_MEMORIES[kind[0]] if kind else 0 for kind in kinds]),
        "dst_kind": np.array([_MEMORIES[kind[-1]] if kind else 0 for kind in kinds]),
        "name": np.array([event["name"] for event in events], dtype=object),
        "annotation": none,
        "graph_id": zero,
        "graph_node_id": zero,
    }
    if events[0]["cat"] != "kernel":
        del columns["name"]
    return columns | dict.fromkeys(_UNKNOWN, zero)


def _calls(events: Events, base: int, category: str) -> dict[str, Any]:
    numbers = {name: number for number, name in exporter._load_cbid_names(_APIS[category]).items()}
    return {
        **_times(events, base),
        "cbid": np.array([numbers[event["name"]] for event in events], dtype=np.int64),
        "process_id": np.array([event["pid"] for event in events], dtype=np.int64),
        "thread_id": np.array([event["tid"] for event in events], dtype=np.int64),
    }


def main() -> None:
    """Write both files."""
    source, out = Path(sys.argv[1]), sys.argv[2]
    content = source.read_bytes()
    top = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    base = int(top["baseTimeNanoseconds"])
    kinds: dict[str, Events] = {}
    for event in top["traceEvents"]:
        kinds.setdefault(event["cat"] if event.get("ph") == "X" else "", []).append(event)
    columns = {kind: _activities(kinds[kind], base) for kind in _GPU if kind in kinds}
    columns |= {kind: _calls(kinds[kind], base, kind) for kind in _APIS if kind in kinds}
    taken = {*_GPU, *_APIS, "gpu_user_annotation"}
    top["traceEvents"] = [
        event for event in top["traceEvents"] if event.get("cat") not in taken and event.get("ph") in ("X", "M")
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as cpu:
        json.dump(top, cpu)
        cpu.flush()
        for ending in ("json.gz", "pftrace.gz"):
            exporter.merge_trace_window_into_chrome_trace(cpu.name, f"{out}.{ending}", {"columns": columns})


if __name__ == "__main__":
    main()
