"""The HTML page without a browser: its colours, and what the command refuses."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from sqlite_profile import training

from annot.cli.main import main
from annot.report.charts.chart import INKS
from annot.report.page import render as page

STYLE = Path(page.__file__).parent / "page.css"


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_told_apart() -> None:
    """Texts have the contrast of WCAG AA (4.5), phases that of graphics (3) and differ in gray, light and dark."""
    blocks = re.findall(r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\n\}", STYLE.read_text(), re.DOTALL)
    for block in blocks[:2]:
        colour = dict(re.findall(r"--([\w-]+):\s+(#[0-9a-f]{6})", block))

        def contrast(one: str, other: str, colour: dict[str, str] = colour) -> float:
            bright, dim = sorted((_luminance(colour[one]), _luminance(colour[other])), reverse=True)
            return (bright + 0.05) / (dim + 0.05)

        phases = ("forward", "backward", "recompute", "optimizer", "data", "other")
        busy = ("part-tensor", "part-kernels", "part-collectives", "part-copies")  # those of idle time have hatches
        rare = {("recompute", "data"), ("recompute", "other")}  # are never side by side
        assert min(contrast(*pair) for pair in combinations(phases, 2) if pair not in rare) >= 1.5  # in gray
        assert min(contrast(one, other) for one, other in combinations(busy, 2)) >= 1.15
        assert len({colour[fill] for fill in (*phases, *busy)}) == 10  # a phase is no part of the step
        for text in ("text", "muted", "accent", "good", "bad"):
            assert min(contrast(text, ground) for ground in ("page", "surface", "hover")) >= 4.5, text
        for fill in phases:
            assert min(contrast(fill, ground) for ground in ("page", "surface")) >= 3, fill
            assert contrast(f"on-{fill}", fill) >= 4.5, fill


def test_charts_have_the_colors_of_the_page() -> None:
    """A phase has one color in the page, in charts, and in notebooks."""
    light = dict(re.findall(r"--([\w-]+):\s+(#[0-9a-f]{6})", STYLE.read_text().partition("\n}")[0]))
    phases = ("forward", "backward", "recompute", "optimizer", "data", "other")
    assert {phase: INKS[phase] for phase in phases} == {phase: light[phase] for phase in phases}
    assert INKS["gpu"] == light["other"]


def test_the_command_refuses_what_a_page_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page is a file, and has all tables; a file that exists stays."""
    run = str(training(device=False).write(tmp_path / "run.sqlite"))
    assert main(["report", run, "--format", "html"]) == 2
    assert "--format html needs -o OUT" in capsys.readouterr().err
    assert main(["report", run, "--format", "html", "-o", str(tmp_path / "x.html"), "--by", "kernel"]) == 2
    assert "--by cannot be combined with --format html" in capsys.readouterr().err
    assert main(["compare", run, run, "--format", "html"]) == 2
    (tmp_path / "there.html").write_text("mine")
    assert main(["report", run, "--format", "html", "-o", str(tmp_path / "there.html")]) == 1
    assert (tmp_path / "there.html").read_text() == "mine"
