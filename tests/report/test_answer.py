"""The answer in the terminal: its length, its rows, and what follows it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from comparisons import compare
from matrices import every_third
from ranked import write_ranks
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from shared_data import shared, shared_names, unpacked
from sqlite_profile import training
from tables import Rows

import annot
from annot.analyze.advice import Facts, by_advice
from annot.analyze.cpu_parts import CPU_PARTS, GPU_PARTS
from annot.analyze.peaks import given_peaks
from annot.attribution.attribute import Attribution, attribute
from annot.cli.main import main
from annot.cli.report import print_report
from annot.errors import AnnotError
from annot.read.formats import load
from annot.report.columns import Formatted
from annot.report.export.markdown import markdown
from annot.report.page.data import report_data
from annot.report.table import Options, Table, process
from annot.report.terminal.compare import comparison_table
from annot.report.terminal.hot_rows import hottest_rows, named_rows
from annot.report.terminal.layout import LINES, Sheet
from annot.report.terminal.table import print_answer, print_table
from annot.runs.run import Run
from annot.runs.selection import Selection

OWN = Path(__file__).parents[1] / "data"
MORE = "--all; page: -o page.html"


def _profiles() -> list[str]:
    folders = (
        ("kineto", ".json.gz"), ("kineto", ".json"), ("nsys", ".sqlite.gz"), ("nsys", ".sqlite"), ("ncu", ".csv"),
        ("ncu", ".ncu-rep"), ("xplane", ".xplane.pb"),
    )  # fmt: skip
    names = {name for folder, ending in folders for name in shared_names(folder, ending) if "details" not in name}
    own = {path.name for path in OWN.glob("*.*") if path.suffix != ".md"}
    return sorted({name for name in names if f"{name}.gz" not in names} | own)


def _opened(name: str, folder: Path) -> Run:
    path = unpacked(name, folder) if name.endswith("sqlite.gz") else OWN / name if "/" not in name else shared(name)
    try:
        run = Run(path)
        _ = run.attribution
    except AnnotError as error:
        pytest.skip(str(error))
    return run


def test_bounds_need_a_roof_or_a_device_that_waits(tmp_path: Path) -> None:
    on_cpu = unpacked("transformer.sqlite.gz", tmp_path)
    assert Run(on_cpu).view(brief=True).bounds == {}
    with_roof = Run(on_cpu, Selection(peaks=given_peaks(1e11, 1e10))).view(brief=True)
    assert {*with_roof.bounds.values()} == {"compute", "memory"}
    profile = load(shared("kineto/tracelens_h100_bert_small_nnmodule.json.gz"))
    without_peaks = replace(profile, meta=profile.meta | {"devices": []})
    assert {*Run(without_peaks).view(brief=True).bounds.values()} == {"launch"}


def _printed(show: object, width: int) -> list[str]:
    text = io.StringIO()
    show(Console(file=text, width=width, color_system=None))  # type: ignore[operator]
    return text.getvalue().rstrip("\n").split("\n")


def _layers_in(verdict: str) -> Iterable[str]:
    """The layers that a verdict names."""
    return re.findall(
        r"(?:most of it in|the largest share in|% in) (.+?)(?: itself)? \((?:\d|forward|backward)", verdict
    )


@pytest.mark.parametrize("name", every_third(_profiles()))
def test_real_profiles_have_short_answers(name: str, tmp_path: Path) -> None:
    """The answer fits; the layers of the verdict are rows of the table; `top` is sorted by the time that it shows."""
    run = _opened(name, tmp_path)
    report = run.view(brief=True)
    for width in (80, 120):
        lines = _printed(partial(print_answer, report, more=MORE, reasons="--by advice"), width)
        assert len(lines) <= LINES
        assert max(map(cell_len, lines)) <= width
        assert lines[-1].endswith(f"{MORE}; reasons and code: --by advice" if report.advice else MORE)
    rows = {f"{row.path} {row.module}".strip() for row in named_rows(report)}
    for layer in _layers_in(report.meta.get("verdict", "")):
        begin, _, end = layer.partition("…")  # the verdict shortens long names
        assert any(row == layer or ("…" in layer and row.startswith(begin) and row.endswith(end)) for row in rows)
    times = [row.total_ns for row in hottest_rows(run.view(top=5))]
    assert times == sorted(times, reverse=True)
    assert times[:1] == [max((row.total_ns for row in named_rows(report)), default=0)][: len(times)]


def test_layers_of_verdicts_are_rows() -> None:
    """The pattern of the tests reads the verdicts, and a row of numbers has the name of the model in front."""
    rows = Rows().range("Forward Sequential |fwd", 0, 1000).range("2 Linear [4,8]f32 |fwd", 10, 900)
    report = Run(rows.build()).view(brief=True)
    assert [*_layers_in(report.meta["verdict"])] == ["Sequential.2 Linear"]
    assert "Sequential.2 Linear" in {f"{row.path} {row.module}" for row in named_rows(report)}
    lines = _printed(partial(print_table, report), 80)
    assert any(line.startswith(">   Sequential.2 Linear") for line in lines)


def _blocks(count: int) -> Rows:
    rows = Rows().range("Forward Net |fwd", 0, 1000 * count)
    for block in range(count):
        at = 1000 * block
        rows.range(f"h.{block} Block |fwd", at, at + 990).range(f"h.{block}.fc Linear [4,8]f32 |fwd", at + 10, at + 900)
        rows.kernel(at + 20, (at + 30, at + 800), name="ampere_sgemm_128x64_tn")
    return rows


def test_repeated_layers_are_one_row() -> None:
    """200 blocks are one row of the answer, with their number; advice names the fold, too."""
    report = Run(_blocks(200).build()).view(brief=True)
    lines = _printed(partial(print_answer, report, more=MORE), 80)
    assert len(lines) <= LINES
    rows = [line for line in lines if "Linear ×200" in line]
    assert len(rows) == 1
    assert rows[0].startswith("> h.*.fc Linear ×200")
    assert "h.*.fc" in report.meta["verdict"]
    assert " h.7" not in "\n".join(lines)


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize(("slowest", "named"), [(5_005, True), (5_000, False)])
def test_a_layer_with_more_than_half_of_the_time_of_its_fold_is_named(device: bool, slowest: int, named: bool) -> None:
    """Of 6 layers, one takes as long as the others together, or longer: in the verdict, the terminal and Markdown."""
    rows, at = Rows(), 0
    for block, length in enumerate((1_000, 1_000, 1_000, slowest, 1_000, 1_000)):
        rows.range(f"h.{block}.fc Linear [4,8]f32 |fwd", at, at + length)
        if device:
            rows.kernel(at, (at, at + length), name="ampere_sgemm_128x64_tn")
        at += length
    report = Run(rows.build()).view(brief=True)
    (row,) = named_rows(report)
    assert row.mostly == ("h.3.fc" if named else "")
    assert report.meta["verdict"].endswith(", mostly h.3.fc)." if named else "%)." if device else "(forward).")
    table, document = "\n".join(_printed(partial(print_answer, report), 120)), markdown(report, is_answer=True)
    for text in (table, document):
        assert text.count("h.3.fc") == 2 * named
        assert ("Mostly in" in text) == named


def test_the_answer_ends_where_a_table_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options for the table there is none; --all adds it, and other options print it alone."""
    path = str(training(device=True).write(tmp_path / "run.sqlite"))

    def printed(*options: str) -> str:
        assert main(["report", path, *options]) == 0
        return capsys.readouterr().out

    answer, whole = printed(), printed("--all")
    head = answer[: answer.index("All ")]
    assert len(answer.splitlines()) <= LINES
    assert MORE in answer
    assert whole.startswith(head.rstrip())
    assert "GPU time by layer" in whole
    assert "Note: " in whole
    for options in (["--by", "layer"], ["--depth", "1"], ["--min-share", "1"], ["--sort", "time"], ["--expand"]):
        table = printed(*options)
        assert "GPU time by layer" in table
        assert "GPU self time" not in table
    assert "GPU self time" in printed("--top", "2")
    assert main(["report", path, "-o", str(tmp_path / "run.txt")]) == 0
    assert (tmp_path / "run.txt").read_text().count("\n") <= LINES


