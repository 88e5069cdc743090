"""Read damaged profiles one after the other and print a line for each failed case.

    python tests/support/fuzz_worker.py FORMAT FIRST COUNT [KEEP]

FORMAT is one of `FORMATS`, or ``all``. Cases are numbered from FIRST; a number always produces the same case. Files of
failed cases are copied to the folder KEEP. A case succeeds if it gives a consistent result, or an error in one sentence
with the file name, within limits of time and memory. A case that exceeds a limit ends the process; the last line of
the output then has its number.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import polars as pl
from fuzz_csv import ncu_csv, nvprof_csv
from fuzz_folders import ncu_rep, nsys_rep, parquet, parts
from fuzz_kineto import bomb, kineto, kineto_real
from fuzz_protobuf import pftrace, xplane
from fuzz_proton import proton
from fuzz_sqlite import nsys, nsys_real, nvprof

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_kernel, by_layer, by_module, by_op, by_phase
from annot.attribution.summary import by_step, summarize
from annot.cli.main import main as command_line
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.formats import load, source

FORMATS: dict[str, Callable[[Path, random.Random], None]] = {
    "nsys": nsys, "nvprof": nvprof, "kineto": kineto, "ncu_csv": ncu_csv, "nvprof_csv": nvprof_csv, "xplane": xplane,
    "parts": parts, "parquet": parquet, "ncu_rep": ncu_rep, "nsys_rep": nsys_rep, "bomb": bomb,
    "nsys_real": nsys_real, "kineto_real": kineto_real, "proton": proton, "pftrace": pftrace,
}  # fmt: skip

_SECONDS = 60
_MEMORY = 1 << 30
_ADDRESSES = 16 << 30
_FORMS: tuple[list[str], ...] = (
    ["--format", "json"], ["--format", "json", "--by", "step"], ["--by", "kernel"], [],
    ["--format", "csv", "--by", "op"], ["--format", "json", "--by", "kernel", "--steps", "1:3"], ["--by-process"],
    ["--format", "json", "--by-process"], ["--domain", "annot"], ["--step-range", "Batch #"],
)  # fmt: skip


class WrongError(Exception):
    """A case gave a wrong result."""


def check(path: Path, chance: random.Random) -> str:
    """Read the file and make all reports of it. Return "read" or "refused".

    Raises:
        WrongError: a result is inconsistent, or an error message is malformed.
    """
    before = _listing(path.parent)
    outcome, seen = _outcome(path, thorough=chance.random() < 0.25)
    if chance.random() < 0.05:
        _same(_outcome(path, thorough=False), (outcome, seen))
    if chance.random() < 0.1:
        _report(path, chance.choice(_FORMS), outcome)
    if _listing(path.parent) != before:
        raise WrongError("reading changed the folder of the file")
    return outcome


def _outcome(path: Path, *, thorough: bool) -> tuple[str, Any]:
    try:
        profile = load(path)
        layers = _layers(profile, thorough=thorough)
        if thorough and not by_layer(attribute(source(path))).equals(layers):
            raise WrongError("reading in blocks gives another result")
        return "read", (profile, layers)
    except AnnotError as error:
        _sentence(str(error), path)
        return "refused", str(error)


def _sentence(message: str, path: Path) -> None:
    if path.name not in message or not message.isprintable() or len(message) > 1000:
        raise WrongError(f"the error is not a sentence with the file name: {message[:2000]!r}")


def _layers(profile: Profile, *, thorough: bool) -> pl.DataFrame:
    attribution = attribute(profile)
    total = sum(
        max(end - start, 0)
        for table in (profile.kernels, profile.copies)
        for start, end in table.select("start", "end").drop_nulls().iter_rows()
    )
    summary = summarize(attribution)
    rows = by_layer(attribution)
    parts_ = summary["attributed_gpu_ns"] + summary["unattributed_gpu_ns"]
    if {summary["gpu_ns"], parts_, rows["gpu_self_ns"].sum()} != {total}:
        raise WrongError(f"GPU time {total} became {summary['gpu_ns']}, {parts_} and {rows['gpu_self_ns'].sum()}")
    counts = profile.kernels.height, profile.copies.height
    summed = rows.select(pl.col("kernels", "copies").sum()).row(0)
    if counts != (summary["kernels"], summary["copies"]) or counts != summed:
        raise WrongError(f"{counts} kernels and copies became {summary['kernels']} and {summary['copies']}")
    for column in ("host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "gpu_busy_ns", "gpu_span_ns"):
        least: Any = rows[column].min()
        if least is not None and least < 0:
            raise WrongError(f"{column} of a layer is negative: {least}")
    for group in (by_kernel, by_module, by_op, by_phase, by_step) if thorough else ():
        group(attribution)
    return rows


def _same(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    if one[0] == other[0] == "read":
        (first, rows), (second, again) = one[1], other[1]
        tables = ("ranges", "marks", "launches", "kernels", "copies", "metrics")
        alike = all(getattr(first, table).equals(getattr(second, table)) for table in tables)
        alike = alike and repr(first.meta) == repr(second.meta) and rows.equals(again)
    else:
        alike = one == other
    if not alike:
        raise WrongError("a second reading gives another result")


def _report(path: Path, options: list[str], outcome: str) -> None:
    """Run `annot report` in this process and check its output."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command_line(["report", str(path), *options])
    out.flush()
    text, errors = out.buffer.getvalue().decode(), err.getvalue()
    if status == 1:
        _sentence(errors.removesuffix("\n"), path)
        if not errors.startswith("annot: error: "):
            raise WrongError(f"{options} printed {errors!r}")
    elif status or errors:
        raise WrongError(f"{options} ended with {status} and printed {errors!r}")
    elif outcome == "refused" and "--by-process" not in options:  # it reads fewer tables
        raise WrongError(f"{options} accepts a file that load() refuses")
    elif "json" in options:
        json.loads(text, parse_constant=_no_number)
    elif "--format" not in options and "\x1b" in text:
        raise WrongError(f"{options} prints an escape sequence")


