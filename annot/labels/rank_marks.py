"""Text of rank marks: ``Rank 3 of 8``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["format_rank", "parse_rank"]

_MARK: Final = re.compile(r"Rank (\d{1,9}) of (\d{1,9})")


def format_rank(rank: int, world_size: int) -> str:
    """Return the text of a rank mark.

    Args:
        rank: rank of the process, from 0.
        world_size: number of ranks.

    Example:
        >>> format_rank(3, 8)
        'Rank 3 of 8'
    """
    return f"Rank {rank} of {world_size}"


def parse_rank(text: str) -> tuple[int, int] | None:
    """Return rank and world size of a rank mark, or None for other texts.

    Example:
        >>> parse_rank("Rank 3 of 8"), parse_rank("Rank 8 of 8")
        ((3, 8), None)
    """
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    rank, world_size = int(match[1]), int(match[2])
    return (rank, world_size) if rank < world_size and text == format_rank(rank, world_size) else None
