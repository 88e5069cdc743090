"""Speedups of `annot try` beside those of the same changes made by hand in copies of the programs.

Run by hand on a quiet machine, about an hour for the six programs: ``python tests/bench/bench_try.py measure FOLDER``.
The programs of Keras need an environment with TensorFlow, and the same folder. For each program of `try_programs`,
`annot try` measures the changes that can help. Then copies with the same changes, see `try_edits`, run in turns with
the program, each in a fresh process. A program prints the time of each step. Its step time is that of the same steps
that `annot try` measures, from their times in the same way.

``python tests/bench/bench_try.py table FOLDER`` prints what was measured, as Markdown:

- agree: both intervals overlap. A change that fails by hand must fail in `annot try`, too, and one that is not applied
  must change nothing by hand; "-": the program has nothing that the change could be made to by hand. If the loss of the
  program itself is NaN, `annot try` must say so.
- order: `annot try` has the change on the right side of each other change whose interval by hand is apart.
- bound: share of the step that advice says the change saves at most; gain: share that `annot try` measured.

The three last programs go wrong: torch.compile raises, float16 overflows, the loss is NaN.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from try_edits import EDITS, PROGRAMS, edited

from annot.live.request import Result
from annot.trial.speed import speedup, steadiest

NEEDS: Final = {"hf_trainer": ("torch", "transformers"), "keras_cnn": ("tensorflow", "keras")}
"""Packages of programs; those of the others are PyTorch's."""
CHANGES: Final = {"gradient_penalty": "compile", "prices": "bf16,fp16", "nan_loss": "compile"}
"""Changes to try on a program; for the others those that can help."""
_BASE: Final = "base"
_LINE: Final = re.compile(r"^step (\d+): loss (\S+) at (\S+) s$", re.M)


Run: TypeAlias = "list[int] | str"
"""Times (ns) of the measured steps, or why there are none."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speedup with its interval, or the problem of a change.

    Args:
        factor: above 1: faster; None: not measured.
        low, high: interval of the factor; None: too few runs.
        problem: why the change is no use; empty: it is measured.
    """

    factor: float | None = None
    low: float | None = None
    high: float | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.factor is None or self.problem:
            return self.problem or "not measured"
        return f"{self.factor:.2f}" + ("" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})")

    def is_apart(self, other: Speedup) -> bool | None:
        """Return whether the intervals do not overlap; None: one is unknown."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True, slots=True)
class Tried:
    """What `annot try` says about a change."""

    change: str
    speedup: Speedup
    verdict: str
    bound: float | None

    def __str__(self) -> str:
        if self.speedup.problem or self.verdict in ("faster", "slower", "same speed"):
            return str(self.speedup)
        return f"{self.speedup}, {self.verdict}"


def answer(program: str, changes: str, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the answer of `annot try` on a program; one that is already in the folder is not measured again."""
    words = [sys.executable, "-m", "annot", "try", "--format", "json", "--repeat", str(options.rounds)]
    words += [
        "--collector",
        options.collector,
        "--steps",
        str(options.steps),
        "-o",
        str(options.folder / f"{program}.try"),
    ]
    words += ["--change", changes] if changes else []
    stored = options.folder / f"{program}.answer.json"
    if not stored.exists():
        program_words = [sys.executable, str(PROGRAMS / f"{program}.py")]
        done = subprocess.run([*words, "--", *program_words], stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, 5):  # 5: no change is faster
            raise SystemExit(f"annot try ended with status {done.returncode}")
        stored.write_bytes(done.stdout)
    loaded: Mapping[str, Any] = json.loads(stored.read_bytes())
    return loaded


def tried(said: Mapping[str, Any]) -> list[Tried]:
    """Return the rows of an answer with a single change, in its order."""
    rows = []
    for row in said["rows"]:
        problem = f"{row['verdict']}: {row['reason']}" if row["speedup"] is None else ""
        speedup = Speedup(row["speedup"], row["low"], row["high"], problem)
        if len(row["changes"]) == 1:
            rows.append(Tried(row["changes"][0], speedup, row["verdict"], row["bound"]))
    return rows


def measure(options: argparse.Namespace) -> None:
    """Measure programs with `annot try`, and their copies with changes made by hand."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for program in options.programs or EDITS:
        missing = [name for name in NEEDS.get(program, ("torch",)) if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{program} is skipped: {', '.join(missing)} is not installed", flush=True)
            continue
        said = answer(program, options.change or CHANGES.get(program, ""), options)
        names = [row.change for row in tried(said) if row.change in EDITS[program]]
        print(f"{program}: {', '.join(names)} by hand", flush=True)
        window = said["warmup"], said["warmup"] + said["steps"]
        by_hand(program, names, window, options)


def by_hand(program: str, names: Sequence[str], window: tuple[int, int], options: argparse.Namespace) -> None:
    """Run copies of a program in turns, and write the step times or problems of each run into the folder."""
    copies, stored = options.folder / program, options.folder / f"{program}.hand.json"
    copies.mkdir(exist_ok=True)
    (copies / f"{_BASE}.py").write_text((PROGRAMS / f"{program}.py").read_text(encoding="utf-8"), encoding="utf-8")
    for name in names:
        (copies / f"{name}.py").write_text(edited(program, name), encoding="utf-8")
    runs: dict[str, list[Run]] = json.loads(stored.read_bytes()) if stored.exists() else {}
    for number in range(options.rounds):
        for name in [_BASE, *names][:: -1 if number % 2 else 1]:
            of_copy = runs.setdefault(name, [])
            if len(of_copy) <= number:
                of_copy.append(_run(copies / f"{name}.py", window))
                stored.write_text(json.dumps(runs))
                print(f"  {name} {number + 1} of {options.rounds}: {_in_words(of_copy[-1])}", flush=True)


def _run(script: Path, window: tuple[int, int]) -> Run:
    """Return the times (ns) of the measured steps of a run, or its problem."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANNOT_")}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit status {done.returncode}: {done.stderr.strip().splitlines()[-1]}"
    stamps = [(int(step), float(loss), float(seconds)) for step, loss, seconds in _LINE.findall(done.stdout)]
    wrong = next((step for step, loss, _ in stamps if not abs(loss) < float("inf")), None)
    if wrong is not None:
        return f"the loss of step {wrong + 1} is NaN or infinite"
    return step_times([(step + 1, seconds) for step, _, seconds in stamps], *window)


