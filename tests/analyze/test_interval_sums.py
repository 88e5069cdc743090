"""Sums of the events that a sampled timeline leaves out."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from tables import busy_steps, many_kernels

from annot.analyze.timeline import Timeline, timeline
from annot.attribution.attribute import attribute


def _by_cell(found: Timeline, bounds: list[int], lane: int) -> Counter[tuple[int, int, str]]:
    """The time by cell, key and text of the events of a lane, counted ns by ns."""
    sums: Counter[tuple[int, int, str]] = Counter()
    for row in found.events.filter(lane=lane).iter_rows(named=True):
        for cell, (begin, end) in enumerate(pairwise(bounds)):
            inside = min(end, row["start_ns"] + row["length_ns"]) - max(begin, row["start_ns"])
            sums[cell, row["key"], row["text"]] += max(0, inside)
    return sums


def test_cells_have_the_time_that_the_sample_lacks() -> None:
    """Kernels of two streams: by cell, key and name, with the calls; and the busy time of the device."""
    profile = busy_steps(20, device=True)
    whole, sample = (timeline(attribute(profile), most) for most in (10_000, 100))
    cells = sample.cells
    assert cells is not None
    assert whole.cells is None
    assert len(cells.bounds) > 4
    assert cells.sums.height <= 100
    devices = [number for number, lane in enumerate(whole.lanes) if lane["device"]]
    every, kept = (sum((_by_cell(one, cells.bounds, lane) for lane in devices), Counter()) for one in (whole, sample))
    expected = {place: ns - kept[place] for place, ns in every.items() if ns != kept[place]}
    found = {(cell, key, text): ns for cell, key, text, _, ns in cells.sums.iter_rows()}
    assert found == expected
    lacking = whole.events.filter(whole.events["lane"].is_in(devices)).height
    lacking -= sample.events.filter(sample.events["lane"].is_in(devices)).height
    assert cells.sums["calls"].sum() == lacking
    for cell, lane, ns in cells.busy.iter_rows():
        assert lane == devices[0]
        assert ns == _busy(whole, cells.bounds, cell) - _busy(sample, cells.bounds, cell)


def _busy(found: Timeline, bounds: list[int], cell: int) -> int:
    busy: set[int] = set()
    for row in found.events.iter_rows(named=True):
        if found.lanes[row["lane"]]["device"]:
            start, end = max(row["start_ns"], bounds[cell]), min(row["start_ns"] + row["length_ns"], bounds[cell + 1])
            busy.update(range(start, end))
    return len(busy)


@pytest.mark.parametrize("most", [30, 300, 600])
def test_cells_of_ranges_have_the_outermost_time_that_the_sample_lacks(most: int) -> None:
    """The self times of ranges add up to the time of the outermost ranges, in the profile and in the sample."""
    whole, sample = (timeline(attribute(busy_steps(40, device=False)), some) for some in (10_000, most))
    assert sample.cells is not None
    sums = sample.cells.sums
    assert sums.height <= most
    assert (sums["length_ns"] < 0).any()
    assert sums["length_ns"].sum() == _outermost(whole) - _outermost(sample)


def _outermost(found: Timeline) -> int:
    until = total = 0
    for start, length in found.events.sort("start_ns", "row").select("start_ns", "length_ns").iter_rows():
        if start >= until:
            total, until = total + length, start + length
    return total


def test_long_profile() -> None:
    """Of 250,000 kernels, the cells have what the 100,000 of the sample lack."""
    found = timeline(attribute(many_kernels(250_000)))
    assert found.cells is not None
    assert found.cells.sums["calls"].sum() == 150_000
    total = sum(1 + number % 7 for number in range(250_000))
    assert found.cells.sums["length_ns"].sum() + found.events["length_ns"].sum() == total
    assert found.cells.busy["length_ns"].sum() + found.events["length_ns"].sum() == total
