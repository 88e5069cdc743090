"""Trees of Proton. No file here is a measurement on a GPU.

Triton 3.9.0 wrote ``proton/scopes.hatchet`` and ``.hatchet_msgpack`` on a machine without a GPU, from scopes whose
times are metrics of the user (``proton/write.py``). The other trees follow the sources of Proton (`TreeData.cpp`,
`Metric.h`, `Graph.h` in triton-lang/triton) and are made here.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

import annot
from annot.analyze.peaks import peaks_of_device
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import summarize
from annot.cli.main import main
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read import proton
from annot.read.formats import load, reader_of

DATA = Path(__file__).parents[1] / "data" / "proton"
DEVICES = {
    "CUDA": {
        "1": {"arch": "90", "bus_width": 5120, "clock_rate": 1980000, "memory_clock_rate": 2619000, "num_sms": 132}
    },
    "HIP": {
        "0": {"arch": "gfx942", "bus_width": 8192, "clock_rate": 2100000, "memory_clock_rate": 1300000, "num_sms": 304}
    },
}


def node(name: str, *children: Any, **metrics: Any) -> dict[str, Any]:
    return {"children": list(children), "frame": {"name": name, "type": "function"}, "metrics": metrics}


def kernel(name: str, ns: Any, *children: Any, count: Any = 1, device: str = "1", **more: Any) -> dict[str, Any]:
    times = {"time (ns)": ns, "count": count, "device_id": device, "device_type": "CUDA"}
    return node(name, *children, **times, **more)


def file_of(*children: Any, devices: Any = DEVICES) -> list[Any]:
    return [node("ROOT", *children, **{"time (ns)": 0, "count": 0}), devices]


def read(folder: Path, content: Any) -> Profile:
    path = folder / "run.x"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return load(path)


def layers(profile: Profile) -> dict[str, int]:
    """Return the GPU time of each layer with the layers inside it."""
    rows = by_layer(attribute(profile))
    return dict(rows.select("layer", "gpu_ns").iter_rows())


def times(tree: Any) -> int:
    return int(tree["metrics"].get("time (ns)", 0)) + sum(map(times, tree["children"]))


@pytest.mark.parametrize("name", ["scopes.hatchet", "scopes.hatchet_msgpack"])
def test_files_of_the_writer(name: str) -> None:
    """The layers of a replay are those of its capture, and all times add up to those of the file."""
    profile = load(DATA / name)
    assert reader_of(DATA / name) is proton
    gemm = 1000 + 1100 + 2000
    layer_ns = gemm + 3 * 3
    found = layers(profile)
    assert found["model.layers.0.mlp"] == gemm
    assert found["model.layers.0"] == layer_ns
    assert found["model.layers.1.mlp"] == gemm + 3
    assert found["model"] == 2 * layer_ns + 3 + 3 * 5
    assert found["sampler"] == 3 * 101
    assert found["decode step"] == found["model"] + 3 * 101 + 3 * 7
    assert found["weights.py: load"] == 0
    tree = json.loads((DATA / "scopes.hatchet").read_bytes())[0]
    summary = summarize(attribute(profile))
    assert summary["gpu_ns"] == summary["attributed_gpu_ns"] == found["decode step"] == times(tree)
    assert profile.metrics.filter(name="calls")["value"].sum() == 24


def test_both_encodings_give_the_same() -> None:
    """JSON and MessagePack differ in the order of the fields only."""
    one, other = load(DATA / "scopes.hatchet"), load(DATA / "scopes.hatchet_msgpack")
    assert sorted(one.kernels["name"]) == sorted(other.kernels["name"])
    assert layers(one) == layers(other)


def test_kernels_devices_and_metrics(tmp_path: Path) -> None:
    """A kernel has its device, its runs and the metrics of its launch; a device has its clocks in Hz."""
    profile = read(tmp_path, file_of(kernel("gemm", 4064, count=3, flops16=2e9), kernel("copy", 7, device="x")))
    assert profile.kernels.select("name", "device", "start", "end").rows() == [
        ("gemm", 1, 0, 4064),
        ("copy", None, 4064, 4071),
    ]
    assert profile.metrics.rows() == [(0, "calls", 3.0, ""), (0, "flops16", 2e9, ""), (1, "calls", 1.0, "")]
    nvidia, amd = profile.meta["devices"]
    assert amd == {"name": "AMD gfx942", "id": 0}
    peaks = peaks_of_device(nvidia)
    assert peaks is not None
    assert peaks.bandwidth == 2 * 2_619_000_000 * 5120 // 8
    assert peaks.of("f32") == 256 * 132 * 1.98e9
    assert "4 runs" in profile.meta["notes"][0]


def test_capture_is_transparent(tmp_path: Path) -> None:
    """The node between the replay and the capture adds nothing to the path of a kernel."""
    inner = node("capture", kernel("gemm", 10), kernel("norm", 1))
    with_node = read(tmp_path, file_of(node("replay", node("<captured_at>", inner))))
    assert layers(with_node) == layers(read(tmp_path, file_of(node("replay", inner))))
    assert layers(with_node)["replay › capture"] == 11
    assert with_node.ranges["text"].to_list() == ["replay", "capture"]


def test_kernel_with_scopes_inside(tmp_path: Path) -> None:
    """Such a node is a scope and a kernel. The source lines of a kernel's samples are neither."""
    line = node("gemm.py:3@gemm", num_samples=7)
    profile = read(tmp_path, file_of(kernel("op", 5, line, node("in", kernel("gemm", 10, line)))))
    assert profile.ranges["text"].to_list() == ["op", "in"]
    assert layers(profile)["op"] == 15
    assert layers(profile)["op › in"] == 10


