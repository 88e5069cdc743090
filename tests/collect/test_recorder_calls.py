"""What the recorder makes of each NVTX call, seen in the profile it ends in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from recorded import Row, record_client, run


def _named(rows: list[Row]) -> dict[str | None, Row]:
    return {row.text: row for row in rows}


def test_push_and_pop_nest(tmp_path: Path) -> None:
    """Pops end the range that was pushed last, and calls return the depth."""
    calls = ("push-a", "outer", "push-a", "first", "pop-default", "push-a", "second", "pop-default", "pop-default")
    rows, recording = record_client(tmp_path, *calls)
    outer, first, second = rows
    assert [row.text for row in rows] == ["outer", "first", "second"]
    assert {row.kind for row in rows} == {"push"}
    assert outer.start <= first.start <= first.end <= second.start <= second.end <= outer.end
    assert run(tmp_path / "other", *calls).stdout.split() == ["0", "1", "1", "1", "1", "0"]
    assert (recording.ranges, recording.open_ranges, recording.unmatched_pops) == (3, 0, 0)


def test_domains_nest_independently(tmp_path: Path) -> None:
    """A pop ends a range of its own domain, whatever was pushed in others meanwhile."""
    pops = ("domain", "a", "pop", "domain", "b", "pop")
    rows, _ = record_client(tmp_path, "domain", "a", "push", "in a", "domain", "b", "push", "in b", *pops)
    named = _named(rows)
    assert (named["in a"].domain, named["in b"].domain) == ("a", "b")
    assert named["in a"].start < named["in b"].start < named["in a"].end < named["in b"].end


def test_same_domain_twice_is_one(tmp_path: Path) -> None:
    """Creating a domain again gives the first one: its ranges nest together, and it has one row."""
    rows, _ = record_client(tmp_path, "domain", "a", "push", "x", "domain", "b", "domain-w", "a", "pop")
    assert [row.text for row in rows if row.kind == "domain"] == ["a", "b"]
    assert _named(rows)["x"].end is not None


def test_every_form_in_the_default_domain(tmp_path: Path) -> None:
    """Plain, wide and extended forms of marks, pushes and starts are all recorded."""
    words = [word for form in ("a", "w", "ex") for word in (f"push-{form}", f"push {form} é层", "pop-default")]
    words += [word for form in ("a", "w", "ex") for word in (f"start-{form}", f"start {form} é层")]
    words += [word for form in ("a", "w", "ex") for word in (f"mark-{form}", f"mark {form} é层")]
    rows, recording = record_client(tmp_path, *words)
    assert [(row.kind, row.text) for row in rows] == [
        (kind, f"{kind} {form} é层") for kind in ("push", "start", "mark") for form in ("a", "w", "ex")
    ]
    assert all(row.end is None for row in rows if row.kind == "mark")
    assert all(row.end >= row.start for row in rows if row.kind != "mark")
    assert (recording.ranges, recording.marks, recording.events) == (6, 3, 9)


@pytest.mark.parametrize("form", ["push", "push-wide", "push-registered", "push-registered-w"])
def test_texts(tmp_path: Path, form: str) -> None:
    """Empty, non-ASCII and long texts, registered or not, arrive as they were."""
    texts = ["", "ascii", "é", "层 🔥", "x" * 30, "y" * 31, "z" * 32, "層" * 700, 'it\'s "quoted"\n\ttoo']
    rows, _ = record_client(tmp_path, "domain", "d", *[word for text in texts for word in (form, text, "pop")])
    assert [row.text for row in rows if row.kind == "push"] == texts


def test_text_without_end_is_cut(tmp_path: Path) -> None:
    """A text of any length costs at most 64 KiB, and the events after it are there."""
    rows, recording = record_client(tmp_path, "push-long", 1_000_000, "push-a", "next", "pop-default", "pop-default")
    assert (rows[0].text, rows[1].text, recording.lost) == ("x" * 65535, "next", 0)


def test_broken_text_and_handle(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 have marks in their place; a handle that the recorder never gave is said to be lost."""
    latin = b"caf\xe9".decode("utf-8", "surrogateescape")
    rows, _ = record_client(tmp_path, "push", latin, "push-bad-handle", "pop", "pop")
    assert [row.text for row in rows] == ["caf�", "(name lost)"]


