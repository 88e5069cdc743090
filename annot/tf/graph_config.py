"""Settings of TensorFlow under which its graphs have no ranges: graph optimizers that are off, and XLA's clusters.

Auto-clustering compiles sets of operations that no control edge from outside crosses. With the operations of ranges
the sets differ, and so does the rounding of their results.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context

from annot.emit import client
from annot.tf.owners import thread

CLUSTERS: Final = (
    "XLA clusters operations of a TensorFlow graph (set_jit, TF_XLA_FLAGS or jit_scope). The graph has no ranges, as "
    'they would change the clusters and the rounding. mode="names" shows its layers'
)
_LEAST_NODES: Final = 4
"""TensorFlow does not optimize smaller graphs by default (grappler/optimizers/meta_optimizer.cc)."""


def current() -> Any:
    """Return the ConfigProto of the session that this thread runs, else that of eager mode and functions."""
    return context.context().config if thread.config is None else thread.config


def without_optimizers(config: Any) -> str | None:
    """Return why no graph with this ConfigProto can have ranges, as one sentence; None: graphs can."""
    if config.graph_options.rewrite_options.disable_meta_optimizer:
        return "TensorFlow graphs cannot have ranges: its graph optimizers are off (disable_meta_optimizer)"
    return None


def least_nodes(config: Any) -> int:
    """Return the number of nodes below which TensorFlow does not optimize a graph, so that it cannot have ranges."""
    return int(config.graph_options.rewrite_options.min_graph_nodes) or _LEAST_NODES


def warn(config: Any) -> None:
    """Warn if graphs that TensorFlow optimizes by default have no ranges with this ConfigProto."""
    problem, least = without_optimizers(config), least_nodes(config)
    if problem is not None:
        client.warn_once(problem)
    elif least > _LEAST_NODES:
        client.warn_once(f"TensorFlow graphs with fewer than {least} nodes have no ranges (min_graph_nodes={least})")


def has_clusters(graph: bytes) -> bool:
    """Return whether XLA may compile parts of a graph that TensorFlow optimizes on this thread."""
    if b"_XlaCompile" in graph:  # the attribute of operations inside jit_scope
        return True
    flags = _xla_flags()
    level = current().graph_options.optimizer_options.global_jit_level
    if level <= 0 and flags.get("tf_xla_auto_jit", "0") in ("0", "-1"):
        return False
    on_cpu = flags.get("tf_xla_cpu_global_jit", "false").lower() in ("", "1", "true")
    return on_cpu or bool(tf.config.list_physical_devices("GPU"))


def _xla_flags() -> dict[str, str]:
    """Return the flags in TF_XLA_FLAGS, or in the file that it names, with their values."""
    text = os.environ.get("TF_XLA_FLAGS", "")
    if text and not text.startswith("-"):
        with contextlib.suppress(OSError, UnicodeError):
            text = Path(text).read_text(encoding="utf-8")
    pairs = (word.strip("'\"").lstrip("-").partition("=") for word in text.split())
    return {name: value for name, _, value in pairs}
