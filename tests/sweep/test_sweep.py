"""Sweeps: the grid, runs that are not repeated, failures that are noted, what one can interrupt, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import ANNOT, annot, needs_recorder
from tables import Rows

from annot.analyze.work.layer_work import layer_work
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.errors import AnnotError
from annot.sweep.grid import Sweep, read_sweep
from annot.sweep.runs import finished, locked
from annot.sweep.tables import RESERVED, run_rows

SCRIPT = """
import os, signal, sys
from annot import batches, trace

n, width = int(sys.argv[1]), sys.argv[2]
with open("journal", "a") as journal:
    print(n, width, os.environ.get("EXTRA"), file=journal)
print("hello from", n)
if n == 4:
    sys.exit("no such size")
if n == 2 and "WAIT" in os.environ:
    with open(os.environ["WAIT"], "w") as waiting:
        print(os.getpid(), file=waiting, flush=True)
        signal.pause()
for i in batches(range(3)):
    with trace("work"):
        pass
"""
CONFIG = """
[command]
run = ["PYTHON", "script.py", "{n}", "{width}"]
collector = "recorder"

[environment]
EXTRA = "x{n}"

[grid]
n = [1, 2, 4]
width = ["slim", "wide"]

[plots]
batch = "n"
"""


def write(folder: Path, config: str = CONFIG) -> Path:
    """Write the script and the description of a sweep."""
    (folder / "script.py").write_text(SCRIPT)
    path = folder / "try.toml"
    path.write_text(config.replace("PYTHON", sys.executable))
    return path


def read(folder: Path, text: str) -> Sweep:
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_sweep(path)


def journal(folder: Path) -> list[str]:
    """The runs that took place since the last time."""
    path = folder / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


# ------------------------------------------------------------------ the grid


def test_every_combination_is_a_run_and_the_last_parameter_changes_first(tmp_path: Path) -> None:
    """Numbers, texts and truth values are written as one would type them."""
    sweep = read(tmp_path, '[command]\nrun=["go","--x={a}{b}","{c}"]\n[grid]\na=[1,0.5]\nb=["u","v"]\nc=true\n')
    assert [run.command[1:] for run in sweep.runs] == [
        ("--x=1u", "true"), ("--x=1v", "true"), ("--x=0.5u", "true"), ("--x=0.5v", "true"),
    ]  # fmt: skip
    assert sweep.runs[1].parameters == {"a": 1, "b": "v", "c": True}
    assert sweep.runs[1].name == "a=1 b=v c=true"
    assert sweep.parameters == ["a", "b", "c"]
    assert len({run.key for run in sweep.runs}) == 4


def test_words_of_another_grid_are_left_out(tmp_path: Path) -> None:
    """With several grids, a word whose parameter a grid lacks is no part of its commands, nor a variable."""
    sweep = read(
        tmp_path,
        '[command]\nrun=["go","{kind}","--deep={deep}","end"]\n[environment]\nD="{deep}"\n'
        '[[grid]]\nkind="a"\ndeep=[1]\n[[grid]]\nkind="b"\n',
    )
    assert [run.command for run in sweep.runs] == [("go", "a", "--deep=1", "end"), ("go", "b", "end")]
    assert [run.environment for run in sweep.runs] == [{"D": "1"}, {}]


def test_a_run_is_known_again_by_what_it_runs(tmp_path: Path) -> None:
    """More values change no key; another word, variable or collector changes all; twice the same is one run."""
    base = '[command]\nrun=["go","{n}"]\n[environment]\nE="1"\n[grid]\nn=[1,2]\n'

    def keys(text: str) -> list[str]:
        return [run.key for run in read(tmp_path, text).runs]

    first = keys(base)
    assert keys(base.replace("[1,2]", "[3,1,1,2]"))[1:] == first
    others = [base.replace('"go"', '"run"'), base.replace('E="1"', 'E="2"')]
    others.append(base.replace("[environment]", 'collector="torch"\n[environment]'))
    assert all(set(first).isdisjoint(keys(other)) for other in others)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = [", "is not a TOML file"),
        ("[grid]\nn=[1]\n", "needs run, a list of strings"),
        ('[command]\nrun="go {n}"\n[grid]\nn=[1]\n', "needs run, a list of strings"),
        ('[command]\nrun=["go","{m}"]\n[grid]\nn=[1]\n', "{m} is not a parameter"),
        ('[command]\nrun=["go"]\n[grid]\nn=[1]\n', "the parameter 'n' of [grid] is unused"),
        ('[command]\nrun=["go","{n}"]\n[grid]\nn=[]\n', "n of [grid] must be a list"),
        ('[command]\nrun=["go","{n}"]\n[grid]\nn=[[1]]\n', "n of [grid] must be a list"),
        ('[command]\nrun=["go"]\nretries=2\n', "'retries' is not a key of [command]"),
        ('[command]\nrun=["go"]\ncollector="perf"\n', "collector must be one of"),
        ('[command]\nrun=["go"]\ntimeout=0\n', "timeout must be"),
        ('[command]\nrun=["go"]\nsteps=1\n', "steps must be a string"),
        ('[command]\nrun=["go"]\n[plots]\nbatch="n"\n', "batch of [plots] must be a parameter"),
        ('[command]\nrun=["{n}"]\n[grid]\nn=[1,"a"]\n[plots]\nbatch="n"\n', "must have numeric values"),
        ('[command]\nrun=["go"]\n[plots]\npeak_flops="1T"\n', "peak_flops must be a number above 0"),
        ('[command]\nrun=["go"]\n[gird]\nn=[1]\n', "'gird' is not a key of the top level"),
        ('command=["go"]\n', "[command] must be a table"),
    ],
)
def test_what_describes_no_sweep_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """One sentence names the file and what is wrong in it."""
    with pytest.raises(AnnotError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "sweep.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnnotError, match=r"none\.toml cannot be read"):
        read_sweep(tmp_path / "none.toml")


# ------------------------------------------------------------------ the runs


@pytest.mark.slow
@needs_recorder
def test_runs_once_notes_failures_and_goes_on(tmp_path: Path) -> None:
    """A finished run is not repeated, a failed one only with --retry; more values run only what is new."""
    config = write(tmp_path)
    done = annot("sweep", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert journal(tmp_path) == [f"{n} {width} x{n}" for n in (1, 2, 4) for width in ("slim", "wide")]
    assert b"2 of 6 runs failed" in done.stderr

    table = pl.read_parquet(tmp_path / "try.sweep" / "table.parquet")
    assert json.loads(pl.read_parquet_metadata(tmp_path / "try.sweep" / "table.parquet")["annot"])["parameters"] == [
        "n", "width",
    ]  # fmt: skip
    runs = table.select("n", "width", "status").unique(maintain_order=True).rows()
    assert runs == [(n, width, int(n == 4)) for n in (1, 2, 4) for width in ("slim", "wide")]
    failed = table.filter(pl.col("n") == 4)
    assert failed["problem"].to_list() == ["exit status 1: no such size"] * 2
    assert failed["layer"].null_count() == failed.height == 2
    work = table.filter(pl.col("layer") == "work")
    assert work.select("steps", "calls").rows() == [(2, 2)] * 4, "the first of three steps is left out"
    svg = (tmp_path / "try.sweep" / "time.svg").read_text()
    assert svg.count("<circle") == 4

    first = read_sweep(config).runs[0]
    assert "hello from 1" in (tmp_path / "try.sweep" / "runs" / first.key / "log.txt").read_text()

    config.write_text(config.read_text().replace("[1, 2, 4]", "[1, 2, 3, 4]"))
    assert annot("sweep", config, cwd=tmp_path).returncode == 0
    assert journal(tmp_path) == ["3 slim x3", "3 wide x3"]

    config.write_text(config.read_text().replace("[1, 2, 3, 4]", "[3, 4]"))
    assert annot("sweep", config, "--retry", "--against", "try.sweep", cwd=tmp_path).returncode == 0
    assert journal(tmp_path) == ["4 slim x4", "4 wide x4"]
    table = pl.read_parquet(tmp_path / "try.sweep" / "table.parquet")
    assert table["n"].unique().sort().to_list() == [3, 4], "the table is of the grid as it is now"


@pytest.mark.slow
@needs_recorder
def test_an_interrupted_sweep_ends_its_run_and_goes_on_later(tmp_path: Path) -> None:
    """A signal ends sweep and script; the next sweep runs what has no end yet, and no more."""
    config = write(tmp_path, CONFIG.replace('["slim", "wide"]', '"slim"').replace("[1, 2, 4]", "[1, 2, 3]"))
    os.mkfifo(tmp_path / "pipe")
    environ = {**os.environ, "WAIT": str(tmp_path / "pipe")}
    with subprocess.Popen([*ANNOT, "sweep", config], cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as sweep:
        with (tmp_path / "pipe").open() as pipe:
            assert pipe.readline().strip().isdecimal()
            with pytest.raises(AnnotError, match="is in use by another sweep"), locked(tmp_path / "try.sweep"):
                pass
            sweep.send_signal(signal.SIGTERM)
            assert pipe.read() == "", "the script has ended, for it holds the pipe no longer"
        assert sweep.wait(60) == 128 + signal.SIGTERM
    assert [line[0] for line in journal(tmp_path)] == ["1", "2"]
    runs = read_sweep(config).runs
    assert [finished(tmp_path / "try.sweep", run) is not None for run in runs] == [True, False, False]

    assert annot("sweep", config, cwd=tmp_path).returncode == 0
    assert [line[0] for line in journal(tmp_path)] == ["2", "3"]


@needs_recorder
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Its problem says so; a sweep in which nothing was measured fails."""
    config = write(tmp_path, CONFIG.replace("[1, 2, 4]", "2").replace('["slim", "wide"]', '"slim"'))
    config.write_text(config.read_text().replace("[environment]", "timeout = 0.2\n[environment]"))
    os.mkfifo(tmp_path / "pipe")  # nobody reads: the script waits for ever
    done = annot("sweep", config, cwd=tmp_path, WAIT=str(tmp_path / "pipe"))
    assert done.returncode == 1
    result = finished(tmp_path / "try.sweep", read_sweep(config).runs[0])
    assert result is not None
    assert (result.status, result.problem) == (124, "exceeded the timeout of 0.2 s")


