"""Calls of PyTorch's operators with their inputs and messages of collectives, in the format of `annot.labels.tag`.

With ``record_shapes=True`` torch.profiler writes three lists with an item per argument of an operator: ``Input Dims``
(sizes of tensors), ``Input type`` (dtype of tensors, else ``Scalar``, ``ScalarList``, ...; empty: the argument is
absent) and ``Concrete Inputs`` (values as text; missing in older releases). The arguments have the order of PyTorch's
schemas (``native_functions.yaml``).

The text of an operator whose arguments have names here ends in ``|op``: its work may be known. The text of another
operator has its tensors only, and ends in ``|other``.

PyTorch gives the operation ``record_param_comms`` the arguments of a collective: ``Collective name``, ``Process Group
Name``, ``Group size``, the elements of the input and of the output, and ``dtype``, the name of a ``c10::ScalarType``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec

from annot.labels import tag
from annot.labels.tag import Scalar, Tag, TensorSpec, Value
from annot.util.packaged_tables import packaged_table


class _Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``operators.toml``, which explains them."""

    views: list[str]
    arguments: dict[str, list[str]]


_OPERATORS: Final = packaged_table("annot.read.kineto", "operators.toml", _Operators)
SIGNATURES: Final = {name: names for names, operators in _OPERATORS.arguments.items() for name in operators}
"""Names of the arguments of each operator that has a formula."""
VIEWS: Final = frozenset(f"aten::{name}" for name in _OPERATORS.views)
"""Operators that only make views and empty tensors, and read single values. Their inputs are not read."""

EXPERTS: Final = re.compile(
    r"(?i)(?:fused|grouped|place)_(?:moe|experts)|(?:^|_)f?moe(?:_|$)(?!.*(?:gate|align|sum|topk))"
)
"""Names of operators that compute the experts of a mixture, such as ``vllm::rocm_aiter_fused_moe`` and
``sglang::inplace_fused_experts``. Their arguments differ by release, so that shapes tell what each tensor is."""

