"""What texts of ranges say that are not annot's own: those of PyTorch, PyProf, vLLM and XLA. Names of
TensorFlow's operations are read by `annot.scopes`.

Every function takes the text of a range and returns what it says, or None if it is of another dialect. The
forms are those that the tools write today:

    torch.profiler       ``ProfilerStep#12``, ``Optimizer.step#SGD.step``, ``enumerate(DataLoader)#….__next__``
    emit_nvtx            ``aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]], input_op_ids = [(2,0)]``, each part
                         only where there is something to say (cut off before, see `split_suffix`)
    PyProf and DLProf    ``{'mod': 'torch', 'op': 'conv2d', 'args': […]}``, ``{'mod': 'LSTM', 'strRepr': '4, 8'}``,
                         ``{'traceMarker': […], 'funcStack': '/Net::forward/Linear::forward(2)/linear'}``,
                         ``layer:NAME``
    vLLM and SGLang      ``{'Module': 'model.layers.0', 'Inputs': [[2, 8]], …}``
    XLA                  ``Thunk:#name=fusion.3,hlo_op=fusion.3#`` (a name, then what TraceMe encodes in ``#``)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

__all__ = ["BATCH", "DATA", "DOMAINS", "ENGINE", "Said", "split_suffix", "understand"]

BATCH: Final = "(batch)"
DATA: Final = "(data)"

DOMAINS: Final = {"Forward": "forward", "Backward": "backward", "Gradient": "backward"}
"""NVTX domains that people name after the phase of their ranges, as nvtx-plugins for TensorFlow proposes it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the text of a range says.

    Args:
        layer: path of the layer, or how else the row is to be called.
        module: class of the layer or optimizer; empty if unknown.
        phase: forward, backward, optimizer, data or other.
        shapes: shapes of the inputs, as `annot.tag` spells them.
        number: of the epoch or batch.
        loop: whether it is an epoch or a batch.
        layered: whether it names a layer of the model, so that operations inside are part of it.
        role: as in `annot.profile.ROLES`.
    """

    layer: str
    module: str = ""
    phase: str = "other"
    shapes: str | None = None
    number: int | None = None
    loop: bool = False
    layered: bool = False
    role: str = "annotation"


ENGINE: Final = "autograd::engine::evaluate_function: "
"""What autograd's engine puts before the name of an operation of the backward pass, around which it has a range too."""

_BACKWARD = re.compile(rf"(?:{ENGINE}.*|\w*Backward\d*)")
_SUFFIX: Final = r"(?s), (?:stashed )?(?:seq|op_id|sizes|input_op_ids) ?= ?.*$"
_SEQUENCE: Final = r", (?:stashed )?seq ?= ?(\d{1,18})(?:,|$)"
_SIZES: Final = r", sizes ?= ?\[((?:\[[\d, ]*\](?:, )?)+)\](?:,|$)"


def split_suffix(texts: pl.Series) -> pl.DataFrame:
    """Cut what `torch.autograd.profiler.emit_nvtx` appends to the names of operations.

    Returns:
        text, stem (without the suffix), operation (whether there was one), sequence (Int64, or null) and sizes:
        the shapes as `annot.tag` spells them, without what is no tensor or has no dimension, or null.

    Example:
        >>> split_suffix(pl.Series(["aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [], [3]]"])).row(0)[1:]
        ('aten::mm', True, 12, '[2,3] [3]')
    """
    text = pl.col("text")
    return pl.DataFrame({"text": texts}).with_columns(
        text.str.replace(_SUFFIX, "").alias("stem"),
        text.str.contains(_SUFFIX).alias("operation"),
        text.str.extract(_SEQUENCE).cast(pl.Int64).alias("sequence"),
        _sizes(texts).alias("sizes"),
    )


def _sizes(texts: pl.Series) -> pl.Series:
    """Return the shapes that each text names, or null; they are few, so they are spelt once each."""
    if not texts.str.contains(", sizes", literal=True).any():
        return pl.Series([None], dtype=pl.String).new_from_index(0, texts.len())
    raw = texts.str.extract(_SIZES)
    known = raw.unique()
    shapes = known.str.replace_all(", ", ",").str.replace_all("],[", "] [", literal=True)
    shapes = shapes.str.replace_all(r"\[\] ?", "").str.strip_chars()
    return raw.replace(known, pl.select(pl.when(shapes != "").then(shapes)).to_series())


