"""The doctor's checks against folders that hold what /proc and others say on machines of several kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from annot import native
from annot.doctor import containers, gpu, profilers, ranges
from annot.doctor.finding import Check, Machine
from annot.doctor.gpu import Build
from annot.util.installed_tools import Nsys

# As `cat /proc/driver/nvidia/version` prints with the closed and the open kernel module.
CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
PARAMETERS = "ModifyDeviceFiles: 1\nRmProfilingAdminOnly: {}\nDynamicPowerManagement: 3\n"
STATUS = "Name:\tpython\nCapPrm:\t{0}\nCapEff:\t{0}\nSeccomp:\t{1}\nSeccomp_filters:\t0\n"
USER, ADMINISTRATOR, DOCKER_ROOT, PERFMON = (
    "0000000000000000",
    "000001ffffffffff",
    "00000000a80425fb",
    "0000004000000000",
)


def machine(root: Path, files: dict[str, str] | None = None, **environ: str) -> Machine:
    """A machine that has these files and variables, and nothing else."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root, {"PATH": "", **environ})


def by_name(checks: list[Check]) -> dict[str, Check]:
    """The checks by name; whatever is not well has a command that mends it."""
    assert all(check.mend for check in checks if check.state != "ok"), checks
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def driver(root: Path, version: str = CLOSED) -> Machine:
    """A machine with an NVIDIA driver."""
    return machine(root, {"proc/driver/nvidia/version": version})


def nsys(*version: int) -> Nsys:
    """An Nsight Systems of some version."""
    return Nsys(Path("/usr/bin/nsys"), version)


@pytest.mark.parametrize(("said", "version"), [(CLOSED, "550.54.15"), (OPEN, "580.95.05")])
def test_driver_and_its_cuda(tmp_path, said, version):
    """The driver's version is read from either kernel module, and the CUDA that it brings stands beside it."""
    check = by_name(gpu.checks_of(driver(tmp_path, said), (12, 4), [], None))["GPU driver"]
    assert (check.state, check.text) == ("ok", f"NVIDIA {version}, supports CUDA up to 12.4: kernels are traced")


def test_driver_without_its_library_is_a_problem(tmp_path):
    """A kernel module alone runs no kernels; a machine without either is well, and has host times only."""
    assert by_name(gpu.checks_of(driver(tmp_path), None, [], None))["GPU driver"].state == "problem"
    none = by_name(gpu.checks_of(machine(tmp_path / "bare"), None, [], None))["GPU driver"]
    assert (none.state, none.text) == ("ok", "no NVIDIA driver: profiles contain host times only")


@pytest.mark.parametrize(
    ("cuda", "built", "state"),
    [((12, 4), (12, 4), "ok"), ((12, 2), (12, 8), "ok"), ((13, 0), (12, 8), "ok"), ((12, 8), (13, 0), "problem")],
)
def test_framework_for_a_later_cuda_than_the_drivers(tmp_path, cuda, built, state):
    """A driver runs earlier majors and all minors of its own, and nothing of a later major."""
    check = by_name(gpu.checks_of(driver(tmp_path), cuda, [Build("torch", "2.13.0", built)], None))["torch"]
    assert check.state == state
    assert (check.mend is not None and "whl/cu128" in check.mend) is (state == "problem")


def test_framework_without_cuda_on_a_machine_with_a_gpu(tmp_path):
    """A build for the processor alone is a note where there is a GPU, and nothing to speak of where there is none."""
    found = [Build("torch", "2.13.0+cpu", None), Build("tensorflow", "2.21.0", None)]
    with_gpu = by_name(gpu.checks_of(driver(tmp_path), (12, 4), found, None))
    assert with_gpu["torch"].state == with_gpu["tensorflow"].state == "note"
    assert "tensorflow[and-cuda]" in (with_gpu["tensorflow"].mend or "")
    without = by_name(gpu.checks_of(machine(tmp_path / "bare"), None, found, None))
    assert without["torch"] == Check("torch", "ok", "2.13.0+cpu")
    for_amd = gpu.checks_of(driver(tmp_path), (12, 4), [Build("torch", "2.13.0", None, "ROCm 6.4")], None)
    assert by_name(for_amd)["torch"].state == "ok"


