"""What annot prints and writes, as text whose lines can be compared: tables, Parquet, traces, pages, logs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

import polars as pl

import annot.runs.run
from annot.cli.main import main
from annot.errors import AnnotError
from annot.runs.run import Run
from annot.runs.selection import ALL, Selection

__all__ = ["CRASH", "as_lines", "attempt", "frame_text", "run"]

CRASH: Final = "CRASH"
"""Beginning of the text of an error that annot does not raise on purpose."""

_LONGEST: Final = 1000
"""Length in characters up to which a JSON value stays on one line, such as a row of a table."""

T = TypeVar("T")


def attempt(make: Callable[[], T]) -> T | str:
    """Return what a function returns, or the text of its error."""
    try:
        return make()
    except (AnnotError, ValueError) as error:
        return f"{type(error).__name__}: {error}\n"
    except Exception:
        return f"{CRASH} {traceback.format_exc()}"


def run(*words: str, width: int = 200) -> str:
    """Return what a command prints and writes."""
    form = words[words.index("--format") + 1] if "--format" in words else ""
    columns, profiles = patch.dict(os.environ, COLUMNS=str(width)), patch.object(annot.runs.run, "Run", _SharedRun)
    printed, said = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(said), columns, profiles:
        out = Path(folder) / "out"
        status = attempt(lambda: str(main([*words, *(("-o", str(out)) if form in _FILES else ())])))
        printed.flush()
        text = _FILES[form](out) if out.exists() else printed.buffer.getvalue().decode()
        problem = f"exit status {status}\n" if status != "0" else ""
        return f"{text}{said.getvalue()}{problem}".replace(folder, "OUT")


class _Sharing(type):
    def __call__(cls, path: str, selection: Selection = ALL) -> Any:
        try:
            return _kept_run(os.path.abspath(path), path, selection)
        except TypeError:  # the slice of steps in a selection has no hash
            return Run(path, selection)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Run)


class _SharedRun(metaclass=_Sharing):
    """`Run` with profiles that the commands in a row share, because most of their time is that of reading it."""


@lru_cache(2)
def _kept_run(_place: str, path: str, selection: Selection) -> Run:
    return Run(path, selection)


def as_lines(value: Any) -> str:
    """Return a value as JSON, with long objects and lists over several lines, and long tables row by row.

    Example:
        >>> as_lines({"a": 1})
        '{"a": 1}\\n'
    """
    return "\n".join(_lines(value, "", "")) + "\n"


def frame_text(frame: pl.DataFrame) -> str:
    """Return a frame as CSV, with its column types in the first line, and lists and structs as JSON."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    texts = [pl.Series(name, [json.dumps(value) for value in frame[name].to_list()], pl.String) for name in nested]
    types = ",".join(str(dtype) for dtype in frame.dtypes)
    return f"{types}\n{frame.with_columns(texts).write_csv()}"


def _lines(value: Any, key: str, indent: str) -> Iterator[str]:
    text = json.dumps(value, default=str)
    if len(text) <= _LONGEST or not isinstance(value, dict | list):
        yield f"{indent}{key}{text}"
        return
    if isinstance(value, dict) and _is_table(list(value.values())):
        value = [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    first, last = "{}" if isinstance(value, dict) else "[]"
    yield f"{indent}{key}{first}"
    children = [(f"{json.dumps(name)}: ", child) for name, child in value.items()] if isinstance(value, dict) else []
    for name, child in children or [("", child) for child in value]:
        yield from _lines(child, name, f"{indent} ")
    yield f"{indent}{last}"


def _is_table(columns: list[Any]) -> bool:
    """Return whether values are lists of one length: the page has the columns of a table under their names."""
    return all(isinstance(column, list) for column in columns) and len({len(column) for column in columns}) == 1


def _parquet(path: Path) -> str:
    meta = json.loads(pl.read_parquet_metadata(path)["annot"])
    return as_lines({name: json.loads(meta[name]) for name in meta if name == "annot"}) + frame_text(
        pl.read_parquet(path)
    )


def _trace(path: Path) -> str:
    """The trace with a line per event, sorted."""
    trace = json.loads(path.read_bytes())
    events = sorted(json.dumps(event) for event in trace.pop("traceEvents"))
    return as_lines(trace) + "".join(f"{event}\n" for event in events)


def _page(path: Path) -> str:
    """The data of a page."""
    script = re.search(r'<script type="([^"]+)" id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert script, f"{path} has no data"
    data = gzip.decompress(base64.b64decode(script[2])) if "gzip" in script[1] else script[2]
    return as_lines(json.loads(data))


def _tensorboard(folder: Path) -> str:
    """The values that TensorBoard reads from a log, and the hashes of its pictures."""
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    make_ndarray = import_module("tensorboard.util.tensor_util").make_ndarray
    log = accumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0})
    log.Reload()
    tags, lines = log.Tags(), list[str]()
    for tag in tags["scalars"]:
        lines += [f"{tag} at {one.wall_time} in step {one.step}: {one.value}" for one in log.Scalars(tag)]
    for tag in tags["tensors"]:
        values = [make_ndarray(one.tensor_proto).ravel().tolist() for one in log.Tensors(tag)]
        lines += [f"{tag}: {text.decode() if isinstance(text, bytes) else text}" for value in values for text in value]
    for tag in tags["images"]:
        lines += [f"{tag}: {hashlib.sha256(one.encoded_image_string).hexdigest()}" for one in log.Images(tag)]
    return "\n".join(lines) + "\n"


_FILES: Final[dict[str, Callable[[Path], str]]] = {
    "parquet": _parquet, "trace": _trace, "html": _page, "tensorboard": _tensorboard,
    "nsys-rep": lambda path: f"{path.stat().st_size} bytes\n",
}  # fmt: skip
"""How to read the formats that annot writes to files only."""
