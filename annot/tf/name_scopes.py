"""Layers from the name scopes of TensorFlow's operations, for reports of graphs without annot's ranges.

While TensorFlow traces a graph, the name scope around a layer call becomes the prefix of the names of its operations
and their gradients (``gradient_tape/…``). XLA keeps these names in HLO metadata. `note` records the layer of each
scope, and the report joins both. Eager operations have no scopes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from annot.emit import client
from annot.labels import tag
from annot.labels.marks import SCOPES_FILE, format_scope

_noted: Final[dict[str, str]] = {}


def note(scope: str, layer: tag.Tag) -> None:
    """Record that the operations in a name scope belong to a layer. Call it while TensorFlow traces the layer.

    `scope` is the result of `tf.get_current_name_scope` inside the call of the layer. An empty scope is ignored.
    """
    scope = scope.rstrip("/")
    if not scope:
        return
    text = format_scope(scope, layer)
    if _noted.get(scope) != text:
        _noted[scope] = text
        _mark(text)


def repeat_marks() -> None:
    """Emit the marks of all recorded scopes again, for a tool that was attached after the graphs were traced."""
    for text in list(_noted.values()):
        _mark(text)


def save_scopes(folder: str | Path) -> Path:
    """Write all recorded scopes next to the output of `tf.profiler`, where reports of that output read them.

    Args:
        folder: the log directory that was passed to `tf.profiler.experimental.start`.

    Returns:
        The path of the text file, with one line per scope. `annot.labels.marks` describes the format.

    Raises:
        OSError: the file cannot be written, for example because the folder does not exist.
    """
    path = Path(folder) / SCOPES_FILE
    path.write_text("".join(f"{text}\n" for text in list(_noted.values())), encoding="utf-8")
    return path


def _mark(text: str) -> None:
    if client.enabled():
        client.mark(client.event(text, few=True))
