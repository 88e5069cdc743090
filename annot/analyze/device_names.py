"""Devices and times in the words of a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["cpu_name", "gpu_name", "gpus", "short_time"]

_BRAND: Final = re.compile(r"^(?:NVIDIA |AMD )?(?:GeForce |Tesla |Instinct |Radeon )?")
_OF_CPU: Final = re.compile(r"\((?:R|TM|C)\)|\b(?:CPU|Processor|\d+-Core)\b|@.*|\bwith Radeon.*", re.IGNORECASE)
_LONGEST: Final = 40
"""Maximum length of the name of a device."""
_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))


def cpu_name(meta: Mapping[str, Any]) -> str:
    """Return the model of the CPU in `annot.profile.Profile.meta`, without what all models have; "": unknown.

    Example:
        >>> cpu_name({"cpu": "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz"})
        'Intel Xeon Platinum 8370C'
    """
    return _brief(_OF_CPU.sub("", meta.get("cpu", "")))


def gpu_name(meta: Mapping[str, Any]) -> str:
    """Return the name of the GPUs in `annot.profile.Profile.meta` without its brand; "": unknown, or several.

    Example:
        >>> gpu_name({"devices": [{"name": "NVIDIA GeForce RTX 3070 Ti"}]})
        'RTX 3070 Ti'
    """
    names = {str(device.get("name") or "") for device in meta.get("devices") or ()}
    return _brief(_BRAND.sub("", next(iter(names)))) if len(names) == 1 else ""


def gpus(count: int, name: str) -> str:
    """Return the number and the name of GPUs.

    Example:
        >>> gpus(8, "A100"), gpus(8, ""), gpus(1, "A100")
        ('8 × A100', '8 GPUs', 'A100')
    """
    if count == 1:
        return name or "one GPU"
    return f"{count} × {name}" if name else f"{count} GPUs"


def short_time(ns: float) -> str:
    """Return a time (ns) with three significant digits.

    Example:
        >>> short_time(223_600_000)
        '224 ms'
    """
    unit, size = next((pair for pair in _UNITS if ns >= pair[1]), ("ns", 1))
    value = ns / size
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def _brief(name: str) -> str:
    name = " ".join(name[: 10 * _LONGEST].split())
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
