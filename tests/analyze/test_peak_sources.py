"""Where the peaks of a device come from: a given file, this machine, a file of another machine, the data sheet."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import Rows

import annot
from annot.analyze.hardware_counters import default_peaks
from annot.analyze.peaks import Calibration, calibration_folder, file_of, read_calibration
from annot.analyze.roofline import layer_roofline
from annot.attribution.attribute import attribute
from annot.errors import AnnotError
from annot.profile import Profile
from annot.util.json_files import as_json

A100 = {
    "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "smCount": 108, "clockRate": 1_410_000_000,
    "memoryBandwidth": 2_039_040_000_000, "cuDevice": 0,
}  # fmt: skip
CPU = "AMD EPYC 7763"
DAY = datetime.date(2026, 11, 25)


def calibration(device: str = A100["name"], threads: int | None = None, **rates: float) -> Calibration:
    flops = {name.replace("_", " "): rate for name, rate in rates.items()} or {"f32": 14e12, "bf16 tensor": 250e12}
    return Calibration(device, threads, flops, 1.7e12, {"bf16 tensor": 200e12}, DAY, {"PyTorch": "2.13"})


def write(path: Path | None, contents: Calibration | bytes) -> Path:
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents if isinstance(contents, bytes) else as_json(contents))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files, in an empty data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = calibration_folder()
    assert found == tmp_path / "data" / "annot" / "peaks"
    return found


def on_gpu(**device: Any) -> Profile:
    rows = Rows().range("fc Linear [64,1024]f32 out=1024 |fwd", 0, 90_000)
    return rows.kernel(10, (20, 50_020), name="ampere_sgemm_128x64_tn").build(devices=[A100 | device])


def on_cpu(cpu: str = CPU, threads: int | None = 2, **more: Any) -> Profile:
    rows = Rows().range("fc Linear [64,1024]f32 out=1024 |fwd", 0, 9_000_000)
    counts = {"threads": threads, "cores": 8} if threads else {"cores": 8}
    return rows.build(cpu=cpu, processes=[{"process": 1, "cpu": counts}], **more)


def test_sources_in_order(folder: Path) -> None:
    """A given file comes before this machine, this machine before a file of another one, that before the data sheet."""
    attribution = attribute(on_gpu())
    paper = default_peaks(attribution)
    assert paper.of("f32") == pytest.approx(19.5e12, rel=0.01)
    assert "device table" in paper.source
    write(folder / "any name.json", calibration(f32=11e12))
    assert default_peaks(attribution).of("f32") == 11e12
    assert default_peaks(attribution).source.startswith(f"from {folder / 'any name.json'}, measured on 2026-11-25")
    write(file_of(A100["name"], None), calibration(f32=12e12))
    here = default_peaks(attribution)
    assert (here.of("f32"), here.bandwidth) == (12e12, 1.7e12)
    assert here.source.startswith("measured here on 2026-11-25 with PyTorch 2.13")
    given_file = write(folder.parent / "given.json", calibration(f32=13e12))
    run = annot.open(on_gpu(), peaks=given_file)
    assert default_peaks(run.attribution).of("f32") == 13e12  # type: ignore[union-attr]
    share = layer_roofline(attribution, here)["roof_share"].item()
    assert share == pytest.approx(2 * 64 * 1024 * 1024 / 50e-6 / 12e12)


def test_precisions_that_a_file_lacks_keep_the_data_sheet(folder: Path) -> None:
    """The rest is not measured, and the source names it."""
    write(file_of(A100["name"], None), calibration(**{"f32": 14e12, "bf16 tensor": 250e12, "f16 tensor": 240e12}))
    peaks = default_peaks(attribute(on_gpu()))
    assert (peaks.of("f32"), peaks.of("bf16", tensor_cores=True)) == (14e12, 250e12)
    assert peaks.of("f64", tensor_cores=True) == pytest.approx(19.5e12, rel=0.01)
    rest = peaks.source.partition("; ")[2]
    assert rest.startswith("f64, f16, bf16, f64 tensor, tf32 tensor: the profile's device table")


def test_a_cpu_has_a_file_for_each_number_of_threads(folder: Path) -> None:
    """A profile of two threads is under the roof of two threads; without, a line says how to measure it."""
    attribution = attribute(on_cpu())
    assert layer_roofline(attribution, default_peaks(attribution))["bound"].to_list() == [None]
    missing = default_peaks(attribution)
    assert missing.device == f"{CPU}, 2 threads"
    assert "Run `annot calibrate --device cpu --threads 2` on this CPU" in missing.source
    write(file_of(CPU, 4), calibration(CPU, 4, f32=400e9))
    assert not default_peaks(attribution).flops
    write(file_of(CPU, 2), calibration(CPU, 2, f32=200e9))
    assert file_of(CPU, 2) != file_of(CPU, 4)
    peaks = default_peaks(attribution)
    assert (peaks.of("f32"), peaks.device) == (200e9, f"{CPU}, 2 threads")
    bounds = layer_roofline(attribution, peaks)
    assert bounds["bound"].to_list() == ["compute"]
    assert bounds["roof_share"].item() == pytest.approx(2 * 64 * 1024 * 1024 / 9e-3 / 200e9)
    assert default_peaks(attribute(on_cpu(threads=None))).flops  # any number of threads


def test_a_gpu_that_did_nothing_gives_no_roof() -> None:
    """A run on the CPU of a machine with a GPU has CPU times."""
    peaks = default_peaks(attribute(on_cpu(devices=[A100])))
    assert (peaks.flops, peaks.device) == ({}, f"{CPU}, 2 threads")


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (on_cpu(""), "The profile does not name its CPU. Use --peaks FILE."),
        (on_gpu(name="", computeMajor=0), "The profile does not name its GPU. Use --peaks FILE."),
        (on_gpu(name="Odd 1", computeMajor=0), "Run `annot calibrate` on this GPU, or use --peaks FILE."),
    ],
)
def test_unknown_peaks_say_what_to_do(profile: Profile, words: str) -> None:
    """The way out depends on what the profile names."""
    peaks = default_peaks(attribute(profile))
    assert not peaks.flops
    assert words in peaks.source


def test_given_peaks_of_another_device(folder: Path) -> None:
    """They count, and the source says that the profile is of another device."""
    path = write(folder / "h100.json", calibration("NVIDIA H100"))
    peaks = default_peaks(annot.open(on_gpu(), peaks=path).attribution)  # type: ignore[union-attr]
    assert peaks.device == "NVIDIA H100"
    assert peaks.source.endswith("; the profile is of NVIDIA A100-SXM4-80GB")
    with pytest.raises(TypeError, match="peaks must be the path of a file"):
        annot.open(on_gpu(), peaks=3)  # type: ignore[arg-type]


def test_a_damaged_file_is_named_and_skipped(folder: Path) -> None:
    """A report is written nevertheless, with the next source."""
    bad = write(folder / "measured" / "a.json", b"{")
    peaks = default_peaks(attribute(on_gpu()))
    assert "device table" in peaks.source
    assert f"{bad} is not a file of annot calibrate, or damaged" in peaks.source
    assert str(bad) in default_peaks(attribute(on_cpu())).source
    write(folder / "b.json", calibration(f32=1e12))
    assert default_peaks(attribute(on_gpu())).of("f32") == 1e12


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"14000000000000.0", b"-1"), (b"14000000000000.0", b"0"), (b"14000000000000.0", b"1e400"),
        (b"14000000000000.0", b"2e21"), (b"14000000000000.0", b"NaN"), (b"14000000000000.0", b"true"),
        (b'"f32"', b'"f33"'), (b'"annot peaks 1"', b'"annot peaks 2"'), (b'"2026-11-25"', b'"yesterday"'),
        (b"null", b"0"), (b"null", b'"2"'), (b'"NVIDIA A100-SXM4-80GB"', b'""'), (b"NVIDIA", b"N" * 200),
        (b"NVIDIA", b"\xff"), (b"{", b"[" * 5000), (b"NVIDIA", b" " * (1 << 17)), (b'"flops"', b'"flips"'),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(before: bytes, after: bytes, tmp_path: Path) -> None:
    """One sentence names the file; nothing of it is used."""
    contents = as_json(calibration())
    assert before in contents
    path = write(tmp_path / "x.json", contents.replace(before, after, 1))
    with pytest.raises(AnnotError, match=r"x\.json is not a file of annot calibrate, or damaged: .") as caught:
        read_calibration(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AnnotError, match=r"none\.json cannot be read: No such file"):
        read_calibration(tmp_path / "none.json")
    with pytest.raises(AnnotError, match="cannot be read: Is a directory"):
        read_calibration(tmp_path)


_RATES = st.floats(1e-3, 1e21)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)


@given(
    st.builds(
        Calibration, _TEXTS, st.none() | st.integers(1, 4096),
        st.dictionaries(st.sampled_from(["f32", "tf32 tensor", "f8 tensor"]), _RATES, min_size=1), _RATES,
        st.dictionaries(st.sampled_from(["f32"]), _RATES), st.dates(), st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    )
)  # fmt: skip
def test_files_are_read_as_they_were_written(contents: Calibration) -> None:
    assert msgspec.json.decode(as_json(contents), type=Calibration) == contents


def test_without_a_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder and an unknown home are no places for data: reports go on with the data sheet."""
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "unknown")
    assert calibration_folder() is None
    assert file_of("x", None) is None
    assert default_peaks(attribute(on_gpu())).flops
