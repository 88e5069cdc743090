"""Profiles that are ranks of one run, and profiles that are not: real ones, and both sides of each limit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared, unpacked

import annot
from annot.analyze.comparison.same_run import Program, difference, program_of
from annot.attribution.attribute import attribute
from annot.cli.main import main

LAYERS = {"embed": 10, "layers.#.mlp": 90}
A = Program("torch.profiler", None, None, True, "H100", LAYERS, {"gemm": 80, "copy": 20})


def test_unrelated_profiles_are_refused_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nsys = unpacked("nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz", tmp_path)
    kineto = [
        shared(f"kineto/{name}.json.gz")
        for name in ("tracelens_mi300_resnet18_train_nnmodule_seq", "tracelens_mi300_sglang_decode_graph_exec")
    ]
    for pair, reason in (
        ([nsys, kineto[0]], "the profilers differ: "),
        (kineto, "they have other layers, such as Sequential_#.BasicBlock_#.Conv#d_# in A and decode step in B"),
    ):
        assert main(["report", *map(str, pair), "--workers", "1"]) == 1
        error = capsys.readouterr().err
        assert f"(B) are not ranks of one run: {reason}" in error
        assert all(str(path) in error for path in pair)
        assert error.count("\n") == 1


def test_copies_and_other_ranks_of_a_program_are_merged(tmp_path: Path) -> None:
    path = shared("kineto/tracelens_h100_bert_small_nnmodule.json.gz")
    ranks = annot.open([path, shutil.copy(path, tmp_path / "other.json.gz")])
    assert len(ranks.view().ranks) == 2  # type: ignore[union-attr]
    program = program_of(attribute(annot.load(path)))
    assert (program.profiler, program.on_gpu) == ("torch.profiler", True)
    assert any("BertLayer_#" in layer for layer in program.layers)
    assert "(unattributed)" not in program.layers


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"profiler": "Nsight Systems"}, "the profilers differ: torch.profiler and Nsight Systems"),
        ({"on_gpu": False}, "only A contains GPU activities"),
        ({"devices": "A100"}, "the devices differ: H100 and A100"),
        ({"devices": ""}, ""),
        ({"layers": {"embed": 10, "conv": 10}}, ""),
        ({"layers": {"embed": 10, "conv": 11}}, "they have other layers, such as layers.#.mlp in A and conv in B"),
        ({"layers": {"layers.#.mlp": 1, "head": 50}}, ""),
        ({"kernels": {"copy": 1, "conv": 9}}, ""),
        ({"kernels": {"other": 91, "conv": 9}}, "they have other kernels, such as gemm in A and other in B"),
        (
            {"layers": {}, "kernels": {"copy": 9, "conv": 11}},
            "they have other kernels, such as gemm in A and conv in B",
        ),
        ({"layers": {}, "kernels": {"gemm": 9, "conv": 11}}, ""),
        ({"layers": {}, "kernels": {}}, ""),
    ],
)
def test_what_ranks_have_in_common(changes: dict[str, Any], reason: str) -> None:
    """Without a recorded rank: profiler, devices, half of the time by layer, a tenth of that by kernel."""
    assert difference(A, replace(A, **changes)) == reason


def test_recorded_ranks_of_one_world_may_run_other_layers_on_other_hosts() -> None:
    first = replace(A, rank=0, world_size=2)
    stage = replace(A, rank=1, world_size=2, devices="A100", layers={"head": 5}, kernels={"softmax": 5})
    assert difference(first, stage) == ""
    assert difference(first, replace(stage, world_size=4)) == "the numbers of ranks differ: 2 and 4"
    assert difference(first, replace(stage, rank=0)) == "the devices differ: H100 and A100"
    alone = replace(stage, world_size=1)
    assert difference(replace(first, world_size=1), alone) == "the devices differ: H100 and A100"
    assert difference(replace(first, world_size=None), stage) == "the devices differ: H100 and A100"
