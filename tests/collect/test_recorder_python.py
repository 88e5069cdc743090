"""The recorder in Python programs: `record`, the nvtx package, annot's own ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import environment, python, recorder, rows, run

from annot import AnnotError, native, record


def texts(path: Path) -> list[tuple[str | None, str]]:
    """Return the text and domain of every range and mark, by start."""
    return [(row.text, row.domain) for row in rows(path, "push", "start", "mark")]


@pytest.mark.parametrize("environ", [{}, {"ANNOT_DISABLE_NATIVE": "1"}], ids=["native", "nvtx package"])
def test_record_block(tmp_path: Path, environ: dict[str, str]) -> None:
    """What runs in the block is recorded, annot's and others', and nothing is left of it but the profile."""
    result = python(tmp_path, """
import os
import nvtx
from annot import mark, record, trace
def environ():
    return {name: value for name, value in os.environ.items() if name.startswith(("ANNOT", "NVTX"))}
before = environ()
with record("run.sqlite") as block:
    with trace("one"):
        mark("two")
    with nvtx.annotate("three", domain="mine"):
        pass
    assert block.recording is None
assert environ() == before
with trace("four"), nvtx.annotate("five"):
    pass
print(block.path, block.recording.ranges, block.recording.marks)
""", environ)  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (0, "run.sqlite 2 1\n", "")
    assert texts(tmp_path / "run.sqlite") == [("one", "annot"), ("two", "annot"), ("three", "mine")]
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]


def test_two_blocks(tmp_path: Path) -> None:
    """Two blocks in one process make two profiles, with the ranges of both annot and the nvtx package."""
    result = python(tmp_path, """
import nvtx
from annot import record, trace
for name in ("one", "two"):
    with record(f"{name}.sqlite"):
        with trace("annot " + name), nvtx.annotate("nvtx " + name):
            pass
""")  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    for name in ("one", "two"):
        assert texts(tmp_path / f"{name}.sqlite") == [(f"annot {name}", "annot"), (f"nvtx {name}", "0")]


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_too_early_first_call(tmp_path: Path, disabled: str) -> None:
    """If the nvtx package decided before the block that there is no tool, a warning says what is not seen."""
    result = python(tmp_path, """
import nvtx
with nvtx.annotate("early"):
    pass
from annot import record, trace
with record("run.sqlite"), trace("mine"), nvtx.annotate("unseen"):
    pass
""", {"ANNOT_DISABLE_NATIVE": disabled})  # fmt: skip
    assert result.returncode == 0
    assert "RuntimeWarning: the nvtx package made its first call before this recording" in result.stderr
    seen = disabled == "0"
    assert ("annot's ranges are recorded." if seen else "nor are annot's") in result.stderr
    assert texts(tmp_path / "run.sqlite") == ([("mine", "annot")] if seen else [])


def test_ready_before_the_block(tmp_path: Path) -> None:
    """What was decorated and called before the block, with `enable`, is recorded in it and not outside."""
    result = python(
        tmp_path,
        """
from annot import enable, record, trace
enable()
@trace
def work():
    pass
work()
with record("run.sqlite"):
    work()
work()
""",
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert texts(tmp_path / "run.sqlite") == [("work", "annot")]


def test_exception_of_the_block(tmp_path: Path) -> None:
    """An exception leaves the block as it is, and the profile is written."""
    result = python(tmp_path, """
from annot import record, trace
try:
    with record("run.sqlite"), trace("mine"):
        raise KeyError("unchanged")
except KeyError as error:
    print(error.args, error.__context__)
""")  # fmt: skip
    assert (result.stdout, result.stderr) == ("('unchanged',) None\n", "")
    assert texts(tmp_path / "run.sqlite") == [("mine", "annot")]


def test_children(tmp_path: Path) -> None:
    """Forked and started children are recorded; a child that leaves the block does not end the recording."""
    result = python(tmp_path, """
import os, subprocess, sys
from annot import record, trace
with record("run.sqlite") as block:
    with trace("parent"):
        child = os.fork()
        if not child:
            with trace("forked"):
                pass
    if child:
        os.waitpid(child, 0)
        subprocess.run([sys.executable, "-c", "import nvtx; nvtx.annotate('started').__enter__()"], check=True)
        with trace("later"):
            pass
if child:
    print(block.recording.processes)
