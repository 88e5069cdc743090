"""Ranges from events: any nesting of events gives ranges that nest and lead every operation to its scopes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot.read.xplane.host import Event, Kind, Ranges

_NAMES = st.lists(st.sampled_from("ab"), max_size=3).map("/".join)


def _levels(name: str) -> tuple[str, ...]:
    parts = name.split("/") if name else []
    return tuple("/".join(parts[: depth + 1]) for depth in range(len(parts)))


@st.composite
def _threads(draw: st.DrawFn) -> list[Event]:
    """Events that nest, as they are recorded on one thread; several may begin or end together."""
    events: list[Event] = []

    def within(start: int, end: int, depth: int) -> None:
        place = start
        while place <= end and draw(st.integers(0, 3)) and len(events) < 40:
            first = draw(st.integers(place, end))
            last = draw(st.integers(first, end))
            kind = draw(
                st.builds(Kind, st.just("op"), operation=_NAMES, launch=st.booleans())
                | st.builds(Kind, st.sampled_from(["note", "runtime"]), st.sampled_from(["annotation", "operator"]))
            )
            events.append((first, -last, len(events), kind))
            if depth < 4 and not kind.launch:
                within(first, last, depth + 1)
            place = last + 1

    within(0, 60, 0)
    return sorted(events)


def _rows(events: list[Event], *, shares: bool) -> list[tuple[int, int, str, str]]:
    ranges = Ranges(_levels, 10_000)
    ranges.add(7, events, shares=shares)
    return ranges.table().select("start", "end", "text", "role").rows()


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(_threads(), st.booleans())
def test_ranges_nest(events: list[Event], shares: bool) -> None:
    """No two ranges cross, and of two with the same ends the outer has the lower id."""
    rows = _rows(events, shares=shares)
    for place, (start, end, *_) in enumerate(rows):
        for later_start, later_end, *_ in rows[place + 1 :]:
            assert later_end <= end or later_start >= end, "crossing"
            assert (later_start, -later_end) >= (start, -end) or later_start > end


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(_threads(), st.booleans())
def test_operations_lie_in_their_scopes(events: list[Event], shares: bool) -> None:
    """The innermost scope around every operation is its own, and the outer ones are around it too."""
    rows = _rows(events, shares=shares)
    for start, negative_end, _, kind in events:
        if kind.operation:
            inside = [row for row in rows if row[0] <= start and row[1] >= -negative_end and row[3] == "module"]
            levels = _levels(kind.operation)
            assert set(levels) <= {row[2] for row in inside}
            begun = [row for row in inside if (row[0], -row[1]) <= (start, negative_end)]
            assert any(row[2] == levels[-1] for row in begun)


def test_shared_scopes() -> None:
    """Operations that follow each other in one event share the levels they have in common, also over a gap."""
    names = ("m/a", "m/a", "m/b", "m/b")
    kinds = {name: Kind("op", operation=name) for name in names}
    events = [(10 * place, -(10 * place + 4), place, kinds[name]) for place, name in enumerate(names)]
    around: Event = (0, -100, -1, Kind("Process"))
    scopes = [row[:3] for row in _rows(sorted([around, *events]), shares=False) if row[3] == "module"]
    assert scopes == [(0, 34, "m"), (0, 14, "m/a"), (20, 34, "m/b")]
    alone = [row[:3] for row in _rows(events, shares=False) if row[3] == "module"]
    assert len(alone) == 8
    assert [row[:3] for row in _rows(events, shares=True) if row[3] == "module"] == scopes


def test_annotation_ends_sharing() -> None:
    """An annotation between two operations of a layer is not taken into it."""
    kind = Kind("op", operation="m")
    events = [(0, -4, 0, kind), (5, -6, 1, Kind("note", "annotation")), (7, -9, 2, kind)]
    rows = _rows(events, shares=True)
    assert [row[:3] for row in rows if row[3] == "module"] == [(0, 4, "m"), (7, 9, "m")]
    events[1] = (5, -6, 1, Kind("Process"))
    rows = _rows(events, shares=True)
    assert [row[:3] for row in rows if row[3] == "module"] == [(0, 9, "m")]


def test_operation_inside_an_operation() -> None:
    """Scopes that are open around an operation are not opened again inside it."""
    events = [(0, -10, 0, Kind("call", operation="m")), (2, -4, 1, Kind("op", operation="m/a"))]
    scopes = [row[:3] for row in _rows(events, shares=False) if row[3] == "module"]
    assert scopes == [(0, 10, "m"), (2, 4, "m/a")]
