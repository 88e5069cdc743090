"""Format and parser for the text of annot's ranges.

Grammar, one line of text per range::

    range    = head { " " tensor } [ " +" omitted ] { " " argument } " |" code
    head     = layer [ " " module ] [ " " op ] [ " " step ]         op if and only if the code is "op"
    layer    = name | title              title for layer "" : the whole model or phase
    title    = "Forward" | "Backward" | "Recompute" | "Optimizer" | "Data" | "Epoch" | "Batch" | "Operation"
             | "Collective" | "Other"
    name     = bare | JSON string        quoted if it is a title, contains white space, a control character or
                                         one of  " [ | =   starts with +   or, as a module or op, is a number
    tensor   = "[" [ dim { "," dim } ] "]" [ dtype ]         dim = integer | "?"
    step     = digits                    omitted = digits: number of tensors left out
    argument = word "=" ( value | "," | value "," | value { "," value } )        the last three are tuples
    value    = "None" | "True" | "False" | number | word | JSON string           number as in Python's repr
    word     = letter or "_" { letter | digit | "_" }        as a value, other than the values above
    code     = "fwd" | "bwd" | "re" | "opt" | "data" | "epoch" | "step" | "op" | "coll" | "other"

Examples: ``features.0 Conv2d [32,3,224,224]f32 |fwd``, ``Batch 12 |step``,
``features.0 Conv2d conv2d [32,3,224,224]f32 [64,3,11,11]f32 stride=4,4 |op``. The code at the end distinguishes annot's
texts from others. `parse` accepts a text only if it is exactly the result of `format`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

DOMAIN: Final = "annot"
"""NVTX domain of annot's ranges."""

FINDINGS: Final = "annot findings"
"""NVTX domain of annot's findings in a copy of a report. Readers skip it: its ranges are not events of the run."""

NOTE: Final = "Note: "
"""Prefix of marks whose text is a note for the report."""

COMPILED: Final = "CompiledGraph"
"""Module of the range of a compiled graph, followed by ``#`` and the number of the graph."""

WORKER: Final = "Worker"
"""Module of the ranges in which workers of a DataLoader fetch a batch, as in ``Data Worker 3 |data``."""

MOST_NAMES: Final = 128
"""Maximum number of names in the path of a layer. The paths of the layers around it take this many times its size."""
_SEPARATORS: Final = re.compile(r"[./]")

FUSED: Final = "+"
"""Separator of the layers and of the classes of a fused kernel."""

MODEL: Final = "(model)"
"""Name of the whole model among the layers of a fused kernel, and in reports."""

AROUND: Final = "inside"
"""Argument of a kernel of a compiled graph: for each layer around it the number of names in its path, and its class.

Empty for a fused kernel that only the model contains. `annot.attribution.range_trees` reads it.
"""

COLORS: Final = {
    "forward": 0xFF4C9F38,
    "backward": 0xFFE07B39,
    "recompute": 0xFF9BBF4B,
    "op": 0xFF5AA9B8,
    "optimizer": 0xFF8E5CC2,
    "data": 0xFFC94F4F,
    "collective": 0xFFB8A02E,
    "loop": 0xFF6C7A89,
}
"""Color of the phases and other categories of ranges, 0xAARRGGBB."""

