"""Run `torch_smoke.py` with other releases of PyTorch and Python, one combination after the other, and print a table.

``python tests/support/torch_matrix.py FOLDER [--only 2.6.0-3.12 ...] [--keep]``. Each Python has an environment in
FOLDER with what annot and PyTorch import. A release of PyTorch is installed without its dependencies, and removed after
its run: the CUDA libraries, which PyTorch loads also on a CPU, are installed once per major version of CUDA. The
results of all runs are in ``FOLDER/results.json``; the table shows them with their dates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RELEASES = ("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.13.0", "2.15.0")
PYTHONS = ("3.11", "3.12", "3.13")
MISSING = {"2.4.1-3.13"}
"""Combinations that PyTorch does not publish."""
CUDA_13 = "2.11.0"
"""First of the releases above whose wheel on the package index is built for CUDA 13."""

ROOT = Path(__file__).parents[2]
REQUIRED = (
    *("nvtx>=0.2.11,!=0.2.12", "wrapt>=2.0,<3", "polars", "adbc-driver-sqlite", "msgspec", "rich"),
    *("numpy", "sympy", "networkx", "jinja2", "fsspec", "filelock", "typing_extensions", "mpmath", "setuptools"),
)
"""What annot and PyTorch import."""
CUDA = {
    "12": (
        *(
            "cublas-cu12==12.8.4.1",
            "cuda-cupti-cu12==12.8.90",
            "cuda-nvrtc-cu12==12.8.93",
            "cuda-runtime-cu12==12.8.90",
        ),
        *("cudnn-cu12==9.10.2.21", "cufft-cu12==11.3.3.83", "cufile-cu12==1.13.1.3", "curand-cu12==10.3.9.90"),
        *("cusolver-cu12==11.7.3.90", "cusparse-cu12==12.5.8.93", "cusparselt-cu12==0.7.1", "nccl-cu12==2.27.5"),
        *("nvjitlink-cu12==12.8.93", "nvshmem-cu12==3.3.20", "nvtx-cu12==12.8.90"),
    ),
    "13": (
        *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13", "cufft", "cufile", "curand", "cusolver"),
        *("cusparse", "cusparselt-cu13", "nccl-cu13", "nvjitlink", "nvshmem-cu13", "nvtx"),
    ),
}
"""Packages with the CUDA libraries, without the prefix of their names, by major version."""
LIMIT = 900
"""Timeout of a run (s). It takes a quarter of a minute of CPU time."""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers."""
    return tuple(map(int, version.split(".")))


def python_of(version: str) -> str:
    """Return an interpreter of this version, from the path or from pyenv."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    path = shutil.which(f"python{version}")
    if not path and not installed:
        sys.exit(f"Python {version} is not installed")
    return str(installed[-1]) if installed else str(path)


def install(python: Path, target: Path | None, *packages: str) -> Path | None:
    """Install packages into the environment of `python`, or into a folder without what they require."""
    done = (target or python.parents[1]) / "installed"
    if not done.exists():
        where = ["--no-deps", "--no-compile", "--target", str(target)] if target else []
        # Constraints in the user's configuration of pip may exclude a release of the matrix.
        environ = os.environ | {"PIP_CONSTRAINT": os.devnull}
        subprocess.run([python, "-m", "pip", "install", "-q", *where, *packages], env=environ, check=True)
        done.touch()
    return target


def environment(folder: Path, version: str) -> Path:
    """Return the interpreter of an environment with what annot and PyTorch import."""
    home = folder / f"python-{version}"
    if not home.exists():
        subprocess.run([python_of(version), "-m", "venv", home], check=True)
    install(home / "bin/python", None, *REQUIRED)
    return home / "bin/python"


def run(folder: Path, release: str, version: str) -> dict[str, Any]:
    """Install a release of PyTorch for a version of Python, and run the smoke test."""
    python = environment(folder, version)
    major = "13" if numbers(release) >= numbers(CUDA_13) else "12"
    cuda = folder / f"cuda-{major}"
    install(python, cuda, *[f"nvidia-{name}" for name in CUDA[major]])
    torch = folder / f"torch-{release}-{version}"
    install(python, torch, f"torch=={release}")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_"))},
        "LD_LIBRARY_PATH": ":".join(map(str, cuda.glob("nvidia/*/lib"))),
        "PYTHONPATH": ":".join(map(str, (torch, ROOT, ROOT / "tests/support"))),
    }
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as cache,
        open(folder / f"{release}-{version}.txt", "w+", encoding="utf-8") as output,
    ):
        environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        words = ["timeout", str(LIMIT), str(python), str(ROOT / "tests/support/torch_smoke.py")]
        status = subprocess.run(words, env=environ, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        output.seek(0)
        lines = output.read().splitlines()
    return {
        "torch": release, "python": version, "status": status, "seconds": round(time.monotonic() - start),
        "ok": sum(line.startswith("ok ") for line in lines),
        "failed": [line[5:90] for line in lines if line.startswith("FAIL ")],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print the table of all results."""
    print(f"\n{'torch':<8}{'python':<8}{'result':<22}{'wall':>6}  date")
    for one in sorted(results.values(), key=lambda one: (numbers(one["torch"]), numbers(one["python"]))):
        result = f"{one['ok']} checks pass" if one["status"] == 0 else f"status {one['status']}, {one['ok']} pass"
        failed = "; ".join(one["failed"])
        print(f"{one['torch']:<8}{one['python']:<8}{result:<22}{one['seconds']:>4} s  {one['date']}  {failed}")


def main() -> int:
    """Run the combinations, and return 1 if one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", metavar="RELEASE-PYTHON")
    parser.add_argument("--keep", action="store_true", help="keep the releases of PyTorch after their runs")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "results.json"
    results = json.loads(saved.read_text()) if saved.exists() else {}
    every = [f"{release}-{version}" for release in RELEASES for version in PYTHONS]
    failed = False
    for name in options.only or [one for one in every if one not in MISSING]:
        results[name] = run(folder, *name.split("-"))
        failed = failed or results[name]["status"] != 0
        saved.write_text(json.dumps(results, indent=1))
        print(json.dumps(results[name]), flush=True)
        if not options.keep:
            shutil.rmtree(folder / f"torch-{name}")
    show(results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
