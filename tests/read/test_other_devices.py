"""Traces of devices whose events annot does not read: what is skipped is said, and nothing runs on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annot import load
from annot.analyze.advice import Facts, advise
from annot.analyze.verdict import verdict
from annot.attribution.attribute import attribute


def _trace(folder: Path, *events: dict[str, Any]) -> Facts:
    """A trace of a forward pass and of further events."""
    net = {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000, "pid": 7, "tid": 7}
    layer = {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 900, "pid": 7, "tid": 7}
    (folder / "trace.json").write_text(
        json.dumps({"traceEvents": [{"ph": "X", "ts": 100, "dur": 50, **one} for one in (net, layer, *events)]})
    )
    return Facts(attribute(load(folder / "trace.json")))


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        (("mtia_ccp_events", "mtia_insight"), "on MTIA: annot does not support this device and skipped its 2 events"),
        (("hpu_op",), "on HPU: annot does not support this device and skipped its 1 event,"),
        (("foo_runtime", "foo_stuff"), "on FOO: annot does not support this device and skipped its 1 event,"),
    ],
)
def test_unknown_devices_are_named(categories: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """The verdict names the device and counts its events; no advice is about a CPU."""
    events = [{"cat": category, "name": "job", "pid": 0, "tid": 3} for category in categories]
    facts = _trace(tmp_path, *events, {"cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7})
    assert words in verdict(facts)
    assert "CPU" not in verdict(facts)
    assert advise(facts.attribution, facts) == []


def test_other_categories_are_no_device(tmp_path: Path) -> None:
    """A category of the user is skipped and counted, and the run is on a CPU."""
    facts = _trace(tmp_path, {"cat": "my_category", "name": "x", "pid": 7, "tid": 7})
    assert facts.other_devices == {}
    assert " on CPU" in verdict(facts)
    assert facts.attribution.meta["notes"] == ["annot skipped 1 event of unsupported categories (my_category)."]


def test_kernels_of_any_device_are_gpu_activities(tmp_path: Path) -> None:
    """PrivateUse1 and XPU write their kernels and copies in the general categories of Kineto."""
    call = {"cat": "privateuse1_runtime", "name": "Launch", "ts": 20, "dur": 5, "pid": 7, "tid": 7}
    kernel = {"cat": "kernel", "name": "matmul", "pid": 0, "tid": 3, "args": {"correlation": 5, "device": 0}}
    facts = _trace(tmp_path, {**call, "args": {"correlation": 5}}, kernel)
    assert facts.on_device
    assert "the GPU idles" in verdict(facts)
