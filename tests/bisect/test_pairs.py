"""Pairs of runs: their order and files, commits that do not run, preparation of worktrees, and what a kill leaves."""

from __future__ import annotations

import fcntl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import needs_recorder
from slow_history import BROKEN, commit, git, journal, new_repository, slow_history

from annot.bisect.pairs import Pair, Pairs, Program, SkipError, open_pairs
from annot.bisect.repository import Commit, Repository
from annot.errors import AnnotError

pytestmark = needs_recorder
COMMAND = (sys.executable, "train.py")


@contextmanager
def opened(folder: Path, *, restart: bool = False, said: list[str] | None = None, **options: object) -> Iterator[Pairs]:
    """Open the pairs of runs of a repository."""
    program = Program(command=COMMAND, collector="recorder", **options)  # type: ignore[arg-type]
    say = (lambda line: None) if said is None else said.append
    where = folder / ".git/annot-bisect/key"
    with open_pairs(where, Repository(folder), program, restart=restart, say=say) as pairs:
        yield pairs


def get(pairs: Pairs, a: Commit, b: Commit, count: int) -> list[Pair]:
    """Return the first pairs of two commits."""
    return [pairs.pair(a, b, number) for number in range(count)]


def commits(folder: Path) -> list[Commit]:
    repository = Repository(folder)
    return [repository.commit(name) for name in git(folder, "rev-list", "--reverse", "HEAD").split()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a repository whose commits 2, 3 and 4 do not run."""
    slow_history(tmp_path / "project", 5, 1, broken=dict(zip((2, 3, 4), BROKEN, strict=True)))
    return tmp_path / "project"


@pytest.mark.slow
def test_pairs_are_measured_once_in_both_orders(folder: Path) -> None:
    good, bad, *_ = commits(folder)
    with opened(folder) as pairs:
        first = get(pairs, good, bad, 2)
        assert journal(folder) == [0, 1, 1, 0]
        assert all(20 < run.steps.height <= 30 for pair in first for run in pair)  # some are warm-up
        assert len(get(pairs, good, bad, 3)) == 3
        assert journal(folder) == [0, 1, 1, 0, 0, 1]
    with opened(folder) as pairs:
        again = get(pairs, good, bad, 3)
        assert [pair[1].times.rows() for pair in again[:2]] == [pair[1].times.rows() for pair in first]
        assert pairs.kept() == 6
    assert len(journal(folder)) == 6
    with opened(folder, restart=True) as pairs:
        assert pairs.kept() == 0
        get(pairs, good, bad, 1)
    assert len(journal(folder)) == 8
    assert git(folder, "status", "--porcelain") == ""
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    kept = {path.name for path in (folder / ".git/annot-bisect/key").iterdir()}
    assert kept == {f"{good.hash}-{bad.hash}", "bisect.lock"}


@pytest.mark.slow
def test_a_commit_that_does_not_run_is_skipped_with_its_reason(folder: Path) -> None:
    good, _, *broken = commits(folder)
    reasons = (
        "exit status 1: ModuleNotFoundError: No module named 'no_such_module_of_layers'",
        "exit status 9: no device",
        "no profile was written: no ranges",
    )
    for _ in range(2):  # the second time from the files
        with opened(folder) as pairs:
            for number, reason in zip(broken, reasons, strict=True):
                with pytest.raises(SkipError, match=reason):
                    get(pairs, good, number, 2)
    assert len(journal(folder)) == 3  # of the good commit, beside each
    with opened(folder) as pairs, pytest.raises(AnnotError, match=r"does not run: exit status 9: no device") as failed:
        get(pairs, broken[1], good, 1)
    assert not isinstance(failed.value, SkipError)


@pytest.mark.slow
def test_a_worktree_is_prepared_for_each_commit(tmp_path: Path) -> None:
    """Files that git does not track come from the checkout of the user; bytecode of another commit is gone."""
    slow_history(tmp_path / "project", 2, 1)
    folder = tmp_path / "project"
    for _ in range(2):
        commit(folder, "data", {"train.py": (folder / "train.py").read_text() + "\nopen('data.bin')\n"})
        commit(folder, "same size", {"layers.py": (folder / "layers.py").read_text().replace("4000", "4001")})
    (folder / "data.bin").write_text("")
    first, *_, before, last = commits(folder)
    with opened(folder) as pairs, pytest.raises(SkipError, match=r"No such file or directory: 'data.bin'"):
        get(pairs, first, last, 1)
    setup = 'test ! -e __pycache__ && test "$PWD" = "$(pwd)" && ln -s "$ANNOT_BISECT_TOP/data.bin" .'
    with opened(folder, restart=True, setup=setup) as pairs:
        assert len([*get(pairs, before, last, 2), *get(pairs, first, before, 2)]) == 4
    message = f"{before.short} does not run: --setup ended with status 7: no compiler"
    with opened(folder, setup="echo no compiler >&2; exit 7") as pairs, pytest.raises(AnnotError, match=message):
        get(pairs, before, first, 1)


def test_a_commit_without_the_folder_or_the_command_is_skipped(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    (folder / "sub").mkdir()
    old = commit(folder, "old", {"sub/run": "#!/bin/sh\n"})
    (folder / "sub/run").chmod(0o755)
    new = commit(folder, "new")
    git(folder, "rm", "--quiet", "sub/run")
    gone = commit(folder, "gone", {"other": ""})
    repository = Repository(folder)
    repository.prefix = Path("sub")
    program = Program(command=("./run",), collector="recorder")
    where = tmp_path / "state"
    with open_pairs(where, repository, program, restart=False, say=lambda line: None) as pairs:
        a, b, c = map(repository.commit, (new, old, gone))
        with pytest.raises(SkipError, match="it has no folder sub"):
            get(pairs, a, c, 1)
        with pytest.raises(SkipError, match="run is not executable"):
            get(pairs, a, b, 1)


def test_a_folder_is_used_by_one_process(folder: Path) -> None:
    with opened(folder), pytest.raises(AnnotError, match="is in use by another annot bisect"), opened(folder):
        pass


def test_the_run_of_a_killed_process_ends_first(folder: Path) -> None:
    """The recording of that run is locked until it ends."""
    runs = folder / ".git/annot-bisect/key/x-y/runs/running/a1.sqlite.parts"
    runs.mkdir(parents=True)
    (runs / "annot.lock").write_text("4711\n")
    said: list[str] = []
    with (runs / "annot.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Event()

        def say(line: str) -> None:
            said.append(line)
            waiting.set()

        def use() -> None:
            program = Program(command=COMMAND)
            with open_pairs(runs.parents[3], Repository(folder), program, restart=False, say=say):
                said.append("open")

        thread = threading.Thread(target=use)
        thread.start()
        assert waiting.wait(60)
        assert said == ["waiting for a run of the bisection that was killed, process 4711"]
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(60)
    assert said[1:] == ["open"]
