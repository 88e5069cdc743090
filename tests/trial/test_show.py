"""The answer of a trial in a terminal, as Markdown, and on a page in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import Page
from report_pages import violations
from sqlite_profile import training

from annot.cli.try_command import _print
from annot.report.terminal.layout import plain_text
from annot.report.units import printable
from annot.trial.answer import Answer, LayerChange, Row
from annot.trial.page import write_page
from annot.trial.show import as_markdown, print_answer

pytest_plugins = ["report_page_fixtures"]
FUSED = Row(
    changes=["fused"],
    title="fused optimizer",
    verdict="faster",
    before_ns=12e6,
    after_ns=8e6,
    speedup=1.5,
    low=1.47,
    high=1.61,
    runs=5,
    first_steps_ns=4_200_000_000,
    pays_back=41,
    peak_bytes=1_120_000_000,
    training="rounding",
    difference=1e-7,
    training_text="losses within 1e-07",
    bound=0.2,
    code="torch.optim.AdamW(model.parameters(), fused=True)",
    profile="fused.check1.sqlite",
)
BF16 = Row(
    changes=["bf16"],
    title="autocast",
    verdict="other training",
    reason="changes training from step 3 on: losses differ by 20%",
    before_ns=12e6,
    after_ns=4e6,
    speedup=3.0,
    low=2.9,
    high=3.1,
    runs=5,
    training="changed",
    training_text="changes training from step 3 on: losses differ by 20%",
    code="with torch.autocast('cuda'):\n    loss = loss_of(x, y)",
)
FAILED = Row(changes=["compile"], title="compiled", verdict="failed", reason="no compiler for \x1b[31m<b>")


def answer(*rows: Row, **values: Any) -> Answer:
    options: dict[str, Any] = {
        "command": ["python", "train.py"],
        "folder": "annot-try-1",
        "date": "2026-11-26T12:00:00+01:00",
        "version": "1",
        "complete": True,
        "framework": "torch",
        "device": "cuda",
        "trains": True,
        "warmup": 3,
        "steps": 30,
        "level": 0.01,
        "step_ns": 12e6,
        "first_steps_ns": 100_000_000,
        "peak_bytes": 1_000_000_000,
        "repeats": "two runs have the same losses",
        "profile": "base.check1.sqlite",
        "rows": list(rows),
        "left_out": {},
    }
    return Answer(**{**options, **values})


def text(shown: Answer, width: int = 200) -> str:
    return plain_text(lambda console: print_answer(shown, console), width)


def test_the_table_of_changes() -> None:
    lines = text(answer(FUSED, BF16, FAILED)).splitlines()
    assert lines[0] == "12.000 ms per step without changes, GPU, 5 rounds of 30 steps after 3"
    assert re.split(r"\s{2,}", lines[1]) == [
        "Change",
        "Before, ms",
        "After",
        "Speedup",
        "Interval",
        "Losses",
        "At most",
        "First steps",
        "Pays back",
        "Memory",
    ]
    assert re.split(r"\s{2,}", lines[2].strip()) == [
        "fused",
        "12.000",
        "8.000",
        "1.50",
        "1.47–1.61",
        "±1e-07",
        "1.25",
        "4.20 s",
        "41 steps",
        "+120 MB",
    ]
    assert lines[3].split()[:4] == ["bf16", "12.000", "4.000", "3.00"]
    assert not any(line.startswith("compile ") for line in lines[:4])


@pytest.mark.parametrize(("high", "expected"), [(99.994, "0.50–99.99"), (100.0, "0.50–?")])
def test_a_wide_interval(high: float, expected: str) -> None:
    row = Row(changes=["fused"], title="", verdict="same speed", speedup=1.3, low=0.5, high=high)
    assert expected in text(answer(row)).splitlines()[2].split()


def test_an_inference_is_named() -> None:
    heading = text(answer(FUSED, trains=False)).splitlines()[0]
    assert heading == "12.000 ms per step without changes, GPU, inference, 5 rounds of 30 steps after 3"


def test_what_to_apply_and_what_not() -> None:
    shown = text(answer(FUSED, BF16, FAILED, left_out={"threads": "the budget is too small"}))
    assert "fused, 1.50 times as fast:\n    torch.optim.AdamW(model.parameters(), fused=True)\n" in shown
    assert "loss_of" not in shown
    assert "bf16 is not recommended: changes training from step 3 on" in shown
    assert "compile is not recommended: no compiler for \\x1b[31m<b>" in shown
    assert "not tried: threads, because the budget is too small" in shown
    assert "fused gains more than its advice promises" in shown
    assert "two runs have the same losses" in shown


@pytest.mark.parametrize(("low", "expected"), [(1.24, False), (1.26, True)])
def test_a_gain_above_the_bound_is_named(low: float, expected: bool) -> None:
    row = Row(changes=["fused"], title="", verdict="faster", speedup=1.3, low=low, high=1.4, bound=0.2)
    assert ("gains more than its advice promises" in text(answer(row))) is expected


@pytest.mark.parametrize(("training", "expected"), [("unknown", True), ("rounding", False)])
def test_unknown_training_is_named(training: str, expected: bool) -> None:
    row = Row(
        changes=["w"], title="", verdict="faster", speedup=2.0, training=training, training_text="no loss was seen"
    )
    assert ("w: unknown whether training stays the same: no loss was seen" in text(answer(row))) is expected


def test_a_change_that_is_undecided() -> None:
    row = Row(changes=["fused"], title="", verdict="undecided", reason="its speedup may be 0.90 to 1.20", speedup=1.1)
    shown = text(answer(row))
    assert "The runs show no change that makes a step faster." in shown
    assert "fused is undecided: its speedup may be 0.90 to 1.20" in shown
    assert "not recommended" not in shown


def test_the_layers_that_change() -> None:
    layer = LayerChange(layer="blocks.0", module="Block", phase="forward", before_ns=3e6, after_ns=1e6)
    gone = LayerChange(layer="", module="AdamW", phase="optimizer", before_ns=3e6, after_ns=0.0)
    shown = text(answer(FUSED, layers=[layer, gone]))
    assert "annot compare annot-try-1/base.check1.sqlite annot-try-1/fused.check1.sqlite" in shown
    assert "  blocks.0 forward: 3.000 ms → 1.000 ms\n  AdamW optimizer: 3.000 ms → absent\n" in shown


def test_nothing_helps() -> None:
    assert "No change makes a step faster." in text(answer(BF16))
    shown = text(answer(complete=False, step_ns=None))
    assert shown.splitlines()[0] == "GPU, 0 rounds of 30 steps after 3; interrupted, these runs had finished"
    assert "No change" not in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_of_the_table_fit_the_terminal(width: int) -> None:
    lines = text(answer(FUSED, BF16), width).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("Change"))
    table = lines[start : start + 3]
    assert max(map(len, table)) <= width
    assert all("1.50" in line or "3.00" in line for line in table[1:])


def test_a_narrow_terminal_has_the_speedup() -> None:
    heading = next(line for line in text(answer(FUSED, BF16), 36).splitlines() if line.startswith("Change"))
    assert heading.split() == ["Change", "After", "Speedup", "Interval"]


def test_markdown() -> None:
    shown = as_markdown(answer(FUSED, BF16, FAILED))
    assert shown.startswith("**fused: 1.50 (1.47–1.61)** – ")
    assert "| `fused` | 12.000 | 8.000 | 1.50 | 1.47–1.61 | ±1e-07 | 1.25 | 4.20 s | 41 steps | +120 MB |" in shown
    assert "```python\ntorch.optim.AdamW(model.parameters(), fused=True)\n```" in shown
    assert "- compile is not recommended: no compiler for `\\x1b[31m<b>`\n" in shown
    assert as_markdown(answer(BF16)).startswith("**No change makes a step faster** – ")
    assert "| Change | Before, ms | After, ms | Speedup |" in shown


def test_markdown_of_few_characters() -> None:
    """What is not recommended stays longest, and the file with the whole answer is named."""
    shown = as_markdown(answer(FUSED, BF16, FAILED, notes=["the machine was busy " * 20]), 700)
    assert len(shown) <= 700
    assert shown.startswith("**fused: 1.50 (1.47–1.61)** – ")
    assert "| `fused` |" in shown
    assert "- bf16 is not recommended: changes training from step 3 on" in shown
    assert "busy" not in shown
    assert re.search(r"Left out: .*\bnotes?\b.*\. All: `annot-try-1/answer.json`\n$", shown)


def _page_data(path: Path) -> Any:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert script
    return json.loads(script[1])


def test_the_page_has_the_words_of_the_terminal(tmp_path: Path) -> None:
    layer = LayerChange(layer="blocks.0", module="Block", phase="forward", before_ns=3e6, after_ns=1e6)
    shown = answer(FUSED, BF16, FAILED, layers=[layer], folder=str(tmp_path))
    path, lines = write_page(shown), text(shown).splitlines()
    data = _page_data(path)
    trial = data["trial"]
    assert (path, data["source"]) == (tmp_path / "answer.html", "python train.py")
    assert (trial["verdict"], trial["heading"]) == ("fused: 1.50 (1.47–1.61)", lines[0])
    heads, rows = trial["table"].values()
    titles = [title for title, _ in heads]
    assert ["Change", *titles] == re.split(r"\s{2,}", lines[1])
    assert [title for title, minor in heads if not minor] == ["After", "Speedup", "Interval"]
    assert [(name, recommended) for name, _, recommended in rows] == [("fused", True), ("bf16", False)]
    assert ["fused", *rows[0][1]] == re.split(r"\s{2,}", lines[2].strip())
    assert trial["code"] == [["fused, 1.50 times as fast", FUSED.code]]
    assert trial["layers"] == ["blocks.0 forward: 3.000 ms → 1.000 ms"]
    assert f"  {trial['layers'][0]}" in lines
    assert [printable(note) for note in trial["notes"]] == lines[-4:]
    assert "tables" not in data  # without profiles, there is no comparison


def test_the_command_names_the_page_that_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _print(answer(BF16, folder=str(tmp_path)), "html")
    assert capsys.readouterr() == ("", f"annot: wrote {tmp_path}/answer.html\n")
    assert _page_data(tmp_path / "answer.html")["trial"]["table"]["rows"][0][0] == "bf16"


def test_a_page_without_measurements(tmp_path: Path) -> None:
    trial = _page_data(write_page(answer(FAILED, folder=str(tmp_path))))["trial"]
    assert trial["table"] is None
    assert (trial["verdict"], trial["code"], trial["layers"]) == ("No change makes a step faster", [], [])
    undecided = _page_data(write_page(answer(FAILED, folder=str(tmp_path), complete=False)))["trial"]
    assert undecided["verdict"] == "The runs show no change that makes a step faster"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a trial with both profiles: the optimizer takes half the time with the change."""
    folder = tmp_path_factory.mktemp("trial")
    before, after = training(device=True), training(device=True)
    for kernel in after.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        kernel["end"] = kernel["start"] + (kernel["end"] - kernel["start"]) // 2
    before.write(folder / "base.check1.sqlite")
    after.write(folder / "fused.check1.sqlite")
    layer = LayerChange(layer="features.0", module="Conv2d", phase="forward", before_ns=3e6, after_ns=1e6)
    return write_page(answer(FUSED, BF16, FAILED, layers=[layer], folder=str(folder)))


