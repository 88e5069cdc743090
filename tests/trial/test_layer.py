"""Answers about layers that are timed alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from annot.errors import AnnotError
from annot.live.request import LAYER_CHANGES, AlternativeTimes, Difference, LayerTimes
from annot.report.terminal.layout import plain_text
from annot.trial.layer import LayerAnswer, LayerQuestion, layer_row, run_layer, step_speedup
from annot.trial.runs import Program
from annot.trial.show_layer import as_markdown, print_layers

SAME = Difference(largest=0.0, relative=0.0, same_bits=True)
ROUNDED = Difference(largest=1e-4, relative=3e-7, same_bits=False)
NAN = Difference(largest=None, relative=None, same_bits=False)


def times(**options: object) -> LayerTimes:
    values: dict[str, object] = {
        "path": "blocks.0",
        "kind": "Block",
        "layers": 12,
        "calls": 12.0,
        "inputs": "[8,32]f32",
        "backward": True,
        "times_ns": [4e6 + 1e4 * number for number in range(10)],
        "alternatives": [
            AlternativeTimes(
                name="compile",
                times_ns=[2e6 + 1e4 * number for number in range(10)],
                first_ns=12_300_000_000,
                outputs=SAME,
                gradients=ROUNDED,
                numbers="rounding",
            ),
            AlternativeTimes(name="fp16", times_ns=[4e6] * 10, outputs=NAN, gradients=NAN, numbers="differ"),
            AlternativeTimes(name="tf32", skipped="it acts only on CUDA devices, and the layer runs on cpu"),
        ],
    }
    return LayerTimes(**{**values, **options})  # type: ignore[arg-type]


def test_gains_have_intervals_and_the_share_of_the_step() -> None:
    row = layer_row(times(), 100e6)
    compiled, half, skipped = row.gains
    assert row.share == pytest.approx(12 * 4.045 / 100)
    assert compiled.low is not None
    assert compiled.high is not None
    assert compiled.speedup is not None
    assert 1.9 < compiled.low < compiled.speedup < compiled.high < 2.1
    assert compiled.step_speedup == pytest.approx(1 / (1 - 0.4854 * (1 - 1 / compiled.speedup)))
    assert half.speedup == pytest.approx(1, abs=0.02)
    assert (skipped.speedup, skipped.step_speedup, skipped.first_ns) == (None, None, None)


def test_the_share_is_unknown_without_steps() -> None:
    row = layer_row(times(), None)
    assert row.share is None
    assert row.gains[0].speedup is not None
    assert row.gains[0].step_speedup is None


def test_a_layer_that_was_not_timed() -> None:
    row = layer_row(times(times_ns=[], alternatives=[], skipped="it was not called"), 1e9)
    assert (row.time_ns, row.share, row.gains, row.reason) == (None, None, [], "it was not called")


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 4 / 3), (1.0, 2.0), (1.3, 2.0)])
def test_the_speedup_of_a_step(share: float, expected: float) -> None:
    assert step_speedup(share, 2.0) == pytest.approx(expected)


def answer(*layers: LayerTimes, extracted: str = "", extract_problem: str = "") -> LayerAnswer:
    return LayerAnswer(
        command=["python", "train.py"],
        version="1",
        device="cpu",
        level=0.01,
        rounds=10,
        steps=30,
        step_ns=100e6,
        layers=[layer_row(layer, 100e6) for layer in layers],
        extracted=extracted,
        extract_problem=extract_problem,
    )


def shown(found: LayerAnswer) -> list[str]:
    return [line.rstrip() for line in plain_text(lambda console: print_layers(found, console)).splitlines()]


def test_the_table() -> None:
    assert shown(answer(times(), extracted="layer.py")) == [
        "blocks.0 Block [8,32]f32: 4.045 ms per forward and backward, 12 layers like this, 12 calls per step, 48.5% of "
        "a step of 100.00 ms",
        "Change        Before, ms  After  Speedup   Interval  Step  First call          Numbers",
        "compile            4.045  2.045     1.98  1.95–2.01  1.32     12.30 s  rounding, 3e-07",
        "fp16               4.045  4.000     1.01  1.00–1.02  1.01                  differ, NaN",
        "tf32 is not timed: it acts only on CUDA devices, and the layer runs on cpu",
        "fp16 computes other numbers",
        "",
        "the whole step with these changes: annot try --change compile -- python train.py",
        "script with blocks.0 and random data: layer.py",
    ]


def test_markdown() -> None:
    """It has the words of the terminal, and fits a number of characters."""
    found = answer(times(), times(path="blocks.1", inputs="x" * 400), extracted="layer.py")
    text = as_markdown(found)
    assert text.startswith("**blocks.0 Block `[8,32]f32`: 4.045 ms per forward and backward, 12 layers like this")
    assert "| `compile` | 4.045 | 2.045 | 1.98 | 1.95–2.01 | 1.32 | 12.30 s | rounding, 3e-07 |" in text
    assert "| Change | Before, ms | After, ms |" in text
    assert "- fp16 computes other numbers" in text
    short = as_markdown(found, 900)
    assert len(short) <= 900
    assert "\nLeft out: " in short


def test_notes() -> None:
    whole = {"path": "", "layers": 1, "calls": 1.0, "backward": False, "repeats": False, "alternatives": []}
    untimed = times(times_ns=[], alternatives=[], skipped="it was not called")
    layers = times(**whole, notes=["A hook does not run."]), untimed
    lines = shown(answer(*layers, extract_problem="torch.export cannot save it"))
    assert lines == [
        "the model Block [8,32]f32: 4.045 ms per forward, 1 call per step, 4.0% of a step of 100.00 ms",
        "Two calls without a change give different bits.",
        "A hook does not run.",
        "",
        "blocks.0 Block [8,32]f32",
        "not timed: it was not called",
        "",
        "no script was written: torch.export cannot save it",
    ]


def test_a_program_without_a_model(tmp_path: Path) -> None:
    question = LayerQuestion(program=Program(command=(sys.executable, "-c", "print(1)")), patterns=("**",), changes=())
    with pytest.raises(AnnotError, match=r"no layer was timed: no step of a model was seen: .*; output: .*layers\.txt"):
        run_layer(question, tmp_path)


def test_a_program_that_fails(tmp_path: Path) -> None:
    question = LayerQuestion(program=Program(command=(sys.executable, "-c", "1 / 0")), patterns=("**",), changes=())
    with pytest.raises(AnnotError, match="no layer was timed: ZeroDivisionError: division by zero"):
        run_layer(question, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["layers.txt"]


def test_names_of_changes() -> None:
    """The names are those of changes of the whole program, and of what a process can apply to a layer."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from annot.changes.registry import all_changes
    from annot.live.layer_alternatives import ALTERNATIVES

    assert tuple(ALTERNATIVES) == LAYER_CHANGES
    assert set(LAYER_CHANGES) <= {name for name, change in all_changes().items() if change.framework == "torch"}
