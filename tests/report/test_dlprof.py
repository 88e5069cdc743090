"""The reports of DLProf: their numbers, that they add up, and every format of them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrices import every_third, matrix
from ranked import ordered_only, write_ranks
from rich.console import Console
from shared_data import shared, unpacked
from sqlite_profile import training
from tables import ENGINE, Rows, check_modules_and_operations, disordered

from annot.analyze.advice import advise
from annot.analyze.kernel_names import by_class
from annot.analyze.layer_details import by_detail
from annot.analyze.run_summary import by_summary
from annot.analyze.tensor_cores import by_iteration, by_op_type, by_tensor_core
from annot.analyze.work.layer_work import by_layer_with_work
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.labels import layer_path
from annot.profile import Profile
from annot.read.formats import load
from annot.report.terminal.table import as_text, print_table
from annot.report.views import views
from annot.runs.run import Run

SGEMM, TENSOR, RELU = "ampere_sgemm_64x64_nn", "ampere_fp16_s16816gemm_fp16_64x64_nn", "triton_poi_fused_relu_0"
REAL = [
    "kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", "kineto/hta_resnet_ddp_a100_fwdbwd_gua.json.gz",
    "nsys/zx_lm_fwd_nvtx.2024.6.sqlite.gz", "nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz",
    "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", "ncu/leleucas_bert_attention_torch_a100.csv",
]  # fmt: skip

ANALYSES = [name for name, view in views().items() if not view.keys]


def _model() -> Profile:
    """Two calls of a block of two layers, and the backward pass of one of them, in one step."""
    rows = Rows().range("Batch 0 |step", 0, 1000)
    for call in (0, 100):
        rows.range("Forward Net |fwd", call, call + 90).range("block Block |fwd", call + 5, call + 80)
        rows.range("block.fc Linear [8,64]f16 |fwd", call + 10, call + 30 + call // 10)
        rows.range("block.act ReLU [8,64]f16 |fwd", call + 50, call + 70)
        rows.kernel(call + 12, (200 + call, 230 + call + call // 10), name=TENSOR)
        rows.kernel(call + 14, (240 + call, 244 + call), name=RELU).kernel(
            call + 55, (250 + call, 256 + call), name=RELU
        )
    rows.range("block.fc Linear |bwd", 500, 560, ENGINE).kernel(510, (520, 570), ENGINE, SGEMM)
    profile = rows.build(devices=[{"name": "A100", "computeMajor": 8}])
    return replace(profile, launches=profile.launches.with_columns(end=pl.col("start") + 3))


def _rows(table: pl.DataFrame, *keys: str) -> dict[Any, dict[str, Any]]:
    """The rows by some of their columns."""
    return {tuple(row[key] for key in keys): row for row in table.to_dicts()}


def test_detail() -> None:
    """A row per layer and phase, with the extremes of single calls."""
    rows = _rows(by_detail(attribute(_model())), "layer", "phase")
    forward = rows["block.fc", "forward"]
    assert forward.items() >= {
        "layer": "block.fc", "module": "Linear", "phase": "forward", "calls": 2, "tc_eligible": True, "tc_used": True,
        "host_ns": 50, "host_mean_ns": 25, "host_min_ns": 20, "host_max_ns": 30, "gpu_ns": 78, "gpu_mean_ns": 39,
        "gpu_min_ns": 34, "gpu_max_ns": 44, "gpu_self_ns": 78, "tc_ns": 70, "matrix_ns": 70, "outside_ns": 8,
        "outside": "elementwise 8 ns", "launch_ns": 12, "reason": "", "shapes": ["[8,64]f16"],
    }.items()  # fmt: skip
    others = by_layer_with_work(attribute(_model())).filter(layer="block.fc", phase="forward").row(0, named=True)
    assert {name: forward[name] for name in others} == others
    backward = rows["block.fc", "backward"]
    assert (backward["tc_used"], backward["gpu_min_ns"], backward["gpu_max_ns"]) == (False, 50, 50)
    assert backward["reason"].startswith("the library chose a kernel without them: ampere_sgemm")
    block = rows["block", "forward"]
    assert (block["gpu_ns"], block["gpu_self_ns"], block["gpu_min_ns"], block["gpu_max_ns"]) == (90, 0, 40, 50)
    assert (block["tc_eligible"], block["tc_used"]) == (False, None)


def test_iteration() -> None:
    """A row per kernel in the order in which they ran, with its launch."""
    rows = by_iteration(attribute(_model())).to_dicts()
    assert [row["start_ns"] for row in rows] == [200, 240, 250, 300, 340, 350, 520]
    assert rows[-1] == {
        "step": 0, "layer": "block.fc", "module": "Linear", "phase": "backward", "name": SGEMM, "kind": "gemm",
        "library": "cuBLAS", "tensor_cores": False, "process": 1, "device": 0, "stream": 7, "start_ns": 520,
        "gpu_ns": 50, "launch_start_ns": 510, "launch_ns": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="has no such steps, only 0 to 0"):
        attribute(_model(), steps=slice(1, 2))


def test_tensor_core() -> None:
    """A row per layer with kernels; what takes the time of each, by name."""
    rows = _rows(by_tensor_core(attribute(_model())), "layer", "phase")
    assert set(rows) == {("block.fc", "forward"), ("block.act", "forward"), ("block.fc", "backward")}
    row = rows["block.fc", "forward"]
    assert (row["tc_ns"], row["other_ns"], row["tc_share"]) == (70, 8, 70 / 78)
    assert (row["kernels"], row["tc_kernels"], row["tc_names"], row["other_names"]) == (4, 2, [TENSOR], [RELU])
    assert rows["block.act", "forward"]["reason"] == "no matrix multiplication"


def test_op_type() -> None:
    """A row per class, forward and backward together, with the time by call."""
    rows = _rows(by_op_type(attribute(_model())), "module")
    assert rows[("Linear",)] == {
        "module": "Linear", "layers": 1, "tc_eligible": 1, "tc_used": 1, "calls": 2, "host_ns": 110, "gpu_ns": 128,
        "tc_ns": 70, "gpu_mean_ns": 64, "gpu_min_ns": 64, "gpu_max_ns": 64, "forward_ns": 78, "backward_ns": 50,
    }  # fmt: skip
    assert next(iter(rows)) == ("Linear",)


@given(st.text("ab./", max_size=12))
def test_layers_around_one_are_around_each_other(path: str) -> None:
    """Of the layers around a path, each lies in all that are further out, whatever signs the names hold."""
    around = list(layer_path.above(path))
    assert all(list(layer_path.above(outer)) == around[place:] for place, outer in enumerate(around, 1))


def test_summary() -> None:
    """The run on one page; shares of the time add up to the whole."""
    table = by_summary(attribute(_model()))
    rows = _rows(table, "section", "item")
    time = table.filter((pl.col("section") == "time") & (pl.col("item") != "wall"))
    assert rows["time", "wall"]["ns"] == time["ns"].sum() == 1000
    assert (rows["time", "tensor_cores"]["ns"], rows["time", "kernels"]["ns"]) == (70, 70)
    assert rows["kernels", "tensor_cores"]["count"] == 2
    assert rows["gpu", "tensor_cores_of_eligible"]["share"] == 70 / 128
    assert rows["layers", "tc_unused"]["ns"] == 50
    assert rows["steps", "all"]["count"] == 1
    assert rows["system", "device"]["text"] == "A100"


def test_the_summary_says_that_it_sums(tmp_path: Path) -> None:
    """The parts add up to two steps of 2.12 ms, waits for data included, and the heading says so."""
    report = Run(training(device=False).write(tmp_path / "run.sqlite")).view("summary")
    text = as_text(report)
    assert "Summary: sums over the run" in text
    rows = _rows(report.rows, "section", "item")
    assert rows["time", "wall"]["ns"] == 2 * rows["steps", "median"]["ns"]
    assert "time: wall" in text
    assert "4.240" in text


def test_what_kernels_do_not_tell() -> None:
    """Triton's products may be on Tensor Cores or not: no table says that they are not."""
    rows = Rows().range("a Linear [64,64]f16 out=64 |fwd", 0, 100)
    rows.kernel(10, (100, 140), name="triton_tem_fused_mm_3").kernel(20, (140, 150), name="triton_poi_fused_relu_0")
    attribution = attribute(rows.build())
    layers = _rows(by_summary(attribution).filter(section="layers"), "item")
    assert {name: layers[(name,)]["ns"] for name in ("all", "tc_used", "tc_unused", "tc_unknown", "other")} == {
        "all": 50, "tc_used": 0, "tc_unused": 0, "tc_unknown": 50, "other": 0,
    }  # fmt: skip
    tables = (by_iteration(attribution), by_class(attribution), Run(rows.build()).view("kernel", total=True).rows)
    assert [dict(table.select("kind", "tensor_cores").rows()) for table in tables] == [
        {"gemm": None, "elementwise": False}
    ] * 3
    assert by_tensor_core(attribution)["tc_used"].to_list() == [None]


