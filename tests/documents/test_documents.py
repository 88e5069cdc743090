"""README and guides: every command and every block of code runs, and prints what the text says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import annot, needs_nsys, needs_recorder
from documents import DOCUMENTS, ROOT, Block, Section, blocks, prepare, run_all, sections, unpacked_demonstration
from matrices import every_third
from sqlite_profile import training

from annot import load
from annot.cli.guide import CHAPTERS
from annot.labels import tag
from annot.report.views import views
from annot.runs.run import Run

SECTIONS = sections(of_keras=False)
TYPES = {
    pl.String: "text", pl.Int64: "integer", pl.Float64: "number", pl.Boolean: "true or false",
    pl.List(pl.String): "list of texts",
}  # fmt: skip


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each section that is asked for."""
    pytest.importorskip("torch", reason="the documents' blocks need PyTorch")
    asked = {getattr(item, "callspec", None) and item.callspec.id for item in request.session.items}
    wanted = [section for section in SECTIONS if section.name in asked]
    return run_all(tmp_path_factory.mktemp("documents"), wanted, "torch")


@needs_recorder
@pytest.mark.parametrize(
    "section",
    [pytest.param(one, id=one.name, marks=pytest.mark.slow) for one in SECTIONS],
)
def test_section_does_what_it_says(section: Section, results: dict[str, Any]) -> None:
    """Its blocks run in order, with ranges where it promises some, and print what stands below them."""
    if "lightning." in str(section.blocks):
        missing = [name for name in ("lightning", "transformers") if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)} is not installed")
    result = results[section.name]
    assert result["error"] is None, result["error"]
    code = "".join(block.text for block in section.blocks if block.language == "python" and not block.left_out)
    if re.search(r"^with .*(?:emit_ranges|trace|annotate)\(", code, re.M) and result["ranges"] is not None:
        assert result["ranges"] > 0
    pairs = zip(section.blocks, section.blocks[1:], strict=False)
    ran = [shown for block, shown in pairs if block.language == "console" and not block.left_out]
    promised = [shown.text for shown in ran if shown.language == "text"]
    assert all(text in result["outputs"] for text in promised)


@needs_nsys
def test_commands_with_nsight_systems(tmp_path: Path) -> None:
    """They run one after the other, as in the documents, and what they report is the range of the script."""
    prepare(tmp_path)
    selected = sorted(
        (block for block in blocks() if block.of_nsys), key=lambda block: "nsys profile" not in block.text
    )
    commands = "".join(block.text.replace("$ ", "", 1).replace("\n$ ", "\n") for block in selected)
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-e", "-c", commands]
    done = subprocess.run(shell, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^> work .* 100\.0%", done.stdout, re.M), done.stdout
    copies = list(tmp_path.glob("*.nsys-rep"))
    assert len(copies) == commands.count("--format nsys-rep") + 1


@pytest.mark.slow
@needs_recorder
def test_readmes_recording_has_the_layers_of_the_demonstration(tmp_path: Path) -> None:
    """The recording whose answer README shows has the rows of `make demo`, whatever the times."""
    pytest.importorskip("torch", reason="the sample needs PyTorch")
    command = re.search(r"^DEMO := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert command
    script, *options = command[1].split()
    sample = [sys.executable, ROOT / script, *options, "--steps", "3", "--batch", "1"]
    done = annot("run", "--collector", "recorder", "--no-report", "-o", "demo.sqlite", "--", *sample, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    recorded, demo = (Run(unpacked_demonstration(tmp_path)), Run(tmp_path / "demo.sqlite"))
    rows = [run.layers.select("layer", "module", "phase").unique().sort(pl.all()) for run in (recorded, demo)]
    assert rows[0].equals(rows[1])


def test_blocks_are_of_kinds_that_are_run() -> None:
    """There is no block of another language, and what is not run says why."""
    found = blocks()
    assert {block.language for block in found} == {"python", "console", "text", "toml", "yaml"}  # yaml: test_workflows
    for block in found:
        assert block.marker == "" or block.of_nsys or re.match(r"not run: \w.{10,}", block.marker), block
        assert block.language != "console" or all(line.startswith("$ ") for line in block.text.splitlines()), block
    left_out = [line for block in found if block.marker.startswith("not run") for line in block.text.splitlines()]
    assert len(left_out) <= 20


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Each link to a file of the project names one that is there."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", [*DOCUMENTS[1:], ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_files_of_the_package_that_are_named_exist(path: Path) -> None:
    """A path such as `report/views.py` is one in the checkout or in the package."""
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|c|h|js))(?:::[\w.]+)?`", path.read_text(encoding="utf-8")))
    places = [ROOT, ROOT / "annot", ROOT / "tests"]
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


def test_every_guide_is_a_chapter() -> None:
    """The files of the guide are the chapters that `annot guide` knows, and the README names each."""
    assert {path.stem for path in DOCUMENTS[1:]} == set(CHAPTERS)


def test_grammar_is_that_of_the_code() -> None:
    """The guide has the grammar of the module that writes and reads it, to the letter."""
    documented = tag.__doc__ or ""
    grammar = textwrap.dedent(documented[documented.index("    range    =") : documented.index("\nExamples:")]).strip()
    assert f"```text\n{grammar}\n```" in (ROOT / "annot/guide/tags.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("by", every_third(views()))
def test_schemas_are_those_of_the_tables(by: Any, tmp_path: Path) -> None:
    """Each table has the columns that the guide lists, in that order, and of the types that it says."""
    text = (ROOT / "annot/guide/schemas.md").read_text(encoding="utf-8")
    report = Run(load(training(device=True).write(tmp_path / "gpu.sqlite"))).view(by, total=True)
    entry = re.search(rf"^- `{by}`, rows `(\w+)`: ((?:.*\n)(?:  .*\n)*)", text, re.M)
    assert entry, by
    assert entry[1] == report.name
    assert re.findall(r"`(\w+)`", entry[2]) == report.rows.columns
    described = dict(re.findall(r"^\| `(\w+)` \| ([a-z ]+) \| .* \|$", text, re.M))
    if by in ("layer", "module", "phase", "op", "kernel", "step", "layer_work"):
        assert {name: TYPES[dtype] for name, dtype in report.rows.schema.items()}.items() <= described.items()
    if by == "layer":
        keys = re.findall(r"^\| `(\w+)` \| [^|]* \|$", text.partition("| key of `meta`")[2], re.M)
        assert set(keys) == {"schema", "advice", "per_step", "verdict", "peaks", *report.meta}


def test_runner_sees_what_fails(tmp_path: Path) -> None:
    """A command, a line of Python and an example that go wrong are errors of their section, and of no other."""
    wrong = {"console": "$ annot report nothing.sqlite\n", "python": "1 / 0\n", "example": ">>> 1 + 1\n3\n"}
    parts = [
        Section("wrong", name, (Block("console" if name == "console" else "python", text, ""),))
        for name, text in wrong.items()
    ]
    right = Section("right", "", (Block("python", "assert height\n", ""), Block("console", "$ echo yes\n", "")))
    named = Section("right", "named", (Block("python", "with trace('work'):\n    assert batches\n", ""),))
    found = run_all(tmp_path, [*parts, right, named], "")
    assert "does not exist" in found["wrong: console"]["error"]
    assert "ZeroDivisionError" in found["wrong: python"]["error"]
    assert "Expected" in found["wrong: example"]["error"]
    assert "NameError" in found["right: "]["error"]
    assert (found["right: named"]["error"], found["right: named"]["ranges"]) == (None, 1)
