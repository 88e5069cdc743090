"""What the text of a range says: layer, module, phase, shapes, step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

import polars as pl

from annot import tag
from annot.correlate.dialects import BATCH, DATA, DOMAINS, ENGINE, Said, operation, understand
from annot.scopes import Scopes, is_operation

__all__ = ["BATCH", "DATA", "EPOCH", "spell_out"]

EPOCH: Final = "(epoch)"
TENSORFLOW: Final = "TSL"
"""NVTX domain of TensorFlow's own ranges: operations, ``model/dense/MatMul:MatMul``, and what XLA does."""

_OPERATION: Final = re.compile(r"[^:\s]+:_?[A-Z]\w*")
NAMELESS: Final = "(no name)"

_LOOPS: Final = {"epoch": EPOCH, "step": BATCH}
_SAYS: Final = {
    "layer": pl.String, "module": pl.String, "phase": pl.String, "shapes": pl.String, "number": pl.Int64,
    "loop": pl.Boolean, "layered": pl.Boolean, "role": pl.String,
}  # fmt: skip
_as_row: Final = attrgetter(*_SAYS)


def spell_out(texts: pl.DataFrame, marks: Iterable[str] = ()) -> pl.DataFrame:
    """Return what texts say, a row each.

    Ranges of the loop have the layers ``(epoch)`` and ``(batch)``, waiting for data has ``(data)``. A text that
    neither annot nor any tool it knows wrote is a layer by itself.

    Args:
        texts: columns text, role and, if it matters, domain; role is one of `annot.profile.ROLES`, or ``operation``
            if only the name tells whether it belongs to the backward pass, or null for any text of NVTX.
        marks: what marks say of name scopes; see `annot.scope_text`.

    Returns:
        The columns of `annot.correlate.dialects.Said`, and around: layer, module and phase of the layers around it, as
        far as the text tells, from the outermost on.

    Example:
        >>> texts = pl.DataFrame({"text": ["fc Linear [4,8]f32 |fwd"], "role": [None]})
        >>> spell_out(texts).row(0)[:4]
        ('fc', 'Linear', 'forward', '[4,8]f32')
    """
    domain = "domain" if "domain" in texts.columns else pl.lit("").alias("domain")
    known = texts.select("text", "role", domain)
    operations = _Operations(marks, known.filter(pl.col("role").is_null()).drop_nulls("text"))
    rows = [_as_row(_said(text or "", role, domain, operations)) for text, role, domain in known.iter_rows()]
    return pl.DataFrame(rows, schema=_SAYS, orient="row").with_columns(operations.around(known["text"]))


class _Operations:
    """What names of TensorFlow's operations say.

    Args:
        marks: what marks say of name scopes.
        texts: text and domain of all ranges, most of which are no such names.
    """

    def __init__(self, marks: Iterable[str], texts: pl.DataFrame) -> None:
        self._scopes = Scopes(marks)
        rows = texts.select("text", "domain").iter_rows()
        self._names = {text for text, domain in rows if _is_operation(text, domain)}
        for name in self._names:
            self._scopes.add(name)

    def said(self, text: str) -> Said | None:
        """Return what a text says, None if it is of no operation in a scope."""
        if text not in self._names:
            return None
        layers = self._scopes.layers(text)
        if not layers:
            name = self._scopes.add(text).name
            return Said(DATA, phase="data") if name.startswith("IteratorGetNext") else Said(name, role="operator")
        layer = layers[-1]
        return Said(layer.layer, layer.module, layer.phase, _shapes(layer), layered=True)

    def around(self, texts: Iterable[str]) -> pl.Series:
        """Return the noted layers around the one that each text is about; null for other texts."""
        noted = [self._around(text) if text in self._names else None for text in texts]
        return pl.Series("around", noted, pl.List(pl.List(pl.String)))

    def _around(self, name: str) -> list[list[str]] | None:
        layers = self._scopes.layers(name)[:-1]
        return [[layer.layer, layer.module, layer.phase] for layer in layers if layer.module] or None


def _said(text: str, role: str | None, domain: str, operations: _Operations) -> Said:
    if role == "operation":
        return operation(text)
    if role in ("operator", "backward"):
        name = text.removeprefix(ENGINE) or NAMELESS
        return Said(name, phase="backward" if role == "backward" else "other", role=role)
    of_tensorflow = operations.said(text) if role is None else None
    said = _tagged(text) or of_tensorflow or understand(text)
    if said is None and role is None and domain in DOMAINS:
        said = Said(text or NAMELESS, phase=DOMAINS[domain], layered=True)
    return said or Said(text or NAMELESS, layered=role == "module")


def _is_operation(text: str, domain: str) -> bool:
    """Whether a range is an operation's: every range of TensorFlow's own is, of others those in a name scope."""
    if domain == TENSORFLOW:
        return _OPERATION.fullmatch(text.partition("#")[0]) is not None
    return "/" in text and is_operation(text)


def _tagged(text: str) -> Said | None:
    said = tag.parse(text)
    if said is None:
        return None
    if said.phase == "op":
        return Said(said.op, role="operator", shapes=_shapes(said))
    number = said.step if said.step is not None and said.step < 2**63 else None
    if said.phase in _LOOPS:
        return Said(_LOOPS[said.phase], said.module, number=number, loop=True)
    layer = DATA if said.phase == "data" and not said.layer else said.layer
    layered = said.phase in ("forward", "backward", "recompute") and bool(layer or said.module)
    return Said(layer, said.module, said.phase, _shapes(said), number, layered=layered)


def _shapes(said: tag.Tag) -> str | None:
    return " ".join([*map(str, said.tensors), *([f"+{said.omitted}"] if said.omitted else [])]) or None
