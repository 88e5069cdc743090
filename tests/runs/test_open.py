"""`annot.open`: frames, views per step, files, ranks and folders, and the options of `annot FILE`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import matrix
from random_inputs import examples
from ranked import write_ranks
from sqlite_profile import SqliteProfile, training
from tables import Rows

import annot
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer, by_line
from annot.cli.main import main
from annot.report.columns import COLUMNS, Column, combined, formatted, per_step
from annot.report.tree import cut, cut_layers, layer_lines
from annot.report.views import COLUMN_GROUPS, View, find_view, views
from annot.runs.gather import Ranks
from annot.runs.run import Run
from annot.runs.selection import Selection


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two steps of a small network with kernels."""
    return str(training(device=True).write(tmp_path_factory.mktemp("run") / "run.sqlite"))


def _with_warmup() -> Rows:
    """A step of 900 ns and three of 100, 110 and 120, each after a wait for data, with a kernel of a tenth of it."""
    rows, start = Rows(), 0
    for number, length in enumerate((900, 100, 110, 120)):
        rows.range("Data |data", start, start + 10, domain="annot")
        rows.range(f"Batch {number} |step", start + 10, start + 10 + length, domain="annot")
        rows.range("fc Linear [2,3]f32 out=4 |fwd", start + 20, start + length, domain="annot")
        rows.kernel(start + 30, (start + 40, start + 40 + length // 10))
        start += length + 20
    return rows


def test_frames_are_those_of_the_functions(path: str) -> None:
    """Each frame is the rows of its view, made once."""
    run = annot.open(path)
    assert isinstance(run, Run)
    assert run.layers.select(annot.correlate(annot.load(path)).columns).equals(annot.correlate(annot.load(path)))
    assert run.layers is run.layers
    assert run.kernels["gpu_ns"].sum() == run.layers["gpu_self_ns"].sum() == run.meta["gpu_ns"]
    assert run.steps.height == 2
    assert run.advice.columns[:2] == ["rule", "advice"]
    assert set(run.summary["section"]) >= {"time", "steps", "kernels"}


def test_tables_show_a_step_without_warmup() -> None:
    """The mean of the three later steps, with their waits for data; `total` is the whole profile."""
    run = Run(_with_warmup().build())
    table, total = run.view(), run.view(total=True)
    assert table.meta["per_step"] == 3
    layer = table.rows.filter(pl.col("layer") == "fc").row(0, named=True)
    assert (layer["gpu_ns"], layer["calls"]) == ((10 + 11 + 12) / 3, 1)
    assert table.rows.filter(pl.col("layer") == "(data)")["host_ns"].to_list() == [10]
    assert [table.meta[name] for name in ("gpu_ns", "ranges", "kernels", "copies")] == [11, 3, 1, 0]
    assert [one["busy_ns"] for one in table.meta["devices"]] == [11]
    assert "in 3 ranges on 1 thread" in repr(table)
    assert total.meta["ranges"] == 12
    assert "per_step" not in total.meta
    assert total.rows.filter(pl.col("layer") == "fc")["gpu_ns"].to_list() == [90 + 33]
    assert "GPU time by layer, µs per step" in repr(table)
    assert "GPU per step, mean of 3: 11.00" not in repr(total)
    selected = Run(_with_warmup().build(), Selection(steps=slice(1, 3))).view()
    assert selected.meta["per_step"] == 2


def test_validation_between_steps_is_left_out() -> None:
    """Only the last wait before a step belongs to it: what validation waited for and ran does not."""
    rows = Rows()
    for number, start in ((0, 10), (1, 500)):
        rows.range("Data |data", start - 10, start, domain="annot")
        rows.range(f"Batch {number} |step", start, start + 100, domain="annot")
    rows.range("Data |data", 200, 210, domain="annot").range("Batch validate 0 |step", 210, 300, domain="annot")
    table = Run(rows.build()).view().rows
    assert table.select("layer", "module", "calls", "host_ns").rows() == [
        ("(data)", "", 1, 10),
        ("(batch)", "", 1, 100),
    ]


def test_a_pattern_does_not_make_steps_known() -> None:
    """Steps found by a repeating pattern are a guess: the table shows sums."""
    rows = Rows()
    for start in range(0, 4000, 1000):
        rows.range("attend", start, start + 400).range("feed", start + 500, start + 900)
    report = Run(rows.build()).view()
    assert report.meta["steps"] > 1
    assert "per_step" not in report.meta


def test_a_pattern_with_an_optimizer_makes_steps_known() -> None:
    """A step of the optimizer ends a training step: the table shows the mean of the steps, without warm-up."""
    rows, time = Rows(), 0
    for length in (900, 100, 100, 100, 100, 100):
        rows.range("Net |fwd", time, time + length - 20).range("SGD |opt", time + length - 20, time + length)
        time += length
    meta = Run(rows.build()).view().meta
    assert meta["steps_found_by"] == "the pattern of ranges around each optimizer step"
    assert (meta["steps"], meta["per_step"]) == (5, 5)


def test_steps_of_a_small_part_are_not_those_of_the_run() -> None:
    """Ranges named step that cover less than half of the time do not hide the rest."""
    rows = Rows()
    for number in range(3):
        rows.range(f"step {number}", number * 100, number * 100 + 90)
    assert Run(rows.build()).view().meta["per_step"] == 3
    rows.range("forward", 300, 2000)
    assert "per_step" not in Run(rows.build()).view().meta


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "jsonl"])
def test_files_contain_sums_unless_per_step(form: str, tmp_path: Path) -> None:
    """Every file has exact sums; with --per-step it has what the table shows."""
    profile = SqliteProfile()
    for number, start in enumerate((0, 1_000_000, 2_000_000)):
        profile.layer(f"Batch {number} |step", start, start + 900_000)
        profile.layer("fc Linear |fwd", start + 10_000, start + 700_000)
    path = profile.write(tmp_path / "run.sqlite")
    times = []
    for more in ([], ["--per-step"]):
        out = tmp_path / f"out{len(more)}"
        assert main([str(path), "--format", form, "-o", str(out), *more]) == 0
        reads = {"csv": pl.read_csv, "parquet": pl.read_parquet, "jsonl": pl.read_ndjson}
        rows = pl.DataFrame(json.loads(out.read_text())["layers"]) if form == "json" else reads[form](out)
        times += rows.filter(pl.col("layer") == "fc")["host_ns"].to_list()
    assert times == [3 * 690_000, 690_000]


