"""Reports of Nsight Compute, real and written by `ncu_report_file`."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncu_report_file import DEFAULT, Kernel, texts, training, write
from random_inputs import examples
from refusals import refusal
from shared_data import shared

from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.ncu import csv_export, ncu_rep

DATA = Path(__file__).parents[1] / "data"
needs_library = pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="needs ncu-report")


def read(path: Path) -> Profile:
    assert ncu_rep.sniff(path, path.read_bytes()[:65536])
    return ncu_rep.read(path)


@needs_library
def test_real_report_of_a_graph():
    profile = read(shared("ncu/jaxtb_cuda_graph_pdl.ncu-rep"))
    kernels = profile.kernels.select("process", "device", "stream", "start", "end", "name").rows()
    assert kernels == [
        (4733, 0, 16, 0, 5184, "kernelA(float *, int)"),
        (4733, 0, 16, 5184, 10048, "kernelB(float *, int)"),
        (4733, 0, 19, 10048, 14944, "kernelC(float *, int)"),
    ]
    assert profile.launches["thread"].to_list() == [4733] * 3
    assert profile.ranges.is_empty()
    assert profile.meta["producer"] == "Nsight Compute 2025.3.1.0 (build 36398880) (public-release)"
    assert "The profile has no NVTX ranges" in profile.meta["notes"][0]
    values = dict(profile.metrics.filter(pl.col("kernel") == 0).select("name", "value").rows())
    assert values["gpu__time_duration.sum"] == 5184
    assert values["launch__stream_id"] == 16
    assert "device__attribute_display_name" not in values
    assert profile.metrics.height == 3 * 2442


@needs_library
@pytest.mark.parametrize(("kernels", "printed"), [(training, "ncu_raw_training.csv"), (texts, "ncu_raw_texts.csv")])
def test_report_and_what_ncu_prints_of_it_say_the_same(tmp_path: Path, kernels, printed: str):
    report, csv = read(write(tmp_path / "x.ncu-rep", kernels())), csv_export.read(DATA / printed)
    assert report.ranges.drop("payload").equals(csv.ranges.drop("payload"))
    assert report.launches.equals(csv.launches)
    columns = ("process", "start", "end", "name", "correlation")
    assert report.kernels.select(columns).equals(csv.kernels.select(columns))
    scale = pl.col("unit").replace_strict({"Kbyte": 1000, "usecond": 1000}, default=1)
    assert report.metrics["name"].equals(csv.metrics["name"])
    printed_values = csv.metrics.select(pl.col("value") * scale).to_series()
    assert (report.metrics["value"] - printed_values).abs().max() < 1e-6


@needs_library
def test_processes_and_threads_come_from_the_frame(tmp_path: Path):
    metrics = {"gpu__time_duration.sum": 10.0}
    kernels = [Kernel(process=7 + index % 2, thread=20 + index, metrics=metrics) for index in range(4)]
    profile = read(write(tmp_path / "x.ncu-rep", kernels))
    assert profile.launches.select("process", "thread").rows() == [(7, 20), (8, 21), (7, 22), (8, 23)]
    assert profile.kernels["end"].to_list() == [10, 10, 20, 20]


_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
_STACKS = st.dictionaries(
    st.sampled_from([DEFAULT, "annot", "b"]), st.lists(_NAMES, min_size=1, max_size=3), max_size=2
)


@needs_library
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_STACKS, min_size=1, max_size=6))
def test_each_kernel_lies_in_the_ranges_that_were_open(tmp_path: Path, stacks: list[dict[str, list[str]]]):
    profile = read(write(tmp_path / "x.ncu-rep", [Kernel(pushed=stack) for stack in stacks]))
    for instant, stack in enumerate(stacks):
        around = profile.ranges.filter((pl.col("start") <= instant) & (pl.col("end") >= instant))
        for domain, names in stack.items():
            named = "" if domain == DEFAULT else domain
            found = around.filter(pl.col("domain") == named).sort("start", "end", "id", descending=[False, True, False])
            assert found["text"].to_list() == names
        assert around.height == sum(map(len, stack.values()))


def test_without_the_library_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "x.ncu-rep", [Kernel()])
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(AnnotError, match=r"x\.ncu-rep is a report of Nsight Compute, .*: pip install ncu-report$"):
        ncu_rep.read(path)


@needs_library
def test_a_report_without_results_is_one_sentence(tmp_path: Path):
    with pytest.raises(AnnotError, match="without results"):
        ncu_rep.read(write(tmp_path / "x.ncu-rep", []))


@needs_library
def test_a_parser_that_dies_takes_nobody_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dying = tmp_path / "worker.py"
    dying.write_text("import os; os.abort()")
    monkeypatch.setattr(ncu_rep, "_WORKER", dying)
    with pytest.raises(AnnotError, match="damaged report"):
        ncu_rep.read(write(tmp_path / "x.ncu-rep", [Kernel()]))


def test_every_cut_is_noticed(tmp_path: Path):
    whole = write(tmp_path / "x.ncu-rep", [Kernel(), Kernel()]).read_bytes()
    ends = {len(whole)}
    refused = []
    for size in range(len(whole)):
        path = tmp_path / "cut.ncu-rep"
        path.write_bytes(whole[:size])
        try:
            _, origins = ncu_rep.open_envelope(path)
        except AnnotError as error:
            refused.append(str(error))
        else:
            ends.add(size)
            assert origins is not None
            assert len(origins) < 2
    assert all("cut.ncu-rep is a truncated or damaged report" in said for said in refused)
    # Where a block ends nothing is missing from what is there: after the head, two blocks and the first kernel.
    assert len(ends) == 1 + 2 + 1 + 1


def test_flipped_bits_in_the_frame_end_in_a_sentence(tmp_path: Path):
    whole = write(tmp_path / "x.ncu-rep", training()).read_bytes()
    chance = random.Random(0)
    path = tmp_path / "flipped.ncu-rep"
    read_frames = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with contextlib.suppress(AnnotError):
            ncu_rep.open_envelope(path)
            read_frames += 1
    assert read_frames < 400


@pytest.mark.slow
@needs_library
def test_damaged_copies_of_the_real_report_are_read_or_refused(tmp_path: Path):
    whole = shared("ncu/jaxtb_cuda_graph_pdl.ncu-rep").read_bytes()
    chance = random.Random(1)
    path = tmp_path / "damaged.ncu-rep"
    refused = 0
    for index in range(12):
        data = bytearray(whole)
        if index % 3 == 0:
            del data[chance.randrange(5, len(data)) :]
        for _ in range((0, 1, 40)[index % 3]):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        path.write_bytes(data)
        said = refusal(ncu_rep, path)
        assert str(path) in said
        refused += said != str(path)
    assert refused >= 4
