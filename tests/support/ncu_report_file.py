"""Writer for small reports of Nsight Compute, for tests of the reader.

The layout follows NVIDIA's description in extras/FileFormat of Nsight Compute. ncu 2022.3 and ncu-report 2026.3 read
these reports.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*fields: tuple[int, int | str | bytes | float]) -> bytes:
    """Return a protocol buffers message: integers as varints, floats as doubles, others length-delimited."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += _varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


@dataclass
class Kernel:
    """Kernel with its open ranges.

    Args:
        started: domain, id and name of each start/end range.
        pushed: domain and names of push/pop ranges, outermost first.
        metrics: values by metric name. A float is stored as a double, an integer as an integer, a string as a string.
    """

    name: str = "gemm"
    process: int = 7
    thread: int = 7
    started: Sequence[tuple[str, int, str]] = ()
    pushed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)


DEFAULT = "<default domain>"


def _attributes(text: str) -> bytes:
    return message((1, 3), (2, 0), (3, message((1, 0))), (4, message((1, 0))), (5, message((1, 1), (2, text))))


def _state(kernel: Kernel) -> bytes:
    names = list(dict.fromkeys([DEFAULT, *kernel.pushed, *(domain for domain, _, _ in kernel.started)]))
    ids = {name: number for number, name in enumerate(names, 1)}
    domains = [(1, message((1, number), (2, name))) for name, number in ids.items()]
    stacks = [
        (2, message((1, ids[domain]), *((3, message((1, text), (2, _attributes(text)))) for text in texts)))
        for domain, texts in kernel.pushed.items()
    ]
    started = [
        (3, message((1, number), *((3, message((1, key), (2, text), (3, _attributes(text)), (5, kernel.thread)))
                                   for owner, key, text in kernel.started if owner == domain)))
        for domain, number in ids.items()
    ]  # fmt: skip
    return message(*domains, (2, message((1, kernel.thread), *stacks)), *started, (4, 1))


def _result(kernel: Kernel, names: list[str]) -> bytes:
    size = message((1, 1), (2, 1), (3, 1))
    kinds = {str: 1, float: 3, int: 5}
    metrics: list[tuple[int, int | str | bytes | float]] = [
        (13, message((1, names.index(name)), (2, message((kinds[type(value)], value)))))
        for name, value in kernel.metrics.items()
    ]
    known: list[tuple[int, int | str | bytes | float]]
    known = [(1, kernel.thread), (2, 1), (3, 1), (4, 1), (5, kernel.name), (6, kernel.name), (7, kernel.name), (8, 1)]
    shape = [(9, size), (10, size), (11, size)]
    state = [(21, _state(kernel))] if kernel.pushed or kernel.started else []
    return message(*known, *shape, *metrics, (14, 1_700_000_000), (15, b""), (16, 0), *state, (22, 1), (23, 16))


def write(path: Path, kernels: Sequence[Kernel]) -> Path:
    """Write a report with the kernels in the given order."""
    names = list(dict.fromkeys(name for kernel in kernels for name in kernel.metrics))
    session = message((1, kernels[0].process if kernels else 7), (2, 1_700_000_000))
    version = message((8, message((1, "Nsight Compute Target"), (2, "2025.3.1.0"))))
    out = b"NVR\0" + _sized(message((1, 7)))
    out += _sized(message((1, 0), (2, 0), (3, session), (4, b""), (5, 0)))
    out += _sized(message((1, 0), (2, 0), (3, version), (4, b""), (5, 0)))
    for index, kernel in enumerate(kernels):
        payload = _sized(_result(kernel, names))
        strings = message(*((1, name) for name in names)) if not index else b""
        process = message((1, kernel.process), (2, "host"), (3, "python"))
        out += _sized(message((1, 0), (2, 1), (4, strings), (5, len(payload)), (6, process))) + payload
    path.write_bytes(out)
    return path


def training() -> list[Kernel]:
    """Return two steps of a small network with the backward on another thread.

    ``tests/data/ncu_raw_training.csv`` is the output of ncu 2022.3 for the report with these kernels.
    """
    forward = "Forward Net [2,8]f32 |fwd"
    kernels = []
    for step in range(2):
        around = (("annot", 5, "Epoch 0 |epoch"), ("annot", 10 + step, f"Batch {step} |step"))
        for name, stack, user, length in (
            ("void gemm<float, (int)4>(float *, int)", [forward, "fc1 Linear [2,8]f32 |fwd"], ["train", "mm"], 1200),
            ("bias(float *)", [forward, "fc1 Linear [2,8]f32 |fwd"], ["train", "add, seq = 2"], 300),
            ("relu(float *)", [forward, "act ReLU [2,4]f32 |fwd"], ["train"], 100),
            ("gemm2(float *)", [forward, "fc2 Linear [2,4]f32 |fwd"], ["train"], 900),
            ("loss(float *)", [], ["train"], 50),
            ("gemm3(float *)", ["Backward |bwd", "fc2 Linear |bwd"], [], 700),
            ("sgd(float *)", ["Optimizer SGD |opt"], ["train"], 80),
        ):
            metrics: dict[str, float | int | str] = {
                "gpu__time_duration.sum": float(length + step),
                "dram__bytes_read.sum": length * 3.0,
                "sm__inst_executed_pipe_tensor.sum": length // 7,
                "device__attribute_architecture": 320,  # these four identify the chip, and with it the units
                "device__attribute_chip": 328,
                "device__attribute_compute_capability_major": 8,
                "device__attribute_compute_capability_minor": 0,
                "device__attribute_display_name": "NVIDIA A100",
            }
            pushed = {DEFAULT: user, "annot": stack}
            kernels.append(
                Kernel(
                    name, 7, 7 if user else 8, around, {key: value for key, value in pushed.items() if value}, metrics
                )
            )
    return kernels


def texts() -> list[Kernel]:
    """Return kernels in ranges whose names contain characters that ncu's CSV does not escape.

    ``tests/data/ncu_raw_texts.csv`` is the output of ncu 2022.3 for the report with these kernels.
    """
    odd = ['say "x", y', "two\nlines", "tab\t, é ∑", "a: b: c", '{"a": ["b","c"]}', 'x  "y', ""]
    stacks = [{DEFAULT: odd, "annot": ["fc Linear |fwd"]}, {"annot": ['"Forward" Net [2,3]f32 |fwd']}, {}]
    started = [(DEFAULT, 3, '","'), ("other", 4, 'id: "4"')]
    return [
        Kernel(f"kernel{index}(float *)", 7, 7, started, stack, {"sm__cycles_elapsed.max": 10 + index})
        for index, stack in enumerate(stacks)
    ]
