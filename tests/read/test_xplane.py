"""XPlane files of TensorFlow and JAX: a real one of eight GPUs against a walk over its bytes, and small ones."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from shared_data import shared
from xplane_profile import XPlaneProfile, fields

from annot import AnnotError
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.profile import Profile
from annot.read.xplane import reader as xplane
from annot.read.xplane.plane import messages

_BERT = "xplane/tf_bert_gpu8_multi_worker.xplane.pb"
_TRANSFORMER = "bert_span_labeler/bert_encoder_1/transformer"
_DATA = Path(__file__).parents[1] / "data"  # captured for these tests with JAX 0.10 and TensorFlow 2.21 on a CPU


class _Event(NamedTuple):
    plane: str
    line: str
    number: int
    name: str
    start: int
    end: int
    stats: dict[str, int | str]


def _walk(path: Path) -> list[_Event]:
    return [event for number, plane in fields(path.read_bytes()) if number == 1 for event in _plane(plane)]


def _plane(plane: bytes) -> list[_Event]:
    found: dict[int, list[Any]] = {}
    for number, value in fields(plane):
        found.setdefault(number, []).append(value)
    names, stats = (_names(found.get(number, [])) for number in (4, 5))
    events = []
    for line in found.get(3, []):
        parts = dict(fields(line))
        for number, event in fields(line):
            if number == 4:
                own = dict(fields(event))
                start = parts.get(3, 0) * 1000 + own.get(2, 0)
                values = [dict(fields(stat)) for number, stat in fields(event) if number == 4]
                said = {stats[value.pop(1)]: _value(value, stats) for value in values}
                span = (start // 1000, (start + own.get(3, 0)) // 1000)
                place = (found[2][0].decode(), parts.get(2, b"").decode(), parts.get(1, 0))
                events.append(_Event(*place, names[own[1]], *span, said))
    return events


def _names(entries: list[bytes]) -> dict[int, str]:
    pairs = [dict(fields(entry)) for entry in entries]
    return {pair[1]: dict(fields(pair[2])).get(2, b"").decode() for pair in pairs}


def _value(value: dict[int, Any], stats: dict[int, str]) -> int | str:
    ((field, content),) = value.items() or [(0, "")]
    return stats[content] if field == 7 else content.decode() if field == 5 else content


@functools.cache
def _bert() -> tuple[Profile, list[_Event]]:
    path = shared(_BERT)
    return xplane.read(path), _walk(path)


def _on_streams(events: list[_Event], detail: str) -> list[_Event]:
    return [event for event in events if event.line.startswith("Stream") and detail in event.stats]


def test_real_file_is_recognised() -> None:
    """The real file is known by its first bytes."""
    path = shared(_BERT)
    assert xplane.sniff(path, path.read_bytes()[:65536])


def test_kernels_of_the_real_file() -> None:
    """All 1,330 kernels of two of the eight GPUs are there, to the nanosecond, on their devices and streams."""
    profile, events = _bert()
    expected = [
        (int(event.plane[-1]), event.number, event.start, event.end, event.stats["correlation_id"], event.name)
        for event in _on_streams(events, "kernel_details")
    ]
    columns = ["device", "stream", "start", "end", "correlation", "name"]
    assert sorted(profile.kernels.select(columns).rows()) == sorted(expected)
    assert Counter(profile.kernels["device"]) == {4: 665, 6: 665}


def test_copies_of_the_real_file() -> None:
    """Copies have their sizes and directions, and no kernel is among them."""
    profile, events = _bert()
    kinds = {"MemcpyH2D": "HtoD", "MemcpyD2H": "DtoH"}
    expected = [
        (
            int(event.plane[-1]),
            event.start,
            kinds[event.name],
            int(str(event.stats["memcpy_details"]).split(":")[1].split()[0]),
        )
        for event in _on_streams(events, "memcpy_details")
    ]
    assert sorted(profile.copies.select("device", "start", "kind", "bytes").rows()) == sorted(expected)
    assert Counter(profile.copies["kind"]) == {"HtoD": 202, "DtoH": 24}


def test_launches_of_the_real_file() -> None:
    """Every kernel and copy has the launch that the host recorded under its correlation id."""
    profile, events = _bert()
    expected = {
        (event.stats["correlation_id"], event.start, event.end, event.name)
        for event in events
        if event.plane == "/host:CPU" and "correlation_id" in event.stats
    }
    assert set(profile.launches.select("correlation", "start", "end", "name").rows()) == expected
    work = pl.concat([profile.kernels["correlation"], profile.copies["correlation"]])
    assert sorted(work) == sorted(profile.launches["correlation"])
    lines = {event.number for event in events if event.plane == "/host:CPU" and "correlation_id" in event.stats}
    assert profile.launches["thread"].n_unique() == len(lines)


def test_derived_lines_are_no_work() -> None:
    """The lines of name scopes, operations and steps repeat what the streams say."""
    profile, events = _bert()
    total = sum(event.end - event.start for event in events if event.line.startswith("Stream"))
    work = pl.concat([table.select("start", "end") for table in (profile.kernels, profile.copies)])
    assert work.select(pl.col("end") - pl.col("start")).sum().item() == total == 30_162_105


def test_kernels_lead_to_their_layers() -> None:
    """Each kernel lies in the layer that its annotation names: all 24 of the transformer, and the ones inside."""
    profile, events = _bert()
    expected: Counter[str] = Counter()
    for event in _on_streams(events, "kernel_details"):
        if layer := re.search(r"/transformer/(layer_\d+)/", str(event.stats["annotation"])):
            expected[layer[1]] += 1
    layers = by_layer(attribute(profile))
    inside = pl.col("layer").str.extract(rf"^{_TRANSFORMER}/(layer_\d+)(?:/|$)")
    kernels = layers.with_columns(inside.alias("of")).drop_nulls("of").group_by("of").agg(pl.col("kernels").sum())
    assert dict(kernels.rows()) == dict(expected)
    assert sorted(expected) == sorted(f"layer_{number}" for number in range(24))


def test_every_nanosecond_is_accounted_for() -> None:
    """What the layers own and what belongs to none add up to all device time; the gradients are a phase."""
    profile, _ = _bert()
    layers = by_layer(attribute(profile))
    assert layers["gpu_self_ns"].sum() == 30_162_105
    assert set(layers["phase"]) >= {"forward", "backward"}
    assert layers.filter(pl.col("layer").str.contains("replica|gradient_tape")).is_empty()


def test_devices_of_the_real_file() -> None:
    """All eight devices are listed with what the file says about them."""
    devices = _bert()[0].meta["devices"]
    assert [device["name"] for device in devices] == [f"/device:GPU:{number}" for number in range(8)]
    assert {(device["core_count"], device["compute_cap_major"]) for device in devices} == {(80, 7)}


def test_jax_on_a_cpu() -> None:
    """Instructions of XLA come to the scopes of the model through the program in the file; steps are batches."""
    profile = xplane.read(_DATA / "jax_cpu.xplane.pb")
    scopes = Counter(profile.ranges.filter(pl.col("role") == "module")["text"])
    assert set(scopes) == {
        "MLP |fwd", "MLP/Dense_0 |fwd", "MLP/Dense_1 |fwd", "MLP |bwd", "MLP/Dense_0 |bwd", "MLP/Dense_1 |bwd",
        "optimizer |opt",
    }  # fmt: skip
    assert scopes["MLP/Dense_0 |fwd"] == scopes["MLP/Dense_1 |bwd"] == 3
    notes = profile.ranges.filter((pl.col("role") == "annotation") | pl.col("role").is_null())["text"].to_list()
    assert notes == [text for step in range(3) for text in (f"Batch train {step} |step", "my block")]
    assert profile.meta["producer"] == "JAX 0.10.2"


def test_keras_on_a_cpu() -> None:
    """The operations of Keras layers, forward and backward, and of the optimizer become ranges of their scopes."""
    profile = xplane.read(_DATA / "tf_cpu.xplane.pb")
    scopes = set(profile.ranges.filter(pl.col("role") == "module")["text"])
    assert {f"tiny_1/{layer}_1 |{code}" for layer in ("hidden", "logits") for code in ("fwd", "bwd")} <= scopes
    assert {text for text in scopes if "MatMul" in text} == set()
    assert "adam |opt" in scopes
    assert {"_MklMatMul", "BiasAddGrad", "ReluGrad"} <= set(profile.ranges.filter(pl.col("role") == "operator")["text"])
    steps = profile.ranges.filter(pl.col("role").is_null())["text"].to_list()
    assert steps == ["Batch train 0 |step", "Batch train 1 |step"]


def _gpu(profile: XPlaneProfile, number: int = 0) -> tuple[Any, Any]:
    plane = profile.plane(f"/device:GPU:{number}")
    return plane, plane.line("Stream #7(Compute)", 7)


def test_launch_outside_of_an_operation(tmp_path: Path) -> None:
    """Where no operation was recorded around a launch, the kernel's own name puts layers around the launch."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    gpu.event(stream, "gemm", 9_000_000, 4_000_000, correlation_id=5, name="jit(f)/jvp(MLP)/Dense_0/dot_general")
    host = file.plane("/host:CUPTI")
    host.event(host.line("Host Threads/3", 3), "cuLaunchKernel", 1_000_000, 2_000_000, correlation_id=5)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.ranges.select("text", "start", "end", "role").rows() == [
        ("MLP |fwd", 1000, 3000, "module"),
        ("MLP/Dense_0 |fwd", 1000, 3000, "module"),
        ("dot_general", 1000, 3000, "operator"),
    ]
    assert profile.launches.select("name", "correlation").rows() == [("cuLaunchKernel", 5)]
    assert profile.kernels["origin_start"].to_list() == [None]
    assert "host_times" not in profile.meta


