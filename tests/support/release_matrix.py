"""Test annot with other releases of Python, frameworks and dependencies, one combination after the other.

``python tests/support/release_matrix.py FOLDER [--only NAME ...] [--keep]`` builds the wheel of this checkout. Each
combination gets an environment in FOLDER with this wheel, runs its tests there, and is removed. PyTorch is installed
without its dependencies: the CUDA libraries, which it loads also on a CPU, are installed once per major version of
CUDA. The results of all runs are in ``FOLDER/results.json``; the printed table shows them with their dates. The log of
a run, ``FOLDER/NAME.txt``, begins with the installed releases, and lists the skipped tests with their reasons.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PYTHONS = ("3.11", "3.12", "3.13")
TORCH = ("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.13.0", "2.14.1", "2.15.0")
MISSING = {"torch-2.4.1-3.13"}
"""Combinations that PyTorch does not publish."""
CUDA_13 = "2.13.0"
"""First of the releases above whose wheel on the package index is built for CUDA 13."""
TORCH_NEEDS = ("numpy", "sympy", "networkx", "jinja2", "fsspec", "filelock", "typing_extensions", "setuptools")
CUDA = {
    "12": (
        *("cublas-cu12==12.8.4.1", "cuda-cupti-cu12==12.8.90", "cuda-nvrtc-cu12==12.8.93"),
        *("cuda-runtime-cu12==12.8.90", "cudnn-cu12==9.10.2.21", "cufft-cu12==11.3.3.83", "cufile-cu12==1.13.1.3"),
        *("curand-cu12==10.3.9.90", "cusolver-cu12==11.7.3.90", "cusparse-cu12==12.5.8.93", "cusparselt-cu12==0.7.1"),
        *("nccl-cu12==2.27.5", "nvjitlink-cu12==12.8.93", "nvshmem-cu12==3.3.20", "nvtx-cu12==12.8.90"),
    ),
    "13": (
        *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13", "cufft", "cufile", "curand", "cusolver"),
        *("cusparse", "cusparselt-cu13", "nccl-cu13", "nvjitlink", "nvshmem-cu13", "nvtx"),
    ),
}
"""Packages with the CUDA libraries, without the prefix of their names, by major version."""
TENSORFLOW = (
    ("2.16.2", "3.9.0", "3.11"),
    ("2.16.2", "3.15.1", "3.11"),
    ("2.18.1", "3.15.1", "3.11"),
    ("2.20.0", "3.15.1", "3.11"),
    *(("2.21.0", "newest", python) for python in PYTHONS),
)
"""Releases of TensorFlow, Keras and Python."""
TENSORFLOW_TESTS = tuple(
    f"tensorflow/test_{name}.py"
    for name in ("trace", "gradients", "graphs", "keras_models", "callback", "optimizer", "names", "library", "exact")
)
REPORT_TESTS = (
    *("packaging/test_smoke.py", "read", "attribution", "report/test_folds.py", "report/test_answer.py"),
    *("report/test_files.py", "report/test_table.py", "report/test_tensorboard.py", "agents", "cli/test_completion.py"),
    *("cli/test_report.py", "notebook", "runs/test_compare.py", "runs/test_files.py"),
)
TEST_NEEDS = ("pytest", "pytest-xdist", "hypothesis", "scipy", "ipython")
LIMIT = 1200
"""Timeout of the tests of a combination (s)."""


class Combination(NamedTuple):
    """Releases, and the tests that annot passes with them."""

    name: str
    python: str
    packages: tuple[str, ...]
    """Requirements, besides the wheel of annot."""
    tests: tuple[str, ...] = ()
    """Files and folders of tests; none: `torch_smoke.py`."""
    torch: str = ""
    """Release of PyTorch, installed without its dependencies."""


def project() -> dict[str, Any]:
    """Return the metadata of annot."""
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return metadata


def requirements() -> list[str]:
    """Return the requirements of annot and of its extras, without the frameworks and annot itself."""
    extras = project()["optional-dependencies"]
    optional = [needs for name in sorted({*extras} - {"torch", "tf", "all"}) for needs in extras[name]]
    return list(dict.fromkeys(project()["dependencies"] + optional))


def lowest(requirement: str) -> str:
    """Return the lowest release that a requirement admits."""
    return re.sub(r"^([\w-]+)>=([\d.]+).*", r"\1==\2", requirement)


def combinations() -> dict[str, Combination]:
    """Return all combinations by name."""
    needs = requirements()
    matrix = [
        Combination(f"torch-{release}-{python}", python, TORCH_NEEDS, torch=release)
        for release in TORCH
        for python in PYTHONS
    ]
    for release, keras, python in TENSORFLOW:
        packages = (f"tensorflow-cpu=={release}", "keras" if keras == "newest" else f"keras=={keras}", "protobuf")
        name = f"tensorflow-{release}-keras-{keras}-{python}"
        matrix.append(Combination(name, python, (*packages, *TEST_NEEDS), TENSORFLOW_TESTS))
    # The lowest pandas needs NumPy 1.
    pinned = (*map(lowest, needs), "numpy<2", *TEST_NEEDS)
    matrix.append(Combination("lowest-3.11", "3.11", pinned, REPORT_TESTS))
    newest = (*needs, *TEST_NEEDS)
    matrix += [Combination(f"newest-{python}", python, newest, REPORT_TESTS) for python in PYTHONS]
    return {combination.name: combination for combination in matrix if combination.name not in MISSING}


def python_of(version: str) -> str:
    """Return an interpreter of this version, from the path or from pyenv."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    path = shutil.which(f"python{version}")
    if not path and not installed:
        sys.exit(f"Python {version} is not installed")
    return str(installed[-1]) if installed else str(path)


