"""Answers, folders and the tools without a server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from commands import NO_NSYS, needs_recorder, write_script

from annot.agents.answers import LONGEST, answer, cut_key, overview
from annot.agents.folders import Folders
from annot.agents.tools import Tools
from annot.cli.main import main
from annot.collect.logged_run import last_lines
from annot.errors import AnnotError


def test_rows_that_do_not_fit_are_counted() -> None:
    """The rows that fit, and how many do not; the cursor leads to the first of these."""
    rows = [{"layer": f"layers.{number}", "text": "x" * 90} for number in range(300)]
    seen, cursor = [], 0
    while cursor is not None:
        text = answer({"unit": "ns"}, rows[cursor:], first=cursor, total=len(rows))
        assert LONGEST - 400 < len(text) <= LONGEST or "next_cursor" not in text
        document = json.loads(text)
        assert len(document["rows"]) + document.get("left_out_rows", 0) == len(rows) - cursor
        seen, cursor = seen + document["rows"], document.get("next_cursor")
    assert seen == rows


def test_long_texts_and_lists_are_cut_with_a_remark() -> None:
    """A row always fits; texts are the shorter the more of them there are."""
    row = {"name": "k" * 8_000, "shapes": [str(number) for number in range(20)]}
    (one,) = json.loads(answer({}, [row]))["rows"]
    assert one["name"].startswith("k" * 1_000 + "… (7,000 more characters were cut)")
    assert one["shapes"][7:] == ["7", "… (12 more were cut)"]
    many = json.loads(answer({}, [{f"name{number}": "k" * 5_000 for number in range(20)}]))["rows"][0]
    assert many["name19"] == "k" * 200 + "… (4,800 more characters were cut)"
    with pytest.raises(ValueError, match="fewer columns"):
        answer({}, [{f"name{number}": "k" * 5_000 for number in range(1_000)}])


def test_an_answer_that_fits_is_whole() -> None:
    """A single row has more room: its texts and lists are not cut."""
    row = {"code": "x" * 4_000, "layers": [str(number) for number in range(100)]}
    assert json.loads(answer({}, [row]))["rows"] == [row]


def test_keys_do_not_depend_on_the_answer() -> None:
    """A long text in a key is cut in the same way in all answers, and stays unique."""
    names = ["k" * 2_000 + end for end in "ab"]
    alone, together = (
        [row["name"] for row in json.loads(answer({}, [{"name": name} for name in some], keys=("name",)))["rows"]]
        for some in (names[:1], names * 3)
    )
    assert alone == together[:1] == [cut_key(names[0])]
    assert len({*together}) == 2


def test_the_beginning_of_several_lists() -> None:
    """Each list has as many rows as fit, and the call for the others says where they begin."""
    lists = {"a": [{"name": "k" * 900, "text": "x" * 400}] * 20, "b": [{"ns": None}]}
    found = json.loads(overview({"unit": "ns"}, lists, "from {cursor}", keys=("name",)))
    shown = len(found["a"])
    assert (found["left_out_rows"], found["next"]) == ({"a": 20 - shown}, f"from {shown}")
    assert found["b"] == [{}]
    with pytest.raises(ValueError, match="one part"):
        overview({}, {str(number): lists["a"] for number in range(20)}, "", keys=("name",))


def test_answers_are_valid_text() -> None:
    """Half of a surrogate pair, as in paths that are not UTF-8, is an escape."""
    assert json.loads(answer({"path": "a\udc80"}).encode()) == {"path": "a\udc80"}


def test_folders(tmp_path: Path) -> None:
    """Relative paths count from the first folder, names are shown so, and each folder has to exist."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    folders = Folders([tmp_path / "a", tmp_path / "b"], largest=1)
    assert folders.name(folders.resolve("x/../run.sqlite")) == "run.sqlite"
    assert folders.resolve(f"{tmp_path}/b/run.sqlite") == (tmp_path / "b/run.sqlite").resolve()
    assert folders.name(folders.resolve("../b/run.sqlite")) == str((tmp_path / "b/run.sqlite").resolve())
    with pytest.raises(AnnotError, match="outside the folders"):
        folders.resolve("../c")
    with pytest.raises(AnnotError, match="c is not a folder"):
        Folders([tmp_path / "c"], largest=1)


