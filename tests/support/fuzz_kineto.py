"""Damaged traces of torch.profiler: JSON with wrong values, layout, encoding or compression."""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

from fuzz_bytes import INTEGERS, TEXTS, damaged
from shared_data import shared

__all__ = ["BOMBS", "REAL", "bomb", "kineto", "kineto_real"]

_HEAD = b'{"schemaVersion":1,"traceEvents":['
_BEGINNING = b'{"schemaVersion":1,"deviceProperties":[],'
BOMBS = (
    (_HEAD, b" "), (_HEAD + b'"', b"a"), (_HEAD, b"}, {"), (_BEGINNING, b'"k":1,'), (_HEAD, b"["),
    (_HEAD + b'{"ts":', b"9"), (_BEGINNING + b'"annot_texts":[', b"[],"), (_HEAD + b'{"name":"', b"\\ud800"),
)  # fmt: skip
"""Start and repeated part of small files that unpack to a large size."""
_MEMBERS = 70

REAL = tuple(f"kineto/{name}" for name in (
    "hta_backward_thread_min.json", "hta_large_integer.json.gz", "hta_oldcat_Kernel_Runtime.json.gz",
    "hta_alexnet_a100_cupti_sass_flops.json.gz", "hta_alexnet_a100_train.json.gz",
    "tracelens_mi300_sglang_decode_graph_exec.json.gz",
))  # fmt: skip

_RAW = re.compile(rb'"@raw:(\d+)@"')
_ODD = (
    b"1" + b"0" * 400, b"-" + b"9" * 5000, b"1e999", b"-1e308", b"1e308", b"1e-400", b"NaN", b"Infinity", b"-Infinity",
    b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\n"', b"[" * 500 + b"]" * 500, b'{"a":1,"a":2}',
    b'{"correlation":1,"correlation":"x"}', b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"1.5e3", b"1e15", b"0.1234567890123456789", b"4503599627370497.5", b'"' + b"y" * 300_000 + b'"', b"-0.0",
)  # fmt: skip
_BROKEN = (
    b'"\xff\xfe"', b'"\xed\xa0\x80"', b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"tru", b"01", b"+1", b"1.", b".5", b"1e",
    b"-", b'"', b"", b"}", b"]", b"[,]", b"/* c */ 1", b"'x'",
    b'{"\xff": 1}', b"\x00", b"\xef\xbb\xbf",
)  # fmt: skip
_RAWS = _ODD + _BROKEN
_CATEGORIES = (
    "kernel", "Kernel", "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "gpu_memcpy",
    "gpu_memset", "fwdbwd", "ac2g", "cuda_profiler_range", "gpu_user_annotation", "Operator", "Runtime", "",
)  # fmt: skip
_ARGS = ("External id", "correlation", "Sequence number", "Fwd thread id", "stream", "device", "bytes", "Python id")
_SHARED = ("ts", "dur", "pid", "tid", "id", "name", "args", "correlation", "Python id")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [1],
    {"a": {}},
    0.5,
    -3.25,
    1e15,
    3e15,
    1e18,
    "12",
    "-1",
    "stream 7",
)
_PHASES = ("X", "B", "E", "i", "s", "f", "t", "M", "C", "x", "")


def _event(name: str, category: str, ts: float, dur: float, tid: int = 71, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 70, "tid": tid, "ts": ts, "dur": dur, "args": args}


