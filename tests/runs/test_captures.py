"""Real pairs of a trace of graph replays and the trace of the capture; captures beside a trace and as options."""

from __future__ import annotations

import functools
import gzip
import json
import os
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
from annot.attribution.attribute import attribute
from annot.attribution.graphs import with_captures
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.profile import Profile
from annot.runs.gather import Ranks
from annot.runs.run import Run
from annot.runs.selection import Selection

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


XDIT = (
    "kineto/graph_pairs/xdit_flux_aiter/execution.json.gz",
    "kineto/graph_pairs/xdit_flux_aiter/capture_rank0.json.gz",
)
VLLM_TRACE = "dp0_pp0_tp0_dcp0_ep0_rank0.1773709742341309551.pt.trace.json.gz"
VLLM_CAPTURE = "capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
SGLANG_TRACE = "1786734684.9990146-TP-0.trace.json.gz"
SGLANG_CAPTURE = "graph_capture_profile/cuda_graph_capture-DecodeCudaGraphRunner-TP-{}.json.gz"


def _placed(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files, copies of shared profiles or contents, and return the first."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shared(content).read_bytes() if isinstance(content, str) else gzip.compress(content, 1))
    return folder / next(iter(files))


def _batches(*sizes: int) -> bytes:
    """The trace of SGLang's capture once for each batch size, one after the other. Some kernels are those of a size.

    Traces of replays on AMD GPUs have no grids.
    """
    whole = json.loads(gzip.decompress(shared(SGLANG[1]).read_bytes()))
    events = []
    for number, size in enumerate(sizes):
        for event in json.loads(json.dumps(whole["traceEvents"])):
            args = event.get("args", {})
            if "ts" in event:
                event["ts"] += number * 60_000_000
            for key in ("correlation", "External id"):
                if key in args:
                    args[key] += number * 10_000_000
            if "norm" in args.get("kernel", "") and size != 32:
                args["kernel"] += f"<{size}>"
            events.append(event)
    return json.dumps(whole | {"traceEvents": events}).encode()


def _share_in_layers(run: Run) -> float:
    """Share of the GPU time in the model."""
    modules = run.layers.filter(pl.col("module") != "")
    return float(modules["gpu_ns"].max() / run.layers["gpu_self_ns"].sum())  # type: ignore[operator]


@pytest.mark.parametrize(
    "files",
    [
        {VLLM_TRACE: VLLM[0], VLLM_CAPTURE: VLLM[1], "capture_traces/execution_details.json": b"[]"},
        {SGLANG_TRACE: SGLANG[0], "capture_traces/bs_32_rank0.json.gz": SGLANG[1]},
        {SGLANG_TRACE: SGLANG[0], SGLANG_CAPTURE.format(0): SGLANG[1]},
        {f"1786734684.99/{SGLANG_TRACE}": SGLANG[0], SGLANG_CAPTURE.format(0): SGLANG[1]},
        {SGLANG_TRACE: SGLANG[0], "graph_capture_profile/EagleDraftRunner_bs_4_rank0.json.gz": SGLANG[1]},
    ],
    ids=["vllm", "sglang", "sglang one file", "sglang run", "sglang batches"],
)
def test_captures_are_found_where_servers_write_them(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    path = _placed(tmp_path, files)
    run = annot.open(path)
    assert isinstance(run, Run)
    assert _share_in_layers(run) > 0.9
    assert any(note.endswith(f" come from {Path(list(files)[1]).name}.") for note in run.meta["notes"])
    alone = annot.open(_placed(tmp_path / "elsewhere" / "deep" / "er", {path.name: files[next(iter(files))]}))
    assert isinstance(alone, Run)
    assert _share_in_layers(alone) < 0.1


def test_captures_outside_of_given_folders_are_left_alone(tmp_path: Path) -> None:
    """Neither those in the folder around that of the trace, nor those that a link leads to. A pipe is no list."""
    files: dict[str, str | bytes] = {f"run/{SGLANG_TRACE}": SGLANG[0], SGLANG_CAPTURE.format(0): SGLANG[1]}
    path = _placed(tmp_path, files)
    (path.parent / "capture_link.json.gz").symlink_to(tmp_path / SGLANG_CAPTURE.format(0))
    os.mkfifo(path.parent / "execution_details.json")  # nobody writes to it
    assert _share_in_layers(Run(path, Selection(within=(tmp_path.resolve(),)))) > 0.9
    assert _share_in_layers(Run(path, Selection(within=(path.parent.resolve(),)))) < 0.1


def test_the_graph_of_a_batch_size_is_chosen_by_its_kernels(tmp_path: Path) -> None:
    """One file has all batch sizes of a rank; other files have the graphs of other ranks and of other batch sizes."""
    path = _placed(
        tmp_path,
        {
            SGLANG_TRACE: SGLANG[0],
            SGLANG_CAPTURE.format(0): _batches(16, 32, 64),
            SGLANG_CAPTURE.format(1): _batches(32),
            "capture_traces/bs_64_rank0.json.gz": _batches(64),
        },
    )
    run = annot.open(path)
    assert isinstance(run, Run)
    name = Path(SGLANG_CAPTURE.format(0)).name
    assert run.meta["notes"] == [f"The layers of 544 GPU activities in 1 graph replay come from {name}."]
    (tmp_path / SGLANG_CAPTURE.format(0)).unlink()
    wrong = annot.open(path)
    assert isinstance(wrong, Run)
    (note,) = wrong.meta["notes"]
    assert note.startswith("No captured graph matches 1 graph replay: GPU activity ")
    assert _share_in_layers(wrong) < 0.1


def test_a_folder_of_ranks_with_their_captures_has_the_traces_only(tmp_path: Path) -> None:
    traces = {f"1786734684.9990146-TP-{rank}.trace.json.gz": SGLANG[0] for rank in (0, 1)}
    captures = {f"capture_traces/bs_{size}_rank{rank}.json.gz": SGLANG[1] for size in (1, 32) for rank in (0, 1)}
    _placed(tmp_path, traces | captures)
    ranks = annot.open(tmp_path)
    assert isinstance(ranks, Ranks)
    assert [Path(path).name for path in ranks.paths] == list(traces)
    assert len(annot.open(tmp_path / "capture_traces").paths) == 4  # type: ignore[union-attr]


def test_links_and_other_folders_are_not_followed_forever(tmp_path: Path) -> None:
    path = _placed(tmp_path, {SGLANG_TRACE: SGLANG[0], "other/deep/capture_traces/bs_32_rank0.json.gz": SGLANG[1]})
    (tmp_path / "capture_traces").symlink_to(tmp_path / "capture_traces")
    (tmp_path / "graph_capture_profile").symlink_to(tmp_path)
    (tmp_path / "capture.json").symlink_to(tmp_path / "capture.json")
    assert annot.open(path).meta["notes"] == []  # type: ignore[union-attr]
    (tmp_path / "capture_traces").unlink()
    (tmp_path / "capture_traces").symlink_to(tmp_path / "other" / "deep" / "capture_traces")
    (tmp_path / "capture_link.json.gz").symlink_to(tmp_path / "capture_traces" / "bs_32_rank0.json.gz")
    (note,) = annot.open(path).meta["notes"]  # type: ignore[union-attr]
    assert note.startswith("The layers of 544 GPU activities")


def test_captures_without_kernel_names_are_one_note(tmp_path: Path) -> None:
    """Traces on NVIDIA GPUs do not name the kernels of captured launches."""
    whole = json.loads(gzip.decompress(shared(SGLANG[1]).read_bytes()))
    for event in whole["traceEvents"]:
        event.get("args", {}).pop("kernel", None)
    unnamed = json.dumps(whole).replace("hipModuleLaunchKernel", "cudaLaunchKernel").encode()
    sizes = {f"capture_traces/bs_{size}_rank0.json.gz": unnamed for size in (1, 2, 4, 8, 16)}
    (note,) = annot.open(_placed(tmp_path, {SGLANG_TRACE: SGLANG[0], **sizes})).meta["notes"]  # type: ignore[union-attr]
    assert note.startswith(
        "bs_16_rank0.json.gz, bs_1_rank0.json.gz, bs_2_rank0.json.gz and 2 more lack the kernel names"
    )


def test_replays_of_xdit_lack_the_last_node_of_their_capture() -> None:
    alone = _loaded(XDIT[0])
    merged = with_captures(alone, [_loaded(XDIT[1])])
    notes = merged.meta["notes"]
    assert notes[0] == "The layers of 3,972 GPU activities in 4 graph replays come from capture_rank0.json.gz."
    assert any(note.startswith("The profile lacks the last GPU activity of 4 graph replays: ") for note in notes)
    before, after = attribute(alone), attribute(merged)
    assert summarize(after)["gpu_ns"] == summarize(before)["gpu_ns"] == by_layer(after)["gpu_self_ns"].sum()
    origins = merged.kernels["origin_start"].count() + merged.copies["origin_start"].count()
    assert origins == 4 * 993