Phase: TypeAlias = Literal[
    "forward", "backward", "recompute", "optimizer", "data", "epoch", "step", "op", "collective", "other"
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | tuple[Scalar, ...]

_WORDS: Final[dict[Phase, tuple[str, str]]] = {
    "forward": ("fwd", "Forward"),
    "backward": ("bwd", "Backward"),
    "recompute": ("re", "Recompute"),
    "optimizer": ("opt", "Optimizer"),
    "data": ("data", "Data"),
    "epoch": ("epoch", "Epoch"),
    "step": ("step", "Batch"),
    "op": ("op", "Operation"),
    "collective": ("coll", "Collective"),
    "other": ("other", "Other"),
}
"""Code and title of each phase."""

_TITLES: Final = {title for _, title in _WORDS.values()}
_PHASE_OF_CODE: Final[dict[str, Phase]] = {code: phase for phase, (code, _) in _WORDS.items()}

_SIZES: Final = {
    ("float", "f"): (16, 32, 64),
    ("bfloat", "bf"): (16,),
    ("int", "i"): (8, 16, 32, 64),
    ("uint", "u"): (8, 16, 32, 64),
    ("complex", "c"): (32, 64, 128),
}
_DTYPES: Final = {f"{long}{bits}": f"{short}{bits}" for (long, short), sizes in _SIZES.items() for bits in sizes}

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LAYER = rf'(?:{_QUOTED}|(?!\+)[^\s"\[|=]+)'
_MODULE = rf"(?![0-9]+ ){_LAYER}"
_TENSOR = rf"\[[^\]]*\](?:{_QUOTED}|\w*)"
_WORD = r"[^\W\d]\w*"
_ITEM = rf'(?:{_QUOTED}|[^\s",|]+)'
_VALUE = rf"(?:{_ITEM}(?:,{_ITEM})+|{_ITEM},?|,)"
_ARGUMENT = rf"(?:{_QUOTED}|{_WORD})={_VALUE}"
_RANGE = re.compile(
    rf"(?P<layer>{_LAYER})(?: (?P<module>{_MODULE}))??(?: (?P<op>{_MODULE}))?(?: (?P<step>[0-9]+))?"
    rf"(?P<tensors>(?: {_TENSOR})*)(?: \+(?P<omitted>[0-9]+))?(?P<arguments>(?: {_ARGUMENT})*) \|(?P<code>[a-z]+)"
)
_TENSOR_PARTS = re.compile(rf"\[(?P<dims>[^\]]*)\](?P<dtype>{_QUOTED}|\w*)")
_ARGUMENT_PARTS = re.compile(rf" (?P<name>{_QUOTED}|{_WORD})=(?P<value>{_VALUE})")
_ITEMS = re.compile(_ITEM)
_BARE_DTYPE = re.compile(r"\w*")
_BARE_WORD = re.compile(_WORD)
_NUMBER = re.compile(r"[0-9]+")
_INTEGER = re.compile(r"-?[0-9]+")
_NEEDS_QUOTES = re.compile(r'^\+|[\s"\[|=]')
_CONSTANTS: Final[dict[str, Scalar]] = {"None": None, "True": True, "False": False}
_NOT_BARE: Final = {*_CONSTANTS, "inf", "nan"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one tensor.

    Args:
        shape: the sizes, with None for an unknown size.
        dtype: short name as returned by `short_dtype`, such as ``f32``. Empty if unknown.
    """

    shape: tuple[int | None, ...]
    dtype: str = ""

    def __str__(self) -> str:
        dims = ",".join("?" if size is None else str(size) for size in self.shape)
        dtype = self.dtype if _BARE_DTYPE.fullmatch(self.dtype) else _quote(self.dtype)
        return f"[{dims}]{dtype}"


@dataclass(frozen=True, slots=True)
class Tag:
    """Content of the label of a range.

    Args:
        layer: path in the model, as in PyTorch or Keras. Empty for the whole model or phase.
        module: class of the layer or optimizer, stage of an epoch or batch, or operation of a collective. May be empty.
        phase: one of `PHASES`.
        tensors: shapes and dtypes of the input tensors.
        omitted: number of further input tensors.
        step: number of the epoch, batch or worker, or None.
        op: name of the operation, required in the phase ``op`` and empty in other phases. `layer` is then the layer in
            which the operation runs.
        arguments: names and values of further arguments, in order. As in Python, tags with ``1``, ``1.0`` and ``True``
            compare equal. Their texts differ.

    Example:
        >>> str(Tag("features.0", "Conv2d", "forward", (TensorSpec((32, 3, 224, 224), "f32"),)))
        'features.0 Conv2d [32,3,224,224]f32 |fwd'
        >>> str(Tag(phase="step", step=12))
        'Batch 12 |step'
    """

    layer: str = ""
    module: str = ""
    phase: Phase = "other"
    tensors: tuple[TensorSpec, ...] = ()
    omitted: int = 0
    step: int | None = None
    op: str = ""
    arguments: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        return format(self)


def format(tag: Tag) -> str:
    """Return the text of a tag. `parse` restores the tag exactly.

    Args:
        tag: the tag.

    Raises:
        ValueError: the phase is unknown, `omitted` or `step` is negative, or `op` is set in a phase other than ``op``
            or empty in the phase ``op``.

    Example:
        >>> format(Tag("fc", "Linear", "backward"))
        'fc Linear |bwd'
    """
    if tag.phase not in _WORDS:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {tag.phase!r}")
    if tag.omitted < 0 or (tag.step is not None and tag.step < 0):
        raise ValueError(f"omitted and step must not be negative, got {tag.omitted} and {tag.step}")
    if bool(tag.op) != (tag.phase == "op"):
        raise ValueError(f"op must be set in the phase op, and only there, got {tag.op!r} in {tag.phase!r}")
    code, title = _WORDS[tag.phase]
    words = [_name(tag.layer) if tag.layer else title]
    words += [_quote(name) if _NUMBER.fullmatch(name) else _name(name) for name in (tag.module, tag.op) if name]
    if tag.step is not None:
        words.append(str(tag.step))
    words += map(str, tag.tensors)
    if tag.omitted:
        words.append(f"+{tag.omitted}")
    words += [f"{_word(name)}={_format_value(value)}" for name, value in tag.arguments]
    words.append(f"|{code}")
    return " ".join(words)


def parse(text: str) -> Tag | None:
    """Return the tag of a text, or None if the text is not the result of `format` or its path exceeds `MOST_NAMES`.

    Example:
        >>> parse("Optimizer SGD |opt")
        Tag(layer='', module='SGD', phase='optimizer', tensors=(), omitted=0, step=None, op='', arguments=())
        >>> parse("aten::conv2d, seq = 5") is None
        True
    """
    match = _RANGE.fullmatch(text)
    phase = _PHASE_OF_CODE.get(match["code"]) if match else None
    if match is None or phase is None:
        return None
    module, op = match["module"] or "", match["op"] or ""
    if phase != "op" and not module:
        module, op = op, ""
    try:
        tag = Tag(
            layer="" if match["layer"] == _WORDS[phase][1] else _unquote(match["layer"]),
            module=_unquote(module),
            phase=phase,
            tensors=tuple(_tensor(*fields) for fields in _TENSOR_PARTS.findall(match["tensors"])),
            omitted=int(match["omitted"] or 0),
            step=None if match["step"] is None else int(match["step"]),
            op=_unquote(op),
            arguments=tuple(
                (_unquote(name), _value(value)) for name, value in _ARGUMENT_PARTS.findall(match["arguments"])
            ),
        )
        is_deep = any(len(_SEPARATORS.findall(layer)) >= MOST_NAMES for layer in tag.layer.split(FUSED))
        return tag if format(tag) == text and not is_deep else None
    except ValueError:  # invalid JSON in a quoted name, an invalid size, or an operation in another phase
        return None


def short_dtype(name: str) -> str:
    """Return the short name of a framework's dtype: ``f32`` for ``torch.float32``.

    Example:
        >>> short_dtype("torch.bfloat16"), short_dtype("bool"), short_dtype("torch.float8_e4m3fn")
        ('bf16', 'bool', 'float8_e4m3fn')
    """
    plain = name.removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def _name(name: str) -> str:
    bare = name.isprintable() and not _NEEDS_QUOTES.search(name) and name not in _TITLES
    return name if bare else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unquote(word: str) -> str:
    return str(json.loads(word)) if word.startswith('"') else word


def _tensor(dims: str, dtype: str) -> TensorSpec:
    sizes = dims.split(",") if dims else []
    return TensorSpec(tuple(None if size == "?" else int(size) for size in sizes), _unquote(dtype))


def _word(text: str) -> str:
    return text if _BARE_WORD.fullmatch(text) and text.isprintable() else _quote(text)


def _format_value(value: Value) -> str:
    if not isinstance(value, tuple):
        return _format_scalar(value)
    return ",".join(map(_format_scalar, value)) + ("," if len(value) < 2 else "")


def _format_scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return _quote(value) if value in _NOT_BARE else _word(value)
    return repr(value)


def _value(text: str) -> Value:
    items = tuple(map(_scalar, _ITEMS.findall(text)))
    return items if len(items) != 1 or text.endswith(",") else items[0]


def _scalar(text: str) -> Scalar:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith('"') or (_BARE_WORD.fullmatch(text) and text not in _NOT_BARE):
        return _unquote(text)
    return float(text)
