"""Perfetto traces of torch.profiler's CUPTI backend have the tables of the JSON trace of the same run."""

from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import shared

from annot import AnnotError, load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.read.formats import reader_of
from annot.read.kineto.pftrace import PftraceFile, messages

REAL = "kineto/cuspy_h100_bert_small"
JSON = "kineto/tracelens_h100_bert_small_nnmodule.json.gz"
"""The run from which `tests/support/cuspy_traces.py` made the file above."""
BASE = 1_795_000_000_000_000_000
KERNEL, MEMSET, ANNOTATION = 1, 3, 4
NAMES = {1: "aten::mm", 2: "gemm", 3: "cudaGraphLaunch", 4: "step 1"}
CATEGORIES = {1: "cpu_op", 2: "cuda_runtime", 3: "user_annotation"}
STAGES = {KERNEL: "Kernel", MEMSET: "Memset", ANNOTATION: "Annotation", 9: "Blit"}


class Trace:
    """A trace in the layout of PyTorch's writer. Times are ns after the start."""

    def __init__(self) -> None:
        self.message = messages().Trace()
        first = self.message.packet.add(timestamp=BASE)
        self._raw = first.SerializeToString() + b"\x50\x01"  # number of the sequence
        thread = self.message.packet.add().track_descriptor
        thread.uuid, thread.thread.pid, thread.thread.tid = 7, 70, 71
        names = self.message.packet.add().interned_data
        for entries, texts in (
            (names.event_names, NAMES), (names.event_categories, CATEGORIES), (names.gpu_specifications, STAGES),
        ):  # fmt: skip
            for number, text in texts.items():
                entries.add(iid=number, name=text.encode())

    def slices(self, *spans: tuple[int, int], name: int = 1, category: int = 1, thread: int = 7, **args: int) -> None:
        """Add a group: all begins, then all ends in the same order."""
        for start, _ in spans:
            event = self.packet(start).track_event
            event.type, event.track_uuid, event.name_iid = 1, thread, name
            event.category_iids.append(category)
            for key, value in args.items():
                event.debug_annotations.add(name=key.encode(), int_value=value)
        for _, end in spans:
            event = self.packet(end).track_event
            event.type, event.track_uuid = 2, thread

    def activity(
        self, start: int, length: int, args: dict[str, str] | None = None, *, stage: int = KERNEL, name: int = 2
    ) -> None:
        event = self.packet(start).gpu_render_stage_event
        event.duration, event.stage_iid, event.name_iid = length, stage, name
        for key, value in (args or {}).items():
            event.extra_data.add(name=key.encode(), value=value.encode())

    def packet(self, at: int) -> Any:
        return self.message.packet.add(timestamp=BASE + at)

    def write(self, folder: Path) -> Path:
        path = folder / "run.pftrace"
        first = b"\n" + bytes([len(self._raw)]) + self._raw
        del self.message.packet[0]
        path.write_bytes(first + self.message.SerializeToString())
        return path


def test_tables_are_those_of_the_json_trace() -> None:
    trace, json = load(shared(f"{REAL}.pftrace.gz")), load(shared(JSON))
    assert (json.ranges.height, json.launches.height, json.kernels.height) == (564, 132, 60)
    for table in ("ranges", "launches", "kernels"):
        assert getattr(trace, table).equals(getattr(json, table)), table
    assert by_layer(attribute(trace)).equals(by_layer(attribute(json)))
    assert trace.meta["sources"] == json.meta["sources"]


def test_copies_have_no_direction() -> None:
    trace, json = load(shared(f"{REAL}.pftrace.gz")).copies, load(shared(JSON)).copies
    assert trace.drop("kind", "pinned").equals(json.drop("kind", "pinned"))
    assert trace.select("kind", "pinned").rows() == [("unknown", None)]


def test_blocks_without_compression(tmp_path: Path) -> None:
    """Packets at the ends of blocks, and packets longer than a block, are whole."""
    path = tmp_path / "run"
    path.write_bytes(gzip.decompress(shared(f"{REAL}.pftrace.gz").read_bytes()))
    blocks = [list(PftraceFile(path, block=size).blocks()) for size in (100, 4001, 1 << 20)]
    events = [[event for block in each for event in block] for each in blocks]
    assert events[0] == events[1] == events[2]
    assert len(blocks[0]) > 1000 > len(blocks[1]) > len(blocks[2]) == 1
    assert load(path).kernels.equals(load(shared(f"{REAL}.pftrace.gz")).kernels)


