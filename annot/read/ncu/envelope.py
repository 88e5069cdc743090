"""Read process and thread of each result from the block structure of an Nsight Compute report.

NVIDIA documents the file in the ``.proto`` files of Nsight Compute (extras/FileFormat). After the magic comes a message
FileHeader, then blocks. A block is a message BlockHeader and a payload of messages: sources, results and range results.
Four bytes with the size precede each message. NVIDIA's package `ncu_report` does not return processes and threads, and
does not detect a truncated file. This module reads both from the file.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from annot.errors import AnnotError
from annot.util.protobuf import BYTES, INT64, UINT64, Fields, message_classes, parse

__all__ = ["MAGIC", "Envelope", "open_envelope"]

MAGIC: Final = b"NVR\x00"

_VERSION: Final = 7  # file version of Nsight Compute 2022 to 2026
_FIELDS: Final[dict[str, Fields]] = {
    "FileHeader": (("version", 1, UINT64),),
    "BlockHeader": (
        ("sources", 1, UINT64), ("session", 3, "Session"), ("payload", 5, UINT64), ("process", 6, "Process"),
    ),
    "Session": (("process", 1, INT64), ("components", 8, ["Component"])),
    "Component": (("name", 1, BYTES), ("version", 2, BYTES)),
    "Process": (("process", 1, INT64),),
    "Result": (("thread", 1, INT64),),
}  # fmt: skip


@dataclass(slots=True)
class Envelope:
    """Producer and origins of the results."""

    producer: str = ""
    """Name and version of the tool, "" if unknown."""
    origins: list[tuple[int, int]] | None = field(default_factory=list)
    """Process and thread of each result, in order. None for an unsupported file version."""


def open_envelope(path: Path) -> Envelope:
    """Read the block structure of a report.

    Raises:
        AnnotError: the file cannot be read, it is truncated or damaged, or protobuf is not installed.
    """
    try:
        with path.open("rb") as file:
            return _walk(file, path.stat().st_size)
    except ImportError:
        raise AnnotError(
            f"{path} is a report of Nsight Compute, which requires protobuf: pip install 'annot[ncu]'"
        ) from None
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise AnnotError(f"{path} is a truncated or damaged report of Nsight Compute: {error}") from None


@functools.cache
def _messages() -> Any:
    return message_classes("annot.ncu", _FIELDS, ("FileHeader", "BlockHeader", "Result"))


def _walk(file: BinaryIO, size: int) -> Envelope:
    kinds = _messages()
    file.seek(len(MAGIC))
    if parse(kinds.FileHeader, _message(file, size)).version > _VERSION:
        return Envelope(origins=None)
    origins: list[tuple[int, int]] = []
    producer, process = "", 0
    while file.tell() < size:
        header = parse(kinds.BlockHeader, _message(file, size))
        process = header.process.process or header.session.process or process
        producer = producer or _producer(header.session)
        end = file.tell() + header.payload
        if end > size:
            raise ValueError(f"it has {size:,} of at least {end:,} bytes")
        count = 0
        while file.tell() < end:
            message = _message(file, end)
            if count >= header.sources:
                origins.append((process, parse(kinds.Result, message).thread))
            count += 1
    return Envelope(producer, origins)


def _producer(session: Any) -> str:
    """Return Nsight Compute and its version from the session's list of components."""
    for component in session.components:
        if component.name.startswith(b"Nsight Compute"):
            return f"Nsight Compute {component.version.decode('utf-8', 'replace')}"
    return ""


def _message(file: BinaryIO, end: int) -> bytes:
    at = file.tell()
    size = file.read(4)
    length = int.from_bytes(size, "little")
    if len(size) < 4 or at + 4 + length > end:
        raise ValueError(f"the message at byte {at:,} ends after byte {end:,}")
    return file.read(length)
