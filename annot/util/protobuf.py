"""Protocol buffer classes made from field descriptions, without generated code.

The classes live in a separate descriptor pool, because TensorFlow, JAX or TensorBoard may register the same messages in
the same process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

# FieldDescriptorProto.Type
DOUBLE: Final = 1
FLOAT: Final = 2
INT64: Final = 3
UINT64: Final = 4
INT32: Final = 5
STRING: Final = 9
BYTES: Final = 12
_MESSAGE: Final = 11
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label

Fields: TypeAlias = Sequence[tuple[str, int, int | str | list[Any]]]
"""Name, number and type of each field. A list is a repeated field, a string is the name of a message."""


def message_classes(package: str, messages: Mapping[str, Fields], names: Iterable[str]) -> Any:
    """Return the classes of some messages. A field that is set is written, also with its default.

    Args:
        package: a package name that no other description uses.
        messages: the fields of each message.
        names: the messages to return the classes of.

    Returns:
        A namespace with one class per name.

    Raises:
        ImportError: the package protobuf is not installed.

    Example:
        >>> point = message_classes("annot.example", {"Point": [("x", 1, INT64)]}, ["Point"]).Point(x=3)
        >>> point.SerializeToString()
        b'\\x08\\x03'
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            single, label = (kind[0], _MANY) if isinstance(kind, list) else (kind, _ONE)
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(single, str):
                added.type, added.type_name = _MESSAGE, f".{package}.{single}"
            else:
                added.type = single
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in names}
    return SimpleNamespace(**classes)


def parse(kind: Any, data: bytes) -> Any:
    """Return a message from its bytes.

    Args:
        kind: a class of `message_classes`.
        data: the complete message.

    Raises:
        ValueError: the bytes are not a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        raise ValueError(f"a message {kind.DESCRIPTOR.name} is damaged") from None
