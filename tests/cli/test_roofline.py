"""The command `annot roofline`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest
from sqlite_profile import SqliteProfile, training

from annot.analyze.roofs import Peaks
from annot.cli.main import main

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
    assert "Peaks of NVIDIA A100-SXM4-80GB: 2.04 TB/s" in printed
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
    """Without peaks there are no bounds, and a line says how to give them."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    assert main(["roofline", str(path)]) == 0
    assert "Peaks: unknown. Use --measure, or --peak-flops and --peak-bandwidth." in capsys.readouterr().out


def test_kernels_need_counters(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without counters says how to record them."""
    assert main(["roofline", str(source), "--by", "kernel"]) == 0
    assert "ncu --set full --nvtx" in " ".join(capsys.readouterr().out.split())


def test_measured_peaks(capsys: pytest.CaptureFixture[str]) -> None:
    """The processor of this machine is measured: products are faster in 32 bits than in 64, and the source is said."""
    pytest.importorskip("torch")
    from annot.torch.measured_peaks import measure_peaks

    peaks = Peaks(*measure_peaks("cpu"))
    assert peaks.flops["f32"] > 1e9
    assert peaks.bandwidth is not None
    assert peaks.bandwidth > 1e8
    assert "measured on this machine" in peaks.source
    with pytest.raises(ValueError, match="device 'xla' is not available"):
        measure_peaks("xla")
    assert main(["roofline", "--measure"]) == 0
    assert "measured on this machine" in " ".join(capsys.readouterr().out.split())


def test_measuring_needs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where PyTorch is not installed, the command says so."""
    monkeypatch.setitem(sys.modules, "annot.torch.measured_peaks", None)
    path = training(device=False).write(tmp_path / "run.sqlite")
    assert main(["roofline", str(path), "--measure"]) == 1
    assert "--measure needs PyTorch" in capsys.readouterr().err


def test_parquet(source: Path, tmp_path: Path) -> None:
    """Rows go to a file."""
    out = tmp_path / "rows.parquet"
    assert main(["roofline", str(source), "--format", "parquet", "-o", str(out)]) == 0
    assert pl.read_parquet(out)["layer"].to_list() == ["fc"]


@pytest.mark.parametrize(
    "words",
    [[], ["x", "--peak-flops", "1T"], ["x", "--peak-flops", "-1", "--peak-bandwidth", "1"], ["--measure", "-o", "x"]],
)
def test_wrong_usage(words: list[str]) -> None:
    """Half of the peaks, none, or a number that is none, are wrong usage."""
    assert main(["roofline", *words]) == 2
