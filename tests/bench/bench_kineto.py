"""What reading a Kineto trace of 500 MB costs, next to `json.load` of the same file.

Run by hand: ``python tests/bench/bench_kineto.py [MEGABYTES]``. The trace is a real one, repeated with times and
ids that go on. Each reading has a process of its own. Of `json.load` the call alone counts, of annot the whole
process with its imports.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import report

TRACE = "hta_resnet_ddp_a100_fwdbwd_gua.json.gz"
PLACES = [parent / "shared" / "data" / "kineto" / TRACE for parent in Path(__file__).resolve().parents[2:4]]
NUMBERS = re.compile(r'("(?:ts|correlation|External id|id|Sequence number)": )(\d+)')
STEP = 2_000_000
ROUNDS = 3

READERS = {
    "json.load": "import json; begin = time.perf_counter(); json.load(open(sys.argv[1]))",
    "annot.load": "import annot; annot.load(sys.argv[1])",
}
CLOCK = "import resource, sys, time; begin = None; "
FIGURES = "; print(begin and time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def write_trace(path: Path, megabytes: int) -> None:
    """Write a real trace over and over, with times, correlations, flows and sequence numbers shifted."""
    source = next((place for place in PLACES if place.exists()), None)
    if source is None:
        raise SystemExit(f"the bench needs the real trace {TRACE}")
    text = gzip.decompress(source.read_bytes()).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]", 0, text.index('"INFO"', begin))
    # Literal, key, number, literal, key, number, ..., literal.
    pieces = NUMBERS.split(text[begin:end].rstrip())
    numbers = [int(number) for number in pieces[2::3]]
    with path.open("w") as file:
        file.write(text[:begin])
        for copy in range(max(1, megabytes * 1_000_000 // (end - begin))):
            pieces[2::3] = [str(number + copy * STEP) for number in numbers]
            file.write("," * (copy > 0) + "".join(pieces))
        file.write(text[end:])


def measure(code: str, path: Path) -> tuple[float, float]:
    """Return the seconds and the peak in GiB of a process that runs `code` on the file."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", CLOCK + code + FIGURES, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    whole = time.perf_counter() - begin
    alone, peak = done.stdout.split()
    return whole if alone == "None" else float(alone), int(peak) / (1 << 20)


def main() -> None:
    """Time both readers in turn, and print the best round of each against the budget."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, megabytes)
        print(f"bench_kineto: {path.stat().st_size / 1e6:.0f} MB, best of {ROUNDS}", flush=True)
        best = {name: (float("inf"), 0.0) for name in READERS}
        for _ in range(ROUNDS):
            for name, code in READERS.items():
                best[name] = min(best[name], measure(code, path))
    plain, plain_peak = best["json.load"]
    ours, peak = best["annot.load"]
    report("json.load", plain, "s", note=f"{plain_peak:.2f} GiB")
    report("annot.load", ours, "s", plain / 3)
    report("annot.load, of the time of json.load", ours / plain, "", 1 / 3)
    report("annot.load, peak", peak, "GiB", 0.5)


if __name__ == "__main__":
    main()
