"""Many ranks: who is slow, who waits, and what becomes of ranks that cannot be read."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import every_third
from random_inputs import examples
from ranked import LATE, SLOW, US, die_if_deadly, write_rank, write_ranks
from shared_data import unpacked
from sqlite_profile import SqliteProfile, training

from annot.analyze.work.layer_work import by_layer_with_work
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.errors import AnnotError
from annot.read.formats import load
from annot.report.terminal.ranks import RanksTable
from annot.report.views import views
from annot.runs.executors import Failure, run_each
from annot.runs.gather import Ranks, rank_tables
from annot.runs.run import Run
from annot.runs.selection import ALL, Selection
from annot.runs.skew import across_ranks, spread_of


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Eight ranks."""
    return [str(path) for path in write_ranks(tmp_path_factory.mktemp("ranks"))]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Eight ranks, of which the file of rank 2 is cut in the middle."""
    return [str(path) for path in cut(write_ranks(tmp_path_factory.mktemp("damaged")), 2)]


def cut(paths: list[Path], rank: int) -> list[Path]:
    whole = paths[rank].read_bytes()
    paths[rank].write_bytes(whole[: len(whole) // 2])
    return paths


def _layer(report: RanksTable, layer: str, phase: str) -> dict[str, object]:
    return report.across.filter(pl.col("layer") == layer, pl.col("phase") == phase).row(0, named=True)


def _same(one: RanksTable, other: RanksTable) -> bool:
    return one.across.equals(other.across) and one.rows.equals(other.rows) and one.meta == other.meta


def test_the_slow_rank_shows_in_its_layer(paths: list[str]) -> None:
    """Two steps of 900 µs, rank µs and the delay: median, extremes, spread and the slowest rank, to the nanosecond."""
    row = _layer(Ranks(paths, workers=1).view(total=True), "features.0", "forward")
    times = [2 * (900 + rank) * US + (2 * LATE if rank == SLOW else 0) for rank in range(8)]
    assert row["median_ns"] == median(times)
    assert (row["min_ns"], row["max_ns"], row["slowest"]) == (min(times), max(times), SLOW)
    assert (row["ranks"], row["spread_ns"]) == (8, max(times) - min(times))


def test_who_waits_in_collectives_is_not_slow(paths: list[str]) -> None:
    """The all-reduce is in the whole backward pass, but its time, longer for those who wait, is not compared."""
    report = Ranks(paths, workers=1).view(total=True)
    row = _layer(report, "", "backward")
    assert (row["spread_ns"], row["collective_median_ns"]) == (0, 800 * US)
    waits = report.meta["across"]["collective_ns"]
    assert waits == {
        "ranks": 8, "median": 800 * US, "min": 200 * US, "max": 800 * US, "fastest": SLOW, "slowest": 0,
    }  # fmt: skip
    assert [rank["collectives"] for rank in report.meta["ranks"]] == [2] * 8


@pytest.mark.parametrize("by", every_third(name for name, view in views().items() if view.keys))
def test_rows_of_each_rank_are_those_of_its_report(paths: list[str], by: str) -> None:
    """Every grouping has the rows of each rank, unchanged, and a row across the ranks for each key."""
    report = Ranks(paths[:3], workers=1).view(by, total=True)
    for number, path in enumerate(paths[:3]):
        own = rank_tables(path, by, ALL)[0].report.rows
        assert report.rows.filter(pl.col("rank") == number).select(own.columns).equals(own)
        assert report.ranks[number].rows.equals(own)
    assert report.rows.height == report.across["ranks"].sum()


@pytest.mark.parametrize("by", every_third(name for name, view in views().items() if not view.keys))
def test_analyses_of_a_rank_are_those_of_its_file(paths: list[str], by: str) -> None:
    """Whatever there is about one profile there is about each rank of a run."""
    report = Ranks(paths[SLOW - 1 :], workers=1).rank(SLOW).view(by, total=True)
    own = Run(paths[SLOW]).view(by, total=True)
    assert report.rows.equals(own.rows)
    assert report.meta == own.meta


def test_analysis_of_a_rank_by_command(damaged: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The slow rank is asked by its number, also beside one that cannot be read, which itself is refused."""
    assert main(["report", *damaged, "--rank", str(SLOW), "--by", "kind", "--format", "csv", "--workers", "1"]) == 0
    assert "collective,NCCL" in capsys.readouterr().out
    assert main(["report", *damaged, "--rank", "2", "--by", "kind", "--workers", "1"]) == 1
    assert capsys.readouterr().err.endswith("rank 2 does not exist: choose from 0, 1, 3, 4, 5, 6, 7\n")


