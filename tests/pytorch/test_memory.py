"""Memory by layer: marks in every range, and the columns of the table."""

from __future__ import annotations

import mmap
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nets
import pytest
from captured import Captured, capture

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.overrides import TorchFunctionMode  # noqa: E402

import annot  # noqa: E402
from annot import emit_ranges  # noqa: E402
from annot.emit import client  # noqa: E402
from annot.labels.marks import format_memory, parse_cpu, parse_machine, parse_memory, parse_source  # noqa: E402
from annot.read.nsys.sqlite_export import stream  # noqa: E402
from annot.torch.memory import Meter  # noqa: E402

MIB = 2**20
X = torch.ones(2, 3)


def fresh() -> torch.Tensor:
    """Return ones in 64 MiB that come from the system, and go back to it, whatever the allocator has in stock."""
    return torch.frombuffer(mmap.mmap(-1, 64 * MIB), dtype=torch.float32).fill_(1)


class Keep(nn.Module):
    """Holds on to some memory with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(fresh())
        return x + 1


class Blow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fresh()


class Use(nn.Module):
    """Takes much from an inner layer, and gives it back before it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.blow = Blow()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + float(self.blow(x)[0])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test PyTorch is as it was."""
    before = nn.Module.__call__, torch.autograd.Variable._execution_engine
    yield
    assert (nn.Module.__call__, torch.autograd.Variable._execution_engine) == before


def figures(captured: Captured, path: Path) -> list[tuple[str, str, int]]:
    """The name of the range around each mark, what it says, and the bytes."""
    query = """select start, globalTid, coalesce(text, value), int64Value from NVTX_EVENTS
               left join StringIds on id = textId where eventType = 34 order by start"""
    with sqlite3.connect(path) as database:
        rows = database.execute(query).fetchall()
    found = []
    for start, thread, text, value in rows:
        if parse_source(text) or parse_cpu(text) or parse_machine(text):
            continue
        parsed, innermost = parse_memory(text), captured.innermost(start, thread)
        assert parsed is not None
        assert innermost is not None
        found.append((innermost.name, parsed[0], value))
    return found


def last_capture(folder: Path) -> Path:
    return max(folder.glob("capture*.sqlite"), key=lambda path: path.stat().st_mtime_ns)


class Seen(TorchFunctionMode):
    """Function mode of a user that notes every function of PyTorch that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(repr(func))
        return func(*args, **kwargs or {})


def test_a_function_mode_of_the_user_sees_the_calls_of_the_user(tmp_path: Path) -> None:
    """What annot reads of an input is no call of the program, also where module calls are in Python."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def calls() -> list[str]:
        with Seen() as seen:
            model(X).sum().backward()
        return seen.calls

    plain, traced = calls(), []

    def body() -> None:
        with emit_ranges(model, memory=True):
            traced.extend([calls(), calls()])

    captured = capture(tmp_path, body)
    assert traced == [plain, plain]
    assert captured.ranges[0].text == "Forward Sequential [2,3]f32 |fwd"


def test_every_layer_range_carries_both_figures(tmp_path: Path) -> None:
    """Forward and backward; the bits are those of a plain run."""
    plain = nets.train(nets.small_resnet())
    net = nets.small_resnet()
    traced: list[torch.Tensor] = []

    def body() -> None:
        with emit_ranges(net.model, memory=True):
            traced.extend(nets.train(net))

    captured = capture(tmp_path, body)
    assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))
    said = figures(captured, last_capture(tmp_path))
    layers = [one.name for one in captured.ranges if one.tag and one.tag.module and one.tag.phase != "optimizer"]
    for figure in ("change", "peak"):
        assert sorted(name for name, what, _ in said if what == figure) == sorted(layers)
    assert len({name[-1] for name in layers}) == 2
    assert all(value > MIB for _, what, value in said if what == "peak")


def test_a_profile_has_the_columns(tmp_path: Path) -> None:
    """What a layer keeps is its change, what it gave back is in its peak; read whole or in blocks."""
    model = nn.Sequential(Keep(), Use(), nn.Linear(3, 3))

    def body() -> None:
        with emit_ranges(model, memory=True):
            model(X)
            model(X)

    captured = capture(tmp_path, body)
    path = last_capture(tmp_path)
    peaks = [value for name, what, value in figures(captured, path) if (name, what) == ("0>", "peak")]
    for profile in (annot.load(path), stream(path)):
        rows = {(row["layer"], row["phase"]): row for row in annot.correlate(profile).to_dicts()}
        keep, use, blow = (rows[layer, "forward"] for layer in ("0", "1", "1.blow"))
        assert keep["memory_source"] == "rss"
        assert keep["memory_peak_bytes"] == max(peaks) > min(peaks)
        assert 120 * MIB <= keep["memory_change_bytes"] <= 140 * MIB
        assert 120 * MIB <= blow["memory_change_bytes"] <= 140 * MIB
        assert abs(use["memory_change_bytes"]) < 8 * MIB
        assert use["memory_peak_bytes"] == blow["memory_peak_bytes"] >= keep["memory_peak_bytes"] + 40 * MIB
        assert rows["", "forward"]["memory_peak_bytes"] == use["memory_peak_bytes"]


def test_without_the_option_nothing_is_said(tmp_path: Path) -> None:
    """No marks, no columns; marks of the user's own are none."""
    model = nn.Linear(3, 3)

    def body() -> None:
        with emit_ranges(model):
            model(X)
            annot.mark("memory is short")

    assert [text for _, text, _ in capture(tmp_path, body).marks] == ["memory is short"]
    for profile in (annot.load(last_capture(tmp_path)), stream(last_capture(tmp_path))):
        assert not [name for name in annot.correlate(profile).columns if "memory" in name]


