"""Parts of the step time: their keys in files, their names in sentences, tables and charts, and their meanings.

The verdict, the bar, the advice, the page and the guide take names from here, so that a part has one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["CPU_PARTS", "GPU_PARTS", "IDLE", "OTHER", "OUTSIDE", "PartName"]


class PartName(NamedTuple):
    """Name of a part, which completes "46% …" and "mostly …", and a sentence about it without its full stop.

    Example:
        >>> GPU_PARTS["launch"].name
        'waiting for launches'
    """

    name: str
    meaning: str


_DATA: Final = "waiting for data"
_EXPOSED: Final = "exposed communication"
OTHER: Final = "other_ranges"
OUTSIDE: Final = "outside_ranges"

GPU_PARTS: Final[Mapping[str, PartName]] = {
    "tensor_cores": PartName("Tensor Cores", "a kernel runs on Tensor Cores"),
    "kernels": PartName(
        "other kernels", "another kernel runs, or its use of Tensor Cores is unknown; except collectives"
    ),
    "collectives": PartName(_EXPOSED, "only collectives run"),
    "copies": PartName("exposed copies", "only copies and memsets run"),
    "data": PartName(_DATA, "the GPU is idle while a thread waits for data"),
    "unrecorded": PartName("unexplained", "the GPU is idle, and the profile does not show what it waits for"),
    "synchronisation": PartName(
        "synchronising", "the GPU is idle because a thread waits for it, or waited and has not launched anything since"
    ),
    "launch": PartName(
        "waiting for launches", "the GPU is idle for less than 1 ms while the CPU prepares the next launch"
    ),
    "allocation": PartName("allocating memory", "the GPU is idle while a thread allocates or frees GPU memory"),
    "host": PartName("waiting for the CPU", "the GPU is idle while the CPU runs other code"),
}
"""Parts of the step time of a GPU, by their keys in files."""

CPU_PARTS: Final[Mapping[str, PartName]] = {
    "forward": PartName("forward", "a thread computes the forward pass"),
    "backward": PartName("backward", "a thread computes the backward pass, or a forward again for checkpointing"),
    "optimizer": PartName("optimizer", "a thread updates parameters or zeroes gradients"),
    "collectives": PartName(_EXPOSED, "the process waits in collectives and computes no phase"),
    "data": PartName(_DATA, "a thread waits for data"),
    OTHER: PartName(
        "other ranges", "the process is in other ranges, such as those of @trace or the operations of a loss"
    ),
    OUTSIDE: PartName("outside ranges", "the process runs code outside any range but that of an epoch or batch"),
}
"""Parts of the step time of a process without a GPU in order of precedence, by their keys in files."""

IDLE: Final = ("data", "unrecorded", "synchronisation", "launch", "allocation", "host")
"""Parts in which a GPU is idle."""