def _no_number(text: str) -> None:
    raise WrongError(f"{text} is not valid JSON")


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    return [(entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in sorted(folder.rglob("*"))]


def run(format_: str, number: int, folder: Path) -> str:
    """Create and check one case."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    chance = random.Random(f"{format_} {number}")
    path = folder / f"case{number}.x"
    FORMATS[format_](path, chance)
    _forget_peak()
    outcome = check(path, chance)
    if (peak := _peak()) > _MEMORY:
        raise WrongError(f"the process used {peak >> 20} MiB")
    return outcome


def main(format_: str, first: int, count: int, keep: Path | None = None) -> int:
    """Run cases and return the number of failures."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # ASan reserves terabytes of address space
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    counts = {"read": 0, "refused": 0, "failed": 0}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        for number in range(first, first + count):
            print(f"case {format_} {number}", end="\r", flush=True)
            faulthandler.dump_traceback_later(_SECONDS, exit=True)
            try:
                counts[run(format_, number, Path(scratch) / "files")] += 1
                problem = ""
            except BaseException:
                problem = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            if problem:
                counts["failed"] += 1
                print(f"FAILED {format_} {number}: {problem}", flush=True)
                if keep:
                    shutil.copytree(Path(scratch) / "files", keep / format_, dirs_exist_ok=True)
    print(json.dumps({format_: counts}))
    return counts["failed"]


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Return the peak memory of the process since `_forget_peak`, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


if __name__ == "__main__":
    wanted, first_, count_, *kept = sys.argv[1:]
    names = FORMATS if wanted == "all" else [wanted]
    sys.exit(min(1, sum(main(name, int(first_), int(count_), Path(kept[0]) if kept else None) for name in names)))