def operation(stem: str) -> Said:
    """Return what the name of a framework's operation says.

    Example:
        >>> operation("MmBackward0").role, operation("aten::mm").role
        ('backward', 'operator')
    """
    if _BACKWARD.fullmatch(stem):
        return Said(stem.removeprefix(ENGINE), phase="backward", role="backward")
    return Said(stem, role="operator")


_STEP = re.compile(r"ProfilerStep[#*]\s*(\d{1,18})")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(.*)")
_LOADER = re.compile(r"enumerate\(DataLoader\).*")


def _torch_profiler(text: str) -> Said | None:
    if match := _STEP.fullmatch(text):
        return Said(BATCH, number=int(match[1]), loop=True)
    if match := _OPTIMIZER.fullmatch(text):
        return Said("", match[1], "optimizer")
    return Said(DATA, phase="data") if _LOADER.fullmatch(text) else None


_PYPROF_CALL = re.compile(r"""\{'mod': '([^']*)', '(op|strRepr)': (?:'([^']*)'|"[^"]*")""")
_FUNCTION_STACK = re.compile(r"""'funcStack': ['"]/?([^'"]*)['"]\}$""")
_FORWARD_FRAME = re.compile(r"([^/]*)::forward(\(\d+\))?")


def _pyprof(text: str) -> Said | None:
    if text.startswith("layer:"):
        return Said(text.removeprefix("layer:"), phase="forward", layered=True)
    if match := _PYPROF_CALL.match(text):
        if match[3] == "DataLoader":
            return Said(DATA, phase="data")
        return Said(f"{match[1]}.{match[3]}" if match[2] == "op" else match[1], role="operator")
    if text.startswith("{'traceMarker'"):
        return _function_stack(text) or Said("traceMarker", role="operator")
    return Said("model_config", role="operator") if text.startswith('{"model_config": ') else None


def _function_stack(text: str) -> Said | None:
    """The modules around an operation, whose calls are among the functions that DLProf names, the operation last."""
    match = _FUNCTION_STACK.search(text)
    frames = match[1].split("/")[:-1] if match else []
    modules = [found for frame in frames if (found := _FORWARD_FRAME.fullmatch(frame))]
    if not modules:
        return None
    path = "/".join(f"{name}{number or ''}" for name, number in (module.groups() for module in modules))
    return Said(path, modules[-1][1], "forward", layered=True)


_MODULE_DICT = re.compile(r"\{'Module': '([^']*)'")
_MODULE_INPUTS = re.compile(r"'Inputs': \[((?:\[[\d, ]*\](?:, )?)+)\]")


def _layerwise(text: str) -> Said | None:
    match = _MODULE_DICT.match(text)
    if match is None:
        return None
    inputs = _MODULE_INPUTS.search(text)
    shapes = inputs[1].replace("], [", "] [").replace(", ", ",") if inputs else None
    return Said(match[1], phase="forward", shapes=shapes, layered=True)


_TRACE_ME = re.compile(r"([^#]+)#(\w+=.*)#")
_TRACE_ME_NAME = re.compile(r"(?:^|,)(?:tf_op|hlo_op|name|hlo_module)=([^,#]+)")


def _trace_me(text: str) -> Said | None:
    match = _TRACE_ME.fullmatch(text)
    if match is None:
        return None
    name = _TRACE_ME_NAME.search(match[2])
    label = match[1].rstrip(":")
    return Said(f"{label} {name[1]}" if name else label)


_DIALECTS: Final[tuple[Callable[[str], Said | None], ...]] = (
    _torch_profiler, _pyprof, _layerwise, _trace_me,
)  # fmt: skip


def understand(text: str) -> Said | None:
    """Return what a text says in the dialect of some other tool, None if it is in none of them.

    Example:
        >>> understand("ProfilerStep#12").number
        12
        >>> understand("attention.linear_qkv") is None
        True
    """
    return next((said for dialect in _DIALECTS if (said := dialect(text)) is not None), None)
