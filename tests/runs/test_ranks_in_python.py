"""`annot.open` of many ranks, from scripts and notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ranked import write_ranks

from annot.cli.main import main
from annot.errors import AnnotError
from annot.runs.gather import Ranks
from annot.runs.run import Run

_SCRIPT = """\
print("this script trains")
from annot.runs.gather import Ranks
print(Ranks(["run_rank0.sqlite", "run_rank1.sqlite"], workers=2).view().rows.height)
"""


@pytest.mark.parametrize(
    "how",
    ["train.py", *(pytest.param(how, marks=pytest.mark.slow) for how in ("-m train", f"-c {_SCRIPT}", "-"))],
)
def test_a_script_runs_once(how: str, tmp_path: Path) -> None:
    """Processes that read ranks do not import the main module, which has no guard: it would train again."""
    write_ranks(tmp_path, 2)
    (tmp_path / "train.py").write_text(_SCRIPT)
    command = [sys.executable, *how.split(" ", 1)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, input=_SCRIPT)
    assert result.stderr == ""
    assert result.stdout.splitlines()[0] == "this script trains"
    assert int(result.stdout.splitlines()[1]) > 0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(path) for path in write_ranks(tmp_path_factory.mktemp("ranks"), 3)]


@pytest.mark.parametrize("name", ["layers", "kernels", "steps", "summary", "advice"])
def test_frames_have_the_rows_of_every_rank(name: str, paths: list[str]) -> None:
    """The rows are those of the run of each rank; the first column is its number."""
    ranks = Ranks(paths, workers=1)
    frame = getattr(ranks, name)
    assert frame.columns[0] == "rank"
    assert frame["rank"].unique().to_list() == [0, 1, 2]
    for number, path in enumerate(paths):
        own = getattr(Run(path), name)
        assert frame.filter(pl.col("rank") == number).drop("rank").equals(own)
        assert getattr(ranks.rank(number), name).equals(own)
    assert ranks.rank(1) is ranks.rank(1)


def test_the_comparison_prints_as_in_the_terminal(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In Python and on the command line it is one table; a notebook has its labels, numbers and totals."""
    ranks = Ranks(paths, workers=1)
    report = ranks.view()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        assert main([*paths, "--workers", "1", "--all"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    table = [line.rstrip() for line in repr(report).splitlines()][1:]
    assert printed[-len(table) :] == table
    assert len(repr(ranks).splitlines()) <= 15
    assert repr(ranks).splitlines()[0] == printed[0]
    assert ranks.verdict == report.meta["verdict"] == printed[0]
    page = report._repr_html_()
    assert ranks._repr_html_() == page
    cells = re.sub(r"\s*<[^>]+>\s*", " ", page).split()
    assert set(" ".join(table).replace("…", "").split()) - set(map(unescape, cells)) <= {">"}


@pytest.mark.parametrize(
    ("options", "python", "command"),
    [
        ({"by": "kind"}, "by kind", "--by kind"),
        ({"columns": "roofline"}, "by layer columns roofline", "--by layer --columns roofline"),
        ({"each": True}, "each", "--each"),
        ({"depth": 1}, "depth", "--depth"),
        ({"expand": "features"}, "expand", "--expand"),
    ],
)
def test_what_needs_a_single_rank(
    options: dict[str, Any], python: str, command: str, paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has the words of the caller, and `rank` then gives the table."""
    with pytest.raises(ValueError, match=f"^{python} needs a single rank: use rank=N$"):
        Ranks(paths, workers=1).view(**options)
    assert Ranks(paths, workers=1).view(**options, rank=1).rows.height
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    assert main([*paths, *words, "--workers", "1"]) == 1
    assert capsys.readouterr().err == f"annot: error: {command} needs a single rank: use --rank N\n"


def test_arguments_of_ranks_are_checked(paths: list[str]) -> None:
    """They are those of `Run.view`: a misspelt one is an error."""
    ranks = Ranks(paths, workers=1)
    with pytest.raises(ValueError, match="top must be at least 1, got -1"):
        ranks.view(top=-1)
    with pytest.raises(TypeError, match="tpo"):
        ranks.view(tpo=1)  # type: ignore[call-arg]
    with pytest.raises(AnnotError, match="rank 7 does not exist: choose from 0, 1, 2"):
        ranks.rank(7)
