"""Training on the CPU, recorded and reported: parts of the step, communication, views that need a GPU."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import cpu_runs
import polars as pl
import pytest
import torch
import torch.distributed as dist
from commands import annot as run_annot
from commands import needs_recorder

from annot.analyze.communication import by_communication
from annot.analyze.run_summary import by_summary
from annot.report.terminal.ranks import RanksTable
from annot.runs.gather import Ranks
from annot.runs.run import Run
from annot.runs.selection import Selection

pytestmark = [needs_recorder, pytest.mark.slow]

PHASES = ("forward", "backward", "optimizer")


def _recorded(folder: Path, *command: str) -> Path:
    words = ["run", "-o", "run.sqlite", "--collector", "recorder", "--no-report", "--", sys.executable, *command]
    done = run_annot(*words, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder / "run.sqlite"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes in DistributedDataParallel, of which one computes for longer."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs gloo")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return _recorded(tmp_path_factory.mktemp("ranks"), *torchrun, str(Path(cpu_runs.__file__)), "ranks")


@pytest.fixture(scope="module")
def slow_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that waits for data for most of its time."""
    return _recorded(tmp_path_factory.mktemp("data"), str(Path(cpu_runs.__file__)), "data")


def _time(path: Path) -> tuple[dict[str, int], pl.DataFrame]:
    summary = by_summary(Run(path).attribution_with_calls)
    return dict(summary.filter(pl.col("section") == "time").select("item", "ns").iter_rows()), summary


@pytest.mark.parametrize("name", ["two_ranks", "slow_data"])
def test_parts_add_up_to_the_steps(name: str, request: pytest.FixtureRequest) -> None:
    """The parts of the step are disjoint, and those that compute are the sums of their layers."""
    times, summary = _time(request.getfixturevalue(name))
    wall = times.pop("wall")
    assert sum(times.values()) == wall > 0
    assert all(times[phase] > 0 for phase in PHASES)
    layers = summary.filter(pl.col("section") == "parts").group_by("item").agg(pl.col("ns").sum())
    assert dict(layers.iter_rows()) == {phase: times[phase] for phase in PHASES}
    assert summary.filter(pl.col("section").is_in(["gpu", "kernels"])).is_empty()


def test_a_late_rank_is_waited_for_in_all_reduce(two_ranks: Path) -> None:
    """The wait is communication of the backward, in no layer; the report of ranks names the late one."""
    run = Run(two_ranks)
    rows = by_communication(run.attribution)
    backward = rows.filter(pl.col("phase") == "backward")
    assert backward.select("layer", "operations", "waits_for").rows() == [("", "all_reduce.wait", "all_reduce.wait")]
    assert rows["exposed_ns"].sum() == _time(two_ranks)[0]["collectives"]
    advice = {row["rule"]: row["evidence"] for row in run.advice.to_dicts()}
    assert "exposed communication in gloo all_reduce, " in advice["collectives"]
    assert "of the backward pass" in advice["collectives"]
    assert advice["stragglers"].startswith(f"Rank {cpu_runs.LATE} computes for ")
    ranks = Ranks([str(two_ranks)], Selection(by_process=True))
    communication, report = ranks.view("layer", "communication"), ranks.view("layer")
    assert isinstance(communication, RanksTable)
    assert isinstance(report, RanksTable)
    found = communication.across.filter(pl.col("phase") == "backward")
    assert found["late"].to_list() == [cpu_runs.LATE]
    assert report.meta["across"]["collective_ns"]["fastest"] == cpu_runs.LATE
    slow = rf"Step .+ of 2 ranks.*: rank {cpu_runs.LATE} is .+, and the other one waits .+.+ in all_reduce\."
    assert re.fullmatch(slow, report.meta["verdict"])
    assert re.match(r"Step .+ of 2 ranks on ", run.verdict)
    assert run.meta["processes"] == 2
    whole = report.across.filter(pl.col("layer") == "", pl.col("module") == "", pl.col("phase") == "backward")
    assert whole["slowest"].to_list() == [cpu_runs.LATE]  # although the other rank is in its backward for as long


def test_threads_cores_and_backend_are_in_the_profile(two_ranks: Path, slow_data: Path) -> None:
    """A mark says how many threads compute on how many cores, for how many ranks."""
    ranked = [one["cpu"] for one in Run(two_ranks).source.meta["processes"] if "cpu" in one]
    assert [(one["ranks"], one["backend"]) for one in ranked] == [(2, "gloo"), (2, "gloo")]
    (alone,) = (one["cpu"] for one in Run(slow_data).source.meta["processes"] if "cpu" in one)
    assert alone.keys() == {"threads", "cores"}
    assert 1 <= alone["threads"] <= max(alone["cores"], torch.get_num_threads())


def test_advice_for_slow_data(slow_data: Path) -> None:
    """Waiting for data comes first, with the workers that it takes; a fused optimizer is no problem."""
    advice = Run(slow_data).advice
    assert advice["rule"][0] == "data_loading"
    assert "num_workers=" in advice["code"][0]
    line = inspect.getsourcelines(cpu_runs.Slow.__getitem__)[1]
    assert advice["evidence"][0].endswith(f"; the process itself loads the data of Slow (cpu_runs.py:{line})")
    assert "pin_memory" not in advice["code"][0]
    assert "optimizer" not in advice["rule"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--by", "kernel"), "Kernels"), (("--by", "kind"), "Kernels"), (("--by", "kernel", "--each"), "Kernels"),
        (("--columns", "tensor"), "Tensor Cores"), (("--by", "module", "--columns", "tensor"), "Tensor Cores"),
    ],
)  # fmt: skip
def test_views_say_what_they_need(slow_data: Path, options: tuple[str, ...], what: str) -> None:
    """A view about GPUs says in one sentence that it needs GPU activity."""
    done = run_annot("report", slow_data, *options, cwd=slow_data.parent)
    assert f"{what} need a profile with GPU activity: run on a machine with a GPU" in " ".join(
        done.stdout.decode().split()
    )
