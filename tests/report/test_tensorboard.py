"""Event files: their framing, and what the real TensorBoard reads in them."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sqlite_profile import SqliteProfile, training

from annot.cli.main import main
from annot.report.charts.chart import Chart, Series, as_svg
from annot.report.charts.raster import as_png
from annot.report.export.tensorboard import FILE
from annot.report.export.tfevents import crc32c
from annot.report.views import find_view

pytest.importorskip("google.protobuf", reason="needs protobuf")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _written(profile: Path, folder: Path, *words: str) -> Path:
    assert main(["report", str(profile), "--format", "tensorboard", "-o", str(folder), *words]) == 0
    return folder / FILE


def _read(folder: Path) -> Any:
    """What TensorBoard reads in a folder."""
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    accumulator = accumulators.EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def _text(accumulator: Any, tag: str) -> str:
    from tensorboard.util import tensor_util

    assert accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    return str(tensor_util.make_ndarray(accumulator.Tensors(tag)[0].tensor_proto)[0].decode())


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (bytes(range(32)), 0x46DD794E)],
)
def test_check_sum(data: bytes, crc: int) -> None:
    """CRC-32C of the vectors in RFC 3720, B.4, and of the usual one."""
    assert crc32c(data) == crc


def test_framing(trained: Path, tmp_path: Path) -> None:
    """The file is records of length and data, both with masked check sums, and the first one says the version."""
    file, found = io.BytesIO(_written(trained, tmp_path / "logs").read_bytes()), []
    while head := file.read(12):
        length, crc = struct.unpack("<QI", head)
        data = file.read(length)
        (of_data,) = struct.unpack("<I", file.read(4))
        for part, masked in ((head[:8], crc), (data, of_data)):
            plain = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert (plain >> 17 | plain << 15) & 0xFFFFFFFF == crc32c(part)
        found.append(data)
    assert b"brain.Event:2" in found[0]
    assert len(found) >= 7


def test_failure_leaves_no_folder(trained: Path, tmp_path: Path) -> None:
    """Without protobuf one line says what to install, and the next try finds no folder in its way."""
    code = "import sys; sys.modules['google.protobuf'] = None; from annot.cli.main import main; sys.exit(main())"
    words = ["report", str(trained), "--format", "tensorboard", "-o", str(tmp_path / "logs")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith('need the package protobuf. Run pip install "annot-nvtx[tensorboard]"\n')
    assert not (tmp_path / "logs").exists()


def test_scalars(trained: Path, tmp_path: Path) -> None:
    """Steps and layers have their times in each step, on the device where it did anything."""
    accumulator = _read(_written(trained, tmp_path / "logs").parent)
    tags = accumulator.Tags()["scalars"]

    def values(tag: str) -> list[tuple[int, float]]:
        return [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]

    assert values("step/time ms") == [(0, 2.12), (1, 2.12)]
    assert values("step/data ms") == [(0, 0.15), (1, 0.15)]
    assert values("forward ms/features.0 Conv2d") == [(0, 0.9), (1, 0.9)]
    assert values("backward ms/(model) AlexNet") == [(0, 2.13), (1, 2.13)]
    assert values("optimizer ms/Optimizer SGD") == [(0, 0.08), (1, 0.08)]
    assert "forward ms/features Sequential" in tags
    first, second = (event.wall_time for event in accumulator.Scalars("step/time ms"))
    assert second - first == pytest.approx(2.2e-3, abs=1e-6)  # seconds between the begins of the steps


def test_without_steps(tmp_path: Path) -> None:
    """A profile without steps has one value per layer, of host time without devices."""
    profile = SqliteProfile()
    profile.layer("fc Linear [4,8]f32 |fwd", 0, 3_000_000)
    accumulator = _read(_written(profile.write(tmp_path / "x"), tmp_path / "logs").parent)
    assert [(e.step, e.value) for e in accumulator.Scalars("forward ms/fc Linear")] == [(0, 3.0)]
    assert not [tag for tag in accumulator.Tags()["scalars"] if tag.startswith("step")]


def test_table_as_text(trained: Path, tmp_path: Path) -> None:
    """The layers are a table in Markdown, the totals another."""
    accumulator = _read(_written(trained, tmp_path / "logs").parent)
    lines = _text(accumulator, "layers").splitlines()
    view = find_view("layer")
    titles = [re.sub(r",? (ms|µs)$", "", cell) for cell in lines[0].strip("| ").split(" | ")]
    assert titles == ["Layer", "Module", "Phase", *(one.title for one in view.shown), "Input"]
    assert lines[1].count("---") == len(titles)
    assert next(line for line in lines if line.startswith("| features | Sequential | forward |")).split("|")[5:7] == [
        " 1.840 ", " 0.000 ",
    ]  # fmt: skip
    assert any(line.startswith("| features.0 | Conv2d | backward | 2 | 3.000 | 3.000 | 42.9% | 2 |") for line in lines)
    assert "| Note | 1 kernel or copy with no launch recorded |" in _text(accumulator, "summary")


def test_hostile_names(tmp_path: Path) -> None:
    """Names mean nothing in Markdown or HTML, and cannot end a row of the table."""
    profile = SqliteProfile()
    profile.range("a|b\n<script>alert(1)</script> [x](javascript:y) **z** `c`", 0, 10)
    accumulator = _read(_written(profile.write(tmp_path / "x"), tmp_path / "logs").parent)
    head, _, row = _text(accumulator, "layers").splitlines()[:3]
    assert row.count("|") == head.count("|")
    assert not set("<>*`[]") & set(row)
    markdown = pytest.importorskip("markdown", reason="needs markdown, which comes with tensorboard")
    html = markdown.markdown(_text(accumulator, "layers"), extensions=["markdown.extensions.tables"])
    assert "<script" not in html
    assert "<a " not in html
    assert "a&#124;b" in html


def test_pictures(trained: Path, tmp_path: Path) -> None:
    """The pictures are PNG of the size that they say, and not blank."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    accumulator = _read(_written(trained, tmp_path / "logs").parent)
    assert accumulator.Tags()["images"] == ["steps", "layers", "roofline"]
    for tag in ("steps", "layers", "roofline"):
        event = accumulator.Images(tag)[0]
        picture = image.open(io.BytesIO(event.encoded_image_string))
        assert (picture.format, picture.size) == ("PNG", (event.width, event.height))
        assert len(picture.getcolors(1 << 20)) > 5


