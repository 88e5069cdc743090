"""`annot compare` of several runs: recorded ones, two commands in turns, and a baseline; and its exit status."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from commands import ANNOT, annot, needs_recorder
from sqlite_profile import SqliteProfile

from annot import load
from annot.attribution.attribute import Attribution
from annot.cli import output
from annot.cli.main import main
from annot.runs import run as runs_run
from annot.runs.run import Run

LAYERS = 6


def write_run(path: Path, seed: int, slower: dict[str, float] | None = None, *, layers: int = LAYERS) -> str:
    """Write a run of 12 steps, whose machine is up to 5 % slower, and whose kernels vary by 1 %."""
    chance, factors = random.Random(seed), slower or {}
    machine = 1 + 0.05 * chance.random()
    profile, correlation = SqliteProfile(), 0
    profile.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
    for step in range(12):
        zero = 10_000_000 * step
        profile.layer(f"Batch {step} |step", zero, zero + 9_000_000)
        at = zero + 4_000_000
        for place in range(layers):
            correlation += 1
            start, layer = zero + 10_000 * place + 10, f"net.{place}"
            profile.layer(f"{layer} Linear [8,8]f32 |fwd", start, start + 9000)
            profile.call(start + 10, start + 20, correlation)
            length = 100_000 * (place + 1) * machine * chance.gauss(1, 0.01) * factors.get(layer, 1.0)
            profile.kernel(at, at + round(length), correlation, f"gemm_{place}")
            at += round(length)
    profile.write(path)
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Five runs of a program, five more, five with one layer slower by half, and five of another program."""
    folder = tmp_path_factory.mktemp("runs")
    slow = {"net.3": 1.5}
    return {
        "a": [write_run(folder / f"a{seed}.sqlite", seed) for seed in range(5)],
        "same": [write_run(folder / f"same{seed}.sqlite", 10 + seed) for seed in range(5)],
        "slow": [write_run(folder / f"slow{seed}.sqlite", 20 + seed, slow) for seed in range(5)],
        "other": [write_run(folder / f"other{seed}.sqlite", 30 + seed, layers=3) for seed in range(5)],
    }


GATE = ["--fail-above", "1.05"]


