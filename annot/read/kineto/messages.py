"""Messages of collectives, in the format of `annot.labels.tag`.

PyTorch gives the operation ``record_param_comms`` the arguments of a collective: ``Collective name``, ``Process Group
Name``, ``Group size``, the elements of the input and of the output, and ``dtype``, the name of a ``c10::ScalarType``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from annot.labels import tag
from annot.labels.tag import Tag, TensorSpec

__all__ = ["MESSAGE", "message_text"]

MESSAGE: Final = "record_param_comms"
"""Name of the operation around the launch of a collective."""

_DTYPES: Final = {
    "Byte": "u8", "Char": "i8", "Short": "i16", "Int": "i32", "Long": "i64", "UInt16": "u16", "UInt32": "u32",
    "UInt64": "u64", "Half": "f16", "BFloat16": "bf16", "Float": "f32", "Double": "f64", "Bool": "bool",
    "ComplexFloat": "c64", "ComplexDouble": "c128",
}  # fmt: skip
_SIZE: Final = msgspec.json.Decoder(int)
_TEXT: Final = msgspec.json.Decoder(str)


def message_text(name: bytes, group: bytes, ranks: bytes, sent: bytes, received: bytes, dtype: bytes) -> str | None:
    """Return the text of a message, or None if its arguments are invalid or it has no elements, such as a wait.

    The size of a message is that of its larger side; see `annot.analyze.communication.bus_factor`.

    Args:
        name, group, ranks, sent, received, dtype: JSON text of the arguments; only the group can be empty.

    Example:
        >>> message_text(b'"allreduce"', b'"0"', b"2", b"1024", b"1024", b'"Float"')
        'Collective allreduce@0:2 [1024]f32 |coll'
    """
    try:
        size, count = max(_SIZE.decode(sent), _SIZE.decode(received)), _SIZE.decode(ranks)
        element = _TEXT.decode(dtype)
        module = f"{_TEXT.decode(name)}@{_TEXT.decode(group) if group else ''}:{count}"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    code = element.lower() if element.startswith("Float8") else _DTYPES.get(element, "")
    tensor = TensorSpec((size,), code)
    return tag.format(Tag("", module, "collective", (tensor,))) if 0 < size < 1 << 62 and count > 0 else None
