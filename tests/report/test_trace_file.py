"""The trace for Perfetto and chrome://tracing: read back as JSON and held against the rules of the format."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ranked import ordered_only
from shared_data import shared, unpacked
from sqlite_profile import SqliteProfile, thread, training

from annot import load
from annot.analyze.trace_events import EVENTS, Events
from annot.attribution.attribute import attribute
from annot.cli.main import main

Event = dict[str, Any]


def _trace(path: Path, out: Path, *words: str) -> dict[str, Any]:
    assert main(["report", str(path), "--format", "trace", "-o", str(out), *words]) == 0
    data: dict[str, Any] = json.loads(gzip.decompress(out.read_bytes()) if out.suffix == ".gz" else out.read_bytes())
    _check(data["traceEvents"])
    return data


def _check(events: list[Event]) -> None:
    """The rules of the format, and of those who show it: tracks have names and nest, arrows go forward in time."""
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    groups = {event["pid"] for event in events if event["name"] == "process_name"}
    timed = [event for event in events if event["ph"] != "M"]
    assert {event["ph"] for event in timed} <= {"X", "b", "e"}
    assert {(event["pid"], event["tid"]) for event in timed} <= named
    assert len({tid for _, tid in named}) == len(named)
    assert {pid for pid, _ in named} == groups
    assert groups.isdisjoint(tid for _, tid in named)
    _check_nesting([event for event in timed if event["ph"] == "X"])
    _check_arrows(timed)
    _check_pairs([event for event in timed if event["ph"] != "X"])


def _ns(us: float) -> int:
    return round(us * 1000)


def _check_nesting(events: list[Event]) -> None:
    stacks: dict[int, list[int]] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start, end = _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])
        stack = stacks.setdefault(event["tid"], [])
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], event
        stack.append(end)


def _check_arrows(events: list[Event]) -> None:
    begins = {event["bind_id"]: event for event in events if event.get("flow_out")}
    ends = [event for event in events if event.get("flow_in")]
    assert len(begins) == sum("flow_out" in event for event in events)
    assert {event["bind_id"] for event in ends} == set(begins)
    assert all(begins[event["bind_id"]]["ts"] <= event["ts"] for event in ends)


def _check_pairs(events: list[Event]) -> None:
    sides = Counter((event["ph"], event["cat"], event["id"], event["pid"], event["name"]) for event in events)
    assert all(sides[("e", *rest)] == number == 1 for (kind, *rest), number in sides.items() if kind == "b")
    assert sum(kind == "b" for kind, *_ in sides) * 2 == len(events)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _by_name(data: dict[str, Any], name: str) -> list[Event]:
    return [event for event in data["traceEvents"] if event["name"] == name]


def test_ranges_say_what_they_are(trained: Path, tmp_path: Path) -> None:
    """A layer stands on the track of its thread, with its times to the ns and what is known of it."""
    data = _trace(trained, tmp_path / "out.json")
    first, second = _by_name(data, "features.0 Conv2d")
    assert (first["ts"], first["dur"], second["ts"]) == (220.0, 400.0, 2420.0)
    assert first["args"] == {
        "layer": "features.0", "module": "Conv2d", "phase": "forward", "shapes": "[32,3,224,224]f32", "gpu_ns": 900_000,
    }  # fmt: skip
    names = {event["name"] for event in data["traceEvents"] if event.get("cat") == "range"}
    assert {"(model) AlexNet", "features.0 Conv2d backward", "SGD optimizer", "(batch) 1", "augment"} <= names
    assert [event["name"] for event in data["traceEvents"] if event.get("cat") == "step"] == ["step 0", "step 1"]


def test_device_work_stands_on_streams(trained: Path, tmp_path: Path) -> None:
    """Kernels bear the layer that launched them; what a stream does at once goes to an overlapping track."""
    data = _trace(trained, tmp_path / "out.json")
    kernel = _by_name(data, "conv_bwd")[0]
    assert (kernel["ts"], kernel["dur"], kernel["cat"]) == (1370.0, 1500.0, "kernel")
    assert kernel["args"]["layer"] == "features.0"
    assert kernel["args"]["phase"] == "backward"
    tracks = {event["tid"]: event["args"]["name"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    assert tracks[_by_name(data, "(copy HtoD)")[0]["tid"]] == "stream 7"
    assert tracks[kernel["tid"]] == "stream 7, overlapping"
    order = {e["pid"]: e["args"]["sort_index"] for e in data["traceEvents"] if e["name"] == "process_sort_index"}
    assert max(order, key=order.__getitem__) == kernel["pid"]
    assert min(order.values()) < 1000 < max(order.values())
    group = next(e for e in data["traceEvents"] if e["name"] == "process_name" and e["pid"] == kernel["pid"])
    assert group["args"]["name"] == "GPU 0 of process 1"


def test_arrows(trained: Path, tmp_path: Path) -> None:
    """An arrow leads from each launch to its kernel, and from a forward call to its backward call."""
    data = _trace(trained, tmp_path / "out.json")
    ends = {event["bind_id"]: event for event in data["traceEvents"] if event.get("flow_in")}
    led = {
        (event["name"], event["ts"]): (ends[event["bind_id"]]["name"], ends[event["bind_id"]]["ts"])
        for event in data["traceEvents"]
        if event.get("flow_out")
    }
    assert led["features.0 Conv2d", 220.0] == ("features.0 Conv2d backward", 1300.0)
    assert led["features.0 Conv2d", 2420.0] == ("features.0 Conv2d backward", 3500.0)
    assert ("conv_fwd", 250.0) in led.values()
    assert len(led) == 18 + 2 * 5


def test_a_module_called_twice_goes_back_in_reverse(tmp_path: Path) -> None:
    """The backward pass of a layer that ran twice undoes the last call first."""
    profile = SqliteProfile()
    for start in (0, 100):
        profile.layer("rnn RNN |fwd", start, start + 50)
    for start in (200, 300):
        profile.layer("rnn RNN |bwd", start, start + 50)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    bound = [(event["ts"], event["bind_id"]) for event in data["traceEvents"] if "bind_id" in event]
    ids = dict(bound)
    assert (ids[0.0], ids[0.1]) == (ids[0.3], ids[0.2])
    assert ids[0.0] != ids[0.1]


def test_one_launch_of_many_kernels(tmp_path: Path) -> None:
    """The launch of a CUDA graph leads to all of its kernels."""
    profile = SqliteProfile()
    profile.layer("fc Linear |fwd", 0, 100)
    profile.call(10, 20, 1)
    for start in (30, 40, 50):
        profile.kernel(start, start + 5, 1)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    assert sum("flow_in" in event for event in data["traceEvents"]) == 3
    assert sum("flow_out" in event for event in data["traceEvents"]) == 1


def test_ranges_that_cross(tmp_path: Path) -> None:
    """Ranges that do not nest are asynchronous, each end bound to its begin."""
    profile = SqliteProfile()
    profile.range("a", 0, 100, kind=60)
    profile.range("b", 50, 150, kind=60)
    profile.range("b", 60, 160, kind=60)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    crossing = [
        (event["ph"], event["name"], event["ts"]) for event in data["traceEvents"] if event.get("cat") == "crossing"
    ]
    assert sorted(crossing) == [("b", "b", 0.05), ("b", "b", 0.06), ("e", "b", 0.15), ("e", "b", 0.16)]


def test_layers_that_any_thread_runs(tmp_path: Path) -> None:
    """Ranges of a process have tracks of their own, on which one lies in another only if it belongs to it."""
    profile = SqliteProfile()
    for text, start, end, number in (
        ("net Net |fwd", 0, 100, 1), ("net/a A |fwd", 10, 60, 1), ("net/b B |fwd", 20, 50, 2),
        ("net/b/c C |fwd", 30, 40, 1),
    ):  # fmt: skip
        profile.layer(text, start, end, number=number, endGlobalTid=thread(3 - number), kind=60)
    profile.layer("Batch 0 |step", 0, 200)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    tracks = {event["tid"]: event["args"]["name"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    found = {event["name"]: tracks[event["tid"]] for event in data["traceEvents"] if event.get("cat") == "range"}
    assert found == {
        "(batch) 0": "thread 1", "net Net": "layers", "net/a A": "layers", "net/b B": "layers, overlapping",
        "net/b/c C": "layers, overlapping",
    }  # fmt: skip


def test_times_are_exact_however_late(tmp_path: Path) -> None:
    """Nanoseconds since 1970 do not fit into a double of µs: the trace begins at 0 and says when that was."""
    late = 1_700_000_000_123_456_789
    profile = SqliteProfile()
    profile.range("a", late, late + 1_000_001)
    profile.range("b", late + 7, late + 9)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    assert data["otherData"]["start_ns"] == late
    times = {e["name"]: (e["ts"], e["dur"]) for e in data["traceEvents"] if e["ph"] == "X"}
    assert times == {"a": (0.0, 1000.001), "b": (0.007, 0.002)}


def test_hostile_names(tmp_path: Path) -> None:
    """A name is data: it cannot end the string that it stands in."""
    name = '"},{"ph":"X"}]}\\ \x01\n</script>é💥'
    profile = SqliteProfile()
    profile.range(name, 0, 10)
    data = _trace(profile.write(tmp_path / "x"), tmp_path / "out.json")
    assert [event["name"] for event in data["traceEvents"] if event["ph"] == "X"] == [name]


def test_chosen_steps_and_compression(trained: Path, tmp_path: Path) -> None:
    """--steps leaves out what belongs to others, also on the device; .gz is compressed."""
    data = _trace(trained, tmp_path / "out.json.gz", "--steps", "1")
    assert len(_by_name(data, "conv_fwd")) == len(_by_name(data, "features.0 Conv2d")) == 1
    assert [event["name"] for event in data["traceEvents"] if event.get("cat") == "step"] == ["step 1"]


def test_profile_without_host_times() -> None:
    """Where the file knows only an order on the host, there is device work and nothing else."""

    kinds = pl.concat(Events(attribute(ordered_only())).blocks())["kind"].unique()
    assert set(kinds) <= {"kernel", "copy"}


def test_every_piece_once(tmp_path: Path) -> None:
    """Of a real profile every range, launch that led to work, and piece of work is there, once, with its time.

    FSDP's hooks make 18 layers on each of two threads.
    """
    profile = load(unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path))
    rows = pl.concat(Events(attribute(profile)).blocks())
    assert dict(rows.schema) == {name: dtype() for name, dtype in EVENTS.items()}
    counts = dict(rows["kind"].value_counts().iter_rows())
    assert (counts["kernel"], counts["copy"]) == (profile.kernels.height, profile.copies.height)
    assert counts["range"] + counts.get("crossing", 0) == profile.ranges.height + 2 * 18
    lengths = (profile.kernels["end"] - profile.kernels["start"]).sum()
    assert rows.filter(pl.col("kind") == "kernel")["length"].sum() == lengths


@pytest.mark.parametrize(
    "name", ["hta_recsys_a100_cudagraph", "hta_cpu_only", "tracelens_mi300_resnet18_train_nnmodule_seq"]
)
def test_real_traces(name: str, tmp_path: Path) -> None:
    """Real traces keep the rules of the format."""
    _trace(shared(f"kineto/{name}.json.gz"), tmp_path / "out.json")


def test_sequence_numbers_make_arrows(tmp_path: Path) -> None:
    """Backward operations are led back to the forward ones whose number they bear."""
    profile = load(shared("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz"))
    rows = pl.concat(Events(attribute(profile)).blocks())
    begins = rows.filter(pl.col("kind") == "range").drop_nulls("arrow_out")["arrow_out", "name", "start"]
    ends = rows.filter(pl.col("kind") == "range").drop_nulls("arrow_in")["arrow_in", "name", "start"]
    pairs = begins.join(ends, left_on="arrow_out", right_on="arrow_in", suffix="_backward")
    assert pairs.height == 355
    assert (pairs["start"] < pairs["start_backward"]).all()
    convolutions = pairs.filter(pl.col("name").str.contains("conv"))
    assert convolutions.height >= 20
    assert convolutions["name_backward"].str.to_lowercase().str.contains("conv").all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--format trace needs -o OUT"),
        ("-o out --by kernel", "--by cannot be combined with --format trace"),
        ("-o out --rank 1", "--rank cannot be combined with --format trace"),
        ("y -o out", "--format trace needs exactly one PROFILE, got 2"),
    ],
)
def test_options_that_do_not_fit(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that have no meaning for a trace are wrong usage in one sentence."""
    assert main(["report", "x", *words.split(), "--format", "trace"]) == 2
    assert capsys.readouterr().err == f"annot: error: {said}\n"


def test_existing_and_impossible_files(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is kept; one that cannot be written is one sentence."""
    out = tmp_path / "out.json"
    out.write_text("precious")
    assert main(["report", str(trained), "--format", "trace", "-o", str(out)]) == 1
    assert out.read_text() == "precious"
    assert main(["report", str(trained), "--format", "trace", "-o", str(tmp_path / "no" / "x")]) == 1
    assert capsys.readouterr().err.splitlines()[1].endswith("cannot be written: No such file or directory")
