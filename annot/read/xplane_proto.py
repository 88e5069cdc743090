"""The messages of an XPlane file, described here field by field.

The fields are those of ``tsl/profiler/protobuf/xplane.proto`` and of the few messages of ``xla/service/hlo.proto``
that name instructions. Their classes live in a pool of descriptors of their own: TensorFlow, JAX or TensorBoard may
have registered the same messages in the same process. Text is declared as bytes, because profiles hold text that is
not UTF-8, and fields that nobody reads are left out.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Final

__all__ = ["messages"]

_PACKAGE: Final = "annot.xplane"
_DOUBLE, _INT64, _UINT64, _MESSAGE, _BYTES = 1, 3, 4, 11, 12  # FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label

# Of each message: name, number and type of its fields; a list is a repeated message, a string a single one.
_FIELDS: Final[dict[str, tuple[tuple[str, int, int | str | list[Any]], ...]]] = {
    "XSpace": (("planes", 1, ["XPlane"]), ("errors", 2, [_BYTES]), ("warnings", 3, [_BYTES])),
    "XPlane": (
        ("id", 1, _INT64), ("name", 2, _BYTES), ("lines", 3, ["XLine"]), ("event_metadata", 4, ["XEventEntry"]),
        ("stat_metadata", 5, ["XStatEntry"]), ("stats", 6, ["XStat"]),
    ),
    "XLine": (("id", 1, _INT64), ("name", 2, _BYTES), ("timestamp_ns", 3, _INT64), ("events", 4, ["XEvent"])),
    "XEvent": (
        ("metadata_id", 1, _INT64), ("offset_ps", 2, _INT64), ("duration_ps", 3, _INT64), ("stats", 4, ["XStat"]),
    ),
    "XStat": (
        ("metadata_id", 1, _INT64), ("double_value", 2, _DOUBLE), ("uint64_value", 3, _UINT64),
        ("int64_value", 4, _INT64), ("str_value", 5, _BYTES), ("bytes_value", 6, _BYTES), ("ref_value", 7, _UINT64),
    ),
    "XEventEntry": (("key", 1, _INT64), ("value", 2, "XEventMetadata")),  # the entry of a map
    "XEventMetadata": (("name", 2, _BYTES), ("stats", 5, ["XStat"])),
    "XStatEntry": (("key", 1, _INT64), ("value", 2, "XStatMetadata")),
    "XStatMetadata": (("name", 2, _BYTES),),
    "HloProto": (("hlo_module", 1, "HloModuleProto"),),
    "HloModuleProto": (("name", 1, _BYTES), ("computations", 3, ["HloComputationProto"]), ("id", 5, _INT64)),
    "HloComputationProto": (("instructions", 2, ["HloInstructionProto"]),),
    "HloInstructionProto": (("name", 1, _BYTES), ("metadata", 7, "OpMetadata")),
    "OpMetadata": (("op_name", 2, _BYTES),),
}  # fmt: skip


@functools.cache
def messages() -> Any:
    """Return the classes `XSpace` and `HloProto`, as attributes, made on the first call.

    Raises:
        ImportError: the package protobuf is not installed.

    Example:
        >>> space = messages().XSpace()
        >>> space.planes.add(name=b"/host:CPU").SerializeToString()
        b'\\x12\\t/host:CPU'
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="annot/xplane.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            repeated = isinstance(kind, list)
            _describe(message.field.add(name=field, number=number, label=_MANY if repeated else _ONE), kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("XSpace", "HloProto")
    }
    return SimpleNamespace(**classes)


def _describe(field: Any, kind: Any) -> None:
    single = kind[0] if isinstance(kind, list) else kind
    if isinstance(single, str):
        field.type, field.type_name = _MESSAGE, f".{_PACKAGE}.{single}"
    else:
        field.type = single
