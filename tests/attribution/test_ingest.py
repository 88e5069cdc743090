"""Labels of range texts, ranges in blocks, and the time of children that run at the same time."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import ranges_of
from tables import ENGINE, Rows

from annot.attribution.attribute import attribute
from annot.attribution.ingest import IngestedRanges, are_shared, overlap, parse_labels
from annot.attribution.layer_tables import by_layer


def label(text: str | None, role: str | None = None, domain: str = "", call: str | None = None) -> dict[str, Any]:
    """What is set in the label of a text."""
    texts = pl.DataFrame(
        {"text": [text], "role": [role], "domain": [domain], "call": [call]},
        schema_overrides={"role": pl.String, "call": pl.String},
    )
    (row,) = parse_labels(texts).rows(named=True)
    usual = {"module": "", "phase": "other", "shapes": None, "number": None, "loop": False, "layered": False,
             "role": "annotation", "plain": False, "around": None}  # fmt: skip
    return {name: value for name, value in row.items() if name == "layer" or value != usual[name]}


FORWARD = {"phase": "forward", "layered": True}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("fc Linear [4,8]f32 |fwd",), {"layer": "fc", "module": "Linear", "shapes": "[4,8]f32", **FORWARD}),
        (("Forward Net |fwd",), {"layer": "", "module": "Net", **FORWARD}),
        (("fc Linear |re",), {"layer": "fc", "module": "Linear", "phase": "recompute", "layered": True}),
        (("Backward |bwd",), {"layer": "", "phase": "backward"}),
        (("Optimizer SGD |opt",), {"layer": "", "module": "SGD", "phase": "optimizer"}),
        (("Epoch 3 |epoch",), {"layer": "(epoch)", "number": 3, "loop": True}),
        (("Batch 12 |step",), {"layer": "(batch)", "number": 12, "loop": True}),
        ((f"Batch {2**63 - 1} |step",), {"layer": "(batch)", "number": 2**63 - 1, "loop": True}),
        ((f"Batch {2**63} |step",), {"layer": "(batch)", "loop": True}),
        (("Batch validate 1 |step",), {"layer": "(batch)", "module": "validate", "number": 1, "loop": True}),
        (("Data |data",), {"layer": "(data)", "phase": "data"}),
        (("aten mm [2,3]f32 |op",), {"layer": "mm", "role": "operator", "shapes": "[2,3]f32"}),
        (("train",), {"layer": "train", "plain": True}),
        (("forward",), {"layer": "forward", "phase": "forward", "plain": True}),
        (("",), {"layer": "(no name)", "plain": True}),
        ((None,), {"layer": "(no name)", "plain": True}),
        (("aten::mm", "operator"), {"layer": "aten::mm", "role": "operator"}),
        (("", "operator"), {"layer": "(no name)", "role": "operator"}),
        (
            ("aten::mm", "operator", "", "aten mm [2,3]f32 |op"),
            {"layer": "aten::mm", "role": "operator", "shapes": "[2,3]f32"},
        ),
        (("aten::mm", "operator", "", "fc Linear [2,3]f32 |fwd"), {"layer": "aten::mm", "role": "operator"}),
        (("aten::mm", "operator", "", "?"), {"layer": "aten::mm", "role": "operator"}),
        (
            ("autograd::engine::evaluate_function: MmBackward0", "backward"),
            {"layer": "MmBackward0", "phase": "backward", "role": "backward"},
        ),
        (("Net_0", "module"), {"layer": "Net_0", "layered": True}),
        (("", "module"), {"layer": "(no name)", "layered": True}),
        (("aten::mm",), {"layer": "aten::mm", "role": "operator"}),
        (("x", None, "Forward"), {"layer": "x", **FORWARD}),
        (("", None, "Forward"), {"layer": "(no name)", **FORWARD}),
        (("x", "annotation", "Forward"), {"layer": "x", "plain": True}),
        (("x", None, "other"), {"layer": "x", "plain": True}),
        (("net/a/MatMul",), {"layer": "net/a/MatMul", "plain": True}),
        (("MatMul:MatMul", None, "TSL"), {"layer": "MatMul", "role": "operator"}),
        (("MatMul:MatMul#id=1#", None, "TSL"), {"layer": "MatMul", "role": "operator"}),
        (("MatMul:MatMul", None, ""), {"layer": "MatMul:MatMul", "plain": True}),
        (("MatMul:MatMul", "annotation", "TSL"), {"layer": "MatMul:MatMul", "plain": True}),
        (("IteratorGetNext:IteratorGetNext", None, "TSL"), {"layer": "(data)", "phase": "data"}),
    ],
)
def test_labels(arguments: tuple[Any, ...], expected: dict[str, Any]) -> None:
    assert label(*arguments) == expected


def row(**columns: Any) -> dict[str, Any]:
    return {
        "id": 0,
        "process": 1,
        "thread": 101,
        "text": "x",
        "kind": "push",
        "domain": "annot",
        "start": 0,
        "end": 9,
    } | columns


SCHEMA = {
    "thread": pl.Int64,
    "forward_thread": pl.Int64,
    "end_thread": pl.Int64,
    "end": pl.Int64,
    "sequence": pl.Int64,
    "role": pl.String,
    "call": pl.String,
}


def block(*rows: dict[str, Any]) -> pl.DataFrame:
    names = {name for columns in rows for name in columns}
    return pl.DataFrame(
        [*rows],
        schema_overrides={name: kind for name, kind in SCHEMA.items() if name in names},
        infer_schema_length=None,
    )


def ingested(*blocks: pl.DataFrame, last: int = 50) -> list[dict[str, Any]]:
    """The ranges with the text of their label instead of its number."""
    ranges = IngestedRanges()
    for rows in blocks:
        ranges.add(rows)
    labels = ranges.labels()
    table = ranges.pop_ranges(last)
    return table.with_columns(labels["text"].gather(table["label"]).alias("label")).rows(named=True)


def test_ranges_of_blocks_with_different_columns() -> None:
    rows = ingested(
        block(row(id=5, end=None), row(id=2, thread=102, kind="start", end=-3)),
        block(row(id=3, text="MmBackward0, seq = 7", domain="", end_thread=102, kind=None)),
        block(
            row(id=4, text="aten::mm", role="operator", sequence=8, forward_thread=102),
            row(id=6, domain=None, end_thread=None, start=60, end=None),
        ),
    )
    columns = ("id", "thread", "start", "end", "label", "foreign", "started", "ours", "sequence", "forward_thread")
    assert [tuple(values[name] for name in columns) for values in rows] == [
        (2, 1, 0, 0, "x", False, True, True, None, -1),
        (3, 0, 0, 9, "MmBackward0", True, False, False, 7, -1),
        (4, 0, 0, 9, "aten::mm", False, False, True, 8, 1),
        (5, 0, 0, 50, "x", False, False, True, None, -1),
        (6, 0, 60, 60, "x", False, False, False, None, -1),
    ]
    assert ingested() == []


def test_texts_are_told_apart_by_domain_role_and_call() -> None:
    """Equal ones are one label, also in two blocks, and null is a value of its own."""
    variants = [
        row(text=text, domain=domain, role=role, call=call)
        for text in ("x", "y", None) for domain in ("a", "b", None) for role in ("module", "operator", None)
        for call in ("c 1", "c 2", None)
    ]  # fmt: skip
    ranges = IngestedRanges()
    for rows in (variants, variants[::-1], variants[3:9]):
        ranges.add(block(*rows))
    table = ranges.pop_ranges(0)["label"].to_list()
    count = len(variants)
    assert (len(set(table)), table[count : 2 * count], table[2 * count :]) == (count, table[:count][::-1], table[3:9])
    labels = ranges.labels().rows(named=True)
    for columns, number in zip(variants, table, strict=False):
        assert (labels[number]["text"], labels[number]["call"]) == (columns["text"] or "", columns["call"])
        assert labels[number]["domain"] == (columns["domain"] or "")


def shared_rows(rows: Rows) -> list[str]:
    """The texts of the ranges of processes."""
    forest = attribute(rows.build()).forest
    return forest.labels["text"].gather(forest.tree["label"].slice(forest.thread_range_count)).to_list()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, 2),
        ({"domain": ""}, {"domain": ""}, 0),  # other domains
        ({"domain": "Forward"}, {"domain": "Forward"}, 2),
        ({"kind": "push"}, {}, 0),
        ({"text": "x"}, {}, 0),
        ({"text": "Optimizer SGD |opt"}, {}, 2),
        ({"text": "Batch 0 |step"}, {}, 0),
        ({"thread": ENGINE}, {}, 0),
        ({"thread": ENGINE, "end_thread": 101}, {}, 2),
        ({"end_thread": ENGINE, "thread": 201}, {}, 1),
        ({"end": 5}, {}, 0),  # they touch
    ],
)
def test_ranges_that_belong_to_a_process(first: dict[str, Any], second: dict[str, Any], expected: int) -> None:
    """Started ranges of layers and phases, if one of the process and domain ends elsewhere or crosses another."""
    rows = Rows()
    for columns, start in ((first, 0), (second, 5)):
        more = {"text": "a Linear |fwd", "domain": "annot", "kind": "start", "end": start + 10} | columns
        rows.range(start=start, **more)
    assert len(shared_rows(rows)) == expected


def test_ranges_around_those_of_processes() -> None:
    """The innermost loop or plain range of a thread, except TensorFlow's own, of the same process."""
    started = {"domain": "annot", "kind": "start"}
    rows = Rows().range("Batch 0 |step", 0, 100).range("y", 2, 90, ENGINE, domain="TSL").range("z Linear |fwd", 3, 80)
    rows.range("plain", 20, 70, ENGINE).range("other", 21, 60, 201).range("aten::x", 25, 60, role="operator")
    rows.range("a Linear |fwd", 5, 15, **started).range("a Linear |fwd", 10, 18, **started)
    rows.range("a Linear |fwd", 30, 40, 103, **started).range("b Linear |fwd", 110, 120, **started)
    table = ranges_of(attribute(rows.build()))
    parents = {row["start"]: row["parent"] for row in table.rows(named=True) if row["domain"] == "annot"}
    texts = {start: None if parent is None else table["text"][parent] for start, parent in parents.items()}
    assert texts == {5: "Batch 0 |step", 10: "Batch 0 |step", 30: "plain", 110: None}


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 12), st.integers(0, 8)), max_size=9), st.integers(0, 9))
def test_time_in_which_children_run_at_once_by_brute_force(rows: list[tuple[int, int, int]], threads: int) -> None:
    """Children that are ranges of processes. The time counts once less than there are children."""
    rows = [(min(parent, number - 1), start, start + length) for number, (parent, start, length) in enumerate(rows)]
    threads = min(threads, len(rows))
    tree = pl.DataFrame(rows, schema={"parent": pl.Int32, "start": pl.Int64, "end": pl.Int64}, orient="row")
    shared = {parent for parent, _, _ in rows[threads:]}
    expected = {}
    for around in range(len(rows)):
        children = [(start, end) for parent, start, end in rows if parent == around]
        union = {at for start, end in children for at in range(start, end)}
        again = sum(end - start for start, end in children) - len(union)
        if around in shared and again:
            expected[around] = again
    assert dict(overlap(tree, threads).iter_rows()) == expected


def test_no_ranges_of_processes_without_started_ranges() -> None:
    forest = attribute(Rows().range("a Linear |fwd", 0, 5).range("a Linear |fwd", 2, 9).build()).forest
    ranges = pl.DataFrame({"started": [False]})
    assert are_shared(ranges, forest.labels, forest.threads) is None
    assert by_layer(attribute(Rows().build())).is_empty()
