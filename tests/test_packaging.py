"""The source distribution and the wheel: built as pip builds them, installed, and put through the smoke tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS = ("setuptools", "wheel", "nvidia")
_MISSING = [name for name in NEEDS if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(_MISSING) or not (ROOT / ".git").exists(), reason=f"needs a checkout, and {', '.join(NEEDS)} to build with"
)


def run(*command: object, cwd: Path, **environ: str) -> str:
    """Run a command with no PYTHONPATH of ours; return what it printed."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=own | environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*words: object, cwd: Path) -> None:
    """Run the pip of this environment, without the network."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution of this checkout, and the wheel that was built from it alone."""
    folder = tmp_path_factory.mktemp("dist")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", code, cwd=_copy_of_sources(tmp_path_factory.mktemp("checkout")))
    (source,) = folder.glob("*.tar.gz")
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, source, cwd=folder)
    return folder


def _copy_of_sources(folder: Path) -> Path:
    """What git tracks of the checkout, so that nothing that lies about in it gets into the distribution."""
    tracked = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, tracked):
        if name.startswith(("annot/", "pyproject", "README", "LICENSE")) and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return folder


def test_source_distribution_has_every_file_of_the_package(built: Path) -> None:
    """All that git tracks of the package is in the source distribution, headers and guides too."""
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", "annot", cwd=ROOT).splitlines()
    assert {name for name in tracked if (ROOT / name).exists()} <= names


def test_wheel_is_for_every_python_from_3_11(built: Path) -> None:
    """One wheel serves all versions: abi3, with the four C parts, types, guides, page and licences."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        meta = message_from_string(archive.read(information).decode())
    assert {f"annot/native/_{part}.abi3.so" for part in ("fast", "recorder", "tables", "tf_ops")} <= names
    assert {"annot/py.typed", "annot/guide/tags.md", "annot/report/page/page.html"} <= names
    assert not [name for name in names if not name.startswith(("annot/", "annot-"))]
    licences = {name.partition("/licenses/")[2] for name in names} - {""}
    assert licences == {"LICENSE", "annot/native/LICENSE.NVTX.txt"} == set(meta.get_all("License-File", []))
    assert set(meta.get_all("Provides-Extra", [])) >= {"torch", "tf", "analysis", "ncu", "dask", "all"}


def test_wheel_is_small(built: Path) -> None:
    """The wheel takes less than 2 MB, and needs no framework."""
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as archive:
        information = next(name for name in archive.namelist() if name.endswith("METADATA"))
        meta = message_from_string(archive.read(information).decode())
    required = [line for line in meta.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("torch", "tensorflow", "keras", "pandas", "pyarrow"))]


def test_installed_wheel_passes_the_smoke_tests(built: Path, tmp_path: Path) -> None:
    """In a fresh environment, which has annot from the wheel and the rest from this one, the smoke tests pass."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    (wheel,) = built.glob("*.whl")
    pip("--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "venv/lib").glob("python3.*/site-packages")
    # Plain lines: what is installed here in editable form would otherwise come along, annot itself first of all.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in sorted(others)))
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    said = run(
        python, "-I", "-c", code, "-q", "-m", "smoke", "-p", "no:cacheprovider", ROOT / "tests/test_smoke.py",
        cwd=tmp_path, ANNOT_TEST_PACKAGE=str(packages),
    )  # fmt: skip
    assert " passed" in said
    assert "skipped" not in said
    assert run(tmp_path / "venv/bin/annot", "--version", cwd=tmp_path).startswith("annot ")
