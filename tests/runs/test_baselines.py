"""Named baselines: what a file keeps, stores, names, damaged files, and the command."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from sqlite_profile import training
from tables import Rows

from annot.analyze.comparison.digest import TABLES, Digest, as_row, digest
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.errors import AnnotError
from annot.runs import baselines
from annot.runs.baselines import ORIGIN, list_baselines, origins, read, remove, save


def some_run(length: int = 100, source: str = "run.sqlite", cpu: str = "EPYC") -> Digest:
    """Return a run of five steps with one layer."""
    rows = Rows()
    for step in range(5):
        zero = 10_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 9000).range("fc Linear [8,8]f32 |fwd", zero + 10, zero + 900)
        rows.kernel(zero + 30, (zero + 1000, zero + 1000 + length))
    return digest(attribute(rows.build(source=source, cpu=cpu)))


RUN = some_run()


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return a store: a folder whose name looks like a pattern, a file URL, and a URL of a remote store."""
    if request.param == "memory":
        storage = fsspec.filesystem("memory")
        yield "memory://bucket/baselines"
        if storage.exists("/bucket"):
            storage.rm("/bucket", recursive=True)
    else:
        yield str(tmp_path / "base[1]lines") if request.param == "folder" else f"file://{tmp_path}/baselines"


def test_a_baseline_keeps_runs(store: str) -> None:
    """Runs come back as they were, with their origin; names are listed; a removed baseline is gone."""
    assert list_baselines(store) == []
    runs = [RUN, some_run(200, "other.sqlite")]
    assert save("main", runs, store).height == 2
    save("v1.2_x+y-z", [RUN], store)
    assert list_baselines(store) == ["main", "v1.2_x+y-z"]
    back = read("main", store)
    assert str(back) == "main (2 runs)"
    for run, same in zip(runs, back.runs, strict=True):
        assert same.meta == run.meta
        assert all(getattr(same, name).equals(getattr(run, name)) for name in TABLES)
    assert back.origins.columns == [*ORIGIN]
    assert back.origins.equals(origins("main", store))
    row = back.origins.row(1, named=True)
    assert (row["source"], row["cpu"], row["gpu"]) == ("other.sqlite", "EPYC", None)
    assert (row["step_count"], row["step_ns"], row["cores"]) == (5, 9000, os.cpu_count())
    remove("main", store)
    assert list_baselines(store) == ["v1.2_x+y-z"]
    for use in (read, remove, origins):
        with pytest.raises(AnnotError, match=re.escape("has no baseline main: it has v1.2_x+y-z")):
            use("main", store)


def test_an_existing_baseline_is_replaced_or_grows_on_request(store: str) -> None:
    save("main", [RUN], store)
    with pytest.raises(AnnotError, match=r"baseline main exists in .*: --force replaces it, and --append adds"):
        save("main", [RUN], store)
    assert save("main", [some_run(200, "second")], store, append=True)["source"].to_list() == ["run.sqlite", "second"]
    assert save("main", [some_run(300, "third")], store, force=True)["source"].to_list() == ["third"]
    assert save("new", [RUN], store, append=True).height == 1
    with pytest.raises(ValueError, match="use one of them"):
        save("main", [RUN], store, force=True, append=True)
    with pytest.raises(ValueError, match="runs must have a run, got none"):
        save("none", [], store)


@pytest.mark.parametrize("name", ["", ".", "..", "../main", "a/b", "/etc/x", "-x", ".x", "a b", "a\n", "ä", "x" * 101])
def test_names_that_are_paths_are_refused(name: str, tmp_path: Path) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: save(name, [RUN], str(tmp_path / "store")),
        lambda: read(name, str(tmp_path)),
        lambda: remove(name, str(tmp_path)),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"must be letters, digits, .* got"):
            use()
    assert [*tmp_path.iterdir()] == []


def git(folder: Path, *words: str) -> None:
    """Run a command of Git."""
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *words], cwd=folder, env=environ, check=True, capture_output=True)