def test_a_picture_shows_what_the_svg_does() -> None:
    """Marks, the line between them, the grid, axes and texts stand where the SVG has them, in its colours."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    chart = Chart("title", "x", "y", [Series("a", [(1, 2.0), (2, 3.5)])], lines=True)
    data, width, height = as_png(chart, scale=2)
    picture = image.open(io.BytesIO(data)).convert("RGB")
    assert picture.size == (width, height) == (1720, 960)
    root = ElementTree.fromstring(as_svg(chart))
    circles = [element for element in root if element.tag.endswith("circle")]
    places = [(float(circle.attrib["cx"]) * 2, float(circle.attrib["cy"]) * 2) for circle in circles]
    ink = tuple(bytes.fromhex(circles[0].attrib["fill"][1:]))
    middle = tuple(sum(ends) / 2 for ends in zip(*places, strict=True))
    for x, y in (*places, middle):
        around = [picture.getpixel((round(x) + dx, round(y) + dy)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
        assert ink in around
    found = {color for _, color in picture.getcolors(1 << 20)}
    assert {(0xDD, 0xDD, 0xDD), (0x55, 0x55, 0x55), (0x33, 0x33, 0x33)} <= found


def test_existing_file(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that exists is kept; --force writes the file anew and leaves the others alone."""
    logs = tmp_path / "logs"
    path = _written(trained, logs)
    (logs / "other").write_text("precious")
    whole = path.read_bytes()
    assert main(["report", str(trained), "--format", "tensorboard", "-o", str(logs)]) == 1
    assert (
        capsys.readouterr().err
        == f"annot: error: {logs} exists: use another name with -o, or replace it with --force\n"
    )
    _written(trained, logs, "--force", "--steps", "1")
    part = path.read_bytes()
    assert part.count(b"forward ms/") < whole.count(b"forward ms/")
    assert (logs / "other").read_text() == "precious"
