"""Reference implementation of Nsight Systems's attribution rule, range by range and call by call."""

from __future__ import annotations

from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

from annot.read.nsys.activity import Activity

Row = dict[str, Any]


def contains(around: Row, inside: Row) -> bool:
    """Return whether a range contains a call or range of its thread, both ends included."""
    same: bool = around["thread"] == inside["thread"]
    return same and around["start"] <= inside["start"] and inside["end"] <= around["end"]


def launches(activity: Activity) -> list[tuple[Row, Row | None]]:
    """Return every GPU activity with each of its API calls, or with None."""
    calls = activity.calls.rows(named=True)
    pairs: list[tuple[Row, Row | None]] = []
    for work in activity.work.rows(named=True):
        mine = [c for c in calls if (c["process"], c["correlation"]) == (work["process"], work["correlation"])]
        pairs += [(work, call) for call in mine] or [(work, None)]
    return pairs


def trace(activity: Activity) -> list[tuple[Any, ...]]:
    """Return the rows of nvtx_gpu_proj_trace, with null for PID and TID of the activities outside all ranges."""
    pairs = [(work, call) for work, call in launches(activity) if call]
    ranges = activity.ranges.rows(named=True)
    owned = {r["id"]: inside for r in ranges if (inside := [pair for pair in pairs if contains(r, pair[1])])}
    owners = [r for r in ranges if r["id"] in owned]
    parents = {r["id"]: _parent(r, owners) for r in owners}
    rows: list[tuple[Any, ...]] = []
    if rest := [pair for pair in pairs if not any(contains(r, pair[1]) for r in ranges)]:
        low, high, ops = _envelope(rest)
        rows.append((None, low, high - low, None, None, None, None, None, ops, None, 0, None, None, None))
    for r in sorted(owners, key=lambda r: (r["start"], r["id"])):
        low, high, ops = _envelope(owned[r["id"]])
        stack = _stack(r["id"], parents)
        rows.append(
            (
                r["name"], low, high - low, r["start"], r["end"] - r["start"], r["style"], *_pid_tid(r["thread"]), ops,
                None if stack is None else len(stack) - 1,
                sum(parent == r["id"] for parent in parents.values()), r["id"],
                None if stack is None else parents[r["id"]],
                None if stack is None else "".join(f":{number}" for number in stack),
            )
        )  # fmt: skip
    return rows


def _parent(child: Row, ranges: list[Row]) -> int | None:
    around = [r for r in ranges if r["id"] != child["id"] and contains(r, child)]
    shortest = min(around, key=lambda r: (r["end"] - r["start"], r["id"]), default=None)
    return None if shortest is None else shortest["id"]


def _stack(number: int, parents: dict[int, int | None]) -> list[int] | None:
    stack = [number]
    while (above := parents[stack[0]]) is not None:
        if above in stack:
            return None
        stack.insert(0, above)
    return stack


def _envelope(pairs: list[tuple[Row, Row]]) -> tuple[int, int, int]:
    works = [work for work, _ in pairs]
    ids = {call["correlation"] for _, call in pairs}
    return min(w["start"] for w in works), max(w["end"] for w in works), len(ids)


def _pid_tid(thread: int) -> tuple[int, int]:
    return (thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF


def proj_sum(activity: Activity) -> list[tuple[Any, ...]]:
    """Return the rows of nvtx_gpu_proj_sum."""
    groups = defaultdict(list)
    for row in trace(activity):
        if row[11] is not None:
            groups[row[0], row[5]].append(row)
    rows = []
    for (name, style), group in groups.items():
        projected, lengths, ops, levels, children = ([row[i] for row in group] for i in (2, 4, 8, 9, 10))
        average, median, low, high, deviation = _spread(projected)
        rows.append(
            (
                name, style, sum(projected), sum(lengths), len(group), average, median, low, high, deviation, sum(ops),
                _mean(ops), _mean([level for level in levels if level is not None]), _mean(children),
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-row[2], _order(row[0]), row[1]))


def kern_sum(activity: Activity) -> list[tuple[Any, ...]]:
    """Return the rows of nvtx_kern_sum."""
    ranges = activity.ranges.rows(named=True)
    groups: dict[tuple[Any, ...], list[tuple[Any, Row]]] = defaultdict(list)
    for work, call in launches(activity):
        if not work["kernel"]:
            continue
        owners = [r for r in ranges if call and contains(r, call)]
        ids = _pid_tid(call["thread"]) if call else (None, None)
        for r in owners or [{"name": None, "style": None, "id": None}]:
            groups[r["name"], r["style"], *ids, work["name"]].append((r["id"], work))
    rows = []
    for (name, style, pid, tid, kernel), pairs in groups.items():
        times = [work["end"] - work["start"] for _, work in pairs]
        instances = len({number for number, _ in pairs} - {None})
        kernels = len({id(work) for _, work in pairs})
        rows.append((name, style, pid, tid, instances, kernels, sum(times), *_spread(times), kernel))
    return sorted(
        rows,
        key=lambda r: (_order(r[0]), _order(r[2], -1), _order(r[3], -1), -r[6], _order(r[1]), _order(r[12])),
    )


def _order(value: Any, nothing: Any = "") -> tuple[bool, Any]:
    return (value is not None, nothing if value is None else value)


def _spread(values: list[int]) -> tuple[float, float, int, int, float]:
    ordered = sorted(values)
    half = len(ordered) // 2
    median = Fraction(ordered[half] + ordered[-half - 1], 2)
    average = Fraction(sum(values), len(values))
    variance = sum(((v - average) ** 2 for v in values), Fraction(0)) / max(1, len(values) - 1)
    with localcontext(prec=60):
        deviation = (Decimal(variance.numerator) / variance.denominator).sqrt()
        rounded = deviation.quantize(Decimal("0.1"), ROUND_HALF_UP)
    return _tenths(average), _tenths(median), ordered[0], ordered[-1], float(rounded)


def _mean(values: list[int]) -> float | None:
    return _tenths(Fraction(sum(values), len(values))) if values else None


def _tenths(value: Fraction) -> float:
    return int(value * 10 + Fraction(1, 2)) / 10
