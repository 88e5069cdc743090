"""Made measurements of runs, as the processes of `annot try` write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from annot.changes.change import Change, Numbers
from annot.changes.registry import Candidate
from annot.live.request import Request, Result
from annot.trial.records import BASE, Kind, Record

WARMUP = 2
LOSSES = [2.0, 1.8, 1.5, 1.3]


def result(steps: Sequence[float], *, first: float = 10.0, **values: Any) -> Result:
    """Return measurements of steps with times in ms, after a warm-up of `WARMUP` steps of `first` ms in all."""
    ns = [round(1e6 * time) for time in (first / WARMUP, first / WARMUP, *steps)]
    return Result(
        **{
            "framework": "torch",
            "trains": True,
            "warmup": WARMUP,
            "step_ns": ns,
            "window_ns": sum(ns[WARMUP:]),
            "device": "cpu",
            "ended": "steps",
            **values,
        }
    )


def change(name: str, numbers: Numbers = "rounding", tolerance: float = 0.01, **values: Any) -> Change:
    """Return a change that fits any program."""
    return Change(
        name=name,
        title=f"title of {name}",
        framework="torch",
        live=f"module:{name}",
        numbers=numbers,
        tolerance=tolerance,
        code=f"apply({name})",
        fits=lambda facts: "",
        **values,
    )


def candidates(*names: str, **bounds: float) -> dict[str, Candidate]:
    """Return changes to try; those with a bound are proposed by advice."""
    return {name: Candidate(change(name), bounds.get(name)) for name in names}


class Records(list[Record]):
    """Records of runs, in order."""

    def check(self, name: str = BASE, losses: Sequence[float | None] = LOSSES, **values: Any) -> None:
        """Add a run that checks training."""
        problem = values.pop("problem", "")
        self._add(name, "check", result([8.0] * 4, losses=list(losses), **values), problem=problem)

    def timed(self, name: str, *times: float, stage: int = 0, **values: Any) -> None:
        """Add a timed run of 12 steps for each time in ms."""
        for time in times:
            self._add(name, "timed", result([time] * 12, **values), stage=stage)

    def _add(self, name: str, kind: Kind, result: Result, problem: str = "", stage: int = 0) -> None:
        number = 1 + sum((record.name, record.kind) == (name, kind) for record in self)
        profile = f"{name}.check{number}.sqlite" if kind == "check" else ""
        self.append(
            Record(
                name=name,
                kind=kind,
                number=number,
                stage=stage,
                request=Request(result="", warmup=WARMUP, steps=12),
                status=0,
                seconds=1.0,
                problem=problem,
                result=result,
                profile=profile,
            )
        )
