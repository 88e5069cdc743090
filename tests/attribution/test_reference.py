"""The correlator against a quadratic statement of the same rules, on random profiles full of ties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from range_tables import crossing_ranges_of, ranges_of
from tables import check_modules_and_operations, disordered

from annot.analyze.layer_details import by_detail
from annot.attribution.attribute import Attribution, attribute
from annot.attribution.gpu_time import UNATTRIBUTED
from annot.attribution.layer_tables import by_kernel, by_layer, by_phase
from annot.attribution.summary import summarize
from annot.profile import Profile

NAMES = ("a Linear |fwd", "a Linear |bwd", "b Conv2d [2,3]f32 |fwd", "Batch 1 |step", "plain")
random_profiles = settings(max_examples=examples(150), deadline=None, database=None, derandomize=True)


@dataclass(frozen=True)
class Range:
    """A range with its end known."""

    id: int
    thread: int
    start: int
    end: int
    push: bool
    annot: bool
    foreign: bool
    text: str

    @property
    def order(self) -> tuple[int, int, int, int]:
        return (self.thread, self.start, -self.end, self.id)

    @property
    def weight(self) -> tuple[bool, bool]:
        return (self.push, self.annot)

    def contains(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.end


times = st.integers(-3, 12)
range_rows = st.fixed_dictionaries(
    {
        "thread": st.sampled_from([101, 102, 201]),
        "start": times,
        "length": st.one_of(st.none(), st.integers(0, 12)),
        "kind": st.sampled_from(["push", "push", "start"]),
        "domain": st.sampled_from(["annot", ""]),
        "foreign": st.sampled_from([False, False, False, True]),
        "text": st.sampled_from(NAMES),
    }
)
work_rows = st.fixed_dictionaries(
    {
        "thread": st.sampled_from([101, 102, 201]),
        "start": times,
        "length": st.integers(1, 4),
        "correlation": st.integers(1, 6),
        "kernel": st.booleans(),
        "gpu": st.integers(0, 1000),
        "launched": st.sampled_from([True, True, True, False]),
        "at": st.integers(0, 2000),
        "device": st.integers(0, 1),
    }
)


def build(ranges: list[dict[str, Any]], work: list[dict[str, Any]]) -> Profile:
    """A profile in which a launch's thread tells its process: 101 and 102 belong to 1, 201 to 2."""
    table = [
        {
            "id": number, "process": row["thread"] // 100, "thread": row["thread"], "domain": row["domain"],
            "end_thread": 999 if row["foreign"] and row["kind"] == "start" else None,
            "text": _text(row), "kind": row["kind"], "start": row["start"],
            "end": None if row["length"] is None else row["start"] + row["length"],
        }
        for number, row in enumerate(ranges)
    ]  # fmt: skip
    launches, kernels, copies = [], [], []
    for row in work:
        process = row["thread"] // 100
        common = {"process": process, "device": row["device"], "correlation": row["correlation"]}
        common |= {"start": row["at"], "end": row["at"] + row["gpu"]}
        (kernels if row["kernel"] else copies).append(common)
        if row["launched"]:
            call = {"process": process, "thread": row["thread"], "start": row["start"]}
            launches.append(call | {"end": row["start"] + row["length"], "correlation": row["correlation"]})
    named = {"name": pl.lit("k")}
    return Profile.build(
        {},
        ranges=pl.DataFrame(table, infer_schema_length=None) if table else None,
        launches=pl.DataFrame(launches) if launches else None,
        kernels=pl.DataFrame(kernels).with_columns(**named) if kernels else None,
        copies=pl.DataFrame(copies).with_columns(kind=pl.lit("HtoD")) if copies else None,
    )


def _text(row: dict[str, Any]) -> str:
    """Of annot's started ranges only the loop's: those of layers may belong to a process, see test_correlate_shared."""
    loop = row["kind"] != "start" or row["domain"] != "annot" or row["text"] in NAMES[3:]
    return str(row["text"]) if loop else NAMES[3]


