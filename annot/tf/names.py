"""The road "names": layers by the name scopes of TensorFlow's own operations, with nothing added to any graph.

While TensorFlow traces a graph, the name scope around a layer's call begins the names of all operations in it, those of
its gradients (``gradient_tape/…``) and, in HLO metadata, those that XLA makes of them. `note` says which layer that is;
the report joins both. What runs eagerly has no scopes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from annot import emit, tag
from annot.locks import fork_safe
from annot.scope_text import SIDE_FILE, format_scope

__all__ = ["note", "save_scopes", "tell"]

_lock: Final = fork_safe()
_noted: Final[dict[str, str]] = {}


def note(
    layer_path: str,
    module: str,
    scope: str,
    tensors: Iterable[tag.TensorSpec] = (),
    arguments: Iterable[tuple[str, tag.Value]] = (),
) -> None:
    """Say that the operations whose names begin with a scope belong to a layer; to be called while it is traced.

    Args:
        layer_path: path of the layer, as ``mobilenetv2/block_1/conv``.
        module: its class.
        scope: what `tf.get_current_name_scope` gives inside its call; an empty one tells nothing, and is left out.
        tensors: shapes and dtypes of its inputs.
        arguments: its hyper-parameters, by name.

    Example:
        >>> note("net/fc", "Dense", "net_1/fc", [tag.TensorSpec((None, 8), "f32")])
    """
    scope = scope.rstrip("/")
    if not scope:
        return
    layer = tag.Tag(layer_path, module, phase="forward", tensors=tuple(tensors), arguments=tuple(arguments))
    text = format_scope(scope, layer)
    with _lock:
        known = _noted.get(scope) == text
        _noted[scope] = text
    if not known:
        _mark(text)


def tell() -> None:
    """Say all that was noted once more, for a tool that came after the graphs had been traced."""
    with _lock:
        texts = [*_noted.values()]
    for text in texts:
        _mark(text)


def save_scopes(folder: str | Path) -> Path:
    """Write all that was noted beside what `tf.profiler` wrote, where the report of such a file looks for it.

    Args:
        folder: the log directory that `tf.profiler.experimental.start` was given.

    Returns:
        The file, which is text, a line per scope; see `annot.scope_text`.
    """
    path = Path(folder) / SIDE_FILE
    with _lock:
        path.write_text("".join(f"{text}\n" for text in _noted.values()), encoding="utf-8")
    return path


def _mark(text: str) -> None:
    if emit.enabled():
        emit.mark(emit.event(text, few=True))
