"""What marks about memory say: ``memory change |rss``, ``memory peak |cuda:0``; the bytes are their payload.

Such a mark is set just before the range closes to which it belongs: `change` is how much more memory is in use than
when the range opened, `peak` the most that was in use meanwhile. ``rss`` is the resident memory of the process,
``cuda:N`` what PyTorch's allocator has given out on that device.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

__all__ = ["CATEGORY", "RSS", "Figure", "parse", "text_of"]

CATEGORY: Final = "memory"
"""The NVTX category of these marks."""

RSS: Final = "rss"
"""The source of figures about the whole process."""

Figure: TypeAlias = Literal["change", "peak"]

_TEXT = re.compile(r"memory (change|peak) \|(rss|cuda:[0-9]+)")


def text_of(figure: Figure, source: str) -> str:
    """Return the text of a mark.

    Raises:
        ValueError: `parse` would not understand it.

    Example:
        >>> text_of("peak", "cuda:0")
        'memory peak |cuda:0'
    """
    text = f"memory {figure} |{source}"
    if parse(text) is None:
        raise ValueError(f"a mark about memory cannot say {figure!r} of {source!r}")
    return text


def parse(text: str) -> tuple[str, str] | None:
    """Return figure and source, or None if the text is not of such a mark.

    Example:
        >>> parse("memory change |rss"), parse("fc Linear |fwd")
        (('change', 'rss'), None)
    """
    match = _TEXT.fullmatch(text)
    return (match[1], match[2]) if match else None