@pytest.mark.parametrize("name", REAL)
def test_real_profiles_add_up(name: str, tmp_path: Path) -> None:
    """Whatever the format, every table has the times of the layer table."""
    path = unpacked(name, tmp_path) if name.startswith("nsys") else shared(name)
    attribution = attribute(load(path))
    layers, meta = by_layer(attribution), summarize(attribution)
    detail = by_detail(attribution)
    assert detail.select(layers.columns[:3]).equals(layers.select(layers.columns[:3]))
    assert detail["gpu_self_ns"].sum() == meta["gpu_ns"]
    assert disordered(detail).is_empty()
    assert detail["gpu_max_ns"].count() >= 0.8 * (detail["calls"] > 0).sum()
    for depth in range(3):
        assert disordered(Run(path).view("layer", "all", depth=depth, total=True).rows).is_empty()
    work = by_iteration(attribution)
    assert (work.height, work["gpu_ns"].sum()) == (meta["kernels"] + meta["copies"], meta["gpu_ns"])
    check_modules_and_operations(attribution)
    summary = by_summary(attribution).filter(pl.col("section") == "time")["ns"]
    assert summary[0] == summary[1:].sum()


@pytest.mark.parametrize(("by", "form"), matrix(ANALYSES, ["table", "csv", "json", "parquet"], in_ci=False))
def test_every_format(by: str, form: str, tmp_path: Path) -> None:
    """The command writes each report in each format, and programs read back the rows that there are."""
    path, out = training(device=True).write(tmp_path / "run.sqlite"), tmp_path / "out"
    assert main(["report", str(path), "--by", by, "--format", form, "-o", str(out)]) == 0
    report = Run(load(path)).view(by, total=True)
    if form == "table":
        assert len(out.read_text().splitlines()) > report.rows.height
    elif form == "csv":
        back = pl.read_csv(out, infer_schema_length=None)
        assert (back.columns, back.height) == (report.rows.columns, report.rows.height)
    elif form == "json":
        assert json.loads(out.read_text())[report.name] == json.loads(json.dumps(report.rows.to_dicts()))
    else:
        assert pl.read_parquet(out).equals(report.rows)


