"""What the plots of a sweep show: the numbers behind them, worked out by hand, and the pictures themselves."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

from annot.report.charts.chart import Chart, Series, as_svg
from annot.sweep.plots import backward_chart, batch_charts, hidden_chart, roofline_chart, speedup_chart
from annot.sweep.tables import against_hidden, backward_ratio, per_run, roofline, speedup, sweep_table

SVG = "{http://www.w3.org/2000/svg}"
FACTS = {"run": "r", "status": 0, "problem": None, "seconds": 1.0}


def layer(name: str, phase: str, host: int, gpu: int = 0, flops: int | None = None, **more: Any) -> dict[str, Any]:
    """A row of a run, as `run_rows` gives it."""
    moved = None if flops is None else flops // 4
    return {
        "layer": name, "module": "Linear", "phase": phase, "calls": 2, "host_ns": host, "host_self_ns": host,
        "gpu_ns": gpu, "gpu_self_ns": gpu, "gpu_busy_ns": gpu, "kernels": 0, "flops": flops, "bytes_read": moved,
        "bytes_written": moved, "params": None if flops is None else 10, "steps": 2, "step_ns": 1000, "step_gpu_ns": 0,
    } | more  # fmt: skip


def table_of(*runs: tuple[dict[str, Any], list[dict[str, Any]]]) -> pl.DataFrame:
    """A sweep of runs with these parameters and rows."""
    return sweep_table(
        [
            (parameters, FACTS | {"run": f"r{number}"}, pl.DataFrame(rows, infer_schema_length=None) if rows else None)
            for number, (parameters, rows) in enumerate(runs)
        ]
    )


def test_parameters_of_all_grids_are_columns() -> None:
    """What a run has no parameter for is null; whole and broken numbers are broken, with texts all are texts."""
    row = [layer("a", "forward", 1)]
    table = table_of(({"n": 1, "m": 1, "k": 2}, row), ({"n": 0.5, "m": "x"}, row), ({"n": 2, "m": "x"}, []))
    assert table.select("n", "m", "k").rows() == [(1.0, "1", 2), (0.5, "x", None), (2.0, "x", None)]
    assert table["layer"].to_list() == ["a", "a", None]
    assert table.schema["k"] == pl.Int64


def test_speed_and_work_of_a_run_are_those_of_a_step() -> None:
    """Samples per second from batch and step; work is added over layers and divided by the steps."""
    rows = [layer("b.a", "forward", 5, flops=800), layer("b.a", "backward", 5, flops=1600), layer("b", "forward", 5)]
    runs = per_run(table_of(({"batch": 4}, rows), ({"batch": 8}, [])), ["batch"], "batch")
    assert runs.select("batch", "steps", "step_ns", "items_per_s", "flops", "bytes", "params").rows() == [
        (4, 2, 1000, 4e6, 1200.0, 600.0, 10)
    ]
    assert per_run(table_of(({"batch": 4}, rows[2:])), ["batch"])["flops"].to_list() == [None]


def test_part_of_the_work_is_not_the_work() -> None:
    """A run with a layer that is not counted has no point of its own under the roof; its neighbours keep theirs."""
    rows = [layer("a", "forward", 5, flops=800), layer("b", "backward", 5), layer("(batch)", "other", 5, module="")]
    optimizer = layer("", "optimizer", 5, flops=400, module="SGD")
    zero_grad = layer("zero_grad", "optimizer", 5, module="SGD")
    runs = per_run(
        table_of(
            ({"n": 1}, [*rows, optimizer]),
            ({"n": 2}, [rows[0], rows[2], optimizer, zero_grad]),
            ({"n": 3}, [optimizer, zero_grad]),
        ),
        ["n"],
    )
    assert runs.select("flops", "bytes").rows() == [(None, None), (600.0, 300.0), (None, None)]
    assert roofline(runs)["n"].to_list() == [2]


def test_backward_ratio_is_of_innermost_layers_and_a_call() -> None:
    """Containers, annotations and layers with one phase are left out; device time where there is any."""
    rows = [
        layer("net", "forward", 100), layer("net", "backward", 300),
        layer("net.a", "forward", 10), layer("net.a", "backward", 30, calls=1),
        layer("net.b", "forward", 10), layer("Loss", "other", 10), layer("Loss", "backward", 10),
        layer("mine", "forward", 10, module=""), layer("mine", "backward", 10, module=""),
    ]  # fmt: skip
    ratios = backward_ratio(table_of(({"n": 1}, rows)), ["n"])
    assert ratios.select("layer", "forward_ns", "backward_ns", "ratio").rows() == [("net.a", 5.0, 30.0, 6.0)]
    on_device = [layer("a", "forward", 10, gpu=50), layer("a", "backward", 10, gpu=75)]
    both = backward_ratio(table_of(({"n": 1}, rows), ({"n": 2}, on_device)), ["n"])
    assert both["ratio"].to_list() == [6.0, 1.5]


def test_backward_ratio_keeps_the_longest_layers_in_their_order() -> None:
    rows = [layer(f"l{n}", phase, n + 1) for n in (3, 9, 1, 7) for phase in ("forward", "backward")]
    assert backward_ratio(table_of(({"n": 1}, rows)), ["n"], most=2)["layer"].to_list() == ["l9", "l7"]


def test_what_is_left_of_a_step_without_width() -> None:
    """Steps of 700 + 3·hidden² ns leave 700; each line has its own; one width alone, and none, leave nothing."""
    rows = [
        ({"b": b, "h": h}, [layer("a", "forward", 1, step_ns=700 * b + 3 * h * h)])
        for b, h in ((1, 10), (1, 20), (1, 40), (2, 10), (2, 20), (3, 10))
    ]
    runs = per_run(table_of(*rows, ({"b": 1}, [layer("a", "forward", 1)])), ["b", "h"])
    found = against_hidden(runs, "h", ["b"])
    assert found.select("b", "square").rows() == [(1, 100), (1, 400), (1, 1600), (2, 100), (2, 400), (3, 100)]
    assert found["fixed_ns"].to_list() == [*[pytest.approx(700)] * 3, *[pytest.approx(1400)] * 2, None]
    assert against_hidden(runs.head(3), "h", [])["fixed_ns"].to_list() == [pytest.approx(700)] * 3


def test_roofline_is_work_over_time() -> None:
    """FLOP per byte and FLOP/s of a step; device time where there is any; runs of unknown work are left out."""
    host = [layer("a", "forward", 1, flops=800)]
    device = [layer("a", "forward", 1, gpu=7, flops=800, step_gpu_ns=500)]
    unknown = [layer("a", "forward", 1)]
    runs = per_run(table_of(({"n": 1}, host), ({"n": 2}, device), ({"n": 3}, unknown)), ["n"])
    assert roofline(runs).select("n", "intensity", "flops_per_s").rows() == [(1, 2.0, 4e8), (2, 2.0, 8e8)]


def test_speedup_pairs_runs_by_what_changes() -> None:
    """A device that is fixed in each sweep does not keep runs apart; a point that one sweep lacks is left out."""

    def sweep(device: str, factor: int, sizes: tuple[float, ...]) -> pl.DataFrame:
        runs = [({"device": device, "n": n}, [layer("a", "forward", 1, step_ns=int(factor * n))]) for n in sizes]
        return per_run(table_of(*runs), ["device", "n"])

    pairs = speedup(sweep("gpu", 10, (1, 2, 3)), sweep("cpu", 45, (2, 3, 4)), ["device", "n"])
    assert pairs.select("n", "step_ns", "other_step_ns", "speedup").rows() == [(2, 20, 90, 4.5), (3, 30, 135, 4.5)]
    broken = speedup(sweep("gpu", 10, (1, 2, 3)), sweep("cpu", 45, (2, 2.5)), ["device", "n"])
    assert broken.select("n", "speedup").rows() == [(2, 4.5)]


# ------------------------------------------------------------------ pictures


def circles(svg: str) -> list[tuple[float, float, str]]:
    """Place and values of each point."""
    root = ElementTree.fromstring(svg)
    found = []
    for one in root.iter(f"{SVG}circle"):
        title = one.find(f"{SVG}title")
        assert title is not None
        found.append((float(one.attrib["cx"]), float(one.attrib["cy"]), title.text or ""))
    return found


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_equal_factors_are_equal_distances_on_logarithmic_axes() -> None:
    """To the right and up mean more; 1, 10 and 100 are as far apart as 2, 4 and 8."""
    (a, b, c) = circles(
        as_svg(Chart("t", "x", "y", [Series("s", [(1, 2), (10, 4), (100, 8)])], log_x=True, log_y=True))
    )
    assert a[0] < b[0] < c[0]
    assert a[1] > b[1] > c[1]
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.2)
    assert b[1] - a[1] == pytest.approx(c[1] - b[1], abs=0.2)


def test_linear_axis_with_a_least_number_reaches_it() -> None:
    """From 0 on, heights are in proportion, and the axis is labelled."""
    svg = as_svg(Chart("t", "x", "y", [Series("s", [(0, 50), (1, 100)])], least_y=0))
    half, whole = (y for _, y, _ in circles(svg))
    zero = next(float(one.attrib["y"]) - 4 for one in ElementTree.fromstring(svg).iter(f"{SVG}text") if one.text == "0")
    assert (zero - half) * 2 == pytest.approx(zero - whole, abs=0.3)
    assert {"0", "20", "100", "t", "x", "y"} <= set(texts(svg))


@pytest.mark.parametrize("points", [[], [(1.0, math.nan)], [(0.0, 1.0)], [(1.0, -1.0)]])
def test_without_anything_to_draw_the_picture_says_so(points: list[tuple[float, float]]) -> None:
    svg = as_svg(Chart("t", "x", "y", [Series("s", points)], log_x=True, log_y=True))
    assert circles(svg) == []
    assert "No data" in texts(svg)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [1e-9, 1.0, 7e12])
def test_a_single_point_lies_inside(value: float, log: bool) -> None:
    ((x, y, _),) = circles(as_svg(Chart("t", "x", "y", [Series("s", [(value, value)])], log_x=log, log_y=log)))
    assert 84 < x < 860 - 24
    assert 46 < y < 480 - 44


def test_names_cannot_become_markup() -> None:
    """Layers and parameters come from files; whatever they are called is text."""
    evil = '<script>alert("1")</script>&\x1b[31m\x00'
    chart = Chart(
        evil, evil, evil, [Series(evil, [(0, 1)])], categories=[evil], guides=[Series(evil, [(0, 1), (1, 1)])]
    )
    root = ElementTree.fromstring(as_svg(chart))
    assert not list(root.iter(f"{SVG}script"))
    assert any("<script>" in (one.text or "") for one in root.iter(f"{SVG}text"))


def test_more_series_than_the_legend_holds_are_counted() -> None:
    svg = as_svg(Chart("t", "x", "y", [Series(f"s{n}", [(n, n)]) for n in range(30)]))
    assert "and 12 more" in texts(svg)
    assert len({one.attrib["fill"] for one in ElementTree.fromstring(svg).iter(f"{SVG}circle")}) == 30


@pytest.fixture
def runs() -> pl.DataFrame:
    grid = [(batch, nodes) for batch in (2, 4, 8) for nodes in (16, 32)]
    rows = [
        ({"batch": b, "nodes": n}, [layer("a", "forward", 1, flops=b * n * 100, step_ns=b * n * 1000)]) for b, n in grid
    ]
    return per_run(table_of(*rows), ["batch", "nodes"], "batch")


def test_plots_against_batch_have_a_line_for_each_combination(runs: pl.DataFrame) -> None:
    """Points by batch size; ms and samples per second."""
    time, speed = batch_charts(runs, "batch", ["nodes"]).values()
    assert [(one.name, one.points) for one in time.series] == [
        ("nodes=16", [(2.0, 0.032), (4.0, 0.064), (8.0, 0.128)]),
        ("nodes=32", [(2.0, 0.064), (4.0, 0.128), (8.0, 0.256)]),
    ]
    assert speed.series[0].points == [(b, pytest.approx(1e9 / 16_000)) for b in (2.0, 4.0, 8.0)]


def test_plot_against_hidden_squares_it(runs: pl.DataFrame) -> None:
    """Each line says where it begins."""
    chart = hidden_chart(against_hidden(runs, "nodes", ["batch"]), "nodes", ["batch"])
    assert [one.name for one in chart.series] == [
        "batch=2 (0.0213 ms at 0)", "batch=4 (0.0427 ms at 0)", "batch=8 (0.0853 ms at 0)",
    ]  # fmt: skip
    assert chart.series[0].points == [(256.0, 0.032), (1024.0, 0.064)]


def test_roofline_shows_the_roofs_that_are_known(runs: pl.DataFrame) -> None:
    """Below the corner the roof is memory's, above it arithmetic's; points are coloured by a parameter."""
    achieved = roofline(runs)
    chart = roofline_chart(achieved, "nodes", {"peak_flops": 1e12, "peak_bandwidth": 1e11})
    assert [one.name for one in chart.series] == ["nodes=16", "nodes=32"]
    assert len(circles(as_svg(chart))) == 6
    ((low, at_low), corner, (high, at_high)) = chart.guides[0].points
    assert at_low == pytest.approx(low * 1e11)
    assert corner == (10.0, 1e12)
    assert (high > 10, at_high) == (True, 1e12)
    assert [one.name for one in roofline_chart(achieved, None, {"peak_flops": 1e12}).guides] == ["peak FLOP/s"]
    assert not roofline_chart(achieved, None, {}).guides


def test_backward_and_speedup_plots_have_a_point_per_pair(runs: pl.DataFrame) -> None:
    rows = [layer(name, phase, 10) for name in ("a", "b") for phase in ("forward", "backward")]
    chart = backward_chart(backward_ratio(table_of(({"n": 1}, rows), ({"n": 2}, rows)), ["n"]), ["n"])
    assert chart.categories == ["a", "b"]
    assert [(one.name, one.points) for one in chart.series] == [("n=1", [(0, 1), (1, 1)]), ("n=2", [(0, 1), (1, 1)])]
    slower = runs.with_columns(pl.col("step_ns") * 3)
    pairs = speedup_chart(speedup(runs, slower, ["batch", "nodes"]), "batch")
    assert [len(one.points) for one in pairs.series] == [2, 2, 2]
    assert {y for one in pairs.series for _, y in one.points} == {3.0}
    assert len(circles(as_svg(pairs))) == 6


@pytest.mark.parametrize(("low", "high"), [(297.0, 513.0), (0.49, 1.09), (3.0, 3.1), (1.0, 1e7)])
def test_logarithmic_axes_have_numbers(low: float, high: float) -> None:
    """However little an axis spans, three numbers tell how much that is."""
    points = [(low, low), (high, high)]
    texts = ElementTree.fromstring(as_svg(Chart("T", "x", "y", [Series("", points)], log_x=True, log_y=True))).iter(
        f"{SVG}text"
    )
    numbers = [text.text for text in texts if text.text and text.text[0].isdigit()]
    assert len(numbers) >= 6
    assert len(set(numbers)) == len(numbers) // 2
