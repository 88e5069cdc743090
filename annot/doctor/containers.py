"""Checks of the environment around this process: Docker, Podman, Kubernetes, WSL."""

from __future__ import annotations

import re
from typing import Final

from annot.doctor.finding import Check, Machine
from annot.doctor.permissions import may_use_perf_events
from annot.util.installed_tools import has_gpu_driver

__all__ = ["container_of", "examine"]

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
        "gpu": "docker run --gpus all", "shm": "docker run --shm-size=8g", "admin": "docker run --cap-add=SYS_ADMIN",
    },
    "Podman": {
        "gpu": "podman run --device nvidia.com/gpu=all", "shm": "podman run --shm-size=8g",
        "admin": "podman run --cap-add=SYS_ADMIN",
    },
    "Kubernetes": {
        "gpu": "kubectl edit pod  # resources: {limits: {nvidia.com/gpu: 1}}",
        "shm": "kubectl edit pod  # volumes: [{name: shm, emptyDir: {medium: Memory}}], mounted at /dev/shm",
        "admin": "kubectl edit pod  # securityContext: {capabilities: {add: [SYS_ADMIN]}}",
    },
}  # fmt: skip


def examine(machine: Machine) -> list[Check]:
    """Check for a container and WSL, and for features that they restrict."""
    container = container_of(machine)
    found = [] if container is None else [_container(machine, container), *_filter(machine, container)]
    return [*found, *_memory(machine, container), *_wsl(machine)]


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
    found = re.search(r"^Seccomp:\s*(\d)", machine.text("/proc/self/status"), re.MULTILINE)
    if found is None or found[1] != _FILTERED or may_use_perf_events(machine):
        return []
    text = "seccomp blocks system calls: CPU samples, context switches and GPU counters are not available"
    return [Check("container's filter", "note", text, _REMEDIES[container]["admin"])]


def _memory(machine: Machine, container: str | None) -> list[Check]:
    found = re.findall(r"^\S+ /dev/shm \S+ \S*?\bsize=(\d+)([kmg]?)", machine.text("/proc/self/mounts"), re.MULTILINE)
    size = int(found[-1][0]) * _UNITS[found[-1][1]] if found else _SMALL_MEMORY  # mounts may have no size limit
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