@functools.cache
def _seed() -> bytes:
    """Return the trace of a training step with every kind of event: modules, flows, counters, graphs, annotations."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        zero = 1000.0 * step + 0.125
        events += [
            _event(f"ProfilerStep#{step}", "user_annotation", zero, 900),
            _event("nn.Module: Net_0", "python_function", zero + 5, 400, **{"Python id": 4 * step + 1}),
            _event("nn.Module: Linear_0", "python_function", zero + 10, 100, **{"Python id": 4 * step + 2}),
            _event("fc Linear [2,3]f32 |fwd", "cpu_op", zero + 11, 90, **{"External id": 9 * step + 1}),
            _event("aten::mm", "cpu_op", zero + 12, 50, **{"Sequence number": step, "Fwd thread id": 0}),
            _event("cudaLaunchKernel", "cuda_runtime", zero + 20, 5, correlation=20 * step + 1),
            _event("cudaGraphLaunch", "cuda_runtime", zero + 30, 5, correlation=20 * step + 2),
            _event("cudaMemcpyAsync", "cuda_runtime", zero + 40, 5, correlation=20 * step + 3),
            {**_event("gemm", "kernel", zero + 50, 40, 7, correlation=20 * step + 1, device=0, stream=7), "pid": 0},
            {**_event("k", "kernel", zero + 95, 40, 7, correlation=99, **{"External id": 9 * step + 1}), "pid": 0},
            {**_event("Memcpy HtoD", "gpu_memcpy", zero + 150, 40, 7, correlation=20 * step + 3, bytes=64), "pid": 0},
            _event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", zero + 500, 300, 72,
                   **{"Sequence number": step, "Fwd thread id": 1}),
            _event("cudaLaunchKernel", "cuda_runtime", zero + 520, 5, 72, correlation=20 * step + 4),
            {**_event("mm", "kernel", zero + 550, 40, 7, correlation=20 * step + 4, device=0, stream=7), "pid": 0},
            {"ph": "s", "cat": "fwdbwd", "name": "x", "pid": 70, "tid": 71, "ts": zero + 12, "id": step},
            {"ph": "f", "cat": "fwdbwd", "name": "x", "pid": 70, "tid": 72, "ts": zero + 500, "id": step, "bp": "e"},
            {"ph": "i", "cat": "", "name": "Iteration", "pid": 70, "tid": 71, "ts": zero, "s": "g"},
        ]  # fmt: skip
    events.append({"ph": "M", "name": "process_name", "pid": 70, "tid": 0, "ts": 0, "args": {"name": "python"}})
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100", "numSms": 108}],
           "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events,
           "baseTimeNanoseconds": 1790857026000000000, "annot_texts": {"mine": "ours"}}  # fmt: skip
    return json.dumps(top).encode()


def bomb(path: Path, chance: random.Random) -> None:
    """Write one of `BOMBS`, which unpacks to 280 MiB."""
    beginning, again = chance.choice(BOMBS)
    member = gzip.compress(again * ((4 << 20) // len(again)), 1)
    path.write_bytes(gzip.compress(beginning) + member * _MEMBERS)


def kineto(path: Path, chance: random.Random, seeds: tuple[bytes, ...] = ()) -> None:
    """Write a damaged trace."""
    content = chance.choice(seeds or (_seed(),))
    if chance.random() < 0.85:
        content = _changed(content, chance)
    if chance.random() < 0.2:
        content = damaged(content, chance)
    if chance.random() < 0.3:
        content = _compressed(content, chance)
    path.write_bytes(content)


@functools.cache
def _real() -> tuple[bytes, ...]:
    found = [shared(name).read_bytes() for name in REAL]
    return tuple(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content for content in found)


def kineto_real(path: Path, chance: random.Random) -> None:
    """Write a damaged copy of a real trace."""
    kineto(path, chance, _real())


def _changed(content: bytes, chance: random.Random) -> bytes:
    top = json.loads(content)
    for _ in range(chance.choice((1, 1, 2, 4, 12))):
        _change(top, chance)
    return _written(top, chance)


def _change(top: dict[str, Any], chance: random.Random) -> None:
    events = top.get("traceEvents")
    if not isinstance(events, list) or not events or chance.random() < 0.1:
        key = chance.choice([*top, "traceEvents", "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "x"])
        top[key] = _value(chance)
        return
    at = chance.randrange(len(events))
    event = events[at]
    if not isinstance(event, dict) or chance.random() < 0.05:
        events[at] = _value(chance)
        return
    match chance.randrange(10):
        case 0 | 1 | 2:
            event[chance.choice([*event, "dur", "args", "id"])] = _value(chance)
        case 3 | 4 if isinstance(event.get("args"), dict):
            event["args"][chance.choice((*event["args"], *_ARGS))] = _value(chance)
        case 5:
            event.pop(chance.choice(list(event)), None) if event else None
        case 6:
            event["cat"], event["ph"] = chance.choice(_CATEGORIES), chance.choice(_PHASES)
        case 7:
            _everywhere(events, chance)
        case 8:
            events[at:at] = [dict(event, name=chance.choice(TEXTS)) for _ in range(chance.choice((1, 5, 50)))]
            events[at:at] = [dict(event) for _ in range(chance.choice((0, 0, 2000)))]
        case _:
            other = events[chance.randrange(len(events))]
            if isinstance(other, dict):
                event.update({key: other[key] for key in ("ts", "dur", "pid", "tid", "args", "id") if key in other})


def _everywhere(events: list[Any], chance: random.Random) -> None:
    """Change the same field of all events, or of all events of one kind."""
    kind = chance.choice((None, *_CATEGORIES))
    key, value = chance.choice(_SHARED), _value(chance)
    for number, event in enumerate(events):
        if not isinstance(event, dict) or kind not in (None, event.get("cat")):
            continue
        if key in ("correlation", "Python id"):
            if isinstance(event.get("args"), dict):
                event["args"][key] = value
        elif key == "dur" and isinstance(event.get("dur"), (int, float)):
            event["dur"] = -event["dur"] if isinstance(value, str) else event["dur"] * 1e12
        elif key == "ts" and isinstance(value, int):
            event["ts"] = number  # all events nest
            event["dur"] = 2 * (len(events) - number)
        else:
            event[key] = value


def _value(chance: random.Random) -> Any:
    kind = chance.randrange(6)
    if kind < 2:
        return f"@raw:{chance.randrange(len(_RAWS) if chance.random() < 0.15 else len(_ODD))}@"
    if kind == 2:
        return chance.choice(INTEGERS)
    if kind == 3:
        return chance.choice(TEXTS)
    return copy.deepcopy(chance.choice(_VALUES))


def _written(top: dict[str, Any], chance: random.Random) -> bytes:
    form = chance.randrange(6)
    if form == 0 and isinstance(top.get("traceEvents"), list):
        top = top["traceEvents"]
    elif form == 1:
        keys = list(top)
        chance.shuffle(keys)
        top = {key: top[key] for key in keys}
    indent = chance.choice((None, None, 1, 2))
    text = json.dumps(top, indent=indent, ensure_ascii=chance.random() < 0.5)
    content = _RAW.sub(lambda match: _RAWS[int(match[1])], text.encode("utf-8", "surrogatepass"))
    if form == 2 and chance.random() < 0.3:
        content = text.encode("utf-16" if chance.random() < 0.5 else "utf-8-sig", "surrogatepass")
    return content + chance.choice((b"",) * 40 + (b"\n", b"x", b"{}", b"\0", b"]}"))


def _compressed(content: bytes, chance: random.Random) -> bytes:
    packed = gzip.compress(content, 1)
    half = len(content) // 2
    match chance.randrange(8):
        case 0:
            return gzip.compress(content[:half], 1) + gzip.compress(content[half:], 1)
        case 1:
            return packed + chance.choice((b"x", b"\0" * 600, b"\x1f\x8b", gzip.compress(b""), gzip.compress(b"{}")))
        case 2:
            return packed[: chance.randrange(len(packed) + 1)]
        case 3:
            return damaged(packed, chance)
        case 4:
            return packed[:-8] + chance.randbytes(8)
        case 5:
            return gzip.compress(packed, 1)
        case 6:
            out = io.BytesIO()
            with gzip.GzipFile("x" * 5000, "wb", 1, out, 0) as file:
                file.write(content)
            return out.getvalue()
        case _:
            return zlib.compress(content, 1) if chance.random() < 0.3 else packed
