"""The XPlane files of the profilers of TensorFlow, JAX and XLA (``*.xplane.pb``).

A file is one message of protobuf, parsed as a whole: it holds a plane per device and planes of the host, each with
lines (streams, threads) of events, whose details are statistics by name. All that is read belongs to one process.

Devices: every event on a line of a stream is a kernel or, by its details, a copy or set of memory; what has neither
line of streams (a TPU) shows its ``XLA Ops`` instead, those that contain no others. Lines that the profiler derived,
as ``TensorFlow Name Scope`` and ``Steps``, say nothing new and are left out.

Host: an event with a correlation id is the launch of device work. The operations of TensorFlow
(``model/dense/MatMul:MatMul``) and those of XLA become operators; their name scopes become ranges around them that
bear the scope as the path of a layer, see `annot.scopes` and `annot.read.xplane_ranges`. An event with
the number of a step is the batch of that number. Events of the runtime itself become operators too, so that they
are no layers: those of its own threads, and those whose names only it uses. All others are annotations.

Kernels know the operation that launched them (statistics ``name``, ``hlo_op``, ``tf_op``, ``annotation``). Where
their launch lies in no event of that operation, ranges for its scopes are put around the launch, or one with its
name if it has no scopes. Where the launch is
not known, they are put around the kernel itself, on a thread that stands for the stream and is named as its origin.

Times are picoseconds after the beginning of a line. Both ends of an event are rounded down to nanoseconds, so that
events that touch still touch, and lengths next to each other add up to the length of the whole.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LAUNCHES, Profile, Schema, pick
from annot.read.xplane_device import Work, read_device
from annot.read.xplane_hlo import Instructions
from annot.read.xplane_host import Host
from annot.read.xplane_origins import Origins, launched, place
from annot.read.xplane_plane import Plane, decode
from annot.read.xplane_proto import messages
from annot.read.xplane_ranges import Ranges
from annot.scope_text import SIDE_FILE
from annot.scopes import Scopes

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "xplane"

_PROCESS: Final = 0
_MOST_RANGES: Final = 20_000_000
_MOST_NOTES: Final = 20
_LONGEST_NOTE: Final = 500
_FIRST: Final = re.compile(
    rb"\x0a[\x80-\xff]{0,8}[\x01-\x7f]"  # a plane and its length
    rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"  # its number
    rb"\x12([\x01-\x7f])"  # its name and the length of it
    rb"(?=/host:|/device:|/virtualdevice:|#Chip|Task Environment|Host CPUs|Syscalls)([ -~]*)"
)
_DEVICES: Final = ("/device:", "/virtualdevice:", "#Chip")
_METADATA: Final = "/host:metadata"
# Planes of the host without stretches of time that a user would look for.
_PASSED: Final = frozenset({_METADATA, "/host:tfstreamz", "/host:python-tracer", "/host:__ScopeRangeCallStack__"})


def sniff(path: Path, head: bytes) -> bool:
    """Return whether a file begins with a plane that has one of the names profilers give; see `annot.read.Reader`.

    A folder is one that TensorFlow's or JAX's profiler was given to write to.
    """
    if not head:
        return path.is_dir() and bool(_captures(path))
    first = _FIRST.match(head)
    return first is not None and len(first[2]) >= first[1][0]


def read(path: Path) -> Profile:
    """Read an XPlane file; see `annot.read.Reader`.

    Raises:
        AnnotError: the file is cut or damaged, it holds more than can be read, protobuf is not installed, or the folder
            holds several files.
    """
    path = _file_of(path)
    space = _parsed(path)
    try:
        with _without_collection():
            return _profile(path, space)
    except OverflowError as error:
        raise AnnotError(f"{path} cannot be read: {error}") from None


def _captures(folder: Path) -> list[Path]:
    """The files in a folder or in the log directory that it is, the newest capture last."""
    return sorted(file for pattern in ("*", "plugins/profile/*/*") for file in folder.glob(f"{pattern}.xplane.pb"))


def _file_of(path: Path) -> Path:
    """The file itself, or the only one in a folder."""
    found = _captures(path) if path.is_dir() else [path]
    if len(found) > 1:
        raise AnnotError(f"{path} holds {len(found)} XPlane files: name one of them, such as {found[-1]}")
    return found[0]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Millions of small objects are made, none of them in cycles: looking for cycles takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parsed(path: Path) -> Any:
    try:
        space = messages().XSpace
        from google.protobuf.message import DecodeError
    except ImportError:
        raise AnnotError(f"{path} is an XPlane, which takes protobuf to read: pip install 'annot[xplane]'") from None
    try:
        return space.FromString(path.read_bytes())
    except DecodeError:
        raise AnnotError(f"{path} is cut or damaged: it is not a whole XPlane") from None
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror}") from None


def _profile(path: Path, space: Any) -> Profile:
    planes = [Plane(message) for message in space.planes]
    devices = [plane for plane in planes if plane.name.startswith(_DEVICES)]
    scopes, work = Scopes(_noted(path)), Work()
    instructions = Instructions(plane for plane in planes if plane.name == _METADATA)
    for plane in devices:
        read_device(plane, work, instructions, scopes)
    operations = launched(work)
    host = Host(operations, instructions, scopes)
    for plane in planes:
        if plane.name.startswith("/host:") and plane.name not in _PASSED:
            host.read(plane)
    ranges = Ranges(scopes.levels, _MOST_RANGES)
    for thread, events in enumerate(host.events):
        ranges.add(thread, sorted(events))
    recorded = len(ranges) > 0 or bool(host.launches["start"])
    if not recorded and not work.start:
        raise AnnotError(": ".join([f"{path} holds no events of a host or device", *_said(space)[:1]]))
    origins = place(work, host, operations, scopes, ranges)
    meta = _meta(path, planes, devices) | ({} if recorded else {"host_times": False})
    meta["notes"] = [*_said(space), *_notes(work, host, instructions, origins)]
    process = pl.lit(_PROCESS, pl.Int64).alias("process")
    done = _table(work, origins).with_columns(process)
    same = {"domain": pl.lit(""), "category": pl.lit(""), "kind": pl.lit("push")}
    return Profile.build(
        meta,
        ranges=ranges.table().with_columns(process, **same),
        launches=pl.DataFrame(host.launches, schema=_columns(LAUNCHES, host.launches)).with_columns(process),
        kernels=pick(done.filter(pl.col("kind").is_null()), KERNELS),
        copies=pick(done.filter(pl.col("kind").is_not_null()), COPIES),
    )


def _table(work: Work, origins: Origins) -> pl.DataFrame:
    columns = {name: getattr(work, name) for name in ("device", "stream", "start", "end", "correlation")}
    columns |= zip(("origin_thread", "origin_start"), origins, strict=True)
    table = pl.DataFrame(columns, schema=_columns(KERNELS, columns))
    names = ("name", "kind", "bytes")
    kinds = pl.DataFrame([what[:3] for what in work.kinds], schema=_columns({**KERNELS, **COPIES}, names), orient="row")
    kinds = kinds[pl.Series(work.what, dtype=pl.Int64)]
    known = pl.when(pl.col("correlation") != 0).then("correlation")
    return table.with_columns(known.alias("correlation"), *kinds.get_columns())


def _columns(schema: Schema, names: Iterable[str]) -> Schema:
    return {name: schema[name] for name in names}


def _noted(path: Path) -> list[str]:
    """What annot noted of the scopes of layers; TensorFlow puts the profile three folders below its log directory."""
    for folder in [*path.absolute().parents][:4]:
        beside = folder / SIDE_FILE
        if beside.is_file():
            try:
                return beside.read_text("utf-8", errors="replace").splitlines()
            except OSError as error:
                raise AnnotError(f"{beside} cannot be read: {error.strerror}") from None
    return []


def _meta(path: Path, planes: Sequence[Plane], devices: Sequence[Plane]) -> dict[str, Any]:
    """What wrote the file is known only of JAX, which keeps its version with the programs."""
    versions = [plane.properties() for plane in planes if plane.name == _METADATA]
    jax = next((version["jax_version"] for version in versions if "jax_version" in version), None)
    return {
        "source": str(path),
        "format": NAME,
        "producer": "" if jax is None else f"JAX {jax}",
        "devices": [{"name": plane.name} | plane.properties() for plane in devices],
    }


def _said(space: Any) -> list[str]:
    """What the profiler has to say about the file."""
    return [" ".join(decode(text[:_LONGEST_NOTE]).split()) for text in (*space.errors, *space.warnings)][:_MOST_NOTES]


def _notes(work: Work, host: Host, instructions: Instructions, origins: Origins) -> list[str]:
    notes = []
    if lost := work.lost + host.lost:
        notes.append(f"{_some(lost, 'event')} of impossible times {'was' if lost == 1 else 'were'} left out")
    if broken := instructions.broken:
        notes.append(f"{_some(broken, 'compiled program')} could not be read, so its operations have no scopes")
    if placed := sum(start is not None for start in origins[1]):
        notes.append(
            f"{_some(placed, 'piece')} of device work came to layers by their own names, not by a launch; "
            "the host times of those layers include the times of that work on the device"
        )
    return notes


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