def test_dry_run_only_says_what_would_run(tmp_path: Path) -> None:
    """Commands as one would type them, and nothing is written."""
    config = write(tmp_path)
    done = annot("sweep", config, "--dry-run", cwd=tmp_path)
    assert done.stdout.decode().splitlines()[0].endswith("script.py 1 slim")
    assert len(done.stdout.splitlines()) == 6
    assert not (tmp_path / "try.sweep").exists()
    assert not journal(tmp_path)


def test_steps_that_cannot_be_are_refused_before_anything_runs(tmp_path: Path) -> None:
    done = annot("sweep", write(tmp_path, CONFIG.replace("[command]", '[command]\nsteps = "last"')), cwd=tmp_path)
    assert done.returncode == 1
    assert b"try.toml: steps must be like" in done.stderr
    assert not journal(tmp_path)


def test_a_parameter_cannot_take_the_name_of_a_column(tmp_path: Path) -> None:
    """That the table could not tell the two apart is said before anything runs."""
    done = annot("sweep", write(tmp_path, CONFIG.replace("width", "layer")), cwd=tmp_path)
    assert done.returncode == 1
    assert b"'layer' cannot be a parameter name" in done.stderr
    assert not journal(tmp_path)


def test_against_something_else_is_refused(tmp_path: Path) -> None:
    """What is no table of a sweep is named; the sweep's own table is there all the same."""
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    config = write(tmp_path, CONFIG.replace("[1, 2, 4]", "4").replace('["slim", "wide"]', '"slim"'))
    done = annot("sweep", config, "--against", "other.parquet", cwd=tmp_path)
    assert done.returncode == 1
    assert b"other.parquet is not a table of annot sweep" in done.stderr
    assert (tmp_path / "try.sweep" / "table.parquet").exists()


