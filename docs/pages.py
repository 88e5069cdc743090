"""Collect the pages of the documentation site in a folder: guides, commands and the gallery.

    python docs/pages.py build/docs

`make docs` runs it. The gallery shows real profiles of `tests/data`, so that no picture is in the repository.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from annot.cli.guide import CHAPTERS
from annot.cli.main import COMMANDS, make_parser

ROOT: Final = Path(__file__).parents[1]
PROJECT_FILES: Final = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
COLUMNS: Final = 110
"""Width of the pictures of terminals, and of the help of commands, in characters."""

_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
_GUIDE: Final = re.compile(rf"`annot guide ({'|'.join(CHAPTERS)})`(?!\])")


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A profile in the gallery.

    Args:
        name: name of its files.
        source: packed profile in `tests/data`.
        text: what was recorded.
        pictures: arguments of `annot` for each picture of a terminal, without the profile.
    """

    name: str
    source: str
    text: str
    pictures: tuple[str, ...]


GALLERY: Final = (
    Exhibit(
        "transformer.sqlite",
        "transformer.sqlite.gz",
        "The training of a Transformer on two CPU cores, recorded with annot's own recorder (`make demo`).",
        ("", "--depth 2 --sort time", "--columns work --top 8"),
    ),
    Exhibit(
        "h100.json",
        "kineto/annot_h100_transformer.json.xz",
        "The training of a small Transformer on an NVIDIA H100, recorded by `annot run --collector torch`; an excerpt "
        "of two steps and two of twelve layers.",
        ("", "--columns roofline --top 12", "--by advice --top 2"),
    ),
    Exhibit(
        "mi300x.json",
        "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.xz",
        "The training of a ResNet-18 on an AMD MI300X, a trace of torch.profiler from TraceLens.",
        ("", "--by kernel --top 10"),
    ),
    Exhibit(
        "rtx3070ti.sqlite",
        "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.xz",
        "A language model on an NVIDIA RTX 3070 Ti with ranges by hand, recorded by Nsight Systems.",
        ("", "--by kind"),
    ),
)


def main(folder: Path) -> None:
    """Write the pages into a folder, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "guide").mkdir()
    pages = {"README.md": "index.md"} | {f"annot/guide/{name}.md": f"guide/{name}.md" for name in CHAPTERS}
    for source, page in (pages | dict(zip(PROJECT_FILES, PROJECT_FILES, strict=True))).items():
        (folder / page).write_text(linked((ROOT / source).read_text(encoding="utf-8"), page), encoding="utf-8")
    (folder / "commands.md").write_text(linked(commands(), "commands.md"), encoding="utf-8")
    (folder / "gallery").mkdir()
    (folder / "gallery/index.md").write_text(gallery(folder / "gallery"), encoding="utf-8")


def linked(text: str, page: str) -> str:
    """Return a page whose mentions of `annot guide NAME` are links, and whose links fit the folders of the site.

    Args:
        text: Markdown with links that fit the folders of the repository.
        page: path of the page in the site.

    Example:
        >>> linked("See `annot guide tags`, [schemas](annot/guide/schemas.md).", "index.md")
        'See [`annot guide tags`](guide/tags.md), [schemas](guide/schemas.md).'
    """
    folder = "" if page.startswith("guide/") else "guide/"
    parts = _FENCE.split(text)  # every second part is a block of code
    for index in range(0, len(parts), 2):
        prose = parts[index].replace("](annot/guide/", "](guide/")
        parts[index] = _GUIDE.sub(rf"[`annot guide \1`]({folder}\1.md)", prose)
    return "".join(parts)


def commands() -> str:
    """Return the page of the commands: the help of each one."""
    os.environ["COLUMNS"] = str(COLUMNS)  # argparse reads it
    helps = {"annot": make_parser().format_help()}
    for name in COMMANDS:
        parsers = make_parser(name)._subparsers._group_actions[0].choices  # type: ignore[union-attr]
        helps[f"annot {name}"] = parsers[name].format_help()  # type: ignore[index]
    sections = [f"## {title}\n\n```text\n{text.rstrip()}\n```\n" for title, text in helps.items()]
    return "\n".join(("# Commands\n\nEach command prints this help with `--help`.\n", *sections))


def gallery(folder: Path) -> str:
    """Write the profiles, pages and pictures of the gallery into a folder, and return the page that shows them."""
    text = [
        "# Gallery",
        "Made from real profiles (`tests/data/README.md` names their sources) when this site was built. A picture is "
        "the output of the command in its title; a page is what `-o page.html` writes.",
    ]
    for exhibit in GALLERY:
        packed = ROOT / "tests/data" / exhibit.source
        content = packed.read_bytes()
        profile = folder / exhibit.name
        profile.write_bytes((gzip if packed.suffix == ".gz" else lzma).decompress(content))
        page = f"{profile.stem}.html"
        _annot(folder, exhibit.name, "-o", page)
        text += [f"## {exhibit.name}", exhibit.text, f"[The page of {exhibit.name}]({page})"]
        for number, arguments in enumerate(exhibit.pictures, 1):
            command = f"annot {exhibit.name} {arguments}".strip()
            picture = f"{profile.stem}-{number}.svg"
            printed = terminal(_annot(folder, exhibit.name, *shlex.split(arguments)), command)
            (folder / picture).write_text(printed, encoding="utf-8")
            text.append(f"![Output of {command}]({picture})")
        profile.unlink()
    return "\n\n".join(text) + "\n"


def terminal(output: str, title: str) -> str:
    """Return a picture of a terminal as SVG, with the colors of its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(output.rstrip()), soft_wrap=True)
    return console.export_svg(title=f"$ {title}")


def _annot(folder: Path, *words: str) -> str:
    """Run annot in a folder as in a terminal with colors, and return its output."""
    environ = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "annot", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