def pip(python: object, *words: object, **options: Any) -> None:
    """Run pip. Constraints in the user's configuration may exclude a release of the matrix, so they do not count."""
    environ = os.environ | {"PIP_CONSTRAINT": os.devnull, "PYTHONWARNINGS": "ignore"}
    subprocess.run([str(python), "-m", "pip", *map(str, words)], env=environ, check=True, **options)


def install(folder: Path, combination: Combination) -> Path:
    """Create the environment of a combination, and return its interpreter."""
    home = folder / combination.name
    subprocess.run([python_of(combination.python), "-m", "venv", "--clear", home], check=True)
    python = home / "bin/python"
    (wheel,) = folder.glob("*.whl")
    pip(python, "install", "-qq", wheel, *combination.packages)
    if combination.torch:
        pip(python, "install", "-qq", "--no-deps", f"torch=={combination.torch}")
    return python


def cuda_libraries(folder: Path, torch: str) -> str:
    """Install the CUDA libraries of a release of PyTorch unless they are there, and return their folders."""
    major = "13" if TORCH.index(torch) >= TORCH.index(CUDA_13) else "12"
    target = folder / f"cuda-{major}"
    if not (target / "installed").exists():
        packages = [f"nvidia-{name}" for name in CUDA[major]]
        pip(sys.executable, "install", "-qq", "--no-deps", "--no-compile", "--target", target, *packages)
        (target / "installed").touch()
    return ":".join(map(str, target.glob("nvidia/*/lib")))


def run(folder: Path, combination: Combination) -> dict[str, Any]:
    """Install a combination, and run its tests in FOLDER, where they import the installed annot."""
    python = install(folder, combination)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_", "PYTHON"))}
    environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(python.parents[1] / "inductor")}
    words: list[object] = ["-P", "-m", "pytest", "-q", "-rs", "-n", "auto", "-c", ROOT / "pyproject.toml"]
    words += ["--rootdir", ROOT, *(TESTS / name for name in combination.tests)]
    if combination.torch:
        environ |= {"LD_LIBRARY_PATH": cuda_libraries(folder, combination.torch)}
        words = [TESTS / "support/torch_smoke.py"]
    log = folder / f"{combination.name}.txt"
    start = time.monotonic()
    with log.open("w") as output:
        pip(python, "freeze", stdout=output)
        command = ["timeout", str(LIMIT), str(python), *map(str, words)]
        status = subprocess.run(command, cwd=folder, env=environ, stdout=output, stderr=output, check=False).returncode
    seconds = round(time.monotonic() - start)
    return {"status": status, **read_log(log.read_text()), "seconds": seconds, "date": time.strftime("%Y-%m-%d")}


def read_log(text: str) -> dict[str, Any]:
    """Return how many tests of pytest or checks of `torch_smoke.py` passed, and the names of those that failed."""
    passed = re.findall(r"^(?:ok )|\b(\d+) passed", text, re.MULTILINE)
    failed = re.findall(r"^(?:FAIL|FAILED|ERROR) (?:\S*/tests/)?(.{,120})", text, re.MULTILINE)
    return {"passed": sum(int(count or 1) for count in passed), "failed": failed}


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print the table of all results."""
    for name, result in results.items():
        outcome = "passes" if result["status"] == 0 else f"status {result['status']}"
        print(f"{name:<36}{outcome:<12}{result['passed']:>6} passed{result['seconds']:>6} s  {result['date']}")
        print(*(f"    {test}\n" for test in result["failed"]), sep="", end="")


def main() -> int:
    """Run the combinations, and return 1 if one fails."""
    matrix = combinations()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=matrix, default=list(matrix))
    parser.add_argument("--keep", action="store_true", help="keep the environments after their runs")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    pip(sys.executable, "wheel", "-qq", "--no-deps", "-w", folder, ROOT)
    saved = folder / "results.json"
    results = json.loads(saved.read_text()) if saved.exists() else {}
    for name in options.only:
        results[name] = run(folder, matrix[name])
        saved.write_text(json.dumps(results, indent=1))
        if not options.keep:
            shutil.rmtree(folder / name)
    show(results)
    return int(any(results[name]["status"] != 0 for name in options.only))


if __name__ == "__main__":
    sys.exit(main())
