"""Mark with the threads of a process that trains on the CPU."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from annot.emit import client, guard
from annot.labels.marks import format_cpu

__all__ = ["say_threads"]

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


def say_threads() -> None:
    """Emit the mark of `annot.labels.marks.format_cpu`, unless the process uses CUDA."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        guard.attempt(lambda: client.mark(client.event(format_cpu(_facts()), few=True)), otherwise=None)


def _facts() -> dict[str, int | str]:
    facts: dict[str, int | str] = {"threads": torch.get_num_threads(), "cores": _cores()}
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        facts["backend"] = str(distributed.get_backend())
        world = distributed.get_world_size()
        local = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
        if local.isdecimal():
            facts["ranks"] = int(local)
        elif os.environ.get("MASTER_ADDR") in _LOCAL:
            facts["ranks"] = world
    return facts


def _cores() -> int:
    """Return the number of cores that the process may use, at least 1: its affinity, and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cores
