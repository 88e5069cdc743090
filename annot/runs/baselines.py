"""Named baselines: the digests of runs in a Parquet file, to compare later runs with.

STORE/NAME.parquet    a row per run: where it comes from (`ORIGIN`), and the digest of the run (`as_row`)

The store is a folder, or a URL for fsspec, such as ``s3://bucket/baselines``.
"""

from __future__ import annotations

import datetime
import glob
import hashlib
import io
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.comparison.digest import TABLES, Digest, as_row, from_row
from annot.errors import AnnotError
from annot.profile import Schema
from annot.runs.profile_files import is_url, local, matches, without_file_scheme, write
from annot.runs.profile_files import remove as remove_file
from annot.util.distribution import version

DEFAULT_STORE: Final = os.path.join(".annot", "baselines")
"""Store without other information."""
VARIABLE: Final = "ANNOT_BASELINES"
"""Environment variable with the store."""
ORIGIN: Final[Schema] = {
    "source": pl.String,
    "date": pl.String,
    "commit": pl.String,
    "dirty": pl.Boolean,
    "host": pl.String,
    "cores": pl.Int64,
    "cpu": pl.String,
    "gpu": pl.String,
    "annot": pl.String,
    "step_count": pl.Int64,
    "step_ns": pl.Int64,
}
"""Columns of a run: source (name of the profile), date (UTC, when it was saved), commit and dirty (of the repository of
Git in the working directory at that time; null: none), host and cores (of the machine that saved it; null: unknown),
cpu and gpu (model, of the run; null: unknown), annot (version), step_count (number of steady steps) and step_ns (their
median wall-clock time; null: unknown)."""

_VERSION: Final = 1
_UNSEALED: Final = "0" * 64
_SUFFIX: Final = ".parquet"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")
_SECONDS: Final = 20.0
"""Time limit for a command of Git."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs of a baseline."""

    name: str
    store: str
    origins: pl.DataFrame
    """A row per run with the columns `ORIGIN`, the oldest first."""
    runs: Sequence[Digest]
    """The runs, in the order of `origins`."""

    def __str__(self) -> str:
        count = self.origins.height
        return f"{self.name} ({count} run{'s' * (count != 1)})"


def default_store() -> str:
    """Return the store that the environment selects, else `DEFAULT_STORE`."""
    return os.environ.get(VARIABLE) or DEFAULT_STORE


