"""Read process and thread of each result from the block structure of an Nsight Compute report.

NVIDIA documents the file in the ``.proto`` files of Nsight Compute (extras/FileFormat). After the magic comes a message
FileHeader, then blocks. A block is a message BlockHeader and a payload of messages: sources, results and range results.
Four bytes with the size precede each message. NVIDIA's package `ncu_report` does not return processes and threads, and
does not detect a truncated file. This module reads both from the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from annot.errors import AnnotError

__all__ = ["MAGIC", "Envelope", "open_envelope"]

MAGIC: Final = b"NVR\x00"

_VERSION: Final = 7  # file version of Nsight Compute 2022 to 2026
_SIZE: Final = struct.Struct("<I")
_FIXED: Final = {1: 8, 5: 4}


@dataclass(slots=True)
class Envelope:
    """Producer and origins of the results.

    Args:
        producer: name and version of the tool, "" if unknown.
        origins: process and thread of each result, in order. None for an unsupported file version.
    """

    producer: str = ""
    origins: list[tuple[int, int]] | None = field(default_factory=list)


def open_envelope(path: Path) -> Envelope:
    """Read the block structure of a report.

    Args:
        path: the ``.ncu-rep`` file.

    Raises:
        AnnotError: the file cannot be read, or it is truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            return _walk(file, path.stat().st_size)
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, IndexError, struct.error) as error:
        raise AnnotError(f"{path} is a truncated or damaged report of Nsight Compute: {error}") from None


def _walk(file: BinaryIO, size: int) -> Envelope:
    envelope = Envelope()
    file.seek(len(MAGIC))
    if _number(_message(file, size), 1) > _VERSION:
        envelope.origins = None
        return envelope
    process = 0
    while file.tell() < size:
        header = _message(file, size)
        process = _number(_bytes(header, 6), 1) or _number(_bytes(header, 3), 1) or process
        envelope.producer = envelope.producer or _producer(_bytes(header, 3))
        end = file.tell() + _number(header, 5)
        if end > size:
            raise ValueError(f"it has {size:,} of at least {end:,} bytes")
        _walk_payload(file, end, _number(header, 1), process, envelope)
    return envelope


def _walk_payload(file: BinaryIO, end: int, sources: int, process: int, envelope: Envelope) -> None:
    count = 0
    while file.tell() < end:
        length = _length(file, end)
        after = file.tell() + length
        if count >= sources and envelope.origins is not None:
            start = file.read(min(length, 16))
            thread = _varint(start, 1)[0] if start[:1] == b"\x08" else 0  # field 1 comes first
            envelope.origins.append((process, thread))
        file.seek(after)
        count += 1


def _producer(session: bytes) -> str:
    """Return Nsight Compute and its version from the session's list of components."""
    for number, value in _fields(session):
        if number == 8 and isinstance(value, bytes):
            provider = _bytes(value, 1).decode("utf-8", "replace")
            if provider.startswith("Nsight Compute"):
                return f"Nsight Compute {_bytes(value, 2).decode('utf-8', 'replace')}"
    return ""


def _length(file: BinaryIO, end: int) -> int:
    at = file.tell()
    data = file.read(_SIZE.size)
    length = int(_SIZE.unpack(data)[0]) if len(data) == _SIZE.size else 0
    if len(data) < _SIZE.size or at + _SIZE.size + length > end:
        raise ValueError(f"the message at byte {at:,} ends after byte {end:,}")
    return length


def _message(file: BinaryIO, end: int) -> bytes:
    return file.read(_length(file, end))


def _number(message: bytes, field_number: int) -> int:
    return next((value for number, value in _fields(message) if number == field_number and isinstance(value, int)), 0)


def _bytes(message: bytes, field_number: int) -> bytes:
    found = (value for number, value in _fields(message) if number == field_number and isinstance(value, bytes))
    return next(found, b"")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message in the protocol buffers wire format."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length, at = _varint(message, at) if kind == 2 else (_FIXED.get(kind, -1), at)
        if length < 0 or at + length > len(message):
            raise ValueError("a field exceeds its message")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("an integer has more than 64 bits")
