"""Reader for Nsight Compute reports (``.ncu-rep``) through NVIDIA's package ``ncu-report``.

The package is proprietary and only this module needs it. It is therefore an optional dependency: the extra ``ncu``.

The package does not return processes and threads, and does not detect a truncated file. This module reads both from
the block structure of the file, which NVIDIA documents in the ``.proto`` files of Nsight Compute (extras/FileFormat).
After the magic comes a message FileHeader, then blocks. A block is a message BlockHeader and a payload of messages:
sources, results and range results. Four bytes with the size precede each message.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.ncu.launch_order import DEFAULT_DOMAIN, DURATIONS, Launch, OpenRange, profile_of
from annot.util.distribution import install_command
from annot.util.installed_tools import run_tool
from annot.util.protobuf import BYTES, INT64, UINT64, Fields, message_classes, parse

NAME: Final = "ncu_rep"

_WORKER: Final = Path(__file__).with_name("worker.py")
_SECONDS: Final = 120
_SECONDS_PER_MEGABYTE: Final = 2
_MAGIC: Final = b"NVR\x00"

_VERSION: Final = 7  # file version of Nsight Compute 2022 to 2026
_FIELDS: Final[dict[str, Fields]] = {
    "FileHeader": (("version", 1, UINT64),),
    "BlockHeader": (
        ("sources", 1, UINT64),
        ("session", 3, "Session"),
        ("payload", 5, UINT64),
        ("process", 6, "Process"),
    ),
    "Session": (("process", 1, INT64), ("components", 8, ["Component"])),
    "Component": (("name", 1, BYTES), ("version", 2, BYTES)),
    "Process": (("process", 1, INT64),),
    "Result": (("thread", 1, INT64),),
}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file has the magic of a report; see `annot.read.formats.Reader`."""
    return head.startswith(_MAGIC)


def read(path: Path) -> Profile:
    """Read a report; see `annot.read.formats.Reader`."""
    producer, origins = open_envelope(path)
    with tempfile.TemporaryFile() as output:
        _print_report(path, output)
        output.seek(0)
        launches = _launches(output)
    if not launches:
        raise AnnotError(f"{path} is a report of Nsight Compute without results")
    notes = []
    if origins is not None and len(origins) == len(launches):
        for launch, (process, thread) in zip(launches, origins, strict=True):
            launch.process, launch.thread = process, thread
    else:
        notes.append("The process and thread of each launch are unknown. annot assigns all launches to one thread.")
    return profile_of(path, NAME, producer, launches, notes)


def _print_report(path: Path, output: Any) -> None:
    if importlib.util.find_spec("ncu_report") is None:
        raise AnnotError(
            f"{path} is a report of Nsight Compute, which requires NVIDIA's package: pip install ncu-report"
        )
    # -P: do not import from the folder of the worker.
    command = [sys.executable, "-P", str(_WORKER), str(path.absolute())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    limit = _SECONDS + _SECONDS_PER_MEGABYTE * path.stat().st_size // 2**20
    try:
        result = run_tool(command, limit, stdout=output, stderr=subprocess.PIPE, env=environment)
    except subprocess.TimeoutExpired:
        raise AnnotError(f"{path} cannot be read: NVIDIA's ncu_report did not finish in {limit} s") from None
    if result.returncode:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {result.returncode}"]
        raise AnnotError(f"{path} is a damaged report of Nsight Compute, or NVIDIA's ncu_report failed: {lines[-1]}")


def _launches(lines: Iterable[bytes]) -> list[Launch]:
    """Read the output of `annot.read.ncu.worker`."""
    metrics: list[tuple[str, str]] = []
    launches = []
    for line in lines:
        value = json.loads(line)
        if isinstance(value, list):
            # ncu_report returns base units, and no unit for an unknown chip.
            metrics.append((value[0], value[1] or ("ns" if value[0] in DURATIONS else "")))
        else:
            launches.append(_launch(value, metrics))
    return launches


def _launch(action: dict[str, Any], metrics: list[tuple[str, str]]) -> Launch:
    values = {metrics[number]: float(value) for number, value in action["metrics"]}
    pushed: dict[str, list[OpenRange]] = {}
    for opened in map(_range, action["pushed"]):
        pushed.setdefault(opened.domain, []).append(opened)
    started = [_range(opened) for opened in action["started"]]
    return Launch(0, 0, action["name"], started=started, pushed=pushed, metrics=values)


def _range(opened: list[Any]) -> OpenRange:
    domain, text, payload, color = opened
    return OpenRange("" if domain == DEFAULT_DOMAIN else domain, text, None, payload, color)


_Envelope: TypeAlias = tuple[str, list[tuple[int, int]] | None]
"""Name and version of the tool, "" if unknown, and process and thread of each result, None for unsupported files."""


def open_envelope(path: Path) -> _Envelope:
    """Return producer and origins in the block structure of a report, or raise AnnotError for a damaged file."""
    try:
        with path.open("rb") as file:
            return _walk(file, path.stat().st_size)
    except ImportError:
        raise AnnotError(
            f"{path} is a report of Nsight Compute, which requires protobuf: {install_command('ncu')}"
        ) from None
    except ValueError as error:
        raise AnnotError(f"{path} is a truncated or damaged report of Nsight Compute: {error}") from None


def _walk(file: BinaryIO, size: int) -> _Envelope:
    kinds = message_classes("annot.ncu", _FIELDS, ("FileHeader", "BlockHeader", "Result"))
    file.seek(len(_MAGIC))
    if parse(kinds.FileHeader, _message(file, size)).version > _VERSION:
        return "", None
    origins: list[tuple[int, int]] = []
    producer, process = "", 0
    while file.tell() < size:
        header = parse(kinds.BlockHeader, _message(file, size))
        process = header.process.process or header.session.process or process
        for component in header.session.components:
            if not producer and component.name.startswith(b"Nsight Compute"):
                producer = f"Nsight Compute {component.version.decode('utf-8', 'replace')}"
        end = file.tell() + header.payload
        if end > size:
            raise ValueError(f"it has {size:,} of at least {end:,} bytes")
        count = 0
        while file.tell() < end:
            message = _message(file, end)
            if count >= header.sources:
                origins.append((process, parse(kinds.Result, message).thread))
            count += 1
    return producer, origins


def _message(file: BinaryIO, end: int) -> bytes:
    at = file.tell()
    size = file.read(4)
    length = int.from_bytes(size, "little")
    if len(size) < 4 or at + 4 + length > end:
        raise ValueError(f"the message at byte {at:,} ends after byte {end:,}")
    return file.read(length)