def test_a_layer_that_raises(tmp_path: Path) -> None:
    """Its range says what it took, and closes."""

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    model = nn.Sequential(nn.Linear(3, 3), Failing())

    def body() -> None:
        with emit_ranges(model, memory=True):
            for _ in range(2):
                with pytest.raises(KeyError, match="mine"):
                    model(X)

    captured = capture(tmp_path, body)
    assert captured.trees == [("Sequential>", "0>", "1>")] * 2
    names = [name for name, what, _ in figures(captured, last_capture(tmp_path)) if what == "peak"]
    assert names == ["0>", "1>", "Sequential>"] * 2


class Script:
    """A counter that gives what it is told to: (now, most since the last time)."""

    source = "cuda:0"

    def __init__(self, *readings: tuple[int, int]) -> None:
        self.readings = list(readings)

    def read(self) -> tuple[int, int]:
        return self.readings.pop(0)


def test_peaks_of_an_allocator_that_keeps_one_for_all(tmp_path: Path) -> None:
    """What was reached before an inner range, in it and after it: the highest is the outer one's."""
    outer, inner = client.event("outer"), client.event("inner")

    def run(*readings: tuple[int, int]) -> list[tuple[str, str, int]]:
        meter = Meter(Script(*readings))

        def body() -> None:
            meter.push(outer)
            meter.push(inner)
            meter.pop()
            meter.pop()

        return figures(capture(tmp_path, body), last_capture(tmp_path))

    for before, inside, after in ((90, 50, 60), (50, 90, 60), (50, 60, 90)):
        assert run((10, 99), (20, before), (40, inside), (30, after)) == [
            ("inner", "change", 20), ("inner", "peak", inside), ("outer", "change", 20), ("outer", "peak", 90),
        ]  # fmt: skip


def test_what_another_thread_takes_counts_for_all(tmp_path: Path) -> None:
    """A boundary on one thread takes the allocator's peak away from nobody."""
    import threading

    meter = Meter(Script((10, 10), (30, 80), (30, 30), (20, 40)))

    def other() -> None:
        meter.push(client.event("inner"))
        meter.pop()

    def body() -> None:
        meter.push(client.event("outer"))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        meter.pop()

    said = figures(capture(tmp_path, body), last_capture(tmp_path))
    assert said == [("inner", "change", 0), ("inner", "peak", 30), ("outer", "change", 10), ("outer", "peak", 80)]


def test_a_range_that_somebody_else_has_closed(tmp_path: Path) -> None:
    """What an interrupt has left over is not taken for the range around the next one."""
    meter = Meter(Script((10, 10), (20, 20), (10, 90), (10, 10), (10, 10)))

    def body() -> None:
        depth = client.depth()
        meter.push(client.event("outer"))
        meter.push(client.event("inner"))
        client.pop_to(depth)
        meter.push(client.event("outer"))
        meter.pop()

    said = figures(capture(tmp_path, body), last_capture(tmp_path))
    assert said == [("outer", "change", 0), ("outer", "peak", 10)]
    assert meter._open == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_gpu(tmp_path: Path) -> None:
    """The allocator's own figures, to the byte."""
    model: Any = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU()).cuda()
    x = torch.ones(1024, 256, device="cuda")
    torch.cuda.synchronize()

    def body() -> None:
        with torch.no_grad(), emit_ranges(model, memory=True):
            model[1](x)

    capture(tmp_path, body)
    profile = annot.correlate(annot.load(last_capture(tmp_path)))
    [row] = profile.filter(layer="1", phase="forward").to_dicts()
    assert (row["memory_source"], row["memory_change_bytes"]) == ("cuda:0", 1024 * 256 * 4)


def test_texts_of_marks() -> None:
    """Only what `format_memory` writes is understood."""
    assert [parse_memory(format_memory(f, s)) for f, s in (("change", "rss"), ("peak", "cuda:11"))] == [
        ("change", "rss"), ("peak", "cuda:11"),
    ]  # fmt: skip
    for text in ("memory change", "memory peak |cuda:", "memory peak |rss ", "Memory peak |rss", ""):
        assert parse_memory(text) is None
    with pytest.raises(ValueError, match="do not support 'peak' of 'xpu:0'"):
        format_memory("peak", "xpu:0")
