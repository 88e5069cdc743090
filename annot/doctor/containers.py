"""Checks of what this process may use: counters and sampling, and GPUs in Docker, Podman, Kubernetes and WSL."""

from __future__ import annotations

import re
from typing import Final

from annot.doctor.finding import Check, Machine
from annot.util.installed_tools import has_gpu_driver

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

_RELEASE: Final = "/proc/sys/kernel/osrelease"
_WSL_CUDA: Final = "/usr/lib/wsl/lib/libcuda.so.1"
_SMALL_MEMORY: Final = 1 << 30
"""Minimum bytes of ``/dev/shm``. Docker and Kubernetes default to 64 MiB, too little for DataLoader workers."""
_FILTERED: Final = "2"
"""Value of ``Seccomp`` in ``/proc/self/status`` if a filter restricts system calls."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# A Pod has no command-line flags; the remedy is a field of its specification.
_REMEDIES: Final = {
    "Docker": {
        "gpu": "docker run --gpus all",
        "shm": "docker run --shm-size=8g",
        "admin": "docker run --cap-add=SYS_ADMIN",
    },
    "Podman": {
        "gpu": "podman run --device nvidia.com/gpu=all",
        "shm": "podman run --shm-size=8g",
        "admin": "podman run --cap-add=SYS_ADMIN",
    },
    "Kubernetes": {
        "gpu": "kubectl edit pod  # resources: {limits: {nvidia.com/gpu: 1}}",
        "shm": "kubectl edit pod  # volumes: [{name: shm, emptyDir: {medium: Memory}}], mounted at /dev/shm",
        "admin": "kubectl edit pod  # securityContext: {capabilities: {add: [SYS_ADMIN]}}",
    },
}


def permissions(machine: Machine) -> list[Check]:
    """Check the permissions of this process for hardware counters and CPU sampling."""
    return [*_counters(machine), *_samples(machine)]


def examine(machine: Machine) -> list[Check]:
    """Check for a container and WSL, and for features that they restrict."""
    container = container_of(machine)
    checks = [] if container is None else [_container(machine, container), *_filter(machine, container)]
    return [*checks, *_memory(machine, container), *_wsl(machine)]


def container_of(machine: Machine) -> str | None:
    """Return the container runtime of this process: Docker, Podman, Kubernetes or None."""
    groups = machine.text("/proc/1/cgroup")
    if machine.environ.get("KUBERNETES_SERVICE_HOST") or "kubepods" in groups:
        return "Kubernetes"
    if machine.exists("/run/.containerenv") or "libpod" in groups:
        return "Podman"
    if machine.exists("/.dockerenv") or re.search(r"docker|containerd", groups):
        return "Docker"
    return None


def _container(machine: Machine, container: str) -> Check:
    if has_gpu_driver(machine.root):
        return Check("container", "ok", f"{container}, with the GPU driver")
    text = f"{container} without a GPU. If the machine has one, pass it to the container"
    return Check("container", "ok", text, _REMEDIES[container]["gpu"])


def _filter(machine: Machine, container: str) -> list[Check]:
    match = re.search(r"^Seccomp:\s*(\d)", machine.text("/proc/self/status"), re.MULTILINE)
    if match is None or match[1] != _FILTERED or _may_use_perf_events(machine):
        return []
    text = "seccomp blocks system calls: CPU samples, context switches and GPU counters are not available"
    return [Check("container's filter", "note", text, _REMEDIES[container]["admin"])]


def _memory(machine: Machine, container: str | None) -> list[Check]:
    mounts = re.findall(r"^\S+ /dev/shm \S+ \S*?\bsize=(\d+)([kmg]?)", machine.text("/proc/self/mounts"), re.MULTILINE)
    size = int(mounts[-1][0]) * _UNITS[mounts[-1][1]] if mounts else _SMALL_MEMORY  # mounts may have no size limit
    if size >= _SMALL_MEMORY:
        return []
    text = f"/dev/shm is limited to {size >> 20} MiB: DataLoader workers may fail with a bus error"
    remedy = _REMEDIES[container]["shm"] if container else "sudo mount -o remount,size=8g /dev/shm"
    return [Check("shared memory", "note", text, remedy)]


def _wsl(machine: Machine) -> list[Check]:
    release = machine.text(_RELEASE).strip()
    if "microsoft" not in release.lower():
        return []
    if "microsoft-standard" not in release.lower():  # WSL 2 kernels are named ...-microsoft-standard-WSL2
        text = "WSL 1 does not support GPUs or Nsight Systems"
        return [Check("WSL", "problem", text, "wsl.exe --set-version $WSL_DISTRO_NAME 2")]
    if not machine.exists(_WSL_CUDA):
        text = f"{_WSL_CUDA} is missing: kernels cannot run. Install the NVIDIA driver in Windows, not in Linux"
        return [Check("WSL", "note", text, "wsl.exe --update && wsl.exe --shutdown")]
    text = "WSL 2. Enable GPU counters in Windows (NVIDIA Control Panel, Developer, GPU performance counters)"
    return [Check("WSL", "ok", text)]


def _capabilities(machine: Machine) -> frozenset[int]:
    """Return the numbers of the effective capabilities of this process."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.text("/proc/self/status"), re.MULTILINE)
    mask = int(match[1], 16) if match else 0
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def _may_use_perf_events(machine: Machine) -> bool:
    """Return whether this process may use perf events regardless of perf_event_paranoid."""
    return bool(_capabilities(machine) & {_SYS_ADMIN, _PERFMON})


def _counters(machine: Machine) -> list[Check]:
    match = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", machine.text(_PARAMETERS), re.MULTILINE)
    if match is None:
        return []
    if match[1] == "0":
        return [Check("GPU counters", "ok", "available to all users")]
    if _SYS_ADMIN in _capabilities(machine):
        return [Check("GPU counters", "ok", "available to administrators only; this process has CAP_SYS_ADMIN")]
    text = "available to administrators only: Nsight Compute fails with ERR_NVGPUCTRPERM"
    return [Check("GPU counters", "note", text, _OPEN_COUNTERS)]


def _samples(machine: Machine) -> list[Check]:
    level = machine.text(_PARANOID).strip()
    if not level.lstrip("-").isdecimal():
        return []
    if int(level) <= _SAMPLING or _may_use_perf_events(machine):
        return [Check("CPU sampling", "ok", f"allowed (perf_event_paranoid is {level})")]
    text = f"perf_event_paranoid is {level}: nsys profile --sample fails. annot run does not use sampling"
    return [Check("CPU sampling", "note", text, f"sudo sysctl kernel.perf_event_paranoid={_SAMPLING}")]