def closed(profile: Profile) -> list[Range]:
    """The ranges in order; open ones end at the last instant of the host."""
    instants = [row[0] for row in profile.ranges.select("start").rows()]
    instants += [row[0] for row in profile.ranges.select("end").rows() if row[0] is not None]
    instants += [row[0] for row in profile.launches.select("end").rows()]
    found = [
        Range(
            row["id"], row["thread"], row["start"], max(instants) if row["end"] is None else row["end"],
            row["kind"] == "push", row["domain"] == "annot", row["end_thread"] is not None, row["text"],
        )
        for row in profile.ranges.rows(named=True)
    ]  # fmt: skip
    return sorted(found, key=lambda item: item.order)


def crossing(one: Range, other: Range) -> bool:
    """Whether the later of two ranges of a thread begins inside the other and ends after it."""
    first, last = sorted((one, other), key=lambda item: item.order)
    return one.thread == other.thread and first.start < last.start < first.end < last.end


def split(ranges: list[Range]) -> tuple[list[Range], list[Range]]:
    """Those that nest, and those that have to stand aside."""
    kept: list[Range] = []
    for new in sorted((item for item in ranges if not item.foreign), key=lambda item: item.weight, reverse=True):
        if not any(crossing(new, old) for old in kept):
            kept.append(new)
    kept.sort(key=lambda item: item.order)
    return kept, [item for item in ranges if item not in kept]


def parent_of(item: Range, kept: list[Range]) -> Range | None:
    """The last range before it that ends no earlier."""
    before = [q for q in kept if q.thread == item.thread and q.order < item.order and q.end >= item.end]
    return before[-1] if before else None


def owner_of(call: dict[str, Any], kept: list[Range]) -> Range | None:
    """The last range in order that contains the call."""
    around = [q for q in kept if q.thread == call["thread"] and q.contains(call["start"], call["end"])]
    return around[-1] if around else None


def later_of_another_thread(call: dict[str, Any], kept: list[Range]) -> Range | None:
    """The range of another thread of the process around a call that is in none of its own: the innermost one."""
    around = [
        q for q in kept
        if q.thread // 100 == call["thread"] // 100 and q.contains(call["start"], call["end"])
    ]  # fmt: skip
    innermost = [q for thread in (101, 102, 201) for q in [r for r in around if r.thread == thread][-1:]]
    return max(innermost, key=lambda q: (q.start, -q.end, -q.thread), default=None)


def launched(profile: Profile) -> list[tuple[int, dict[str, Any] | None]]:
    """The time of each piece of work and its launch: the first call of its process with its id."""
    calls = profile.launches.rows(named=True)
    found = []
    for table in (profile.kernels, profile.copies):
        for row in table.rows(named=True):
            mine = [
                call for call in calls
                if (call["process"], call["correlation"]) == (row["process"], row["correlation"])
            ]  # fmt: skip
            found.append((row["end"] - row["start"], min(mine, key=lambda call: call["start"], default=None)))
    return found


def ancestors(item: Range, kept: list[Range]) -> list[Range]:
    """The range itself and everything above it."""
    chain = [item]
    while (above := parent_of(chain[-1], kept)) is not None:
        chain.append(above)
    return chain


def place(item: Range, kept: list[Range]) -> str:
    """The name of a range: of a plain one in the tree, the plain ones around it too."""
    chain = ancestors(item, kept) if item in kept and item.text == "plain" else [item]
    return " › ".join(other.text for other in reversed(chain) if other.text == item.text)


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["thread"], row["start"], row["end"], row["text"])


@random_profiles
@given(st.lists(range_rows, max_size=14))
def test_parents_and_what_stands_aside(ranges: list[dict[str, Any]]) -> None:
    """Each range has the parent that the definition says, and the same ranges are kept out of the tree."""
    profile = build(ranges, [])
    kept, aside = split(closed(profile))
    result = attribute(profile)
    rows = ranges_of(result).rows(named=True)
    assert [identity(row) for row in rows] == [(r.thread, r.start, r.end, r.text) for r in kept]
    assert [identity(row) for row in crossing_ranges_of(result).rows(named=True)] == [
        (r.thread, r.start, r.end, r.text) for r in aside
    ]
    parents = [parent_of(item, kept) for item in kept]
    assert [row["parent"] for row in rows] == [None if p is None else kept.index(p) for p in parents]
    assert [row["depth"] for row in rows] == [len(ancestors(item, kept)) - 1 for item in kept]


