"""A generated git history of a small program with ranges, in which one commit makes a layer slower."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

WAITS_IN_RUN = 4
PROGRAM = """
import os, signal, sys

from annot import batches, trace

import layers

journal = os.path.join(FOLDER, "journal")
with open(journal, "a") as file:
    print(VERSION, file=file)
wait = os.path.join(FOLDER, "wait")
if os.path.exists(wait) and sum(1 for _ in open(journal)) == WAITS_IN_RUN:
    with open(wait, "w") as waiting:
        print(os.getpid(), file=waiting, flush=True)
        signal.pause()
for batch in batches(range(30)):
    for name, size in layers.SIZES.items():
        with trace(name):
            layers.work(size)
"""
LAYERS = """
def work(size):
    total = 0
    for number in range(size):
        total += number * number
    return total

SIZES = {"embed": 3000, "attention": 5000, "norm": 3000, "mlp": 5000, "head": 4000}
"""
SLOWER = ('"attention": 5000', '"attention": 6500')
"""A layer that takes 1.3 times as long."""
BROKEN = {
    "import": ("layers.py", "import no_such_module_of_layers\n"),
    "status": ("train.py", "import sys; sys.stderr.write('no device\\n'); sys.exit(9)\n"),
    "silent": ("train.py", "print('no ranges')\n"),
}
"""How a commit does not run: file and content."""


def git(folder: Path, *words: str) -> str:
    """Return the output of a git command of a user with a name and without settings."""
    names = {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER") for field, value in
             (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", "2026-11-02T10:00:00+01:00"))}  # fmt: skip
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**plain, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, subject: str, files: Mapping[str, str] = {}) -> str:
    """Commit files, content by name, and return the hash."""
    for name, content in files.items():
        (folder / name).write_text(content)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def new_repository(folder: Path) -> Path:
    """Create an empty repository."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def slow_history(
    folder: Path, commits: int, slow: int, change: tuple[str, str] = SLOWER, broken: Mapping[int, str] = {}
) -> list[str]:
    """Create a repository in which one commit makes a layer slower, and return the hashes.

    Each run writes the number of its commit to ``journal`` beside the repository. Run number `WAITS_IN_RUN` writes its
    process id to a named pipe ``wait`` beside the repository if there is one, and waits for a signal. The other commits
    change documents and unused code.

    Args:
        folder: the new repository.
        commits: number of commits, the first good, the last bad.
        slow: number of the slow commit, from 0.
        change: text of the program, and what the slow commit puts in its place.
        broken: commits that do not run, by number, with a key of `BROKEN`.
    """
    new_repository(folder)
    hashes = []
    program = PROGRAM.replace("FOLDER", repr(str(folder.parent))).replace("WAITS_IN_RUN", str(WAITS_IN_RUN))
    for number in range(commits):
        files = {"train.py": program.replace("VERSION", str(number)), "layers.py": LAYERS}
        if number >= slow:
            files = {name: text.replace(*change) for name, text in files.items()}
        if number % 3 == 1:
            files["layers.py"] += f"\n\ndef unused_{number}(size):\n    return size + {number}\n"
        files["NOTES.md"] = f"Notes, part {number}\n"
        files |= dict([BROKEN[broken[number]]] if number in broken else [])
        hashes.append(commit(folder, f"Change {number}", files))
    return hashes


def journal(folder: Path) -> list[int]:
    """Return the numbers of the commits that ran, in order."""
    path = folder.parent / "journal"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
