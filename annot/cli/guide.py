"""Show a chapter of the guide, which is installed with annot; without NAME, which chapters there are.

On a terminal a chapter is laid out for it, through a pager if it is longer than the screen; into a pipe or a file goes
its Markdown.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

__all__ = ["CHAPTERS", "add_arguments", "chapter", "run"]

CHAPTERS: Final = {
    "pytorch": "ranges in PyTorch: what has one, set-ups, what it cannot see",
    "tensorflow": "ranges in TensorFlow and Keras: modes, callbacks, sessions, operations",
    "attribution": "how time gets to layers, and where it cannot",
    "tags": "the grammar of the texts of annot's ranges, for other tools that make or read them",
    "schemas": "columns of the tables, in JSON, CSV and Parquet, and what of them stays",
    "extending": "how to add a reader, a rule of advice, the formula of a layer",
}
_EXAMPLES: Final = """\
examples:
  annot guide
  annot guide attribution
  annot guide schemas > schemas.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `annot guide` accepts."""
    parser.epilog = _EXAMPLES
    parser.add_argument("name", nargs="?", choices=tuple(CHAPTERS), metavar="NAME", help=", ".join(CHAPTERS))


def run(args: argparse.Namespace) -> int:
    """Print the chapter, or the list of them."""
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
    """Return the file of a chapter.

    Args:
        name: one of `CHAPTERS`.

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
