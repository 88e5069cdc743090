"""The outputs of all profiles in a folder, and the comparison of two such folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import output_texts
import outputs
import pytest
from compared_outputs import compare, differences
from sqlite_profile import training

PROFILE = "nvprof_trace.csv"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folders ``before`` and ``after``, which have the same outputs of a profile."""
    folder = tmp_path_factory.mktemp("written")
    shutil.copy(Path(__file__).parents[1] / "data" / PROFILE, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("before", "after"):
            assert outputs.write_outputs(folder / name, (PROFILE, outputs.short_outputs, (PROFILE,)))[2] == 0
    return folder


@pytest.fixture
def folders(written: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the two folders."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy" / "before", tmp_path / "copy" / "after"


def test_outputs_of_the_same_program_are_equal(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert compare(*folders) == 0
    assert capsys.readouterr().out == f"{len(outputs.SHORT)} equal, 0 different, 0 missing\n"
    assert "tests" not in (folders[0] / PROFILE / "report.txt").read_text()


def test_a_changed_number_is_reported(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = folders[1] / PROFILE / "report.txt"
    before = path.read_text()
    line = next(line for line in before.splitlines() if "1" in line)
    path.write_text(before.replace(line, line.replace("1", "2")))
    for words in (False, True):
        assert compare(*folders, words=words) == 1
        said = capsys.readouterr().out
        assert said.splitlines()[0] == f"{PROFILE}/report.txt"
        assert line[:40] in said
        assert "1 different" in said
    assert compare(*folders, only=["report_all"]) == 0


def test_a_missing_file_is_reported(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (folders[0] / PROFILE / "report.txt").unlink()
    assert compare(*folders) == 1
    assert f"{folders[0] / PROFILE / 'report.txt'} is missing" in capsys.readouterr().out


def test_folders_without_common_files_are_not_equal(folders: tuple[Path, Path]) -> None:
    assert compare(*folders, only=["no such name"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "is_equal"),
    [
        ("0.3 s", "0.30000000000000004 s", True), ("1.0", "1.0000000009", True), ("1.0", "1.0000000011", False),
        ("1.0e300", "1.00000000001e300", True), ("-1.5", "1.5", False),
        ("1000000000000", "1000000000001", False), ("1", "1.0", False), ("a 1", "b 1", False), ("1", "1\n2", False),
    ],
)  # fmt: skip
def test_numbers_are_equal_to_nine_digits(old: str, new: str, is_equal: bool) -> None:
    assert (list(differences(old, new)) == []) is is_equal


@pytest.mark.parametrize(
    ("old", "new", "is_equal"),
    [
        ("Time\nfc 1 2", "Duration\n\nfc 1 2", True), ("Time 1", "Duration 1", True), ("fc 1 2", "fc 1 3", False),
        ("fc 1\nact 2", "fc 1", False), ("fc 1 2", "fc 1", False), ("fc 1\nact 2", "fc 2\nact 1", False),
    ],
)  # fmt: skip
def test_words_may_differ_and_numbers_may_not(old: str, new: str, is_equal: bool) -> None:
    assert (list(differences(old, new, words=True)) == []) is is_equal


@pytest.mark.parametrize("form", ["parquet", "trace", "html", "tensorboard", "json"])
def test_files_are_written_as_text(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has a line for each row, and no path of this machine."""
    monkeypatch.chdir(tmp_path)
    training(device=True).write(tmp_path / "run.sqlite")
    text = output_texts.run("report", "run.sqlite", "--format", form)
    assert "exit status" not in text
    assert sum("features.0" in line for line in text.splitlines()) >= 2
    assert str(tmp_path) not in text


def test_tables_of_a_page_are_written_row_by_row() -> None:
    """A long object of equal columns becomes rows, so that a difference shows the row; others keep keys."""
    names, numbers = [f"layer {number}" for number in range(99)], [*range(99)]
    lines = output_texts.as_lines({"rows": {"layer": names, "calls": numbers}, "total": 99}).splitlines()
    assert lines[1:4] == [' "rows": [', '  {"layer": "layer 0", "calls": 0}', '  {"layer": "layer 1", "calls": 1}']
    assert lines[-3:] == [" ]", ' "total": 99', "}"]
    uneven = output_texts.as_lines({"layer": names, "calls": numbers[1:]}).splitlines()
    assert uneven[0] == "{"
    assert uneven[1].startswith(' "layer": [')


def test_errors_are_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is one line and the exit status; any other error counts as a crash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.sqlite").write_text("no profile")
    name, text = next(outputs.profile_outputs("no.sqlite"))
    assert name == "report"
    assert text.splitlines()[-1] == "exit status 1"
    assert text.startswith("annot: error: no.sqlite")
    assert output_texts.attempt(lambda: str(1 // 0)).startswith(output_texts.CRASH)


def test_views_come_from_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = tmp_path / outputs.EXAMPLE
    example.parent.mkdir(parents=True)
    training(device=True).write(example)
    views = outputs.views()
    assert {"by": "layer", "columns": "roofline"} in views
    assert {"by": "kernel", "each": True} in views
    assert {"by": "kind", "columns": "work"} not in views
    assert "parquet" in outputs.choices("report", "--format")
    assert outputs.choices("report", "--no-such-option") == ()


def test_each_profile_has_its_outputs_once(tmp_path: Path) -> None:
    """A profile of both places counts once, another version of it in short; neighbours are pairs, ranks are one run."""
    files = {
        "made/planted/cast.json": "1", "made/ranks/run_rank0.sqlite": "2", "made/ranks/run_rank1.sqlite": "3",
        "shared/k/a.json": "4", "tests/k/a.json": "4", "shared/k/b.json": "5", "tests/k/b.json": "6",
        "tests/c.csv": "7", f"shared/{outputs.RANKS_OF}": "8", f"tests/{outputs.RANKS_OF}": "9" * 9,
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found: dict[object, set[tuple[str, ...]]] = {}
    for _, make, paths in outputs.tasks(tmp_path):
        found.setdefault(make, set()).add(paths)
    ranks = ("made/ranks/run_rank0.sqlite", "made/ranks/run_rank1.sqlite")
    real = (f"shared/{outputs.RANKS_OF}", f"tests/{outputs.RANKS_OF}")
    whole = {"shared/k/a.json", "shared/k/b.json", "tests/c.csv", ranks[0], real[0]}
    assert found[outputs.profile_outputs] == {(name,) for name in whole}
    assert found[outputs.short_outputs] == {("made/planted/cast.json",), ("tests/k/b.json",), (real[1],)}
    assert found[outputs.pair_outputs] == {("shared/k/a.json", "shared/k/b.json"), ranks}
    assert found[outputs.rank_outputs] == {ranks, real}
    assert len({name for name, _, _ in outputs.tasks(tmp_path)}) == sum(map(len, found.values()))