def test_python_frames(tmp_path: Path) -> None:
    """A frame that only calls another frame is left out. The others are ranges, each with all kernels inside."""
    tree = kernel("gemm", 10)
    for name in ("d.py:4@linear", "c.py:3@_call", "b.py:2@_wrapped"):
        tree = node(name, tree)
    other = node("e.py:5@norm", kernel("norm", 3))
    for depth in range(80):
        tree, other = (node("main.py:9@run", tree, other), None) if other else (node(f"x.py:{depth}@f", tree), None)
    found = layers(read(tmp_path, file_of(tree)))
    assert found == {"main.py:9@run": 13, "main.py:9@run › d.py:4@linear": 10, "main.py:9@run › e.py:5@norm": 3}


def test_paths_of_modules_are_layers(tmp_path: Path) -> None:
    """A number in a dotted name shows a module; names with the same root are layers too, others are the program's."""
    kernels = [kernel("gemm", 1)]
    names = ("model.layers.0.mlp", "model.norm", "engine.step", "model 2.x", "model")
    profile = read(tmp_path, file_of(*(node(name, *kernels) for name in names)))
    assert profile.ranges["role"].to_list() == ["module", "module", None, None, "module"]
    without = read(tmp_path, file_of(*(node(name, *kernels) for name in names[1:])))
    assert without.ranges["role"].null_count() == 4


