"""Checks of this machine for known causes of missing ranges and kernels, shown by `annot doctor`.

Each subject is a module: `ranges` (whether ranges are recorded), `profilers` (Nsight Systems and Nsight Compute), `gpu`
(driver, CUDA, and the CUDA versions of the frameworks), `containers` (permissions for counters and sampling, Docker,
Kubernetes, WSL).
"""

from __future__ import annotations

from annot.doctor import containers, gpu, profilers, ranges
from annot.doctor.finding import Check, Machine
from annot.errors import PlatformError, require_linux
from annot.util.installed_tools import find_nsys


def examine(collector: str = "auto") -> list[Check]:
    """Run all checks, and record test ranges as `annot run` does. `collector` is its ``--collector``.

    On other systems than Linux, the only check is the one of the system.
    """
    try:
        require_linux("recording NVTX ranges")
    except PlatformError as error:
        return [Check("system", "problem", str(error))]
    machine = Machine()
    nsys = find_nsys()
    return [
        *ranges.examine(machine, nsys),
        *profilers.examine(machine, nsys),
        *gpu.examine(machine, nsys),
        *containers.permissions(machine),
        *containers.examine(machine),
        ranges.self_test(collector),
    ]
