"""Git repository of a bisection: commits by name, the commits between good and bad, and worktrees beside the user's.

The commands of git write only to the worktrees made here and to their folders in ``.git/worktrees``. They run no hooks
and no monitors, and ignore the variables with which git tells a hook its repository and index.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from annot.errors import AnnotError
from annot.report.units import printable

_FIELDS: Final = "%H%x00%P%x00%an <%ae>%x00%aI%x00%s"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit.

    Example:
        >>> Commit("3c4d5e6f" * 5, (), "Ada <ada@example.org>", "2026-11-02T10:00:00+01:00", "Add dropout").short
        '3c4d5e6f3c4d'
    """

    hash: str
    parents: tuple[str, ...]
    author: str
    date: str
    """Author date, ISO 8601."""
    subject: str

    @property
    def short(self) -> str:
        """First 12 digits of the hash."""
        return self.hash[:12]

    @property
    def title(self) -> str:
        """Short hash and subject."""
        return f"{self.short} ({printable(self.subject)})"


def run_git(folder: Path, *words: str) -> str:
    """Return the output of a git command.

    Raises:
        AnnotError: git is not installed, or the command failed.
    """
    quiet = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
    command = ["git", *quiet, "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=plain_environment(), check=False
        )
    except FileNotFoundError:
        raise AnnotError("git was not found: install git, or add it to PATH") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise AnnotError(f"git {words[0]} in {folder} failed: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout.decode(errors="surrogateescape")


def plain_environment() -> dict[str, str]:
    """Return the environment of this process without the variables that bind git to one repository and index."""
    return {name: value for name, value in os.environ.items() if name not in _local_variables()}


@functools.cache
def _local_variables() -> frozenset[str]:
    words = ["git", "rev-parse", "--local-env-vars"]
    return frozenset(subprocess.run(words, capture_output=True, text=True, check=False).stdout.split())


class Repository:
    """The git repository of a folder.

    Args:
        folder: folder in a checkout.

    Raises:
        AnnotError: the folder is in no checkout.
    """

    top: Path
    """Top folder of the checkout."""
    git_folder: Path
    """Folder of git that all worktrees share."""
    prefix: Path
    """The folder relative to `top`."""

    def __init__(self, folder: Path) -> None:
        words = ("--path-format=absolute", "--show-toplevel", "--git-common-dir")
        top, git_folder = run_git(folder, "rev-parse", *words).splitlines()
        self.top, self.git_folder = Path(top), Path(git_folder)
        self.prefix = Path(os.path.relpath(folder.resolve(), self.top.resolve()))

    def commit(self, revision: str) -> Commit:
        """Return a commit by the name of a revision, such as a hash, a tag or ``HEAD~3``.

        Raises:
            AnnotError: the repository has no such commit.
        """
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            name = run_git(self.top, *words).strip()
        except AnnotError:
            raise AnnotError(f"{self.top} lacks the commit {revision!r}") from None
        text = run_git(self.top, "log", "-1", "--no-show-signature", f"--format={_FIELDS}", name)
        name, parents, author, date, subject = text.rstrip("\n").split("\0")
        return Commit(name, tuple(parents.split()), author, date, subject)

    def check_order(self, good: Commit, bad: Commit) -> None:
        """Raise AnnotError if `good` is not an ancestor of `bad`."""
        if good.hash == bad.hash:
            raise AnnotError(f"good and bad are the same commit, {good.short}")
        base: list[str] = []
        with contextlib.suppress(AnnotError):  # git fails where their histories do not meet
            base = run_git(self.top, "merge-base", "--all", good.hash, bad.hash).split()
        if base == [good.hash]:
            return
        advice = f"use --good {base[0][:12]}, where their histories part" if base else "their histories do not meet"
        if base == [bad.hash]:
            advice = "it is the other way round"
        raise AnnotError(f"good {good.short} is not an ancestor of bad {bad.short}: {advice}")

    def between(self, good: Collection[str], bad: str, *, first_parent: bool = False) -> list[str]:
        """Return the commits of which one is the first bad one: ancestors of `bad`, itself last, but of no good commit.

        The first one halves the commits best. Args are hashes; with `first_parent`, merged branches count as the commit
        that merges them.
        """
        options = ["--bisect-all", *(["--first-parent"] if first_parent else [])]
        lines = run_git(self.top, "rev-list", *options, bad, *(f"^{name}" for name in good)).splitlines()
        hashes = [line.split(" ", 1)[0] for line in lines]
        return [*(name for name in hashes if name != bad), *(name for name in hashes if name == bad)]

    def tracks(self, path: Path) -> bool:
        """Return whether git tracks a file of the checkout."""
        return self.top in path.parents and bool(run_git(self.top, "ls-files", "--", str(path)))


class Worktree:
    """Worktree of a repository in a new folder, which is removed at the end.

    Args:
        repository: the repository.
        folder: the folder. A worktree that a killed process left there is removed first.
    """

    def __init__(self, repository: Repository, folder: Path) -> None:
        self._repository, self.folder = repository, folder
        self._commit = ""

    def __enter__(self) -> Self:
        """Remove what a killed process left."""
        self._remove()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the worktree."""
        self._remove()

    def checkout(self, commit: str) -> bool:
        """Put a commit into the worktree, without files of another one. Return whether it was another commit."""
        if commit == self._commit:
            return False
        if self._commit:
            self._commit = ""
            run_git(self.folder, "checkout", "--quiet", "--force", "--detach", commit)
            run_git(self.folder, "clean", "--quiet", "-ffdx")  # also bytecode and builds of the commit before
        else:
            self._remove()
            run_git(self._repository.top, "worktree", "add", "--quiet", "--force", "--detach", str(self.folder), commit)
        self._commit = commit
        return True

    def _remove(self) -> None:
        self._commit = ""
        if _is_registered(self._repository, self.folder):
            run_git(self._repository.top, "worktree", "remove", "--force", "--force", str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_registered(repository: Repository, folder: Path) -> bool:
    lines = run_git(repository.top, "worktree", "list", "--porcelain").splitlines()
    return f"worktree {folder.resolve()}" in lines


def command_for_worktrees(repository: Repository, folder: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs in worktrees.

    An executable that git does not track, such as ``.venv/bin/python``, gets its full path. Links stay links, because
    Python finds its environment by them.

    Args:
        repository: the repository.
        folder: folder in which the user typed the command.
        command: command and arguments.

    Raises:
        AnnotError: an argument is the full path of a file that git tracks: all commits would run that file.
    """
    for word in command:
        if os.path.isabs(word) and repository.tracks(Path(word)):
            name = os.path.relpath(word, folder)
            raise AnnotError(f"{word} is the file of the checkout for all commits: write {name}")
    path = Path(os.path.abspath(folder / command[0]))
    if "/" in command[0] and path.exists() and not repository.tracks(path):
        return str(path), *command[1:]
    return tuple(command)
