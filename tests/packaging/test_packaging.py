"""The source distribution and the wheel: built as pip builds them, installed, and put through the smoke tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from annot.util.installed_tools import find_nsys

ROOT = Path(__file__).parents[2]
NEEDS = ("setuptools", "wheel", "nvidia")
_MISSING = [name for name in NEEDS if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(_MISSING) or not (ROOT / ".git").exists(), reason=f"needs a checkout, and {', '.join(NEEDS)} to build with"
    ),
]


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
        if name.startswith(("annot/", "pytest_annot", "pyproject", "README", "LICENSE")) and (ROOT / name).is_file():
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
    """One wheel serves all versions: abi3, with the C parts without their sources, types, guides, page and licences."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        meta = message_from_string(archive.read(information).decode())
    assert {f"annot/native/_{part}.abi3.so" for part in ("emit", "recorder", "tables", "tf_ops")} <= names
    assert {"annot/native/_emit.pyi", "annot/native/_tables.pyi"} <= names
    assert [name for name in names if name.endswith((".c", ".h"))] == []
    assert {"annot/py.typed", "annot/guide/tags.md", "annot/report/page/page.html"} <= names
    assert {f"annot/skills/profile-layers/{name}.md" for name in ("SKILL", "references/causes")} <= names
    assert [name for name in names if not name.startswith(("annot/", "annot_nvtx-"))] == ["pytest_annot.py"]
    licences = {name.partition("/licenses/")[2] for name in names} - {""}
    assert licences == {"LICENSE", "annot/native/LICENSE.NVTX.txt"} == set(meta.get_all("License-File", []))
    assert meta["Name"] == "annot-nvtx"
    assert set(meta.get_all("Provides-Extra", [])) >= {"torch", "tf", "analysis", "ncu", "dask", "all"}