def test_builds_of_what_is_installed(tmp_path, monkeypatch):
    """What frameworks were built for is read from their own files, of which these are the lines."""
    torch = "__version__ = \"2.7\"\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    tensorflow = "build_info = collections.OrderedDict([('cuda_version', '12.5.1'), ('is_cuda_build', True)])\n"
    machine(
        tmp_path,
        {
            "torch/__init__.py": "", "torch/version.py": torch, "tensorflow/__init__.py": "",
            "tensorflow/python/platform/build_info.py": tensorflow,
        },
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    found = {build.name: build.cuda for build in gpu.builds()}
    assert found == {"torch": (12, 8), "tensorflow": (12, 5)}


def test_builds_agree_with_the_installed_pytorch():
    """Of the PyTorch that is here, the file says what the module says."""
    torch = pytest.importorskip("torch")
    build = next(build for build in gpu.builds() if build.name == "torch")
    cuda = torch.version.cuda
    assert build.cuda == (tuple(map(int, cuda.split(".")[:2])) if cuda else None)
    assert build.version == torch.__version__


@pytest.mark.parametrize(
    ("version", "state", "mend"),
    [
        (None, "note", "-m pip install nvtx"),
        ("0.2.10", "note", "-m pip install 'nvtx>=0.2.11,!=0.2.12'"),
        ("0.2.11", "ok", None),
        ("0.2.13", "note", "-m pip install nvtx==0.2.11"),
    ],
)
def test_nvtx_package(version, state, mend):
    """An nvtx that annot cannot use, or that this Nsight Systems does not hear, is a note with the version to take."""
    check = ranges.nvtx_package(version, nsys(2022, 4, 2))
    assert check.state == state
    assert check.mend is mend or (check.mend or "").endswith(mend)
    assert ranges.nvtx_package("0.2.13", nsys(2030, 1, 1)) == Check("nvtx package", "ok", "0.2.13")


def test_least_nvtx_is_the_one_that_the_package_asks_for():
    """The doctor knows the limit of pyproject.toml."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"nvtx>=0.2.11,!=0.2.12; ' in text
    assert "nvtx>=0.2.11,!=0.2.12" in (ranges.nvtx_package("0.2.10", None).mend or "")


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ('{"url": "file:///my%20work/annot", "dir_info": {}}', "file:///my%20work/annot"),
        ('{"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}}', "git+https://host/a.git@1f"),
        (None, "annot-nvtx==9.1"),
    ],
)
def test_building_again_takes_the_annot_that_is_installed(tmp_path, monkeypatch, record, source):
    """The command names where annot came from; annot-nvtx is its name on package indexes."""
    assert native.build_command().endswith(f"-e {Path(__file__).parents[2]}")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "annot/native/__init__.py"))
    files = {"METADATA": "Metadata-Version: 2.1\nName: annot-nvtx\nVersion: 9.1\n", "direct_url.json": record}
    machine(tmp_path, {f"annot_nvtx-9.1.dist-info/{name}": text for name, text in files.items() if text})
    monkeypatch.syspath_prepend(tmp_path)
    assert native.build_command().endswith(f" -m pip install --force-reinstall --no-deps {source}")


def test_toolkits_in_usr_local(tmp_path):
    """Each toolkit counts once, links to it not at all, and one without a version is passed over."""
    place = machine(tmp_path, {"usr/local/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}'})
    machine(tmp_path, {"usr/local/cuda-9/version.json": "[]"})
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.4")
    text = by_name(gpu.checks_of(place, None, [], None))["CUDA runtime"].text
    assert text.startswith("12.4.1 in /usr/local/cuda-12.4")
    assert text.count("/usr/local") == 1


def test_nsight_systems_older_than_cuda(tmp_path):
    """Nsight Systems from before the driver's CUDA is a note; without a driver it is none."""
    old = by_name(gpu.checks_of(driver(tmp_path), (13, 0), [], nsys(2024, 5, 1)))
    assert "2025.3 or later" in (old["Nsight Systems and CUDA"].mend or "")
    for cuda, version in (((13, 0), (2025, 3, 2)), ((12, 4), (2022, 4, 2)), (None, (2020, 1, 1))):
        assert "Nsight Systems and CUDA" not in by_name(gpu.checks_of(driver(tmp_path), cuda, [], nsys(*version)))


@pytest.mark.parametrize(
    ("only", "can", "state"), [(0, USER, "ok"), (1, ADMINISTRATOR, "ok"), (1, DOCKER_ROOT, "note"), (1, USER, "note")]
)
def test_gpu_counters(tmp_path, only, can, state):
    """Counters are for all users or for CAP_SYS_ADMIN, which root of a container lacks."""
    files = {"proc/driver/nvidia/params": PARAMETERS.format(only), "proc/self/status": STATUS.format(can, 0)}
    check = by_name(containers.permissions(machine(tmp_path, files)))["GPU counters"]
    assert check.state == state
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in (check.mend or "")) is (state == "note")


@pytest.mark.parametrize(
    ("level", "can", "state"), [("2", USER, "ok"), ("-1", USER, "ok"), ("3", USER, "note"), ("4", PERFMON, "ok")]
)
def test_cpu_sampling(tmp_path, level, can, state):
    """Nsight Systems samples the processor up to level 2 of perf_event_paranoid, and with CAP_PERFMON always."""
    files = {"proc/sys/kernel/perf_event_paranoid": f"{level}\n", "proc/self/status": STATUS.format(can, 0)}
    check = by_name(containers.permissions(machine(tmp_path, files)))["CPU sampling"]
    assert (check.state, check.mend) == (
        state, "sudo sysctl kernel.perf_event_paranoid=2" if state == "note" else None,
    )  # fmt: skip


