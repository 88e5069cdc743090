"""The folder of a trial: which trial continues in it, and its records."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_results import Records

from annot.errors import AnnotError
from annot.trial.records import ANSWER, Identity, Record, cache_variables, open_folder
from annot.util.json_files import read_json, write_json
from annot.util.program import digest_of_modules

COMMAND = ("python", "train.py")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("1")


def opened(command: tuple[str, ...] = COMMAND, keep: Path | None = None, **options: bool) -> Path:
    with open_folder(keep, Identity.of(command, "recorder"), **options) as folder:
        return folder


def test_an_unfinished_trial_continues_in_its_folder() -> None:
    assert opened() == opened() == Path("annot-try-1")
    Path("annot-try-1", ANSWER).write_text("{}")
    assert opened() == Path("annot-try-2")
    assert opened(("python", "train.py", "--lr", "1")) == Path("annot-try-3")
    assert opened() == Path("annot-try-2")


def test_a_changed_script_starts_another_trial() -> None:
    assert opened() == Path("annot-try-1")
    Path("train.py").write_text("2")
    assert opened() == Path("annot-try-2")


def test_a_changed_module_beside_the_script_starts_another_trial() -> None:
    Path("below").mkdir()
    Path("model.py").write_text("1")
    assert opened() == Path("annot-try-1")
    for other in ("below/model.py", "model.txt"):
        Path(other).write_text("1")
    assert opened() == Path("annot-try-1")
    Path("model.py").write_text("2")
    assert opened() == Path("annot-try-2")
    Path("model.py").rename("network.py")
    assert opened() == Path("annot-try-3")


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (("python", "src/train.py"), "src"),
        (("python", "-m", "src.train"), "src"),
        (("python", "-c", "import train"), "."),
        (("python", "absent.py"), "."),
    ],
)
def test_the_folder_whose_modules_count(command: tuple[str, ...], folder: str) -> None:
    Path("src").mkdir()
    Path("src", "train.py").write_text("1")
    before = digest_of_modules(command)
    for place in {".", "src"} - {folder}:
        Path(place, "model.py").write_text("1")
    assert digest_of_modules(command) == before
    Path(folder, "model.py").write_text("1")
    assert digest_of_modules(command) != before


@pytest.mark.parametrize(("size", "counts"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_large_modules_do_not_count(size: int, counts: bool) -> None:
    Path("data.py").write_bytes(b"1" * size)
    before = digest_of_modules(COMMAND)
    Path("data.py").write_bytes(b"2" * size)
    assert (digest_of_modules(COMMAND) != before) is counts


def test_names_of_other_files_are_not_used() -> None:
    Path("annot-try-1").write_text("mine")
    Path("annot-try-x").mkdir()
    assert opened() == Path("annot-try-2")


def test_the_folder_that_the_user_names(tmp_path: Path) -> None:
    keep = tmp_path / "deep" / "kept"
    assert opened(keep=keep) == opened(keep=keep) == keep
    with pytest.raises(AnnotError, match="has files of something else: use the name of a new folder with -o"):
        opened(("other",), keep=keep)
    (keep / ANSWER).write_text("{}")
    with pytest.raises(AnnotError, match="has files of something else"):
        opened(keep=keep)
    with pytest.raises(AnnotError, match=r"train\.py is not a folder"):
        opened(keep=Path("train.py"))


def test_two_trials_at_the_same_time() -> None:
    with (
        open_folder(None, Identity.of(COMMAND, "recorder")),
        pytest.raises(AnnotError, match="is in use by another annot try: wait for it"),
    ):
        opened()


def test_records_are_kept_until_restart() -> None:
    records = Records()
    records.check(losses=[1.0, None])
    folder = opened()
    path = folder / "base.check1.json"
    write_json(path, records[0])
    (folder / "running").mkdir()
    (folder / "running" / "part").write_text("")
    assert read_json(path, Record) == records[0]
    assert opened() == folder
    assert read_json(path, Record) == records[0]
    assert not (folder / "running").exists()
    opened(restart=True)
    assert read_json(path, Record) is None
    path.write_text('{"name": 1}')
    assert read_json(path, Record) is None


def test_compiled_kernels_are_those_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.delenv(name, raising=False)
    with open_folder(None, Identity.of(COMMAND, "recorder")) as folder:
        cache = Path(cache_variables(folder)[name])
        assert cache.parent == folder.absolute()
        cache.mkdir()
    assert not cache.exists()
    monkeypatch.setenv(name, "/mine")
    assert cache_variables(folder) == {}
