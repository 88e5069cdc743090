"""Text of memory marks: ``memory change |rss``, ``memory peak |cuda:0``. The payload is the number of bytes.

A memory mark precedes the end of the range it belongs to. `change` is the difference between the memory in use at the
end and at the start of the range. `peak` is the maximum in use during the range. ``rss`` is the resident memory of the
process, ``cuda:N`` the memory allocated by PyTorch's caching allocator on that device.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

__all__ = ["CATEGORY", "RSS", "Figure", "parse", "text_of"]

CATEGORY: Final = "memory"
"""NVTX category of memory marks."""

RSS: Final = "rss"
"""Source of the memory of the whole process."""

Figure: TypeAlias = Literal["change", "peak"]

_TEXT = re.compile(r"memory (change|peak) \|(rss|cuda:[0-9]+)")


def text_of(figure: Figure, source: str) -> str:
    """Return the text of a mark.

    Args:
        figure: ``change`` or ``peak``.
        source: ``rss`` or ``cuda:N``.

    Raises:
        ValueError: the figure or the source is unknown.

    Example:
        >>> text_of("peak", "cuda:0")
        'memory peak |cuda:0'
    """
    text = f"memory {figure} |{source}"
    if parse(text) is None:
        raise ValueError(f"memory marks do not support {figure!r} of {source!r}")
    return text


def parse(text: str) -> tuple[str, str] | None:
    """Return figure and source of a memory mark, or None for other texts.

    Example:
        >>> parse("memory change |rss"), parse("fc Linear |fwd")
        (('change', 'rss'), None)
    """
    match = _TEXT.fullmatch(text)
    return (match[1], match[2]) if match else None