# ------------------------------------------------------------------ the table of a run


def steps_of(count: int, length: int, **kernel: Any) -> Rows:
    """Steps with one layer, forward and backward, and a kernel in each."""
    rows = Rows()
    for step in range(count):
        zero = 1000 * step
        rows.range(f"Batch {step} |step", zero, zero + length + step)
        rows.range("fc Linear |fwd", zero, zero + 10).range("fc Linear |bwd", zero + 10, zero + 40)
        rows.kernel(zero + 5, (zero + 5, zero + 12)).kernel(zero + 15, (zero + 15, zero + 36))
    return rows


def test_rows_of_a_run_are_those_of_its_layers() -> None:
    """Layer, module and phase with their times as correlate has them, beside the median step."""
    attribution = attribute(steps_of(5, 100).build())
    rows = run_rows(attribution, layer_work(attribution))
    names = ["layer", "module", "phase", "calls", "host_ns", "gpu_ns", "gpu_self_ns", "kernels"]
    assert rows.select(names).equals(by_layer(attribution).select(names))
    assert rows.select("steps", "step_ns", "step_gpu_ns").unique().rows() == [(5, 102, 28)]
    assert set(rows.columns) <= RESERVED


def test_work_joins_the_rows_of_its_layer() -> None:
    """By layer, module and phase; the others have none."""
    key = {"layer": ["fc"], "module": ["Linear"], "phase": ["backward"]}
    work = pl.DataFrame(key | {"flops": [8], "bytes_read": [4], "bytes_written": [2], "params": [3], "counted": [True]})
    rows = run_rows(attribute(steps_of(2, 100).build()), work)
    known = rows.filter(pl.col("flops").is_not_null())
    assert known.select(*key, "flops", "bytes_read", "bytes_written", "params").rows() == [
        ("fc", "Linear", "backward", 8, 4, 2, 3)
    ]
    assert rows.height == 3


def test_a_run_without_steps_has_no_time_of_a_step() -> None:
    """Ranges alone are rows of the table still."""
    attribution = attribute(Rows().range("fc Linear |fwd", 0, 10).build())
    rows = run_rows(attribution, layer_work(attribution))
    assert rows.select("layer", "steps", "step_ns", "step_gpu_ns").rows() == [("fc", 0, None, None)]
