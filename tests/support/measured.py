"""Programs that measure their own steps as under `annot try`, in processes that have imported PyTorch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import forked

from annot.collect.measured_run import read_result
from annot.live.request import Request, Result, variables

_START = (
    "import os; from annot.live.start import measure_when_imported; measure_when_imported(os.environ['ANNOT_TRY'])\n"
)


def live(*names: str) -> dict[str, str]:
    """Return the changes of these names as in a request."""
    return {name: f"annot.live.torch_changes:{name.replace('-', '_')}{'_' * (name == 'compile')}" for name in names}


def measured(program: str, *changes: str, **asked: Any) -> tuple[Result, subprocess.CompletedProcess[str]]:
    """Run a program with changes, and return its result and the process.

    Args:
        program: source code.
        changes: names of changes of PyTorch.
        asked: fields of the request; by default 1 step of warm-up and 3 measured ones.
    """
    return measured_in_turn([program], *changes, **asked)


def measured_in_turn(
    programs: list[str], *changes: str, **asked: Any
) -> tuple[Result, subprocess.CompletedProcess[str]]:
    """Run the programs of a command one after another, and return its result and the last process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        fields = {"warmup": 1, "steps": 3, "seed": 0, "changes": live(*changes), **asked}
        environ = {**os.environ, **variables(Request(result=str(path), **fields))}
        for program in programs:
            process = forked.python(_START + program, env=environ)
        result = read_result(path)
    assert result is not None, process.stderr
    return result, process