def test_totals_are_those_of_the_ranks(paths: list[str]) -> None:
    """Sums over the ranks add up as those of one rank do, and each rank is named with its file."""
    meta = Ranks(paths, workers=1).view(total=True).meta
    assert meta["gpu_ns"] == meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"]
    assert meta["gpu_ns"] == sum(rank["gpu_ns"] for rank in meta["ranks"])
    assert meta["gpu_ns"] == 8 * (7_000 + 2 * 400) * US + 2 * LATE - 600 * US + 2 * sum(range(8)) * US
    assert [(rank["rank"], rank["source"]) for rank in meta["ranks"]] == list(enumerate(paths))
    assert (meta["steps"], meta["profiles"], meta["failed"]) == (2, 8, 0)
    assert meta["notes"] == ["rank 0 (and 7 more with a similar note): 1 kernel or copy with no launch recorded"]


def test_processes_give_what_one_process_gives(damaged: list[str]) -> None:
    """Reading in worker processes changes nothing, and the damaged rank is named while the others are reported."""
    serial, pooled = (Ranks(damaged, workers=count).view(total=True) for count in (1, 2))
    assert _same(serial, pooled)
    assert list(pooled.ranks) == [0, 1, 3, 4, 5, 6, 7]
    assert pooled.meta["notes"][0].startswith(f"rank 2 is missing: {damaged[2]} ")
    assert [rank["rank"] for rank in pooled.meta["ranks"] if rank["error"]] == [2]


def test_all_damaged(damaged: list[str], tmp_path: Path) -> None:
    """Where no profile can be used, the first reason is the error."""
    with pytest.raises(AnnotError, match=r"^all 2 profiles are unusable. The first: .*run_rank2"):
        Ranks([damaged[2], str(tmp_path / "none.sqlite")], workers=1).view()


