"""Print the JSON Schema of a table or of the answer of a command, or list them.

NAME is the name of a table: its row (--by) and, unless these are times, its columns (--columns), joined by _. The
schema holds for --format json without --per-step, and the schema of its rows for jsonl. Files can have more keys and
columns, such as those of several profiles. The tables of annot compare are compare_layer and so on; the other names
are those of commands. `annot guide schemas` explains columns and keys.

examples:
  annot schema
  annot schema layer
  annot schema kernel > kernel.schema.json
  annot schema layer_roofline
  annot schema compare_module
  annot schema try
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from annot.cli.guide import chapter
from annot.cli.output import UsageError

if TYPE_CHECKING:
    import polars as pl

    from annot.report.export.json_csv_parquet import Report

_COLUMN: Final = re.compile(r"^\| `(\w+)` \| [a-z ]+ \| (.+) \|$", re.M)
_KEY: Final = re.compile(r"^\| `(\w+)` \| ([^|]+) \|$", re.M)
"""Rows of the tables of the guide: a column with its type, and a key of `meta`; and what they mean."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `annot schema`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a table or command, such as layer or try")


def run(args: argparse.Namespace) -> int:
    """Print a schema, or the names of all schemas."""
    schemas = all_schemas()
    if args.name is None:
        print("\n".join(schemas))
        return 0
    if args.name not in schemas:
        raise UsageError(f"NAME must be one of {', '.join(schemas)}, got {args.name!r}")
    print(json.dumps(schema_of(args.name), indent=2, ensure_ascii=False))
    return 0


def all_schemas() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return all schemas by name, as functions that make them."""
    from annot.analyze.comparison.runs import SUBJECTS
    from annot.report.views import views

    return {
        **{view: partial(_of_view, view) for view in views()},
        **{f"compare_{by}": partial(_of_comparison, by) for by in SUBJECTS},
        "baseline_list": partial(_of_baselines, "list"),
        "baseline_show": partial(_of_baselines, "show"),
        **{name: partial(_of_answer, name) for name in ("bisect", "doctor", "try", "try_layers")},
    }


def schema_of(name: str) -> dict[str, Any]:
    """Return a JSON Schema. Columns and types are those of a table of a small profile.

    Args:
        name: a name from `all_schemas`.

    Example:
        >>> schema_of("kernel")["properties"]["kernels"]["items"]["properties"]["gpu_ns"]["type"]
        ['integer', 'null']
    """
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"annot: {name}"}
    return head | all_schemas()[name]()


def _of_view(view: str) -> dict[str, Any]:
    from annot.profile import Profile
    from annot.runs.run import Run

    columns, _, totals = chapter("schemas").read_text(encoding="utf-8").partition("\n| key of `meta`")
    table = Run(Profile.build({})).view(view, total=True)
    return _of_table(table, dict(_COLUMN.findall(columns)), dict(_KEY.findall(totals)))


def _of_comparison(by: Any) -> dict[str, Any]:
    from annot.analyze.comparison.compare import compare
    from annot.analyze.comparison.digest import digest
    from annot.profile import Profile
    from annot.report.terminal.compare import comparison_table
    from annot.runs.run import Run

    kernel = {"process": 1, "start": 0, "end": 1, "correlation": 1, "name": ""}
    runs = [digest(Run(Profile.build({}, kernels=[kernel])).attribution)]
    return _of_table(comparison_table(compare(runs, runs, by=by), "", ""))


def _of_baselines(action: str) -> dict[str, Any]:
    import polars as pl

    from annot.cli.baseline import baselines_table, runs_table
    from annot.runs.baselines import ORIGIN

    return _of_table(baselines_table({}, "") if action == "list" else runs_table(pl.DataFrame(schema=ORIGIN), "", ""))


def _of_answer(command: str) -> dict[str, Any]:
    import msgspec

    from annot.bisect.report import Report
    from annot.doctor.finding import Check
    from annot.trial.answer import Answer
    from annot.trial.layer import LayerAnswer

    kinds = {"bisect": Report, "doctor": list[Check], "try": Answer, "try_layers": LayerAnswer}
    return msgspec.json.schema(kinds[command])


def _of_table(
    table: Report, meanings: Mapping[str, str] | None = None, keys: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the schema of a table, with the meanings of its columns and of the keys of `meta`."""
    from annot.report.export.json_csv_parquet import SCHEMA

    columns = {name: _type(dtype) | _described(meanings, name) for name, dtype in table.rows.schema.items()}
    meta: dict[str, dict[str, Any]] = {name: _described(keys, name) for name in ("schema", *table.meta)}
    meta["schema"]["const"] = SCHEMA
    rows = {"type": "array", "items": _object(columns, columns)}
    return _object({"meta": _object(meta, meta), table.name: rows}, ["meta", table.name])


def _described(meanings: Mapping[str, str] | None, name: str) -> dict[str, Any]:
    return {"description": meanings[name]} if meanings and name in meanings else {}


def _object(properties: Mapping[str, Any], required: Iterable[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def _type(dtype: pl.DataType) -> dict[str, Any]:
    """Return the type of a column. Each column may have nulls: unknown, not counted or absent."""
    import polars as pl

    if dtype == pl.List:
        return {"type": ["array", "null"], "items": {"type": "string"}}
    name = "integer" if dtype.is_integer() else "number" if dtype.is_float() else "string"
    return {"type": ["boolean" if dtype == pl.Boolean else name, "null"]}
