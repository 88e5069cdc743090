"""Damaged CSV files of Nsight Compute and nvprof: wrong numbers, quotes, columns, encodings, interleaved output."""

from __future__ import annotations

import codecs
import random
from collections.abc import Sequence
from pathlib import Path

from fuzz_bytes import INTEGERS, TEXTS, damaged, lines_damaged

__all__ = ["ncu_csv", "nvprof_csv"]

_DATA = Path(__file__).parents[1] / "data"
_NUMBERS = (
    "1e999", "-1e999", "1e-999", "NaN", "inf", "nan", "1,234,567.89", "1.234.567,89", "1,2,3,4", "1.2.3", "0x10", "-0",
    "1e3", "9" * 64, "9" * 5000, "+5", "--5", "５", "1 000", "½", "1e10", "1e19",
    "4611686018427387904", "-1", "0.0000000001",
)  # fmt: skip
_UNITS = ("ns", "us", "ms", "s", "second", "B", "KB", "%", "", "µs", "hour", "us,us", "byte/second")
_NOISE = (
    b"==PROF== Disconnected", b"==123== NVPROF is profiling process 123, command: x", b"==1== Profiling result:",
    b"======== Profiling result:", b"==123== Warning: 1 records have invalid timestamps", b"", b"\0\0\0", b'"', b'","',
    b"\xff\xfe", b'"a","b', b"," * 3000, b'"' * 3001, b"x" * 200_000, b"\t\t\t", b"==1== API calls: No API calls",
)  # fmt: skip


def ncu_csv(path: Path, chance: random.Random) -> None:
    """Write a damaged CSV file of Nsight Compute."""
    _write(path, chance, ("ncu_raw_texts.csv", "ncu_raw_training.csv"))


def nvprof_csv(path: Path, chance: random.Random) -> None:
    """Write a damaged CSV file of nvprof."""
    names = ("nvprof_alexnet_flops.csv", "nvprof_gpu_trace.csv", "nvprof_summary.csv", "nvprof_trace.csv")
    _write(path, chance, names)


def _write(path: Path, chance: random.Random, names: Sequence[str]) -> None:
    content = (_DATA / chance.choice(names)).read_bytes()
    for _ in range(chance.choice((1, 1, 2, 4))):
        step = chance.randrange(8)
        if step < 4:
            content = _fields(content, chance)
        elif step < 6:
            content = lines_damaged(content, chance)
        elif step == 6:
            content = damaged(content, chance)
        else:
            content = _noise(content, chance, names)
    path.write_bytes(_encoded(content, chance))


def _fields(content: bytes, chance: random.Random) -> bytes:
    """Change fields, a whole column, or the number of columns. Also splits at commas inside quotes, on purpose."""
    lines = content.split(b"\n")
    separator = b'","' if chance.random() < 0.5 else b","
    start, count = chance.randrange(len(lines)), chance.choice((1, 1, 3, len(lines)))
    column, value = chance.randrange(24), _value(chance)
    gone = chance.random() < 0.2
    for at in range(start, min(start + count, len(lines))):
        fields = lines[at].split(separator)
        if column < len(fields):
            fields[column : column + 1] = [] if gone else [value]
            lines[at] = separator.join(fields)
    return b"\n".join(lines)


def _value(chance: random.Random) -> bytes:
    pick = chance.randrange(4)
    if pick == 0:
        return str(chance.choice(INTEGERS)).encode()
    if pick == 1:
        return chance.choice(TEXTS).encode("utf-8", "surrogatepass")
    return chance.choice(_NUMBERS if pick == 2 else _UNITS).encode()


def _noise(content: bytes, chance: random.Random, names: Sequence[str]) -> bytes:
    lines = content.split(b"\n")
    at = chance.randrange(len(lines) + 1)
    if chance.random() < 0.5:
        lines[at:at] = [chance.choice(_NOISE)]
    else:
        lines[at:at] = (_DATA / chance.choice(names)).read_bytes().split(b"\n") * chance.choice((1, 1, 30))
    return b"\n".join(lines)


def _encoded(content: bytes, chance: random.Random) -> bytes:
    match chance.randrange(12):
        case 0:
            return codecs.BOM_UTF8 + content
        case 1:
            return content.decode("utf-8", "replace").encode("utf-16")
        case 2:
            return codecs.BOM_UTF16_BE + content
        case 3:
            return content.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\x0b", b"\xe2\x80\xa8")))
        case _:
            return content
