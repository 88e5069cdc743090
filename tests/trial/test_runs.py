"""Why a run says nothing about its changes."""

from __future__ import annotations

from typing import Any

import pytest
from measured_results import result

from annot.collect.measured_run import read_result
from annot.live.request import Request, Result
from annot.trial.runs import problem

FAILURE = "exit status 1: no data"


def asked(*changes: str) -> Request:
    return Request(result="", changes=dict.fromkeys(changes, "module:function"), warmup=2, steps=4)


@pytest.mark.parametrize(
    ("measured", "failure", "changes", "expected"),
    [
        (None, FAILURE, (), FAILURE),
        (None, None, (), "no Python process of the command that can import annot measured its steps"),
        (result([1.0] * 4), None, (), ""),
        (result([1.0] * 4), FAILURE, (), ""),  # the measured steps had ended
        (result([1.0] * 3), FAILURE, (), FAILURE),
        (result([1.0] * 3), None, (), ""),
        (Result(), None, (), "no step of a model was seen"),
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


def test_an_unfinished_result_counts_as_none(tmp_path: Any) -> None:
    path = tmp_path / "result"
    assert read_result(path) is None
    path.write_text('{"framework": "to')
    assert read_result(path) is None
