"""Git access of bisections: commits between good and bad, worktrees, and the checkout of the user, which stays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slow_history import commit, git, new_repository

from annot.bisect.repository import Repository, Worktree, command_for_worktrees, run_git
from annot.errors import AnnotError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a repository with the commits 0 to 4."""
    folder = new_repository(tmp_path / "project")
    for number in range(5):
        commit(folder, f"Change {number}", {"number.py": f"N = {number}\n", f"only{number}.txt": ""})
    return folder


def merged(folder: Path) -> dict[str, str]:
    """Return the hashes of a history in which a branch with b1 and b2 is merged between m1 and m3."""
    commits = {"base": commit(folder, "base")}
    git(folder, "checkout", "--quiet", "-b", "side")
    commits |= {name: commit(folder, name, {name: ""}) for name in ("b1", "b2")}
    git(folder, "checkout", "--quiet", "main")
    commits["m1"] = commit(folder, "m1", {"m1": ""})
    git(folder, "merge", "--quiet", "--no-ff", "--message", "m2", "side")
    return commits | {"m2": git(folder, "rev-parse", "HEAD"), "m3": commit(folder, "m3", {"m3": ""})}


def test_a_commit_has_its_facts(folder: Path) -> None:
    shown = Repository(folder).commit("HEAD")
    assert (shown.subject, shown.author) == ("Change 4", "Ada <ada@example.org>")
    assert shown.date == "2026-11-02T10:00:00+01:00"
    assert shown.parents == (Repository(folder).commit("HEAD~1").hash,)
    assert shown.hash.startswith(shown.short)


@pytest.mark.parametrize("revision", ["nowhere", "", "--all", "HEAD:number.py", "HEAD~9"])
def test_a_revision_that_is_no_commit_is_named(folder: Path, revision: str) -> None:
    with pytest.raises(AnnotError, match=r"project lacks the commit '.*'$"):
        Repository(folder).commit(revision)


def test_a_folder_outside_repositories_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnnotError, match=r"git rev-parse in .* failed: not a git repository"):
        Repository(tmp_path)


def test_good_must_be_an_ancestor(folder: Path) -> None:
    repository = Repository(folder)
    fork = repository.commit("HEAD~2")
    git(folder, "checkout", "--quiet", "--detach", fork.hash)
    other = repository.commit(commit(folder, "other"))
    bad = repository.commit("main")
    repository.check_order(fork, bad)
    with pytest.raises(AnnotError, match=f"is not an ancestor of bad .*use --good {fork.short}"):
        repository.check_order(other, bad)
    with pytest.raises(AnnotError, match="it is the other way round"):
        repository.check_order(bad, fork)
    with pytest.raises(AnnotError, match="same commit"):
        repository.check_order(bad, bad)
    git(folder, "checkout", "--quiet", "--orphan", "apart")
    with pytest.raises(AnnotError, match="their histories do not meet"):
        repository.check_order(repository.commit(commit(folder, "apart")), bad)


def test_the_commits_between_begin_with_the_middle(folder: Path) -> None:
    repository = Repository(folder)
    hashes = git(folder, "rev-list", "--reverse", "HEAD").split()
    between = repository.between([hashes[0]], hashes[4])
    assert between[0] == hashes[2]
    assert (sorted(between), between[-1]) == (sorted(hashes[1:]), hashes[4])
    assert repository.between([hashes[3]], hashes[4]) == [hashes[4]]