def test_the_nth_end_ends_the_nth_slice(tmp_path: Path) -> None:
    """Slices that touch, or take no time, keep their times; a stack of open slices would give other ones."""
    spans = [(0, 100), (0, 10), (10, 20), (20, 20), (20, 30)]
    trace = Trace()
    trace.slices(*spans)
    ranges = load(trace.write(tmp_path)).ranges
    assert sorted(ranges.select(pl.col("start", "end") - BASE).rows()) == sorted(spans)


@pytest.mark.parametrize("broken", ["other thread", "too few", "too many"])
def test_slices_in_another_order(broken: str, tmp_path: Path) -> None:
    trace = Trace()
    trace.slices((0, 10), (20, 30))
    if broken == "other thread":
        trace.message.packet[-1].track_event.track_uuid = 8
    elif broken == "too few":
        del trace.message.packet[-1]
    else:
        trace.message.packet.extend(trace.message.packet[-1:])
    with pytest.raises(AnnotError, match=r"run\.pftrace is a Perfetto trace whose slices are not in the order"):
        load(trace.write(tmp_path))


def test_annotations_of_graph_nodes_are_layers(tmp_path: Path) -> None:
    trace = Trace()
    trace.slices((0, 400), name=4, category=3)
    trace.slices((10, 20), name=3, category=2, correlation=5)
    node = {"device id": "0", "stream id": "7", "correlation": "5", "graph node id": "3"}
    trace.activity(100, 30, node | {"module_fqn": "layers.0.mlp"})
    trace.activity(130, 20, node | {"bytes": "64"}, stage=MEMSET, name=0)
    trace.activity(99, 52, stage=ANNOTATION)
    profile = load(trace.write(tmp_path))
    assert profile.copies.select("kind", "bytes", "stream").rows() == [("memset", 64, 7)]
    rows = by_layer(attribute(profile)).filter(pl.col("gpu_self_ns") > 0)
    assert dict(rows.select("layer", "gpu_self_ns").rows()) == {"layers.0.mlp": 30, "step 1": 20}


def test_unknown_events_are_counted(tmp_path: Path) -> None:
    """A slice of an unknown thread, a name that no packet has, and a stage that PyTorch does not write."""
    trace = Trace()
    trace.slices((0, 10))
    trace.slices((20, 30), thread=8)
    trace.slices((20, 30), name=99)
    trace.activity(0, 5, stage=9)
    assert load(trace.write(tmp_path)).meta["notes"] == [
        "annot skipped 2 invalid events.",
        "annot skipped 1 event of unsupported categories (Blit).",
    ]


def test_times_that_floats_cannot_hold(tmp_path: Path) -> None:
    """Some months after the start, microseconds as floats are not exact to the nanosecond."""
    far = 10**17 + 1
    trace = Trace()
    trace.slices((far, far + 3))
    path = trace.write(tmp_path)
    assert load(path).ranges.select(pl.col("start", "end") - BASE).rows() == [(far, far + 3)]
    [[event]] = PftraceFile(path, exact=True).blocks()
    assert event.dur == Decimal("0.003")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_cut_files(ending: str, tmp_path: Path) -> None:
    content = shared(f"{REAL}.pftrace.gz").read_bytes()
    content = content if ending else gzip.decompress(content)
    path = tmp_path / f"cut{ending}"
    for length in (200, len(content) // 3, len(content) - 5):
        path.write_bytes(content[:length])
        with pytest.raises(AnnotError, match=r"cut(\.gz)? is "):
            load(path)


def test_protobuf_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Trace().write(tmp_path)

    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr("annot.read.kineto.pftrace.messages", missing)
    with pytest.raises(AnnotError, match=r'requires protobuf: pip install "annot-nvtx\[pftrace\]"'):
        load(path)


@pytest.mark.parametrize("content", [b"\n@a", b"\nHello@PyTorch", b"\n\x08P\x01@\x01"])
def test_other_content_is_not_recognised(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(AnnotError, match="is not a profile in a supported format"):
        reader_of(path)