def test_python_prints_the_answer(tmp_path: Path) -> None:
    """A profile prints its answer, and a view of it the table. So do ranks."""
    run = annot.open(training(device=True).write(tmp_path / "run.sqlite"))
    assert len(repr(run).splitlines()) <= LINES
    assert ".view(); page: .to_html('page.html')" in repr(run).splitlines()[-1]
    assert "GPU time by layer" in repr(run.view())
    ranks = annot.open([str(path) for path in write_ranks(tmp_path / "ranks", 8)])
    assert len(repr(ranks).splitlines()) <= LINES
    assert "> " in repr(ranks)


def test_after_annot_run(tmp_path: Path) -> None:
    """The report at the end of `annot run` is the answer."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    assert len(_printed(partial(print_report, path), 80)) <= LINES


@pytest.mark.parametrize("width", [60, 80])
def test_columns_of_the_verdict_stay(width: int) -> None:
    """The share and the phases that the verdict names are there; others give way."""
    rows = Rows()
    for step in range(3):
        zero = 10_000_000 * step
        rows.range(f"Batch {step} |step", zero, zero + 9_000_000)
        for number in range(6):
            at = zero + 1_000_000 * number
            rows.range(f"a.long.path.to.layer{'x' * 20}{number} Linear |fwd", at, at + 500_000)
            rows.range(f"a.long.path.to.layer{'x' * 20}{number} Linear |bwd", at + 500_000, at + 900_000)
    report = Run(rows.build()).view(brief=True)
    assert "forward" in report.meta["verdict"]
    head = next(line for line in _printed(partial(print_table, report), width) if line.startswith("Layer"))
    assert {"Forward", "Share"} <= set(head.split())


def test_each_part_has_one_name(tmp_path: Path) -> None:
    """The verdict, the bar, the advice, the page and the guide take the names of `part_names`."""
    paths = [shared("kineto/hta_alexnet_a100_train.json.gz"), shared("kineto/hta_cpu_only.json.gz")]
    guide = (Path(annot.__file__).parent / "guide" / "reports.md").read_text()
    for part in (*GPU_PARTS.values(), *CPU_PARTS.values()):
        assert f"| {part.name} |" in guide
    for path, parts, longest in zip(paths, (GPU_PARTS, CPU_PARTS), ("host", "collectives"), strict=True):
        run, name = Run(path), parts[longest].name
        report = run.view(brief=True)
        attribution = run.attribution_with_calls
        assert name in run.verdict
        assert set(report.shares) <= {part.name for part in parts.values()}
        assert f" {name}, " in "".join(_printed(partial(print_answer, report), 120))
        page = report_data(run.page_of_run(), str(path))["runs"][0]["shares"]
        assert {key: tuple(part) for key, part in page.items()} == dict(parts)
        evidence = by_advice(attribution, Facts(attribution))["evidence"]
        assert evidence.str.contains(name, literal=True).any()


def test_comparisons_have_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The five rows that change most come first, in 15 lines; --all prints the table; `top` is in the same order."""
    paths = [str(training(device=True).write(tmp_path / f"{name}.sqlite")) for name in "ab"]
    slower = training(device=True)
    for number in range(8):
        slower.layer(f"new.{number} Linear |fwd", 5_000_000 + 100_000 * number, 5_000_000 + 100_000 * number + 1000)
    paths[1] = str(slower.write(tmp_path / "slower.sqlite"))
    printed = {}
    for options in ([], ["--all"], ["--top", "3"]):
        assert main(["compare", *paths, *options]) == 0
        printed[" ".join(options)] = capsys.readouterr().out.splitlines()
    assert len(printed[""]) <= LINES
    assert "--all" in printed[""][-1]
    assert len(printed["--all"]) > 3


