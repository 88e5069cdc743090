"""Show a chapter of the guide, or list the chapters.

The guide is installed with annot. On a terminal, a chapter is formatted and shown in a pager if it is longer than the
screen. In a pipe or file, the output is the Markdown source.

examples:
  annot guide
  annot guide attribution
  annot guide schemas > schemas.md
  annot guide agents --install .claude/skills
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from annot.cli.output import UsageError
from annot.errors import AnnotError

CHAPTERS: Final = {
    "installation": "requirements, extras, the demonstration",
    "quickstart-cpu": "first five minutes without a GPU: a script, its layers, the answer",
    "quickstart-nvidia": "first five minutes on an NVIDIA GPU: Nsight Systems or torch.profiler",
    "quickstart-amd": "first five minutes on an AMD GPU: a trace of torch.profiler",
    "quickstart-keras": "first five minutes with Keras on TensorFlow",
    "recording": "scripts, functions, notebooks, Nsight Systems; missing ranges; costs",
    "reports": "tables, files, roofline, comparisons, sweeps, many ranks",
    "compare": "what a gate on the times of layers promises; baselines, pytest, GitHub Actions",
    "try": "which change pays: what annot try measures, and its limits",
    "pytorch": "ranges in PyTorch: coverage, setup, limitations",
    "tensorflow": "ranges in TensorFlow and Keras: modes, callbacks, sessions, operations",
    "agents": "language models that read profiles: annot mcp, the skill, units, keys, limits",
    "attribution": "how time is attributed to layers, and its limits",
    "migrating": "what to write instead of the ranges of other tools",
    "tags": "the grammar of range labels, for tools that write or read them",
    "schemas": "columns of the tables in JSON, CSV and Parquet, and their stability",
    "architecture": "the packages of annot, the life of a range and of a kernel",
    "safeguards": "what can happen in a program that annot observes, where annot handles it, and its tests",
    "extending": "how to add a reader, a view, an advice rule or the formula of a layer",
}
SKILL: Final = "profile-layers"
"""Name of the skill, and of its folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot guide`."""
    parser.add_argument("name", nargs="?", choices=tuple(CHAPTERS), metavar="NAME", help=", ".join(CHAPTERS))
    skill = f"with agents: copy the skill {SKILL} into FOLDER, where an agent looks for skills"
    parser.add_argument("--install", type=Path, metavar="FOLDER", help=skill)
    parser.add_argument("--force", action="store_true", help="replace an existing skill")


def run(args: argparse.Namespace) -> int:
    """Print a chapter, or the list of chapters, or install the skill."""
    if args.install is not None:
        if args.name != "agents":
            raise UsageError("--install copies the skill for agents: annot guide agents --install FOLDER")
        print(f"wrote {install_skill(args.install, force=args.force)}")
        return 0
    if args.name is None:
        width = max(map(len, CHAPTERS))
        for name, summary in CHAPTERS.items():
            print(f"annot guide {name:<{width}}  {summary}")
        return 0
    text = chapter(args.name).read_text(encoding="utf-8")
    if sys.stdout.isatty():
        _show(text)
    else:
        print(text, end="")
    return 0


def chapter(name: str) -> Traversable:
    """Return the file of a chapter, one of `CHAPTERS`.

    Example:
        >>> chapter("tags").read_text().partition("\\n")[0]
        '# The grammar of range texts'
    """
    return files("annot") / "guide" / f"{name}.md"


def install_skill(folder: Path, *, force: bool) -> Path:
    """Copy the skill for agents into a folder, and return its path.

    Args:
        folder: folder of skills; created if missing.
        force: replace an existing skill.

    Raises:
        AnnotError: the skill exists and `force` is false, or it cannot be written.
    """
    path = folder / SKILL
    if path.exists() and not force:
        raise AnnotError(f"{path} exists: use --force to replace it")
    try:
        with as_file(files("annot") / "skills" / SKILL) as skill:
            shutil.copytree(skill, path, dirs_exist_ok=True)
    except OSError as error:
        raise AnnotError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _show(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    page = Markdown(text, code_theme="ansi_dark")
    if len(console.render_lines(page)) < console.height:
        console.print(page)
        return
    with console.pager(styles=True):
        console.print(page)
