"""Protocol buffer messages of XPlane files.

The fields are those of ``tsl/profiler/protobuf/xplane.proto``, and of the messages in ``xla/service/hlo.proto`` that
name instructions. Unused fields are omitted. Text fields are declared as bytes, because profiles contain invalid UTF-8.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from annot.util.protobuf import BYTES, DOUBLE, INT64, UINT64, Fields, message_classes

__all__ = ["messages"]

_FIELDS: Final[dict[str, Fields]] = {
    "XSpace": (("planes", 1, ["XPlane"]), ("errors", 2, [BYTES]), ("warnings", 3, [BYTES])),
    "XPlane": (
        ("id", 1, INT64), ("name", 2, BYTES), ("lines", 3, ["XLine"]), ("event_metadata", 4, ["XEventEntry"]),
        ("stat_metadata", 5, ["XStatEntry"]), ("stats", 6, ["XStat"]),
    ),
    "XLine": (("id", 1, INT64), ("name", 2, BYTES), ("timestamp_ns", 3, INT64), ("events", 4, ["XEvent"])),
    "XEvent": (
        ("metadata_id", 1, INT64), ("offset_ps", 2, INT64), ("duration_ps", 3, INT64), ("stats", 4, ["XStat"]),
    ),
    "XStat": (
        ("metadata_id", 1, INT64), ("double_value", 2, DOUBLE), ("uint64_value", 3, UINT64),
        ("int64_value", 4, INT64), ("str_value", 5, BYTES), ("bytes_value", 6, BYTES), ("ref_value", 7, UINT64),
    ),
    "XEventEntry": (("key", 1, INT64), ("value", 2, "XEventMetadata")),  # entry of a map field
    "XEventMetadata": (("name", 2, BYTES), ("stats", 5, ["XStat"])),
    "XStatEntry": (("key", 1, INT64), ("value", 2, "XStatMetadata")),
    "XStatMetadata": (("name", 2, BYTES),),
    "HloProto": (("hlo_module", 1, "HloModuleProto"),),
    "HloModuleProto": (("name", 1, BYTES), ("computations", 3, ["HloComputationProto"]), ("id", 5, INT64)),
    "HloComputationProto": (("instructions", 2, ["HloInstructionProto"]),),
    "HloInstructionProto": (("name", 1, BYTES), ("metadata", 7, "OpMetadata")),
    "OpMetadata": (("op_name", 2, BYTES),),
}  # fmt: skip


@functools.cache
def messages() -> Any:
    """Return an object with the message classes `XSpace` and `HloProto`. They are created on the first call.

    Example:
        >>> space = messages().XSpace()
        >>> space.planes.add(name=b"/host:CPU").SerializeToString()
        b'\\x12\\t/host:CPU'
    """
    return message_classes("annot.xplane", _FIELDS, ("XSpace", "HloProto"))
