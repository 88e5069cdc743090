"""The text of the mark that says which layer a name scope of TensorFlow belongs to.

``Scope sequential_1/conv_1 = sequential/conv Conv2D [8,32,32,3]f32 kernel_size=3,3 |fwd``: what comes after the equals
sign is the text of the layer's forward range, as `annot.tag` writes it. Names of operations begin with their scope; the
scope of a layer is not always its path, since TensorFlow numbers scopes that come again.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from annot import tag

__all__ = ["SIDE_FILE", "START", "format_scope", "parse_scope"]

START: Final = "Scope "
"""What such a text begins with."""

SIDE_FILE: Final = "annot_scopes.txt"
"""File of such texts, a line each, beside profiles in which marks of NVTX cannot stand, or in a folder around them."""

_MARK: Final = re.compile(rf"{START}(\S+) = (.+)", re.DOTALL)


def format_scope(scope: str, layer: tag.Tag) -> str:
    """Return the text of the mark.

    Raises:
        ValueError: the scope is empty or holds white space.

    Example:
        >>> format_scope("net_1/fc", tag.Tag("net/fc", "Dense"))
        'Scope net_1/fc = net/fc Dense |fwd'
    """
    text = f"{START}{scope} = {tag.format(replace(layer, phase='forward'))}"
    if parse_scope(text) is None:
        raise ValueError(f"{scope!r} is no name scope")
    return text


def parse_scope(text: str) -> tuple[str, tag.Tag] | None:
    """Return scope and layer, or None if the text is not of such a mark.

    Example:
        >>> parse_scope("Scope net_1/fc = net/fc Dense |fwd")[1].module
        'Dense'
    """
    match = _MARK.fullmatch(text)
    layer = match and tag.parse(match[2])
    return (match[1], layer) if match and layer else None
