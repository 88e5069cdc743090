"""Real pairs of a trace of graph replays and the trace of the capture; captures beside a trace and as options."""

from __future__ import annotations

import functools
import gzip
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from graph_profiles import capture, execution
from shared_data import shared

import annot
from annot.attribution import attribute, by_layer, summarize
from annot.attribution.graph_replays import with_captures
from annot.cli.main import main
from annot.profile import Profile
from annot.runs.gather import Ranks
from annot.runs.run import Run

SGLANG = (
    "kineto/graph_pairs/sglang_decode/execution.json.gz",
    "kineto/graph_pairs/sglang_decode/capture_bs32_rank0.json.gz",
)
VLLM = (
    "kineto/graph_pairs/vllm_decode_full/execution.json.gz",
    "kineto/graph_pairs/vllm_decode_full/capture_rank0.json.gz",
)


@functools.cache
def _loaded(name: str) -> Profile:
    return annot.load(shared(name))


@functools.cache
def _events(name: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(gzip.decompress(shared(name).read_bytes()))["traceEvents"] if "ts" in event]


def _replayed(name: str) -> list[dict[str, Any]]:
    events = _events(name)
    (launch,) = (event for event in events if event["name"] == "hipGraphLaunch")
    ran = (event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    found = [event for event in ran if event["args"]["correlation"] == launch["args"]["correlation"]]
    return sorted(found, key=lambda event: event["ts"])


def _captured(name: str) -> list[tuple[str, str]]:
    """The kernel of each captured launch, and the last nn.Module event that began before it and ends after it."""
    events = sorted(_events(name), key=lambda event: event["ts"])
    begin, end = (
        next(event["ts"] for event in events if event["name"] == f"hipStream{what}Capture") for what in ("Begin", "End")
    )
    modules = [event for event in events if event["name"].startswith("nn.Module: ")]
    launches = [event for event in events if begin < event["ts"] < end and "kernel" in event.get("args", {})]
    around = (
        [module for module in modules if module["ts"] <= launch["ts"] < module["ts"] + module["dur"]][-1:]
        for launch in launches
    )
    return [
        (launch["args"]["kernel"], found[0]["name"].removeprefix("nn.Module: ") if found else "")
        for launch, found in zip(launches, around, strict=True)
    ]


def test_all_kernels_of_sglang_get_the_modules_around_their_captured_launches() -> None:
    replayed, captured = _replayed(SGLANG[0]), _captured(SGLANG[1])
    assert [event["name"] for event in replayed] == [kernel for kernel, _ in captured]
    assert len(replayed) == 544
    expected = Counter[str]()
    for event, (_, module) in zip(replayed, captured, strict=True):
        expected[module] += round(event["dur"] * 1000)
    rows = by_layer(attribute(with_captures(_loaded(SGLANG[0]), [_loaded(SGLANG[1])])))
    own = rows.filter(pl.col("calls") == 0).with_columns(pl.col("layer").str.split(".").list.last())
    found = own.group_by("layer").agg(pl.col("gpu_self_ns").sum()).filter(pl.col("gpu_self_ns") > 0)
    assert dict(found.iter_rows()) == dict(expected)  # layers share RotaryEmbedding_0
    total = sum(expected.values())
    decoder = rows.filter(pl.col("layer").str.contains(r"^Qwen3DecoderLayer_\d+$"))
    around = rows.filter(pl.col("layer").is_in(["VocabParallelEmbedding_0", "RMSNorm_144", "LogitsProcessor_0"]))
    assert decoder.height == 36
    assert decoder["gpu_ns"].sum() + around["gpu_ns"].sum() == total  # 100 % of the replay
    assert decoder["gpu_ns"].sum() > 0.95 * total


def test_vllm_is_as_fine_as_the_modules_of_its_capture_and_says_so() -> None:
    assert [event["name"] for event in _replayed(VLLM[0])] == [kernel for kernel, _ in _captured(VLLM[1])]
    merged = with_captures(_loaded(VLLM[0]), [_loaded(VLLM[1])])
    assert merged.meta["notes"] == [
        "The layers of 421 GPU activities in 1 graph replay come from capture_rank0.json.gz.",
        "421 of them are in a GraphModule of torch.compile, whose layers capture_rank0.json.gz does not name.",
    ]
    rows = dict(by_layer(attribute(merged)).select("layer", "gpu_ns").iter_rows())
    assert rows["GraphModule_0"] == sum(round(event["dur"] * 1000) for event in _replayed(VLLM[0]))
    assert rows["GraphModule_0.GraphModule_0"] > 0


@pytest.mark.parametrize(("pair", "outside"), [(SGLANG, ["LogitsProcessor_0", "Sampler_0"]),
                                               (VLLM, ["LogitsProcessor_0"])], ids=["sglang", "vllm"])  # fmt: skip
def test_layers_outside_the_graph_are_beside_the_model(pair: tuple[str, str], outside: list[str]) -> None:
    """At depth 0 they keep their rows: the time of the model does not include them."""
    run = Run(with_captures(_loaded(pair[0]), [_loaded(pair[1])]))
    rows = run.view(total=True).rows.filter(phase="forward")
    upper = run.view(depth=0, total=True).rows.filter(phase="forward")
    own = rows.filter(pl.col("layer").is_in(["", *outside]))
    assert own.height == len(outside) + 1
    assert upper.select("layer", "gpu_ns").equals(own.select("layer", "gpu_ns"))
    assert run.view(depth=0, total=True).rows["gpu_self_ns"].sum() == run.meta["gpu_ns"]


@pytest.mark.parametrize(("pair", "other"), [(SGLANG, VLLM), (VLLM, SGLANG)], ids=["sglang", "vllm"])
def test_the_capture_of_another_model_is_refused_and_changes_nothing(
    pair: tuple[str, str], other: tuple[str, str]
) -> None:
    alone = _loaded(pair[0])
    merged = with_captures(alone, [_loaded(other[1])])
    (note,) = merged.meta["notes"]
    assert note.startswith("No captured graph matches 1 graph replay: GPU activity 1 of ")
    assert by_layer(attribute(merged)).equals(by_layer(attribute(alone)))


@pytest.mark.parametrize("pair", [SGLANG, VLLM], ids=["sglang", "vllm"])
@pytest.mark.parametrize("missing", [0, 200, -1])
def test_a_capture_without_one_kernel_is_refused_at_this_kernel(pair: tuple[str, str], missing: int) -> None:
    alone, whole = _loaded(pair[0]), _loaded(pair[1])
    calls = whole.launches.with_row_index("row").filter(pl.col("kernel").is_not_null())
    nodes = calls.join(whole.kernels, on=["process", "correlation"], how="anti").sort("start")
    kept = whole.launches.with_row_index("row").filter(pl.col("row") != nodes["row"][missing]).drop("row")
    merged = with_captures(alone, [replace(whole, launches=kept)])
    names = nodes["kernel"].to_list()
    less = [name for number, name in enumerate(names) if number != missing % len(names)]
    differs = next((at for at, name in enumerate(less) if name != names[at]), len(less))
    (note,) = merged.meta["notes"]
    assert f": GPU activity {differs + 1} of {len(names)} is {names[differs][:60]}" in note
    assert differs >= missing % len(names)
    assert by_layer(attribute(merged)).equals(by_layer(attribute(alone)))


@pytest.mark.parametrize("pair", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_totals_of_real_pairs_stay(pair: tuple[str, str]) -> None:
    before, after = attribute(_loaded(pair[0])), attribute(with_captures(_loaded(pair[0]), [_loaded(pair[1])]))
    for name in ("gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "host_ns", "kernels", "copies"):
        assert summarize(after)[name] == summarize(before)[name]
    assert by_layer(after)["gpu_self_ns"].sum() == summarize(before)["gpu_ns"]


def _copied(folder: Path, pair: tuple[str, str], name: str = "capture_bs32_rank0.json.gz") -> Path:
    shutil.copy(shared(pair[0]), folder / "execution.json.gz")
    shutil.copy(shared(pair[1]), folder / name)
    return folder / "execution.json.gz"


@pytest.mark.parametrize(
    "name", ["capture_bs32_rank0.json.gz", "graph_capture_rank_0.1773.pt.trace.json.gz", "bs_32.json.gz"]
)
def test_captures_beside_a_trace_are_found(tmp_path: Path, name: str) -> None:
    """By their names, or by the list of vLLM and SGLang."""
    path = _copied(tmp_path, SGLANG, name)
    (tmp_path / "execution_details.json").write_text('[{"file": "bs_32.json.gz", "batch_size": 32}, {"file": 7}, 3]')
    (tmp_path / "capture_broken.json").write_text('{"traceEvents": [{"ph"')
    run = annot.open(path)
    assert isinstance(run, Run)
    assert any("544 GPU activities" in note and name in note for note in run.meta["notes"])
    assert any("capture_broken.json" in note for note in run.meta["notes"])


@pytest.mark.slow
def test_captures_of_other_ranks_count_if_there_are_no_others(tmp_path: Path) -> None:
    path = _copied(tmp_path, SGLANG, "capture_rank7.json.gz")
    rank = _loaded(SGLANG[0]).meta["rank"]
    assert rank != 7
    assert "capture_rank7.json.gz" in annot.open(path).meta["notes"][-1]
    shutil.copy(shared(SGLANG[1]), tmp_path / f"capture_rank{rank}.json.gz")
    assert annot.open(path).meta["notes"][-1].endswith(f" come from capture_rank{rank}.json.gz.")


def test_a_folder_of_a_trace_and_its_capture_is_one_profile(tmp_path: Path) -> None:
    path = _copied(tmp_path, SGLANG)
    run = annot.open(tmp_path)
    assert isinstance(run, Run)
    assert run.path == str(path)
    path.unlink()
    assert isinstance(annot.open(tmp_path), Run)  # the capture alone


@pytest.mark.slow
def test_the_command_line_takes_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "captures").mkdir()
    path = _copied(tmp_path / "captures", SGLANG).rename(tmp_path / "execution.json.gz")
    found = str(tmp_path / "captures" / "capture_bs32_rank0.json.gz")
    assert main(["report", str(path), "--top", "20"]) == 0
    assert "Qwen3DecoderLayer" not in capsys.readouterr().out
    assert main(["report", str(path), "--capture", found, "--capture", str(shared(VLLM[1])), "--format", "json"]) == 0
    layers = {row["layer"] for row in json.loads(capsys.readouterr().out)["layers"]}
    assert "Qwen3DecoderLayer_35.Qwen3Attention_35" in layers
    assert main(["report", str(path), "--capture", str(tmp_path / "none.json")]) == 1
    assert "none.json does not exist" in capsys.readouterr().err
    assert main(["report", str(path), "--capture", found, "--rule", "nsight"]) == 2
    assert "--capture cannot be combined with --rule nsight" in capsys.readouterr().err
    trace = tmp_path / "trace.json.gz"
    assert main(["report", str(path), "--capture", found, "--format", "trace", "-o", str(trace)]) == 0
    assert b"Qwen3DecoderLayer_35" in gzip.decompress(trace.read_bytes())


def test_open_takes_profiles_and_ranks_with_captures(tmp_path: Path) -> None:
    graph = [("fc", "gemm", None)]
    run = annot.open(execution([("gemm", None)]), capture=[])
    assert run.layers["layer"].to_list() == ["(batch)"]
    path = _copied(tmp_path, SGLANG)
    loaded = annot.open(annot.load(path), capture=tmp_path / "capture_bs32_rank0.json.gz")
    assert "Qwen3DecoderLayer_0" in loaded.layers["layer"].to_list()
    ranks = Ranks([str(path), str(shutil.copy(path, tmp_path / "execution_1.json.gz"))], workers=1)
    assert "Qwen3DecoderLayer_0" in ranks.layers["layer"].to_list()
    merged = with_captures(execution([("gemm", None)]), [capture(graph)])
    assert "fc" in annot.open(merged).layers["layer"].to_list()