def test_the_commit_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside Git, without a commit and without git there is none; changed tracked files are dirty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def code() -> tuple[str | None, bool | None]:
        commit, dirty = save("main", [RUN], str(tmp_path / "store"), force=True).select("commit", "dirty").row(0)
        return commit, dirty

    assert code() == (None, None)
    git(tmp_path, "init")
    assert code() == (None, None)
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit, dirty = code()
    assert re.fullmatch("[0-9a-f]{40}", str(commit))
    assert dirty is False
    (tmp_path / "file").write_text("2")
    assert code() == (commit, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code() == (None, None)


def damaged(store: Path, name: str, content: bytes) -> None:
    """Write a file in place of a baseline."""
    store.mkdir(exist_ok=True)
    (store / f"{name}.parquet").write_bytes(content)


def row_with(**columns: Any) -> pl.DataFrame:
    """Return the row of a saved run with other columns."""
    return baselines._origin(RUN).hstack(as_row(RUN)).with_columns(**columns)


def rows_with(table: str, **columns: Any) -> pl.DataFrame:
    """Return the row of a saved run, in which all rows of a table have other values."""
    schema = TABLES[table]
    fields = {name: pl.lit(value, schema[name]) for name, value in columns.items()}
    return row_with(**{table: as_row(RUN)[table].list.eval(pl.element().struct.with_fields(**fields))})


def written(table: pl.DataFrame, version: object = 1) -> bytes:
    """Return the file of a table."""
    if version == 1:
        return baselines.sealed(table)
    file = io.BytesIO()
    table.write_parquet(file, metadata={"annot": json.dumps({"baseline": version})})
    return file.getvalue()


META = json.loads(as_row(RUN)["meta"][0])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a baseline of annot: "),
        (b"PAR1 no PAR1", "is not a baseline of annot: "),
        (written(row_with())[:-50], "is not a baseline of annot: "),
        (written(pl.DataFrame({"x": [1]})), "is not a baseline of annot: "),
        (written(row_with(), version=2), "another version of annot wrote it"),
        (written(row_with(), version=[]), "another version of annot wrote it"),
        (written(row_with().clear()), "it has no runs"),
        (written(row_with().drop("meta")), "is not a baseline of annot: "),
        (written(row_with(commit=pl.lit(5))), "its column commit has the type Int32"),
        (written(row_with(steps=pl.lit(5))), "column steps of a digest must be List"),
        (written(row_with(meta=pl.lit("{"))), "must be a JSON object"),
        (written(row_with(meta=pl.lit("[" * 100_000))), "must be a JSON object"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"cpu": 5})))), "cpu in meta of a digest must be str, got 5"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"devices": [5]})))), "devices in meta"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"parts": {"host": "5"}})))), "parts in meta"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"parts": {"?": 5.0}})))), "times of parts of a step"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"parts": {"host": math.inf}})))), "times of parts of a step"),
        (written(row_with(meta=pl.lit(json.dumps(META | {"parts": {"host": -5.0}})))), "times of parts of a step"),
        (written(rows_with("times", node=99)), "node in times of a digest must be from -1 to"),
        (written(rows_with("times", step=-1)), "step in times of a digest must be from 0 to"),
        (written(rows_with("inputs", steps=6)), "steps in inputs of a digest must be from 1 to 5"),
        (written(rows_with("nodes", parent=0)), "parent in nodes of a digest must be a row above"),
        (written(rows_with("nodes", layer=None)), "layer in nodes of a digest must have a value"),
        (written(rows_with("steps", step=3)), "step in steps of a digest must be the row"),
    ],
)  # fmt: skip
def test_foreign_and_damaged_files_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    damaged(tmp_path, "main", content)
    with pytest.raises(AnnotError, match=re.escape(says)) as refused:
        read("main", str(tmp_path))
    assert str(tmp_path / "main.parquet") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_parquet_is_said_to_be_foreign(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "main.parquet")
    with pytest.raises(AnnotError, match="is not a baseline of annot: annot did not write it"):
        origins("main", str(tmp_path))


WHOLE = written(row_with())


@pytest.mark.fuzz
@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_damage_is_an_annot_error(data: st.DataObject) -> None:
    """Changed bytes give an AnnotError before polars reads the rows: it aborts the process for some of them."""
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    storage = fsspec.filesystem("memory")
    storage.pipe_file("/fuzzed/main.parquet", bytes(content))
    with suppress(AnnotError):
        read("main", "memory://fuzzed")
        assert bytes(content) == WHOLE


KILLED = """
import os, signal, sys
from annot.runs import baselines
from annot.util import whole_files
from test_baselines import RUN

store, append = sys.argv[1], sys.argv[2] == "append"
class Half:
    def __init__(self, content): self.content = content
    def __iter__(self):
        yield self.content[:1000]
        os.kill(os.getpid(), signal.SIGKILL)
before = whole_files.write_file
import annot.runs.profile_files as files
files.write_file = lambda path, content, force: before(path, Half(content[0]), force=force)
baselines.save("main", [RUN], store, append=append)
"""


