"""One step has one time on a screen: the sentence, the lines above the table and its rows agree to rounding."""

from __future__ import annotations

import io
import re

import polars as pl
import pytest
from real_runs import with_each_profile
from rich.console import Console
from tables import Rows

from annot.attribution.steps import steady_steps
from annot.profile import Profile
from annot.report.table import Table
from annot.report.terminal.table import print_answer, print_rest, print_table
from annot.runs.run import Run

pytest_plugins = ["real_runs"]
QUICK = ("kineto/hta_cpu_only.json.gz", "tf_cpu.xplane.pb", "nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz")
_NS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}
_TIME = r"([\d.,]+) (s|ms|µs|ns)"


def _screen(report: Table, *, answer: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, width=1000)
    if answer:
        print_answer(report, console)
        print_rest(report, console)
    else:
        print_table(report, console)
    return text.getvalue()


def _times(pattern: str, text: str) -> list[tuple[float, float]]:
    """Each printed time (ns) after a pattern, and half of its last digit."""
    found = []
    for number, unit in re.findall(pattern + _TIME, text):
        digits = number.replace(",", "")
        last = 10.0 ** -len(digits.partition(".")[2]) * (0.1 if "." not in digits and int(digits) > 99 else 1)
        found.append((float(digits) * _NS[unit], 0.51 * max(last, 10.0 ** -len(digits.partition(".")[2])) * _NS[unit]))
    return found


def _agree(printed: list[tuple[float, float]], expected: float) -> None:
    for value, rounding in printed:
        assert abs(value - expected) <= rounding, (printed, expected)


def _check(run: Run) -> None:
    """Every time of a step that a screen of the profile prints is the mean or the median, by name."""
    report = run.view(brief=True)
    times = report.meta["step_ns"]
    if not report.meta["steps"] or times is None:
        assert not re.search(r"(?m)^\w* ?[sS]tep [\d.]", _screen(report, answer=True))
        return
    for screen in (_screen(report, answer=True), *(_screen(run.view(by, brief=True)) for by in ("phase", "step"))):
        _agree(_times(r"(?m)^(?:\w+ s|S)tep ", screen), times["mean"])
        _agree(_times(r"\bmean ", screen), times["mean"])
        assert _times(r"\bmean ", screen) or times["warmup"] == report.meta["steps"] - 1
        _agree(_times(r"\bmedian ", screen.partition("\n\n")[0]), times["median"])
    if "per_step" in report.meta and report.meta["processes"] == 1:
        assert report.meta["wall_ns"] == pytest.approx(times["mean"], rel=1e-6)
    rows = steady_steps(run.view("step").rows)
    assert rows["step_ns"].mean() == pytest.approx(times["mean"], rel=1e-6, abs=1)
    if report.time == "host_ns" and "per_step" in report.meta:
        outermost = report.shown.filter(pl.col("parent") == -1)["host_ns"].sum()
        assert outermost == pytest.approx(report.whole, rel=1e-6)
        assert (outermost > report.meta["wall_ns"] * (1 + 1e-9)) == ("over threads" in _screen(report))


@with_each_profile(*QUICK)
def test_real_profiles(real_run: Run) -> None:
    """The answer, all rows, the phases and the steps."""
    _check(real_run)


def _steps(*lengths: int, kernels: bool = False) -> Profile:
    rows, start = Rows(), 0
    for step, length in enumerate(lengths):
        rows.range(f"Batch {step} |step", start, start + length).range("fc Linear |fwd", start, start + length // 2)
        if kernels:
            rows.kernel(start, (start + 1, start + length - 1))
        start += length
    return rows.build()


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("lengths", [(100, 101, 99), (100, 110, 100, 105), (100, 100, 700, 100)])
def test_steps_of_unequal_lengths(lengths: tuple[int, ...], kernels: bool) -> None:
    """Nearly equal steps, and a long one."""
    _check(Run(_steps(*(1000 * length for length in lengths), kernels=kernels)))


def test_the_median_is_named_where_it_differs() -> None:
    """To the digits that the sentence prints."""
    assert Run(_steps(100_000, 100_040, 100_020)).verdict.startswith("Step 100 µs on CPU")
    assert Run(_steps(100_000, 100_000, 104_500)).verdict.startswith("Step 102 µs (mean; median 100 µs) on CPU")
