"""Steps of a PyTorch program."""

from __future__ import annotations

from annot.live.request import Request
from annot.live.session import Session


def start(request: Request) -> Session | None:
    """Return none."""
    return None
