"""`annot bisect` in generated histories of 30 commits: one slow commit at different places and in different layers.

Two commits before and two after the slow one do not run. A line per history says what was found, with the number of
runs and the time. The second table has error rates of decisions, by simulation, for noise of several kinds.

    PYTHONPATH=tests/support python tests/bench/bench_bisect.py [numbers of histories]
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from slow_history import BROKEN, journal, slow_history

from annot.bisect.evidence import Spread, likeness, smallest_size

COMMITS = 30
CHANGES = {
    "attention": ('"attention": 5000', '"attention": 6500'),
    "mlp": ('"mlp": 5000', '"mlp": 6500'),
    "head": ('"head": 4000', '"head": 5200'),
    "embed": ('"embed": 3000', '"embed": 3900'),
    "cache": ('"head": 4000', '"cache": 3000, "head": 4000'),
}
"""Changes by layer: 30 % longer, or new."""
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray[tuple[int], np.dtype[np.float64]]]] = {
    "normal": lambda random, count: random.normal(0, 1, count),
    "heavy tails (t, 3 degrees)": lambda random, count: random.standard_t(3, count) / math.sqrt(3),
    "hiccups in 20 % of pairs": lambda random, count: (
        random.normal(0, 1, count)
        + (random.random(count) < 0.2) * random.choice([-1.0, 1.0], count) * random.exponential(5, count)
    ),
}


def search(number: int) -> bool:
    """Search the slow commit of a history, print the result, and return whether it is right."""
    random, layer = Random(number), list(CHANGES)[number % len(CHANGES)]
    slow = 1 + number * 11 % (COMMITS - 1)
    others = [*range(1, slow)], [*range(slow + 1, COMMITS - 1)]
    broken = [place for side in others for place in random.sample(side, min(2, len(side)))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        kinds = {place: random.choice(list(BROKEN)) for place in broken if place != slow - 1}
        hashes = slow_history(folder, COMMITS, slow, CHANGES[layer], kinds)
        words = ["bisect", "--good", hashes[0], "--collector", "recorder", "--format", "json", "--", sys.executable]
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "annot", *words, "train.py"], cwd=folder, capture_output=True, text=True, check=False
        )
        seconds, runs = time.monotonic() - start, len(journal(folder))
    answer = json.loads(done.stdout) if done.stdout else {"first_slow": None, "change": None, "suspects": []}
    commit, change = answer["first_slow"] or {"hash": ""}, answer["change"] or {"layer": "", "factor": 0.0}
    right = (commit["hash"], change["layer"]) == (hashes[slow], layer)
    what = f"{change['layer']} {change['factor']:.3f}"
    print(f"{layer:>10} at {slow:2}: {'right' if right else 'WRONG'}, {what}, {runs} runs, {seconds:.0f} s", flush=True)
    if not right:
        print(f"{done.stdout}{done.stderr}")
    return right


def rates(noise: str, spread: float, repetitions: int = 4000, error: float = 0.002, most: int = 20) -> str:
    """Return how often decisions about commits are wrong or open, and their mean number of pairs."""
    random, wrong, unclear, pairs, total = np.random.default_rng(0), 0, 0, 0, 0
    for change in (0.0, 1.0):
        for _ in range(repetitions):
            reference = (1 + spread * NOISES[noise](random, 5)).tolist()
            size, known = smallest_size(reference), Spread.of(reference)
            if size <= 0:
                continue
            values = (change + spread * NOISES[noise](random, most)).tolist()
            decided = ((count, likeness(values[:count], size, known, error)) for count in range(2, most + 1))
            count, result = next(((count, result) for count, result in decided if result), (most, None))
            wrong += result == ("bad" if change == 0 else "good")
            unclear += result is None
            pairs, total = pairs + count, total + 1
    return f"{wrong / total:.2%} wrong, {unclear / total:.1%} unclear, {pairs / total:.1f} pairs"


def main() -> int:
    """Print both tables, and return 1 if a search was wrong."""
    for noise in NOISES:
        for spread in (0.2, 0.4, 0.6):
            print(f"{noise}, standard deviation of a pair {spread:.0%} of the change: {rates(noise, spread)}")
    numbers = [int(word) for word in sys.argv[1:]] or range(10)
    right = sum(map(search, numbers))
    print(f"{right} of {len(numbers)} right")
    return 0 if right == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
