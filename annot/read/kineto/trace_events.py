"""Decode the events of a Chrome trace in blocks, in constant memory.

The file is JSON, plain or compressed with gzip: an object with the list ``traceEvents`` and other keys, or the list
alone (Chrome's "Trace Event Format"). The reader guesses the end of a block from the text ``}, {``. The guess is
correct if the block decodes as a list, because a block begins at an event. If no guess is correct, `json` of the
standard library decodes the events one by one. It accepts NaN, which becomes None. List items that are not events are
skipped and counted.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from annot.errors import AnnotError

GZIP: Final = b"\x1f\x8b"

NO_ARGS: Final = msgspec.Raw(b"{}")

_SMALL: Final = 1 << 16
_TAIL: Final = 1 << 14
_GUESSES: Final = 3
_BETWEEN: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_COMMA: Final = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_SPACE_BYTES: Final = re.compile(rb"[ \t\r\n]*")
_LONGEST: Final = 1 << 24
"""Maximum bytes of one event, and of all values outside ``traceEvents``. Both are in memory as a whole."""
_MOST_KEYS: Final = 1 << 14
"""Maximum number of keys of the object. Real traces have about ten."""

_FREE: Final = 1 << 28
_RATIO: Final = 100
"""A compressed file may decompress to `_FREE` bytes, or to `_RATIO` times its size. Real traces reach 40 times."""


class Event(msgspec.Struct, gc=False):
    """An event, with the fields that annot uses.

    `args` is undecoded JSON. `ts` and `dur` are in microseconds: integers, floats, or decimals for an exact `TraceFile`
    and for numbers in quotes.
    """

    # msgspec decodes fields fastest in the order of the file. This is the order of Kineto.
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | Decimal | None = None
    dur: int | float | Decimal | None = None
    args: msgspec.Raw = NO_ARGS
    id: int | float | str | None = None


class _ExactEvent(Event, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


_EVENTS: Final = msgspec.json.Decoder(list[Event], strict=False)
_EXACT_EVENTS: Final = msgspec.json.Decoder(list[_ExactEvent], strict=False)
_ANY: Final = json.JSONDecoder(strict=False)
_ANY_EXACT: Final = json.JSONDecoder(strict=False, parse_float=Decimal, parse_constant=lambda _: None)


class TraceFile:
    """A file of trace events, plain or compressed with gzip. It can be read once, in blocks of about `block` bytes.

    If `exact`, times are decimals, which is slower. Floats are not exact to the nanosecond from 2^43 µs.
    """

    def __init__(self, path: Path, *, exact: bool = False, block: int = 1 << 21) -> None:
        self.top: dict[str, Any] = {}  # keys and values outside `traceEvents`, complete after the last block
        self.invalid = 0  # number of skipped list items, which are not events or have a field of a wrong type
        self._path = path
        self._block = block
        self._bytes = FileBytes(path)
        self._decoder: msgspec.json.Decoder[list[Any]] = _EXACT_EVENTS if exact else _EVENTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bytes.close()

    def blocks(self) -> Iterator[list[Event]]:
        """Yield the events in the order of the file, as a list for each block."""
        if self._bytes.window(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            self._bytes.skip(len(codecs.BOM_UTF8))
        first = self._bytes.peek()
        if first == b"[":
            yield from self._events()
        elif first == b"{":
            yield from self._members()
        else:
            raise self._damage("expected an object or a list")
        if self._bytes.peek():
            raise self._damage("unexpected data after the end")

    def _members(self) -> Iterator[list[Event]]:
        separator, listed, kept = b"{", False, 0
        for _ in range(_MOST_KEYS):
            self._expect(separator)
            if separator == b"{" and self._bytes.peek() == b"}":
                break
            key = self._value()
            if not isinstance(key, str):
                raise self._damage("a key that is not a string")
            self._expect(b":")
            if key == "traceEvents" and self._bytes.peek() == b"[":
                if listed:  # JSON does not define the meaning of a repeated key
                    raise self._damage("a second list traceEvents")
                listed = True
                yield from self._events()
            else:
                start = self._bytes.at
                self.top[key] = self._value()
                kept += self._bytes.at - start
                if kept > _LONGEST:
                    raise self._damage("too much data outside traceEvents")
            if self._bytes.peek() == b"}":
                break
            separator = b","
        else:
            raise self._damage(f"more than {_MOST_KEYS:,} keys")
        self._expect(b"}")

    def _events(self) -> Iterator[list[Event]]:
        self._expect(b"[")
        while self._bytes.peek() != b"]":
            yield self._guessed_block() or self._certain_block()
            if self._bytes.peek() != b"]":
                self._expect(b",")
        self._expect(b"]")

    def _guessed_block(self) -> list[Event] | None:
        for end in islice(reversed(self._bytes.ends(self._block)), _GUESSES):
            try:
                events: list[Event] = self._decoder.decode(b"[%b]" % self._bytes.window(end))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self._bytes.skip(end)
            return events
        return None

    def _certain_block(self) -> list[Event]:
        size = min(_SMALL, self._block)
        while True:
            text = self._bytes.window(size).decode(errors="surrogateescape")
            values, end = _values(text)
            if values:
                self._bytes.skip(self._length(text[:end]))
                events = [event for event in map(self._event, values) if event is not None]
                self.invalid += len(values) - len(events)
                return events
            size = self._more(size, "an incomplete event")

    def _value(self) -> Any:
        self._bytes.peek()
        size = 1 << 12
        while True:
            text = self._bytes.window(size).decode(errors="surrogateescape")
            try:
                value, end = _ANY.raw_decode(text)
            except (ValueError, RecursionError):
                end = len(text)
            # A number at the end of the window can be incomplete.
            if end < len(text):
                self._bytes.skip(self._length(text[:end]))
                return value
            size = self._more(size, "an incomplete value")

    def _more(self, size: int, what: str) -> int:
        if len(self._bytes) < size or size >= _LONGEST:
            raise self._damage(what)
        return size * 4

    def _length(self, text: str) -> int:
        try:
            return len(text.encode())
        except UnicodeEncodeError:
            raise self._damage("text that is not UTF-8") from None

    @staticmethod
    def _event(value: Any) -> Event | None:
        if not isinstance(value, dict):
            return None
        fields = {name: value[name] for name in Event.__struct_fields__ if name in value}
        args = fields.pop("args", None)
        for name in ("ph", "name", "cat"):
            fields[name] = str(fields.get(name, "")).encode(errors="replace").decode()
        try:
            fields |= {name: Decimal(fields[name]) for name in ("ts", "dur") if isinstance(fields.get(name), str)}
            event = msgspec.convert(fields, Event, strict=False)
            event.args = msgspec.Raw(msgspec.json.encode(args)) if isinstance(args, dict) else NO_ARGS
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            return None
        return event

    def _expect(self, mark: bytes) -> None:
        if self._bytes.peek() != mark:
            raise self._damage(f"expected {mark.decode()}")
        self._bytes.skip(1)

    def _damage(self, what: str) -> AnnotError:
        return AnnotError(f"{self._path} is not a complete trace of torch.profiler: {what} at byte {self._bytes.at:,}")


def _values(text: str) -> tuple[list[Any], int]:
    """Return the complete values of a list from its first item on, and the index after the last one."""
    values: list[Any] = []
    end = at = 0
    while True:
        try:
            value, at = _ANY_EXACT.raw_decode(text, at)
        except (ValueError, ArithmeticError, RecursionError):
            return values, end
        if at == len(text):
            return values, end
        values.append(value)
        end = at
        comma = _COMMA.match(text, at)
        if comma is None:
            return values, end
        at = comma.end()


class FileBytes:
    """The decompressed bytes of a file from a position that moves forward."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        packed = self._file.read(2) == GZIP
        self._limit = max(_FREE, _RATIO * path.stat().st_size) if packed else None
        self._file.seek(0)
        self._unpacked = gzip.GzipFile(fileobj=self._file) if packed else self._file
        self._buffer, self._position = b"", 0
        self._offset = 0  # of the buffer in the decompressed file
        self._ended = False

    def close(self) -> None:
        """Close the file."""
        self._unpacked.close()
        self._file.close()

    def __len__(self) -> int:
        return len(self._buffer) - self._position

    @property
    def at(self) -> int:
        """Offset in the decompressed file."""
        return self._offset + self._position

    def skip(self, size: int) -> None:
        """Move forward by `size` bytes of the last window."""
        self._position += size

    def window(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the file."""
        self._fill(size)
        return self._buffer[self._position : self._position + size]

    def peek(self) -> bytes:
        """Skip white space and return the next byte, or b"" at the end of the file."""
        while True:
            space = _SPACE_BYTES.match(self._buffer, self._position)
            self._position = space.end() if space else self._position
            if len(self) or self._ended:
                return self._buffer[self._position : self._position + 1]
            self._fill(_SMALL)

    def ends(self, size: int) -> list[int]:
        """Return the offsets in the next `size` bytes where an event seems to end and another to begin."""
        self._fill(size)
        end = self._position + size
        for start in (max(self._position, min(end, len(self._buffer)) - _TAIL), self._position):
            if ends := [match.start() + 1 - self._position for match in _BETWEEN.finditer(self._buffer, start, end)]:
                return ends
        return []

    def _fill(self, size: int) -> None:
        wanted = size - len(self)
        if wanted > 0 and not self._ended:
            more = self._read(wanted)
            self._ended = len(more) < wanted
            self._offset += self._position
            self._buffer, self._position = self._buffer[self._position :] + more, 0

    def _read(self, size: int) -> bytes:
        try:
            data = self._unpacked.read(size)
        except EOFError:
            raise AnnotError(f"{self._path} is truncated: the compressed data is incomplete") from None
        except (OSError, zlib.error) as error:
            raise AnnotError(f"{self._path} cannot be read: {error}") from None
        if self._limit is not None and self._offset + len(self._buffer) + len(data) > self._limit:
            raise AnnotError(
                f"{self._path} decompresses to more than {self._limit >> 20:,} MiB, too much for a trace of its size. "
                "If you trust the file, decompress it first."
            )
        return data