_CODES: Final = ("f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool")
_IN_CPP: Final = ("float", "double", "long", "int", "short", "signed char", "unsigned char", "bool")
_OF_C10: Final = {"Half": "f16", "BFloat16": "bf16", "complex<float>": "c64", "complex<double>": "c128"}
_DTYPES: Final = {
    **dict(zip(_IN_CPP, _CODES, strict=True)),
    **{f"c10::{name}": code for name, code in _OF_C10.items()},
    "long int": "i64",
    "short int": "i16",
}
_SCALARS: Final = ("Float", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool")
_SCALAR_TYPES: Final = {
    **dict(zip(_SCALARS, _CODES, strict=True)),
    "Half": "f16",
    "BFloat16": "bf16",
    "UInt16": "u16",
    "UInt32": "u32",
    "UInt64": "u64",
    "ComplexFloat": "c64",
    "ComplexDouble": "c128",
}
"""Names of c10::ScalarType, which tools that rewrite traces use. Older releases call numbers ``Int`` and ``Double``."""
_FLOAT8: Final = re.compile(r"(?:c10::)?Float8_(\w+)")
_LISTED: Final = re.compile(r"[\[(](.*)[\])]")
_SEPARATOR: Final = re.compile(r",\s*")
_INTEGER: Final = re.compile(r"-?\d{1,18}")
_WORD: Final = re.compile(r"[a-z]+")
_DROPPED: Final = object()
_MOST_LISTED: Final = 4
"""Tensors of a list whose shapes the text of a call has. The profiler records no dtype of tensors in a list."""
_MOST_DIMENSIONS: Final = 64


MESSAGE: Final = "record_param_comms"
"""Name of the operation around the launch of a collective."""

_SIZE: Final = msgspec.json.Decoder(int)
_TEXT: Final = msgspec.json.Decoder(str)


def call_text(name: str, dims: bytes, types: bytes, values: bytes) -> str | None:
    """Return the text of a call, or None if its inputs are missing or invalid.

    Args:
        name: name of an operator.
        dims, types, values: JSON text of the three lists; empty: missing.

    Example:
        >>> call_text("aten::linear", b"[[4, 8], [2, 8], []]", b'["float", "float", ""]', b"")
        'aten linear [4,8]f32 [2,8]f32 bias=None |op'
        >>> call_text("aten::cat", b"[[[4, 8], [4, 2]], []]", b'["TensorList", "Scalar"]', b"")
        'aten cat [4,8] [4,2] |other'
    """
    lists = [entries for text in (dims, types, values or b"[]") if (entries := _decoded(text)) is not None]
    if len(lists) < 3:
        return None
    tensors: list[TensorSpec] = []
    arguments: list[tuple[str, Value]] = []
    omitted = 0
    space, _, operator = name.rpartition("::")
    signature = SIGNATURES.get(operator) if space == "aten" else None
    for argument, sizes, kind, value in _aligned(signature and signature.split(), lists):
        dtype = _dtype(kind) or (_SCALAR_TYPES.get(kind) if isinstance(kind, str) and sizes else None)
        if dtype is not None:
            if not _is_shape(sizes):
                return None
            tensors.append(TensorSpec(tuple(sizes), dtype))
        elif argument is None:
            listed = _listed_tensors(kind, sizes)
            tensors, omitted = tensors + listed[:_MOST_LISTED], omitted + len(listed[_MOST_LISTED:])
        elif kind == "":
            arguments.append((argument, None))
        elif (parsed := _value(value)) is not _DROPPED:
            arguments.append((argument, parsed))
    if signature or EXPERTS.search(operator):
        return tag.format(Tag(space, phase="op", op=operator, tensors=tuple(tensors), arguments=tuple(arguments)))
    other = Tag(space or operator, operator if space else "", "other", tuple(tensors), omitted)
    return tag.format(other) if tensors else None


def _listed_tensors(kind: Any, sizes: Any) -> list[TensorSpec]:
    shapes = sizes if kind == "TensorList" and isinstance(sizes, list) else []
    return [TensorSpec(tuple(shape), "") for shape in shapes if _is_shape(shape)]


def _aligned(names: Sequence[str] | None, lists: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield name, sizes, type and value of each argument that the profiler recorded; names of None: all unnamed.

    Values can be longer than the other lists, which then have the tensors at the beginning.
    """
    dims, types, values = lists
    count = max(min(len(dims), len(types)), len(values))
    count = count if names is None else min(count, len(names))
    of_tensors = min(len(dims), len(types))
    columns = (() if names is None else names[:count], dims[:of_tensors][:count], types[:of_tensors][:count])
    yield from zip_longest(*columns, values[:count])


def _decoded(text: bytes) -> list[Any] | None:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _dtype(kind: Any) -> str | None:
    """Return the short name of the dtype of a tensor, None for other arguments."""
    if not isinstance(kind, str):
        return None
    float8 = _FLOAT8.fullmatch(kind)
    return f"float8_{float8[1]}" if float8 else _DTYPES.get(kind)


def _is_shape(sizes: Any) -> bool:
    return (
        isinstance(sizes, list)
        and len(sizes) <= _MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 62 for size in sizes)
    )


def _value(text: Any) -> Any:
    """Return an integer, a Boolean, a word or a tuple of them, `_DROPPED` for other values."""
    if not isinstance(text, str):
        return _DROPPED
    listed = _LISTED.fullmatch(text)
    if listed is None:
        return _scalar(text)
    items = tuple(map(_scalar, _SEPARATOR.split(listed[1].strip()))) if listed[1] else ()
    return _DROPPED if _DROPPED in items else items


def _scalar(text: str) -> Scalar | object:
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.fullmatch(text):
        return int(text)
    return text if _WORD.fullmatch(text) else _DROPPED


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
    code = element.lower() if element.startswith("Float8") else _SCALAR_TYPES.get(element, "")
    tensor = TensorSpec((size,), code)
    return tag.format(Tag("", module, "collective", (tensor,))) if 0 < size < 1 << 62 and count > 0 else None
