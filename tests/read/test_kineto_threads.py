"""Launches of a real training on a GPU belong to the threads and ranges that plain Python finds by external id."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from shared_data import shared

from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.labels import tag

NAME = "kineto/annot_h100_transformer.json.gz"
ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")


def events(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]


def bounds(event: dict[str, Any]) -> tuple[int, int]:
    start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
    return start, start + length


def test_attribution_agrees_with_external_ids() -> None:
    """Each activity is in the innermost range around its launch, on the thread of the operation with its external id.

    The system thread id of the launches of the backward pass is that of another thread.
    """
    path = shared(NAME)
    spans = events(path)
    operations = {span["args"]["External id"]: span for span in spans if span["cat"] == "cpu_op"}
    calls = {span["args"]["correlation"]: span for span in spans if span["cat"] in ("cuda_runtime", "cuda_driver")}
    threads = {span["tid"] for span in spans if span["cat"] == "cpu_op"}
    assert {call["tid"] for call in calls.values()} - threads, "the trace has the defect"
    ranges = [(*bounds(span), span) for span in operations.values() if tag.parse(span["name"])]
    expected: Counter[tuple[str, str, str]] = Counter()
    for activity in spans:
        if activity["cat"] in ACTIVITIES:
            call = calls[activity["args"]["correlation"]]
            start, end = bounds(call)
            thread = operations[call["args"]["External id"]]["tid"]
            around = [
                (since, -until, span)
                for since, until, span in ranges
                if span["tid"] == thread and since <= start and end <= until
            ]
            parsed = tag.parse(max(around, key=lambda row: row[:2])[2]["name"])
            assert parsed is not None
            begin, stop = bounds(activity)
            expected[parsed.layer, parsed.module, parsed.phase] += stop - begin
    attribution = attribute(load(path))
    layers = by_layer(attribution).filter(pl.col("gpu_self_ns") > 0, pl.col("phase").is_in(["forward", "backward"]))
    times = {tuple(key): ns for *key, ns in layers.select("layer", "module", "phase", "gpu_self_ns").iter_rows()}
    assert times == {key: ns for key, ns in expected.items() if key[-1] in ("forward", "backward")}
    assert attribution.nodes["gpu_by_time_ns"].sum() == 0
    assert attribution.forest.crossing.is_empty()
