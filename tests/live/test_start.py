"""Runs of commands whose Python process measures its steps: start, environment and results."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from measured import live

import annot
from annot.collect.logged_run import LoggedRun
from annot.collect.measured_run import MeasuredRun, read_result
from annot.collect.run import CommandError
from annot.live.environment import leave_environment
from annot.live.request import Request, Result, variables

TRAIN = """
import os, subprocess, sys, torch
torch.set_num_threads(1)
SHOW = "import os; print([os.environ.get(name) for name in ('ANNOT_TRY', 'PYTHONPATH', 'ANNOT_PYTHONPATH')])"
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    if not step:
        subprocess.run([sys.executable, "-c", SHOW], check=True)
print("end")
"""


def run_of(tmp_path: Path, *words: str, asked: dict[str, Any] | None = None, **fields: Any) -> MeasuredRun:
    request = Request(result=str(tmp_path / "result.json"), **{"warmup": 1, "steps": 3, "seed": 0, **(asked or {})})
    return MeasuredRun(command=[sys.executable, *words], request=request, log=tmp_path / "log.txt", **fields)


def test_a_program_without_a_framework_has_a_result_without_steps(tmp_path: Path) -> None:
    run = run_of(tmp_path, "-c", "import random; print(random.random())", asked={"seed": 3})
    Path(run.request.result).write_text("an old result")
    assert run.run() == 0
    result = run.result(0)
    assert isinstance(result, Result)
    assert (result.framework, result.step_ns, result.ended, result.error) == ("", [], "program", "")
    assert run.log.read_text() == "0.23796462709189137\n"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("raise ValueError('no\\nbatch')", 1, "ValueError: no"),
        ("import sys; sys.exit(3)", 3, ""),
        ("class Own(Exception): pass\nraise Own", 1, "Own"),
    ],
)
def test_the_end_of_a_program_is_told(tmp_path: Path, code: str, status: int, expected: str) -> None:
    run = run_of(tmp_path, "-c", code)
    assert run.run() == status
    result = run.result(status)
    assert isinstance(result, Result)
    assert result.error == expected


def test_a_run_without_a_result_is_told_in_words(tmp_path: Path) -> None:
    ended = run_of(tmp_path, "-c", "import os; print('gone', flush=True); os._exit(3)")
    assert ended.result(ended.run()) == "exit status 3: gone"
    isolated = run_of(tmp_path, "-I", "-c", "print(1)")
    assert isolated.result(isolated.run()) == "python -I skips the start-up code of annot: remove the option"
    other = MeasuredRun(command=["true"], request=isolated.request, log=tmp_path / "log.txt")
    assert other.result(other.run()) == "no Python process of the command wrote measurements: no output"
    with pytest.raises(CommandError, match="not found"):
        MeasuredRun(command=["no-such-command"], request=isolated.request, log=tmp_path / "log.txt").run()


@pytest.mark.parametrize("content", [b"", b"{", b'{"step_ns": 3}', b"\xff"])
def test_an_incomplete_result_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    assert read_result(path) is None
    assert read_result(tmp_path / "absent.json") is None


@pytest.mark.parametrize("before", [None, "/opt/modules"])
def test_children_do_not_inherit_the_request(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOT_TRY", "{}")
    monkeypatch.setenv("PYTHONPATH", "/site")
    monkeypatch.delenv("ANNOT_PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("ANNOT_PYTHONPATH", before)
    leave_environment()
    leave_environment()
    assert "ANNOT_TRY" not in os.environ
    assert os.environ.get("PYTHONPATH") == before
    assert "ANNOT_PYTHONPATH" not in os.environ


def test_the_search_for_models_goes_on_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOT_TRY", "{}")
    monkeypatch.setenv("ANNOT_LAYERS", "1")
    monkeypatch.setenv("PYTHONPATH", "/site")
    leave_environment()
    assert ("ANNOT_TRY" in os.environ, os.environ["PYTHONPATH"]) == (False, "/site")


@pytest.mark.slow
@pytest.mark.parametrize("launched", [False, True])
def test_a_script_is_measured_also_behind_a_launcher(tmp_path: Path, launched: bool) -> None:
    script, launcher = tmp_path / "train.py", tmp_path / "launcher.py"
    script.write_text(TRAIN)
    launcher.write_text(
        "import runpy, subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'train.py']).returncode)"
    )
    environment = {"PYTHONPATH": str(Path(annot.__file__).parents[1])}
    words = ["launcher.py"] if launched else ["train.py"]
    run = run_of(tmp_path, *words, folder=tmp_path, environment=environment, asked={"changes": live("fused")})
    status = run.run()
    result = run.result(status)
    assert status == 0
    assert isinstance(result, Result)
    assert (result.framework, result.ended, len(result.step_ns)) == ("torch", "steps", 4)
    assert result.applied == {"fused": "SGD"}
    assert run.log.read_text() == f"[None, {environment['PYTHONPATH']!r}, None]\n"
    assert script.read_text() == TRAIN


@pytest.mark.slow
def test_a_measured_program_can_be_profiled_with_its_layers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    request = Request(
        result=str(tmp_path / "result.json"), warmup=1, steps=3, losses=4, seed=0, changes=live("bf16", "fused")
    )
    run = LoggedRun(
        command=[sys.executable, "train.py"],
        profile=tmp_path / "profile.sqlite",
        log=tmp_path / "log.txt",
        collector="recorder",
        layers=True,
        folder=tmp_path,
        environment=variables(request),
    )
    assert run.problem(run.run()) is None
    direct = run_of(tmp_path, "train.py", folder=tmp_path, asked={"losses": 4, "changes": live("bf16", "fused")})
    profiled = read_result(Path(request.result))
    plain = direct.result(direct.run())
    assert isinstance(plain, Result)
    assert profiled is not None
    assert (profiled.losses, profiled.applied, profiled.ended) == (plain.losses, plain.applied, "steps")
    layers = annot.open(tmp_path / "profile.sqlite").layers
    assert {("Linear", "forward"), ("SGD", "optimizer")} <= set(layers.select("module", "phase").iter_rows())
