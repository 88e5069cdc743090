"""Sections and code blocks of the documents, and the folder in which tests run them."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ranked import write_ranks
from shared_data import shared
from sqlite_profile import training

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "annot/guide").glob("*.md"))]
SECONDS = 900
"""Time limit of a document."""

_FENCE = re.compile(r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_NAMED = re.compile(r"# (\S+\.(?:py|toml))\n")
"""First line of a block that the reader saves as a file."""
_PROFILES = {
    "h100.json": "kineto/annot_h100_transformer.json",
    "mi300x.json": "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json",
}
_KERAS = re.compile(r"\b(?:keras|tensorflow|tf|xplane)\b")


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced code block. The marker is the HTML comment in the line before it."""

    language: str
    text: str
    marker: str

    @property
    def left_out(self) -> bool:
        """Whether the marker excludes the block from this run."""
        return self.marker.startswith("not run") or self.of_nsys

    @property
    def of_nsys(self) -> bool:
        """Whether the block runs Nsight Systems or reads its output, according to the marker."""
        return self.marker == "needs Nsight Systems"


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a document: the text below one heading."""

    document: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Name of the section in test ids."""
        return f"{self.document}: {self.title}"

    @property
    def of_keras(self) -> bool:
        """Whether its Python code needs Keras or TensorFlow."""
        return any(block.language == "python" and _KERAS.search(block.text) for block in self.blocks)


def sections(*, of_keras: bool) -> list[Section]:
    """Return the sections with code to run."""
    found = [section for path in DOCUMENTS for section in _sections(path)]
    wanted = [section for section in found if any(block.language in ("python", "console") for block in section.blocks)]
    return [section for section in wanted if section.of_keras == of_keras]


def blocks() -> list[Block]:
    """Return all blocks of all documents."""
    return [block for path in DOCUMENTS for section in _sections(path) for block in section.blocks]


def _sections(path: Path) -> list[Section]:
    parts = re.split(r"^##+ (.*)$", path.read_text(encoding="utf-8"), flags=re.M)
    titled = zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True)
    return [
        Section(path.name, title, tuple(Block(match["language"], match["text"], match["marker"] or "")
                                        for match in _FENCE.finditer(text)))
        for title, text in titled
    ]  # fmt: skip


def prepare(folder: Path) -> None:
    """Create the files that the documents mention, and the command `annot`, in a folder."""
    training(device=False).write(folder / "run.sqlite")
    training(device=True).write(folder / "gpu.sqlite")
    for name in ("before", "after"):
        shutil.copy(folder / "gpu.sqlite", folder / f"{name}.sqlite")
    write_ranks(folder, 3)
    unpacked_demonstration(folder)
    (folder / "train.py").write_text("from annot import trace\nwith trace('work'):\n    pass\n")
    (folder / "samples").symlink_to(ROOT / "samples")
    for name, source in _PROFILES.items():
        (folder / name).symlink_to(shared(source))
    (folder / "bin").mkdir()
    for name, command in (("annot", f"{sys.executable} -m annot"), ("python", sys.executable)):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    for block in blocks():
        if named := _NAMED.match(block.text):
            (folder / named[1]).write_text(block.text)


def unpacked_demonstration(folder: Path) -> Path:
    """Write the recording of `make demo` whose answer README shows into a folder, and return its path."""
    path = folder / "transformer.sqlite"
    path.write_bytes(gzip.decompress((ROOT / "tests/data/transformer.sqlite.gz").read_bytes()))
    return path


def run_all(folder: Path, selected: list[Section], framework: str) -> dict[str, Any]:
    """Run each section in a process of its own.

    Args:
        folder: folder for the files of all sections.
        selected: sections to run.
        framework: framework to import first. Empty: none.

    Returns:
        For each section name: error (a traceback, or null), ranges (their number, null if the section itself records),
        and outputs (the output of each console block).
    """
    jobs, prepared = [], folder / "prepared"
    prepared.mkdir()
    prepare(prepared)
    for number, section in enumerate(selected):
        subfolder = shutil.copytree(prepared, folder / str(number), symlinks=True)
        run = [asdict(block) for block in section.blocks if not block.left_out]
        jobs.append({"name": section.name, "folder": str(subfolder), "blocks": run})
    script = Path(__file__).with_name("document_runner.py")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests/support"))), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, str(script), framework], input=json.dumps(jobs), env=environ, text=True, capture_output=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    results = (folder / "0" / "results.jsonl").read_text().splitlines() if jobs else []
    found = {result["name"]: result for result in map(json.loads, results)}
    for job in jobs:
        found.setdefault(job["name"], {"error": f"the process ended: {done.stdout}\n{done.stderr}"})
    return found
