"""The text of a range: what the emit wing writes and the read wing understands.

Grammar, one line of text per range::

    range   = head { " " tensor } [ " +" omitted ] " |" code
    head    = layer [ " " module ] [ " " step ]
    layer   = name | title               title only for layer "" : the whole model or phase
    title   = "Forward" | "Backward" | "Optimizer" | "Data" | "Epoch" | "Batch" | "Other"
    name    = bare | JSON string         quoted when it is a title, holds white space, a control character or
                                         one of  " [ |   begins with +   or, as a module, is a number
    tensor  = "[" [ dim { "," dim } ] "]" [ dtype ]          dim = integer | "?"
    step    = digits                     omitted = digits: tensors that were not spelt out
    code    = "fwd" | "bwd" | "opt" | "data" | "epoch" | "step" | "other"

so that a timeline shows ``features.0 Conv2d [32,3,224,224]f32 |fwd`` and ``Batch 12 |step``. The closing code
tells our texts from any other, and a text is ours only if it is exactly what `format` would have written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

__all__ = [
    "COMPILED",
    "DOMAIN",
    "FUSED",
    "NOTE",
    "PHASES",
    "Phase",
    "Tag",
    "TensorSpec",
    "format",
    "parse",
    "short_dtype",
]

DOMAIN: Final = "annot"
"""The NVTX domain of annot's own ranges."""

NOTE: Final = "Note: "
"""What a mark of annot's begins with whose text is a sentence for the report."""

COMPILED: Final = "CompiledGraph"
"""What the module of a range begins with that surrounds a compiled graph; ``#`` and the graph's number follow."""

FUSED: Final = "+"
"""What stands between the layers, and between the classes, of one kernel that works for several."""

Phase: TypeAlias = Literal["forward", "backward", "optimizer", "data", "epoch", "step", "other"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

_CODES: Final[dict[Phase, str]] = {
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "data": "data",
    "epoch": "epoch",
    "step": "step",
    "other": "other",
}
_TITLES: Final[dict[Phase, str]] = {
    "forward": "Forward",
    "backward": "Backward",
    "optimizer": "Optimizer",
    "data": "Data",
    "epoch": "Epoch",
    "step": "Batch",
    "other": "Other",
}
_PHASE_OF_CODE: Final[dict[str, Phase]] = {code: phase for phase, code in _CODES.items()}

_DTYPES: Final[dict[str, str]] = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
    "complex128": "c128",
    "complex64": "c64",
    "complex32": "c32",
}

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LAYER = rf'(?:{_QUOTED}|(?!\+)[^\s"\[|]+)'
_MODULE = rf"(?![0-9]+ ){_LAYER}"
_TENSOR = rf"\[[^\]]*\](?:{_QUOTED}|\w*)"
_RANGE = re.compile(
    rf"(?P<layer>{_LAYER})(?: (?P<module>{_MODULE}))?(?: (?P<step>[0-9]+))?"
    rf"(?P<tensors>(?: {_TENSOR})*)(?: \+(?P<omitted>[0-9]+))? \|(?P<code>[a-z]+)"
)
_TENSOR_PARTS = re.compile(rf"\[(?P<dims>[^\]]*)\](?P<dtype>{_QUOTED}|\w*)")
_BARE_DTYPE = re.compile(r"\w*")
_NUMBER = re.compile(r"[0-9]+")
_NEEDS_QUOTES = re.compile(r'[\s"\[|]')


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one tensor.

    Args:
        shape: the sizes; None for a size that is not known.
        dtype: the short name that `short_dtype` gives, such as ``f32``; empty if not known.
    """

    shape: tuple[int | None, ...]
    dtype: str = ""

    def __str__(self) -> str:
        dims = ",".join("?" if size is None else str(size) for size in self.shape)
        dtype = self.dtype if _BARE_DTYPE.fullmatch(self.dtype) else _quote(self.dtype)
        return f"[{dims}]{dtype}"


@dataclass(frozen=True, slots=True)
class Tag:
    """What one range stands for.

    Args:
        layer: dotted path in the model, as PyTorch or Keras spells it; empty for the whole model or phase.
        module: class name of the layer or optimizer; empty if there is none.
        phase: one of `PHASES`.
        tensors: shapes and dtypes of the tensors that came in.
        omitted: how many further tensors are not in `tensors`.
        step: number of the epoch or batch; None where there is no such number.

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

    def __str__(self) -> str:
        return format(self)


def format(tag: Tag) -> str:
    """Return the text of the range that `tag` describes; `parse` gives the tag back exactly.

    Raises:
        ValueError: the phase is not one of `PHASES`, or `omitted` or `step` is negative.

    Example:
        >>> format(Tag("fc", "Linear", "backward"))
        'fc Linear |bwd'
    """
    if tag.phase not in _CODES:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {tag.phase!r}")
    if tag.omitted < 0 or (tag.step is not None and tag.step < 0):
        raise ValueError(f"omitted and step must not be negative, got {tag.omitted} and {tag.step}")
    words = [_name(tag.layer) if tag.layer else _TITLES[tag.phase]]
    if tag.module:
        words.append(_quote(tag.module) if _NUMBER.fullmatch(tag.module) else _name(tag.module))
    if tag.step is not None:
        words.append(str(tag.step))
    words += map(str, tag.tensors)
    if tag.omitted:
        words.append(f"+{tag.omitted}")
    words.append(f"|{_CODES[tag.phase]}")
    return " ".join(words)


def parse(text: str) -> Tag | None:
    """Return the tag that `text` was formatted from, or None if the text is not one of ours.

    Example:
        >>> parse("Optimizer SGD |opt")
        Tag(layer='', module='SGD', phase='optimizer', tensors=(), omitted=0, step=None)
        >>> parse("aten::conv2d, seq = 5") is None
        True
    """
    match = _RANGE.fullmatch(text)
    phase = _PHASE_OF_CODE.get(match["code"]) if match else None
    if match is None or phase is None:
        return None
    try:
        tag = Tag(
            "" if match["layer"] == _TITLES[phase] else _unquote(match["layer"]),
            _unquote(match["module"] or ""),
            phase,
            tuple(_tensor(*parts) for parts in _TENSOR_PARTS.findall(match["tensors"])),
            int(match["omitted"] or 0),
            None if match["step"] is None else int(match["step"]),
        )
    except ValueError:  # a quoted name that is not JSON, a size that is not a number
        return None
    return tag if format(tag) == text else None


def short_dtype(name: str) -> str:
    """Return the compact spelling of a framework's dtype name: ``torch.float32`` gives ``f32``.

    Example:
        >>> short_dtype("torch.bfloat16"), short_dtype("bool"), short_dtype("torch.float8_e4m3fn")
        ('bf16', 'bool', 'float8_e4m3fn')
    """
    plain = name.removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def _name(name: str) -> str:
    bare = (
        name.isprintable()
        and not name.startswith("+")
        and not _NEEDS_QUOTES.search(name)
        and name not in _TITLES.values()
    )
    return name if bare else _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unquote(word: str) -> str:
    return str(json.loads(word)) if word.startswith('"') else word


def _tensor(dims: str, dtype: str) -> TensorSpec:
    sizes = dims.split(",") if dims else []
    return TensorSpec(tuple(None if size == "?" else int(size) for size in sizes), _unquote(dtype))
