"""Results of `annot try`, kept for later reports on the same program.

The data folder of the user has a file for each program, ``annot/tried/DIGEST.json``: the digest of its command, its
working folder and its script. A change of the script makes it another program. Damaged files count as absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from annot.analyze.advice.facts import Facts
from annot.analyze.peaks import cpu_name, gpu_name
from annot.errors import writing
from annot.util.data_folder import data_folder
from annot.util.json_files import read_json, write_json
from annot.util.program import Program

Outcome: TypeAlias = Literal["faster", "undecided", "same speed", "slower", "other training", "unsteady", "failed"]
"""faster: worth applying; undecided: the interval is too wide; other training: losses or parameters differ; unsteady:
steps take unequal times."""

_FORMAT: Final = "annot tried 1"
_LARGEST: Final = 1 << 18
"""Maximum size of a file in bytes."""
_MOST: Final = 200
"""Maximum number of changes in a file. The oldest are left out."""
_WORDS: Final[Mapping[Outcome, str]] = {
    "faster": "faster",
    "undecided": "undecided",
    "same speed": "no gain",
    "slower": "no gain",
    "other training": "changes training",
    "unsteady": "unequal steps",
    "failed": "fails",
}


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried on a program.

    Example:
        >>> Tried(change="compile", outcome="faster", speedup=1.42, low=1.39, high=1.45).words
        '1.42 (1.39–1.45)'
        >>> Tried(change="fp16", outcome="other training", speedup=1.2, low=1.1, high=1.3).words
        'changes training'
    """

    change: str
    """Name of the change, or names joined by "+"."""
    outcome: Outcome
    reason: str = ""
    """Why it is not worth applying, a clause."""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    """Step time before / after, with its interval; None: unknown."""
    training: str = ""
    """In words how far losses and parameters are equal."""
    steps: int = 0
    """Measured steps of a run."""
    runs: int = 0
    """Number of timed runs."""
    date: str = ""
    """Day (ISO 8601)."""
    device: str = ""
    """As `device_of` returns it."""
    host: str = ""
    """Name of the machine."""

    @property
    def words(self) -> str:
        """The outcome in a few words; a gain is a number with its interval."""
        if self.outcome != "faster" or self.speedup is None:
            return _WORDS[self.outcome]
        interval = "" if self.low is None or self.high is None else f" ({self.low:.2f}–{self.high:.2f})"
        return f"{self.speedup:.2f}{interval}"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file."""

    format: Literal["annot tried 1"] = _FORMAT
    command: str = ""
    folder: str = ""
    tried: list[Tried]


def keep(program: Program, tried: Iterable[Tried]) -> Path | None:
    """Keep what was tried on a program. A change that was tried before on the same device is replaced.

    Returns:
        The file; None: the user has no data folder.

    Raises:
        AnnotError: the file cannot be written.
    """
    path = _file_of(program)
    if path is None:
        return None
    rows = {(row.change, row.device): row for row in _read(path)}
    for row in tried:
        rows.pop((row.change, row.device), None)  # the latest ones are at the end
        rows[row.change, row.device] = row
    facts = program.facts()
    content = _File(command=facts["command"], folder=facts["folder"], tried=[*rows.values()][-_MOST:])
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return path


def tried_on(facts: Facts) -> dict[str, Tried]:
    """Return what was tried on the program and the device of a profile, by change."""
    program, device = program_of(facts.attribution.meta), device_of(facts)
    path = None if program is None else _file_of(program)
    return {row.change: row for row in (_read(path) if path else ()) if row.device == device}


def program_of(meta: Mapping[str, Any]) -> Program | None:
    """Return the program of a profile; None: the profile does not name it."""
    facts = meta.get("program")
    return Program.parse(facts) if isinstance(facts, Mapping) else None


def device_of(facts: Facts) -> str:
    """Return the device of a profile: the name of its GPU, else the model of its CPU; empty: unknown."""
    meta = facts.attribution.meta
    return gpu_name(meta) if facts.on_device else cpu_name(meta)


def _file_of(program: Program) -> Path | None:
    folder = data_folder("tried")
    identity = json.dumps([program.command, program.folder, program.script])
    return folder and folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> Sequence[Tried]:
    """Return the contents of a file; none if it is absent or damaged."""
    content = read_json(path, _File, _LARGEST)
    return [] if content is None else content.tried