""")  # fmt: skip
    assert (result.stdout, result.stderr) == ("3\n", "")
    assert {text for text, _ in texts(tmp_path / "run.sqlite")} == {"parent", "forked", "started", "later"}


def test_another_tool(tmp_path: Path) -> None:
    """If another tool is attached, it keeps the ranges; a warning says so and the program runs."""
    code = "from annot import record\nwith record('x.sqlite') as r:\n    print('ran', r.recording)\nprint(r.recording)"
    result = python(tmp_path, code, {"NVTX_INJECTION64_PATH": "/opt/other/tool.so"})
    assert (result.returncode, result.stdout) == (0, "ran None\nNone\n")
    assert "another NVTX tool, /opt/other/tool.so, is attached" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("outer", ["block", "command"])
def test_recorded_already(tmp_path: Path, outer: str) -> None:
    """Inside another recording a block warns and leaves everything to that one."""
    inner = "from annot import record, trace\nwith record('inner.sqlite'), trace('x'):\n    pass\n"
    if outer == "block":
        code = "from annot import record\nwith record('outer.sqlite'):\n    exec(" + repr(inner) + ")"
        result = python(tmp_path, code)
        assert texts(tmp_path / "outer.sqlite") == [("x", "annot")]
    else:
        result = python(tmp_path, inner, environment(tmp_path / "parts"))
        assert len(list((tmp_path / "parts").iterdir())) == 1
    assert result.returncode == 0
    assert "this process is already being recorded: inner.sqlite is not written" in result.stderr
    assert not (tmp_path / "inner.sqlite").exists()


def test_existing_profile(tmp_path: Path) -> None:
    """An existing profile is replaced only with force, and only when the new one is complete."""
    result = python(tmp_path, """
from annot import AnnotError, record, trace
with record("run.sqlite"), trace("first"):
    pass
try:
    record("run.sqlite").__enter__()
except AnnotError as error:
    print(error)
with record("run.sqlite", force=True), trace("second"):
    print(open("run.sqlite", "rb").read(6))
""")  # fmt: skip
    assert result.stdout.splitlines() == [
        "run.sqlite exists: use another name, or replace it with force=True", "b'SQLite'",
    ]  # fmt: skip
    assert texts(tmp_path / "run.sqlite") == [("second", "annot")]


def test_the_working_directory_changes_in_the_block(tmp_path: Path) -> None:
    """The profile is written where the path pointed on entry; a file of that name elsewhere stays."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.sqlite").write_text("precious")
    result = python(tmp_path, """
import os
from annot import record, trace
with record("run.sqlite") as run, trace("first"):
    os.chdir("other")
print(run.path)
""")  # fmt: skip
    assert result.stdout.strip() == str(tmp_path / "run.sqlite")
    assert (tmp_path / "other" / "run.sqlite").read_text() == "precious"
    assert texts(tmp_path / "run.sqlite") == [("first", "annot")]


def test_bad_places(tmp_path: Path) -> None:
    """A missing folder, a folder as file, and the rest of a killed run are refused before anything starts."""
    recorder()
    (tmp_path / "run.sqlite.parts").mkdir()
    for path, said in [
        (tmp_path / "none" / "run.sqlite", "the folder .*none does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "run.sqlite", "run.sqlite.parts exists"),
    ]:
        with pytest.raises(AnnotError, match=said), record(path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite.parts"]


def test_without_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recorder was not built, the error says what to install."""
    monkeypatch.setattr(native, "recorder_library", lambda: None)
    with pytest.raises(AnnotError, match="install a C compiler"), record(tmp_path / "run.sqlite"):
        pass


def test_profile_that_cannot_be_written_at_the_end(tmp_path: Path) -> None:
    """The program goes on with a warning that names what is left."""
    result = python(tmp_path, """
import os
from annot import record, trace
with record("run.sqlite") as block, trace("x"):
    os.mkdir("run.sqlite")
print("goes on", block.recording)
""")  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "goes on None\n")
    assert "run.sqlite cannot be written" in result.stderr
    assert f"the recorded data is in {tmp_path / 'run.sqlite.parts'}" in result.stderr
    assert list((tmp_path / "run.sqlite.parts").iterdir())


def test_lost_events_are_said(tmp_path: Path) -> None:
    """At the end of a block that ran out of space a warning says how much is missing."""
    result = python(tmp_path, """
import resource
from annot import record, trace
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
with record("run.sqlite"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    for _ in range(20_000):
        with trace("x"):
            pass
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
print("goes on")
""")  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "goes on\n")
    assert "events could not be written to run.sqlite: File too large." in result.stderr


def test_nvtx_package_under_the_recorder(tmp_path: Path) -> None:
    """The nvtx package, old or new, takes its domains for enabled, whether recording is on or starts later."""
    code = "import nvtx\nwith nvtx.annotate('x', domain='d', category='c', color='red', payload=7):\n    pass\n"
    assert python(tmp_path, code, environment(tmp_path / "parts")).returncode == 0
    from annot.read.recording.export import assemble

    assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    (row,) = rows(tmp_path / "out.sqlite", "push")
    assert (row.text, row.domain, row.category, row.color & 0xFFFFFF, row.payload) == (
        "x", "d", 1, 0xFF0000, {"int64Value": 7},
    )  # fmt: skip
    idle = python(tmp_path, "import nvtx\nprint(nvtx.start_range('x', domain='d')[0] > 0)", environment(None))
    assert idle.stdout == "True\n"


def test_c_program_idle(tmp_path: Path) -> None:
    """With the recorder loaded and idle, calls return the depths they would return while recording."""
    assert run(None, "push-a", "x", "push-a", "y", "pop-default", "pop-default").stdout.split() == ["0", "1", "1", "0"]
