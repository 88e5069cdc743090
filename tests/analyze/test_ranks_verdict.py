"""The sentence about the ranks of a run: its numbers are those of the ranks, and it is wherever their report is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ranked import ALL_REDUCE
from shared_data import unpacked
from sqlite_profile import SqliteProfile
from tables import Rows

from annot.analyze.advice import Facts
from annot.analyze.verdict import RankTimes, ranks_verdict, times_of_rank
from annot.attribution.attribute import attribute
from annot.cli.main import main
from annot.profile import Profile
from annot.runs.gather import Ranks
from annot.runs.selection import Selection

US = 1000
ONE = RankTimes(2e6, 0.2, "all_reduce", True, 1, "A100")


def _of(*ranks: RankTimes) -> str:
    return ranks_verdict(dict(enumerate(ranks)))


def _write(folder: Path, *computing: int) -> list[str]:
    """Write a profile per rank: three steps of 1000 µs, a kernel from 10 µs on, then an all-reduce until 960 µs."""
    paths = []
    for rank, length in enumerate(computing):
        profile = SqliteProfile()
        for step in range(3):
            zero = step * 1000 * US
            profile.range(f"Batch {step} |step", zero, zero + 1000 * US, domain="annot")
            profile.range("fc Linear |fwd", zero + US, zero + 9 * US, domain="annot")
            end = zero + (10 + length) * US
            kernels = ((zero + 10 * US, end, "gemm"), (end, zero + 960 * US, ALL_REDUCE))
            for number, (start, stop, name) in enumerate(kernels, 2 * step):
                profile.call(zero + (2 + number) * US, zero + (3 + number) * US - 1, number)
                profile.kernel(start, stop, number, name)
        paths.append(str(profile.write(folder / f"run_rank{rank}.sqlite")))
    return paths


def test_the_slowest_rank_and_the_wait_for_it(tmp_path: Path) -> None:
    """Outside the all-reduce, rank 2 takes 650 µs of each step and the others 550 µs; they wait 100 µs longer."""
    expected = "rank 2 is the slowest by 18%, and the others wait 10% of the step for it in all_reduce."
    paths = _write(tmp_path, 500, 500, 600, 500)
    assert Ranks(paths, workers=1).view().meta["verdict"] == f"Step 1.00 ms on 4 GPUs: {expected}"


@pytest.mark.slow
def test_reports_begin_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, JSON and page have the same sentence; a damaged rank leaves that of the others."""
    paths = _write(tmp_path, 500, 500, 600)
    verdict = Ranks(paths, workers=1).view().meta["verdict"]
    for by in ("layer", "phase"):
        assert main([*paths, "--by", by]) == 0
        assert " ".join(capsys.readouterr().out.split()).startswith(verdict)
    assert main([*paths, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["verdict"] == verdict
    assert Ranks(paths, workers=1).page()["ranks"]["verdict"] == verdict
    Path(paths[0]).write_bytes(b"")
    fewer = Ranks(paths, workers=1).view().meta["verdict"]
    assert fewer == verdict.replace("3 GPUs", "2 GPUs").replace("others wait", "other one waits")


def test_real_ranks(tmp_path: Path) -> None:
    """Two H100 that do the same are alike."""
    path = unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path)
    report = Ranks([str(path)], Selection(by_process=True), workers=1).view()
    assert report.meta["verdict"] == "Run 299 ms on 2 GPUs: no rank is more than 5% slower than the others."


def test_the_threshold() -> None:
    """From 5 % of the time of the others, a rank is slow; wait, factor and number of the others are in words."""
    assert _of() == _of(ONE) == ""
    alike = "no rank is more than 5% slower than the others, and 20% exposed communication, mostly in all_reduce."
    assert _of(ONE, ONE, ONE) == f"Step 2.00 ms on 3 × A100: {alike}"
    below, above = (replace(ONE, ns=2e6 * share) for share in (1.049, 1.051))
    assert "no rank is more than 5%" in _of(ONE, below, ONE)
    assert "rank 1 is the slowest by 5%, and 20% exposed communication" in _of(ONE, above, ONE)
    assert "the others wait 10% of the step for it in all_reduce." in _of(ONE, ONE, replace(ONE, waiting=0.1))
    late = _of(replace(ONE, waiting=0.9), replace(ONE, waiting=0.0, operation=""))
    assert "rank 1 is slower than the others by a factor of 10.0, and the other one waits 90% of the step" in late
    quiet = replace(ONE, waiting=0.0, operation="", stepped=False)
    assert _of(quiet, quiet) == "Run 2.00 ms on 2 × A100: no rank is more than 5% slower than the others."


def test_devices() -> None:
    """GPUs of several ranks add up; different names have none; ranks on a CPU share it."""
    assert " on 4 × A100: " in _of(replace(ONE, gpus=2), replace(ONE, gpus=2))
    assert " on 2 GPUs: " in _of(ONE, replace(ONE, device="H100"))
    cpu = replace(ONE, gpus=0, device="AMD EPYC")
    assert " of 2 ranks on AMD EPYC: " in _of(cpu, cpu)
    assert " of 2 ranks: " in _of(cpu, ONE)


def test_a_wait_is_named_from_1_percent_of_the_step_on() -> None:
    def wait(share: float) -> str:
        others = replace(ONE, ns=1000.0, waiting=share)
        return _of(others, others, replace(ONE, ns=1100.0, waiting=0.0))

    assert wait(0.01).endswith("rank 2 is the slowest by 11%, and the others wait 1% of the step for it in all_reduce.")
    assert wait(0.0095).endswith("rank 2 is the slowest by 11%.")


def test_exposed_communication_of_equal_ranks_is_named_from_5_percent_on() -> None:
    at, below = (replace(ONE, waiting=share) for share in (0.05, 0.049))
    assert _of(at, at).endswith("and 5% exposed communication, mostly in all_reduce.")
    assert _of(below, below).endswith("no rank is more than 5% slower than the others.")


def test_a_rank_that_takes_twice_the_time_is_slower_by_a_factor() -> None:
    assert "rank 1 is slower than the others by a factor of 2.0" in _of(ONE, replace(ONE, ns=2 * ONE.ns))
    assert "rank 1 is the slowest by 99%" in _of(ONE, replace(ONE, ns=1.99 * ONE.ns))


def test_the_first_of_equally_slow_ranks_is_named() -> None:
    late = replace(ONE, ns=1.5 * ONE.ns)
    assert "rank 1 is the slowest by 50%" in _of(ONE, late, late, ONE, ONE)


def test_one_rank_without_steps_makes_the_sentence_one_about_the_run() -> None:
    assert _of(ONE, replace(ONE, stepped=False)).startswith("Run 2.00 ms")
    assert _of(ONE, ONE).startswith("Step 2.00 ms")


def test_a_rank_on_a_cpu_has_no_gpus() -> None:
    times = times_of_rank(Facts(attribute(Rows().range("fc Linear |fwd", 0, 900 * US).build())), None)
    assert times == RankTimes(900 * US, 0.0, "", False, 0, "")


def test_times_of_a_rank_are_those_of_its_profile() -> None:
    rows = Rows()
    for step in range(3):
        zero = 1000 * US * step
        rows.range(f"Batch {step} |step", zero, zero + 1000 * US).range("fc Linear |fwd", zero, zero + 500 * US)
        for device in (0, 1):
            rows.kernel(zero + 1, (zero + 2, zero + 600 * US), name="gemm", device=device)
            rows.kernel(zero + 3, (zero + 600 * US, zero + 700 * US), name=ALL_REDUCE, device=device)
            rows.kernel(zero + 4, (zero + 700 * US, zero + 900 * US), name="ncclDevKernel_AllGather", device=device)
    facts = Facts(attribute(rows.build(devices=[{"name": "NVIDIA H100"}] * 2)))
    times = times_of_rank(facts, 1000.0 * US)
    assert times == RankTimes(1000.0 * US, pytest.approx(0.3), "all_gather", True, 2, "H100")
    run = times_of_rank(facts, None)
    assert run is not None
    assert (run.ns, run.stepped) == (facts.wall_ns / 2, False)
    assert times.work_ns == pytest.approx(700 * US)


def test_the_operation_of_a_rank_on_a_cpu_is_not_its_wait() -> None:
    rows = Rows().range("fc Linear |fwd", 0, 900 * US).range("Collective all_reduce.wait |coll", 900 * US, 1000 * US)
    times = times_of_rank(Facts(attribute(rows.build())), None)
    assert times == RankTimes(1000 * US, 0.1, "all_reduce", False, 0, "")


def test_a_profile_without_times_is_no_rank() -> None:
    assert times_of_rank(Facts(attribute(Profile.build({}))), None) is None