def test_merged_branches_are_part_of_the_history(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    commits, repository = merged(folder), Repository(folder)
    names = {name: label for label, name in commits.items()}

    def between(*good: str, bad: str, first_parent: bool = False) -> set[str]:
        hashes = repository.between([commits[name] for name in good], commits[bad], first_parent=first_parent)
        return {names[name] for name in hashes}

    assert between("base", bad="m3") == {"b1", "b2", "m1", "m2", "m3"}
    assert between("base", bad="m3", first_parent=True) == {"m1", "m2", "m3"}
    assert between("m1", bad="m2") == {"b1", "b2", "m2"}
    assert between("m1", "b2", bad="m2") == {"m2"}


def test_a_worktree_has_only_the_files_of_its_commit(folder: Path, tmp_path: Path) -> None:
    hashes = git(folder, "rev-list", "--reverse", "HEAD").split()
    with Worktree(Repository(folder), tmp_path / "tree") as worktree:
        assert worktree.checkout(hashes[1])
        (worktree.folder / "built.so").write_text("")
        (worktree.folder / "number.py").write_text("changed")
        assert not worktree.checkout(hashes[1])
        assert worktree.checkout(hashes[0])
        assert sorted(path.name for path in worktree.folder.iterdir()) == [".git", "number.py", "only0.txt"]
        assert (worktree.folder / "number.py").read_text() == "N = 0\n"
    assert not worktree.folder.exists()
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_the_checkout_index_and_stash_stay(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside a hook, to which git tells its index by variables, and with hooks that would write."""
    (folder / "number.py").write_text("stashed\n")
    git(folder, "stash")
    (folder / "number.py").write_text("staged\n")
    git(folder, "add", "number.py")
    (folder / "number.py").write_text("changed\n")
    (folder / "untracked").write_text("")
    hook = folder / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {folder}/written-by-a-hook\n")
    hook.chmod(0o755)

    def state() -> list[str]:
        words = ("status --porcelain", "diff", "diff --cached", "stash list", "reflog", "branch")
        return [git(folder, *command.split()) for command in words]

    before = state()
    index = (folder / ".git/index").read_bytes()
    monkeypatch.setenv("GIT_INDEX_FILE", str(folder / ".git/index"))
    monkeypatch.setenv("GIT_DIR", str(folder / ".git"))
    repository = Repository(folder)
    with Worktree(repository, tmp_path / "tree") as worktree:
        for revision in ("HEAD", "HEAD~1"):
            worktree.checkout(repository.commit(revision).hash)
    assert (folder / ".git/index").read_bytes() == index
    assert state() == before


def test_a_worktree_of_a_killed_process_is_removed(folder: Path, tmp_path: Path) -> None:
    repository, tree = Repository(folder), tmp_path / "tree"
    git(folder, "worktree", "add", "--detach", str(tree), "HEAD~1")
    (folder / ".git/worktrees/tree/index.lock").write_text("")
    git(folder, "worktree", "lock", str(tree))
    with Worktree(repository, tree) as worktree:
        assert not tree.exists()
        worktree.checkout(repository.commit("HEAD").hash)
        assert (tree / "number.py").read_text() == "N = 4\n"
    tree.mkdir()
    (tree / "left").write_text("")  # a folder that git does not know
    with Worktree(repository, tree):
        assert not tree.exists()


def test_an_executable_that_git_does_not_track_is_found_from_worktrees(folder: Path) -> None:
    (folder / "sub").mkdir()
    python = folder / "sub/python"
    python.symlink_to("/bin/sh")
    repository = Repository(folder / "sub")
    assert repository.prefix == Path("sub")
    assert command_for_worktrees(repository, folder / "sub", ["./python", "a"]) == (str(python), "a")
    assert command_for_worktrees(repository, folder / "sub", ["../sub/python"]) == (str(python),)
    for command in (("python", "a"), ("./missing",), ("../number.py", "-x"), ("/bin/sh", str(python))):
        assert command_for_worktrees(repository, folder / "sub", command) == command
    with pytest.raises(
        AnnotError, match=r"number\.py is the file of the checkout for all commits: write \.\./number\.py"
    ):
        command_for_worktrees(repository, folder / "sub", ["python", str(folder / "number.py")])


def test_failures_of_git_are_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnnotError, match=r"^git checkout in .*project failed: .*no-such-branch"):
        run_git(folder, "checkout", "no-such-branch")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AnnotError, match="git was not found"):
        run_git(folder, "status")


def test_submodules_come_and_go_with_commits(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are added as `--setup` does it, and do not keep a worktree from changing or ending."""
    variables = {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}
    for name, value in variables.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    commit(new_repository(tmp_path / "library"), "library", {"library.py": ""})
    subprocess.run(["git", "submodule", "--quiet", "add", str(tmp_path / "library")], cwd=folder, check=True)
    commit(folder, "with a submodule")
    repository = Repository(folder)
    with Worktree(repository, tmp_path / "tree") as worktree:
        for revision, expected in (("HEAD", True), ("HEAD~1", False), ("HEAD", True)):
            worktree.checkout(repository.commit(revision).hash)
            subprocess.run(["git", "submodule", "--quiet", "update", "--init"], cwd=worktree.folder, check=True)
            assert (worktree.folder / "library/library.py").exists() is expected
    assert not worktree.folder.exists()
    assert git(folder, "status", "--porcelain") == ""
