"""Show a chapter of the guide, or list the chapters.

The guide is installed with annot. On a terminal, a chapter is formatted and shown in a pager if it is longer than the
screen. In a pipe or file, the output is the Markdown source.

examples:
  annot guide
  annot guide attribution
  annot guide schemas > schemas.md
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

CHAPTERS: Final = {
    "installation": "requirements, extras, the demonstration",
    "recording": "scripts, functions, notebooks, Nsight Systems; missing ranges; costs",
    "reports": "tables, files, roofline, comparisons, sweeps, many ranks",
    "compare": "what a gate on the times of layers promises; baselines, pytest, GitHub Actions",
    "try": "which change pays: what annot try measures, and its limits",
    "pytorch": "ranges in PyTorch: coverage, setup, limitations",
    "tensorflow": "ranges in TensorFlow and Keras: modes, callbacks, sessions, operations",
    "attribution": "how time is attributed to layers, and its limits",
    "migrating": "what to write instead of the ranges of other tools",
    "tags": "the grammar of range labels, for tools that write or read them",
    "schemas": "columns of the tables in JSON, CSV and Parquet, and their stability",
    "architecture": "the packages of annot, the life of a range and of a kernel",
    "safeguards": "what can happen in a program that annot observes, where annot handles it, and its tests",
    "extending": "how to add a reader, a view, an advice rule or the formula of a layer",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot guide`."""
    parser.add_argument("name", nargs="?", choices=tuple(CHAPTERS), metavar="NAME", help=", ".join(CHAPTERS))


def run(args: argparse.Namespace) -> int:
    """Print a chapter, or the list of chapters."""
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
