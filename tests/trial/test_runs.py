"""Why a run says nothing about its changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from measured_results import result

from annot.collect.measured_run import read_result
from annot.live.request import Request, Result
from annot.trial.runs import NO_STEP, Program, Runs, problem

FAILURE = "exit status 1: no data"


def asked(*changes: str) -> Request:
    return Request(result="", changes=dict.fromkeys(changes, "module:function"), warmup=2, steps=4)


@pytest.mark.parametrize(
    ("measured", "failure", "changes", "expected"),
    [
        (result([1.0] * 4), None, (), ""),
        (result([1.0] * 4), FAILURE, (), ""),  # the measured steps had ended
        (result([1.0] * 3), FAILURE, (), FAILURE),
        (result([1.0] * 3), None, (), ""),
        (Result(), FAILURE, (), FAILURE),
        (Result(), None, (), NO_STEP),
        (result([1.0] * 3, error="RuntimeError: nan"), FAILURE, (), "RuntimeError: nan"),
        (result([1.0] * 4, applied={"fused": "SGD"}), None, ("fused",), ""),
        (result([1.0] * 3, applied={"fused": "SGD"}), None, ("fused",), "the program ended after 5 of 6 steps"),
        (result([1.0] * 4, skipped={"fused": "no GPU"}), None, ("fused",), "not applied: no GPU"),
        (
            result([1.0] * 4, applied={"fused": "SGD"}),
            None,
            ("fused", "bf16"),
            "not applied: the program does not use what bf16 would change",
        ),
    ],
)
def test_problems(measured: Any, failure: str | None, changes: tuple[str, ...], expected: str) -> None:
    assert problem(measured, failure, asked(*changes)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([sys.executable, "-I", "-c", "1"], "python -I skips the start-up code of annot: remove the option"),
        (["echo", "7"], "no Python process of the command wrote measurements: 7"),
        ([sys.executable, "-c", "exit('no data')"], "exit status 1: no data"),
    ],
)
def test_a_program_without_measurements(words: list[str], expected: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path, Program(command=tuple(words), collector="recorder"))
    assert runs.run("base", "timed", {}, steps=3).problem == expected


def test_an_unfinished_result_counts_as_none(tmp_path: Any) -> None:
    path = tmp_path / "result"
    assert read_result(path) is None
    path.write_text('{"framework": "to')
    assert read_result(path) is None
