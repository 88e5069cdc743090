"""Sentences and figures of the page that no choice of the reader changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from annot.analyze.comparison.compare import Comparison
from annot.analyze.timeline import Timeline
from annot.changes.tried import OUTCOMES, Tried, interval
from annot.report.units import count, duration, share


def software(summary: pl.DataFrame, meta: Mapping[str, Any]) -> list[str]:
    """Return the devices, the software and the steps of a profile."""
    devices = [row["text"] if row["count"] <= 1 else _devices(row) for row in _system(summary, "device")]
    others = [row["text"] for item in ("cpu", "software") for row in _system(summary, item)]
    texts = [*devices, *others, meta["producer"], _steps(meta, f"{_plural(meta['steps'], 'step')} (", ")")]
    return [*dict.fromkeys(filter(None, texts))]  # annot records its profiles itself


def facts_of_profile(summary: pl.DataFrame, meta: Mapping[str, Any], source: str) -> list[tuple[str, str]]:
    """Return the file, format and devices of a profile, each with its name."""
    facts = {
        "Profile": source,
        "Format": meta["format"],
        "Written by": meta["producer"],
        "Steps": _steps(meta, f"{count(meta['steps'])}, "),
        "Devices": ", ".join(map(_devices, _system(summary, "device"))),
    }
    return [(name, text) for name, text in facts.items() if text]


def totals_of_run(summary: pl.DataFrame, meta: Mapping[str, Any], units: str, *, device: bool) -> list[tuple[str, ...]]:
    """Return the totals as name, value and remark; empty if the profile is empty."""
    shares = {(row["section"], row["item"]): row["share"] for row in summary.iter_rows(named=True)}
    steps, totals = meta["step_ns"], list[tuple[str, ...]]()
    if device:
        inside = share(meta["attributed_gpu_ns"], meta["gpu_ns"]) or "0.0%"
        copies = _plural(meta["copies"], "copy or memset", "copies and memsets")
        totals += [
            ("GPU time", duration(meta["gpu_ns"]), f"{inside} in ranges"),
            ("GPU busy", share(shares.get(("gpu", "busy")), 1), "of the steps" if steps else _FIRST_TO_LAST),
            (f"On {units}", share(shares.get(("gpu", "tensor_cores")), 1), "of kernel time"),
            ("Kernels", count(meta["kernels"]), copies),
        ]
    if meta["host_ns"] is not None and meta["ranges"]:
        of = f"{_plural(meta['ranges'], 'range')}, {_plural(meta['threads'], 'thread')}"
        totals.append(("Host time", duration(meta["host_ns"]), of))
    if steps:
        excluded = f", {count(steps['warmup'])} of warm-up excluded" if steps["warmup"] else ""
        totals.append(("Step", duration(steps["mean"]), f"mean of {count(meta['steps'] - steps['warmup'])}{excluded}"))
    elif meta["steps"]:
        totals.append(("Step", count(meta["steps"]), "steps"))
    return [total for total in totals if total[1]]


_FIRST_TO_LAST = "from the first to the last kernel"


def whole_text(summary: pl.DataFrame, meta: Mapping[str, Any], *, device: bool, without_warmup: bool) -> str:
    """Return what the bar of the step time shows in full; empty: the profile has no time."""
    wall = summary.filter(section="time", item="wall").rows(named=True)
    if not wall or not wall[0]["ns"]:
        return ""
    of = f"the time {_FIRST_TO_LAST}" if device else "the time of the run"
    if meta["steps"]:
        of = f"the sum of the {meta['step_kind'] + ' ' if len(meta['step_kinds']) > 1 else ''}steps"
    warmup = " without warm-up" if without_warmup or (meta["step_ns"] or {}).get("warmup") else ""
    devices = f", added up over {wall[0]['count']} devices" if wall[0]["count"] > 1 else ""
    return f"{duration(wall[0]['ns'])}, {of}{warmup}{devices}"


def breakdown_text(summary: pl.DataFrame, meta: Mapping[str, Any], *, device: bool) -> str:
    """Return what the parts of the step time add up to; empty: the profile has no time."""
    wall = summary.filter(section="time", item="wall").rows(named=True)
    if not wall or not wall[0]["ns"]:
        return ""
    several = f" on {wall[0]['count']} {'devices' if device else 'processes'}" if wall[0]["count"] > 1 else ""
    of = "Sum of the steps" if meta["steps"] else "Total"
    return f"{of}: {duration(wall[0]['ns'])}{several}. Overlapped: time during which a part above it runs."


def steps_text(rows: int, meta: Mapping[str, Any]) -> str:
    """Return the number of steps and how long they take, or why there are none."""
    if not rows:
        return f"No steps, because {meta['steps_missing']}."
    times = {name: duration(ns) for name, ns in (meta["step_ns"] or {}).items() if name != "warmup"}
    each = ", mean {mean}, median {median}, IQR {iqr}, {min} to {max}".format(**times) if times else ""
    return f"{_plural(rows, 'step')} ({meta['steps_found_by']}){each}"


def timeline_text(drawn: Timeline) -> str:
    """Return how many of the events the page has."""
    out = f" The {_plural(drawn.left_out, 'lane')} with the least time are left out." if drawn.left_out else ""
    if drawn.every == 1:
        return f"{_plural(drawn.events.height, 'event')} in {_plural(len(drawn.lanes), 'lane')}.{out}"
    events = f"{count(drawn.events.height)} of {count(drawn.total)} events"
    others = f"one in {count(drawn.every)} of the others"
    return f"A sample: {events}, the longest and {others}. Sums of intervals count all.{out}"


def comparison_cards(comparison: Comparison, names: Sequence[str]) -> list[tuple[str, str, list[str], str]]:
    """Return a card for each profile and one for the speedup: title, value, names and remark."""
    what = "GPU" if comparison.time == "gpu_ns" else "host"
    per = "per step" if comparison.steps else "in total"
    cards = []
    for number, side in enumerate(("a_ns", "b_ns")):
        steps = [_plural(comparison.runs[number], "run")] if max(comparison.runs) > 1 else []
        steps += [_plural(comparison.steps[number], "step")] if comparison.steps else []
        clock = (comparison.step_time or {}).get(side)  # includes idle time of the GPU
        steps += [] if clock is None else [f"step time {duration(round(clock))} (wall clock)"]
        ns = comparison.whole[side]
        value = "—" if ns is None else duration(round(ns))
        of = [name for name in (names[number], comparison.devices[number]) if name]
        cards.append((f"{side[0].upper()}: {what} time {per}", value, of, ", ".join(steps)))
    speedup, low, high = (comparison.whole[name] for name in ("speedup", "speedup_low", "speedup_high"))
    known = speedup is not None and comparison.comparability.same_program
    interval = "Above 1: B is faster."
    if low is not None and comparison.level is not None:
        interval = f"{100 * (1 - comparison.level):.3g}% confidence interval: {low:.3f} to {high:.3f}"
    return [*cards, ("Speedup of B", f"{speedup:,.3f} ×" if known else "—", [], interval)]


def tried_changes(tried: Iterable[Tried]) -> dict[str, Any] | None:
    """Return what `annot try` measured earlier as a `table`, the best first, and `notes` of reasons; None: nothing."""
    order = [*OUTCOMES]
    rows = sorted(tried, key=lambda row: (order.index(row.outcome), -(row.speedup or 0.0)))
    columns = {
        "Speedup": ["" if row.speedup is None else f"{row.speedup:.2f}" for row in rows],
        "Interval": [interval(row.low, row.high) for row in rows],
        "Outcome": [OUTCOMES[row.outcome] for row in rows],
        "Runs": [count(row.runs) if row.runs else "" for row in rows],
        "Date": [row.date for row in rows],
    }
    table = table_of_changes({row.change: row.outcome == "faster" for row in rows}, columns, kept=[*columns][:3])
    return {"table": table, "notes": [f"{row.change}: {row.reason}" for row in rows if row.reason]} if rows else None


def table_of_changes(
    changes: Mapping[str, bool], columns: Mapping[str, Sequence[str]], *, kept: Collection[str]
) -> dict[str, Any]:
    """Return a table of texts with a row for each change.

    Args:
        changes: whether each change is recommended, by name.
        columns: the cells of each column, by its title. Those without a text are left out.
        kept: titles of the columns that narrow pages show, too.

    Returns:
        heads   the titles, each with whether narrow pages leave the column out
        rows    name, cells, and whether the change is recommended
    """
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    rows = zip(changes.items(), zip(*filled.values(), strict=True), strict=True)
    return {
        "heads": [(title, title not in kept) for title in filled],
        "rows": [(name, cells, recommended) for (name, recommended), cells in rows],
    }


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def _system(summary: pl.DataFrame, item: str) -> list[dict[str, Any]]:
    return summary.filter(section="system", item=item).rows(named=True)


def _devices(row: Mapping[str, Any]) -> str:
    return f"{row['count']} × {row['text']}"


def _steps(meta: Mapping[str, Any], before: str, after: str = "") -> str:
    if meta["steps"]:
        return f"{before}{meta['steps_found_by']}{after}"
    return f"no steps, because {meta['steps_missing']}"


def _plural(number: int, noun: str, nouns: str = "") -> str:
    return f"{count(number)} {noun if number == 1 else nouns or f'{noun}s'}"
