"""Print the JSON Schema of a table, or list the tables.

VIEW is the name of a table: its row (--by) and, unless these are times, its columns (--columns), joined by _. The
schema holds for --format json without --per-step, and the schema of its rows for jsonl. Files can have more keys and
columns, such as those of several profiles. `annot guide schemas` explains the columns.

examples:
  annot schema
  annot schema layer
  annot schema kernel > kernel.schema.json
  annot schema layer_roofline
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from annot.cli.guide import chapter
from annot.cli.output import UsageError

if TYPE_CHECKING:
    import polars as pl

_COLUMN: Final = re.compile(r"^\| `(\w+)` \| [a-z ]+ \| (.+) \|$", re.M)
_KEY: Final = re.compile(r"^\| `(\w+)` \| ([^|]+) \|$", re.M)
"""Rows of the tables of the guide: a column with its type, and a key of `meta`; and what they mean."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot schema`."""
    parser.add_argument("view", nargs="?", metavar="VIEW", help="name of the table, such as layer or kernel_roofline")


def run(args: argparse.Namespace) -> int:
    """Print the schema of a table, or the names of the tables."""
    from annot.report.views import views

    if args.view is None:
        print("\n".join(views()))
        return 0
    if args.view not in views():
        raise UsageError(f"VIEW must be one of {', '.join(views())}, got {args.view!r}")
    print(json.dumps(schema_of(args.view), indent=2, ensure_ascii=False))
    return 0


def schema_of(view: str) -> dict[str, Any]:
    """Return the JSON Schema of a table, whose columns and types are those of an empty profile.

    Args:
        view: key of the view.

    Example:
        >>> schema_of("kernel")["properties"]["kernels"]["items"]["properties"]["gpu_ns"]["type"]
        ['integer', 'null']
    """
    from annot.profile import Profile
    from annot.report.export.json_csv_parquet import SCHEMA
    from annot.runs.run import Run

    table = Run(Profile.build({})).view(view, total=True)
    guide, _, totals = chapter("schemas").read_text(encoding="utf-8").partition("\n| key of `meta`")
    meanings, keys = dict(_COLUMN.findall(guide)), dict(_KEY.findall(totals))
    columns = {
        name: _type(dtype) | ({"description": meanings[name]} if name in meanings else {})
        for name, dtype in table.rows.schema.items()
    }
    meta: dict[str, dict[str, Any]]
    meta = {name: {"description": keys[name]} for name in ("schema", *table.meta) if name in keys}
    meta["schema"]["const"] = SCHEMA
    rows = {"type": "array", "items": _object(columns, columns)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"annot: {view}",
        **_object({"meta": _object(meta, ["schema", *table.meta]), table.name: rows}, ["meta", table.name]),
    }


def _object(properties: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def _type(dtype: pl.DataType) -> dict[str, Any]:
    """Return the type of a column. Each column may have nulls: unknown, not counted or absent."""
    import polars as pl

    if dtype == pl.List:
        return {"type": ["array", "null"], "items": {"type": "string"}}
    name = "integer" if dtype.is_integer() else "number" if dtype.is_float() else "string"
    return {"type": ["boolean" if dtype == pl.Boolean else name, "null"]}
