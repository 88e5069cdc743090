"""What `annot try` asks of a process, in the variable ANNOT_TRY, and the file with which the process answers."""

from __future__ import annotations

import os
from typing import Final

import msgspec

VARIABLE: Final = "ANNOT_TRY"
"""Environment variable with a `Request` as JSON. The process that calls the first model removes it."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured run of a program."""

    result: str
    """Absolute path of the file for the `Result`. The process writes it once, atomically, when it ends."""
    changes: dict[str, str] = {}
    """The changes to apply, in this order: name, and ``module:function`` of `annot.changes.change.Change.live`."""
    framework: str = ""
    """The framework whose session applies the changes, "torch" or "keras"; empty: each one that is imported."""
    warmup: int = 3
    """Steps before the measured ones."""
    steps: int = 30
    """Measured steps. After them the program ends as after ``sys.exit(0)``, unless `keep_going`."""
    keep_going: bool = False
    """Whether the program runs to its own end after the measured steps."""
    losses: int = 0
    """Number of first steps whose losses are kept; 0: losses are not read. Reading a loss waits for the device."""
    parameters: bool = False
    """Whether the parameters after the last of these steps are hashed."""
    seed: int | None = None
    """Seed for `random`, NumPy and the framework when the framework is imported; None: no seed is set."""


def variables(request: Request) -> dict[str, str]:
    """Return the environment variable with a request.

    Example:
        >>> variables(Request(result="/tmp/result.json"))["ANNOT_TRY"][:28]
        '{"result":"/tmp/result.json"'
    """
    return {VARIABLE: msgspec.json.encode(request).decode()}


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


class Result(msgspec.Struct, kw_only=True):
    """Measurements of a run."""

    framework: str = ""
    """"torch" or "keras"; empty: no step was seen."""
    applied: dict[str, str] = {}
    """Where each change was applied, such as ``{"fused": "AdamW"}``."""
    skipped: dict[str, str] = {}
    """Why a change was not applied, a clause."""
    warmup: int = 0
    """Steps before the measured ones."""
    step_ns: list[int] = []
    """Wall-clock time (ns) of each step, those of the warm-up first. The first one starts where its model is called."""
    window_ns: int | None = None
    """Wall-clock time (ns) of all measured steps, between two waits for the device; None: the program ended before."""
    losses: list[float | None] = []
    """Losses of the first steps; None: a loss is NaN or infinite."""
    parameters: str = ""
    """SHA-256 of all parameters and buffers after these steps."""
    peak_bytes: int = 0
    """Most memory in use: that of the device of the model if it is a GPU, else the resident memory of the process."""
    device: str = ""
    """``cpu`` or ``cuda``."""
    recompiled: int = 0
    """Graphs that were compiled in the measured steps."""
    ended: str = ""
    """"steps": annot ended the program after the measured steps; "program": it ended itself."""
    error: str = ""
    """Type and first line of the exception that ended the program; empty: none did."""
