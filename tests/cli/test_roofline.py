"""The command `annot roofline`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import polars as pl
import pytest
from sqlite_profile import SqliteProfile, training

from annot.analyze.peaks import Calibration
from annot.cli.main import main
from annot.runs.run import Run
from annot.runs.selection import Selection
from annot.util.json_files import write_json

US = 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A linear layer on a device that the profile describes."""
    profile = SqliteProfile()
    profile.add(
        "TARGET_INFO_GPU", id=0, name="NVIDIA A100-SXM4-80GB", computeMajor=8, computeMinor=0, smCount=108,
        clockRate=1_410_000_000, memoryBandwidth=2_039_040_000_000, totalMemory=1, cuDevice=0,
    )  # fmt: skip
    profile.layer("fc Linear [64,1024]f32 out=1024 |fwd", 0, 90 * US)
    profile.call(10 * US, 11 * US, 1)
    profile.kernel(20 * US, 70 * US, 1, "ampere_sgemm_128x64_tn")
    return profile.write(tmp_path / "run.sqlite")


def test_layers_against_the_device_of_the_profile(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The peaks are printed with their source, then the layers."""
    assert main(["roofline", str(source), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "device table" in found["meta"]["peaks"]["source"]
    row = found["layers"][0]
    assert (row["layer"], row["flops"], row["precision"]) == ("fc", 2 * 64 * 1024 * 1024, "f32")
    assert row["flops_per_s"] == pytest.approx(row["flops"] / 50e-6)
    assert row["bound"] == "compute"
    assert main(["roofline", str(source)]) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    assert "Peaks: NVIDIA A100-SXM4-80GB: 2.04 TB/s, " in words
    assert "f32 19.5 TFLOP/s, " in words
    assert "(the profile's device table: 108 multiprocessors at 1.41 GHz)" in words
    assert "fc Linear     forward" in printed


def test_peaks_by_hand(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is given by hand counts, and is said to be."""
    words = ["--peak-flops", "19.5T", "--peak-bandwidth", "1G", "--format", "json"]
    assert main(["roofline", str(source), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["meta"]["peaks"] == {
        "device": "",
        "source": "given by hand",
        "flops": {"any": 19.5e12},
        "bandwidth": 1e9,
    }
    assert found["layers"][0]["bound"] == "memory"


def test_unknown_device_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without peaks there are no bounds, and a line says how to give them, in every table that shows bounds."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    for words in (["roofline"], ["report", "--columns", "roofline"], ["report", "--columns", "all"]):
        assert main([*words, str(path)]) == 0
        assert "Peaks: unknown. The profile does not name its GPU. Use --peaks FILE." in capsys.readouterr().out


def test_peaks_of_a_file(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bounds are those under the roofs of the file, in the roofline, the report and the page."""
    slow = Calibration("Slow", None, {"f32": 1e9}, 1e12, {}, datetime.date(2026, 1, 2), {})
    write_json(tmp_path / "slow.json", slow)
    words = [str(source), "--peaks", str(tmp_path / "slow.json")]
    peaks = {"device": "Slow", "flops": {"f32": 1e9}, "bandwidth": 1e12}
    for verb in (["roofline"], ["report", "--columns", "roofline"]):
        assert main([*verb, *words, "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["meta"]["peaks"].items() >= peaks.items()
        assert found["meta"]["peaks"]["source"] == (
            f"from {tmp_path / 'slow.json'}, measured on 2026-01-02; the profile is of NVIDIA A100-SXM4-80GB"
        )
        row = next(rows[0] for name, rows in found.items() if name != "meta")
        assert row["roof_share"] == pytest.approx(2 * 64 * 1024 * 1024 / 50e-6 / 1e9)
        assert main([*verb, *words]) == 0
        assert "Peaks: Slow: 1.00 TB/s, f32 1.00 GFLOP/s (from" in capsys.readouterr().out
    assert main(["report", *words, "-o", str(tmp_path / "page.html")]) == 0
    page = Run(source, Selection(peaks=tmp_path / "slow.json")).page_of_run()
    assert page["texts"]["peaks"].startswith("Slow: 1.00 TB/s, f32 1.00 GFLOP/s (from")


def test_the_file_of_the_peaks_must_be_readable(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error, before the profile is read."""
    for verb in ("roofline", "report"):
        assert main([verb, str(source), "--peaks", str(source)]) == 1
        assert "run.sqlite is not a file of annot calibrate, or damaged" in capsys.readouterr().err


def test_kernels_need_counters(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without counters says how to record them."""
    assert main(["roofline", str(source), "--by", "kernel"]) == 0
    assert "ncu --set full --nvtx" in " ".join(capsys.readouterr().out.split())


def test_parquet(source: Path, tmp_path: Path) -> None:
    """Rows go to a file."""
    out = tmp_path / "rows.parquet"
    assert main(["roofline", str(source), "--format", "parquet", "-o", str(out)]) == 0
    assert pl.read_parquet(out)["layer"].to_list() == ["fc"]


@pytest.mark.parametrize(
    "words",
    [
        [], ["x", "--peak-flops", "1T"], ["x", "--peak-flops", "-1", "--peak-bandwidth", "1"],
        ["x", "--peak-flops", "1T", "--peak-bandwidth", "1T", "--peaks", "y"],
    ],
)  # fmt: skip
def test_wrong_usage(words: list[str]) -> None:
    """Half of the peaks, none, or a number that is none, are wrong usage."""
    assert main(["roofline", *words]) == 2
