"""Parsers of foreign label formats: range texts of PyTorch, PyProf, serving engines and XLA.

`annot.labels.name_scopes` parses the names of TensorFlow's operations. Each parser takes the text of a range and
returns its label, or None for another format. The formats:

    Lightning            ``[pl][module]torch.nn.modules.linear.Linear: layer.0``
    torch.profiler       ``ProfilerStep#12``, ``Optimizer.step#SGD.step``, ``enumerate(DataLoader)#….__next__``
    emit_nvtx            ``aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]], input_op_ids = [(2,0)]``, each part
                         only if known (`split_suffix` removes them first)
    PyProf and DLProf    ``{'mod': 'torch', 'op': 'conv2d', 'args': […]}``, ``{'mod': 'LSTM', 'strRepr': '4, 8'}``,
                         ``{'traceMarker': […], 'funcStack': '/Net::forward/Linear::forward(2)/linear'}``,
                         ``layer:NAME``
    vLLM and SGLang      ``{'Module': 'model.layers.0', 'Inputs': [[2, 8]], …}``
                         and the ranges of `annot.labels.serving` around a step
    XLA                  ``Thunk:#name=fusion.3,hlo_op=fusion.3#`` (a name, then the metadata of TraceMe between ``#``)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.labels.fsdp import unwrapped
from annot.labels.serving import serving_step

__all__ = ["BATCH", "DATA", "DOMAINS", "ENGINE", "Label", "split_suffix", "understand"]

BATCH: Final = "(batch)"
DATA: Final = "(data)"

DOMAINS: Final = {"Forward": "forward", "Backward": "backward", "Gradient": "backward"}
"""NVTX domains named after the phase of their ranges, as in the examples of nvtx-plugins for TensorFlow."""


@dataclass(frozen=True, slots=True)
class Label:
    """Parsed label of a range.

    Args:
        layer: path of the layer, or another name for the row.
        module: class of the layer or optimizer, empty if unknown.
        phase: forward, backward, optimizer, data or other.
        shapes: shapes of the inputs in the format of `annot.labels.tag`.
        number: number of the epoch or batch.
        loop: whether the range is an epoch or a batch.
        layered: whether the label names a layer of the model. Operations inside are then part of the layer.
        role: one of `annot.profile.ROLES`.
        plain: whether the text has no known format, so that the place of the range names the layer.
    """

    layer: str
    module: str = ""
    phase: str = "other"
    shapes: str | None = None
    number: int | None = None
    loop: bool = False
    layered: bool = False
    role: str = "annotation"
    plain: bool = False


ENGINE: Final = "autograd::engine::evaluate_function: "
"""Prefix of the name of a backward operation in the range that autograd's engine opens around it."""

_BACKWARD = re.compile(rf"(?:{ENGINE}.*|\w*Backward\d*)")
_SUFFIX: Final = r"(?s), (?:stashed )?(?:seq|op_id|sizes|input_op_ids) ?= ?.*$"
_SEQUENCE: Final = r", (?:stashed )?seq ?= ?(\d{1,18})(?:,|$)"
_SIZES: Final = r", sizes ?= ?\[((?:\[[\d, ]*\](?:, )?)+)\](?:,|$)"


