"""Commands that run in turns: their order, their profiles, failures and interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import needs_recorder

from annot import load
from annot.collect.alternate import Command, Recorded, RunFailedError, alternate
from annot.collect.logged_run import LoggedRun, terminable
from annot.collect.run import CommandError
from annot.errors import AnnotError

SCRIPT = """
import os, signal, sys
from annot import trace

name, fails = sys.argv[1:]
with open(os.environ.get("JOURNAL", "journal"), "a") as journal:
    print(name, os.environ.get("EXTRA", "-"), file=journal)
with open(os.environ.get("JOURNAL", "journal")) as journal:
    number = sum(line.startswith(name) for line in journal)
print("output of", name)
if fails == f"wait{number}":
    with trace("waiting"), open("waiting", "w") as waiting:
        print(os.getpid(), file=waiting, flush=True)
        signal.pause()
if fails != "nothing":
    with trace(name):
        pass
if fails == f"fail{number}":
    sys.exit("no such size")
"""


def command(scratch: Path, name: str, fails: str = "-", **options: object) -> Command:
    """Return a command whose run of number N waits (`waitN`) or fails (`failN`), or which records `nothing`."""
    script = scratch / "script.py"
    script.write_text(SCRIPT)
    return Command(name=name, words=(sys.executable, str(script), name, fails), **options)  # type: ignore[arg-type]


def journal(folder: Path) -> list[str]:
    """Return the runs in their order."""
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []


def run_all(folder: Path, *commands: Command, times: int = 2, said: list[str] | None = None) -> list[Recorded]:
    """Run commands in turns; profiles in ``out``."""
    say = (lambda line: None) if said is None else said.append
    return list(alternate(commands, times, folder / "out", collector="recorder", say=say))


@needs_recorder
@pytest.mark.slow
def test_the_order_is_reversed_in_every_other_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    other = tmp_path / "other"
    other.mkdir()
    first = command(tmp_path, "a", environment={"EXTRA": "x"})
    second = command(tmp_path, "b", folder=other, environment={"JOURNAL": str(tmp_path / "journal")})
    runs = run_all(tmp_path, first, second, times=3, said=said)
    assert [(run.name, run.number) for run in runs] == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert journal(tmp_path) == ["a x", "b -", "b -", "a x", "a x", "b -"]
    assert [line.split(",")[0] for line in said][::5] == ["run 1 of 6: a", "run 6 of 6: b"]
    for run in runs:
        assert load(run.profile).ranges["text"].to_list() == [run.name]
        assert f"output of {run.name}" in run.profile.with_suffix(".txt").read_text()
    names = {f"{run.name}{run.number}{suffix}" for run in runs for suffix in (".sqlite", ".txt")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


@needs_recorder
@pytest.mark.slow
def test_a_failed_run_ends_the_alternation_and_is_repeated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failing = command(tmp_path, "b", "fail2")
    message = r"run 2 of b \(.*fail2\) failed: exit status 1: no such size; output: .*b2"
    with pytest.raises(RunFailedError, match=message) as failed:
        run_all(tmp_path, command(tmp_path, "a"), failing)
    assert (failed.value.name, failed.value.problem) == ("b", "exit status 1: no such size")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.sqlite")) == ["a1.sqlite", "b1.sqlite"]
    assert not (tmp_path / "out" / "running").exists()
    assert len(run_all(tmp_path, command(tmp_path, "a"), failing)) == 4
    assert [line[0] for line in journal(tmp_path)] == ["a", "b", "b", "b", "a"]


@needs_recorder
def test_a_command_that_records_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnnotError, match=r"run 1 of a .* failed: no profile was written: "):
        run_all(tmp_path, command(tmp_path, "a", "nothing"))


def test_commands_are_checked_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = command(tmp_path, "a")
    with pytest.raises(CommandError, match="'no-such-command' not found"):
        run_all(tmp_path, first, Command(name="b", words=("no-such-command",)))
    with pytest.raises(AnnotError, match="missing cannot be used as working directory: No such file"):
        run_all(tmp_path, first, command(tmp_path, "b", folder=tmp_path / "missing"))
    (tmp_path / "out").write_text("a file")
    with pytest.raises(AnnotError, match="out cannot be written: "):
        run_all(tmp_path, first)
    assert not journal(tmp_path)


DRIVER = """
import sys
import polars  # replaces the handler of SIGINT
from pathlib import Path
from annot.collect.alternate import Command, alternate
from annot.collect.logged_run import terminable
commands = [Command(name=n, words=(sys.executable, "script.py", n, f)) for n, f in (("a", "-"), ("b", "wait1"))]
with terminable():
    list(alternate(commands, 2, Path("out"), collector="recorder"))
"""


@needs_recorder
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_leaves_whole_profiles(tmp_path: Path, number: signal.Signals) -> None:
    command(tmp_path, "a")
    os.mkfifo(tmp_path / "waiting")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL),
    )
    with driver, open(tmp_path / "waiting") as waiting:
        script = int(waiting.readline())
        driver.send_signal(number)
        assert driver.wait(60) in (-number, 128 + number)
    with pytest.raises(ProcessLookupError):
        os.kill(script, 0)
    assert load(tmp_path / "out" / "a1.sqlite").ranges["text"].to_list() == ["a"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a1.sqlite", "a1.txt", "b1.txt"]


@pytest.mark.slow
def test_a_second_interruption_kills_a_command_that_goes_on(tmp_path: Path) -> None:
    """A command that ignores SIGTERM ends, too."""
    os.mkfifo(tmp_path / "waiting")
    stubborn = (
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.kill(int(os.environ['WHO']), signal.SIGINT))\n"
        "file = open('waiting', 'w'); print('ready', file=file, flush=True)\n"
        "while True: signal.pause()"
    )
    program = (
        "import os, sys\nfrom pathlib import Path\nimport polars as pl\n"
        "from annot.collect.logged_run import LoggedRun\n"
        "pl.LazyFrame({'a': [1]}).collect()  # replaces the handler of SIGINT\n"
        f"run = LoggedRun(command=[sys.executable, '-c', {stubborn!r}], profile=Path('p.sqlite'), log=Path('log'),\n"
        "                collector='recorder', environment={'WHO': str(os.getpid())})\n"
        "run.run()"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL)
    with driver, open(tmp_path / "waiting") as waiting:
        assert waiting.readline() == "ready\n"
        driver.send_signal(signal.SIGINT)
        assert waiting.read() == "", "the command has ended, for it holds the pipe no longer"
        assert driver.wait(60)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_log_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="log"):
        LoggedRun(command=["true"], profile=tmp_path / "p", log=tmp_path / "missing" / "log").run()
