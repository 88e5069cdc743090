"""Parsed labels of range texts: layer, module, phase, shapes, step number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import polars as pl

from annot.labels import tag
from annot.labels.foreign import (
    BATCH,
    DATA,
    DOMAINS,
    ENGINE,
    Label,
    is_call,
    is_step,
    name_of,
    operation,
    phase_of,
    understand,
    unwrapped,
)
from annot.labels.name_scopes import Scopes, is_operation

__all__ = ["BATCH", "DATA", "EPOCH", "NAMELESS", "TENSORFLOW", "parse_labels"]

EPOCH: Final = "(epoch)"
TENSORFLOW: Final = "TSL"
"""NVTX domain of TensorFlow's own ranges: operations such as ``model/dense/MatMul:MatMul``, and XLA's activity."""

_OPERATION: Final = re.compile(r"[^:\s]+:_?[A-Z]\w*")
_OF_TORCH: Final = re.compile(r"(?:aten|autograd|c10d|torch)::")
NAMELESS: Final = "(no name)"

_LOOPS: Final = {"epoch": EPOCH, "step": BATCH}
_COLUMNS: Final = {
    "layer": pl.String, "module": pl.String, "phase": pl.String, "shapes": pl.String, "number": pl.Int64,
    "loop": pl.Boolean, "layered": pl.Boolean, "role": pl.String,
    "plain": pl.Boolean,
}  # fmt: skip
_as_row: Final = attrgetter(*_COLUMNS)


def parse_labels(texts: pl.DataFrame, marks: Iterable[str] = ()) -> pl.DataFrame:
    """Return the parsed label of each text.

    Ranges of epochs, batches and waits for data are the layers ``(epoch)``, ``(batch)`` and ``(data)``. A text in an
    unknown format is a layer named by the text, with the phase that its words suggest.

    Args:
        texts: text, role and optionally domain and call, as in `annot.profile.RANGES`. The role can also be
            ``operation``, for an operation whose name shows whether it belongs to the backward pass. It is null for
            any NVTX text.
        marks: texts of the marks of name scopes (see `annot.labels.marks`).

    Returns:
        The columns of `annot.labels.foreign.Label`, and around: layer, module and phase of the outer layers that a
        TensorFlow name contains, outermost first, or null.

    Example:
        >>> texts = pl.DataFrame({"text": ["fc Linear [4,8]f32 |fwd"], "role": [None]})
        >>> parse_labels(texts).row(0)[:4]
        ('fc', 'Linear', 'forward', '[4,8]f32')
    """
    domain = "domain" if "domain" in texts.columns else pl.lit("").alias("domain")
    call = "call" if "call" in texts.columns else pl.lit(None, pl.String).alias("call")
    texts = texts.select("text", "role", domain, call)
    operations = _Operations(marks, texts.filter(pl.col("role").is_null()).drop_nulls("text"))
    rows = [
        _as_row(_parse(text or "", role, domain, call, operations)) for text, role, domain, call in texts.iter_rows()
    ]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row").with_columns(operations.around(texts["text"]))


class _Operations:
    """Labels of TensorFlow's operations. Texts other than names of operations are ignored."""

    def __init__(self, marks: Iterable[str], texts: pl.DataFrame) -> None:
        self._scopes = Scopes(marks)
        rows = texts.select("text", "domain").iter_rows()
        self._names = {text for text, domain in rows if _is_operation(text, domain)}
        for name in self._names:
            self._scopes.add(name)

    def label(self, text: str) -> Label | None:
        """Return the label of an operation, or None for other texts."""
        if text not in self._names:
            return None
        layers = self._scopes.layers(text)
        if not layers:
            name = self._scopes.add(text).name
            return Label(DATA, phase="data") if name.startswith("IteratorGetNext") else Label(name, role="operator")
        layer = layers[-1]
        return Label(layer.layer, layer.module, layer.phase, _shapes(layer), layered=True)

    def around(self, texts: Iterable[str]) -> pl.Series:
        """Return the marked layers around the layer of each text, null for other texts."""
        outer = [self._scopes.layers(text)[:-1] if text in self._names else () for text in texts]
        marked = [
            [[layer.layer, layer.module, layer.phase] for layer in layers if layer.module] or None for layers in outer
        ]
        return pl.Series("around", marked, pl.List(pl.List(pl.String)))


def _parse(text: str, role: str | None, domain: str, call: str | None, operations: _Operations) -> Label:
    if role == "operation":
        return operation(text)
    if role in ("operator", "backward"):
        name = text.removeprefix(ENGINE) or NAMELESS
        with_inputs = tag.parse(call) if call else None
        shapes = _shapes(with_inputs) if with_inputs and with_inputs.phase == "op" else None
        return Label(name, phase="backward" if role == "backward" else "other", shapes=shapes, role=role)
    of_tensorflow = operations.label(text) if role is None else None
    label = _parse_tag(text) or of_tensorflow or understand(text)
    if label is None and role is None and domain in DOMAINS:
        label = Label(text or NAMELESS, phase=DOMAINS[domain], layered=True)
    if label is None and role == "module":
        return Label(unwrapped(text) or NAMELESS, layered=True)
    return label or _plain(text)


def _plain(text: str) -> Label:
    """Return the label of a text without a known format. PyTorch's, FSDP's and library calls are operations."""
    if is_call(text) or is_step(text):
        return Label(text, role="operator")
    if _OF_TORCH.match(text):
        return operation(text)
    return Label(name_of(text) or NAMELESS, phase=phase_of(text), plain=True)


def _is_operation(text: str, domain: str) -> bool:
    """Return whether a text names an operation. Outside TensorFlow's domain, only names with a scope count."""
    if domain == TENSORFLOW:
        return _OPERATION.fullmatch(text.partition("#")[0]) is not None
    return "/" in text and is_operation(text)


def _parse_tag(text: str) -> Label | None:
    parsed = tag.parse(text)
    if parsed is None:
        return None
    if parsed.phase == "op":
        return Label(parsed.op, role="operator", shapes=_shapes(parsed))
    number = parsed.step if parsed.step is not None and parsed.step < 2**63 else None
    if parsed.phase in _LOOPS:
        return Label(_LOOPS[parsed.phase], parsed.module, number=number, loop=True)
    layer = DATA if parsed.phase == "data" and not parsed.layer else parsed.layer
    layered = parsed.phase in ("forward", "backward", "recompute") and bool(layer or parsed.module)
    return Label(layer, parsed.module, parsed.phase, _shapes(parsed), number, layered=layered)


def _shapes(parsed: tag.Tag) -> str | None:
    return " ".join([*map(str, parsed.tensors), *([f"+{parsed.omitted}"] if parsed.omitted else [])]) or None
