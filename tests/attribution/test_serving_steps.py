"""Steps of serving engines: told apart by kind and size, and never averaged together."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from shared_data import shared
from tables import Rows

import annot
from annot.analyze.comparison.comparable import comparability
from annot.analyze.comparison.digest import digest
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.attribution.summary import by_step, summarize
from annot.cli.main import main
from annot.profile import Profile
from annot.runs.run import Run, correlate
from annot.runs.selection import Selection

TEXTS = {
    "decode": "step[DECODE bs={}]", "prefill": "step[EXTEND bs=1 toks={}]",
    "mixed": "[Executor] _forward_step 7: 1 ctx reqs, {} ctx tokens, 3 gen reqs",
}  # fmt: skip
LENGTHS = {"decode": 10, "prefill": 90, "mixed": 40}
LAYER = "attn Attention |fwd"


def served(*steps: tuple[str, int]) -> Profile:
    """Steps of a kind and a size, 200 ns apart, each with a kernel of its length plus its size, and one after it."""
    rows = Rows()
    for number, (kind, size) in enumerate(steps):
        start, length = 200 * number, LENGTHS[kind]
        rows.range(TEXTS[kind].format(size), start, start + length).range(LAYER, start + 1, start + length - 1)
        rows.kernel(start + 2, (start, start + length + size)).kernel(start + length + 5, (start, start + 1))
    return rows.build(source="served")


MANY = served(*[("prefill", 64)] * 2, *[("decode", 8)] * 3, ("mixed", 5), ("decode", 9), ("prefill", 32))


def test_by_step() -> None:
    steps = by_step(attribute(MANY))
    assert steps["kind"].to_list() == ["prefill"] * 2 + ["decode"] * 3 + ["mixed", "decode", "prefill"]
    assert steps["requests"].to_list() == [1, 1, 8, 8, 8, 4, 9, 1]
    assert steps["tokens"].to_list() == [64, 64, 8, 8, 8, 8, 9, 32]
    assert steps["context"].null_count() == 8
    assert not steps["warmup"].any()


def test_a_step_lasts_until_the_next() -> None:
    """What an engine launches between two steps, such as sampling, belongs to the earlier one."""
    steps = by_step(attribute(MANY))
    assert steps["host_ns"].to_list() == [200] * 7 + [LENGTHS["prefill"]]
    assert steps["kernels"].to_list() == [2] * 7 + [1]


def test_the_last_step_of_a_process_ends_with_its_range() -> None:
    rows = Rows()
    for start, thread in ((0, 101), (20, 101), (100, 201)):
        rows.range("step[DECODE bs=8]", start, start + 10, thread)
    assert by_step(attribute(rows.build()))["host_ns"].to_list() == [20, 10, 10]


@given(st.lists(st.tuples(st.sampled_from(sorted(TEXTS)), st.integers(1, 60)), min_size=1, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_means_are_of_one_kind(steps: list[tuple[str, int]]) -> None:
    """The table of layers is the mean of the most frequent kind, or of the selected one, counted one by one."""
    profile, counts = served(*steps), Counter(kind for kind, _ in steps)
    for kind in (None, *counts):
        run = Run(profile, Selection(step_kind=kind))
        report = run.view("layer")
        main = report.meta["step_kind"]
        assert counts[main] == max(counts.values()) if kind is None else main == kind
        sizes = [size for of, size in steps if of == main]
        row = report.rows.filter(pl.col("layer") == "attn").to_dicts()[0]
        assert row["gpu_ns"] == pytest.approx(LENGTHS[main] + sum(sizes) / len(sizes))
        assert report.meta["per_step"] == len(sizes)
        others = [one["layer"] for one in report.rows.to_dicts() if one["layer"].endswith(" step")]
        assert others == [f"{main} step"]
        assert report.meta["step_kinds"][0]["steps"] == max(counts.values())
        assert {one["kind"]: one["steps"] for one in report.meta["step_kinds"]} == counts


def test_statistics_are_of_one_kind() -> None:
    """The median is that of the most frequent kind; the note names the other kinds with number and median."""
    meta = summarize(attribute(MANY))
    assert (meta["steps"], meta["step_kind"]) == (8, "decode")
    assert (meta["step_ns"]["median"], meta["step_ns"]["min"]) == (200, 200)
    lengths = {"prefill": [200, 200, 90], "decode": [200] * 4, "mixed": [200]}
    assert meta["step_kinds"] == [
        {"kind": kind, "steps": len(lengths[kind]), "median_ns": statistics.median(lengths[kind])}
        for kind in ("decode", "prefill", "mixed")
    ]
    assert meta["notes"][0] == (
        "The steps are of several kinds: 4 decode (median 200 ns), 3 prefill (median 200 ns), 1 mixed (median 200 ns). "
        "Step times are those of decode steps."
    )


@pytest.mark.parametrize("kinds", [("decode", "prefill"), ("prefill", "decode")])
def test_the_longer_of_equally_frequent_kinds_counts(kinds: tuple[str, str]) -> None:
    """The last step of `served` is the shortest, so the other kind takes longer in total."""
    found = attribute(served(*[(kind, 8) for kind in kinds * 2]), steps="steady")
    assert summarize(found)["step_kind"] == kinds[0]
    assert found.of_steps is not None
    assert by_step(found.of_steps(slice(1, 3)))["kind"].to_list() == [kinds[0]]


def test_long_first_steps_are_no_warm_up() -> None:
    """The time of a step follows its size, so that a long one is measured like the others of its kind."""
    rows = Rows().range("step[EXTEND bs=1 toks=64]", 0, 900)
    for start, end in ((900, 1200), (1200, 1210), (1210, 1220), (1220, 1230)):
        rows.range("step[DECODE bs=8]", start, end).kernel(start + 1, (start + 1, start + 4))
    found = attribute(rows.build(), steps="steady")
    assert by_step(found).select("kind", "warmup").rows() == [("decode", False)] * 4
    assert by_layer(found)["gpu_ns"].to_list() == [12]


def test_numbers_of_steps_stay() -> None:
    """Steps keep their numbers, and --steps selects among those of the kind."""
    rows = by_step(attribute(MANY, step_kind="decode"))
    assert rows["step"].to_list() == [2, 3, 4, 6]
    some = attribute(MANY, step_kind="decode", steps=slice(3, 7))
    assert by_step(some)["step"].to_list() == [3, 4, 6]
    assert by_layer(some).filter(pl.col("layer") == "attn")["calls"].to_list() == [3]


def test_public_functions() -> None:
    """Each way to open a profile selects a kind."""
    expected = [3 * LENGTHS["prefill"] + 64 + 64 + 32]
    layer = pl.col("layer") == "attn"
    assert correlate(MANY, step_kind="prefill").filter(layer)["gpu_ns"].to_list() == expected
    assert annot.open(MANY, step_kind="prefill").layers.filter(layer)["gpu_ns"].to_list() == expected
    assert annot.layers(MANY, step_kind="prefill").table.filter(layer)["gpu_ns"].to_list() == expected


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (MANY, "served has no verify steps, only decode, prefill, mixed"),
        (Rows().range("step 1", 0, 9).range("step 2", 9, 18).build(source="t"), "t has no verify steps, because the "),
    ],
)
def test_unknown_kind(profile: Profile, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attribute(profile, step_kind="verify")


def test_different_kinds_are_not_comparable() -> None:
    """Steps of another kind are another program."""
    a, b = (attribute(served((kind, 8), (kind, 8))) for kind in ("decode", "prefill"))
    reasons = [reason.text for reason in comparability([digest(a)], [digest(b)]).reasons if reason.kind == "steps"]
    assert reasons == ["the kinds of the steps differ: decode and prefill"]
    assert not [reason for reason in comparability([digest(a)], [digest(a)]).reasons if reason.kind == "steps"]


def test_nested_ranges_of_one_step() -> None:
    """The outer range is the step: TraceLens adds it around SGLang's, with the length of the context."""
    outer = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk99sqsq32sqsk99)"
    rows = Rows().range(outer, 0, 50).range("step[DECODE bs=32]", 1, 49).kernel(5, (5, 9))
    steps = by_step(attribute(rows.build()))
    assert steps.select("kind", "requests", "context", "kernels").rows() == [("decode", 32, 99, 1)]