@random_profiles
@given(st.lists(range_rows, max_size=14))
def test_host_time_is_accounted_for(ranges: list[dict[str, Any]]) -> None:
    """Self times of a thread add up to the union of its ranges; inclusive is self plus the children's inclusive."""
    tree = ranges_of(attribute(build(ranges, [])))
    for (thread,), part in tree.group_by("thread"):
        instants = {i for row in part.rows(named=True) for i in range(row["start"], row["end"])}
        assert part["host_self_ns"].sum() == len(instants), thread
    _check_children(tree, "host_ns", "host_self_ns")


@random_profiles
@given(st.lists(range_rows, max_size=12), st.lists(work_rows, max_size=8))
def test_device_time_is_accounted_for(ranges: list[dict[str, Any]], work: list[dict[str, Any]]) -> None:
    """Work goes to the innermost range around its launch; a range has all that was launched inside it."""
    profile = build(ranges, work)
    kept, aside = split(closed(profile))
    pieces = launched(profile)
    own = [call and owner_of(call, kept) for _, call in pieces]
    late = [
        call and not mine and later_of_another_thread(call, kept) for mine, (_, call) in zip(own, pieces, strict=True)
    ]
    result = attribute(profile)
    for row, item in zip(ranges_of(result).rows(named=True), kept, strict=True):
        mine = sum(gpu for owner, (gpu, _) in zip(own, pieces, strict=True) if owner == item)
        others = sum(gpu for owner, (gpu, _) in zip(late, pieces, strict=True) if owner == item)
        assert (row["gpu_self_ns"], row["gpu_by_time_ns"]) == (mine + others, others), item
        owned = [place for place, owner in enumerate(zip(own, late, strict=True)) if item in owner]
        kernels = sum(place < profile.kernels.height for place in owned)
        assert (row["kernels"], row["copies"]) == (kernels, len(owned) - kernels), item
        below = [gpu for owner, (gpu, _) in zip(own, pieces, strict=True) if owner and item in ancestors(owner, kept)]
        below += [gpu for owner, (gpu, _) in zip(late, pieces, strict=True) if owner and item in ancestors(owner, kept)]
        assert row["gpu_ns"] == sum(below)
    for row, item in zip(crossing_ranges_of(result).rows(named=True), aside, strict=True):
        inside = [
            gpu for gpu, call in pieces
            if call and call["thread"] == item.thread and item.contains(call["start"], call["end"])
        ]  # fmt: skip
        assert row["gpu_ns"] == (0 if item.foreign else sum(inside)), item
    _check_children(ranges_of(result), "gpu_ns", "gpu_self_ns")
    _check_totals(result, sum(gpu for gpu, _ in pieces), len(pieces))
    lost = [call for mine, other, (_, call) in zip(own, late, pieces, strict=True) if not mine and not other]
    reasons = by_layer(result).filter(pl.col("layer") == UNATTRIBUTED).select("module", "kernels", "copies").rows()
    assert {module: kernels + copies for module, kernels, copies in reasons if kernels + copies} == {
        reason: count
        for reason, count in (
            ("launched in no range", sum(call is not None for call in lost)),
            ("no launch recorded", sum(call is None for call in lost)),
        )
        if count
    }


def _check_children(tree: pl.DataFrame, inclusive: str, own: str) -> None:
    rows = tree.rows(named=True)
    for number, row in enumerate(rows):
        children = sum(child[inclusive] for child in rows if child["parent"] == number)
        assert row[inclusive] == row[own] + children


def _check_totals(result: Attribution, whole: int, pieces: int) -> None:
    meta = summarize(result)
    assert meta["gpu_ns"] == whole == meta["attributed_gpu_ns"] + meta["unattributed_gpu_ns"]
    layers, phases, kernels = by_layer(result), by_phase(result), by_kernel(result)
    assert layers["gpu_self_ns"].sum() == phases["gpu_ns"].sum() == kernels["gpu_ns"].sum() == whole
    host = meta["host_ns"] if pieces else meta["whole_ns"]  # without GPU activity, with the time outside ranges
    assert layers["host_self_ns"].sum() == phases["host_ns"].sum() == host
    check_modules_and_operations(result)
    assert layers["kernels"].sum() + layers["copies"].sum() == pieces
    rest = layers.filter(pl.col("layer") == UNATTRIBUTED)
    assert rest["gpu_ns"].sum() == meta["unattributed_gpu_ns"]


