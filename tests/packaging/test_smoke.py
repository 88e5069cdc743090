"""What an installed annot must do, whatever it was installed from; `test_packaging` runs this against a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest
from commands import annot, needs_recorder
from sqlite_profile import training

pytestmark = pytest.mark.smoke

SCRIPT = """
import annot
for number in annot.epochs(1):
    for item in annot.batches(range(3)):
        with annot.trace("work"):
            pass
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run recorded by the embedded recorder, through the command line."""
    folder = tmp_path_factory.mktemp("smoke")
    (folder / "train.py").write_text(SCRIPT)
    done = annot("run", "--collector", "recorder", "-o", "run.sqlite", "--", sys.executable, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    assert "Batch" in done.stderr.decode()
    return folder / "run.sqlite"


def test_package_is_the_one_under_test(tmp_path):
    """Subprocesses import the same annot, and its version is that of its metadata."""
    import annot as package

    code = "import annot; print(annot.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == Path(package.__file__)
    wanted = os.environ.get("ANNOT_TEST_PACKAGE")
    assert wanted is None or Path(package.__file__).is_relative_to(wanted)
    assert annot("--version", cwd=tmp_path).stdout.decode() == f"annot {metadata.version('annot-nvtx')}\n"


def test_version_is_semantic():
    """The version is three numbers, as semantic versioning has it."""
    assert len(list(map(int, metadata.version("annot-nvtx").split(".")))) == 3


def test_types_and_data_are_there():
    """`py.typed`, the guide and the page are part of the package."""
    package = files("annot")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("guide/attribution.md").is_file()
    assert package.joinpath("report/page/page.html").is_file()


@needs_recorder
def test_native_parts_were_built():
    """Where one C part was built, all of them were, and are loaded; free-threaded Python has only the libraries."""
    from annot import native

    has_modules = not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert native.tf_library() is not None
    assert (native.emitter() is not None, native.tables() is not None) == (has_modules, has_modules)


@needs_recorder
@pytest.mark.parametrize(
    "form",
    ["json", "html", *(pytest.param(name, marks=pytest.mark.slow) for name in ("table", "jsonl", "csv", "trace"))],
)
def test_run_then_report(profile, form, tmp_path):
    """A recorded run is reported in each format, with the ranges that the script made."""
    out = tmp_path / "report"
    done = annot("report", profile, "--format", form, "-o", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert "work" in out.read_text()
    if form == "json":
        rows = {row["layer"]: row["calls"] for row in json.loads(out.read_text())["layers"]}
        assert rows == {"(epoch)": 1, "(batch)": 3, "(data)": 4, "work": 3}


def test_python_api(tmp_path):
    """A profile made by hand is correlated through the public names."""
    import polars as pl

    import annot as package
    from annot.profile import Profile

    columns = {
        "id": [1],
        "process": [1],
        "thread": [1],
        "domain": ["annot"],
        "kind": ["push"],
        "start": [0],
        "end": [9],
    }
    profile = Profile.build({}, ranges=pl.DataFrame(columns | {"text": ["fc Linear [4,8]f32 |fwd"]}))
    assert package.correlate(profile).row(0)[:5] == ("fc", "Linear", "forward", 1, 9)
    with pytest.raises(package.AnnotError, match="does not exist"):
        package.load(tmp_path / "nothing.sqlite")


def test_reports_of_an_export(tmp_path):
    """An export of Nsight Systems is reported in a terminal and as a page, and compared, on all systems."""
    exports = [training(device=True).write(tmp_path / name) for name in ("a.sqlite", "b.sqlite")]
    for words in (exports[:1], ["compare", *exports], [exports[0], "-o", "page.html"]):
        done = annot(*words, cwd=tmp_path)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
        assert words[1:2] == ["-o"] or b"features" in done.stdout
    assert "features.0" in (tmp_path / "page.html").read_text(encoding="utf-8")


def _without_reports(folder):
    """The environment of a Python that lacks what only reports need, as `pip install --no-deps` leaves it."""
    names = ("polars", "rich", "msgspec", "adbc_driver_sqlite", "adbc_driver_manager")
    (folder / "sitecustomize.py").write_text(f"import sys\nfor name in {names}: sys.modules[name] = None\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@needs_recorder
def test_recording_without_the_packages_of_reports(tmp_path):
    """What a command did is kept where no profile can be made of it, for another machine to report."""
    words = ["run", "--collector", "recorder", "-o", "x.sqlite", "--", sys.executable, "-c", SCRIPT]
    done = annot(*words, cwd=tmp_path, **_without_reports(tmp_path))
    assert done.returncode == 0  # that of the command
    assert done.stderr.decode().endswith("; the recorded data is in " + str(tmp_path / "x.sqlite.parts") + "\n")
    assert "Traceback" not in done.stderr.decode()
    done = annot("report", "x.sqlite.parts", "--format", "csv", cwd=tmp_path)
    assert (done.returncode, b"work" in done.stdout) == (0, True), done.stderr
    done = annot("doctor", "--collector", "recorder", cwd=tmp_path, **_without_reports(tmp_path))
    assert (done.returncode, b"another machine reports" in b" ".join(done.stdout.split())) == (0, True), done.stderr


def test_ranges_without_the_packages_of_reports(tmp_path):
    """Without polars, rich and msgspec ranges work, and a report says in one line what is missing."""
    environ = _without_reports(tmp_path)
    enabled = {**os.environ, **environ, "ANNOT_ENABLE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=enabled, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0")
    done = annot("report", "x.sqlite", cwd=tmp_path, **environ)
    assert done.returncode == 1
    assert done.stderr.decode() == "annot: error: annot report needs polars: pip install polars\n"