def list_baselines(store: str) -> list[str]:
    """Return the names of the baselines in a store, sorted.

    Raises:
        AnnotError: the store cannot be listed.
    """
    store = without_file_scheme(store)
    folder = store if is_url(store) else glob.escape(store)
    names = (os.path.basename(path).removesuffix(_SUFFIX) for path in matches(f"{folder.rstrip('/')}/*{_SUFFIX}"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def check(name: str, store: str, *, force: bool, append: bool) -> None:
    """Raise the errors of `save` that do not depend on the runs."""
    _path(name, store)
    if force and append:
        raise ValueError("--force replaces a baseline, and --append adds to it: use one of them")
    if not force and not append and name in list_baselines(store):
        raise AnnotError(f"baseline {name} exists in {store}: --force replaces it, and --append adds runs to it")


def save(name: str, runs: Sequence[Digest], store: str, *, force: bool = False, append: bool = False) -> pl.DataFrame:
    """Save runs as a baseline. Its file is complete or unchanged.

    Args:
        name: name of the baseline: letters, digits, ``.``, ``_``, ``+`` and ``-``.
        runs: one run or more.
        store: folder or URL; a missing folder is created.
        force: replace an existing baseline.
        append: add the runs to an existing baseline.

    Returns:
        The origins of all runs of the baseline, see `Baseline.origins`.

    Raises:
        ValueError: the name has other characters, there are no runs, or both `force` and `append` are true.
        AnnotError: the baseline exists and neither `force` nor `append` is true, the existing file is not a baseline,
            or the store cannot be written.
    """
    if not runs:
        raise ValueError("runs must have a run, got none")
    check(name, store, force=force, append=append)
    path = _path(name, store)
    table = pl.concat([_origin(run).hstack(as_row(run)) for run in runs])
    if append and name in list_baselines(store):
        table = pl.concat([_table(path, [*ORIGIN, *_DIGEST]), table])
    write(path, sealed(table))
    return table.select(*ORIGIN)


def sealed(table: pl.DataFrame) -> bytes:
    """Return a Parquet file whose metadata have its checksum: polars can abort the process for damaged files.

    The checksum is that of the file with zeros in its place.
    """
    file = io.BytesIO()
    metadata = {"annot": json.dumps({"baseline": _VERSION, "sha256": _UNSEALED})}
    table.write_parquet(file, metadata=metadata, row_group_size=1)
    before, place, after = file.getvalue().rpartition(_UNSEALED.encode())
    return before + hashlib.sha256(before + place + after).hexdigest().encode() + after


def read(name: str, store: str) -> Baseline:
    """Return a baseline.

    Raises:
        ValueError: no baseline can have this name.
        AnnotError: the store has no such baseline, or its file is not a baseline.
    """
    table = _existing(name, store, [*ORIGIN, *_DIGEST])
    with _refused(_path(name, store)):
        runs = [from_row(row) for row in table.iter_slices(1)]
    return Baseline(name, store, table.select(*ORIGIN), runs)


def origins(name: str, store: str) -> pl.DataFrame:
    """Return where the runs of a baseline come from, see `Baseline.origins`. Errors are those of `read`."""
    return _existing(name, store, [*ORIGIN])


def remove(name: str, store: str) -> None:
    """Remove a baseline.

    Raises:
        ValueError: no baseline can have this name.
        AnnotError: the store has no such baseline, or it cannot be removed.
    """
    path = _path(name, store)
    _check_exists(name, store)
    remove_file(path)


_DIGEST: Final = ("meta", *TABLES)


def _path(name: str, store: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "the name of a baseline must be letters, digits, '.', '_', '+' and '-', and begin with a letter, a digit "
            f"or '_', got {name!r}"
        )
    return f"{without_file_scheme(store).rstrip('/')}/{name}{_SUFFIX}"


def _check_exists(name: str, store: str) -> None:
    names = list_baselines(store)
    if name not in names:
        others = f"it has {', '.join(names)}" if names else f"annot baseline save {name} RUN saves runs there"
        raise AnnotError(f"{store} has no baseline {name}: {others}")


def _existing(name: str, store: str, columns: Sequence[str]) -> pl.DataFrame:
    path = _path(name, store)
    _check_exists(name, store)
    return _table(path, columns)


def _table(path: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of the runs in a file."""
    with local(path) as file, _refused(path):
        content = file.read_bytes()
        said = json.loads(pl.read_parquet_metadata(io.BytesIO(content)).get("annot", "{}"))
        if not isinstance(said, dict) or said.get("baseline") != _VERSION:
            newer = isinstance(said, dict) and "baseline" in said
            raise ValueError("another version of annot wrote it" if newer else "annot did not write it")
        seal = str(said.get("sha256"))
        before, _, after = content.rpartition(seal.encode())
        if hashlib.sha256(before + _UNSEALED.encode() + after).hexdigest() != seal:
            raise ValueError("it is damaged")
        table = pl.read_parquet(io.BytesIO(content), columns=[*columns])
        if wrong := [name for name, dtype in ORIGIN.items() if table.schema[name] != dtype]:
            raise ValueError(f"its column {wrong[0]} has the type {table.schema[wrong[0]]}")
        if table.is_empty():
            raise ValueError("it has no runs")
    return table


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Raise AnnotError for the errors of a damaged or foreign file."""
    try:
        yield
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise AnnotError(f"{path} is not a baseline of annot: {reason}") from None


def _origin(run: Digest) -> pl.DataFrame:
    """Return the row of a run with the columns `ORIGIN`."""
    commit, dirty = current_commit()
    step = run.steps["step_ns"].median()
    values: dict[str, Any] = {
        "source": str(run.meta.get("source") or ""),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "host": socket.gethostname() or None,
        "cores": os.cpu_count(),
        "cpu": run.meta.get("cpu") or None,
        "gpu": ", ".join(run.meta.get("devices") or ()) or None,
        "annot": version(),
        "step_count": run.steps.height,
        "step_ns": None if step is None else round(float(step)),  # type: ignore[arg-type]
    }
    return pl.DataFrame([values], schema=dict(ORIGIN))


def current_commit() -> tuple[str | None, bool | None]:
    """Return the commit of the working directory, and whether tracked files differ from it; None outside Git."""
    commit = _git("rev-parse", "--verify", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    return commit or None, None if changes is None else bool(changes)


def _git(*words: str) -> str | None:
    """Return the output of a command of Git, None if it fails."""
    try:
        done = subprocess.run(
            ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
