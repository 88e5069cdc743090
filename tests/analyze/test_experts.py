"""Experts of a mixture: time of each group, and the imbalance."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_inputs import examples
from step_rows import GEMM, Rows

from annot.analyze.communication import by_expert
from annot.attribution.attribute import attribute
from annot.runs.run import Run

_CALL = st.tuples(st.sampled_from(["0.mlp.experts", "1.mlp.local_experts"]), st.integers(0, 11), st.integers(0, 40))


def _rows(calls: list[tuple[str, int, int]], *, device: bool) -> Rows:
    """Each expert computes for a time, half of it in a child layer; the router belongs to no expert."""
    rows = Rows()
    for number, (group, expert, length) in enumerate(calls):
        at = 1000 * number
        rows.range(f"{group}.{expert} MLP |fwd", at, at + 50 + length)
        rows.range(f"{group}.{expert}.w1 Linear |fwd", at + 1, at + 9).range(
            "0.mlp.router Linear |fwd", at + 90, at + 95
        )
        if device:
            rows.work(GEMM, at + 2, at + 100, at + 100 + length // 2)
            rows.work(GEMM, at + 12, at + 200, at + 200 + length - length // 2).work(GEMM, at + 91, at + 300, at + 400)
    return rows


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_CALL, max_size=12), st.booleans())
@example([("0.mlp.experts", 3, 5), ("0.mlp.experts", 1, 5)], False)
@example([("0.mlp.experts", 3, 5), ("0.mlp.experts", 1, 5)], True)
def test_time_of_experts(calls: list[tuple[str, int, int]], device: bool) -> None:
    """On the GPU and on the host, the groups are those of a sum expert by expert."""
    found = {row["path"]: row for row in by_expert(attribute(_rows(calls, device=device).build())).to_dicts()}
    assert set(found) == {group for group, _, _ in calls}
    timed = device and any(length for _, _, length in calls)
    for group, row in found.items():
        times: Counter[int] = Counter()
        for name, expert, length in calls:
            if name == group:
                times[expert] += length if timed else 50 + length
        most, whole = max(times.values()), sum(times.values())
        said: dict[str, Any] = {
            "experts": len(times), "mean_ns": whole // len(times), "busiest_ns": most, "phase": "forward",
            "busiest": min(expert for expert, time in times.items() if time == most),
            "calls": sum(name == group for name, _, _ in calls),
            "imbalance": most * len(times) / whole if whole else None,
        }  # fmt: skip
        assert {name: row[name] for name in said} == said
        assert row["gpu_ns" if timed else "host_ns"] == whole


def test_table_of_experts() -> None:
    """The table has a line per group and phase."""
    lines = repr(Run(_rows([("0.mlp.experts", 3, 10), ("0.mlp.experts", 1, 30)], device=True).build()).view("expert"))
    table = lines.splitlines()[-2:]
    assert table[0].split()[:4] == ["Path", "Phase", "Experts", "Calls"]
    assert table[1].split()[:5] == [">", "0.mlp.experts", "forward", "2", "2"]
    assert table[1].split()[-2:] == ["1", "1.500"]
