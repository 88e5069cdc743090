"""What the terminal shows: tables at every width, colours, and how far a long work is."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from matrices import every_third
from rich.cells import cell_len
from rich.console import Console
from shared_data import shared, unpacked
from sqlite_profile import training
from tables import Rows

from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.cli.progress import progress as shown
from annot.read.formats import load, source
from annot.report.terminal.table import print_table
from annot.report.views import views
from annot.runs.run import Run
from annot.util import progress

REAL = (
    "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz",
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", "kineto/hta_alexnet_a100_cupti_sass_flops.json.gz",
)  # fmt: skip


@pytest.mark.parametrize("name", every_third(REAL))
def test_every_table_fits_every_width(name: str, tmp_path: Path) -> None:
    """Whatever a row stands for, from 60 to 200 columns no line is wider, and the heads are whole."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    run = Run(path)
    for by in views():
        report = run.view(by, total=True)
        for width in (60, 80, 120, 200):
            text = io.StringIO()
            console = Console(file=text, width=width, color_system=None)
            print_table(report, console)
            assert max(map(cell_len, text.getvalue().splitlines())) <= width, (by, width)
            lines = text.getvalue().partition("\n\n")[2].splitlines()
            assert report.rows.is_empty() or "…" not in lines[1], (by, width)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_kernels_as_they_ran_have_their_names(width: int) -> None:
    """However long the layer's name is, there is room for what tells its kernels apart."""
    rows = Rows().range("encoder.layers.10.feed_forward.dense_in Linear |fwd", 0, 900)
    rows.kernel(10, (20, 30), name="void at::native::ampere_sgemm_128x64_tn").kernel(12, (30, 40), name="splitKreduce")
    text = io.StringIO()
    print_table(
        Run(rows.build()).view("kernel", each=True, total=True), Console(file=text, width=width, color_system=None)
    )
    assert "ampere_sgemm" in text.getvalue()
    assert "splitKreduce" in text.getvalue()


def test_all_heads_are_bold_and_shapes_dim() -> None:
    """The first head as the others, and what is said at the end of lines fainter than the numbers."""
    rows = Rows().range("fc Linear [4,8]f32 |fwd", 0, 900)
    text = io.StringIO()
    print_table(
        Run(rows.build()).view(total=True), Console(file=text, width=120, color_system="standard", force_terminal=True)
    )
    head, line = text.getvalue().partition("\n\n")[2].splitlines()[1:3]
    assert head.startswith("\x1b[1mLayer")
    assert "\x1b[2m[4,8]f32" in line


def test_long_notes_hang_behind_their_word(trained: Path) -> None:
    """The second line of a note begins where its first did, behind the word that tells what it is."""
    profile = load(trained)
    profile.meta["notes"].append("one two three four " * 5)
    text = io.StringIO()
    print_table(Run(profile).view(total=True), Console(file=text, width=60, color_system=None))
    lines = text.getvalue().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("Note: one two"))
    assert lines[first + 1].startswith("      ")
    assert lines[first + 1].strip().split()[0] in ("one", "two", "three", "four")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _report(profile: Path, *words: str, **environment: str) -> str:
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "annot", "report", str(profile), *words]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=plain | environment)
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("steps", [False, True])
def test_time_is_that_of_a_step_or_of_the_run(steps: bool) -> None:
    """A profile without steps has no step time: terminal, notebook and all advice speak of the run."""
    rows = Rows().range("fc Linear [2,3]f32 out=4 |fwd", 20, 900, domain="annot")
    rows.kernel(30, (40, 900), name="ampere_sgemm_128x64_nn")
    if steps:
        rows.range("Batch 0 |step", 10, 1000, domain="annot")
    run = Run(rows.build())
    table, other = run.view(brief=True), {"step": "run", "run": "step"}
    word = "step" if steps else "run"
    for text in (repr(table), table._repr_html_(), repr(run.view("advice"))):
        assert f"{other[word]} time" not in text.lower()
        assert f"of the {other[word]}" not in text
    assert f"\n{word.capitalize()} time: " in repr(table)
    saving = rf"(?:at most \S+%|an unknown part) of the {word}"
    assert re.search(rf"Saves {saving}\.", " ".join(repr(table).split()))
    assert re.search(rf"Saves: {saving}\n", repr(run.view("advice")))