@pytest.mark.slow
def test_dask_gives_what_one_process_gives(damaged: list[str]) -> None:
    """A cluster of two Dask workers: the damaged rank is named, the others are reported, nothing is different."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, scheduler_port=0) as cluster,
        distributed.Client(cluster, timeout=60),
    ):
        report = Ranks(damaged, dask=cluster.scheduler_address).view(total=True)
    assert _same(report, Ranks(damaged, workers=1).view(total=True))
    assert report.meta["notes"][0].startswith(f"rank 2 is missing: {damaged[2]} ")
    assert len(report.ranks) == 7


def test_no_scheduler_there(paths: list[str]) -> None:
    """An address that is none is one sentence."""
    pytest.importorskip("distributed")
    with pytest.raises(AnnotError, match="the Dask scheduler at nonsense://x cannot be reached"):
        Ranks(paths, dask="nonsense://x").view(total=True)


@pytest.mark.parametrize("place", every_third([0, 2]))
def test_a_killed_worker_takes_no_result_with_it(place: int) -> None:
    """When a worker is killed, its file is named, and all others have their result."""
    names = ["a", "b", "c"]
    names.insert(place, "deadly")
    results = run_each(die_if_deadly, names, workers=2)
    failure = results.pop(place)
    assert results == ["A", "B", "C"]
    assert isinstance(failure, Failure)
    assert failure.reason == "deadly: its worker process was killed, for example because memory ran out"


def test_rank_that_the_profile_gives(tmp_path: Path) -> None:
    """What a profile says of its rank is worth more than its name, unless two say the same."""
    one = write_rank(tmp_path / "run_rank0.sqlite", 0, says=3)
    two = write_rank(tmp_path / "run_rank1.sqlite", 1, says=2)
    missing = str(tmp_path / "run_rank2.sqlite")
    report = Ranks([str(one), str(two), missing], workers=1).view(total=True)
    assert [(rank["rank"], Path(rank["source"]).stem[-1]) for rank in report.meta["ranks"]] == [
        (2, "1"), (3, "0"), (None, "2"),
    ]  # fmt: skip
    assert report.meta["notes"][0] == f"a rank is missing: {missing} does not exist"
    same = write_rank(tmp_path / "run_rank7.sqlite", 0, says=3)
    assert list(Ranks([str(one), str(same)], workers=1).view(total=True).ranks) == [0, 7]


def test_ranks_with_different_layers(tmp_path: Path) -> None:
    """In pipelines each rank has layers of its own: a row says on how many ranks it is."""
    for rank in range(2):
        profile = SqliteProfile()
        profile.layer("shared Linear |fwd", 0, 100 + rank)
        profile.layer(f"stage{rank} Linear |fwd", 200, 210 + rank)
        profile.write(tmp_path / f"p{rank}")
    report = Ranks([str(tmp_path / "p0"), str(tmp_path / "p1")], workers=1).view(total=True)
    assert report.time == "host_ns"
    assert report.across.select("layer", "ranks", "median_ns", "slowest", "spread_ns").rows() == [
        ("shared", 2, 100, 1, 1), ("stage0", 1, 10, 0, 0), ("stage1", 1, 11, 1, 0), ("(unattributed)", 2, 99, 0, 1),
    ]  # fmt: skip


def test_steps_and_domain_are_asked_of_every_rank(paths: list[str]) -> None:
    """Steps chosen are chosen on each rank; a rank without them is a rank that cannot be used."""
    report = Ranks(paths, Selection(steps=slice(1, 2)), workers=1).view(total=True)
    assert [rank["steps"] for rank in report.meta["ranks"]] == [1] * 8
    assert report.meta["across"]["collective_ns"]["median"] == 400 * US
    with pytest.raises(AnnotError, match="has no such steps, only 0 to 1"):
        Ranks(paths, Selection(steps=slice(2, 9)), workers=1).view(total=True)
    with pytest.raises(AnnotError, match="has no range in the domain 'none'"):
        Ranks(paths, Selection(steps=slice(2), domain="none"), workers=1).view(total=True)


def test_processes_of_a_file_as_ranks(tmp_path: Path) -> None:
    """Each process with layers is a rank with its own work; a helper process without is none, and its work is named."""
    profile = SqliteProfile()
    for process, length in ((5, 40), (3, 25)):
        profile.layer("fc Linear |fwd", 0, 100, of_process=process)
        profile.call(10, 20, 7, of_process=process)
        profile.kernel(30, 30 + length, 7, of_process=process)
    profile.range("decode", 0, 50, of_process=9)
    profile.kernel(30, 31, 8, of_process=9)
    path = str(profile.write(tmp_path / "node.sqlite"))
    report = Ranks([path], Selection(by_process=True), workers=1).view(total=True)
    assert [(rank["rank"], rank["process"] >> 24 & 0xFF) for rank in report.meta["ranks"]] == [(0, 3), (1, 5)]
    assert _layer(report, "fc", "forward")["spread_ns"] == 15
    assert [(rank["gpu_ns"], rank["kernels"]) for rank in report.meta["ranks"]] == [(25, 1), (40, 1)]
    assert "rank 0: 1 GPU activities are left out because their processes are not ranks." in report.meta["notes"]
    assert len(rank_tables(path, "layer", ALL)) == 1
    kernels = Ranks([path], Selection(by_process=True), workers=1).rank(1).view("kernel", each=True, total=True).rows
    assert kernels.select("layer", "gpu_ns").rows() == [("fc", 40)]


def test_processes_of_a_real_profile_as_ranks(tmp_path: Path) -> None:
    """Two processes of a real run on two GPUs: together they have what the whole file has."""
    path = unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path)
    report = Ranks([str(path)], Selection(by_process=True), workers=1).view(total=True)
    whole = rank_tables(str(path), "layer", ALL)[0].report
    assert list(report.ranks) == [0, 1]
    for name in ("gpu_ns", "attributed_gpu_ns", "kernels", "copies", "ranges"):
        assert report.meta[name] == whole.meta[name]
    assert sum(rank["collective_ns"] for rank in report.meta["ranks"]) == whole.meta["collective_ns"] > 0
    names = attribute(load(path)).names.with_columns(pl.col("name").cast(pl.String))
    assert whole.meta["collective_ns"] == names.filter(pl.col("name").str.starts_with("ncclDevKernel"))["gpu_ns"].sum()


def test_collectives_of_layers_lie_in_their_time(paths: list[str]) -> None:
    """No layer has more time in collectives than time, and the whole has that of the kernels by name."""
    for path in paths:
        table = rank_tables(path, "phase", ALL)[0].report
        assert (table.rows["collective_ns"] <= table.rows["gpu_ns"]).all()
        assert table.rows["collective_ns"].sum() == table.meta["collective_ns"]
    columns = rank_tables(paths[0], "layer", ALL)[0].report.rows.columns
    assert by_layer_with_work(attribute(load(paths[0]))).columns == [name for name in columns[:-1] if name != "group"]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", True),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", True),
        ("void rcclKernel<1>()", True),
        ("msccl::kernel()", True),
        ("gemm_for_ncclified_weights", False),
    ],
)
def test_what_is_a_collective(tmp_path: Path, name: str, collective: bool) -> None:
    """Kernels of NCCL and RCCL are known by the beginning of their name."""
    profile = training(device=False)
    profile.kernel(0, 70, 1, name)
    table = rank_tables(str(profile.write(tmp_path / "x")), "kernel", ALL)[0].report
    assert table.meta["collective_ns"] == 70 * collective
    assert table.rows["collective_ns"].to_list() == [70 * collective]


def test_no_collective_in_ranges_across_others(tmp_path: Path) -> None:
    """What was launched in a range that crosses another is its time, and no collective."""
    profile = SqliteProfile()
    profile.layer("fc Linear |fwd", 0, 100)
    profile.range("across", 50, 150)
    profile.call(60, 70, 1)
    profile.kernel(80, 110, 1)
    rows = rank_tables(str(profile.write(tmp_path / "x")), "layer", ALL)[0].report.rows
    assert rows.select("layer", "gpu_ns", "collective_ns").rows() == [("fc", 30, 0), ("across", 30, 0)]


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.integers(0, 2**60), min_size=1))
def test_median_and_extremes_are_exact(times: dict[int, int]) -> None:
    """Also where a float would round: the median is between the middle values, the slowest has the maximum."""
    rows = pl.DataFrame({"rank": list(times), "work_ns": list(times.values())}, schema_overrides={"work_ns": pl.Int64})
    rows = rows.with_columns(phase=pl.lit("forward"), collective_ns=pl.lit(0, pl.Int64))
    found = across_ranks(rows, ["phase"]).row(0, named=True)
    ordered = sorted(times.values())
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    assert found["median_ns"] == sum(middle) // 2
    assert (found["min_ns"], found["max_ns"]) == (ordered[0], ordered[-1])
    assert found["slowest"] == min(rank for rank, time in times.items() if time == ordered[-1])
    spread = spread_of(dict(rows.select("rank", "work_ns").iter_rows()))
    assert (spread and spread["max"]) == (ordered[-1] or None)
