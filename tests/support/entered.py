"""Count the modules and functions of annot that a command enters at run time, without what imports run.

    python tests/support/entered.py FILE [OPTION ...]

The arguments are those of ``annot``. Standard error lists the modules with the number of their functions.
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
        self.functions: dict[str, set[str]] = defaultdict(set)
        self._imports = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and code.co_filename.startswith(_ROOT) and code.co_name[0] != "<":
            self.functions[code.co_filename.removeprefix(_ROOT)].add(code.co_qualname)


def count(arguments: Sequence[str]) -> dict[str, int]:
    """Run a command of annot. Return the number of functions that it enters in each module, by path in annot."""
    entered = Entered()
    sys.setprofile(entered)
    try:
        main(arguments)
    finally:
        sys.setprofile(None)
    return {module: len(functions) for module, functions in sorted(entered.functions.items())}


if __name__ == "__main__":
    numbers = count(sys.argv[1:])
    for module, number in numbers.items():
        print(f"{number:4} {module}", file=sys.stderr)
    print(f"{len(numbers)} modules, {sum(numbers.values())} functions", file=sys.stderr)