def test_start_and_end(tmp_path: Path) -> None:
    """Start/end ranges may overlap, may end on another thread, and have ids of their own."""
    rows, _ = record_client(
        tmp_path, "domain", "d", "start", "first", "start", "second", "end", 0, "end-elsewhere", 1, "push", "x", "pop"
    )
    named = _named(rows)
    first, second = named["first"], named["second"]
    assert first.start < second.start < first.end < second.end
    assert (first.kind, first.domain, second.kind) == ("start", "d", "start")
    assert first.end_thread is None
    assert second.end_thread not in (None, second.thread)
    assert second.end_thread >> 24 == second.thread >> 24
    assert first.range != second.range
    assert named["x"].range is None


PAYLOADS = [
    (1, "uint64Value", 2**64 - 1, -1),
    (1, "uint64Value", 7, 7),
    (2, "int64Value", -(2**63), -(2**63)),
    (3, "doubleValue", 2.5, 2.5),
    (3, "doubleValue", -1e300, -1e300),
    (4, "uint32Value", 2**32 - 1, 2**32 - 1),
    (5, "int32Value", -(2**31), -(2**31)),
    (5, "int32Value", 7, 7),
    (6, "floatValue", 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
]


@pytest.mark.parametrize("form", ["push", "start", "mark"])
def test_payloads(tmp_path: Path, form: str) -> None:
    """Each simple payload lands in its column, as Nsight stores it, and in no other."""
    words = [word for type_, _, value, _ in PAYLOADS for word in ("payload", type_, value, form, "x")]
    rows, _ = record_client(tmp_path, *words, "payload", 0, 0, form, "none")
    assert [row.payload for row in rows if row.text == "x"] == [{column: stored} for _, column, _, stored in PAYLOADS]
    assert _named(rows)["none"].payload == {}


def test_categories_and_colours(tmp_path: Path) -> None:
    """Numbers of categories and colours go with each event; names of categories are rows of their domain."""
    rows, _ = record_client(
        tmp_path, "domain", "d", "name-category", 3, "forward", "category", 3, "color", "FF4C9F38", "push", "x", "pop",
        "category", 0, "color", 0, "push", "y", "pop", "name-category-w", 4, "层",
    )  # fmt: skip
    named = _named(rows)
    assert (named["x"].category, named["x"].color) == (3, 0xFF4C9F38)
    assert (named["y"].category, named["y"].color) == (None, 0)
    assert (named["forward"].kind, named["forward"].category, named["forward"].domain) == ("category", 3, "d")
    assert (named["层"].category, named["层"].domain) == (4, "0")


def test_no_colour(tmp_path: Path) -> None:
    """An event that was given no colour has none."""
    rows, _ = record_client(tmp_path, "push-a", "x", "pop-default")
    assert rows[0].color is None


def test_thread_and_domain_life(tmp_path: Path) -> None:
    """Naming a thread, and creating and destroying a domain, are rows as Nsight has them."""
    rows, _ = record_client(tmp_path, "name-thread", "loader", "domain", "d", "push", "x", "pop", "destroy")
    assert [(row.kind, row.text) for row in rows] == [
        ("thread", "loader"), ("domain", "d"), ("push", "x"), ("domain end", None),
    ]  # fmt: skip
    assert len({row.thread for row in rows}) == 1


def test_open_and_unmatched(tmp_path: Path) -> None:
    """A range without end ends with the recording; an end without range is counted; both leave the others alone."""
    rows, recording = record_client(
        tmp_path, "pop-default", "push-a", "open", "start", "also open", "push-a", "x", "pop-default", "end", 5
    )
    named = _named(rows)
    assert (recording.open_ranges, recording.unmatched_pops) == (2, 2)
    assert named["open"].end == named["also open"].end >= named["x"].end
    assert recording.notes == ["The recording contains 2 range ends without a start, which was lost or not recorded."]


def test_unmatched_pop_returns_an_error(tmp_path: Path) -> None:
    """A pop without push returns NVTX's negative number, and the next push starts at depth 0 again."""
    assert run(tmp_path / "parts", "pop-default", "push-a", "x", "pop-default").stdout.split() == ["-2", "0", "0"]
