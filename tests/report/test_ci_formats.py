"""Comparisons as Markdown and JUnit XML: what readers see, and names that attack them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import polars as pl
import pytest
from commands import annot
from edited_profiles import Planted, real
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sqlite_profile import training

from annot.analyze.comparison.causes import causes_of
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.analyze.comparison.gate import Decision, decide
from annot.report.export.document import cell, code, prose
from annot.report.export.junit import as_junit
from annot.report.export.markdown import markdown
from annot.report.table import Options, process
from annot.report.terminal.compare import ComparisonTable, comparison_table
from annot.report.units import printable

DATA = Path(__file__).parents[1] / "data"
GITHUB: Final = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = st.text(st.sampled_from("ab0|\\`*_~<>&[]()!#@:/.-+=$ \n\t\x00\x1b\u202eé"), max_size=20)
SCHEMA: Final[Mapping[str, tuple[set[str], set[str]]]] = {
    "testsuites": (set(), {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped"}, {"properties", "testcase"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"failure", "error", "skipped"}),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "skipped": ({"message", "type"}, set()),
}
"""Attributes and children that the schemas of Jenkins and GitLab allow, of those that annot writes."""


@functools.cache
def compared(factor: float) -> tuple[ComparisonTable, Decision]:
    """Return a comparison of runs of a training, in the second side of which one layer takes longer by a factor."""
    before = Planted(real("transformer.sqlite.gz"))
    after = before.stretched(before.calls_of("head", "forward"), factor)

    def scaled(program: Planted, scale: float) -> Planted:
        return program.moved(lambda times: (times * scale).round().cast(pl.Int64))

    a = [digest(scaled(before, scale).attribution) for scale in (1, 1.004, 0.998)]
    b = [digest(scaled(after, scale).attribution) for scale in (1.002, 0.997, 1.005)]
    comparison = compare(a, b)
    decision = decide(comparison, above=1.05)
    why = causes_of(comparison, decision, a, b)
    return process(comparison_table(comparison, "main", "branch", why), Options()), decision


def gate_text(factor: float) -> str:
    table, decision = compared(factor)
    return markdown(table, decision=decision)


def junit(factor: float) -> ElementTree.Element:
    return ElementTree.fromstring(as_junit(*compared(factor)))


def test_verdict_is_the_first_line_of_markdown() -> None:
    text = gate_text(1.5)
    assert text.startswith("**❌ Slower** – head forward takes 1.50")
    assert "the same work takes longer here" in text
    first_table, _, details = text.partition("<details>")
    assert first_table.count("\n| ") == 7
    assert first_table.index("| `head Linear` | forward | ") < first_table.index("backward")
    assert "- A: main\n- B: branch\n" in details
    assert text.count("| `head Linear` | forward |") == 1


def test_equal_runs_are_not_slower() -> None:
    assert gate_text(1.0).startswith("**✅ Not slower** – Step (wall clock): ")
    suite = junit(1.0)[0]
    assert {suite.get(kind) for kind in ("failures", "errors", "skipped")} == {"0"}


def test_comparison_without_a_limit_has_no_verdict() -> None:
    text = markdown(compared(1.5)[0])
    assert text.startswith("**Comparison** – Step (wall clock): ")


def test_tables_are_tables() -> None:
    """GitHub's renderer makes rows of them, with a cell for each column."""
    html = GITHUB.render(gate_text(1.5))
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    assert {row.count("<t") for row in rows} == {8}
    assert "<td><code>head Linear</code></td>" in html


@settings(deadline=None)
@given(HOSTILE)
def test_name_is_code_in_one_cell(name: str) -> None:
    """The renderer shows the name as it is."""
    html = GITHUB.render(f"| a | b |\n|---|---|\n| {cell(code(name))} | x |\n")
    found = re.search(r"<tbody>\s*<tr>\s*<td>(?:<code>([^<]*)</code>)?</td>\s*<td>x</td>\s*</tr>\s*</tbody>", html)
    assert found, html
    assert unescape(found[1] or "") == printable(name).strip()


