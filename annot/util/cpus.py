"""The CPUs of this machine."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, at least 1. Only Linux limits a process to some of them.

    Example:
        >>> usable_cpus() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
