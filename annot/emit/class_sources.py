"""Classes of layers: their sources, as marks once per class when its layers get ranges, and their base classes."""

from __future__ import annotations

import inspect
import os
import re
import sys
import tokenize
from collections.abc import Iterable
from typing import Any, Final

from annot.emit import client, guard
from annot.labels.marks import format_source

_FRAMEWORKS: Final = ("torch", "keras", "tf_keras", "tensorflow", "annot")
_sources: Final[dict[tuple[str, str], str]] = {}
_noted: Final[dict[str, str]] = {}


def note(layers: Iterable[tuple[str, type]]) -> None:
    """Emit a mark for each class that is defined outside the frameworks, if an NVTX tool is attached.

    Args:
        layers: class name in the ranges, and class, of each layer.
    """
    for name, cls in dict.fromkeys(layers):
        guard.attempt(_note, name, cls, otherwise=None)


def _note(name: str, cls: type) -> None:
    # A class that a framework derives, as FSDPBlock from Block, has the name of its base class in ranges.
    source = source_of(next((base for base in cls.__mro__ if base.__name__ == name), cls))
    if source:
        text = format_source(name, source)
        _noted[name] = source
        if client.attached():  # torch.profiler has no marks
            client.mark_fact(text)


def noted() -> dict[str, str]:
    """Return the sources of all classes so far by class name, for traces of torch.profiler."""
    return dict(_noted)


def library_class(cls: type, package: str, method: str) -> Any:
    """Return the first class of a package that `cls` is or derives from, or None if `cls` overrides its method.

    Example:
        >>> from collections import Counter
        >>> library_class(Counter, "collections", "update"), library_class(bool, "collections", "real")
        (<class 'collections.Counter'>, None)
    """
    base = next((base for base in cls.__mro__ if base.__module__.startswith(package)), None)
    return base if base is not None and getattr(cls, method, None) is getattr(base, method) else None


def source_of(cls: type) -> str:
    """Return where a class is defined, as ``file.py:line``; "" for classes of a framework and without a file.

    The file is relative to the entry of `sys.path` or to the working directory that contains it.

    Example:
        >>> source_of(int)
        ''
    """
    module = cls.__module__
    if module.partition(".")[0] in _FRAMEWORKS:
        return ""
    key = module, cls.__qualname__
    if key not in _sources:
        file = getattr(sys.modules.get(module), "__file__", None)
        has_file = isinstance(file, str) and os.path.isfile(file)
        line = _line(cls, str(file)) if has_file else 0
        _sources[key] = f"{_shown(str(file))}:{line}" if line else ""
    return _sources[key]


def method_source(cls: type, *names: str) -> str:
    """Return where the first method that a class has of these is defined, as `source_of` does for a class.

    Example:
        >>> method_source(int, "__getitems__", "__add__")
        ''
    """
    method = next(filter(None, (getattr(cls, name, None) for name in names)), None)
    code = getattr(inspect.unwrap(method) if callable(method) else None, "__code__", None)
    module = str(getattr(method, "__module__", None) or "").partition(".")[0]
    if code is None or module in _FRAMEWORKS or not os.path.isfile(code.co_filename):
        return ""
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}"


def _line(cls: type, file: str) -> int:
    """Return the line of the class statement; 0: unknown. Before Python 3.13, `inspect` parses the whole file."""
    first_line = vars(cls).get("__firstlineno__")
    if isinstance(first_line, int):
        return first_line
    codes = (getattr(value, "__code__", None) for value in vars(cls).values())
    name = os.path.basename(file)
    methods = [code.co_firstlineno for code in codes if code and os.path.basename(code.co_filename) == name]
    statement = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    with tokenize.open(file) as lines:
        matches = [number for number, line in enumerate(lines, 1) if statement.match(line)]
    before = [number for number in matches if number <= min(methods, default=sys.maxsize)]
    return (before or [0])[-1]


def _shown(file: str) -> str:
    """Return a path relative to the closest of the folders from which Python imports modules."""
    file = os.path.abspath(file)
    folders = [os.path.join(os.path.abspath(folder), "") for folder in (os.getcwd(), *sys.path)]
    return file.removeprefix(max((folder for folder in folders if file.startswith(folder)), key=len, default=""))
