"""Causes of longer times in what `annot compare` prints and writes, for a real trace with one change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

import pytest
from shared_data import shared

from annot.analyze.comparison.comparable import comparability
from annot.analyze.comparison.digest import digest
from annot.cli.main import main
from annot.report.page.data import comparison_data
from annot.runs.run import Run

GEMM: Final = "volta_sgemm_64x64_tn"
OTHER: Final = "ampere_sgemm_128x64_tn"
CAUSE: Final = "aten::linear: other kernels run for the same work"
EVIDENCE: Final = f"{OTHER} instead of {GEMM}"


@pytest.fixture(name="pair", scope="module")
def _pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The trace, and one in which other kernels multiply, half as fast."""
    trace = json.loads(gzip.decompress(shared("kineto/more/param_linear.json.gz").read_bytes()))
    folder = tmp_path_factory.mktemp("pair")
    paths = [folder / "a.json", folder / "b.json"]
    paths[0].write_text(json.dumps(trace))
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel" and event["name"] == GEMM:
            event |= {"name": OTHER, "dur": 2 * event["dur"]}
    paths[1].write_text(json.dumps(trace))
    return [*map(str, paths)]


def test_the_gate_says_the_cause(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["compare", *pair, "--fail-above", "1.05", "--format", "json", "-o", str(report)]) == 3
    message = capsys.readouterr().err
    assert f"Cause: {CAUSE}: {EVIDENCE}" in message
    causes = json.loads(report.read_text())["meta"]["causes"]
    (cause,) = [cause for cause in causes if cause["row"] == ["aten::linear", "", "other"]]
    assert cause["kind"] == "kernels"
    assert cause["cause"].startswith(f"{CAUSE}: {EVIDENCE}")


def test_the_answer_says_the_cause_and_all_the_evidence(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *pair]) == 0
    assert f"{CAUSE}." in capsys.readouterr().out
    assert main(["compare", *pair, "--all"]) == 0
    assert f"Cause: {CAUSE}: {EVIDENCE}" in " ".join(capsys.readouterr().out.split())


def test_equal_runs_have_no_cause(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", pair[0], pair[0], "--all", "--fail-above", "1.05"]) == 0
    printed = capsys.readouterr()
    assert "Cause" not in printed.out + printed.err


def test_the_page_says_causes_and_what_one_pair_cannot_tell(pair: list[str]) -> None:
    a, b = (Run(path).attribution for path in pair)
    data = comparison_data(a, b, ("a", "b"), "kernel")
    assert any(text.startswith(f"{CAUSE}: {EVIDENCE}") for text in data["causes"])
    assert "cannot separate" in data["causes"][-1]
    same = comparison_data(a, a, ("a", "a"), "layer")
    assert same["causes"] == []
    assert same["reservations"] == [
        f"{text[0].upper()}{text[1:]}" for text in comparability([digest(a)], [digest(a)]).reservations
    ]