@random_profiles
@given(st.lists(range_rows, max_size=12), st.lists(work_rows, max_size=6))
def test_rows_count_recursion_once(ranges: list[dict[str, Any]], work: list[dict[str, Any]]) -> None:
    """A row's inclusive times leave out ranges that lie in a range of the same layer, class and phase.

    The row of a plain range is named by the plain ranges around it.
    """
    profile = build(ranges, work)
    kept, aside = split(closed(profile))
    result = attribute(profile)
    every = [
        *zip(ranges_of(result).rows(named=True), kept, strict=True),
        *zip(crossing_ranges_of(result).rows(named=True), aside, strict=True),
    ]
    expected: dict[str, list[int]] = {}
    for row, item in every:
        name = place(item, kept)
        sums = expected.setdefault(name, [0, 0, 0])
        above = ancestors(item, kept)[1:] if item in kept else []
        outermost = all(place(other, kept) != name for other in above)
        sums[0] += 1
        sums[1] += outermost * row["host_ns"]
        sums[2] += outermost * row["gpu_ns"]
    keys = {
        "a Linear |fwd": ("a", "Linear", "forward"), "a Linear |bwd": ("a", "Linear", "backward"),
        "b Conv2d [2,3]f32 |fwd": ("b", "Conv2d", "forward"), "Batch 1 |step": ("(batch)", "", "other"),
    }  # fmt: skip
    rows = by_layer(result).filter(pl.col("layer") != UNATTRIBUTED).rows(named=True)
    got = {(r["layer"], r["module"], r["phase"]): [r["calls"], r["host_ns"], r["gpu_ns"]] for r in rows}
    assert got == {keys.get(name, (name, "", "other")): sums for name, sums in expected.items()}


@random_profiles
@given(st.lists(range_rows, max_size=12), st.lists(work_rows, max_size=6))
def test_the_mean_of_calls_lies_between_the_shortest_and_the_longest(
    ranges: list[dict[str, Any]], work: list[dict[str, Any]]
) -> None:
    """Also of a layer in itself, whose time counts once while its calls are two."""
    details = by_detail(attribute(build(ranges, work)))
    assert disordered(details).is_empty()
    once = details.filter(pl.col("calls") == 1)
    assert once["host_min_ns"].equals(once["host_ns"])
    assert once["host_max_ns"].equals(once["host_mean_ns"])


@random_profiles
@given(st.lists(range_rows, max_size=10), st.lists(work_rows, max_size=8))
def test_busy_time_and_span(ranges: list[dict[str, Any]], work: list[dict[str, Any]]) -> None:
    """Busy counts each instant of a device once, the span is from first start to last end; with what lies below."""
    profile = build(ranges, work)
    kept, _ = split(closed(profile))
    expected: dict[str, set[tuple[int, int, int]]] = {}
    spans: dict[str, list[int]] = {}
    pieces = [row for table in (profile.kernels, profile.copies) for row in table.rows(named=True)]
    for row, (_, call) in zip(pieces, launched(profile), strict=True):
        owner = call and (owner_of(call, kept) or later_of_another_thread(call, kept))
        for text in {place(item, kept) for item in ancestors(owner, kept)} if owner else ():
            instants = {(row["process"], row["device"], ns) for ns in range(row["start"], row["end"])}
            expected.setdefault(text, set()).update(instants)
            spans.setdefault(text, []).extend((row["start"], row["end"]))
    rows = by_layer(attribute(profile)).filter(pl.col("layer") != UNATTRIBUTED).rows(named=True)
    got = {
        (r["layer"], r["phase"]): (r["gpu_busy_ns"], r["gpu_span_ns"])
        for r in rows
        if r["kernels_total"] or r["gpu_ns"]
    }
    keys = {
        "a Linear |fwd": ("a", "forward"), "a Linear |bwd": ("a", "backward"),
        "b Conv2d [2,3]f32 |fwd": ("b", "forward"), "Batch 1 |step": ("(batch)", "other"),
    }  # fmt: skip
    for text, instants in expected.items():
        if instants:
            assert got[keys.get(text, (text, "other"))] == (len(instants), max(spans[text]) - min(spans[text])), text
