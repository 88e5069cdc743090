"""Layers of replayed graph nodes, which `torch.profiler` writes with ``cuda_graph_annotations`` into a trace.

The arguments of an annotated activity have ``graph node id`` and the layer: ``module_fqn`` has the path of a module
(torchtitan), ``name`` or ``str`` (PyTorch 2.13) the text of `mark_kernels`. Inductor marks with paths that begin with
Dynamo's name of the model, ``L.``, and joins those of a fused kernel with `` + ``. The CUPTI monitor of PyTorch writes
all annotations of a node as JSON into ``annotation``. A layer becomes a range in which another profile captured the
graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from annot.profile import RANGES, conform

__all__ = ["annotation", "captured_ranges", "origins"]

# The ranges are before all events of a trace, on a thread that other captures do not use.
_THREAD: Final = pl.lit(-(1 << 62), pl.Int64)
_BEGIN: Final = -2 * pl.col("layer").cast(pl.Int64) - 2


_MODEL: Final = "L."
_FUSED: Final = " + "


def annotation(args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return text and role of the annotation in the arguments of a graph node, or None.

    Example:
        >>> annotation({"module_fqn": "layers.0.mlp"}), annotation({"name": "loss"})
        (('layers.0.mlp', 'module'), ('loss', 'annotation'))
        >>> annotation({"str": "L.layers.0.norm + L.layers.0.mlp"})
        ('layers.0.norm+layers.0.mlp', 'module')
        >>> annotation({"annotation": '[{"str": "L.layers.0.mlp"}]'})
        ('layers.0.mlp', 'module')
    """
    module, text = (args.get(key) for key in ("module_fqn", "annotation"))
    if module and isinstance(module, str):
        return module, "module"
    name = args.get("name") or args.get("str")
    if name and isinstance(name, str):
        return _marked(name)
    return _listed(text) if text and isinstance(text, str) else None


def _marked(text: str) -> tuple[str, str]:
    """Return text and role for a text of `mark_kernels`, which is a path of modules if Inductor wrote it."""
    paths = text.split(_FUSED)
    if all(path.startswith(_MODEL) and len(path) > len(_MODEL) for path in paths):
        return "+".join(path.removeprefix(_MODEL) for path in paths), "module"
    return text, "annotation"


def _listed(text: str) -> tuple[str, str] | None:
    """Return text and role for a list of annotations as JSON, of which later ones replace earlier ones, or a text."""
    try:
        annotations = json.loads(text)
    except (ValueError, RecursionError):
        return text, "annotation"
    args: dict[str, Any] = {}
    for entry in annotations if isinstance(annotations, list) else [annotations]:
        args |= entry if isinstance(entry, dict) else {"name": entry}
    return annotation({key: value for key, value in args.items() if key != "annotation"})


def captured_ranges(layers: pl.DataFrame) -> pl.DataFrame:
    """Return the range of each annotation. `layers` has text and role."""
    ranges = layers.with_row_index("layer").select(
        "text", "role", id=_BEGIN, process=_THREAD, thread=_THREAD, start=_BEGIN, end=_BEGIN + 1, kind=pl.lit("push")
    )
    return conform(ranges, RANGES)


def origins(activities: pl.DataFrame) -> pl.DataFrame:
    """Return GPU activities with the ranges of their annotations as origins. `layer` is the row of an annotation."""
    annotated, origin = pl.when(pl.col("layer") >= 0), (("origin_thread", _THREAD), ("origin_start", _BEGIN))
    return activities.with_columns(annotated.then(value).otherwise(name).alias(name) for name, value in origin)