@settings(deadline=None)
@given(HOSTILE)
def test_sentence_is_plain_text(sentence: str) -> None:
    """Of markup it has only code, and no mention, reference or address remains for GitHub to link."""
    html = GITHUB.render(f"- {prose(sentence)}\n")
    assert re.fullmatch(r"<ul>\n<li>([^<]|<code>[^<]*</code>)*</li>\n</ul>\n", html), html
    plain = re.sub(r"<code>[^<]*</code>", "", html)
    assert re.search(r"[@#]\w|://|www\.", plain) is None


@pytest.mark.parametrize(
    "words", ["layers.*.self_attn.0", "a|b", "--step-range", "[param|cuda]", "run_rank*.sqlite", "x@y.z", "#12"]
)
def test_paths_and_options_can_be_copied(words: str) -> None:
    """A word in a sentence is as in the terminal, without escapes and invisible characters."""
    copied = words if words == "--step-range" else f"`{words}`"
    assert prose(f"most of it in ({words}), and {words}: see") == f"most of it in ({copied}), and {copied}: see"


def test_slower_row_is_a_failure() -> None:
    suite = junit(1.5)[0]
    failed = {case.get("name"): case for case in suite.iter("testcase") if case.find("failure") is not None}
    assert [*failed] == ["head Linear forward"]
    failure = failed["head Linear forward"].find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("takes 1.50")
    assert "the same work takes longer" in str(failure.text)
    assert suite.get("failures") == "1"
    names = {case.get("name") for case in suite.iter("testcase")}
    assert {"runs", "step", "decoder.5 DecoderLayer backward"} <= names
    assert not [name for name in names if "feed_forward.0 Linear forward" in str(name)]  # below 1 % of the time


def test_slower_step_is_a_failure() -> None:
    table, decision = compared(1.0)
    slower = replace(decision, status="slower", step_slower=True)
    root = ElementTree.fromstring(as_junit(table, slower))
    assert [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None] == ["step"]


@pytest.mark.parametrize(("status", "element"), [("incomparable", "error"), ("undecided", "skipped")])
def test_runs_that_cannot_be_judged(status: str, element: str) -> None:
    table, decision = compared(1.0)
    other = replace(decision, status=status, sentences=("the devices differ: A100 and H100",))  # type: ignore[arg-type]
    suite = ElementTree.fromstring(as_junit(table, other))[0]
    (result,) = suite.iter(element)
    assert "the devices differ: A100 and H100" in str(result.get("message"))
    assert len(suite.findall("testcase")) == 1 or status == "undecided"
    text = markdown(table, decision=other)
    assert text.splitlines()[0].endswith("the devices differ: A100 and H100")


@settings(deadline=None)
@given(HOSTILE)
def test_names_cannot_break_the_document(name: str) -> None:
    table, decision = compared(1.5)
    rows = table.comparison.rows.with_columns(layer=pl.lit(name + "\ufffe\x0b"))
    hostile = replace(table, comparison=replace(table.comparison, rows=rows))
    root = ElementTree.fromstring(as_junit(hostile, decision))
    for element in root.iter():
        attributes, children = SCHEMA[element.tag]
        assert set(element.keys()) <= attributes
        assert {child.tag for child in element} <= children
    suite = root[0]
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))


def test_command_writes_them(tmp_path: Path) -> None:
    """The suffix of the file is enough; JUnit XML needs a gate."""
    for name in ("a.sqlite", "b.sqlite"):
        training(device=True).write(tmp_path / name)
    compare_with_gate = ("compare", "a.sqlite", "b.sqlite", "--fail-above", "1.05")
    assert annot(*compare_with_gate, "-o", "gate.md", cwd=tmp_path).returncode == 0
    assert (tmp_path / "gate.md").read_text(encoding="utf-8").startswith("**✅ Not slower**")
    done = annot(*compare_with_gate, "--format", "junit", "--least-share", "0.3", cwd=tmp_path)
    names = [case.get("name") for case in ElementTree.fromstring(done.stdout).iter("testcase")]
    assert "features Sequential backward" in names
    assert "features Sequential forward" not in names
    done = annot("compare", "a.sqlite", "b.sqlite", "--format", "junit", cwd=tmp_path)
    assert done.returncode == 2
    assert b"it needs --fail-above" in done.stderr