@pytest.mark.slow
@pytest.mark.parametrize("append", [False, True])
def test_a_killed_save_leaves_the_old_file_or_none(append: bool, tmp_path: Path) -> None:
    """The process is killed after it has written a part of the file."""
    store = str(tmp_path / "store")
    if append:
        save("main", [RUN], store)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    words = [sys.executable, "-c", KILLED, store, "append" if append else ""]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert sum(path.suffix == ".tmp" for path in Path(store).iterdir()) == 1
    assert list_baselines(store) == (["main"] if append else [])
    if append:
        assert len(read("main", store).runs) == 1
    assert save("main", [RUN], store, append=True).height == 1 + append


def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AnnotError, match=r"file/main.parquet cannot be written: (File exists|Not a directory)"):
        save("main", [RUN], str(tmp_path / "file"))
    with pytest.raises(AnnotError, match="nosuch://x cannot be read: "):
        list_baselines("nosuch://x")


class Command:
    """The command `annot baseline` in a folder with two profiles."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        status = main(["baseline", *words])
        return status, *self._capsys.readouterr()


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return the command, in a folder with the profiles a.sqlite and b.sqlite."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANNOT_BASELINES", raising=False)
    for name in "ab":
        training(device=True).write(tmp_path / f"{name}.sqlite")
    return Command(capsys)


def test_the_command(command: Command) -> None:
    """Save, list, show and remove, as a person and as a program read them."""
    status, out, err = command("list")
    assert (status, out) == (0, ".annot/baselines has no baselines. annot baseline save NAME RUN saves one.\n")
    status, out, err = command("save", "main", "a.sqlite")
    assert (status, out) == (0, "")
    assert err.splitlines()[0] == "annot: baseline main in .annot/baselines has 1 run"
    assert "--append" in err
    status, out, err = command("save", "main", "b.sqlite")
    assert (status, out, "--force replaces it" in err) == (1, "", True)
    assert "main in .annot/baselines has 2 runs" in command("save", "main", "b.sqlite", "--append")[2]
    lines = command("list")[1].splitlines()
    assert lines[0].split()[:3] == ["Baseline", "Runs", "Step"]
    assert lines[1].split()[:2] == ["main", "2"]
    listed = json.loads(command("list", "--format", "json")[1])
    assert listed["meta"] == {"schema": 1, "store": ".annot/baselines"}
    assert [(row["name"], row["runs"], row["source"]) for row in listed["baselines"]] == [("main", 2, "b.sqlite")]
    assert [line.split()[-1] for line in command("show", "main")[1].splitlines()] == ["Run", "a.sqlite", "b.sqlite"]
    shown = json.loads(command("show", "main", "--format", "json")[1])
    assert (shown["meta"]["baseline"], [row["source"] for row in shown["runs"]]) == ("main", ["a.sqlite", "b.sqlite"])
    assert [*shown["runs"][0]] == [*ORIGIN]
    assert command("show", "main", "--format", "csv")[1].count("\n") == 3
    assert command("rm", "main") == (0, "", "annot: removed baseline main from .annot/baselines\n")
    assert command("show", "main")[0] == 1


def test_the_store_of_the_command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is before the variable, which is before the default."""
    monkeypatch.setenv("ANNOT_BASELINES", "from_variable")
    command("save", "main", "a.sqlite")
    command("save", "main", "a.sqlite", "--store", "from_option")
    assert sorted(path.parent.name for path in tmp_path.glob("*/*.parquet")) == ["from_option", "from_variable"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["save", "../x", "a.sqlite"], "must be letters, digits"),
        (["save", "main", "missing.sqlite", "--force", "--append"], "use one of them"),
        (["show", "a/b"], "must be letters, digits"),
        (["list", "-o", "out.xyz"], "writes no .xyz files"),
    ],
)
def test_wrong_use_of_the_command(words: list[str], says: str, command: Command) -> None:
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert says in err


def test_a_damaged_baseline_does_not_hide_the_others(command: Command, tmp_path: Path) -> None:
    command("save", "main", "a.sqlite")
    damaged(tmp_path / ".annot" / "baselines", "bad", b"bytes")
    status, out, err = command("list")
    assert (status, len(out.splitlines())) == (0, 2)
    assert err.startswith("annot: warning: .annot/baselines/bad.parquet is not a baseline of annot: ")
