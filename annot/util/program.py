"""The program that ran: its command, its working folder, and the contents of its script."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

FILE: Final = "program.json"
"""Name of a file with the facts of the program, in the folder of a trace that torch.profiler will write."""
_LARGEST: Final = 1 << 24
"""Maximum size of a script in bytes. The contents of a larger file, such as a program, do not count."""
_MOST_MODULES: Final = 500
"""Maximum number of Python files beside a script that count."""
_LARGEST_MODULE: Final = 1 << 20
"""Maximum size of such a file in bytes. The contents of a larger one do not count."""
_LONGEST: Final = 1 << 16
"""Maximum length of a command in a profile, in characters."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a command ran.

    Args:
        command: command and arguments.
        folder: absolute path of its working folder.
        script: SHA-256 of its script; empty: no argument is a readable file or module of the folder.

    Example:
        >>> Program.of(["python", "-c", "pass"], "/tmp").script
        ''
    """

    command: tuple[str, ...]
    folder: str
    script: str

    @classmethod
    def of(cls, command: Sequence[str], folder: str | None = None) -> Self:
        """Return the program of a command with the present contents of its script.

        Args:
            command: command and arguments.
            folder: working folder; None: that of this process.
        """
        folder = os.path.abspath(folder or os.curdir)
        digests = (_digest(os.path.join(folder, path)) for path in _scripts(command))
        return cls(tuple(command), folder, next(filter(None, digests), ""))

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Self | None:
        """Return the program of the texts that `facts` of another program returned; None: other texts, or none."""
        texts = [facts.get(name) for name in ("command", "folder", "script")]
        command, folder, script = (text if isinstance(text, str) and len(text) <= _LONGEST else "" for text in texts)
        try:
            words = tuple(shlex.split(command))
        except ValueError:  # a quotation without an end
            return None
        return cls(words, folder, script) if words and all(map(str.isprintable, words)) else None

    def facts(self) -> dict[str, str]:
        """Return the program as texts by name: command (in the syntax of a shell), folder and script."""
        return {"command": shlex.join(self.command), "folder": self.folder, "script": self.script}


def digest_of_modules(command: Sequence[str], folder: str | None = None) -> str:
    """Return the SHA-256 of the Python files beside a script, which it may import. Those in folders below do not count.

    Args:
        command: command and arguments. Without a script, the files of the working folder count.
        folder: working folder; None: that of this process.
    """
    folder = os.path.abspath(folder or os.curdir)
    paths = (os.path.join(folder, path) for path in _scripts(command) if path.endswith(".py"))
    beside = os.path.dirname(next(filter(os.path.isfile, paths), "")) or folder
    try:
        names = sorted(name for name in os.listdir(beside) if name.endswith(".py"))[:_MOST_MODULES]
    except OSError:
        return ""
    digests = [(name, _digest(os.path.join(beside, name), _LARGEST_MODULE)) for name in names]
    return hashlib.sha256(repr(digests).encode(errors="surrogateescape")).hexdigest()


def _scripts(command: Sequence[str]) -> Iterator[str]:
    """Yield the paths that can be the script of a command, the most likely one first."""
    yield from (word for word in command if word.endswith(".py"))
    for option, module in itertools.pairwise(command):
        if option == "-m" and re.fullmatch(r"\w+(?:\.\w+)*", module):
            path = module.replace(".", os.sep)
            yield from (f"{path}.py", os.path.join(path, "__main__.py"))
    yield from (word for word in command if not word.startswith("-"))


def _digest(path: str, largest: int = _LARGEST) -> str:
    """Return the SHA-256 of a small file; empty: the file is absent, unreadable or too large."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > largest:
            return ""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(largest)).hexdigest()
    except (OSError, ValueError):  # the latter: a null character in the path
        return ""
