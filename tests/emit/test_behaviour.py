"""One program without a tool and with each way to have one: it prints the same and ends the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ANNOT, needs_recorder

pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[1] / "support/behaviour.py"
SILENT = ["--no-report"]
WAYS = {
    "enabled": ([], {"ANNOT_ENABLE": "1"}),
    "recorder": ([*ANNOT, "run", "--collector", "recorder", *SILENT, "--"], {}),
    "Python fallback": ([*ANNOT, "run", "--collector", "recorder", *SILENT, "--"], {"ANNOT_DISABLE_NATIVE": "1"}),
    "torch.profiler": ([*ANNOT, "run", "--collector", "torch", *SILENT, "--"], {}),
}

pytestmark = pytest.mark.slow


def behave(folder: Path, command: list[str], environ: dict[str, str]) -> tuple[int, list[str], list[str]]:
    """Return the program's status, what it printed, and its errors without what `annot run` and Kineto say."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_"))}
    words = [*command, sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(words, cwd=folder, env=clean | environ, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("annot: ", "USDT:"))]
    return done.returncode, done.stdout.splitlines(), errors


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str], list[str]]:
    """How the program behaves without a tool."""
    return behave(tmp_path_factory.mktemp("alone"), [], {})


@needs_recorder
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_changes_nothing(tmp_path: Path, alone: tuple[int, list[str], list[str]], way: str) -> None:
    """Status, output and errors are those of the program without a tool, line by line."""
    status, output, errors = behave(tmp_path, *WAYS[way])
    assert (output, errors, status) == (alone[1], alone[2], alone[0])
    assert alone[0] == 3
    assert alone[1][-1] == "at exit"
