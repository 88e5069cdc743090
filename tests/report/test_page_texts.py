"""The sentences of the page that no choice of the reader changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comparisons import compare
from report_pages import page_data
from tables import Rows

from annot.analyze.peaks import Peaks
from annot.analyze.timeline import timeline
from annot.attribution.attribute import attribute
from annot.changes.tried import Tried
from annot.report.page import texts
from annot.report.totals import peaks_text

STEP: dict[str, Any] = {"mean": 2_000, "median": 1_500, "min": 1_000, "max": 3_000, "iqr": 500, "warmup": 1}
META: dict[str, Any] = {
    "producer": "nsys 2025", "format": "nsys", "steps": 3, "steps_found_by": "ranges", "steps_missing": "",
    "step_ns": STEP, "step_kinds": ["step"], "step_kind": "step", "gpu_ns": 4_000, "attributed_gpu_ns": 1_000,
    "kernels": 2, "copies": 1, "host_ns": 9_000, "ranges": 1, "threads": 2,
}  # fmt: skip
NO_STEPS = META | {"steps": 0, "step_ns": None, "step_kinds": [], "step_kind": None, "steps_missing": "none"}


def summary(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = {"section": pl.String, "item": pl.String, "ns": pl.Int64, "share": pl.Float64, "count": pl.Int64}
    return pl.DataFrame(rows, schema=schema | {"text": pl.String})


def wall(count: int = 1, ns: int = 6_000) -> dict[str, Any]:
    return {"section": "time", "item": "wall", "ns": ns, "count": count}


def device(count: int) -> dict[str, Any]:
    return {"section": "system", "item": "device", "count": count, "text": "H100"}


@pytest.mark.parametrize(("count", "named"), [(1, "H100"), (2, "2 × H100")])
def test_several_devices_have_their_number(count: int, named: str) -> None:
    rows = summary(device(count), {"section": "system", "item": "software", "text": "nsys 2025"})
    assert texts.software(rows, META) == [named, "nsys 2025", "3 steps (ranges)"]  # the producer is there once
    assert texts.software(rows, NO_STEPS)[-1] == "no steps, because none"


def test_facts_of_a_profile_leave_out_what_is_unknown() -> None:
    facts = dict(texts.facts_of_profile(summary(device(2)), META | {"producer": ""}, "run.sqlite"))
    assert facts == {"Profile": "run.sqlite", "Format": "nsys", "Steps": "3, ranges", "Devices": "2 × H100"}


def test_totals_have_the_units_and_the_steps_of_the_profile() -> None:
    busy = {"section": "gpu", "item": "busy", "share": 0.5}
    totals = {name: more for name, *more in texts.totals_of_run(summary(busy), META, "Matrix Cores", device=True)}
    assert totals == {
        "GPU time": ["4.00 µs", "25.0% in ranges"],
        "GPU busy": ["50.0%", "of the steps"],
        "Kernels": ["2", "1 copy or memset"],
        "Host time": ["9.00 µs", "1 range, 2 threads"],
        "Step": ["2.00 µs", "mean of 2, 1 of warm-up excluded"],
    }  # without a share, Matrix Cores are left out
    cores = {"section": "gpu", "item": "tensor_cores", "share": 0.25}
    many = META | {"copies": 2, "gpu_ns": 0, "step_ns": None}
    other = {name: more for name, *more in texts.totals_of_run(summary(cores), many, "Matrix Cores", device=True)}
    assert other["On Matrix Cores"] == ["25.0%", "of kernel time"]
    assert other["Kernels"] == ["2", "2 copies and memsets"]
    assert other["GPU time"] == ["0", "0.0% in ranges"]
    assert other["Step"] == ["3", "steps"]
    assert texts.totals_of_run(summary(), NO_STEPS | {"host_ns": None}, "Tensor Cores", device=False) == []


@pytest.mark.parametrize(
    ("meta", "count", "on_device", "without_warmup", "text"),
    [
        (META, 1, True, False, "6.00 µs, the sum of the steps without warm-up"),
        (META | {"step_ns": STEP | {"warmup": 0}}, 1, True, False, "6.00 µs, the sum of the steps"),
        (META | {"step_kinds": ["a", "b"], "step_kind": "b", "step_ns": None}, 2, True, False,
         "6.00 µs, the sum of the b steps, added up over 2 devices"),
        (NO_STEPS, 1, True, False, "6.00 µs, the time from the first to the last kernel"),
        (NO_STEPS, 1, False, True, "6.00 µs, the time of the run without warm-up"),
    ],
)  # fmt: skip
def test_the_bar_says_what_it_shows(
    meta: dict[str, Any], count: int, on_device: bool, without_warmup: bool, text: str
) -> None:
    options = {"device": on_device, "without_warmup": without_warmup}
    assert texts.whole_text(summary(wall(count)), meta, **options) == text


def test_the_breakdown_says_what_it_adds_up() -> None:
    over = "Overlapped: time during which a part above it runs."
    assert texts.breakdown_text(summary(wall()), META, device=True) == f"Sum of the steps: 6.00 µs. {over}"
    several = texts.breakdown_text(summary(wall(2)), NO_STEPS, device=True)
    assert several == f"Total: 6.00 µs on 2 devices. {over}"
    assert "on 2 processes" in texts.breakdown_text(summary(wall(2)), META, device=False)
    for empty in (summary(), summary(wall(ns=0))):
        assert texts.breakdown_text(empty, META, device=True) == ""
        assert texts.whole_text(empty, META, device=True, without_warmup=False) == ""


def test_peaks_are_in_the_words_of_the_device() -> None:
    peaks = Peaks("MI300X", {"f16 tensor": 1.3e15, "any": 1e14}, 5.3e12, "data sheet").as_meta()
    assert peaks_text(peaks, "Matrix Cores") == "MI300X: 5.30 TB/s, f16 matrix 1.30 PFLOP/s, 100 TFLOP/s (data sheet)"
    assert "bandwidth unknown, f16 tensor" in peaks_text(peaks | {"bandwidth": None, "device": "A100"})
    assert peaks_text(Peaks("", {}, None, "No peaks.").as_meta()) == "unknown. No peaks."


def test_steps_have_their_spread_or_a_reason() -> None:
    spread = "mean 2.00 µs, median 1.50 µs, IQR 0.50 µs, 1.00 µs to 3.00 µs"
    assert texts.steps_text(3, META) == f"3 steps (ranges), {spread}"
    assert texts.steps_text(1, META | {"step_ns": None}) == "1 step (ranges)"
    assert texts.steps_text(0, NO_STEPS) == "No steps, because none."


def test_the_timeline_says_what_it_lacks() -> None:
    profile = Rows().range("fc Linear |fwd", 0, 900).range("fc Linear |fwd", 1000, 1900).build()
    drawn = timeline(attribute(profile), 10)
    assert texts.timeline_text(drawn) == "2 events in 1 lane."
    assert texts.timeline_text(replace(drawn, left_out=1)) == (
        "2 events in 1 lane. The 1 lane with the least time are left out."
    )
    sample = texts.timeline_text(replace(drawn, every=4, total=1_000))
    assert sample.startswith("A sample: 2 of 1,000 events, the longest and one in 4 of the others.")


def test_cards_compare_the_times_of_both_sides() -> None:
    profiles = [Rows().range("fc Linear |fwd", 0, length).build() for length in (2_000, 1_000)]
    comparison = compare(*map(attribute, profiles))
    cards = texts.comparison_cards(comparison, ("before", "after"))
    assert cards[:2] == [
        ("A: host time in total", "2.00 µs", ["before"], ""),
        ("B: host time in total", "1.00 µs", ["after"], ""),
    ]
    assert cards[2] == ("Speedup of B", "2.000 ×", [], "Above 1: B is faster.")
    whole = {"a_ns": None, "b_ns": 5, "speedup": None, "speedup_low": 0.5, "speedup_high": 1.5}
    other = replace(comparison, whole=whole, steps=(1, 4), step_time={"a_ns": 2e6, "b_ns": None}, time="gpu_ns")
    other = replace(other, runs=(2, 1), level=0.01)
    assert texts.comparison_cards(other, ("before", "")) == [
        ("A: GPU time per step", "—", ["before"], "2 runs, 1 step, step time 2.000 ms (wall clock)"),
        ("B: GPU time per step", "0.01 µs", [], "1 run, 4 steps"),
        ("Speedup of B", "—", [], "99% confidence interval: 0.500 to 1.500"),
    ]


def test_tried_changes_are_a_table_with_the_best_first() -> None:
    tried = [
        Tried(change="fp16", outcome="other training", reason="losses differ", speedup=3.0, low=2.9, high=3.1, runs=5),
        Tried(change="threads", outcome="failed", reason="it hangs", date="2026-11-26"),
        Tried(change="fused", outcome="faster", speedup=1.2, low=1.1, high=1.3, runs=5, date="2026-11-26"),
        Tried(change="compile", outcome="faster", speedup=1.4, low=1.3, high=200.0, runs=1000),
    ]
    shown = texts.tried_changes(tried)
    assert shown is not None
    assert shown["table"]["heads"] == [
        ("Speedup", False), ("Interval", False), ("Outcome", False), ("Runs", True), ("Date", True)
    ]  # fmt: skip
    assert shown["table"]["rows"] == [
        ("compile", ("1.40", "1.30–?", "faster", "1,000", ""), True),
        ("fused", ("1.20", "1.10–1.30", "faster", "5", "2026-11-26"), True),
        ("fp16", ("3.00", "2.90–3.10", "changes training", "5", ""), False),
        ("threads", ("", "", "fails", "", "2026-11-26"), False),
    ]
    assert shown["notes"] == ["fp16: losses differ", "threads: it hangs"]
    failed = texts.tried_changes(tried[1:2])
    assert failed is not None
    assert failed["table"] == {
        "heads": [("Outcome", False), ("Date", True)], "rows": [("threads", ("fails", "2026-11-26"), False)]
    }  # fmt: skip
    assert texts.tried_changes([]) is None


def test_reasons_are_sentences() -> None:
    assert texts.sentence("times are means of ms") == "Times are means of ms"
    assert texts.sentence("") == ""


def test_places_of_lines_and_folds() -> None:
    """Each place lists what is directly inside: a fold instead of its members, which are inside the fold only."""
    rows = Rows()
    for number in range(6):
        rows.range(f"layers.{number} Block |fwd", 1000 * number, 1000 * number + 900)
        rows.range(f"layers.{number}.mlp Linear |fwd", 1000 * number + 100, 1000 * number + 800)
    rows.range("head Linear |fwd", 7000, 8000)
    run = page_data(rows.build(), "made")["runs"][0]
    titles = [line["title"] for line in (*run["lines"], *run["folds"])]
    inside = {titles[place]: line.get("inside", []) for place, line in enumerate((*run["lines"], *run["folds"]))}
    assert [titles[place] for place in run["top"]] == ["layers.*", "head", "(unattributed)"]
    assert [titles[place] for place in inside["layers.*"]] == ["layers.*.mlp"]
    assert [titles[place] for place in inside["layers.3"]] == ["layers.3.mlp"]
    assert inside["layers.*.mlp"] == inside["head"] == []
    assert [titles[line["parent"]] for line in run["lines"] if line["title"] == "layers.3.mlp"] == ["layers.3"]