@needs_recorder
def test_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a profile that summary reads, replaces nothing, and says why a command failed."""
    monkeypatch.setenv("ANNOT_NSYS", NO_NSYS)
    tools, script = Tools(Folders([tmp_path], largest=1 << 30)), write_script(tmp_path, "sys.exit(len(sys.argv) - 1)")
    command = [sys.executable, script.name]
    recorded = json.loads(tools.record(command, "new"))["profile"]
    assert "inner" in tools.rows(recorded)
    with pytest.raises(AnnotError, match=r"exists\. Call record with another name, or with force=true"):
        tools.record(command, "new")
    assert json.loads(tools.record(command, "new", force=True))["profile"] == recorded
    with pytest.raises(AnnotError, match="outside the folders"):
        tools.record(command, "../new")
    with pytest.raises(AnnotError, match="not a folder"):
        tools.record(command, "no/new")
    for wrong in ([], 1), (command, 0):
        with pytest.raises(ValueError, match="record expects"):
            tools.record(wrong[0], "other", wrong[1])


@needs_recorder
def test_record_says_why_a_command_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its output is in the error, not annot's messages about the run; the next call may have the name."""
    monkeypatch.setenv("ANNOT_NSYS", NO_NSYS)
    tools = Tools(Folders([tmp_path], largest=1 << 30))
    program = (
        "import sys; print('began', flush=True); open('no-such-file') if len(sys.argv) == 1 else sys.exit('bad option')"
    )
    for words, why in (([], "began | Traceback.* | FileNotFoundError: .*'no-such-file'"), (["x"], "bad option")):
        command = [sys.executable, "-c", program, *words]
        with pytest.raises(AnnotError, match=rf"failed: exit status 1\. Call .* force=true\. .* with: .*{why}$"):
            tools.record(command, "failed", force=bool(words))
    (tmp_path / "failed.sqlite").write_bytes(b"of an earlier call")
    with pytest.raises(AnnotError, match=r"failed: no profile was written: no ranges were recorded.*with: done$"):
        tools.record([sys.executable, "-c", "print('done')"], "failed", force=True)


def test_last_lines_are_those_of_the_command(tmp_path: Path) -> None:
    """Those of annot follow the reason, and count only if the command has no output."""
    log, error = tmp_path / "log.txt", "annot: error: no ranges were recorded"
    log.write_text(f"annot: running python\nTraceback\n\nValueError: x\n{error}\n")
    assert last_lines(log, 2) == "Traceback | ValueError: x"
    log.write_text(f"annot: running python\n{error}\n")
    assert last_lines(log, 2) == error
    log.write_text("")
    assert last_lines(log, 2) == "no output"


def test_record_is_offered_on_request(tmp_path: Path) -> None:
    """Only a server with --allow-run has the tool, and says that its commands may change anything."""
    pytest.importorskip("mcp", reason="needs the mcp package")
    from annot.agents.server import make_server

    tools = Tools(Folders([tmp_path], largest=1))
    offered = asyncio.run(make_server(tools, allow_run=True).list_tools())
    hints = {tool.name: tool.annotations for tool in offered if tool.annotations}
    assert [name for name, hint in hints.items() if not hint.read_only_hint] == ["record"]
    assert [name for name, hint in hints.items() if hint.destructive_hint or hint.open_world_hint] == ["record"]
    assert hints["record"].destructive_hint
    assert hints["record"].open_world_hint


@pytest.mark.parametrize("module", ["mcp", "mcp.server.mcpserver"])
def test_missing_package(module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, or with one of before version 2, one line says what to install."""
    for name in [name for name in sys.modules if name.startswith(("mcp.", "annot.agents.server"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["mcp"]) == 1
    assert capsys.readouterr() == ("", 'annot: error: annot mcp needs mcp: pip install "annot-nvtx[mcp]"\n')


def test_wrong_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist is an error of the command."""
    assert main(["mcp", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"annot: error: {tmp_path}/none is not a folder\n"
