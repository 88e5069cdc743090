"""Event files of TensorBoard: records with checksums, each a protocol buffer.

A record consists of length (8 bytes), checksum of the length (4), data, and checksum of the data (4), in little-endian
order. Checksums are masked CRC-32C. The messages are defined in ``tensorflow/core/util/event.proto``,
``summary.proto`` and ``tensor.proto``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from annot.errors import AnnotError
from annot.util.distribution import install_command
from annot.util.protobuf import BYTES, DOUBLE, FLOAT, INT32, INT64, STRING, Fields, message_classes

_DT_STRING: Final = 7  # tensorflow.DataType
_RGB: Final = 3

_FIELDS: Final[dict[str, Fields]] = {
    "Event": (("wall_time", 1, DOUBLE), ("step", 2, INT64), ("file_version", 3, STRING), ("summary", 5, "Summary")),
    "Summary": (("value", 1, ["Value"]),),
    "Value": (
        ("tag", 1, STRING),
        ("simple_value", 2, FLOAT),
        ("image", 4, "Image"),
        ("tensor", 8, "Tensor"),
        ("metadata", 9, "Metadata"),
    ),
    "Image": (("height", 1, INT32), ("width", 2, INT32), ("colorspace", 3, INT32), ("encoded_image_string", 4, BYTES)),
    "Tensor": (("dtype", 1, INT32), ("tensor_shape", 2, "Shape"), ("string_val", 8, [BYTES])),
    "Shape": (("dim", 2, ["Dim"]),),
    "Dim": (("size", 1, INT64),),
    "Metadata": (("plugin_data", 1, "PluginData"),),
    "PluginData": (("plugin_name", 1, STRING),),
}


def version(wall_time: float) -> bytes:
    """Return the first event of a file, its version. Wall times are in seconds since 1970."""
    return _record(wall_time, file_version="brain.Event:2")


def scalars(wall_time: float, step: int, values: dict[str, float]) -> bytes:
    """Return an event with numbers by tag."""
    return _record(wall_time, [{"tag": tag, "simple_value": value} for tag, value in values.items()], step=step)


def text(wall_time: float, tag: str, markdown: str) -> bytes:
    """Return an event with a text, which TensorBoard renders as Markdown."""
    tensor = {"dtype": _DT_STRING, "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [markdown.encode()]}
    return _record(wall_time, [{"tag": tag, "metadata": {"plugin_data": {"plugin_name": "text"}}, "tensor": tensor}])


def image(wall_time: float, tag: str, png: bytes, width: int, height: int) -> bytes:
    """Return an event with an image of `width` by `height` pixels."""
    picture = {"height": height, "width": width, "colorspace": _RGB, "encoded_image_string": png}
    return _record(wall_time, [{"tag": tag, "image": picture}])


def _record(wall_time: float, values: Sequence[Mapping[str, Any]] = (), **fields: Any) -> bytes:
    summary = {"summary": {"value": values}} if values else {}
    data: bytes = _event_class()(wall_time=wall_time, **summary, **fields).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected).

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    """The masked CRC-32C, as in ``tsl/lib/hash/crc32c.h``: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [byte >> 1 ^ (0x82F63B78 if byte & 1 else 0) for byte in table]
    return table


@functools.cache
def _event_class() -> Any:
    try:
        return message_classes("annot.tensorboard", _FIELDS, ("Event",)).Event
    except ImportError:
        raise AnnotError(
            f"TensorBoard event files need the package protobuf. Run {install_command('tensorboard')}"
        ) from None
