"""Findings of each layer call as text ranges for a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from annot.analyze.layer_details import Spans
from annot.labels.tag import COLORS
from annot.report.units import amount, duration, printable, share
from annot.util.progress import tell

__all__ = ["Finding", "findings"]

_MOST: Final = 1000
"""Maximum length of a text in characters; ImportNvtxt accepts about ten thousand."""
_OTHER: Final = COLORS["loop"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Range on a track (number in `annot.analyze.trace_events.Tracks`), with times in ns of the profile.

    Ranges of a track nest. The text is one line without control characters, the color is 0xAARRGGBB.
    """

    track: int
    start: int
    end: int
    text: str
    color: int


def findings(spans: Spans) -> Iterator[Finding]:
    """Yield a range per span, ordered by track and start, outer ranges before inner ones.

    Example:
        >>> import polars as pl
        >>> from annot.analyze.layer_details import spans
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> range_ = {"id": 1, "process": 1, "thread": 1, "domain": "annot", "text": "fc Linear |fwd", "kind": "push"}
        >>> ranges = Profile.build({}, ranges=pl.DataFrame([range_ | {"start": 0, "end": 9000}]))
        >>> [finding.text for finding in findings(spans(attribute(ranges)))]
        ['fc Linear forward · host 9.00 µs']
    """
    clock = "GPU" if spans.on_device else "host"
    for count, row in enumerate(spans.rows.iter_rows(named=True), 1):
        tell("writing findings", count, unit="ranges")
        yield Finding(row["track"], row["start"], row["end"], _text(row, clock), COLORS.get(row["phase"], _OTHER))


def _text(row: dict[str, Any], clock: str) -> str:
    layer = row["layer"] or ("(model)" if row["module"] and row["phase"] == "forward" else "")
    phase = "" if row["phase"] == "other" else row["phase"]
    number = "" if row["number"] is None else str(row["number"])
    flops = amount(row["flops"])
    unit = "FLOP" if flops[-1:].isalpha() else " FLOP"
    bound = row["bound"] and f"{row['bound']}-bound"
    of_roof = None if row["roof_share"] is None else f"{share(row['roof_share'], 1)} of the roof"
    facts = (
        " ".join(filter(None, (layer, row["module"], number, phase))),
        row["shapes"],
        f"{clock} {duration(row['time_ns'])}",
        flops and f"{flops}{unit}",
        ", ".join(filter(None, (bound, of_roof))),
    )
    text = printable(" · ".join(filter(None, facts)))
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
