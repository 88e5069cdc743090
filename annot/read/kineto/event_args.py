"""Arguments of trace events: the fields that annot reads, decoded for many events at once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
import polars as pl

from annot.read.kineto.graph_annotations import annotation
from annot.read.kineto.messages import message_text
from annot.read.kineto.operator_calls import call_text
from annot.read.kineto.trace_events import Event

__all__ = [
    "ACTIVITY_ARGS", "CALL_ARGS", "LAUNCH_ARGS", "MESSAGE_ARGS", "MODULE_ARGS", "RANGE_ARGS", "Details",
    "annotation_of", "argument_columns", "decoded", "integer", "integers", "text_of",
]  # fmt: skip

_NO_TEXT: Final = msgspec.Raw(b"")
"""Arguments that `Details` leaves undecoded. All others are integers."""


class _RangeArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward: int | None = msgspec.field(name="Fwd thread id", default=None)


class _CallArgs(_RangeArgs, gc=False):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_TEXT)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_TEXT)

    def call(self, operator: str) -> tuple[Any, ...] | None:
        """Return the function that makes the text of the call, and its arguments; None: unknown inputs."""
        return (call_text, operator, *map(bytes, (self.dims, self.types, self.values))) if len(self.dims) else None


class _MessageArgs(_RangeArgs, gc=False):
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_NO_TEXT)
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_NO_TEXT)
    ranks: msgspec.Raw = msgspec.field(name="Group size", default=_NO_TEXT)
    sent: msgspec.Raw = msgspec.field(name="In msg nelems", default=_NO_TEXT)
    received: msgspec.Raw = msgspec.field(name="Out msg nelems", default=_NO_TEXT)
    dtype: msgspec.Raw = _NO_TEXT

    def call(self, _: str) -> tuple[Any, ...] | None:
        """The same for the message of a collective."""
        fields = (self.collective, self.group, self.ranks, self.sent, self.received, self.dtype)
        return (message_text, *map(bytes, fields)) if len(self.collective) else None


class _ModuleArgs(msgspec.Struct, gc=False):
    python: int | None = msgspec.field(name="Python id", default=None)


class _LaunchArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    correlation: int | None = None
    kernel: msgspec.Raw = _NO_TEXT
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT


class _ActivityArgs(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(name="External id", default=None)
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    bytes: int | None = None
    external_lower_case: int | None = msgspec.field(name="external id", default=None)
    node: int | None = msgspec.field(name="graph node id", default=None)
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT
    module: msgspec.Raw = msgspec.field(name="module_fqn", default=_NO_TEXT)
    name: msgspec.Raw = _NO_TEXT
    text: msgspec.Raw = msgspec.field(name="str", default=_NO_TEXT)
    annotation: msgspec.Raw = _NO_TEXT


_ANNOTATION_KEYS: Final = {"module_fqn": "module", "name": "name", "str": "text", "annotation": "annotation"}


class Details:
    """Decode the arguments of many events at once, or one by one if some have unexpected types."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        fields = msgspec.structs.fields(kind)
        self.keys = {field.name: field.encode_name for field in fields if field.type is not msgspec.Raw}
        self.texts = {field.name for field in fields if field.type is msgspec.Raw}
        self._all: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]

    def of(self, events: Sequence[Event]) -> list[Any]:
        """Return the arguments of events, or raise MsgspecError if one has an unexpected type."""
        return self._all.decode(b"[" + b",".join([event.args for event in events]) + b"]")

    def of_one(self, text: msgspec.Raw) -> tuple[Any, bool]:
        """Return the arguments, None if their type is unexpected, and whether all types were expected."""
        try:
            return msgspec.json.decode(text, type=self._kind, strict=False), True
        except (msgspec.MsgspecError, UnicodeDecodeError):
            given = decoded(text)
        if not isinstance(given, dict):
            return self._kind(), given is None
        values = {name: integer(given.get(key)) for name, key in self.keys.items()}
        valid = all((values[name] is None) == (given.get(key) is None) for name, key in self.keys.items())
        return self._kind(**values), valid


RANGE_ARGS: Final = Details(_RangeArgs)
MESSAGE_ARGS: Final = Details(_MessageArgs)
CALL_ARGS: Final = Details(_CallArgs)
MODULE_ARGS: Final = Details(_ModuleArgs)
LAUNCH_ARGS: Final = Details(_LaunchArgs)
ACTIVITY_ARGS: Final = Details(_ActivityArgs)


def argument_columns(details: Details, args: Sequence[Any]) -> dict[str, pl.Series]:
    """Return the integer arguments of events as columns."""
    return {name: integers(list(map(attrgetter(name), args))) for name in details.keys}


def text_of(value: msgspec.Raw) -> str | None:
    """Return the text in a JSON value; None: it is absent or no text."""
    text = decoded(value) if bytes(value) else None
    return text if isinstance(text, str) else None


def annotation_of(args: _ActivityArgs) -> tuple[str, str] | None:
    """Return text and role of the annotation of a graph node, None without one."""
    return annotation({key: text_of(getattr(args, name)) for key, name in _ANNOTATION_KEYS.items()})


def integers(values: Sequence[int | None]) -> pl.Series:
    """Return 64-bit integers. Greater integers become null."""
    return pl.Series(values, dtype=pl.Int64, strict=False)


def integer(value: object) -> int | None:
    """Return an integer or a text with one; None: another value."""
    try:
        return msgspec.convert(value, int | None, strict=False)
    except msgspec.ValidationError:
        return None


def decoded(text: msgspec.Raw) -> Any:
    """Return the value of JSON text, None if it is invalid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