@pytest.mark.parametrize(("by", "width"), matrix(ANALYSES, [60, 80, 120, 200], in_ci=False))
def test_tables_fit(by: str, width: int) -> None:
    """Whatever the width, lines fit into it and every row has one."""
    text = io.StringIO()
    report = Run(_model()).view(by, total=True)
    print_table(report, Console(file=text, width=width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) >= report.rows.height + 2


def test_table_of_tensor_cores() -> None:
    """A whole table as people see it."""
    text = io.StringIO()
    print_table(Run(_model()).view("layer", "tensor", total=True), Console(file=text, width=76))
    assert [line.rstrip() for line in text.getvalue().partition("\n\n")[2].splitlines()[:5]] == [
        "Tensor Cores by layer in total, µs",
        "Layer                 Phase  Eligible  Use TC  GPU self  TC time  On TC",
        "> block.fc Linear   forward       yes     yes      0.08     0.07  89.7%",
        "  block.act ReLU    forward        no      no      0.01     0.00   0.0%",
        "  block.fc Linear  backward       yes      no      0.05     0.00   0.0%",
    ]


def test_table_of_tensor_cores_without_kernels() -> None:
    """Where no device worked the table says so: its zeros are not measured."""
    text = io.StringIO()
    on_host = replace(_model(), kernels=_model().kernels.clear(), launches=_model().launches.clear())
    print_table(Run(on_host).view("layer", "tensor", total=True), Console(file=text, width=76))
    assert "Tensor Cores need a profile with GPU activity: run on a machine with a GPU" in text.getvalue()


def _nothing() -> Attribution:
    return attribute(Profile.build({}))


@pytest.mark.parametrize("by", every_third(ANALYSES))
def test_profiles_without_anything(by: str) -> None:
    """An empty profile and one without host times have all tables, and no times that nobody knows."""
    empty = views()[by].rows(_nothing())
    columns = Run(_model()).view(by, total=True).rows.columns
    assert empty.columns == [name for name in columns if name != "group" or not views()[by].folds]
    text = io.StringIO()
    print_table(Run(Profile.build({})).view(by, total=True), Console(file=text, width=100))
    assert text.getvalue()
    rows = views()[by].rows(attribute(ordered_only()))
    assert rows.height or by in ("layer_memory", "kernel_roofline", "op_work", "op_roofline")
    if by == "layer_all":
        assert rows["host_max_ns"].null_count() == rows["host_ns"].null_count() == rows.height


def test_one_profile_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Analyses are of one rank; for several the command says so in one sentence."""
    paths = [str(path) for path in write_ranks(tmp_path, 2)]
    assert main(["report", *paths, "--by", "summary"]) != 0
    assert "--by summary needs a single rank: use --rank N" in capsys.readouterr().err


def test_kernels_have_their_classes() -> None:
    """The table of kernels tells what each does, in files and where there is room on the terminal."""
    report = Run(_model()).view("kernel", total=True)
    assert report.rows.select("name", "kind", "tensor_cores").rows() == [
        (TENSOR, "gemm", True), (SGEMM, "gemm", False), (RELU, "elementwise", False),
    ]  # fmt: skip
    text = io.StringIO()
    print_table(report, Console(file=text, width=110))
    lines = text.getvalue().partition("\n\n")[2].splitlines()
    assert [line.split()[-1] for line in lines[1:5]] == ["Kind", "gemm", "gemm", "elementwise"]


def test_sorted_by_time() -> None:
    """Sorted by time the longest come first, where there is one time."""
    rows = Run(_model()).view("layer", "all", sort="time", total=True).rows["gpu_ns"].to_list()
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("by", ["module_tensor", "layer_all"])
def test_tables_of_a_cpu_profile_have_its_times(by: Any) -> None:
    """Where nothing ran on a device, times are those of the host, and what tells of devices is not known, not zero."""
    rows = Rows()
    rows.range("net Net |fwd", 0, 1000).range("net.a Linear [8,8]f32 |fwd", 100, 400)
    rows.range("net.a Linear [8,8]f32 |bwd", 2000, 2700)
    report = Run(rows.build()).view(by, total=True)
    named = {"module_tensor": ("module", "Linear"), "layer_all": ("layer", "net.a")}[by]
    mine = report.rows.filter(pl.col(named[0]) == named[1])
    unknown = [name for name in report.rows.columns if name.startswith(("gpu_", "tc_"))]
    assert unknown
    assert all(report.rows[name].null_count() == report.rows.height for name in unknown)
    if by == "layer_all":
        assert sorted(mine["host_ns"]) == [300, 700]
    else:
        assert mine.select("host_ns", "forward_ns", "backward_ns").row(0) == (1000, 300, 700)
    out = io.StringIO()
    print_table(report, Console(file=out, width=80))
    assert "Host" in out.getvalue()
    assert "TC" not in out.getvalue().partition("\n\n")[2].split("\n")[1]


def test_cpu_profile_could_use_no_tensor_cores() -> None:
    """A layer that ran on the CPU neither uses Tensor Cores nor could."""
    rows = Rows().range("net.a Linear [8,8]f32 |fwd", 100, 400)
    assert by_tensor_core(attribute(rows.build())).is_empty()


def test_devices_of_amd_have_matrix_cores() -> None:
    """The heading has the word of the maker, as the page and the advice do."""
    rows = Rows().range("net.a Linear [8,8]f32 |fwd", 100, 400).kernel(150, (200, 900), name="Cijk_sgemm")
    amd = rows.build(devices=[{"name": "AMD Instinct MI300X", "id": 0}])
    out = io.StringIO()
    print_table(Run(amd).view("layer", "tensor", total=True), Console(file=out, width=80))
    assert "\n\nMatrix Cores by layer" in out.getvalue()
    advice = next(one for one in advise(attribute(amd)) if one.rule == "mixed_precision")
    assert "Matrix Cores" in advice.advice + advice.evidence
    assert "Tensor" not in advice.advice + advice.evidence


@pytest.mark.parametrize("name", ["zx_lm_fwd_nvtx.2024.6", "jsun_lm_fwd_bwd.2025.1", "athrun_lm_attn_windows.2026.2"])
def test_busy_is_the_sum_of_the_shares(name: str, tmp_path: Path) -> None:
    """The tile and the bar of the page say one number of one time: the shares in which devices work."""
    rows = by_summary(attribute(load(unpacked(f"nsys/{name}.sqlite.gz", tmp_path))))
    shares = {(section, item): share for section, item, share in rows.select("section", "item", "share").iter_rows()}
    parts = ("tensor_cores", "kernels", "collectives", "copies")
    assert shares["gpu", "busy"] == pytest.approx(sum(shares["time", part] or 0 for part in parts))


def test_totals_say_what_is_warm_up(tmp_path: Path) -> None:
    """Steps leave out the warm-up, and the totals, which do not, say how much of them it is."""
    meta = summarize(attribute(load(unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path))))
    assert meta["warmup_gpu_ns"] == 1_093_709_715
    report = Run(load(unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path))).view(total=True)
    out = io.StringIO()
    print_table(report, Console(file=out, width=160))
    assert "1,093.7 ms of it in warm-up" in out.getvalue()