@pytest.mark.slow
def test_a_trial_in_the_browser(fresh: Page, trial: Path) -> None:
    """The table and the code are on the first screen; the comparison of the profiles is the second view."""
    fresh.open(trial, width=1440, height=900)
    assert fresh.text("h1") == "fused: 1.50 (1.47–1.61)"
    cells = [row.split("\t") for row in fresh.texts("main tbody tr")]
    assert cells[0][:5] == ["fused", "12.000", "8.000", "1.50", "1.47–1.61"]
    assert cells[0][5:] == ["±1e-07", "1.25", "4.20 s", "41 steps", "+120 MB"]
    assert fresh.texts("main tbody strong") == ["fused"]
    assert fresh.text("pre") == FUSED.code
    assert fresh.run("document.querySelector('pre').getBoundingClientRect().bottom < innerHeight")
    assert "compile is not recommended: no compiler for \\u001b[31m<b>" in fresh.text("main")
    fresh.run("document.querySelector('main a[href=\"#compare\"]').click()")
    fresh.wait("document.querySelector('main').dataset.view === 'compare'")
    rows = {tuple(row.split("\t")[:2]): row.split("\t") for row in fresh.texts("main tbody tr")}
    assert rows["features.0 Conv2d", "forward"][6] == "2.000"
    assert fresh.texts("#head nav a") == ["Changes", "Comparison"]


@pytest.mark.slow
def test_a_trial_on_a_narrow_screen(fresh: Page, trial: Path) -> None:
    """The speedup and its interval are in sight, other columns are left out."""
    fresh.open(trial, width=400)
    assert fresh.run("document.documentElement.scrollWidth <= innerWidth")
    shown = "[...document.querySelectorAll('thead th')].filter(one => one.offsetWidth)"
    assert fresh.run(f"{shown}.map(one => one.innerText)") == ["After", "Speedup", "Interval"]
    assert fresh.run(f"{shown}.every(one => one.getBoundingClientRect().right <= innerWidth)")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_on_the_page_of_a_trial(fresh: Page, trial: Path, dark: bool) -> None:
    fresh.open(trial, dark=dark)
    assert violations(fresh) == []