def test_recorded_scopes_of_a_folder_around_the_profile(tmp_path: Path) -> None:
    """They name the layer, unless the file is too large or a named pipe, which is not opened."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    gpu.event(stream, "gemm", 9_000_000, 4_000_000, tf_op="net/fc/MatMul:MatMul")
    path = tmp_path / "plugins/profile/run/host.xplane.pb"
    path.parent.mkdir(parents=True)
    (tmp_path / "annot_scopes.txt").write_text("Scope net/fc = classifier Dense |fwd\n")
    os.mkfifo(path.parent / "annot_scopes.txt")  # nobody writes to it
    (path.parents[1] / "annot_scopes.txt").write_bytes(b"\n" * ((1 << 24) + 1))
    assert "classifier Dense |fwd" in set(xplane.read(file.write(path)).ranges["text"])


def test_launch_inside_of_its_operation(tmp_path: Path) -> None:
    """Where the operation was recorded around the launch, its scopes are not repeated."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    gpu.event(stream, "gemm", 9_000_000, 4_000_000, correlation_id=5, tf_op="net/fc/MatMul:MatMul")
    host = file.plane("/host:CPU")
    thread = host.line("tf_Compute/3", 3)
    host.event(thread, "net/fc/MatMul:MatMul", 0, 5_000_000)
    host.event(thread, "gemm", 1_000_000, 2_000_000, correlation_id=5)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.ranges.select("text", "start", "end").rows() == [
        ("net |fwd", 0, 5000), ("net/fc |fwd", 0, 5000), ("MatMul", 0, 5000),
    ]  # fmt: skip


