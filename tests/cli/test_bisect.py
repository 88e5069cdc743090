"""`annot bisect`: its answer, what it continues after a kill, and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from commands import ANNOT, annot, last_line, needs_recorder
from slow_history import commit, git, journal, new_repository, slow_history

from annot.cli.schema import schema_of

OPTIONS = ("--collector", "recorder")
COMMAND = ("--", sys.executable, "train.py")


@pytest.mark.slow
@needs_recorder
def test_the_slow_commit_its_layer_and_its_cause(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    hashes = slow_history(folder, 7, 5, broken={3: "import"})
    (folder / "untracked").write_text("")
    (folder / "layers.py").write_text("changed\n")
    words = [*ANNOT, "bisect", "--good", hashes[0], *OPTIONS]
    done = subprocess.run([*words, *COMMAND], cwd=folder, capture_output=True, text=True, check=False)
    said, text = done.stderr, done.stdout
    assert done.returncode == 0, said
    assert text.startswith(f"first slow commit: {hashes[5]}\n  Change 5\n  Ada <ada@example.org>, 2026-11-02\n")
    assert "  attention takes 1." in text
    assert "  cause, slower work: attention" in text
    assert f"{hashes[3][:12]} (Change 3): skipped: exit status 1: ModuleNotFoundError: No module named" in said
    runs = len(journal(folder))
    answer = json.loads(subprocess.check_output([*words, "--format", "json", *COMMAND], cwd=folder))
    assert len(journal(folder)) == runs
    jsonschema.validate(answer, schema_of("bisect"))
    assert (answer["first_slow"]["hash"], answer["suspects"]) == (hashes[5], [answer["first_slow"]])
    assert answer["change"]["layer"] == answer["row"]["layer"] == "attention"
    assert 1 < answer["change"]["low"] < answer["change"]["factor"] < answer["change"]["high"]
    assert [cause["kind"] for cause in answer["causes"]] == ["slower work"]
    assert {trial["result"] for trial in answer["trials"]} >= {"skipped"}
    assert (folder / "layers.py").read_text() == "changed\n"
    assert git(folder, "status", "--porcelain") == "M layers.py\n?? untracked"
    assert len(git(folder, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
@needs_recorder
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_bisection_continues(number: signal.Signals, tmp_path: Path) -> None:
    folder, wait = tmp_path / "project", tmp_path / "wait"
    hashes = slow_history(folder, 2, 2)
    os.mkfifo(wait)
    words = [*ANNOT, "bisect", "--good", hashes[0], "--repeat", "2", *OPTIONS, *COMMAND]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)
    with process, wait.open() as waiting:
        program = int(waiting.readline())
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
    killed = number == signal.SIGKILL
    assert process.returncode == (-number if killed else 128 + number)
    assert ("interrupted. The same command continues" in said) is not killed
    assert len(git(folder, "worktree", "list").splitlines()) == (3 if killed else 1)
    with suppress(ProcessLookupError):
        os.kill(program, signal.SIGKILL)  # the run may outlive a killed process by a moment
    wait.unlink()
    [first] = (folder / ".git").glob("annot-bisect/*/*/0.parquet")
    measured = first.read_bytes()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "continuing with 2 runs in " in done.stderr
    assert first.read_bytes() == measured
    assert journal(folder) == [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
    assert len(git(folder, "worktree", "list").splitlines()) == 1


@needs_recorder
def test_errors_are_one_line(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    first, second = commit(folder, "first", {"a": ""}), commit(folder, "second", {"b": ""})

    def error(*words: str, where: Path = folder) -> tuple[int, str]:
        done = annot("bisect", *words, cwd=where)
        assert done.stdout == b""
        return done.returncode, last_line(done.stderr)

    assert error("--good", first) == (
        2, "annot: error: COMMAND is missing: annot bisect --good REV --bad REV -- python train.py",
    )  # fmt: skip
    assert error("--good", "v9", *COMMAND) == (1, f"annot: error: {folder} lacks the commit 'v9'")
    status, line = error("--good", second, "--bad", first, *COMMAND)
    assert (status, line.partition(": it is")[2]) == (1, " the other way round")
    status, line = error("--good", first, *OPTIONS, "--", sys.executable, "-c", "import sys; sys.exit('no GPU')")
    assert status == 1
    assert line.startswith(f"annot: error: {first[:12]} does not run: exit status 1: no GPU; its output is in ")
    assert error("--good", first, *COMMAND, where=tmp_path)[1].endswith(
        "failed: not a git repository (or any of the parent directories): .git"
    )
    assert len(git(folder, "worktree", "list").splitlines()) == 1
