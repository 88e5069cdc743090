"""Reader for sweep files: a command and the grid of parameters to run it with."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from annot.attribution.steps import step_slice
from annot.collect.collectors import COLLECTORS
from annot.errors import AnnotError

Value: TypeAlias = "bool | int | float | str"
"""Value of a parameter."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_KEYS: Final = {
    "": {"command", "environment", "grid", "plots"},
    "command": {"run", "collector", "timeout", "steps"},
    "plots": {"batch", "hidden", "color", "peak_flops", "peak_bandwidth"},
}
_BATCH: Final = ("batch", "batch_size", "bs")
_HIDDEN: Final = ("hidden", "hidden_size", "nodes", "embedding", "width", "dim")
_USUAL: Final = {"batch": _BATCH, "hidden": _HIDDEN, "color": _BATCH}
"""Usual names of parameters by role; [plots] overrides them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a sweep."""

    parameters: dict[str, Value]
    command: tuple[str, ...]
    environment: dict[str, str]
    """Variables added to the environment of the sweep."""
    key: str
    """Hash of command, environment and collector."""

    @property
    def name(self) -> str:
        """Parameters on one line, such as ``batch=8 image=64``."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.parameters.items()) or "the run"


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs in the order of the grid; the last parameter varies fastest."""

    runs: tuple[Run, ...]
    collector: str = "auto"
    timeout: float | None = None
    """Seconds after which a run is terminated and counts as failed; None: unlimited."""
    steps: str = "1:"
    """Measured steps, in the syntax of `annot.attribution.steps.step_slice`."""
    plots: dict[str, str | float] = field(default_factory=dict)
    """Names of the parameters for batch size (`batch`), width (`hidden`) and color (`color`), and the peaks
    `peak_flops` (FLOP/s) and `peak_bandwidth` (bytes/s)."""

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, in the order of the file."""
        return list(dict.fromkeys(name for run in self.runs for name in run.parameters))

    def parameter(self, role: str) -> str | None:
        """Return the parameter with a role (batch, hidden or color), from [plots] or by its usual name."""
        name = self.plots.get(role)
        return name if isinstance(name, str) else next((usual for usual in _USUAL[role] if self.is_number(usual)), None)

    def is_number(self, parameter: str) -> bool:
        """Return whether all values of a parameter are numbers."""
        values = [run.parameters[parameter] for run in self.runs if parameter in run.parameters]
        return bool(values) and all(map(_is_number, values))


def read_sweep(path: Path, collector: str | None = None) -> Sweep:
    """Read the TOML file of a sweep.

    ``{name}`` in ``run`` and in the values of ``[environment]`` is replaced with the value of a parameter. ``[grid]``
    lists the values of each parameter. Every combination is a run. Several grids, ``[[grid]]``, run one after the
    other. A word of the command is dropped if the grid lacks its parameter.

    Args:
        path: the TOML file.
        collector: overrides the collector in the file.

    Returns:
        The runs and settings of the sweep. Duplicate runs are merged.

    Raises:
        AnnotError: the file cannot be read or is not a valid sweep.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "sweep.toml"
        ...     _ = path.write_text('[command]\\nrun = ["echo", "{n}"]\\n[grid]\\nn = [1, 2]\\n')
        ...     [run.command for run in read_sweep(path).runs]
        [('echo', '1'), ('echo', '2')]
    """
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnnotError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise AnnotError(f"{path} is not a TOML file: {error}") from None
    try:
        return _sweep(config, collector)
    except ValueError as error:
        raise AnnotError(f"{path}: {error}") from None


def _sweep(config: dict[str, Any], collector: str | None) -> Sweep:
    _check_keys(config, "")
    command, plots = config.get("command", {}), config.get("plots", {})
    grids = config["grid"] if isinstance(config.get("grid"), list) else [config.get("grid", {})]
    for section, table in (("command", command), ("plots", plots), *(("grid", grid) for grid in grids)):
        if not isinstance(table, dict):
            raise ValueError(f"[{section}] must be a table, got {table!r}")
    _check_keys(command, "command")
    _check_keys(plots, "plots")
    name = collector or command.get("collector", "auto")
    if name not in COLLECTORS:
        raise ValueError(f"collector must be one of {', '.join(COLLECTORS)}, got {name!r}")
    words, environment = _words(command), _environment(config.get("environment", {}))
    points = list(_points(grids))
    _check_placeholders(words, environment, points)
    runs: dict[str, Run] = {}
    for point in points:
        run = _run(words, environment, point, name)
        runs.setdefault(run.key, run)
    timeout, steps = command.get("timeout"), command.get("steps", "1:")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
    if not isinstance(steps, str):
        raise ValueError(f"steps must be a string such as '1:', got {steps!r}")
    step_slice(steps)
    sweep = Sweep(tuple(runs.values()), name, timeout, steps, plots)
    _check_plots(sweep)
    return sweep


def _check_keys(table: dict[str, Any], name: str) -> None:
    if extra := table.keys() - _KEYS[name]:
        where = f"[{name}]" if name else "the top level"
        raise ValueError(f"{min(extra)!r} is not a key of {where}: use {', '.join(sorted(_KEYS[name]))}")


def _words(command: dict[str, Any]) -> list[str]:
    words = command.get("run")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError('[command] needs run, a list of strings such as ["python", "train.py", "--batch", "{batch}"]')
    return words


def _environment(table: Any) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(value, str | int | float) for value in table.values()):
        raise ValueError(f"[environment] must be a table of strings or numbers, got {table!r}")
    return {name: _text(value) for name, value in table.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_plots(sweep: Sweep) -> None:
    for name, value in sweep.plots.items():
        if name.startswith("peak_"):
            if not _is_number(value) or float(value) <= 0:
                raise ValueError(f"{name} must be a number above 0, got {value!r}")
        elif value not in sweep.parameters:
            raise ValueError(f"{name} of [plots] must be a parameter of the grid, got {value!r}")
        elif name != "color" and not sweep.is_number(str(value)):
            raise ValueError(f"{name} of [plots] must have numeric values; {value} has other values")


def _points(grids: list[dict[str, Any]]) -> Iterator[dict[str, Value]]:
    for grid in grids:
        lists: dict[str, list[Value]] = {}
        for name, given in grid.items():
            lists[name] = given if isinstance(given, list) else [given]
            if not lists[name] or not all(isinstance(value, bool | int | float | str) for value in lists[name]):
                raise ValueError(f"{name} of [grid] must be a list of numbers or strings, got {given!r}")
            if not re.fullmatch(r"\w+", name):
                raise ValueError(f"a parameter name must be letters, digits and underscores, got {name!r}")
        for point in itertools.product(*lists.values()):
            yield dict(zip(lists, point, strict=True))


def _check_placeholders(words: list[str], environment: Mapping[str, str], points: list[dict[str, Value]]) -> None:
    used = {name for text in (*words, *environment.values()) for name in _PLACEHOLDER.findall(text)}
    defined = {name for point in points for name in point}
    if used - defined:
        raise ValueError(f"{{{min(used - defined)}}} is not a parameter of [grid]")
    if defined - used:
        name = min(defined - used)
        raise ValueError(f"the parameter {name!r} of [grid] is unused: add {{{name}}} to run or [environment]")


def _run(words: list[str], environment: Mapping[str, str], point: dict[str, Value], collector: str) -> Run:
    command = tuple(word for word in (_substituted(word, point) for word in words) if word is not None)
    values = {name: _substituted(text, point) for name, text in environment.items()}
    variables = {name: value for name, value in values.items() if value is not None}
    digest = hashlib.sha256(json.dumps([command, variables, collector], sort_keys=True).encode())
    return Run(point, command, variables, digest.hexdigest()[:12])


def _substituted(text: str, point: Mapping[str, Value]) -> str | None:
    """Return a text with its parameters, or None if the point lacks one of them."""
    if not point.keys() >= set(_PLACEHOLDER.findall(text)):
        return None
    return _PLACEHOLDER.sub(lambda match: _text(point[match[1]]), text)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
