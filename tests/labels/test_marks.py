"""Texts of annot's marks: they are read as they were written, and other texts are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annot.labels import tag
from annot.labels.marks import (
    cpu_model,
    format_cpu,
    format_loader,
    format_machine,
    format_memory,
    format_rank,
    format_scope,
    format_source,
    format_work,
    parse_cpu,
    parse_loader,
    parse_machine,
    parse_memory,
    parse_rank,
    parse_scope,
    parse_source,
    parse_work,
)


def test_a_rank_is_below_the_number_of_ranks() -> None:
    assert parse_rank(format_rank(0, 1)) == (0, 1)
    assert parse_rank(format_rank(7, 8)) == (7, 8)
    assert parse_rank(format_rank(8, 8)) is None
    assert parse_rank("Rank 03 of 8") is None
    assert parse_rank("Rank 3 of 8 nodes") is None


def test_facts_of_a_process_may_be_missing() -> None:
    facts: dict[str, int | str] = {"threads": 2, "cores": 4, "ranks": 1, "backend": "8"}
    assert parse_cpu(format_cpu(facts)) == facts
    assert parse_cpu(format_cpu({})) == {}
    assert parse_cpu("CPU cores=4 threads=2") is None


@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_facts_of_a_loader_are_numbers(flags: tuple[bool, bool]) -> None:
    text = format_loader(workers=3, persistent=flags[0], pinned=flags[1])
    assert parse_loader(text) == {"workers": 3, "persistent": int(flags[0]), "pinned": int(flags[1])}
    assert parse_loader("Loader workers=3") is None


def test_a_loader_names_a_dataset_with_a_source() -> None:
    facts: dict[str, int | str] = {"workers": 0, "persistent": 0, "pinned": 0}
    named = format_loader(workers=0, persistent=False, pinned=False, dataset="Photos", source="a b.py:12")
    assert parse_loader(named) == facts | {"dataset": "Photos", "source": "a b.py:12"}
    for dataset, source in (("Photos", ""), ("My photos", "a.py:12")):
        text = format_loader(workers=0, persistent=False, pinned=False, dataset=dataset, source=source)
        assert parse_loader(text) == facts


def test_versions_of_a_machine_may_be_missing() -> None:
    facts = {"PyTorch": "2.9.0+cpu", "TensorFlow": "2.21.0", "Python": "3.11.2", "annot": "0.1.0", "CPU": "AMD EPYC"}
    assert parse_machine(format_machine(facts)) == facts
    assert parse_machine(format_machine({"Python": "3.11.2"})) == {"Python": "3.11.2"}
    assert parse_machine("Machine learning") is None


def test_the_model_of_a_cpu_has_at_most_100_characters() -> None:
    assert cpu_model("a" * 100) == "a" * 100
    assert cpu_model("a" * 101) == "a" * 100
    assert cpu_model(" AMD \t EPYC\n") == "AMD EPYC"


def test_memory_has_a_figure_and_a_source() -> None:
    assert parse_memory(format_memory("peak", "cuda:12")) == ("peak", "cuda:12")
    assert parse_memory("memory peak |cuda:") is None
    with pytest.raises(ValueError, match="do not support 'change' of 'tpu'"):
        format_memory("change", "tpu")


def test_a_source_has_a_line() -> None:
    assert parse_source(format_source("Block", "a = b.py:12")) == ("Block", "a = b.py:12")
    assert parse_source("Source Block = model.py") is None
    with pytest.raises(ValueError, match="do not support 'My Block'"):
        format_source("My Block", "model.py:12")


def test_a_scope_has_the_forward_range_of_its_layer() -> None:
    layer = tag.Tag("net/fc", "Dense", phase="backward")
    assert parse_scope(format_scope("net_1/fc", layer)) == ("net_1/fc", tag.Tag("net/fc", "Dense", phase="forward"))
    assert parse_scope("Scope net = not a label") is None
    with pytest.raises(ValueError, match="'' is not a name scope"):
        format_scope("", layer)


_CALL = "0 Net mylib::scale [2,3]f32 |op"
_sizes = st.integers(0, 10**18 - 1)


@given(_sizes, _sizes, _sizes)
def test_work_has_the_range_of_its_operator(flops: int, read: int, written: int) -> None:
    assert parse_work(format_work(_CALL, flops, read, written)) == (_CALL, flops, read, written)


@pytest.mark.parametrize(("text", "flops"), [("0 Linear [2,3]f32 |fwd", 1), ("scale", 1), (_CALL, -1), (_CALL, 10**18)])
def test_other_work_has_no_mark(text: str, flops: int) -> None:
    with pytest.raises(ValueError, match="work marks do not support"):
        format_work(text, flops, 0, 0)


@given(st.integers(0, 70), st.integers(0, 5), st.text(max_size=5))
def test_damaged_work_is_none_or_that_of_an_operator(start: int, length: int, patch: str) -> None:
    mark = format_work(_CALL, 48, 24, 24)
    work = parse_work(mark[:start] + patch + mark[start + length :])
    if work is not None:
        parsed = tag.parse(work[0])
        assert parsed is not None
        assert parsed.phase == "op"
        assert all(0 <= number < 10**18 for number in work[1:])