def test_totals_have_no_steps_and_no_idle_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of the same size are one scope, and the sums show nothing about gaps between kernels."""
    assert main([str(DATA / "scopes.hatchet"), "--all"]) == 0
    said = capsys.readouterr().out
    assert "no steps, because each range of the profile stands for all its calls" in said
    assert "busy" not in said.partition("\n")[0]
    profile = load(DATA / "scopes.hatchet")
    assert summarize(attribute(profile))["steps"] == 0
    assert summarize(attribute(profile, step_range="execute_context_#(#)_generation_#(#)"))["steps"] == 2
    assert summarize(attribute(Profile.build(profile.meta | {"totals": False}, ranges=profile.ranges)))["steps"] == 2


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, [1], 2**61, 10**40, True])
@pytest.mark.parametrize("metric", ["time (ns)", "count"])
def test_wrong_numbers(value: object, metric: str, tmp_path: Path) -> None:
    """A time or count that is not a whole number in range is refused with its kernel."""
    wrong = node("gemm", **({"time (ns)": 1, "count": 1} | {metric: value}))
    with pytest.raises(
        AnnotError, match=r"run\.x is a damaged profile of Proton: .* of 'gemm' is .{1,80}, not a whole"
    ):
        read(tmp_path, file_of(node("scope", wrong)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[{"frame":{"name":3},"metrics":{},"children":[]},{}]', "Expected `str`, got `int`"),
        (b'[{"children":[{"frame":{}}],"frame":{"name":"ROOT"}},{}]', "missing required field `name`"),
        (b'[{"children":{},"frame":{"name":"ROOT"}},{}]', "Expected `array`"),
        (b'[{"children":[],"frame":{"name":"ROOT"}}', "truncated"),
        (b'[{"children":[],"frame":{"name":"ROOT"},"metrics":{"x":NaN}}]', "malformed"),
        (b'[{"children":[],"frame":{"name":"ROOT"}},{}]', "without scopes and kernels"),
        (b'[{"children":[],"frame":{"name":"ROOT"}},{"CUDA":7}]', "Expected `object`"),
        (b'[{"children":[' * 5000, "too deep"),
        (b'[{"children":[' + b'{"frame":{"name":"a"},"children":[' * 5000 + b"]}" * 5001 + b"]", "too deep"),
        (b"\x92\x83\xa5frame\x81\xa4name\x03", "damaged profile of Proton"),
    ],
)
def test_damaged_files(content: bytes, said: str, tmp_path: Path) -> None:
    """A file with wrong types, a cut, or too deep a tree is refused in one sentence."""
    with pytest.raises(AnnotError) as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert said.lower() in message.lower()
    assert message.startswith(str(tmp_path / "run.x"))
    assert message.isprintable()


def test_sum_of_times_has_a_limit(tmp_path: Path) -> None:
    """Times whose sum no table can hold are refused; the sum just below is read."""
    most = 2**61 - 1
    assert summarize(attribute(read(tmp_path, file_of(kernel("a", most - 1), kernel("b", 0)))))["gpu_ns"] == most - 1
    with pytest.raises(AnnotError, match="its times add up to"):
        read(tmp_path, file_of(kernel("a", most), kernel("b", 1)))


def test_other_files_are_not_trees() -> None:
    """A list of trace events, another list and a number are not a tree."""
    for head in (b'[{"ph":"X","name":"frame"}]', b"[1,2]", b'{"frame":{}}', b"\x92\x01\x02", b'["frame"]'):
        assert not proton.sniff(Path("x"), head)
    assert proton.sniff(Path("x"), b'\xef\xbb\xbf\n[\n {\n "metrics" : {')


NAMES = st.sampled_from(["a", "b", "model", "model.0", "<captured_at>", "f.py:1@g", "step 1", "execute_new_1_cached_3"])
METRICS = st.fixed_dictionaries(
    {}, optional={"time (ns)": st.integers(0, 10**6), "count": st.integers(0, 9), "flops": st.floats(allow_nan=False)}
)
TREES = st.recursive(
    st.builds(lambda name, metrics: node(name, **metrics), NAMES, METRICS),
    lambda inner: st.builds(
        lambda name, metrics, children: node(name, *children, **metrics), NAMES, METRICS, st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


def _below(tree: Any, around: tuple[str, ...], sums: Counter[str]) -> None:
    """Add the times of a tree to each name around them: the reference for the layers that are modules."""
    inside = (*around, tree["frame"]["name"])
    for name in set(inside):
        sums[name] += tree["metrics"].get("time (ns)", 0)
    for child in tree["children"]:
        _below(child, inside, sums)


@settings(deadline=None, database=None, derandomize=True, max_examples=examples(100))
@given(st.lists(TREES, min_size=1, max_size=3), st.booleans())
def test_any_tree_adds_up(trees: list[Any], packed: bool) -> None:
    """The sum of all layers is that of the file, and a module has the time of all kernels below it."""
    content = file_of(node("model.0", *trees))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.x"
        path.write_bytes(msgspec.msgpack.encode(content) if packed else msgspec.json.encode(content))
        rows = annot.correlate(load(path))
    assert rows["gpu_self_ns"].sum() == times(content[0])
    sums: Counter[str] = Counter()
    _below(content[0], (), sums)
    assert rows.filter(layer="model.0")["gpu_ns"].sum() == sums["model.0"]
