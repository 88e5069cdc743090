"""Devices whose events annot does not read, from the categories of a trace.

Kineto names categories after devices: ``mtia_runtime``, ``mtia_ccp_events``, ``hpu_op``, ``privateuse1_driver``
(libkineto's ActivityType). Kernels and copies of any device that are in the general categories ``kernel``,
``gpu_memcpy`` and ``gpu_memset`` are GPU activities.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["other_devices"]

_RUNTIME: Final = re.compile(r"(\w+)_(?:runtime|driver)")
_SUPPORTED: Final = frozenset({"cuda", "cu", "hip", "roctracer"})
_KNOWN: Final = frozenset({"gcu", "hpu", "ipu", "mlu", "mtia", "musa", "npu", "xla", "xpu"})
_NAMES: Final = {"privateuse1": "PrivateUse1", "glow": "Glow"}


def other_devices(unsupported: Mapping[str, int], runtimes: Iterable[str]) -> dict[str, int]:
    """Return the number of events that annot skipped of each device, most first.

    Args:
        unsupported: number of events of the categories that annot skipped.
        runtimes: categories of the calls of runtimes and drivers. They name devices, too.

    Example:
        >>> other_devices({"mtia_ccp_events": 7, "hpu_op": 2, "my_category": 1}, ["mtia_runtime", "cuda_runtime"])
        {'MTIA': 7, 'HPU': 2}
    """
    named = {match[1] for category in runtimes if (match := _RUNTIME.fullmatch(category.lower()))}
    devices = (named | _KNOWN) - _SUPPORTED
    counts: Counter[str] = Counter()
    for category, count in unsupported.items():
        device = category.lower().partition("_")[0]
        if device in devices:
            counts[_NAMES.get(device, device.upper())] += count
    return dict(counts.most_common())