def test_kernels_without_a_launch(tmp_path: Path) -> None:
    """Kernels whose launch nobody recorded get a thread per stream, share outer layers, and know where they are."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    for start, layer in ((10, "a"), (20, "a"), (40, "b")):
        gpu.event(stream, "gemm", start * 1000, 12_000, tf_op=f"net/{layer}/MatMul:MatMul")
    gpu.event(stream, "other", 60_000, 5_000)
    steps = gpu.line("Steps", 1)
    gpu.event(steps, "4", 10_000, 42_000)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    scopes = profile.ranges.filter(pl.col("role") == "module")
    assert scopes.select("text", "start", "end").rows() == [
        ("net |fwd", 10, 52), ("net/a |fwd", 10, 32), ("net/b |fwd", 40, 52),
    ]  # fmt: skip
    assert profile.kernels["origin_start"].to_list() == [10, 20, 40, None]
    assert profile.kernels["origin_thread"].to_list() == [*scopes["thread"], None]
    assert profile.ranges.filter(pl.col("role").is_null())["text"].to_list() == ["Batch 4 |step"]
    assert profile.meta["host_times"] is False
    assert profile.meta["notes"] == [
        "annot attributes 3 GPU activities to layers by operation name, because the launch does not identify the "
        "layer. The host time of these layers includes their GPU time."
    ]


def test_kernels_that_overlap(tmp_path: Path) -> None:
    """A kernel that begins before the one before it has ended still comes to its own layer."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    for start, layer in ((20, "b"), (10, "a"), (30, "a")):
        gpu.event(stream, "gemm", start * 1000, 15_000, tf_op=f"{layer}/MatMul:MatMul")
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    scopes = profile.ranges.filter(pl.col("role") == "module").select("text", "start", "end")
    assert scopes.rows() == [("a |fwd", 10, 20), ("b |fwd", 20, 30), ("a |fwd", 30, 45)]
    assert profile.kernels["origin_start"].to_list() == [20, 10, 30]
    layers = by_layer(attribute(profile)).filter(pl.col("kernels") > 0)
    assert dict(layers.select("layer", "kernels").rows()) == {"a": 2, "b": 1}


