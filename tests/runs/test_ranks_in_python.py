"""`annot.open` of many ranks, from scripts and notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ranked import write_ranks

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