@pytest.mark.parametrize(
    ("by", "columns"), matrix(["layer", "module", "kind", "kernel", "op", "step", "phase"], COLUMN_GROUPS)
)
def test_rows_and_columns_combine(by: str, columns: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each combination is a table, or one sentence with the columns that there are."""
    status = main([path, "--by", by, "--columns", columns])
    output = capsys.readouterr()
    groups = {view.group for view in views().values() if view.by == by}
    if columns in groups or columns == "all":
        assert status == 0
        totals = "GPU per step" if by != "step" else "GPU: "
        assert any(line.startswith(totals) for line in output.out.splitlines())
    else:
        assert status == 2
        assert output.err.startswith(f"annot: error: --columns {columns} is not available by {by}, only columns time")


def test_top_and_least_share(path: str) -> None:
    """The longest rows first, or those with a share in their order."""
    run = annot.open(path)
    longest = run.view("kernels", top=3, total=True).rows["gpu_ns"].to_list()
    assert longest == sorted(run.kernels["gpu_ns"], reverse=True)[:3]
    kept = run.view(min_share=0.25, total=True).rows
    of_layer = pl.col("gpu_ns").sum().over("layer", "module", pl.when(pl.col("layer") == "").then("phase"))
    layers = run.layers.with_columns(total=pl.when(pl.col("module") == "AlexNet").then("gpu_ns").otherwise(of_layer))
    assert kept.equals(run.layers.filter(layers["total"] >= 0.25 * run.meta["gpu_ns"]))


def test_single_executions(path: str) -> None:
    """Each range of a layer, and each kernel; they add up to the sums."""
    run = annot.open(path)
    each = run.view("layer", each=True).rows
    of_layer = each.filter(pl.col("layer") == "features.0", pl.col("phase") == "forward")
    assert of_layer["step"].to_list() == [0, 1]
    assert each.height == run.meta["ranges"]
    assert each["gpu_self_ns"].sum() == run.meta["attributed_gpu_ns"]
    assert each["host_self_ns"].sum() == run.meta["host_ns"]
    assert ("", "", "backward") in each.select("layer", "module", "phase").unique().rows()
    assert run.view("kernel", each=True).rows["gpu_ns"].sum() == run.meta["gpu_ns"]
    with pytest.raises(ValueError, match="each is not available by phase, only columns time, work, roofline"):
        run.view("phase", each=True)


def test_executions_of_ranges_that_cross_others() -> None:
    """They are rows, too, whose time belongs to the layers that they cross."""
    rows = Rows().range("fc Linear |fwd", 0, 100, domain="annot").range("apart", 50, 150, kind="start")
    each = Run(rows.kernel(60, (60, 70)).build()).view("layer", each=True).rows
    columns = ["layer", "start_ns", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns"]
    assert each.select(columns).rows() == [("fc", 0, 100, 100, 10, 10), ("apart", 50, 100, 0, 10, 0)]


def test_steps_of_the_user_count_with_their_warmup() -> None:
    """The mean of the steps 0 and 1, of which 0 is warm-up, is half of their sum; the header names the warm-up."""
    run = Run(_with_warmup().build(), Selection(steps=slice(0, 2)))
    table, total = run.view(), run.view(total=True)
    assert table.meta["per_step"] == 2
    assert table.rows["host_ns"].to_list() == [ns / 2 for ns in total.rows["host_ns"]]
    header = " ".join(repr(Run(_with_warmup().build()).view()).split())
    assert "Steps: 3 (batch ranges)" in header
    assert "excluding 1 warm-up step" in header


def test_rows_of_a_batch_size_are_per_step_of_that_size(path: str) -> None:
    """One step has 32 images, one 16: the convolution takes 0.9 ms forward in each."""
    rows = annot.open(path).view("layer", "roofline").rows
    conv = rows.filter(pl.col("layer") == "features.0", pl.col("phase") == "forward")
    assert conv.select("batch", "time_ns", "batch_steps").sort("batch").rows() == [(16, 9e5, 1), (32, 9e5, 1)]


@pytest.mark.parametrize("by", ["module", "phase"])
def test_nested_layers_count_once_in_sums(by: str, path: str) -> None:
    """The time of all rows is that of the run, and rates are those of the sums."""
    run = annot.open(path)
    rows, layers = run.view(by, "roofline").rows, run.view("layer", "roofline").rows
    assert rows["self_ns"].sum() == pytest.approx(run.view("phase").rows["gpu_ns"].sum())
    assert layers["time_ns"].sum() > rows["self_ns"].sum()
    known = rows.drop_nulls("flops")
    assert known["intensity"].to_list() == pytest.approx((known["flops"] / known["bytes"]).to_list())


def test_rates_without_a_gpu_are_those_of_the_host_time(tmp_path: Path) -> None:
    """Two convolutions of one class: FLOPs of both over the time of both."""
    rows = Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 100).range("b Linear [2,3]f32 out=40 |fwd", 100, 1100)
    run = Run(rows.build())
    work = run.view("module", "work").rows.row(0, named=True)
    assert work["flops_per_s"] == pytest.approx(work["flops"] / 1100e-9)


def test_depth_combines_rows_as_their_columns_say(path: str) -> None:
    """An ancestor keeps its calls and its time; its rates are those of the layers that it stands for."""
    run = annot.open(path)
    root = (pl.col("layer") == "") & (pl.col("phase") == "forward") & (pl.col("module") == "AlexNet")
    deep, flat = (run.view("layer", depth=depth).rows.filter(root).row(0, named=True) for depth in (None, 0))
    for name in ("calls", "gpu_ns", "host_ns"):
        assert flat[name] == deep[name]
    assert flat["gpu_self_ns"] == deep["gpu_ns"]
    work = run.view("layer", "work", depth=0).rows.filter(root).row(0, named=True)
    all_work = run.view("layer", "work").rows.filter(pl.col("phase") == "forward")
    assert work["flops"] == all_work["flops"].sum()
    counted = all_work.drop_nulls("flops_per_s")
    assert work["flops_per_s"] == pytest.approx(work["flops"] * 1e9 / counted["gpu_self_ns"].sum())
    roofline = run.view("layer", "roofline", depth=0).rows.filter(root)
    assert roofline["time_ns"].to_list() == run.view("layer", "roofline").rows.filter(root)["time_ns"].to_list()
    assert set(run.view("layer", "tensor", depth=0).rows["layer"]) <= set(run.view("layer", depth=0).rows["layer"])


@pytest.mark.slow
def test_ranks_have_the_longest_rows_only(tmp_path: Path) -> None:
    """`top` and `min_share` are those of the median times."""
    ranks = Ranks([str(path) for path in write_ranks(tmp_path, 3)], workers=1)
    every = ranks.view("layer", sort="time").across
    assert ranks.view("layer", top=2).across.equals(every.head(2))
    assert set(ranks.view("layer", top=2).rows["layer"]) == set(every.head(2)["layer"])
    longer = ranks.view("layer", min_share=0.2).across
    assert 0 < longer.height < every.height
    assert (longer["median_ns"] >= 0.2 * ranks.view("layer").meta["across"]["gpu_ns"]["median"]).all()


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "a.b", "a.b.c", "d", "d.e"]), st.integers(0, 3)), max_size=8))
def test_total_times_by_brute_force(calls: list[tuple[str, int]]) -> None:
    """Layers run inside their ancestors, inside others, and outside. A row has the kernels of its layers, once each.

    The tree has a line for each path of layers inside each other, with the kernels launched there.
    """
    rows, stack, kernels, now = Rows(), list[tuple[str, int]](), list[tuple[int, list[str]]](), 0

    def close(ranges: int) -> None:
        nonlocal now
        for _ in range(min(ranges, len(stack))):
            path, start = stack.pop()
            rows.range(f"{path or 'Forward'} M |fwd", start, now := now + 1)

    for number, (path, ended) in enumerate(calls):
        close(ended)
        stack.append((path, now := now + 1))
        rows.kernel(now := now + 1, (100 * number, 101 * number + 1))
        kernels.append((number + 1, [name for name, _ in stack]))
    close(len(stack))
    attribution = attribute(rows.build())
    layers, total = by_layer(attribution), sum(ns for ns, _ in kernels)
    expected = Counter[str]()
    for ns, around in kernels:
        expected.update(dict.fromkeys(around, ns))
    assert dict(layers.select("layer", "gpu_ns").iter_rows()) == dict(expected)
    lines = by_line(attribution)
    parts = Counter[tuple[str, ...]]()
    for ns, around in kernels:
        path = tuple(name for place, name in enumerate(around) if place == 0 or around[place - 1] != name)
        parts.update({path[:size]: ns for size in range(1, len(path) + 1)})
    above = list[str]()
    found = dict[tuple[str, ...], int]()
    for line in layer_lines(lines):
        above[line.depth :] = [line.key[0]]
        found[tuple(above)] = line.get("gpu_ns")
    assert found == dict(parts)
    for depth in range(4):
        owners = {path: {one[min(len(one) - 1, depth)] for one in parts if one[-1] == path} for path in expected}
        shown = {path for path in expected if owners[path] != {next(iter(owners[path]))} or path in owners[path]}
        kept = cut_layers(layers, depth, lines)
        assert dict(kept.select("layer", "gpu_ns").iter_rows()) == {
            path: expected[path] for path in expected if path in shown or any({path} == one for one in owners.values())
        }
        assert kept["gpu_self_ns"].sum() == total
        assert cut(lines, depth)["gpu_self_ns"].sum() == total


def test_values_are_combined_by_their_column() -> None:
    """Sums add up, rates are those of the sums, means are weighted by time, and values that differ are unknown."""
    rows = pl.DataFrame({
        "module": ["a", "a", "b"], "time_ns": [1, 3, 5], "self_ns": [1, 2, 5], "flops": [8, 12, None],
        "bytes": [8, 2, 7], "flops_per_s": [8e9, 4e9, None], "intensity": [1.0, 6.0, None], "bound": ["x", "y", "y"],
        "roof_share": [None, 0.5, None], "stall_share": [0.25, 0.75, None], "gpu_self_ns": [0, 0, 0],
    })  # fmt: skip
    table = combined(rows, ["module"], COLUMNS.values())
    assert "time_ns" not in table.columns, "the time of layers inside each other"
    names = ("self_ns", "flops", "flops_per_s", "intensity", "bound", "roof_share", "stall_share")
    assert table.select(names).rows() == [
        (3, 20, 5e9, 2.0, None, 0.5, 0.625),
        (5, None, None, None, "y", None, None),
    ]
    assert per_step(rows, COLUMNS.values(), 2)["time_ns"].to_list() == [0.5, 1.5, 2.5]


def test_cells_have_the_unit_of_their_column() -> None:
    """Columns in ns share one unit; others have their own; unknown columns are left out."""
    rows = [{"gpu_ns": 2_500_000, "host_ns": 4_000, "tc_share": 0.5, "kind": None, "main_ns": 2_500_000}]
    columns = [COLUMNS[name] for name in ("gpu_ns", "host_ns", "tc_share", "kind")]
    share = Column("main_ns", "Share", "of total")
    shown = formatted([*columns, share], rows, 10_000_000)
    assert [(one.title, one.show(rows[0])) for one in shown] == [
        ("GPU", "2.500"), ("Host µs", "4.00"), ("On TC", "50.0%"), ("Share", "25.0%"),
    ]  # fmt: skip


def test_files_of_a_run(path: str, tmp_path: Path) -> None:
    """The page, the JSON and the trace are those of the command line."""
    run = annot.open(path)
    for name, write in (("a.html", run.to_html), ("a.json", run.to_json), ("a.json.gz", run.to_trace)):
        write(tmp_path / name)
        assert main([path, "-o", str(tmp_path / f"cli.{name}")]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "cli.a.html").read_bytes()
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "cli.a.json"))
    assert ours["layers"] == theirs["layers"]
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "cli.a.json.gz").read_bytes()
    with pytest.raises(annot.AnnotError, match="cannot be written"):
        run.to_html(tmp_path / "missing" / "a.html")


@pytest.mark.slow
def test_ranks_as_a_list_a_pattern_and_a_folder(tmp_path: Path) -> None:
    """Several profiles are the ranks of a run, however they are named."""
    paths = write_ranks(tmp_path / "logs", 2)
    layers = annot.open(paths).layers
    for profile in (str(tmp_path / "logs" / "*.sqlite"), tmp_path / "logs"):
        found = annot.open(profile)
        assert isinstance(found, Ranks)
        assert found.layers.equals(layers)
    assert found.rank(1).layers.equals(Run(paths[1]).layers)
    found.to_html(tmp_path / "ranks.html")
    assert (tmp_path / "ranks.html").read_bytes().startswith(b"<!doctype html>")


def test_a_profile_is_a_path_or_a_profile() -> None:
    with pytest.raises(TypeError, match=r"profile must be a Profile from annot\.load or a path, got int"):
        annot.open(7)  # type: ignore[arg-type]
    with pytest.raises(annot.AnnotError, match="no-such-file does not exist"):
        _ = annot.open("no-such-file").layers


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top": -1}, ValueError, "top must be at least 1, got -1"),
        ({"top": 0}, ValueError, "top must be at least 1, got 0"),
        ({"top": 1.5}, TypeError, "top must be an int or None, got 1.5 .float."),
        ({"depth": -1}, ValueError, "depth must be at least 0, got -1"),
        ({"depth": True}, TypeError, "depth must be an int or None, got True .bool."),
        ({"min_share": 5}, ValueError, r"min_share must be from 0 to 1 \(0\.05 is 5%\), got 5"),
        ({"min_share": float("nan")}, ValueError, "min_share must be from 0 to 1 .*, got nan"),
        ({"min_share": "5%"}, TypeError, "min_share must be a number, got '5%' .str."),
        ({"sort": "name"}, ValueError, "sort must be one of order, time, got 'name'"),
        ({"expand": 3}, TypeError, "expand must be a path of a layer or a sequence of paths, got 3 .int."),
        ({"expand": [3]}, TypeError, "expand must have paths of layers, got 3 .int."),
        ({"expand": "layers"}, ValueError, "expand must be the path of a layer, got 'layers'"),
        ({"by": 3}, TypeError, "by must be a str, got 3"),
    ],
)
def test_arguments_of_views_are_checked(
    options: dict[str, Any], error: type[Exception], message: str, path: str
) -> None:
    """The message says what was expected, and what the argument is."""
    with pytest.raises(error, match=message):
        annot.open(path).view(**options)


def test_one_path_to_expand_is_a_str(path: str) -> None:
    run = annot.open(path)
    assert run.view(expand="features").shown.equals(run.view(expand=["features"]).shown)
    assert run.view(top=1, depth=0, min_share=1, expand="").rows.height == 1


@pytest.mark.parametrize("name", ["domain", "steps", "step_range", "step_kind"])
def test_arguments_of_open_are_checked(name: str, path: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a (str|slice) or None, got 3"):
        annot.open(path, **{name: 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="profile must name at least one file, got an empty list"):
        annot.open([])


def test_views_have_names_of_their_own() -> None:
    """Plural and singular name a row; unknown rows and columns are an error with those that there are."""
    assert find_view("layers", "roofline") is find_view("layer", "roofline") is views()["layer_roofline"]
    with pytest.raises(ValueError, match=r"by must be one of layer, module, .*, got 'bottleneck'"):
        find_view("bottleneck")
    assert find_view("kernels", "all").key == "kernel"
    with pytest.raises(ValueError, match=r"columns must be one of time, work, .*, got 'color'"):
        find_view("layer", "color")
    assert View("own", "mine", ("calls",), find_view("op").rows, "work").key == "mine_work"