def test_kernels_of_one_graph_launch(tmp_path: Path) -> None:
    """Of several operations in one launch the first has it; the others are placed by their own names."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    for start, layer in ((10, "a"), (20, "b")):
        gpu.event(stream, "gemm", start * 1000, 5_000, correlation_id=1, tf_op=f"net/{layer}/MatMul:MatMul")
    host = file.plane("/host:CUPTI")
    host.event(host.line("Host Threads/3", 3), "cuGraphLaunch", 1_000, 2_000, correlation_id=1)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.kernels["origin_start"].to_list() == [None, 20]
    thread = profile.kernels["origin_thread"][1]
    placed = profile.ranges.filter((pl.col("thread") == thread) & (pl.col("role") == "module"))
    assert placed["text"].to_list() == ["net |fwd", "net/b |fwd"]


def test_instructions_of_xla(tmp_path: Path) -> None:
    """A kernel's instruction leads to its operation through the program of its number, or of its name."""
    file = XPlaneProfile()
    file.program("jit_f(1)", 1, {"fusion.3": "jit(f)/old/add"})
    file.program("jit_f(2)", 2, {"fusion.3": "jit(f)/new/add"})
    file.program("jit_g(3)", 3, {"fusion.3": "jit(g)/other/add;jit(g)/more/mul"})
    gpu, stream = _gpu(file)
    gpu.event(stream, "k", 10_000, 1_000, hlo_op="fusion.3", hlo_module="jit_f", program_id=2)
    gpu.event(stream, "k", 20_000, 1_000, hlo_op="fusion.3", hlo_module="jit_g")
    gpu.event(stream, "k", 30_000, 1_000, hlo_op="fusion.3", hlo_module="jit_f")
    gpu.event(stream, "k", 40_000, 1_000, hlo_op="fusion.3", program_id=1)
    said = gpu.event(stream, "k", 50_000, 1_000, hlo_op="fusion.3", program_id=2, tf_op="XlaModule:")
    gpu.stats(said, name="jit(f)/said/add")
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.ranges.filter(pl.col("role") == "module")["text"].to_list() == [
        "new |fwd", "other |fwd", "old |fwd", "said |fwd",
    ]  # fmt: skip
    assert profile.kernels["origin_start"].to_list() == [10, 20, 30, 40, 50]
    assert by_layer(attribute(profile)).filter(layer="fusion.3")["gpu_self_ns"].to_list() == [1]


def test_broken_program(tmp_path: Path) -> None:
    """A program that cannot be decoded costs its scopes and is mentioned."""
    file = XPlaneProfile()
    file.plane("/host:metadata").constants("jit_f(1)", Hlo_proto=b"\x0a\xff\xff", program_id=1)
    gpu, stream = _gpu(file)
    gpu.event(stream, "k", 0, 1_000, hlo_op="fusion.3", program_id=1)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.meta["notes"][0] == "annot could not decode 1 compiled program. Some operations have no name scopes."
    assert profile.kernels.height == 1