def step_times(stamps: Sequence[tuple[int, float]], start: int, end: int) -> list[int]:
    """Return the times (ns) of steps. Steps between two stamps share their time.

    Args:
        stamps: number of finished steps, and the time (s) then.
        start, end: finished steps between which the times are, if there are stamps then.

    Example:
        >>> step_times([(1, 2.0), (2, 4.0), (4, 5.0)], 1, 4)
        [2000000000, 500000000, 500000000]
    """
    times = list[int]()
    for (first, before), (last, after) in pairwise(stamps):
        if start <= first < end:
            times += [round((after - before) * 1e9 / (last - first))] * (last - first)
    return times


def _in_words(run: Run) -> str:
    return run if isinstance(run, str) else f"{median(run) / 1e6:.1f} ms"


def by_hand_speedups(runs: Mapping[str, Sequence[Run]]) -> dict[str, Speedup]:
    """Return the speedup of each copy over the program."""
    results = {
        name: [Result(step_ns=run, device="cpu") for run in of_copy if not isinstance(run, str)]
        for name, of_copy in runs.items()
    }
    problems = {name: next((run for run in runs[name] if isinstance(run, str)), "") for name in runs}
    share, speedups = steadiest(results.values()), {}
    for name in runs:
        times = speedup(results[_BASE], results[name], share)
        problem = problems[_BASE] or problems[name]
        speedups[name] = (
            Speedup(problem=problem) if times is None else Speedup(times.factor, times.low, times.high, problem)
        )
    return speedups


def table(options: argparse.Namespace) -> None:
    """Print what was measured."""
    print("| program | change | by hand | annot try | agree? | order right? | bound | gain |")
    print("|---|---|---|---|---|---|---|---|")
    notes = list[str]()
    for program in EDITS:
        stored, said_file = (options.folder / f"{program}.{kind}.json" for kind in ("hand", "answer"))
        if stored.exists():
            said, runs = json.loads(said_file.read_bytes()), json.loads(stored.read_bytes())
            for line in _lines(program, said, runs):
                print(line)
            notes.append(f"{program}: {said['repeats']}; not tried: {said['left_out'] or 'none'}")
    print("", *notes, sep="\n")


def _lines(program: str, said: Mapping[str, Any], runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    rows = tried(said)
    is_nan = any(isinstance(run, str) for run in runs[_BASE]) and "NaN" in said["repeats"]
    by_hand = by_hand_speedups(runs)
    hands = {row.change: by_hand.get(row.change, Speedup()) for row in rows}
    for place, row in enumerate(rows):
        hand, ours = hands[row.change], row.speedup
        order = all(
            not hand.is_apart(hands[other.change])
            or ((hand.factor or 0) > (hands[other.change].factor or 0)) == (place < behind)
            for behind, other in enumerate(rows)
            if row.change != other.change
        )
        gain = None if ours.factor is None else 1 - 1 / ours.factor
        exceeds = None not in (row.bound, ours.low) and (row.bound or 0) < 1 - 1 / (ours.low or 1)
        agrees = "yes" if is_nan else "-" if row.change not in runs else _agreement(hand, ours)
        cells = [program, row.change, str(hand), str(row), agrees, "yes" if order else "NO"]
        cells += [_percent(row.bound), _percent(gain) + " (more)" * exceeds]
        yield f"| {' | '.join(cells)} |"


def _agreement(hand: Speedup, ours: Speedup) -> str:
    if "not applied" in ours.problem and hand.low is not None and hand.high is not None:
        return "yes" if hand.low <= 1 <= hand.high else "NO"
    if hand.problem or ours.problem:
        return "yes" if hand.problem and ours.problem else "NO"
    apart = hand.is_apart(ours)
    return "?" if apart is None else "NO" if apart else "yes"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def main() -> None:
    """Measure, or print the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers()
    measuring = verbs.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(EDITS)}; default: all")
    measuring.add_argument("--change", default="", metavar="NAME,...", help="default: those that can help")
    measuring.add_argument("--rounds", type=int, default=5)
    measuring.add_argument("--steps", type=int, default=25)
    measuring.add_argument("--collector", default="auto", help="as for annot try")
    measuring.set_defaults(run=measure)
    printing = verbs.add_parser("table")
    printing.add_argument("folder", type=Path)
    printing.set_defaults(run=table)
    parser.set_defaults(run=lambda options: parser.print_help())  # as in `make bench`
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
