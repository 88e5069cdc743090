"""The known reasons for missing ranges and kernels, looked for one by one on this machine; `annot doctor` shows them.

A subject is a module: `ranges` (do ranges get recorded), `profilers` (Nsight Systems and Nsight Compute), `gpu`
(driver, CUDA, and what frameworks were built for), `permissions` (counters and sampling), `surroundings` (containers,
WSL).
"""

from __future__ import annotations

from annot.collect.checks import gpu, permissions, profilers, ranges, surroundings
from annot.collect.checks.finding import Check, Machine, State
from annot.collect.tools import find_nsys

__all__ = ["Check", "Machine", "State", "examine"]


def examine(collector: str = "auto") -> list[Check]:
    """Look at everything that decides whether `annot run` would record ranges here, and try it.

    Args:
        collector: what `annot run` would be told to use.
    """
    machine = Machine()
    nsys = find_nsys()
    return [
        *ranges.examine(machine, nsys),
        *profilers.examine(machine, nsys),
        *gpu.examine(machine, nsys),
        *permissions.examine(machine),
        *surroundings.examine(machine),
        ranges.self_test(collector),
    ]
