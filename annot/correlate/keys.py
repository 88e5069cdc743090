"""What the text of a range says: layer, module, phase, shapes, step."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from annot import tag

__all__ = ["BATCH", "DATA", "EPOCH", "spell_out"]

EPOCH: Final = "(epoch)"
BATCH: Final = "(batch)"
DATA: Final = "(data)"
NAMELESS: Final = "(no name)"

_LOOPS: Final = {"epoch": EPOCH, "step": BATCH}
# torch.autograd.profiler.emit_nvtx gives every call of an operation a text of its own.
_SUFFIX = re.compile(r", (?:stashed )?(?:seq|op_id|sizes|input_op_ids) ?= ?.*", re.DOTALL)
_SCHEMA: Final = {
    "text": pl.String, "layer": pl.String, "module": pl.String, "phase": pl.String,
    "shapes": pl.String, "step": pl.Int64, "loop": pl.Boolean,
}  # fmt: skip


def spell_out(texts: pl.Series) -> pl.DataFrame:
    """Return a row per distinct text with what it says.

    Ranges of the loop have the layers ``(epoch)`` and ``(batch)``, waiting for data has ``(data)``. A text
    that is not annot's is a layer by itself, without what `emit_nvtx` appends to the name.

    Returns:
        text, layer, module, phase, shapes (text; null if none are given), step (number of the epoch or
        batch), loop (whether it is an epoch or a batch).

    Example:
        >>> spell_out(pl.Series(["fc Linear [4,8]f32 |fwd"])).row(0)[1:]
        ('fc', 'Linear', 'forward', '[4,8]f32', None, False)
        >>> spell_out(pl.Series(["aten::mm, seq = 12, op_id = 3"])).row(0)[1:4]
        ('aten::mm', '', 'other')
    """
    return pl.DataFrame([_row(text) for text in texts.unique()], schema=_SCHEMA, orient="row")


def _row(text: str | None) -> tuple[str | None, str, str, str, str | None, int | None, bool]:
    said = tag.parse(text) if text else None
    if said is None:
        return text, _SUFFIX.sub("", text or "") or NAMELESS, "", "other", None, None, False
    shapes = " ".join(map(str, said.tensors)) + (f" +{said.omitted}" if said.omitted else "")
    step = said.step if said.step is not None and said.step < 2**63 else None
    if said.phase in _LOOPS:
        return text, _LOOPS[said.phase], said.module, "other", None, step, True
    layer = DATA if said.phase == "data" and not said.layer else said.layer
    return text, layer, said.module, said.phase, shapes.strip() or None, step, False