@pytest.mark.parametrize(
    ("name", "context"), [("sglang_decode/execution", 32785), ("vllm_decode_full/execution", 55086)]
)
def test_real_traces(name: str, context: int) -> None:
    """The step of a real trace has its kind and size, and all of its GPU time."""
    found = attribute(annot.load(shared(f"kineto/graph_pairs/{name}.json.gz")))
    step: dict[str, Any] = by_step(found).to_dicts()[0]
    assert (step["kind"], step["requests"], step["tokens"], step["context"]) == ("decode", 32, 32, context)
    assert step["gpu_ns"] == summarize(found)["gpu_ns"]


@pytest.mark.slow
def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The heading names the kind; the table by step shows kind and size."""
    path = str(shared("kineto/graph_pairs/vllm_decode_full/execution.json.gz"))
    assert main(["report", path, "--step-kind", "decode", "--all"]) == 0
    out = capsys.readouterr().out
    assert "GPU in one decode step" in out
    assert "per decode step" in out
    assert main(["report", path, "--by", "step"]) == 0
    out = capsys.readouterr().out
    assert [word for word in ("decode", "55,086", "Requests", "Context") if word not in out] == []
    assert main(["report", path, "--step-kind", "prefill"]) == 1
    assert capsys.readouterr().err.strip().endswith("has no prefill steps, only decode")
