"""Count the modules and functions of annot that a command enters at run time, without what imports run.

    python tests/support/entered.py [--functions] FILE [OPTION ...]

The other arguments are those of ``annot``. Standard error lists the modules with the number of their functions. With
--functions, it also lists the functions, each with the functions of annot that call it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import annot
from annot.cli.main import main

_ROOT = f"{Path(annot.__file__).parent}/"


class Entered:
    """Profile function that notes the functions of each module that run outside imports."""

    def __init__(self) -> None:
        self.callers: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._imports = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and code.co_filename.startswith(_ROOT) and code.co_name[0] != "<":
            self.callers[code.co_filename.removeprefix(_ROOT)][code.co_qualname].add(_caller(frame.f_back))


def _caller(frame: FrameType | None) -> str:
    """The innermost function of annot on the stack."""
    while frame is not None and (not frame.f_code.co_filename.startswith(_ROOT) or frame.f_code.co_name[0] == "<"):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_code.co_qualname}"


def enter(arguments: Sequence[str]) -> dict[str, dict[str, set[str]]]:
    """Run a command of annot. Return the functions that it enters with their callers, by path of the module."""
    entered = Entered()
    sys.setprofile(entered)
    try:
        main(arguments)
    finally:
        sys.setprofile(None)
    return dict(sorted(entered.callers.items()))


if __name__ == "__main__":
    with_functions = sys.argv[1:2] == ["--functions"]
    modules = enter(sys.argv[2 if with_functions else 1 :])
    for module, functions in modules.items():
        print(f"{len(functions):4} {module}", file=sys.stderr)
        for name, callers in functions.items() if with_functions else ():
            print(f"       {name}: {', '.join(sorted(callers))}", file=sys.stderr)
    print(f"{len(modules)} modules, {sum(map(len, modules.values()))} functions", file=sys.stderr)
