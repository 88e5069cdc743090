"""A table whose rows are not times of a profile, such as a list of baselines, for terminals and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from annot.report.columns import Column, formatted
from annot.report.terminal.layout import Ends, Sheet
from annot.report.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows with the columns that a terminal shows.

    Args:
        name: plural of the row, the name of the rows in JSON.
        rows: the rows, which files contain.
        meta: facts about all rows, for JSON and Parquet.
        shown: the rows as a terminal shows them.
        label: column of the first cell.
        columns: columns between the first and the last cell.
        end: column of the last cell.
        empty: sentence in place of a table without rows.
    """

    name: str
    rows: pl.DataFrame
    meta: dict[str, Any]
    shown: pl.DataFrame
    label: Column
    columns: Sequence[Column]
    end: Column
    empty: str = ""


def print_records(records: Records, console: Console) -> None:
    """Print the table; the width of the console selects the columns."""
    rows = records.shown.to_dicts()
    if not rows:
        console.print(Text(printable(records.empty)))
        return
    first, last = (
        [Text(printable(str(row[column.name] or ""))) for row in rows] for column in (records.label, records.end)
    )
    columns = formatted(records.columns, rows, None)
    ends = Ends(last, records.end.title)
    console.print(Sheet(title=records.label.title, labels=first, columns=columns, rows=rows, ends=ends))