def test_rows_of_compared_profiles_that_change_most() -> None:
    """`top` keeps the largest changes, the largest first, faster or slower."""
    sides = [_changed(times) for times in ((10, 50, 30, 5), (40, 40, 10, 6))]
    report = process(comparison_table(compare(*sides), "a", "b"), Options(top=3))
    assert report.rows["difference_ns"].abs().to_list() == [30_000, 20_000, 10_000]


def _changed(times: Iterable[int]) -> Attribution:
    """Layers that take these times (µs)."""
    rows, start = Rows(), 0
    for number, time in enumerate(times):
        rows.range(f"layer{'abcd'[number]} Linear |fwd", start, start + 1000 * time)
        start += 1000 * time
    return attribute(rows.build())


def test_columns_name_the_matrix_units_of_the_device() -> None:
    """Columns and items of the summary say TC and Tensor Cores on NVIDIA, MC and Matrix Cores on AMD."""
    for device, short, units in (("NVIDIA H100", "TC", "Tensor Cores"), ("AMD Instinct MI300X", "MC", "Matrix Cores")):
        rows = Rows().range("fc Linear |fwd", 0, 900).kernel(10, (20, 860), name="ampere_fp16_s16816gemm_fp16_64x64_nn")
        run = Run(rows.build(devices=[{"name": device, "id": 0}]))
        other = {"TC": "MC", "MC": "TC"}[short]
        for by in ("kind", "kernel_tensor", "layer_tensor"):
            text = "\n".join(_printed(partial(print_table, run.view(by)), 140))
            assert re.search(rf"\b{short}\b", text)
            assert not re.search(rf"\b{other}\b", text)
        summary = "\n".join(_printed(partial(print_table, run.view("summary")), 140))
        assert f"time: {units}" in summary
        assert f"layers: {units} used" in summary
        assert "waiting for launches" in summary


