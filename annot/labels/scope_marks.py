"""Text of scope marks, which map a name scope of TensorFlow to a layer.

``Scope sequential_1/conv_1 = sequential/conv Conv2D [8,32,32,3]f32 kernel_size=3,3 |fwd``: the text after the equals
sign is the label of the layer's forward range, in the format of `annot.labels.tag`. Operation names start with their
scope. The scope of a layer can differ from its path, because TensorFlow appends a number to a scope that exists.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from annot.labels import tag

__all__ = ["SIDE_FILE", "START", "format_scope", "parse_scope"]

START: Final = "Scope "
"""Prefix of scope marks."""

SIDE_FILE: Final = "annot_scopes.txt"
"""File with a scope mark per line, for profiles without NVTX marks. It is in the folder of the profile or a parent."""

_MARK: Final = re.compile(rf"{START}(\S+) = (.+)", re.DOTALL)


def format_scope(scope: str, layer: tag.Tag) -> str:
    """Return the text of a scope mark.

    Args:
        scope: name scope.
        layer: label of the layer. The phase is ignored.

    Raises:
        ValueError: the scope is empty or contains white space.

    Example:
        >>> format_scope("net_1/fc", tag.Tag("net/fc", "Dense"))
        'Scope net_1/fc = net/fc Dense |fwd'
    """
    text = f"{START}{scope} = {tag.format(replace(layer, phase='forward'))}"
    if parse_scope(text) is None:
        raise ValueError(f"{scope!r} is not a name scope: it is empty or contains white space")
    return text


def parse_scope(text: str) -> tuple[str, tag.Tag] | None:
    """Return scope and layer of a scope mark, or None for other texts.

    Example:
        >>> parse_scope("Scope net_1/fc = net/fc Dense |fwd")[1].module
        'Dense'
    """
    match = _MARK.fullmatch(text)
    layer = match and tag.parse(match[2])
    return (match[1], layer) if match and layer else None
