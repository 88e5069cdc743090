"""What `annot guide migrating` says to write instead of other tools' lines: each line runs, and gives the ranges."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import capture

torch = pytest.importorskip("torch")
nn = torch.nn

import annot  # noqa: E402

GUIDE = Path(__file__).parents[2] / "annot/guide/migrating.md"
LAYERS = {"Sequential>", "0>", "engine<", "Sequential<", "0<"}

# With each right-hand side: what stands below or after it, and the ranges that it must give.
ROWS: dict[str, tuple[str, set[str]]] = {
    "with emit_ranges(model):": ("    step()", LAYERS),
    "emit_ranges(model).__enter__()": ("opened.append(_)\nstep()", LAYERS),
    'trace("augment")(function)': ("_()", {"augment"}),
    'with trace("augment"):': ("    pass", {"augment"}),
    'with trace("attend"):': ("    pass", {"attend"}),
    '@trace("attend")': ("def attend(): pass\nattend()", {"attend"}),
    "module.function = trace(module.function)": ("module.function()", {"function"}),
    'with trace("head", category="layer"):': ("    pass", {"head"}),
    "emit_ranges(model, schedule=annot.schedule(active=3, capture=True))": (
        "with _:\n    step()", LAYERS | {"capture"},
    ),
}  # fmt: skip


def equivalents() -> list[str]:
    """The right-hand column of the table."""
    section = GUIDE.read_text(encoding="utf-8")
    # The lines of nvtx-plugins have equivalents in TensorFlow, see test_tf_trace.py and test_tf_callback.py.
    rows = section.partition("| nvtx-plugins")[0].splitlines()
    cells = [line.rsplit("|", 2)[1] for line in rows if line.startswith("|")]
    return [code for cell in cells for code in re.findall("`([^`]+)`", cell)]


def function() -> None:
    pass


@pytest.mark.filterwarnings("ignore:capture=True")
@pytest.mark.parametrize("code", dict.fromkeys(equivalents()))
def test_each_line_gives_the_ranges(tmp_path: Path, code: str) -> None:
    """The line as it stands in the table, run as a user would."""
    after, names = ROWS[code]
    model = nn.Sequential(nn.Linear(3, 3))
    call, opened = nn.Module.__call__, []

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()

    space: dict[str, Any] = {
        "annot": annot, "model": model, "step": step, "function": function, "opened": opened, "loader": [1, 2],
        "module": SimpleNamespace(function=function),
        **{name: getattr(annot, name) for name in ("emit_ranges", "trace", "epochs", "batches")},
    }  # fmt: skip
    value = not code.endswith(":") and not code.startswith("@") and " = " not in code

    def body() -> None:
        exec(f"_ = {code}\n{after}" if value else f"{code}\n{after}", space)
        for block in opened:
            block.__exit__(None, None, None)

    captured = capture(tmp_path, body)
    assert {re.sub(r" \d+ ", " ", name) for name in captured.names} == names  # the Python fallback sends no numbers
    assert nn.Module.__call__ is call


def test_the_table_and_the_rows_are_the_same() -> None:
    """Nothing is tested that is not documented."""
    assert set(equivalents()) == set(ROWS)
