"""Reading what annot's own recorder wrote: the assembled file, and the parts of a run that was killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from range_tables import ranges_of

import annot
from annot import AnnotError, native
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import summarize
from annot.read.formats import load
from annot.read.recording.export import assemble
from annot.runs.run import Run

CODE = """
import os, signal, sys
import annot
with annot.epoch(0), annot.batch(7), annot.trace("outer", domain="mine", category="kind", color="red", payload=7):
    with annot.trace("inner"):
        annot.mark("here")
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _recorded(folder: Path, how: str) -> Path:
    library = native.recorder_library()
    if library is None:
        pytest.skip("the recorder was not built")
    parts = folder / "run.parts"
    parts.mkdir()
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library), "ANNOT_RECORD_DIR": str(parts)}
    result = subprocess.run([sys.executable, "-c", CODE, how], env=environment, check=False)
    assert result.returncode == (-signal.SIGKILL if how == "kill" else 0)
    return parts


def test_recording(tmp_path: Path) -> None:
    """Texts, domains, categories, payloads, kinds and nesting come through the recorder and the reader."""
    profile = load(_recorded(tmp_path, "finish"))
    rows = {row["text"]: row for row in profile.ranges.rows(named=True)}
    assert {text: row["domain"] for text, row in rows.items()} == {
        "Epoch 0 |epoch": "annot", "Batch 7 |step": "annot", "outer": "mine", "inner": rows["inner"]["domain"],
    }  # fmt: skip
    assert (rows["outer"]["category"], rows["outer"]["payload"], rows["outer"]["kind"]) == ("kind", "7", "push")
    assert rows["Batch 7 |step"]["kind"] == "start"
    assert profile.marks["text"].to_list() == ["here"]
    tree = ranges_of(attribute(profile))
    assert tree.select("layer", "depth").rows() == [("(epoch)", 0), ("(batch)", 1), ("outer", 2), ("inner", 3)]


def test_killed_run_is_salvaged(tmp_path: Path) -> None:
    """The parts of a process that was killed are a profile, whose open ranges last to its end and are counted."""
    parts = _recorded(tmp_path, "kill")
    before = {path: path.read_bytes() for path in parts.iterdir()}
    profile = load(parts)
    assert profile.meta["source"] == str(parts)
    result = attribute(profile)
    assert by_layer(result)["layer"].to_list() == ["(epoch)", "(batch)", "outer", "outer › inner"]
    assert summarize(result)["notes"] == ["The recorder closed 3 ranges at the end of the recording."]
    assert {path: path.read_bytes() for path in parts.iterdir()} == before


def test_what_the_recorder_lost_is_above_the_verdict(tmp_path: Path) -> None:
    """Lost events are the first line of every report, and the recorder's own notes are the last."""
    out = tmp_path / "run.sqlite"
    assemble(_recorded(tmp_path, "finish"), out)
    with sqlite3.connect(out) as database:
        database.execute("UPDATE META_DATA_CAPTURE SET value = '1234' WHERE name = 'ANNOT_LOST_EVENTS'")
        database.execute("INSERT INTO META_DATA_CAPTURE VALUES ('ANNOT_NOTE', '2 ends without a beginning')")
    cut = "The recording is cut: 1,234 events could not be written. Check for a full disk."
    meta = summarize(attribute(load(out)))
    assert (meta["cut"], meta["notes"]) == (cut, ["2 ends without a beginning"])
    run = annot.open(out)
    assert isinstance(run, Run)
    lines = str(run.view(brief=True)).splitlines()
    assert lines[:2] == [cut, run.verdict]
    html = run.view(brief=True)._repr_html_()
    assert 0 < html.index(cut) < html.index(run.verdict[:20])
    ranks = annot.open([out, shutil.copy(out, tmp_path / "other.sqlite")])
    assert str(ranks.view()).startswith(f"Rank 0 (and 1 more): {cut}\n")
    assert ranks.page()["ranks"]["cut"] == f"Rank 0 (and 1 more): {cut}"
    with sqlite3.connect(out) as database:
        database.execute("UPDATE META_DATA_CAPTURE SET value = '0' WHERE name = 'ANNOT_LOST_EVENTS'")
    assert str(annot.open(out).view(brief=True)).splitlines()[0] == run.verdict


def test_folder_whose_parts_are_damaged(tmp_path: Path) -> None:
    """Parts of which nothing can be read are one sentence that names the folder."""
    (tmp_path / "1.part").write_bytes(b"not written by the recorder")
    with pytest.raises(AnnotError, match=re.escape(str(tmp_path))):
        load(tmp_path)


def test_parts_of_another_format_version_and_damaged_headers_are_refused(tmp_path: Path) -> None:
    """Their records may mean something else. The version follows the 8 bytes of the magic number."""
    parts = _recorded(tmp_path, "finish")
    (path,) = parts.iterdir()
    content = path.read_bytes()
    (version,) = struct.unpack_from("<I", content, 8)
    for other in (version - 1, version + 1):
        path.write_bytes(content[:8] + struct.pack("<I", other) + content[12:])
        words = f"has format version {other}; this version of annot supports {version}"
        with pytest.raises(AnnotError, match=words):
            load(parts)
    for offset in (16, 24, 32):  # the times of the recording
        path.write_bytes(content[:offset] + b"\xff" * 8 + content[offset + 8 :])
        with pytest.raises(AnnotError, match="its header is damaged"):
            load(parts)
    path.write_bytes(content)
    assert load(parts).ranges.height == 4


def test_a_pipe_among_the_parts_is_left_out(tmp_path: Path) -> None:
    """Opening a named pipe would wait until a process writes to it."""
    os.mkfifo(tmp_path / "1.part")
    (tmp_path / "2.part").write_bytes(b"not written by the recorder")
    with pytest.raises(AnnotError, match=r"2\.part cannot be read"):
        load(tmp_path)