@pytest.mark.parametrize("kept", range(5))
def test_a_column_to_keep_stays_where_others_give_way(kept: int) -> None:
    """Of five columns of which three fit, the first ones stay, and the one to keep wherever it is."""
    columns = [Formatted(f"Head{place}", lambda _: "12345.678", keep=place == kept) for place in range(5)]
    shown = Sheet(title="Layer", labels=[Text("a" * 40)], columns=columns, rows=[1])
    heads = _printed(lambda console: console.print(shown), 50)[0].split()[1:]
    assert heads == [f"Head{place}" for place in sorted({kept, *[other for other in range(5) if other != kept][:2]})]


def _advised(report: Table, width: int, *, verdict: str = "") -> list[str]:
    """The lines of the advice in the answer of a report with a verdict of some length."""
    changed = replace(report, meta=report.meta | {"verdict": verdict or report.meta["verdict"]})
    lines = _printed(partial(print_answer, changed, more=MORE, reasons="--by advice"), width)
    assert len(lines) <= LINES
    first = next(number for number, line in enumerate(lines) if line.startswith("Advice: "))
    return lines[first:-1]


def _layers(name: str) -> dict[str, list[str]]:
    return {"layers": [name], "where": [name]}


def test_advice_is_whole_sentences() -> None:
    """With less room the layers are left out first, then the second piece; no sentence is cut."""
    report = Run(_blocks(5).build()).view(brief=True)
    advice = [
        {
            "advice": f"Change the {word} of this model in the first step.",
            "saves": 0.5,
            **_layers("h.3.fc"),
        }
        for word in ("width", "depth")
    ]
    report = replace(report, advice=advice)
    texts = [" ".join(line.strip() for line in _advised(report, 80, verdict="word " * count)) for count in (5, 60, 68)]
    assert [text.count("Advice: ") for text in texts] == [2, 2, 2]
    assert [text.count("In h.*.fc.") for text in texts] == [2, 2, 2]
    tight = replace(report, advice=[row | _layers("h.3.fc." + "x" * 90) for row in advice])
    text = " ".join(line.strip() for line in _advised(tight, 80, verdict="word " * 60))
    assert text.endswith("of the run.")
    assert "xxx" not in text
    long = [row | {"advice": f"{row['advice']} {'More of it. ' * 12}"} for row in advice]
    text = " ".join(line.strip() for line in _advised(replace(report, advice=long), 80, verdict="word " * 60))
    assert text.count("Advice: ") == 1
    assert "depth" not in text
    assert "…" not in text


def test_advice_names_a_numbered_layer_by_its_parent() -> None:
    """`2 Linear` of a Sequential is Sequential.2 in the advice, as in the table."""
    rows = Rows().range("Forward Sequential |fwd", 0, 1000).range("2 Linear [4,8]f32 |fwd", 10, 900)
    report = Run(rows.build()).view(brief=True)
    report = replace(report, advice=[{"advice": "Change it.", "saves": 0.5, "layers": ["2"], "where": ["2"]}])
    assert "In Sequential.2." in " ".join(_advised(report, 80))


