from __future__ import annotations

import importlib.metadata
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from commands import annot, needs_nsys, write_script

from annot import load
from annot.util.installed_tools import find_nsys, loses_nvtx_package
from annot.util.program import Program

PACKAGE = """
import nvtx
with nvtx.annotate("package", domain="other"):
    pass
"""


def texts_in(profile: Path) -> set[tuple[str, str]]:
    return {(row["domain"], row["text"]) for row in load(profile).ranges.iter_rows(named=True)}


def nvtx_is_lost() -> bool:
    nsys = find_nsys()
    assert nsys
    return loses_nvtx_package(nsys, importlib.metadata.version("nvtx"))


@needs_nsys
@pytest.mark.parametrize("native", ["", "1"], ids=["native", "pure Python"])
def test_annots_ranges_get_through_whatever_the_nvtx_package(native, tmp_path):
    """annot's own ranges arrive with every nvtx package; where that package's are lost, one line says what to do."""
    words = ["run", "--collector", "nsys", "--no-report", "-o", "out.sqlite", "--"]
    done = annot(*words, sys.executable, write_script(tmp_path, PACKAGE), cwd=tmp_path, ANNOT_DISABLE_NATIVE=native)
    assert done.returncode == 0, done.stderr
    own = {("annot", "outer"), ("annot", "inner")}
    assert texts_in(tmp_path / "out.sqlite") == (own if nvtx_is_lost() else own | {("other", "package")})
    warnings = [line for line in done.stderr.decode().splitlines() if "pip install nvtx==0.2.11" in line]
    assert len(warnings) == int(nvtx_is_lost())


LOADER = """
import torch, annot
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 2)
with annot.emit_ranges(model):
    for batch in DataLoader([torch.zeros(2)] * 8, 2, num_workers=2):
        model(batch).sum().backward()
"""


@needs_nsys
@pytest.mark.slow
def test_workers_of_a_loader_are_recorded(tmp_path):
    """Their ranges come from processes that fork and never call exec; the loader's mark says what it is."""
    pytest.importorskip("torch")
    words = ["run", "-o", "out.sqlite", "--force", "--collector", "nsys", "--no-report", "--", sys.executable]
    script, texts = write_script(tmp_path, LOADER), set[str]()
    for _ in range(6):  # captures of Nsight Systems 2022.4 sometimes lack processes that fork and end soon
        done = annot(*words, script, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        texts = {text for _, text in texts_in(tmp_path / "out.sqlite")}
        if any(text.startswith("Data Worker ") for text in texts):
            break
    assert {"Data Worker 0 |data", "Data Worker 1 |data"} & texts
    assert "Data |data" in texts
    loaders = [one["loaders"] for one in load(tmp_path / "out.sqlite").meta["processes"] if "loaders" in one]
    assert loaders == [[{"workers": 2, "persistent": 0, "pinned": 0}]]


@needs_nsys
def test_report_is_kept_and_can_be_exported_again(tmp_path):
    """The .nsys-rep stays beside the profile and is a report that Nsight Systems reads."""
    done = annot("run", "-o", "out.sqlite", "--collector", "nsys", "--", sys.executable, write_script(tmp_path, ""),
                 cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "out.sqlite", "out.nsys-rep"}
    nsys = find_nsys()
    assert nsys
    again = [str(nsys.path), "export", "--type=sqlite", "--output=again.sqlite", "out.nsys-rep"]
    subprocess.run(again, cwd=tmp_path, check=True, capture_output=True)
    assert texts_in(tmp_path / "again.sqlite") == texts_in(tmp_path / "out.sqlite")


@needs_nsys
def test_what_ran_is_said(tmp_path):
    """The exact command is shown, and is one that can be typed."""
    done = annot("run", "--collector", "nsys", "--", sys.executable, write_script(tmp_path, ""), "a b", cwd=tmp_path)
    line = next(line for line in done.stderr.decode().splitlines() if line.startswith("annot: running"))
    command = line.removeprefix("annot: running ")
    assert "nsys profile --trace=" in command
    assert command.endswith("script.py 'a b'")
    words = [sys.executable, str(tmp_path / "script.py"), "a b"]
    assert Program.parse(load(tmp_path / "annot1.sqlite").meta["program"]) == Program.of(words, str(tmp_path))
    output = command.split("--output=")[1].split()[0]
    typed = command.replace(output, str(tmp_path / "typed"))
    for _ in range(3):  # now and then this Nsight Systems fails to start: "End of file"
        if subprocess.run(["sh", "-c", typed], cwd=tmp_path, capture_output=True, check=False).returncode == 0:
            break
    assert list(tmp_path.glob("typed.*"))


@needs_nsys
def test_report_of_another_run_is_refused(tmp_path):
    """An existing report beside OUT is not replaced without --force."""
    (tmp_path / "out.nsys-rep").write_text("precious")
    script = write_script(tmp_path, "open('ran', 'w')")
    words = ["-o", "out.sqlite", "--collector", "nsys", "--", sys.executable, script]
    done = annot("run", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert b"out.nsys-rep exists" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert annot("run", "--force", *words, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out.nsys-rep").read_bytes() != b"precious"


@needs_nsys
def test_names_with_signs_that_nsight_replaces(tmp_path):
    """Percent signs, spaces and accents in OUT's path stay what they are."""
    folder = tmp_path / "100%p é %h"
    folder.mkdir()
    script = write_script(folder, "")
    done = annot("run", "-o", "o%q.sqlite", "--collector", "nsys", "--", sys.executable, script, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert texts_in(folder / "o%q.sqlite") == {("annot", "outer"), ("annot", "inner")}


@needs_nsys
def test_background_process_of_the_script_is_not_waited_for(tmp_path):
    """annot run ends when the command ends, as a shell would, and leaves its background processes alone."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shell = f"cat {fifo} >late 2>&1 & exit 4"  # holds no stream of annot run
    done = annot("run", "--collector", "nsys", "--", "sh", "-c", shell, cwd=tmp_path)
    assert done.returncode == 4
    fifo.write_text("still there")


@needs_nsys
def test_nsight_that_cannot_start_is_one_sentence(tmp_path):
    """If Nsight Systems does not start the command, its reason is shown and nothing is left behind."""
    script = write_script(tmp_path, "open('ran', 'w')")
    words = ["run", "--collector", "nsys", "--", sys.executable, script]
    done = annot(*words, cwd=tmp_path, TMPDIR="/nonexistent")
    assert done.returncode == 1
    assert b"nsys did not start the command: Agent launcher failed." in done.stderr
    assert list(tmp_path.iterdir()) == [script]


@needs_nsys
def test_export_is_whole(tmp_path):
    """The export passes SQLite's own check and says which release wrote it."""
    annot("run", "-o", "out.sqlite", "--collector", "nsys", "--", sys.executable, write_script(tmp_path, ""),
          cwd=tmp_path)  # fmt: skip
    with sqlite3.connect(tmp_path / "out.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert load(tmp_path / "out.sqlite").meta["producer"]
