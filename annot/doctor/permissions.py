"""Checks of permissions for hardware counters and CPU sampling."""

from __future__ import annotations

import re
from typing import Final

from annot.doctor.finding import Check, Machine

__all__ = ["capabilities", "examine", "may_use_perf_events"]

_PARAMETERS: Final = "/proc/driver/nvidia/params"
_PARANOID: Final = "/proc/sys/kernel/perf_event_paranoid"
_SAMPLING: Final = 2
"""Highest perf_event_paranoid with which `nsys profile --sample=process-tree` works."""
# Capability numbers from linux/capability.h.
_SYS_ADMIN: Final = 21
_PERFMON: Final = 38
_OPEN_COUNTERS: Final = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
    " && sudo update-initramfs -u && sudo reboot"
)


def examine(machine: Machine) -> list[Check]:
    """Check the permissions of this process."""
    return [*_counters(machine), *_samples(machine)]


def capabilities(machine: Machine) -> frozenset[int]:
    """Return the numbers of the effective capabilities of this process."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.text("/proc/self/status"), re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def may_use_perf_events(machine: Machine) -> bool:
    """Return whether this process may use perf events regardless of perf_event_paranoid."""
    return bool(capabilities(machine) & {_SYS_ADMIN, _PERFMON})


def _counters(machine: Machine) -> list[Check]:
    found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", machine.text(_PARAMETERS), re.MULTILINE)
    if found is None:
        return []
    if found[1] == "0":
        return [Check("GPU counters", "ok", "available to all users")]
    if _SYS_ADMIN in capabilities(machine):
        return [Check("GPU counters", "ok", "available to administrators only; this process has CAP_SYS_ADMIN")]
    text = "available to administrators only: Nsight Compute fails with ERR_NVGPUCTRPERM"
    return [Check("GPU counters", "note", text, _OPEN_COUNTERS)]


def _samples(machine: Machine) -> list[Check]:
    level = machine.text(_PARANOID).strip()
    if not level.lstrip("-").isdecimal():
        return []
    if int(level) <= _SAMPLING or may_use_perf_events(machine):
        return [Check("CPU sampling", "ok", f"allowed (perf_event_paranoid is {level})")]
    text = f"perf_event_paranoid is {level}: nsys profile --sample fails. annot run does not use sampling"
    return [Check("CPU sampling", "note", text, f"sudo sysctl kernel.perf_event_paranoid={_SAMPLING}")]