def test_nothing_is_said_of_what_a_machine_does_not_have(tmp_path):
    """Without the files there is no check, and none fails."""
    bare = machine(tmp_path)
    assert containers.permissions(bare) == containers.examine(bare) == []
    assert by_name(profilers.examine(bare, None))["Nsight Compute"].state == "ok"


@pytest.mark.parametrize(
    ("files", "environ", "container", "mend"),
    [
        ({".dockerenv": ""}, {}, "Docker", "docker run --gpus all"),
        ({"run/.containerenv": "engine=podman"}, {}, "Podman", "podman run --device nvidia.com/gpu=all"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes", "nvidia.com/gpu: 1"),
        (
            {"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n"},
            {},
            "Kubernetes",
            "kubectl",
        ),
        ({"proc/1/cgroup": "12:pids:/docker/0f3a\n"}, {}, "Docker", "docker run"),
    ],
)
def test_containers(tmp_path, files, environ, container, mend):
    """Each kind of container is told by its own signs, and mended by its own command."""
    place = machine(tmp_path, files, **environ)
    assert containers.container_of(place) == container
    check = by_name(containers.examine(place))["container"]
    assert check.text.startswith(f"{container} without a GPU")
    assert mend in (check.mend or "")


def test_container_that_takes_something_away(tmp_path):
    """Docker's filter and its 64 MiB of shared memory are notes; CAP_SYS_ADMIN lifts the filter."""
    mounts = "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0\n"
    files = {".dockerenv": "", "proc/self/mounts": mounts, "proc/self/status": STATUS.format(DOCKER_ROOT, 2)}
    checks = by_name(containers.examine(machine(tmp_path, files)))
    assert checks["container's filter"].mend == "docker run --cap-add=SYS_ADMIN"
    assert checks["shared memory"].text.startswith("/dev/shm is limited to 64 MiB")
    assert checks["shared memory"].mend == "docker run --shm-size=8g"
    files |= {"proc/self/status": STATUS.format(ADMINISTRATOR, 2)}
    files |= {"proc/self/mounts": "tmpfs /dev/shm tmpfs rw,size=8388608k 0 0\n"}
    assert list(by_name(containers.examine(machine(tmp_path, files)))) == ["container"]


@pytest.mark.parametrize(
    ("release", "cuda", "state", "text"),
    [
        ("4.4.0-19041-Microsoft", False, "problem", "WSL 1"),
        ("5.15.153.1-microsoft-standard-WSL2", False, "note", "libcuda.so.1 is missing"),
        ("5.15.153.1-microsoft-standard-WSL2", True, "ok", "GPU performance counters"),
    ],
)
def test_wsl(tmp_path, release, cuda, state, text):
    """WSL 1 has no GPU; WSL 2 has one as soon as Windows brings the driver's library."""
    files = {"proc/sys/kernel/osrelease": f"{release}\n"}
    if cuda:
        files["usr/lib/wsl/lib/libcuda.so.1"] = ""
    check = by_name(containers.examine(machine(tmp_path, files)))["WSL"]
    assert check.state == state
    assert text in check.text


def test_nsight_compute_is_asked_for_its_version(tmp_path):
    """Nsight Compute is found on PATH and in the usual folders; where there is a GPU, its absence is a note."""
    said = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2024.1.1.0 (build 33998838) (public-release)"
    command = tmp_path / "opt/nvidia/nsight-compute/2024.1.1/ncu"
    place = driver(tmp_path)
    assert by_name(profilers.examine(place, None))["Nsight Compute"].mend == "sudo apt install nsight-compute"
    machine(tmp_path, {"opt/nvidia/nsight-compute/2024.1.1/ncu": f"#!/bin/sh\ncat <<END\n{said}\nEND\n"})
    command.chmod(0o755)
    found = by_name(profilers.examine(Machine(tmp_path, {"PATH": "/usr/bin:/bin"}), None))["Nsight Compute"]
    assert found.text == f"2024.1.1 at {command}"
    silent = Machine(tmp_path, {"PATH": "", "ANNOT_NCU": "/nonexistent/ncu"})
    assert by_name(profilers.examine(silent, None))["Nsight Compute"].mend == "unset ANNOT_NCU"


def test_another_tool_in_the_place_of_cuda_s(tmp_path):
    """A library that CUDA loads into the process takes the kernels from other collectors."""
    place = machine(tmp_path, {"opt/tool.so": ""}, CUDA_INJECTION64_PATH="/opt/tool.so")
    (check,) = ranges.switches(place)
    assert (check.state, check.mend) == ("note", "unset CUDA_INJECTION64_PATH")
    (check,) = ranges.switches(machine(tmp_path, CUDA_INJECTION64_PATH="/opt/other.so"))
    assert check.state == "problem"
    (check,) = ranges.switches(machine(tmp_path, CUDA_INJECTION64_PATH="tool.so"))
    assert check.state == "note"