def wheel_of(folder: Path, *before: str, **environ: str) -> list[str]:
    """Build a wheel from a copy of the sources, after some lines of Python; return its tags and its libraries."""
    sources = folder / "sources"
    sources.mkdir()
    code = [*before, f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"]
    run(sys.executable, "-c", "\n".join(code), cwd=_copy_of_sources(sources), **environ)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        information = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/WHEEL"))
    assert message_from_string(information)["Tag"] == "-".join(wheel.stem.split("-")[2:])
    return [*wheel.stem.split("-")[2:], *libraries]


@pytest.fixture(scope="module")
def built_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a wheel without C parts, and its tags."""
    folder = tmp_path_factory.mktemp("without")
    return folder, wheel_of(folder, CC="/nonexistent/cc")


def test_wheel_without_a_compiler_is_for_every_platform(built_without_compiler: tuple[Path, list[str]]) -> None:
    """A wheel without C parts says so in its tag: pip keeps what it built, and would install it as compiled."""
    assert built_without_compiler[1] == ["py3", "none", "any"]


def test_wheel_with_some_of_the_parts_is_for_this_platform(tmp_path: Path) -> None:
    """A compiler without the headers of Python builds the libraries that do without them, for every Python."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *_LIMITED_API*) exit 1;; esac\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    tags = wheel_of(tmp_path, CC=str(compiler))
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"
    assert tags[3:] == ["annot/native/_recorder.abi3.so", "annot/native/_tf_ops.abi3.so"]


def test_wheel_of_a_free_threaded_python(tmp_path: Path) -> None:
    """It has only the libraries that make no call to Python, so one wheel is for all releases."""
    tags = wheel_of(tmp_path, "import sysconfig", "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert tags[:2] == ["py3", "none"]
    assert tags[3:] == [f"annot/native/_recorder{suffix}", f"annot/native/_tf_ops{suffix}"]


@pytest.mark.parametrize(
    ("platform", "names"),
    [("linux", ["_emit", "_recorder", "_tables", "_tf_ops"]), ("darwin", ["_tables"]), ("win32", [])],
)
def test_extensions_of_a_platform(monkeypatch: pytest.MonkeyPatch, platform: str, names: list[str]) -> None:
    """What a platform cannot build is not attempted: setuptools would print the errors of its compiler."""
    from setuptools import Extension

    from annot.native import _build

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    monkeypatch.setattr(_build.sys, "platform", platform)
    extensions = [Extension(one["name"], [], define_macros=one.get("define-macros")) for one in declared]
    supported = [one.name for one in extensions if _build.is_supported(one)]
    assert sorted(supported) == [f"annot.native.{name}" for name in names]


def test_macros_of_extensions_are_tuples() -> None:
    """setuptools before 83 leaves them as the lists of pyproject.toml, which its compiler does not accept."""
    from setuptools import Distribution, Extension

    from annot.native._build import BuildNative

    extension = Extension("annot.native._emit", [])
    extension.define_macros = [["Py_LIMITED_API", "0x030B0000"]]
    BuildNative(Distribution({"ext_modules": [extension]})).finalize_options()
    assert extension.define_macros == [("Py_LIMITED_API", "0x030B0000")]


@pytest.mark.parametrize(("value", "is_optional"), [("1", False), ("", True)])
def test_wheels_for_publication_have_all_parts(monkeypatch: pytest.MonkeyPatch, value: str, is_optional: bool) -> None:
    """With ANNOT_REQUIRE_NATIVE the build fails where a part cannot be built."""
    from setuptools import Distribution, Extension

    from annot.native._build import BuildNative

    monkeypatch.setenv("ANNOT_REQUIRE_NATIVE", value)
    extension = Extension("annot.native._emit", [])
    BuildNative(Distribution({"ext_modules": [extension]})).finalize_options()
    assert extension.optional is is_optional


def test_wheel_is_small(built: Path) -> None:
    """The wheel takes less than 2 MB, and needs no framework."""
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as archive:
        information = next(name for name in archive.namelist() if name.endswith("METADATA"))
        meta = message_from_string(archive.read(information).decode())
    required = [line for line in meta.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("torch", "tensorflow", "keras", "pandas", "pyarrow"))]


def installed(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Install a wheel in a fresh environment, with the rest from this one; return its Python and its packages."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    pip("--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = (folder / "venv/lib").glob("python3.*/site-packages")
    # Plain lines: what is installed here in editable form would otherwise come along, annot itself first of all.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in sorted(others)))
    return python, packages


def run_tests(python: Path, packages: Path, *tests: object, folder: Path, **environ: str) -> str:
    """Run tests with an installed annot; return what pytest printed."""
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = ("-q", "-p", "no:cacheprovider", *tests)
    return run(python, "-I", "-c", code, *words, cwd=folder, ANNOT_TEST_PACKAGE=str(packages), **environ)


def test_installed_wheel_passes_the_smoke_tests(built: Path, tmp_path: Path) -> None:
    """In a fresh environment, which has annot from the wheel and the rest from this one, the smoke tests pass."""
    (wheel,) = built.glob("*.whl")
    python, packages = installed(wheel, tmp_path)
    said = run_tests(python, packages, "-m", "smoke", ROOT / "tests/packaging/test_smoke.py", folder=tmp_path)
    assert " passed" in said
    assert "skipped" not in said
    assert run(tmp_path / "venv/bin/annot", "--version", cwd=tmp_path).startswith("annot ")


def test_install_without_a_compiler(built_without_compiler: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Without a compiler annot installs, reports work through Python, and the doctor says what is missing."""
    (wheel,) = built_without_compiler[0].glob("*.whl")
    python, packages = installed(wheel, tmp_path)
    assert not list(packages.rglob("annot/**/*.so"))
    reports = [f"cli/test_report.py::test_{name}" for name in ("table_on_standard_output", "output_file", "many_ranks")]
    tests = ("packaging/test_smoke.py", "read/test_nsys_sqlite.py", *reports)
    said = run_tests(python, packages, *(f"{ROOT}/tests/{name}" for name in tests), folder=tmp_path, PYTHONPATH="")
    assert " passed" in said
    doctor = subprocess.run([python, "-I", "-m", "annot", "doctor"], capture_output=True, text=True, check=False)
    assert doctor.returncode == (0 if find_nsys() else 1)  # which records where annot's recorder is missing
    assert doctor.stdout.count("not built") >= 3