def test_runs_of_both_sides(runs: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """A slower layer is named; equal runs are equal; other programs are not compared."""
    assert main(["compare", "--runs", *runs["a"], *GATE, "--", *runs["slow"]]) == 3
    out, err = capsys.readouterr()
    assert err.startswith("annot: B is slower:\nannot:   net.3 forward takes 1.5")
    assert f"A: {runs['a'][0]} and 4 more" in out
    assert "html" not in out
    assert main(["compare", "--runs", *runs["a"], *GATE, "--", *runs["same"]]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compare", "--runs", *runs["a"], *GATE, "--", *runs["other"]]) == 4
    err = capsys.readouterr().err
    assert err.startswith("annot: A and B are not comparable:\nannot:   ")
    assert main(["compare", "--runs", *runs["a"], *GATE, "--force", "--", *runs["other"]]) != 4


def test_options_stand_anywhere(runs: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Options before, between and behind the profiles of a side; numbers of runs differ."""
    first, *others = runs["a"]
    words = ["compare", first, "--runs", others[0], "--format", "json", others[1], "--", *runs["slow"][:2]]
    assert main(words) == 0
    meta = json.loads(capsys.readouterr().out)["meta"]
    assert meta["a"] == f"{first} and 2 more"
    assert meta["b"] == f"{runs['slow'][0]} and 1 more"
    assert main(["compare", first, *GATE, runs["slow"][0]]) in (3, 5)
    assert main(["compare", "--", first, runs["slow"][0]]) == 0


def test_the_level_is_that_of_the_option(runs: dict[str, list[str]]) -> None:
    """Two runs against two tell a slower layer, and not at every level."""
    few = ["compare", "--runs", *runs["a"][:2], *GATE, "--level"]
    behind = ["--", *runs["slow"][:2]]
    assert main([*few, "0.05", *behind]) == 3
    assert main([*few, "1e-300", *behind]) in (0, 5)


def test_a_baseline_and_runs(
    runs: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a newcomer: save a baseline, and compare a later run."""
    monkeypatch.chdir(tmp_path)
    assert main(["baseline", "save", "main", *runs["a"]]) == 0
    assert main(["compare", "--baseline", "main", *runs["same"][:1], *GATE]) == 0
    capsys.readouterr()
    assert main(["compare", "--baseline", "main", runs["slow"][0], *GATE]) == 3
    out, err = capsys.readouterr()
    assert "net.3 forward takes 1.5" in err
    assert "A: baseline main (5 runs)" in out
    assert main(["compare", "--baseline", "main", *runs["slow"], *GATE, "--store", ".annot/baselines"]) == 3
    assert main(["compare", "--baseline", "nightly", runs["slow"][0]]) == 1
    assert "has no baseline nightly: it has main" in capsys.readouterr().err
    assert main(["compare", "--baseline", "../main", runs["slow"][0]]) == 2


def test_runs_of_a_baseline_are_comparable(
    runs: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another program neither joins a baseline nor makes one with others."""
    store = ["--store", str(tmp_path)]
    assert main(["baseline", "save", "main", runs["a"][0], runs["other"][0], *store]) == 1
    assert "the runs of a baseline must be comparable: " in capsys.readouterr().err
    assert main(["baseline", "save", "main", runs["a"][0], *store]) == 0
    assert main(["baseline", "save", "main", runs["other"][0], "--append", *store]) == 1
    assert main(["baseline", "save", "main", runs["same"][0], "--append", *store]) == 0
    assert main(["baseline", "save", "main", runs["other"][0], "--force", *store]) == 0


def test_runs_in_a_baseline_are_those_of_their_profiles(
    runs: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline gives the same rows as the profiles it was saved from, with folds as well."""
    store = str(tmp_path / "store")
    assert main(["baseline", "save", "main", *runs["a"], "--store", store]) == 0

    def rows(*words: str) -> list[object]:
        assert main(["compare", *words]) == 0
        return [*json.loads(capsys.readouterr().out)["layers"]]

    capsys.readouterr()
    form = ["--format", "json"]
    kept = rows("--baseline", "main", *runs["slow"], "--store", store, *form)
    assert kept == rows("--runs", *runs["a"], *form, "--", *runs["slow"])

    def table(*words: str) -> list[str]:
        assert main(["compare", "--all", *words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "Linear" in line]

    kept_table = table("--baseline", "main", *runs["slow"], "--store", store)
    assert kept_table == table("--runs", *runs["a"], "--", *runs["slow"])
    assert [line for line in kept_table if f"net.* Linear ×{LAYERS}" in line]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expects two profiles, A and B, got 0"),
        (["a"], "expects two profiles, A and B, got 1"),
        (["a", "b", "c"], "got 3; for several runs of each, use annot compare --runs A1 A2 -- B1 B2"),
        (["--runs", "a", "b"], "both sides of --: annot compare --runs A1 A2 -- B1 B2, got 2 and 0"),
        (["--runs", "--", "a", "b"], "--runs expects runs on both sides of --"),
        (["--repeat", "5", "--", "a"], "annot compare --repeat 5 -- COMMAND_A -- COMMAND_B, got 1"),
        (["--repeat", "5", "--", "a", "--"], "--repeat expects two commands"),
        (["--repeat", "5", "--", "a", "--", "b", "--", "c"], "COMMAND_B, got 3"),
        (["--repeat", "5", "x", "--", "a", "--", "b"], "got 2 and x before them"),
        (["--repeat", "0", "--", "a", "--", "b"], "must be a whole number"),
        (["--baseline", "main"], "--baseline expects one run or more: annot compare --baseline NAME RUN"),
        (["--baseline", "main", "--runs", "a", "--", "b"], "--runs cannot be combined with --baseline"),
        (["--runs", "--repeat", "3", "--", "a", "--", "b"], "--runs cannot be combined with --repeat"),
        (["a", "b", "--keep", "x"], "--keep needs --repeat"),
        (["a", "b", "--layers"], "--layers needs --repeat"),
        (["a", "b", "--collector", "nsys"], "--collector needs --repeat"),
        (["a", "b", "--store", "x"], "--store needs --baseline"),
        (["a", "b", "--level", "0"], "must be a number between 0 and 1"),
        (["a", "b", "--levle", "0.1"], "did you mean --level?"),
        (["--runs", "a", "--", "b", "--fail-above", "1.05"], "--fail-above is behind --, where only runs are: options"),
        (["a", "--", "b", "--all"], "--all is behind --"),
        (["--", "python", "a.py", "--", "python", "b.py"], "expects two profiles, A and B, got 5"),
        (["--runs", "a", "--format", "html", "-o", "x.html", "--", "b"], "--format html shows two profiles, A and B"),
    ],
)  # fmt: skip
def test_wrong_combinations_say_what_is_expected(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert says in capsys.readouterr().err


def test_profiles_are_read_once_and_one_at_a_time(
    runs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ten profiles, none is in memory while another is read."""
    read: list[str] = []
    alive: list[int] = []
    attributions: list[weakref.ref[Attribution]] = []
    opened, attribute = output.opened, runs_run.attribute

    def open_profile(path: str, *more: object) -> Run:
        alive.append(sum(reference() is not None for reference in attributions))
        read.append(path)
        return opened(path, *more)  # type: ignore[arg-type]

    def attribute_profile(*words: object, **options: object) -> Attribution:
        attributions.append(weakref.ref(attribution := attribute(*words, **options)))  # type: ignore[arg-type]
        return attribution

    monkeypatch.setattr(output, "opened", open_profile)
    monkeypatch.setattr(runs_run, "attribute", attribute_profile)
    assert main(["compare", "--runs", *runs["a"], *GATE, "--", *runs["slow"]]) == 3
    assert read == [*runs["a"], *runs["slow"]]
    assert alive == [0] * 10
    assert len(attributions) == 10


SCRIPT = """
import os, sys, time
import annot

more = int(sys.argv[1])
print("output of the command")
if os.environ.get("FAIL") == sys.argv[1]:
    sys.exit("no such data")
if os.environ.get("WAIT") == sys.argv[1]:
    with annot.trace("waiting"), open("waiting", "w") as file:
        print("ready", file=file, flush=True)
        time.sleep(600)

import torch

torch.set_num_threads(1)

class Head(torch.nn.Linear):
    def forward(self, x):
        for _ in range(more):
            super().forward(x)
        return super().forward(x)

net = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), Head(128, 128))
inputs = torch.randn(256, 128)
with annot.emit_ranges(net):
    for step in annot.batches(range(30)):
        net(inputs).sum().backward()
"""


def repeated(folder: Path, *options: str, a: str = "0", b: str = "20") -> list[str]:
    """Return the words of `annot compare --repeat` of a script."""
    (folder / "script.py").write_text(SCRIPT)
    script = [sys.executable, "script.py"]
    return ["compare", "--repeat", "3", "--collector", "recorder", *options, "--", *script, a, "--", *script, b]


@needs_recorder
@pytest.mark.slow
def test_commands_in_turns(tmp_path: Path) -> None:
    """A layer that does 21 times the work is red, by name; the profiles stay, and standard output is the table only."""
    done = annot(*repeated(tmp_path, "--keep", "kept", "--format", "json", *GATE), cwd=tmp_path)
    assert done.returncode == 3, done.stderr.decode()
    said = done.stderr.decode().splitlines()
    assert [line.split(",")[0] for line in said[:6]] == [
        f"annot: run {number} of 6: {name}" for number, name in enumerate("abbaab", 1)
    ]
    assert "annot: the profiles are in kept" in said
    assert any(line.startswith("annot:   2 forward takes ") for line in said)
    whole = json.loads(done.stdout)
    assert whole["meta"]["b"].endswith("script.py 20 (3 runs)")
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"{name}{number}.{end}" for name in "ab" for number in (1, 2, 3) for end in ("sqlite", "txt")]
    assert load(tmp_path / "kept" / "b3.sqlite").ranges.height > 100
    again = annot(*repeated(tmp_path, "--keep", "kept"), cwd=tmp_path)
    assert (again.returncode, again.stderr.decode()) == (
        1, "annot: error: kept is not empty: use the name of a new folder with --keep\n"
    )  # fmt: skip


@needs_recorder
@pytest.mark.slow
def test_a_newcomer_gets_a_red_gate(tmp_path: Path) -> None:
    """Record two runs, save them, record a slower one: the gate is red and names the layer."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for name, more in (("a", "0"), ("b", "0"), ("new", "20")):
        words = ["run", "--collector", "recorder", "--no-report", "-o", f"{name}.sqlite"]
        assert annot(*words, "--", sys.executable, "script.py", more, cwd=tmp_path).returncode == 0
    assert annot("baseline", "save", "main", "a.sqlite", "b.sqlite", cwd=tmp_path).returncode == 0
    for name in "ab":
        (tmp_path / f"{name}.sqlite").unlink()
    done = annot("compare", "--baseline", "main", "new.sqlite", *GATE, cwd=tmp_path)
    assert done.returncode == 3, done.stderr.decode()
    assert done.stderr.startswith(b"annot: B is slower:\nannot:   2 forward takes ")


@needs_recorder
@pytest.mark.slow
def test_a_command_that_fails(tmp_path: Path) -> None:
    """The message says which run, with its status and its last line; its output stays."""
    words = repeated(tmp_path, "--format", "json")
    done = annot(*words, cwd=tmp_path, FAIL="20", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, b"")
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("annot: error: run 1 of b (")
    assert "exit status 1: no such data; output: " in last
    assert "output of the command" in Path(last.rpartition("output: ")[2]).read_text()


@needs_recorder
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_temporary_folder(tmp_path: Path, number: signal.Signals) -> None:
    words = repeated(tmp_path)
    os.mkfifo(tmp_path / "waiting")
    environ = {**os.environ, "WAIT": "20", "TMPDIR": str(tmp_path)}
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    with subprocess.Popen(
        [*ANNOT, *words],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, handler),
    ) as process:
        with (tmp_path / "waiting").open() as waiting:
            assert waiting.readline() == "ready\n"
            process.send_signal(number)
            assert waiting.read() == "", "the command has ended, for it holds the pipe no longer"
        assert process.wait(60) == 128 + number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py", "waiting"]
