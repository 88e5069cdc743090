"""How often `annot compare --fail-above` is wrong: comparisons of the same code, and of code with one slower layer.

Run by hand: ``python tests/bench/bench_gate.py record FOLDER --rounds 65`` trains `gate_training.py` beside processes
that work in bursts, two plain runs and a run per slowdown in each round, and keeps a digest of each run. Then
``python tests/bench/bench_gate.py rates FOLDER ...`` compares 5 with 5 runs:

- the same code: 10 successive plain runs, of which each pair of neighbours has one run on each side. There are 16 such
  comparisons of 10 runs, so that those of the same 10 runs depend on each other.
- slower code: the first plain runs of 5 successive rounds, and the runs of a slowdown in these rounds. Comparisons
  overlap, so that there are as many as rounds, less 4.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from gate_training import SLOWED

from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import Digest, as_row, digest, from_row
from annot.analyze.comparison.gate import Decision, decide
from annot.collect.alternate import Command, alternate
from annot.runs.run import Run

RUNS = 5
SLOWDOWNS = (0.03, 0.1)
_PLAIN = ("plain", "again")
_BURST, _PAUSE = 0.4, 0.8
"""Mean length (s) of the bursts of a load process and of the pauses between them; both vary exponentially."""


def work_in_bursts(seed: int, device: str) -> None:
    """Use one CPU core or the GPU in bursts of random length, forever."""
    draw = random.Random(seed)
    busy: Callable[[], object] = (lambda: sum(range(2000))) if device == "cpu" else _gpu_work()
    while True:
        end = time.perf_counter() + draw.expovariate(1 / _BURST)
        while time.perf_counter() < end:
            busy()
        time.sleep(draw.expovariate(1 / _PAUSE))


def _gpu_work() -> Callable[[], object]:
    import torch

    matrix = torch.randn(2048, 2048, device="cuda")

    def multiply() -> None:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()

    return multiply


@contextmanager
def load(processes: int, device: str) -> Iterator[None]:
    """Run load processes."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work_in_bursts, args=(seed, device), daemon=True) for seed in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()


def record(options: argparse.Namespace) -> None:
    """Record the runs of all rounds."""
    program = [sys.executable, str(Path(__file__).with_name("gate_training.py")), "--device", options.device]
    program += ["--threads", str(options.threads), "--steps", str(options.steps)]
    names = {**dict.fromkeys(_PLAIN, 0.0), **{f"slow{share}": share for share in SLOWDOWNS}}
    commands = [Command(name=f"{name}-", words=[*program, "--slow", str(share)]) for name, share in names.items()]
    with load(options.load, options.device):
        runs = alternate(commands, options.rounds, options.folder, collector=options.collector, say=print)
        for run in runs:
            kept = options.folder / f"{run.name}{run.number}.parquet"
            as_row(digest(Run(run.profile).attribution)).write_parquet(kept)
            run.profile.unlink()


def digests(folder: Path, name: str) -> list[Digest]:
    """Return the digests of the runs of a command, in order."""
    files = (folder / f"{name}-{number}.parquet" for number in itertools.count(1))
    return [from_row(pl.read_parquet(file)) for file in itertools.takewhile(Path.exists, files)]


def same_code(plain: Sequence[Digest]) -> Iterator[tuple[list[Digest], list[Digest]]]:
    """Yield the comparisons of runs of the same code."""
    for start in range(0, len(plain) - 2 * RUNS + 1, 2 * RUNS):
        pairs = [plain[at : at + 2] for at in range(start, start + 2 * RUNS, 2)]
        for swaps in itertools.product((0, 1), repeat=RUNS - 1):
            sides = [(pair[swap], pair[1 - swap]) for pair, swap in zip(pairs, (0, *swaps), strict=True)]
            yield [first for first, _ in sides], [second for _, second in sides]


def rates(options: argparse.Namespace) -> None:
    """Print how many comparisons find a slowdown, in all folders together; a folder has the runs of one machine."""
    decisions: dict[float, list[Decision]] = {share: [] for share in (0.0, *SLOWDOWNS)}
    for folder in options.folders:
        first, second = (digests(folder, name) for name in _PLAIN)
        pairs = list(same_code([run for pair in zip(first, second, strict=False) for run in pair]))
        for share in SLOWDOWNS:
            slow = digests(folder, f"slow{share}")
            number = min(len(slow), len(first)) - RUNS + 1
            slowed = [(first[at : at + RUNS], slow[at : at + RUNS]) for at in range(number)]
            decisions[share] += [_decided(pair, options) for pair in slowed]
        decisions[0.0] += [_decided(pair, options) for pair in pairs]
    print(f"{RUNS} x {RUNS} runs, level {options.level:g}, more than {options.above:g} times as long")
    for share, each in decisions.items():
        named = sum(bool(made.rows.height) and made.rows["layer"][0] == SLOWED for made in each)
        what = f"{SLOWED} slower by {share:.0%}" if share else "same code"
        print(f"{what}: {_counts(each)}; {named} name {SLOWED} first", flush=True)


def _decided(sides: tuple[Sequence[Digest], Sequence[Digest]], options: argparse.Namespace) -> Decision:
    return decide(compare(*sides), above=options.above, level=options.level)


def _counts(decisions: Sequence[Decision]) -> str:
    counts = Counter(each.status for each in decisions)
    return f"{len(decisions)} comparisons: " + ", ".join(
        f"{count} {status}" for status, count in sorted(counts.items())
    )


def main() -> None:
    """Record runs, or print the rates of recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.set_defaults(run=lambda options: parser.print_help())  # as in `make bench`
    verbs = parser.add_subparsers()
    recording = verbs.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--rounds", type=int, default=65)
    recording.add_argument("--device", default="cpu")
    recording.add_argument("--collector", default="recorder")
    recording.add_argument("--steps", type=int, default=40)
    recording.add_argument("--threads", type=int, default=0)
    recording.add_argument("--load", type=int, default=2, help="processes that work in bursts")
    recording.set_defaults(run=record)
    rating = verbs.add_parser("rates")
    rating.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    rating.add_argument("--above", type=float, default=1.05)
    rating.add_argument("--level", type=float, default=0.01)
    rating.set_defaults(run=rates)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