def split_suffix(texts: pl.Series) -> pl.DataFrame:
    """Split the suffix of `torch.autograd.profiler.emit_nvtx` from the names of operations.

    Args:
        texts: range texts (String).

    Returns:
        text, stem (the text without the suffix), operation (whether the text has a suffix), sequence (sequence number,
        Int64 or null) and sizes (shapes in the format of `annot.labels.tag`, without scalars and other values, or
        null).

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
    """Return the shapes in each text, or null. Each distinct list of shapes is formatted once."""
    if not texts.str.contains(", sizes", literal=True).any():
        return pl.Series([None], dtype=pl.String).new_from_index(0, texts.len())
    raw = texts.str.extract(_SIZES)
    distinct = raw.unique()
    shapes = distinct.str.replace_all(", ", ",").str.replace_all("],[", "] [", literal=True)
    shapes = shapes.str.replace_all(r"\[\] ?", "").str.strip_chars()
    return raw.replace(distinct, pl.select(pl.when(shapes != "").then(shapes)).to_series())


def operation(stem: str) -> Label:
    """Return the label of a framework's operation.

    Example:
        >>> operation("MmBackward0").role, operation("aten::mm").role
        ('backward', 'operator')
    """
    if _BACKWARD.fullmatch(stem):
        return Label(stem.removeprefix(ENGINE), phase="backward", role="backward")
    return Label(stem, role="operator")


_STEP = re.compile(r"ProfilerStep[#*]\s*(\d{1,18})")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(.*)")
_LOADER = re.compile(r"enumerate\(DataLoader\).*")


def _torch_profiler(text: str) -> Label | None:
    if match := _STEP.fullmatch(text):
        return Label(BATCH, number=int(match[1]), loop=True)
    if match := _OPTIMIZER.fullmatch(text):
        return Label("", match[1], "optimizer")
    return Label(DATA, phase="data") if _LOADER.fullmatch(text) else None


_LIGHTNING = re.compile(r"\[pl\]\[module\](?:\w+\.)*(\w+): (.+)")


def _lightning(text: str) -> Label | None:
    match = _LIGHTNING.fullmatch(text)
    return match and Label(unwrapped(match[2]), match[1], "forward", layered=True)


_PYPROF_CALL = re.compile(r"""\{'mod': '([^']*)', '(op|strRepr)': (?:'([^']*)'|"[^"]*")""")
_FUNCTION_STACK = re.compile(r"""'funcStack': ['"]/?([^'"]*)['"]\}$""")
_FORWARD_FRAME = re.compile(r"([^/]*)::forward(\(\d+\))?")


def _pyprof(text: str) -> Label | None:
    if text.startswith("layer:"):
        return Label(text.removeprefix("layer:"), phase="forward", layered=True)
    if match := _PYPROF_CALL.match(text):
        if match[3] == "DataLoader":
            return Label(DATA, phase="data")
        return Label(f"{match[1]}.{match[3]}" if match[2] == "op" else match[1], role="operator")
    if text.startswith("{'traceMarker'"):
        return _function_stack(text) or Label("traceMarker", role="operator")
    return Label("model_config", role="operator") if text.startswith('{"model_config": ') else None


def _function_stack(text: str) -> Label | None:
    """Return the label of the modules in the function stack that DLProf records for an operation."""
    match = _FUNCTION_STACK.search(text)
    frames = match[1].split("/")[:-1] if match else []
    modules = [frame_match for frame in frames if (frame_match := _FORWARD_FRAME.fullmatch(frame))]
    if not modules:
        return None
    path = "/".join(f"{name}{number or ''}" for name, number in (module.groups() for module in modules))
    return Label(path, modules[-1][1], "forward", layered=True)


_MODULE_DICT = re.compile(r"\{'Module': '([^']*)'")
_MODULE_INPUTS = re.compile(r"'Inputs': \[((?:\[[\d, ]*\](?:, )?)+)\]")


def _layerwise(text: str) -> Label | None:
    match = _MODULE_DICT.match(text)
    if match is None:
        return None
    inputs = _MODULE_INPUTS.search(text)
    shapes = inputs[1].replace("], [", "] [").replace(", ", ",") if inputs else None
    return Label(match[1], phase="forward", shapes=shapes, layered=True)


def _serving(text: str) -> Label | None:
    """Return the label of a step of a serving engine. Its text contains sizes, so each step has another text."""
    step = serving_step(text)
    return None if step is None else Label(f"{step.kind} step")


_TRACE_ME = re.compile(r"([^#]+)#(\w+=.*)#")
_TRACE_ME_NAME = re.compile(r"(?:^|,)(?:tf_op|hlo_op|name|hlo_module)=([^,#]+)")


def _trace_me(text: str) -> Label | None:
    match = _TRACE_ME.fullmatch(text)
    if match is None:
        return None
    name = _TRACE_ME_NAME.search(match[2])
    label = match[1].rstrip(":")
    return Label(f"{label} {name[1]}" if name else label)


def understand(text: str) -> Label | None:
    """Return the label of a text in a foreign label format, or None for an unknown format.

    Example:
        >>> understand("ProfilerStep#12").number
        12
        >>> understand("attention.linear_qkv") is None
        True
    """
    parsers = (_torch_profiler, _lightning, _pyprof, _layerwise, _serving, _trace_me)
    return next((label for parser in parsers if (label := parser(text)) is not None), None)
