"""Memory and CPU time of every view of a profile with millions of ranges of operations in deep trees.

Run by hand: ``PYTHONPATH=tests/support python tests/bench/bench_views.py [PROFILE.sqlite --copies 365]``. The views are
measured on a profile that contains PROFILE, an Nsight Systems export, N times, with times, texts and ids of their own.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bench_correlate import ANNOT, timed
from copied_profile import write_copies
from large_profile import write_profile

_BY: Final = ("op", "kernel", "kind", "module", "phase", "step", "expert", "stage", "summary", "advice")
_COLUMNS: Final = ("work", "roofline", "tensor", "memory", "communication", "all")
_FILES: Final = ("layers.json", "layers.csv", "layers.parquet", "page.html")
_EACH: Final = ("each.json", "each.csv", "each.parquet")


def commands(profile: Path, folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the command of each view, which writes its files into a folder."""
    options: dict[str, tuple[str, ...]] = {"(default)": ()}
    options |= {f"--by {by}": ("--by", by) for by in _BY}
    options |= {f"--columns {columns}": ("--columns", columns) for columns in _COLUMNS}
    for by, columns in (("op", "work"), ("op", "roofline"), ("module", "roofline"), ("module", "tensor")):
        options[f"--by {by} --columns {columns}"] = ("--by", by, "--columns", columns)
    options |= {f"-o {name}": ("-o", str(folder / name)) for name in _FILES}
    options |= {f"--each -o {name}": ("--each", "-o", str(folder / name)) for name in _EACH}
    options |= {"--each": ("--each",), "--by kernel --each": ("--by", "kernel", "--each")}
    options["--by-process"] = ("--by-process", "--workers", "1")
    options["--format trace"] = ("--format", "trace", "-o", str(folder / "trace.json.gz"))
    options["--format tensorboard"] = ("--format", "tensorboard", "-o", str(folder / "log"))
    views = {name: (*ANNOT, *one, str(profile)) for name, one in options.items()}
    return views | {"annot compare": (*ANNOT[:-1], "compare", str(profile), str(profile))}


def main() -> None:
    """Print the cost of the views that are named, or of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("profile", type=Path, nargs="?", help="default: one of 20,000 events is made")
    parser.add_argument("--view", action="append", help="the start of a line of the output; default: all")
    parser.add_argument("--copies", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="annot-") as name:
        profile, files = Path(name) / "copies.sqlite", Path(name) / "files"
        if (source := args.profile) is None:
            write_profile(source := Path(name) / "small.sqlite", 20_000)
        write_copies(source, profile, args.copies)
        print(f"{profile.stat().st_size / 1e6:,.0f} MB", flush=True)
        views = commands(profile, files)
        for view in args.view or views:
            files.mkdir()
            cost = timed(views[view])
            print(f"{view:40} {cost.memory:5.2f} GiB {cost.cpu_seconds:7.1f} s", flush=True)
            shutil.rmtree(files)


if __name__ == "__main__":
    main()
