"""What the rows of layers, modules, phases, kernels and steps say."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from sqlite_profile import SqliteProfile, training

import annot
from annot import correlate
from annot.attribution.attribute import attribute
from annot.attribution.ingest import parse_labels
from annot.attribution.layer_tables import by_kernel, by_layer, by_module, by_phase
from annot.attribution.summary import by_step, summarize
from annot.labels.foreign import split_suffix
from annot.profile import Profile
from annot.read.formats import load

US = 1000


def _row(rows: pl.DataFrame, **key: str) -> dict[str, object]:
    return rows.row(by_predicate=pl.all_horizontal(pl.col(name) == value for name, value in key.items()), named=True)


@pytest.fixture
def trained(tmp_path: Path) -> Profile:
    """Two steps of a small network with kernels."""
    return load(training(device=True).write(tmp_path / "run.sqlite"))


def test_columns_of_the_contract(trained: Profile) -> None:
    """`annot.correlate` gives the documented columns, and integers throughout."""
    rows = annot.correlate(trained)
    text = dict.fromkeys(("layer", "module", "phase"), pl.String())
    times = (
        "calls", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "gpu_busy_ns", "gpu_span_ns",
        "gpu_by_sequence_ns", "gpu_by_time_ns", "kernels", "kernels_total", "copies",
    )  # fmt: skip
    assert dict(rows.schema) == text | dict.fromkeys(times, pl.Int64()) | {"shapes": pl.List(pl.String)}


def test_layers_forward_and_backward(trained: Profile) -> None:
    """A layer has a row per phase, with its own and the inner times of host and device."""
    rows = correlate(trained)
    assert _row(rows, layer="features", phase="backward") == {
        "layer": "features", "module": "Sequential", "phase": "backward", "calls": 2,
        "host_ns": 2 * 590 * US, "host_self_ns": 2 * 30 * US, "gpu_ns": 2 * 1530 * US, "gpu_self_ns": 0,
        "gpu_busy_ns": 2 * 1530 * US, "gpu_span_ns": 3790 * US, "gpu_by_sequence_ns": 0, "gpu_by_time_ns": 0,
        "kernels": 0, "kernels_total": 4, "copies": 0, "shapes": [],
    }  # fmt: skip
    leaf = _row(rows, layer="features.0", phase="forward")
    assert (leaf["gpu_ns"], leaf["gpu_self_ns"], leaf["kernels"]) == (2 * 900 * US, 2 * 900 * US, 2)
    assert leaf["shapes"] == ["[16,3,224,224]f32", "[32,3,224,224]f32"]


def test_loops_data_optimizer_and_whole_backward(trained: Profile) -> None:
    """What is no layer has names that say so, and phases of the contract."""
    keys = correlate(trained).select("layer", "module", "phase").rows()
    assert [key for key in keys if key[2] not in ("forward", "backward")] == [
        ("(epoch)", "", "other"),
        ("(data)", "", "data"),
        ("(batch)", "", "other"),
        ("augment", "", "other"),
        ("", "SGD", "optimizer"),
        ("(unattributed)", "no launch recorded", "other"),
    ]
    assert ("", "", "backward") in keys
    assert ("", "AlexNet", "backward") in keys


def test_copies_count_as_device_time(trained: Profile) -> None:
    """A copy belongs to the range around its launch; it adds time, but no kernel."""
    batch = _row(correlate(trained), layer="(batch)")
    assert (batch["gpu_self_ns"], batch["kernels"], batch["copies"]) == (2 * 50 * US, 0, 2)


def test_unattributed_work_has_a_row(trained: Profile) -> None:
    """A kernel whose launch was not recorded stands in the last row."""
    last = correlate(trained).row(-1, named=True)
    assert (last["layer"], last["gpu_ns"], last["kernels"], last["calls"]) == ("(unattributed)", 30 * US, 1, 0)


def test_no_device_work_no_such_row(tmp_path: Path) -> None:
    """A profile without device work has no row for work that nobody launched."""
    rows = correlate(load(training(device=False).write(tmp_path / "x")))
    assert "(unattributed)" not in rows["layer"]


def test_correlation_ids_repeat_between_processes(tmp_path: Path) -> None:
    """Two ranks that use the same correlation ids keep their kernels."""
    profile = SqliteProfile()
    for rank, name in ((1, "first"), (2, "second")):
        profile.range(name, 0, 100, of_process=rank)
        profile.call(10, 20, 7, of_process=rank)
        profile.kernel(30, 30 + rank, 7, of_process=rank)
    rows = correlate(load(profile.write(tmp_path / "x")))
    assert rows.select("layer", "gpu_ns").rows() == [("first", 1), ("second", 2)]


def test_a_launch_of_many_kernels(tmp_path: Path) -> None:
    """All kernels of one launch, as a CUDA graph has them, belong to its range."""
    profile = SqliteProfile()
    profile.range("graph", 0, 100)
    profile.call(10, 20, 7)
    for start in (200, 300, 400):
        profile.kernel(start, start + 5, 7)
    assert correlate(load(profile.write(tmp_path / "x"))).row(0, named=True)["kernels"] == 3


def test_runtime_and_driver_call_share_an_id(tmp_path: Path) -> None:
    """A runtime call with the driver call inside it gives its kernel once."""
    profile = SqliteProfile()
    profile.range("outer", 0, 100)
    profile.range("between", 11, 19)
    profile.call(10, 20, 7)
    profile.call(12, 18, 7, kind=1)
    profile.kernel(30, 35, 7)
    rows = correlate(load(profile.write(tmp_path / "x")))
    assert rows.select("layer", "gpu_self_ns").rows() == [("outer", 5), ("outer › between", 0)]


def test_crossing_range_does_not_take_the_layers_work(tmp_path: Path) -> None:
    """A start/end range that crosses a layer shows what happened in it, but the layer keeps its kernel."""
    profile = SqliteProfile()
    profile.layer("fc Linear |fwd", 0, 100)
    profile.range("crossing", 50, 150, kind=60)
    profile.call(60, 70, 7)
    profile.kernel(80, 90, 7)
    profile.call(110, 120, 8)
    profile.kernel(200, 203, 8)
    loaded = load(profile.write(tmp_path / "x"))
    columns = ["layer", "host_self_ns", "gpu_ns", "gpu_self_ns"]
    assert correlate(loaded).select(columns).rows() == [
        ("fc", 100, 10, 10),
        ("crossing", 0, 13, 0),
        ("(unattributed)", 0, 3, 3),
    ]
    assert any("crosses others" in note for note in summarize(attribute(loaded))["notes"])


def test_one_domain_only(tmp_path: Path) -> None:
    """With a domain, ranges of others take no part, and their work moves to the range around them."""
    profile = SqliteProfile()
    profile.layer("fc Linear |fwd", 0, 100)
    profile.range("cublas", 10, 90, domain="cuBLAS")
    profile.call(20, 30, 7)
    profile.kernel(40, 45, 7)
    loaded = load(profile.write(tmp_path / "x"))
    assert correlate(loaded).select("layer", "gpu_self_ns").rows()[:2] == [("fc", 0), ("cublas", 5)]
    assert correlate(loaded, domain="annot").select("layer", "gpu_self_ns").rows()[0] == ("fc", 5)
    with pytest.raises(ValueError, match="no range in the domain '', only in 'annot', 'cuBLAS'"):
        correlate(loaded, domain="")


def test_open_range_lasts_to_the_end(tmp_path: Path) -> None:
    """A range that never closed ends where the capture does, and a note says so."""
    profile = SqliteProfile()
    profile.range("open", 0, None)
    profile.range("later", 50, 80)
    result = attribute(load(profile.write(tmp_path / "x")))
    assert by_layer(result)["host_ns"].to_list() == [80, 30]
    assert summarize(result)["notes"] == ["1 range was still open at the end of the capture"]


def test_correlate_refuses_other_things() -> None:
    """A path in place of a profile is a TypeError that says how to get one."""
    with pytest.raises(TypeError, match=r"as returned by annot\.load, got str"):
        correlate("run.sqlite")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("aten::conv2d, seq = 17", "aten::conv2d"),
        ("aten::conv2d, op_id = 4", "aten::conv2d"),
        ("ConvolutionBackward0, seq = 3, op_id = 9, sizes = [[1, 2]], input_op_ids = []", "ConvolutionBackward0"),
        ("seq = 5", "seq = 5"),
        ("step, seq=5th", "step"),
        ("plain text, with a comma", "plain text, with a comma"),
        ("", "(no name)"),
    ],
)
def test_texts_of_others(text: str, layer: str) -> None:
    """A foreign text is a layer by itself, without the numbers that emit_nvtx gives every call."""
    parts = split_suffix(pl.Series([text]))
    role = "operation" if parts["operation"][0] else None
    said = parse_labels(pl.DataFrame({"text": parts["stem"], "role": [role]})).row(0, named=True)
    assert (said["layer"], said["module"]) == (layer, "")


def test_modules(trained: Profile) -> None:
    """By module, layers of one class add up, and what has no class takes no part."""
    rows = by_module(attribute(trained))
    conv = _row(rows, module="Conv2d", phase="backward")
    assert (conv["layers"], conv["calls"], conv["gpu_ns"]) == (1, 2, 2 * 1500 * US)
    assert "" not in rows["module"]


def test_nested_modules_of_one_class_count_once(tmp_path: Path) -> None:
    """Sequential in Sequential: two calls, two layers, the time of the outer one."""
    profile = SqliteProfile()
    profile.layer("net Sequential |fwd", 0, 100)
    profile.layer("net.0 Sequential |fwd", 10, 60)
    row = by_module(attribute(load(profile.write(tmp_path / "x")))).row(0, named=True)
    assert (row["layers"], row["calls"], row["host_ns"], row["host_self_ns"]) == (2, 2, 100, 100)


def test_phases_add_up(trained: Profile) -> None:
    """By phase every nanosecond counts once; what has no phase belongs to the one around it."""
    rows = by_phase(attribute(trained))
    assert rows.select("phase", "calls", "gpu_ns").rows() == [
        ("other", 1, 110 * US),
        ("data", 2, 0),
        ("forward", 2, 2440 * US),
        ("backward", 2, 4260 * US),
        ("optimizer", 2, 160 * US),
        ("(unattributed)", 0, 30 * US),
    ]
    assert rows["host_ns"].sum() == 4400 * US


def test_kernels(trained: Profile) -> None:
    """By kernel, names have their number, total, extremes and how many layers launch them."""
    rows = by_kernel(attribute(trained))
    assert _row(rows, name="gemm") == {
        "name": "gemm", "kernel": True, "calls": 4, "gpu_ns": 1800 * US, "mean_ns": 450 * US,
        "min_ns": 300 * US, "max_ns": 600 * US, "layers": 1,
    }  # fmt: skip
    assert _row(rows, name="(copy HtoD)")["kernel"] is False
    assert rows["gpu_ns"].is_sorted(descending=True)


def test_steps(trained: Profile) -> None:
    """By step: the batch, the wait for its data before it, its phases, and what it launched."""
    steps = by_step(attribute(trained))
    assert steps.drop("process").row(1, named=True) == {
        "step": 1, "batch": 1, "kind": None, "requests": None, "tokens": None, "context": None, "warmup": False,
        "start_ns": 2380 * US, "host_ns": 1970 * US, "step_ns": 2120 * US, "data_ns": 150 * US,
        "forward_ns": 700 * US, "backward_ns": 850 * US, "optimizer_ns": 200 * US, "gpu_ns": 3480 * US,
        "kernels": 7,
    }  # fmt: skip


def test_backward_on_another_thread_belongs_to_its_step(tmp_path: Path) -> None:
    """The autograd thread has no batch range; its ranges count to the step in which they began."""
    profile = SqliteProfile()
    for step in range(2):
        zero = 1000 * step
        profile.layer(f"Batch {step} |step", zero, zero + 900, kind=60)
        profile.layer("Backward |bwd", zero + 100, zero + 400 + step, number=2)
        profile.layer("fc Linear |bwd", zero + 110, zero + 300, number=2)
        profile.call(zero + 120, zero + 130, step + 1, number=2)
        profile.kernel(zero + 990, zero + 1500 + step, step + 1)
    steps = by_step(attribute(load(profile.write(tmp_path / "x"))))
    assert steps.select("backward_ns", "gpu_ns").rows() == [(300, 510), (301, 511)]


def test_totals_of_the_contract(trained: Profile) -> None:
    """The summary has exact totals, the number of steps, and where the profile comes from."""
    meta = summarize(attribute(trained))
    assert meta["source"].endswith("run.sqlite")
    assert meta["producer"] == "NVIDIA Nsight Systems 2023.4.4.54"
    assert (meta["gpu_ns"], meta["attributed_gpu_ns"], meta["unattributed_gpu_ns"]) == (
        7000 * US, 6970 * US, 30 * US,
    )  # fmt: skip
    assert (meta["host_ns"], meta["steps"], meta["step_ns"]["median"]) == (4400 * US, 2, 2120 * US)
    assert meta["notes"] == ["1 kernel or copy with no launch recorded"]


def test_deep_nesting_is_not_quadratic_or_recursive(tmp_path: Path) -> None:
    """5,000 levels of nesting with a launch at the bottom are read, nested and added up; 32 of them have rows."""
    profile = SqliteProfile()
    for level in range(5000):
        profile.range(f"level {level % 7}", level, 20_000 - level)
    profile.call(5000, 5001, 1)
    profile.kernel(6000, 6005, 1)
    rows = correlate(load(profile.write(tmp_path / "x")))
    assert rows["gpu_ns"].to_list() == [5] * 32
    assert rows["host_self_ns"].sum() == 20_000
