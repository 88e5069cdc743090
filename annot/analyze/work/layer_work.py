"""Expected work of each layer of a profile, summed over its calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from annot.analyze.work.formulas import cost, expected
from annot.analyze.work.operator_calls import Calls, operator_calls
from annot.attribution import Attribution, by_layer, column_ops
from annot.attribution.nesting import KEY, Key
from annot.labels import layer_path
from annot.labels.tag import Tag, parse

__all__ = ["IS_LAYER", "WORK_COLUMNS", "by_text", "layer_work", "not_counted", "with_work"]

_PHASES: Final = ("forward", "backward", "recompute")
_STEP: Final = (pl.col("phase") == "optimizer") & (pl.col("layer") == "") & (pl.col("module") != "")

WORK_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "flops": pl.Int64, "bytes_read": pl.Int64, "bytes_written": pl.Int64, "params": pl.Int64,
}  # fmt: skip
"""Columns that `layer_work` adds to a layer."""

IS_LAYER: Final = (pl.col("phase").is_in(_PHASES) & ((pl.col("layer") != "") | (pl.col("module") != ""))) | _STEP
"""Whether a row of `annot.attribution.by_layer` is a layer or an optimizer step."""

_MOST: Final = 2**63 - 1
"""Maximum of an Int64 column. Only a damaged profile exceeds it."""


def _is_void(calls: Calls) -> bool:
    return any(work is None for work, _ in calls)


def _row(calls: Calls) -> tuple[int | None, int | None, int | None, int | None, bool]:
    """Return the sums as a row, null if the work of any call is unknown."""
    counted = [(work, count) for work, count in calls if work is not None]
    flops, read, written = (
        sum(getattr(work, name) * count for work, count in counted) for name in ("flops", "bytes_read", "bytes_written")
    )
    numbers = flops, read, written, max((work.params for work, _ in counted), default=0)
    if len(counted) < len(calls) or max(numbers) > _MOST or min(numbers) < 0:
        return None, None, None, None, False
    return *numbers, True


def layer_work(attribution: Attribution) -> pl.DataFrame:
    """Return the minimum work of each layer, summed over its calls.

    The work of an inner layer counts in its own row only, so the rows add up to the whole model. The work of an
    unknown class is the sum of the operations that it calls directly, if the profile has operation ranges
    (``ops=True``), or the operators of torch.profiler with their inputs (``record_shapes=True``).

    Args:
        attribution: the attributed profile.

    Returns:
        A row per layer, module and phase, and a row per optimizer class (layer empty, phase ``optimizer``): layer,
        module, phase, flops (a multiply-add counts as 2), bytes_read, bytes_written, params, counted (Boolean; false:
        the class is unknown or its labels are incomplete, and the work is null).
    """
    return with_work(by_layer(attribution).filter(IS_LAYER), attribution).select(*KEY, *WORK_COLUMNS, "counted")


def with_work(rows: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """Return rows of `annot.attribution.by_layer` with the columns of `layer_work`, null outside layers."""
    sums = _sums(attribution)
    works = [_row(sums[key]) if key in sums else (None,) * 4 + (False,) for key in rows.select(KEY).iter_rows()]
    return rows.hstack(pl.DataFrame(works, schema={**WORK_COLUMNS, "counted": pl.Boolean}, orient="row"))


def not_counted(work: pl.DataFrame) -> tuple[list[str], ...]:
    """Return the classes with unknown work: first those without inner layers, then those with inner layers.

    A class with inner layers may compute nothing itself. Only operation ranges (``ops=True``) show it.

    Args:
        work: rows of `layer_work`.
    """
    outer = layer_path.containers(work["layer"], work["layer"])
    contains = pl.col("layer").is_in(list(outer)) & (pl.col("phase") != "optimizer")
    missing = work.filter(~pl.col("counted")).with_columns(outer=contains)
    classes = missing.select("module", "outer").unique(maintain_order=True)
    return tuple(classes.filter(outer=has_layers)["module"].to_list() for has_layers in (False, True))


def by_text(attribution: Attribution) -> dict[Key, list[Tag]]:
    """Return the parsed distinct labels of each layer, module and phase."""
    tags: dict[Key, list[Tag]] = {}
    for text, _ in _texts(attribution):
        tag = parse(text)
        if tag is not None and tag.phase in _PHASES:
            tags.setdefault((tag.layer, tag.module, tag.phase), []).append(tag)
    return tags


def _sums(attribution: Attribution) -> dict[Key, Calls]:
    """Return the work by layer, module and phase, from the distinct labels and their numbers of calls."""
    seen = [(tag, calls) for text, calls in _texts(attribution) if (tag := parse(text)) is not None]
    inside = layer_path.containers(
        (tag.layer for tag, _ in seen), (tag.layer for tag, _ in seen if tag.phase == "forward")
    )
    sums: dict[Key, Calls] = {}
    for tag, calls in seen:
        if _is_layer(tag):
            work = expected(tag, alone=tag.layer not in inside)
            sums.setdefault((tag.layer, tag.module, tag.phase), []).append((work, calls))
    _add_operations(sums, _operations(attribution))
    for key, works in operator_calls(attribution).items():
        if key[2] in _PHASES and (key not in sums or _is_void(sums[key])):
            sums[key] = works
    return sums


def _is_layer(tag: Tag) -> bool:
    """Return whether a range belongs to a row for which `IS_LAYER` is true."""
    if tag.phase == "optimizer":
        return bool(tag.module and not tag.layer)
    return tag.phase in _PHASES and bool(tag.layer or tag.module)


def _texts(attribution: Attribution) -> Iterator[tuple[str, int]]:
    """Yield each distinct label and its number of calls. A range nested in one with the same label is one call."""
    forest = attribution.forest
    texts = forest.labels.select("text", label=pl.int_range(pl.len(), dtype=pl.Int32))
    counted = texts.join(forest.label_counts(), on="label", maintain_order="left")
    yield from counted.select("text", "count").iter_rows()


_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


def _operations(attribution: Attribution) -> Iterator[tuple[Tag, str, int]]:
    """Yield operations with the phase of the enclosing layer and the number of calls."""
    forest = attribution.forest
    operators = forest.labels["role"] == "operator"
    if not operators.any():
        return
    rows, phases = forest.tree.select("label", "path"), forest.layers_of_nodes()["phase"]
    counts = pl.concat(
        block.filter(operators.gather(block["label"])).group_by("label", "path").len()
        for block in rows.iter_slices(_SLICE)
    )
    counts = counts.group_by("label", "path").agg(pl.col("len").sum()).sort("label", "path")
    for labels, path, calls in counts.iter_rows():
        tag = parse(forest.labels["text"][labels])
        if tag is not None and tag.phase == "op" and path != column_ops.NONE:
            yield tag, phases[path], calls


def _add_operations(sums: dict[Key, Calls], operations: Iterator[tuple[Tag, str, int]]) -> None:
    """Add the work of operations to layers of unknown classes; the backward gets that of the forward operations."""
    by_key: dict[Key, tuple[Calls, Calls]] = {}
    for tag, phase, calls in operations:
        key = tag.layer, tag.module, phase
        if key in sums and phase in ("forward", "recompute") and _is_void(sums[key]):
            forward, backward = by_key.setdefault(key, ([], []))
            work = cost(tag)
            forward.append((work.forward() if work else None, calls))
            backward.append((work.backward() if work else None, calls))
    for (layer, module, phase), (forward, backward) in by_key.items():
        count = sum(calls for _, calls in sums[layer, module, phase])
        sums[layer, module, phase] = forward
        before = sums.get((layer, module, "backward"), [])
        if phase == "forward" and _is_void(before) and sum(calls for _, calls in before) == count:
            sums[layer, module, "backward"] = backward


_TIMES: Final = ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns")
_MOVED: Final = (pl.col("bytes_read") + pl.col("bytes_written")).alias("bytes")


def by_layer_with_work(attribution: Attribution) -> pl.DataFrame:
    """Return `annot.attribution.by_layer` with flops, bytes (read and written) and params, null if unknown."""
    rows = by_layer(attribution)
    columns = rows.columns[:-1]
    return with_work(rows, attribution).select(*columns, "flops", _MOVED, "params", rows.columns[-1])


def by_work(attribution: Attribution) -> pl.DataFrame:
    """Return the expected work and the achieved FLOP/s of each layer and phase.

    Args:
        attribution: the attributed profile.

    Returns:
        layer, module, phase, calls, host_ns, host_self_ns, gpu_ns, gpu_self_ns and shapes from
        `annot.attribution.by_layer`; flops, bytes_read, bytes_written, params, counted from `layer_work`; bytes (read
        and written); flops_per_s: flops over gpu_self_ns, or over host_self_ns if the profile has no GPU activity.
    """
    rows = with_work(by_layer(attribution).filter(IS_LAYER), attribution)
    on_devices = any((attribution.nodes[name] > 0).any() for name in ("kernels", "copies"))
    time = pl.col("gpu_self_ns" if on_devices else "host_self_ns")
    speed = pl.when(time > 0).then(pl.col("flops") * 1e9 / time).alias("flops_per_s")
    return rows.select(
        "layer", "module", "phase", "calls", *_TIMES, "flops", _MOVED, "bytes_read", "bytes_written", "params",
        "counted", speed, "shapes",
    )  # fmt: skip