@pytest.mark.parametrize(("model", "where"), [("Forward Sequential |fwd", "Sequential.2"), ("stem |fwd", "2 Linear")])
def test_all_advice_names_a_numbered_layer_by_its_parent(model: str, where: str) -> None:
    """So does --by advice; without a model the class of the layer follows its number."""
    rows = Rows().range("Batch 0 |step", 0, 1_000_000).range(model, 10_000, 990_000)
    rows.range("2 Linear [64,1024]f32 |fwd", 20_000, 980_000)
    rows.kernel(30_000, (40_000, 970_000), name="ampere_sgemm_128x64_tn")
    lines = _printed(partial(print_table, Run(rows.build()).view("advice")), 80)
    assert f"   Where: {where}" in lines


def test_precisions_are_those_of_the_device() -> None:
    """Kernels of Matrix Cores compute in bf16 matrix, those of Tensor Cores in bf16 tensor, as the peaks say."""
    for device, unit in (("NVIDIA H100 80GB HBM3", "tensor"), ("AMD Instinct MI300X", "matrix")):
        rows = Rows().range("fc Linear [64,1024]bf16 out=1024 |fwd", 0, 900)
        rows.kernel(10, (20, 860), name="ampere_bf16_s16816gemm_bf16_64x64_nn")
        run = Run(rows.build(devices=[{"name": device, "id": 0}]))
        text = " ".join(" ".join(_printed(partial(print_table, run.view("layer", "roofline")), 160)).split())
        other = {"tensor": "matrix", "matrix": "tensor"}[unit]
        assert f"bf16 {unit}" in text
        assert f"bf16 {other}" not in text


def test_classes_of_a_fused_kernel() -> None:
    """The kernel of several layers is no class of its own."""
    rows = Rows().range("a+b LayerNorm+Linear |fwd", 0, 900).range("c Linear |fwd", 1000, 1900)
    lines = _printed(partial(print_table, Run(rows.build()).view("module")), 80)
    assert any(line[2:].startswith("fused: LayerNorm, Linear ") for line in lines)
    assert any(line[2:].startswith("Linear ") for line in lines)


def test_optimizers_and_losses_have_no_class_of_the_model(tmp_path: Path) -> None:
    """The source of a layer is the class around it; optimizers and losses are in no class of the model."""
    rows = Rows().range("Forward Net [4,8]f32 |fwd", 0, 1000).range("fc Linear [4,8]f32 |fwd", 10, 900)
    rows.range("Loss MSELoss [4,8]f32 |fwd", 1000, 1500).range("Optimizer Adam |opt", 1500, 1900)
    report = Run(rows.build()).view(brief=True)
    of_model = pl.when(module="Net").then(pl.lit("net.py:3"))
    assert report.lines is not None
    report = replace(report, lines=report.lines.with_columns(source=of_model))
    sources = {row.path: row.source for row in named_rows(report)}
    assert sources["fc"] == "net.py:3"
    assert [source for path, source in sources.items() if "Optimizer" in path or "Loss" in path] == ["", ""]


def test_an_unknown_time_has_no_parts() -> None:
    """Where the verdict says that the time of the GPU is unknown, the answer has no parts of it."""
    path = shared("kineto/hta_alexnet_a100_cupti_sass_flops.json.gz")
    report = Run(path).view(brief=True)
    assert "the time of the GPU is unknown" in report.meta["verdict"]
    lines = _printed(partial(print_answer, report, more=MORE), 80)
    assert not [line for line in lines if re.match("(?:Run|Step) time: ", line)]
    assert not [line for line in lines if line.startswith("> ")]


def test_steps_without_times_are_a_run() -> None:
    """The verdict and the line below it both speak about the run."""
    lines = _printed(partial(print_answer, Run(OWN / "ncu_raw_training.csv").view(brief=True), more=MORE), 80)
    assert lines[0].startswith("Run 6.67 µs")
    assert any(line.startswith("Run time: ") for line in lines)
