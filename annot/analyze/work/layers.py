"""Expected work of each layer of a profile, added up over its calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import polars as pl

from annot import layer_path
from annot.analyze.work.call import Work
from annot.analyze.work.formulas import cost, expected
from annot.correlate import Attribution, by_layer, sweep
from annot.tag import Tag, parse

__all__ = ["IS_LAYER", "WORK_COLUMNS", "by_text", "layer_work", "not_counted", "with_work"]

_Key: TypeAlias = tuple[str, str, str]
_KEY: Final = ("layer", "module", "phase")
_PHASES: Final = ("forward", "backward", "recompute")
_STEP: Final = (pl.col("phase") == "optimizer") & (pl.col("layer") == "") & (pl.col("module") != "")

WORK_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "flops": pl.Int64, "bytes_read": pl.Int64, "bytes_written": pl.Int64, "params": pl.Int64,
}  # fmt: skip
"""What `layer_work` says of a layer."""

IS_LAYER: Final = (pl.col("phase").is_in(_PHASES) & ((pl.col("layer") != "") | (pl.col("module") != ""))) | _STEP
"""Whether a row of `annot.correlate.by_layer` is a layer, or the step of an optimizer."""

_MOST: Final = 2**63 - 1
"""The largest number that a column holds; more is only in a damaged profile."""


@dataclass(slots=True)
class _Sum:
    """Work of a layer in one phase; void if any part of it could not be counted."""

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    params: int = 0
    calls: int = 0
    void: bool = False
    unknown: set[str] = field(default_factory=set)

    def add(self, work: Work | None, calls: int) -> None:
        """Add `calls` calls of this work each."""
        self.calls += calls
        if work is None:
            self.void = True
            return
        self.flops += work.flops * calls
        self.bytes_read += work.bytes_read * calls
        self.bytes_written += work.bytes_written * calls
        self.params = max(self.params, work.params)

    def row(self) -> tuple[int | None, int | None, int | None, int | None, bool]:
        """Return the numbers as a row, null if they are void."""
        numbers = self.flops, self.bytes_read, self.bytes_written, self.params
        if self.void or max(numbers) > _MOST or min(numbers) < 0:
            return None, None, None, None, False
        return *numbers, True


def layer_work(attribution: Attribution) -> pl.DataFrame:
    """Return what each layer has to compute and move at least, in all its calls.

    A layer inside another has a row of its own and counts there alone, so the rows add up to the whole model. What
    a class that nobody knows calls itself counts if the profile has it as operations (``ops=True``).

    Args:
        attribution: the profile.

    Returns:
        A row per layer, module and phase of `annot.correlate.by_layer` that is a layer, and per class of optimizer
        (layer empty, phase ``optimizer``): layer, module, phase,
        flops (2 a multiply-add), bytes_read, bytes_written, params, counted (Boolean; false: the class is not known,
        or the ranges do not say enough, and then the numbers are null).
    """
    return with_work(by_layer(attribution).filter(IS_LAYER), attribution).select(*_KEY, *WORK_COLUMNS, "counted")


def with_work(rows: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Return the rows of `annot.correlate.by_layer` with the columns of `layer_work`; what is no layer has none."""
    sums = _sums(attribution)
    found = [sums[key].row() if key in sums else (None,) * 4 + (False,) for key in rows.select(_KEY).iter_rows()]
    return rows.hstack(pl.DataFrame(found, schema={**WORK_COLUMNS, "counted": pl.Boolean}, orient="row"))


def not_counted(work: pl.DataFrame) -> tuple[list[str], ...]:
    """Return the classes of `layer_work` that could not be counted: those without and those with layers inside.

    One with layers inside may compute nothing beside them; nobody knows without operations.
    """
    outer = {above for path in work["layer"].unique() for above in layer_path.above(path)}
    contains = pl.col("layer").is_in(list(outer)) & (pl.col("phase") != "optimizer")
    missing = work.filter(~pl.col("counted")).with_columns(outer=contains)
    classes = missing.select("module", "outer").unique(maintain_order=True)
    return tuple(classes.filter(outer=wanted)["module"].to_list() for wanted in (False, True))


def by_text(attribution: Attribution) -> dict[_Key, list[Tag]]:
    """Return what the distinct texts of the ranges of each layer, module and phase say."""
    found: dict[_Key, list[Tag]] = {}
    for text, _ in _texts(attribution):
        tag = parse(text)
        if tag is not None and tag.phase in _PHASES:
            found.setdefault((tag.layer, tag.module, tag.phase), []).append(tag)
    return found


def _sums(attribution: Attribution) -> dict[_Key, _Sum]:
    """Work by layer, module and phase, from the distinct texts and how often each occurs."""
    seen = [(tag, calls) for text, calls in _texts(attribution) if (tag := parse(text)) is not None]
    inside = {above for tag, _ in seen if tag.phase == "forward" for above in layer_path.above(tag.layer)}
    sums: dict[_Key, _Sum] = {}
    for tag, calls in seen:
        if _is_layer(tag):
            work = expected(tag, alone=tag.layer not in inside)
            sums.setdefault((tag.layer, tag.module, tag.phase), _Sum()).add(work, calls)
    _add_operations(sums, _operations(attribution))
    return sums


def _is_layer(tag: Tag) -> bool:
    """Whether `IS_LAYER` is true of the row of a range."""
    if tag.phase == "optimizer":
        return bool(tag.module and not tag.layer)
    return tag.phase in _PHASES and bool(tag.layer or tag.module)


def _texts(attribution: Attribution) -> Iterator[tuple[str, int]]:
    """Yield the text of ranges and how many there are; one that is inside itself is one call."""
    forest = attribution.forest
    counts = pl.concat([forest.tree["says"], forest.loose["says"]]).value_counts(name="calls").rename({"says": "row"})
    texts = forest.says.select("text").with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    yield from texts.join(counts, on="row", maintain_order="left").select("text", "calls").iter_rows()


def _operations(attribution: Attribution) -> Iterator[tuple[Tag, str, int]]:
    """Yield operations with the phase of the layer around them, and how many there are."""
    forest = attribution.forest
    operators = forest.says["role"] == "operator"
    if not operators.any():
        return
    rows = forest.tree.select("says", "path").filter(operators.gather(forest.tree["says"]))
    phases = [forest.keys.names[key][2] for key in forest.nodes.keys]
    for says, path, calls in rows.group_by("says", "path").len().sort("says", "path").iter_rows():
        tag = parse(forest.says["text"][says])
        if tag is not None and tag.phase == "op" and path != sweep.NONE:
            yield tag, phases[path], calls


def _add_operations(sums: dict[_Key, _Sum], operations: Iterator[tuple[Tag, str, int]]) -> None:
    """Let layers that nobody knows have the work of what they call; their backward that of each forward."""
    found: dict[_Key, tuple[_Sum, _Sum]] = {}
    for tag, phase, calls in operations:
        key = tag.layer, tag.module, phase
        if key in sums and sums[key].void and phase in ("forward", "recompute"):
            forward, backward = found.setdefault(key, (_Sum(), _Sum()))
            known = cost(tag)
            forward.add(known.forward() if known else None, calls)
            backward.add(known.backward() if known else None, calls)
    for (layer, module, phase), (forward, backward) in found.items():
        calls = sums[layer, module, phase].calls
        sums[layer, module, phase] = forward
        of_backward = sums.get((layer, module, "backward"))
        if phase == "forward" and of_backward is not None and of_backward.void and of_backward.calls == calls:
            sums[layer, module, "backward"] = backward
