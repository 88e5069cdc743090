"""Colors of the phases and other categories of ranges."""

from typing import Final

__all__ = ["COLORS"]

COLORS: Final = {
    "forward": 0xFF4C9F38,
    "backward": 0xFFE07B39,
    "recompute": 0xFF9BBF4B,
    "op": 0xFF5AA9B8,
    "optimizer": 0xFF8E5CC2,
    "data": 0xFFC94F4F,
    "collective": 0xFFB8A02E,
    "loop": 0xFF6C7A89,
}
"""Color of each category, 0xAARRGGBB."""
