"""The variable ANNOT_TRY, in which `annot try` sends a request to a process. This module needs no other package."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "ANNOT_TRY"
"""Environment variable with an `annot.live.request.Request` as JSON. The process that calls a model removes it."""


def leave_environment() -> None:
    """Remove the request from the environment of this process, so that its children do not measure.

    Launchers such as torchrun call no model: their children measure.
    """
    if os.environ.pop(VARIABLE, None) is None or "ANNOT_LAYERS" in os.environ:
        return
    before = os.environ.pop("ANNOT_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
