"""What runs around this process: Docker, Podman, Kubernetes, WSL."""

from __future__ import annotations

import re
from typing import Final

from annot.collect.checks.finding import Check, Machine
from annot.collect.checks.permissions import may_watch
from annot.collect.tools import has_gpu_driver

__all__ = ["container_of", "examine"]

_RELEASE: Final = "/proc/sys/kernel/osrelease"
_WSL_CUDA: Final = "/usr/lib/wsl/lib/libcuda.so.1"
_SMALL_MEMORY: Final = 1 << 30
"""Of ``/dev/shm``; Docker and Kubernetes give 64 MiB, too little for the workers of a DataLoader."""
_FILTERED: Final = "2"
"""Of ``Seccomp`` in ``/proc/self/status``: system calls go through a filter."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# A Pod sees no flags: what mends it is a part of its description.
_MENDS: Final = {
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
    """Look for a container and for WSL, and at what they take away."""
    container = container_of(machine)
    found = [] if container is None else [_container(machine, container), *_filter(machine, container)]
    return [*found, *_memory(machine, container), *_wsl(machine)]


def container_of(machine: Machine) -> str | None:
    """Return which of Docker, Podman and Kubernetes this process runs in, None if in none."""
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
        return Check("container", "ok", f"{container}, with the GPU's driver")
    text = f"{container}, without a GPU: if the machine has one, the container was not given it"
    return Check("container", "ok", text, _MENDS[container]["gpu"])


def _filter(machine: Machine, container: str) -> list[Check]:
    found = re.search(r"^Seccomp:\s*(\d)", machine.text("/proc/self/status"), re.MULTILINE)
    if found is None or found[1] != _FILTERED or may_watch(machine):
        return []
    text = "the container filters system calls (seccomp): no CPU samples, no context switches, no GPU counters"
    return [Check("container's filter", "note", text, _MENDS[container]["admin"])]


def _memory(machine: Machine, container: str | None) -> list[Check]:
    size = _shared_memory(machine)
    if size is None or size >= _SMALL_MEMORY:
        return []
    text = f"/dev/shm holds {size >> 20} MiB: workers of a DataLoader may end with a bus error"
    mend = _MENDS[container]["shm"] if container else "sudo mount -o remount,size=8g /dev/shm"
    return [Check("shared memory", "note", text, mend)]


def _shared_memory(machine: Machine) -> int | None:
    """The bytes that ``/dev/shm`` may hold, None if its mount does not say."""
    found = re.findall(r"^\S+ /dev/shm \S+ \S*?\bsize=(\d+)([kmg]?)", machine.text("/proc/self/mounts"), re.MULTILINE)
    return int(found[-1][0]) * _UNITS[found[-1][1]] if found else None


def _wsl(machine: Machine) -> list[Check]:
    release = machine.text(_RELEASE).strip()
    if "microsoft" not in release.lower():
        return []
    if "microsoft-standard" not in release.lower():  # the kernel of WSL 2 is ...-microsoft-standard-WSL2
        text = "WSL 1, which has no GPU and which Nsight Systems does not support"
        return [Check("WSL", "problem", text, "wsl.exe --set-version $WSL_DISTRO_NAME 2")]
    if not machine.exists(_WSL_CUDA):
        text = f"WSL 2 without {_WSL_CUDA}: no kernel can run; install NVIDIA's driver in Windows, none in Linux"
        return [Check("WSL", "note", text, "wsl.exe --update && wsl.exe --shutdown")]
    text = "WSL 2; GPU counters are opened in Windows (NVIDIA Control Panel, Developer, GPU performance counters)"
    return [Check("WSL", "ok", text)]
