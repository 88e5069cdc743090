"""Marks with the rank of a process, and with the threads of a process that trains on the CPU."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from annot.emit import client, guard
from annot.labels.marks import format_cpu, format_rank

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_distributed: Final[Any] = torch.distributed


def say_rank() -> None:
    """Emit the mark with rank and world size, if this is a process of a distributed run."""
    if _is_distributed():
        rank, world_size = _distributed.get_rank(), _distributed.get_world_size()
    else:
        rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")  # of torchrun
        if not (rank.isdecimal() and world_size.isdecimal()):
            return
    client.mark_fact(format_rank(int(rank), int(world_size)), category="collective")


def say_threads() -> None:
    """Emit the mark of `annot.labels.marks.format_cpu`, unless the process uses CUDA."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        guard.mark(lambda: format_cpu(_facts()))


def _facts() -> dict[str, int | str]:
    facts: dict[str, int | str] = {"threads": torch.get_num_threads(), "cores": _cores()}
    if _is_distributed():
        facts["backend"] = str(_distributed.get_backend())
        local = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
        if local.isdecimal():
            facts["ranks"] = int(local)
        elif os.environ.get("MASTER_ADDR") in _LOCAL:
            facts["ranks"] = _distributed.get_world_size()
    return facts


def _is_distributed() -> bool:
    return bool(_distributed.is_available() and _distributed.is_initialized())


def _cores() -> int:
    """Return the number of cores that the process may use, at least 1: its affinity, and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return cores