def test_sets_and_allocations(tmp_path: Path) -> None:
    """Sets of memory are kept with their size; allocations on a stream are no device work."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    gpu.event(stream, "Memset", 0, 3_000, memset_details="kind:device num_bytes:4096 async:1")
    gpu.event(
        stream, "MemcpyP2P", 5_000, 3_000, memcpy_details="kind_src:device kind_dst:device size:64 dest:1 async:1"
    )
    for size in (128, 256):  # older files spell out each detail
        event = gpu.event(stream, "MemcpyD2H", 8_000 + size, 10, memcpy_details="")
        event.stats[0].ref_value, event.stats[0].str_value = 0, f"size:{size} dest:4 async:1".encode()
    gpu.event(stream, "MemoryAlloc", 9_000, 3_000, memalloc_details="kind:device num_bytes:99")
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.copies.select("kind", "bytes").rows() == [
        ("memset", 4096), ("PtoP", 64), ("DtoH", 128), ("DtoH", 256),
    ]  # fmt: skip
    assert profile.kernels.is_empty()


def test_tpu(tmp_path: Path) -> None:
    """A device without streams shows its operations; those that contain others are not counted twice."""
    file = XPlaneProfile()
    tpu = file.plane("/device:TPU:1")
    line = tpu.line("XLA Ops", 2)
    tpu.constants("%fusion.1", tf_op="jit(f)/jvp(net)/a/dot_general:")
    for name, start, length in (("%while", 0, 100_000), ("%fusion.1", 10_000, 20_000), ("%fusion.1", 30_000, 5_000)):
        tpu.event(line, name, start, length)
    tpu.event(tpu.line("XLA Modules", 1), "jit_f", 0, 100_000)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.kernels.select("device", "name", "start", "end").rows() == [
        (1, "%fusion.1", 10, 30), (1, "%fusion.1", 30, 35),
    ]  # fmt: skip
    assert profile.ranges.filter(pl.col("role") == "module")["text"].to_list() == ["net |fwd", "net/a |fwd"]


def test_instructions_without_scopes_have_rows_of_their_own(tmp_path: Path) -> None:
    """Kernels that know XLA's instruction count to it, and not all to what the runtime does around their launches."""
    file = XPlaneProfile()
    gpu, stream = _gpu(file)
    host = file.plane("/host:CPU")
    thread = host.line("python", 3)
    host.event(thread, "PjitFunction(step)", 0, 90_000)
    host.event(thread, "ThunkExecutor::Execute", 1_000, 80_000)
    for number, name in enumerate(("fusion.3", "fusion.4", "fusion.3"), 1):
        host.event(thread, "cuLaunchKernel", number * 10_000, 2_000, correlation_id=number)
        gpu.event(stream, "loop", 100_000 * number, 7_000, correlation_id=number, hlo_op=name, hlo_module="jit_step")
    layers = by_layer(attribute(xplane.read(file.write(tmp_path / "x.pb"))))
    found = layers.filter(pl.col("gpu_self_ns") > 0).select("layer", "gpu_self_ns").rows()
    assert found == [("fusion.3", 14), ("fusion.4", 7)]


def test_tpu_instructions_without_scopes(tmp_path: Path) -> None:
    """A TPU knows no launches: what has no scopes belongs to its instruction, not to nobody."""
    file = XPlaneProfile()
    tpu = file.plane("/device:TPU:0")
    line = tpu.line("XLA Ops", 2)
    tpu.event(line, "%fusion.1 = f32[8]{0} fusion(f32[8]{0} %p)", 10_000, 20_000)
    tpu.event(line, "%copy.2", 30_000, 5_000)
    layers = by_layer(attribute(xplane.read(file.write(tmp_path / "x.pb"))))
    assert layers.select("layer", "gpu_self_ns").rows() == [("fusion.1", 20), ("copy.2", 5)]