def test_colour(trained: Path) -> None:
    """No escape sequence goes into a pipe, unless FORCE_COLOR wants it; NO_COLOR allows none that colours."""
    cyan = "\x1b[36m"
    assert "\x1b" not in _report(trained)
    assert cyan in _report(trained, FORCE_COLOR="1")
    assert cyan not in _report(trained, FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in _report(trained, "--format", "json", FORCE_COLOR="1")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """A terminal of 100 columns: where to read what it shows, and where to write."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with os.fdopen(there, "w") as stream:
        yield here, stream
    os.close(here)


def _written(terminal: tuple[int, TextIO]) -> str:
    """What was written to the terminal."""
    terminal[1].flush()
    os.set_blocking(terminal[0], False)
    parts = []
    try:
        while True:
            parts.append(os.read(terminal[0], 1 << 16))
    except BlockingIOError:
        return b"".join(parts).decode()


def test_progress_on_a_terminal(terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes long says what it does, how much of it, and how long, and leaves nothing behind."""
    monkeypatch.setattr(sys, "stderr", terminal[1])
    monkeypatch.setattr("annot.cli.progress._SECONDS", 0.0)
    with shown() as started:
        assert started is not None
        assert started.wait(60)
        progress.tell("reading [bold]NVTX\x1b[2J", 250_000, 1_000_000, "rows")
    said = _written(terminal)
    assert "reading [bold]NVTX\\x1b[2J" in said
    assert "250 k rows" in said
    assert "0:00:0" in said
    assert said.endswith("\x1b[2K")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_progress_is_one_line(terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """However long the name of the work is: its rate and times stand whole on the same line."""
    fcntl.ioctl(terminal[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    monkeypatch.setattr(sys, "stderr", terminal[1])
    monkeypatch.setattr("annot.cli.progress._SECONDS", 0.0)
    with shown() as started:
        assert started is not None
        assert started.wait(60)
        for done in (262_144, 1_572_864, 3_670_016):
            progress.tell("reading CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", done, 4_440_000, "rows")
    lines = [line for line in re.split(r"[\r\n]", _written(terminal)) if "3.67 M rows" in line]
    assert lines
    assert all(re.search(r"rows, [\d.]+ .?.?rows/s.*:\d\d", line) for line in lines)


def test_the_page_tells(trained: Path, tmp_path: Path) -> None:
    """Making a page is said, view by view, when all is read."""
    heard: list[tuple[str, int, int | None, str]] = []
    with progress.listening(lambda *said: heard.append(said)):
        assert main(["report", str(trained), "--format", "html", "-o", str(tmp_path / "page.html")]) == 0
    assert ("attributing GPU time to layers", 0, None, "") in heard
    made = [said[1:] for said in heard if said[0] == "making the page"]
    assert made == [(number, 11, "views") for number in range(12)]


def test_work_that_is_done_says_nothing(
    terminal: tuple[int, TextIO],
    trained: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ends before it is time leaves the terminal alone, and JSON is clean."""
    monkeypatch.setattr(sys, "stderr", terminal[1])
    monkeypatch.setattr("annot.cli.progress._SECONDS", 600.0)
    assert main(["report", str(trained), "--format", "json"]) == 0
    assert _written(terminal) == ""
    assert "layers" in json.loads(capsysbinary.readouterr().out)


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Into a pipe nothing is written, and nobody listens."""
    with shown() as started:
        assert started is None
        assert not progress.has_listener()
        progress.tell("reading", 1, 2, "rows")
    assert capsys.readouterr() == ("", "")


def test_readers_tell(trained: Path) -> None:
    """A file that is read in blocks says of each table how many of its rows were read; ranks are counted."""
    heard: list[tuple[str, int, int | None, str]] = []
    with progress.listening(lambda *said: heard.append(said)):
        attribute(source(trained))
    assert not progress.has_listener()
    assert heard[0] == ("reading run.sqlite", 0, None, "")
    kernels = [said for said in heard if said[0] == "reading CUPTI_ACTIVITY_KIND_KERNEL"]
    assert kernels[0][1:] == (17, 17, "rows")


def test_ranks_tell(trained: Path, tmp_path: Path) -> None:
    """Profiles of ranks are counted as they are done."""

    from annot.runs.gather import Ranks

    paths = [str(trained), str(training(device=True).write(tmp_path / "other.sqlite"))]
    heard: list[tuple[str, int, int | None, str]] = []
    with progress.listening(lambda *said: heard.append(said)):
        Ranks(paths, workers=1).view(total=True)
    assert [said[1:] for said in heard if said[0] == "reading profiles"] == [
        (0, 2, "profiles"), (1, 2, "profiles"), (2, 2, "profiles"),
    ]  # fmt: skip


def test_json_lines(trained: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """A line is a row, the same as in JSON."""
    rows = {}
    for form in ("json", "jsonl"):
        assert main(["report", str(trained), "--format", form]) == 0
        rows[form] = capsysbinary.readouterr().out
    lines = rows["jsonl"].decode().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(rows["json"])["layers"]
