"""What `annot try` measured: the file of a program, and the advice that cites it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from sqlite_profile import SqliteProfile
from step_rows import Rows

import annot
from annot.analyze.advice import Facts
from annot.attribution.attribute import attribute
from annot.changes.advice import by_advice
from annot.changes.tried import Outcome, Tried, keep, tried_on
from annot.errors import AnnotError
from annot.profile import Profile
from annot.util.program import Program

FASTER = Tried(change="compile", outcome="faster", speedup=1.42, low=1.385, high=1.445, device="AMD EPYC")
SAME = Tried(change="compile-blocks", outcome="same speed", speedup=1.0, low=0.9, high=1.1, device="AMD EPYC")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the user."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "train.py").write_text("train()")
    return Program.of(["python", "train.py", "--name", "a b"], str(tmp_path))


def _profile(
    program: Program | None, cpu: str = "AMD EPYC", texts: tuple[str, ...] = ("act ReLU [64,1024]f32",)
) -> Profile:
    """Four steps of layers that move more bytes than they compute FLOPs, and nothing else."""
    rows, at = Rows(), 0
    for step in range(4):
        begin = at
        for text in texts:
            rows.range(f"{text} |fwd", at, at + 99_990)
            at += 100_000
        rows.range(f"Batch {step} |step", begin, at)
    meta = {"cpu": cpu} | ({} if program is None else {"program": program.facts()})
    return rows.build(**meta)


def _recorded(path: Path, program: Program) -> Path:
    """The same as a recording of `annot run`."""
    profile = SqliteProfile()
    for step in range(4):
        at = step * 100_000
        profile.layer("act ReLU [64,1024]f32 |fwd", at, at + 99_990)
        profile.layer(f"Batch {step} |step", at, at + 100_000)
    for name, text in program.facts().items():
        profile.add("META_DATA_CAPTURE", name=f"ANNOT_{name.upper()}", value=text)
    profile.add("TARGET_INFO_SYSTEM_ENV", name="CpuDescription", value="AMD EPYC")
    return profile.write(path)


def _view(path: Path) -> str:
    return str(annot.open(path).view("advice"))


def _answer(path: Path) -> str:
    return repr(annot.open(path))


def _facts(program: Program | None, cpu: str = "AMD EPYC") -> Facts:
    return Facts(attribute(_profile(program, cpu)))


def test_later_profiles_of_the_program_cite_what_was_tried(program: Program) -> None:
    keep(program, [FASTER])
    keep(program, [SAME])
    row = by_advice(attribute(_profile(program))).row(0, named=True)
    assert (row["rule"], row["changes"]) == ("fusion", ["compile"])  # no block of layers is repeated
    assert row["trial"] == "annot try --change compile -- python train.py --name 'a b'"
    assert row["tried"] == "compile 1.42 (1.39–1.45), compile-blocks no gain"
    keep(program, [SAME.__class__(change="compile", outcome="failed", device="AMD EPYC")])
    assert by_advice(attribute(_profile(program)))["tried"][0] == "compile fails, compile-blocks no gain"


def test_advice_that_was_not_tried(program: Program) -> None:
    """A profile that does not name its program leaves its place to the reader."""
    assert by_advice(attribute(_profile(program)))["tried"].to_list() == [None]
    keep(program, [FASTER])
    row = by_advice(attribute(_profile(None))).row(0, named=True)
    assert (row["trial"], row["tried"]) == ("annot try --change compile -- ...", None)


def test_advice_without_changes_names_no_trial() -> None:
    rows = Rows()
    for step in range(4):
        at = step * 1_000_000
        rows.range(f"Batch {step} |step", at, at + 1_000_000)
        rows.range("Forward Net |fwd", at, at + 900_000).range("fc Linear |fwd", at, at + 500_000)
    row = by_advice(attribute(rows.build())).row(0, named=True)
    assert (row["rule"], row["changes"], row["trial"], row["tried"]) == ("own_code", [], None, None)


def test_another_script_folder_command_or_device_is_another_program(program: Program, tmp_path: Path) -> None:
    keep(program, [FASTER])
    assert tried_on(_facts(program)) == {"compile": FASTER}
    assert tried_on(_facts(program, "Intel Xeon")) == {}
    assert tried_on(_facts(None)) == {}
    (tmp_path / "train.py").write_text("train(more=True)")
    assert tried_on(_facts(Program.of(program.command, program.folder))) == {}
    (tmp_path / "train.py").write_text("train()")
    assert tried_on(_facts(Program.of(program.command, program.folder))) == {"compile": FASTER}
    assert tried_on(_facts(Program.of((*program.command, "-v"), program.folder))) == {}
    assert tried_on(_facts(Program(program.command, "/elsewhere", program.script))) == {}


def test_the_gpu_of_a_profile_with_activities_is_its_device(program: Program) -> None:
    rows = Rows().range("fc Linear |fwd", 0, 1000).work("ampere_sgemm", 10, 20, 900)
    meta = {"program": program.facts(), "cpu": "AMD EPYC", "devices": [{"name": "NVIDIA L4"}]}
    keep(program, [FASTER, Tried(change="compile", outcome="slower", device="L4")])
    tried = tried_on(Facts(attribute(rows.build(**meta))))
    assert [row.words for row in tried.values()] == ["no gain"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("undecided", "undecided"), ("same speed", "no gain"), ("slower", "no gain"),
        ("other training", "changes training"), ("unsteady", "unequal steps"), ("failed", "fails"),
        ("faster", "1.20 (1.10–1.30)"),
    ],
)  # fmt: skip
def test_outcomes_in_words(outcome: Outcome, words: str) -> None:
    assert Tried(change="bf16", outcome=outcome, speedup=1.2, low=1.1, high=1.3).words == words


def test_a_gain_without_an_interval_is_a_number() -> None:
    assert Tried(change="bf16", outcome="faster", speedup=2.0).words == "2.00"
    assert Tried(change="bf16", outcome="faster").words == "faster"


def test_the_newest_changes_are_kept(program: Program) -> None:
    keep(program, [Tried(change=f"change{number}", outcome="faster") for number in range(150)])
    keep(program, [Tried(change=f"change{number}", outcome="faster") for number in (*range(150, 220), 30)])
    path = keep(program, [])
    assert path is not None
    names = [row["change"] for row in json.loads(path.read_text())["tried"]]
    assert len(names) == 200
    assert names[-1] == "change30"
    assert "change19" not in names
    assert "change21" in names


def test_damaged_files_count_as_absent(program: Program) -> None:
    """Any damage leaves reports as they are without the file, and the next trial replaces it."""
    path = keep(program, [FASTER])
    assert path is not None
    content, rng = path.read_bytes(), random.Random(7)
    damages = [b"", b"{", b"[]", b"null", b'{"x": ' + b"[" * 100_000, content[:-9], content.replace(b"1", b"2", 1)]
    damages += [content.replace(b'"faster"', b'"great"'), content.replace(b"1.42", b'"x"'), b"\xff" * 99]
    damages.append(content + b" " * (1 << 18) + b"x")
    for _ in range(60):
        at = rng.randrange(len(content))
        damages.append(content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :])
    facts = _facts(program)
    for damage in damages:
        path.write_bytes(damage)
        rows = tried_on(facts)
        assert all(isinstance(row, Tried) and row.words for row in rows.values())
        assert len(rows) <= 1
    for damage in damages[:8]:
        path.write_bytes(damage)
        assert tried_on(facts) == {}
    path.unlink()
    path.mkdir()
    assert tried_on(_facts(program)) == {}
    path.rmdir()
    path.write_bytes(b"{")
    keep(program, [SAME])
    assert tried_on(_facts(program)) == {"compile-blocks": SAME}


def test_without_a_data_folder_nothing_is_kept(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "relative")
    assert keep(program, [FASTER]) is None
    assert tried_on(_facts(program)) == {}


def test_a_folder_that_cannot_be_written_is_an_error(program: Program, data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(AnnotError, match="cannot be written"):
        keep(program, [FASTER])


def test_reports_say_how_to_try_and_what_was_tried(program: Program, tmp_path: Path) -> None:
    """In the view of advice, the answer, JSON and the page."""
    path = _recorded(tmp_path / "run.sqlite", program)
    assert "\n   Try: annot try --change compile -- python train.py --name 'a b'\n" in f"{_view(path)}\n"
    assert "Tried" not in _view(path) + _answer(path)
    keep(program, [FASTER])
    assert "\n   Tried: compile 1.42 (1.39–1.45)\n" in f"{_view(path)}\n"
    assert " Tried: compile 1.42 (1.39–1.45)." in " ".join(_answer(path).split())
    annot.open(path).to_json(tmp_path / "advice.json", "advice")
    row = json.loads((tmp_path / "advice.json").read_text())["advice"][0]
    assert (row["changes"], row["tried"]) == (["compile"], "compile 1.42 (1.39–1.45)")
    annot.open(path).to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '"tried":{"table":' in page
    assert "annot try --change compile" in page
    assert "compile 1.42 (1.39\u20131.45)" in page or "compile 1.42 (1.39\\u20131.45)" in page


def test_control_characters_of_a_profile_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "run.sqlite", Program(("python", "\x1b[31m.py"), "/", ""))
    assert "   Try: annot try --change compile -- ...\n" in f"{_view(path)}\n"
