"""`annot try`: its answer about a real program, what remains after a kill, and its errors."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from commands import ANNOT, annot, last_line, needs_recorder

from annot.cli.schema import schema_of

OPTIONS = ("try", "--collector", "recorder")
COMMAND = ("--", sys.executable, "train.py")
TRAIN = """
import atexit
import torch
import torch.nn.functional as F

atexit.register(print, "atexit ran")
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(16, 64), torch.randint(0, 8, (16,))
try:
    for step in range(10_000):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
finally:
    print("finally ran at step", step + 1)
"""


@pytest.mark.slow
@needs_recorder
def test_the_answer_about_a_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    before = hashlib.sha256(script.read_bytes()).hexdigest()
    data = tmp_path / "data"
    words = (*OPTIONS, "--change", "fused,workers", "--steps", "20", "--repeat", "2", "--format", "json", *COMMAND)
    environ = {**os.environ, "XDG_DATA_HOME": str(data)}
    done = subprocess.run([*ANNOT, *words], cwd=tmp_path, capture_output=True, env=environ, check=False)
    assert done.returncode in (0, 5), done.stderr.decode()
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema_of("try"))
    assert (answer["complete"], answer["framework"], answer["device"], answer["trains"]) == (True, "torch", "cpu", True)
    fused, workers = sorted(answer["rows"], key=lambda row: str(row["changes"]))
    assert fused["applied"] == {"fused": "AdamW"}
    assert (fused["training"], fused["runs"]) in ((verdict, 2) for verdict in ("equal", "rounding"))
    assert fused["low"] < fused["speedup"] < fused["high"]
    assert fused["before_ns"] / fused["after_ns"] == pytest.approx(fused["speedup"], rel=0.5)
    assert (workers["verdict"], workers["speedup"]) == ("failed", None)
    assert workers["reason"].startswith("not applied: ")
    assert answer["repeats"].startswith("two runs have the same losses")
    folder = tmp_path / "annot-try-1"
    assert {record.stem for record in folder.glob("*.json")} >= {"base.check2", "fused.check1", "fused.timed2"}
    for log in folder.glob("*.timed*.txt"):
        assert log.read_text().splitlines()[-2:] == ["finally ran at step 23", "atexit ran"]
    assert hashlib.sha256(script.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["annot-try-1", "data", "train.py"]
    advice = annot("report", folder / "base.check1.sqlite", "--by", "advice", cwd=tmp_path, XDG_DATA_HOME=str(data))
    assert re.search(r"Tried: fused ", advice.stdout.decode())


SLEEPS = """
import os, sys, time
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@needs_recorder
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals, tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    (tmp_path / "train.py").write_text(SLEEPS)
    process = subprocess.Popen([*ANNOT, *OPTIONS, *COMMAND, started], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with process, started.open() as waiting:
        program = int(waiting.readline())
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert "Traceback" not in said
    assert ("interrupted. The same command continues" in said) is (number != signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _lives(program) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _lives(program)
    (tmp_path / "train.py").write_text("")
    again = annot(*OPTIONS, *COMMAND, cwd=tmp_path)
    assert again.returncode == 1
    assert "the program does not run without changes: " in last_line(again.stderr)


STOPS = TRAIN.replace(
    "import torch\n",
    """
import os, pathlib, signal, sys, torch
if len(list(pathlib.Path("annot-try-1").glob("*.timed*.json"))) == 2 and not os.path.exists("goes on"):
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    signal.pause()
""",
    1,
)


@pytest.mark.slow
@needs_recorder
def test_a_trial_continues_after_a_kill(tmp_path: Path) -> None:
    """The third timed run waits: it is killed, then interrupted, then goes on."""
    started, folder = tmp_path / "started", tmp_path / "annot-try-1"
    os.mkfifo(started)
    (tmp_path / "train.py").write_text(STOPS)
    options = ("--change", "fused", "--steps", "10", "--repeat", "2", "--format", "json")
    words = [*ANNOT, *OPTIONS, *options, *COMMAND, started]

    def stop(number: signal.Signals) -> tuple[int, bytes]:
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            with started.open() as waiting:
                program = int(waiting.readline())
            process.send_signal(number)
            output = process.communicate()[0]
        while _lives(program):
            os.sched_yield()
        return process.returncode, output

    assert stop(signal.SIGKILL) == (-signal.SIGKILL, b"")
    records = {path.name: path.read_bytes() for path in folder.glob("*.*[0-9].json")}
    assert sorted(records) == [f"{name}.json" for name in (
        "base.check1", "base.check2", "base.timed1", "fused.check1", "fused.timed1", "rounding.check1"
    )]  # fmt: skip
    status, output = stop(signal.SIGINT)
    answer = json.loads(output)
    assert (status, answer["complete"], answer["rows"][0]["runs"]) == (130, False, 1)
    assert answer["rows"][0]["speedup"] > 0
    (tmp_path / "goes on").touch()
    done = annot(*OPTIONS, *options, *COMMAND, started, cwd=tmp_path)
    assert done.returncode in (0, 5), done.stderr.decode()
    answer = json.loads(done.stdout)
    assert (answer["complete"], answer["rows"][0]["runs"]) == (True, 2)
    assert {name: (folder / name).read_bytes() for name in records} == records
    assert b"fused, run 2" in done.stderr
    assert b"fused, run 1" not in done.stderr


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "COMMAND is missing: annot try -- python train.py"),
        (("--change", "compil", "--", "true"), "got 'compil'; did you mean compile?"),
        (("--budget", "ten", "--", "true"), "must be a time above 0, such as 90s, 10m or 1h, got 'ten'"),
        (("--budget", "0s", "--", "true"), "got '0s'"),
        (("--repeat", "0", "--", "true"), "must be a whole number from 1 to 1000, got '0'"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = annot("try", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in last_line(done.stderr)
    assert not any(tmp_path.iterdir())


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    done = annot("try", "--", "no-such-command", cwd=tmp_path)
    assert (done.returncode, any(tmp_path.iterdir())) == (1, False)
    assert "no-such-command" in last_line(done.stderr)


def test_all_changes_are_listed(tmp_path: Path) -> None:
    lines = annot("try", "--change", "list", cwd=tmp_path).stdout.decode().splitlines()
    assert any(line.split()[:2] == ["compile", "torch"] for line in lines)
    assert any(line.split()[1] == "keras" for line in lines)
