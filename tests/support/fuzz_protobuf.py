"""Damaged files of protocol buffers, XPlane and Perfetto traces of torch.profiler.

Fields have nonsense values, messages repeat or are missing, the wire format is broken.
"""

from __future__ import annotations

import functools
import gzip
import random
from pathlib import Path
from typing import Any

from fuzz_bytes import INTEGERS, TEXTS, damaged
from shared_data import shared
from xplane_profile import XPlaneProfile

from annot.read.kineto.pftrace import messages as perfetto_messages
from annot.read.xplane.plane import messages

__all__ = ["pftrace", "xplane"]

_DATA = Path(__file__).parents[1] / "data"
_TEXTS = (
    *(text.encode("utf-8", "surrogatepass") for text in TEXTS), b"\xff\xfe", b"/device:GPU:0", b"/host:CPU",
    b"Stream #1", b"XLA Ops", b"Steps", b"XLA Modules", b"a/b/c/MatMul:MatMul", b"gradient_tape/a/b",
    b"transpose(jvp(a))/b", b"correlation_id", b"MemcpyH2D", b"kind_src:x size:99999999999999999999",
    b"a/" * 5000 + b"b", b"(" * 5000, b"jit(" * 3000 + b")" * 3000, b"transpose(" * 2000 + b"x" + b")" * 2000,
    b"while/body/" * 900, b"/" * 3000,
)  # fmt: skip


@functools.cache
def _seeds() -> tuple[bytes, ...]:
    return (_small(), *((_DATA / name).read_bytes() for name in ("jax_cpu.xplane.pb", "tf_cpu.xplane.pb")))


def _small() -> bytes:
    file = XPlaneProfile()
    host, gpu = file.plane("/host:CPU"), file.plane("/device:GPU:0")
    file.plane("/host:CUPTI")
    thread = host.line("python", 1, 1000)
    stream = gpu.line("Stream #13(compute)", 13, 1000)
    for step in range(3):
        zero = step * 1_000_000
        host.event(thread, f"train {step}", zero, 900_000, group_id=step)
        host.event(thread, "a/fc/MatMul:MatMul", zero + 1000, 50_000)
        host.event(thread, "cuLaunchKernel", zero + 2000, 3000, correlation_id=step + 1)
        gpu.event(stream, "gemm", zero + 9000, 70_000, correlation_id=step + 1, tf_op="a/fc/MatMul:MatMul")
        gpu.event(stream, "fusion", zero + 90_000, 70_000, hlo_op="fusion.1", hlo_module="jit_f", program_id=1)
        gpu.event(stream, "MemcpyH2D", zero + 190_000, 7000, memcpy_details="kind_src:pageable size:64 async:1")
    file.program("jit_f(1)", 1, {"fusion.1": "jit(f)/jit(main)/transpose(jvp(Net))/fc/dot_general"})
    return bytes(file.space.SerializeToString())


def xplane(path: Path, chance: random.Random) -> None:
    """Write a damaged file."""
    path.write_bytes(_damaged(chance.choice(_seeds()), messages().XSpace, chance))


def pftrace(path: Path, chance: random.Random) -> None:
    """Write a damaged trace, mostly compressed, as PyTorch does."""
    content = _damaged(_trace(), perfetto_messages().Trace, chance)
    if chance.random() < 0.7:
        content = gzip.compress(content, 1)
        content = damaged(content, chance) if chance.random() < 0.1 else content
    path.write_bytes(content)


@functools.cache
def _trace() -> bytes:
    return gzip.decompress(shared("kineto/cuspy_h100_bert_small.pftrace.gz").read_bytes())


def _damaged(content: bytes, kind: Any, chance: random.Random) -> bytes:
    if chance.random() < 0.7:
        message = kind.FromString(content)
        for _ in range(chance.choice((1, 2, 5, 20))):
            _change(_anywhere(message, chance), chance)
        content = message.SerializeToString()
    if chance.random() < 0.3:
        content = damaged(content, chance)
    if chance.random() < 0.1:
        content = _rewired(content, chance)
    return content


def _anywhere(message: Any, chance: random.Random) -> Any:
    while chance.random() < 0.85:
        inside = [child for field, value in message.ListFields() for child in _children(field, value, chance)]
        if not inside:
            break
        message = chance.choice(inside)
    return message


def _children(field: Any, value: Any, chance: random.Random) -> list[Any]:
    if field.message_type is None:
        return []
    return [chance.choice(value)] if field.is_repeated else [value]


def _change(message: Any, chance: random.Random) -> None:
    field = chance.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        values = getattr(message, field.name)
        if not len(values):
            return
        if chance.random() < 0.3:
            del values[chance.randrange(len(values)) :: chance.choice((1, 2))]
        elif chance.random() < 0.6:
            values.extend(list(values)[-200:] * chance.choice((1, 3)))
        elif field.message_type is not None:
            for value in values:
                _change(value, chance)
    elif field.message_type is not None:
        message.ClearField(field.name)
    elif field.cpp_type == field.CPPTYPE_STRING:
        setattr(message, field.name, chance.choice(_TEXTS))
    elif field.cpp_type == field.CPPTYPE_DOUBLE:
        setattr(message, field.name, chance.choice((float("nan"), float("inf"), -1e308, 0.5)))
    else:
        number = chance.choice(INTEGERS)
        setattr(message, field.name, number % 2**64 if field.cpp_type == field.CPPTYPE_UINT64 else number)


def _rewired(content: bytes, chance: random.Random) -> bytes:
    """Add unusual or invalid wire data: nested groups, overlong varints, unknown fields."""
    at = chance.randrange(len(content) + 1)
    more = chance.choice((
        b"\x0b" * 100_000, b"\x0b" * 90 + b"\x0c" * 90, b"\x80" * 20, b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x0f",
        b"\x78\x01", b"\x0a\x00" * 5000, b"\x00\x00", b"\x07", b"\x0a\x05ab",
    ))  # fmt: skip
    return content + more if chance.random() < 0.5 else content[:at] + more + content[at:]