def test_runtime_and_users_events(tmp_path: Path) -> None:
    """Annotations of users are kept apart from what frameworks trace of themselves."""
    file = XPlaneProfile()
    host = file.plane("/host:CPU")
    thread = host.line("python3", 3)
    for name, start, length in (
        ("my part", 0, 100), ("PjitFunction(f)", 10, 50), ("layout pass", 20, 10), ("$train.py:12 main", 0, 100),
        ("inner part", 70, 10), ("MemoryAllocation", 72, 0),
    ):  # fmt: skip
        host.event(thread, name, start * 1000, length * 1000)
    host.event(host.line("tf_Compute/4", 4), "anything", 0, 1000)
    nvtx = file.plane("/host:NVTX-CUPTI")
    nvtx.event(nvtx.line("Host Threads/3/NVTX", 3), "NVTX:fc Linear |fwd", 71_000, 8_000)
    nvtx.event(nvtx.message.lines[0], "NVTX:fc2", 30_000, 8_000)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.ranges.select("text", "role", "thread").rows() == [
        ("my part", "annotation", 0), ("PjitFunction(f)", "operator", 0), ("layout pass", "operator", 0),
        ("fc2", None, 0),
        ("inner part", "annotation", 0), ("fc Linear |fwd", None, 0), ("anything", "operator", 1),
    ]  # fmt: skip


def test_times_are_rounded_down(tmp_path: Path) -> None:
    """Picoseconds go, and events that touch still touch, also before the beginning of the line."""
    file = XPlaneProfile()
    for name, line in (("/device:GPU:0", "Stream #7"), ("/host:CPU", "python")):
        plane = file.plane(name)
        timeline = plane.line(line, 7, timestamp_ns=2**60)
        for start, length in ((-2_500, 1_600), (-900, 1_899), (999, 2_002)):
            plane.event(timeline, "k", start, length)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    for table in (profile.kernels, profile.ranges):
        times = table.select(pl.col("start", "end") - 2**60).rows()
        assert times == [(-3, -1), (-1, 0), (0, 3)]


def test_impossible_times(tmp_path: Path) -> None:
    """Events that end before they begin, or beyond all clocks, are left out and counted."""
    file = XPlaneProfile()
    gpu = file.plane("/device:GPU:0")
    for timestamp, start, length in (
        (0, 5_000, -9_000),
        (2**63 - 1, 0, 5),
        (-(2**63), 0, 5),
        (0, 2**63 - 1, 2**63 - 1),
    ):
        gpu.event(gpu.line("Stream #7", 7, timestamp), "k", start, length)
    host = file.plane("/host:CPU")
    host.event(host.line("python", 1, 2**62), "x", 0, 1)
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.kernels.select("start", "end").rows() == [(2**63 // 1000, (2**64 - 2) // 1000)]
    assert profile.meta["notes"] == ["annot skipped 4 events with times out of range."]


def test_what_the_profiler_says(tmp_path: Path) -> None:
    """Errors and warnings of the profiler are notes of one line each."""
    file = XPlaneProfile()
    host = file.plane("/host:CPU")
    host.event(host.line("python", 1), "x", 0, 1)
    file.space.errors.append(b"CUPTI could not\nbe loaded")
    file.space.warnings.append(b"events dropped: \xff")
    profile = xplane.read(file.write(tmp_path / "x.pb"))
    assert profile.meta["notes"] == ["CUPTI could not be loaded", "events dropped: \ufffd"]


def test_beside_the_messages_of_tensorflow() -> None:
    """The reader works in a process where TensorFlow has registered messages of the same names."""
    program = """
import sys
from pathlib import Path
from google.protobuf import descriptor_pb2, descriptor_pool
for package in ("tensorflow.profiler", "xla"):
    file = descriptor_pb2.FileDescriptorProto(name=f"tsl/{package}/xplane.proto", package=package, syntax="proto3")
    for name in ("XSpace", "XPlane", "HloProto"):
        file.message_type.add(name=name).field.add(name="planes", number=1, type=9, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
from annot.read.xplane import reader as xplane
print(xplane.read(Path(sys.argv[1])).ranges.height)
assert descriptor_pool.Default().FindMessageTypeByName("tensorflow.profiler.XSpace").fields[0].type == 9
assert "tensorflow" not in sys.modules
"""
    path = _DATA / "jax_cpu.xplane.pb"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == xplane.read(path).ranges.height


def test_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without protobuf the error says what to install."""
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    messages.cache_clear()
    with pytest.raises(AnnotError, match=r'requires protobuf: pip install "annot-nvtx\[xplane\]"$'):
        xplane.read(_DATA / "jax_cpu.xplane.pb")
    messages.cache_clear()
