"""Machine-readable reports: JSON, JSON Lines, CSV, Parquet."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

import polars as pl

SCHEMA: Final = 1
"""Version of the columns and keys. It increases when one is removed or changes meaning, not for additions."""

_CONTROL: Final = r"[\x00-\x1f\x7f-\x9f]"
"""Control characters, which terminals interpret. JSON escapes those below 0x20 only."""
_FORMULA: Final = r"^([=+\-@＝＋－＠])"
"""First characters of texts that spreadsheets interpret as formulas."""
_SLICE: Final = 50_000
"""Number of rows to format at once."""
_TEXTS: Final = (pl.String, pl.Categorical, pl.Enum)


class Report(Protocol):
    """Rows for a file, such as `annot.report.table.Table`."""

    @property
    def name(self) -> str:
        """Plural of the row, the name of the rows in JSON."""

    @property
    def rows(self) -> pl.DataFrame:
        """The rows."""

    @property
    def meta(self) -> dict[str, Any]:
        """Facts about all rows."""


def as_json(report: Report) -> Iterator[str]:
    """Yield the text of one object: `meta`, and the rows under the name of the report, such as `layers`."""
    whole = json.dumps({"meta": _meta(report), report.name: []}, indent=2)
    if report.rows.is_empty():
        yield whole + "\n"
        return
    yield whole.removesuffix("]\n}")
    for number, rows in enumerate(report.rows.iter_slices(_SLICE)):
        text = json.dumps(rows.to_dicts(), indent=2).removeprefix("[").removesuffix("\n]")
        yield ("," if number else "") + text.replace("\n", "\n  ")
    yield "\n  ]\n}\n"


def as_jsonl(report: Report) -> Iterator[str]:
    """Yield one line of JSON per row, without `meta`."""
    for rows in report.rows.iter_slices(_SLICE):
        yield re.sub(r"[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", rows.write_ndjson())


def as_csv(report: Report) -> Iterator[str]:
    """Yield the rows as CSV with a header. Lists are joined by ``; ``.

    Texts come from an untrusted profile. Control characters are escaped, and an apostrophe precedes texts that a
    spreadsheet would interpret as a formula.
    """
    header = dict(zip(report.rows.columns, _escaped(pl.Series(report.rows.columns)), strict=True))
    lists = [name for name, dtype in report.rows.schema.items() if isinstance(dtype, pl.List)]
    for number, rows in enumerate(report.rows.iter_slices(_SLICE) if report.rows.height else [report.rows]):
        rows = rows.with_columns(pl.col(lists).list.join("; "))
        texts = [_escaped(rows[name]) for name, dtype in rows.schema.items() if dtype in _TEXTS]
        yield rows.with_columns(texts).rename(header).write_csv(include_header=number == 0)


def _escaped(texts: pl.Series) -> pl.Series:
    texts = texts.cast(pl.String)
    indices = texts.str.contains(_CONTROL).fill_null(value=False).arg_true()
    if len(indices):
        escaped = [re.sub(_CONTROL, lambda match: repr(match[0])[1:-1], text) for text in texts.gather(indices)]
        texts = texts.scatter(indices, escaped)
    return texts.str.replace(_FORMULA, "'$1")


def as_parquet(report: Report) -> bytes:
    """Return the rows as a Parquet file, with `meta` as JSON under the metadata key ``annot``."""
    file = io.BytesIO()
    texts = [name for name, dtype in report.rows.schema.items() if dtype in _TEXTS]
    rows = report.rows.lazy().with_columns(pl.col(texts).cast(pl.String))
    rows.sink_parquet(file, metadata={"annot": json.dumps(_meta(report))})
    return file.getvalue()


def _meta(report: Report) -> dict[str, Any]:
    return {"schema": SCHEMA, **report.meta}
