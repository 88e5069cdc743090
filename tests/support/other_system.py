"""Take modules, functions and constants away from annot that Python lacks on macOS or Windows.

The type stubs of the standard library, which mypy contains, say what a system lacks. Only annot's own code misses it:
the standard library and other packages have code of their own for each system, and still see Linux.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

MODULES: Final = (
    "fcntl", "grp", "mmap", "os", "posix", "pty", "pwd", "resource", "select", "signal", "socket", "syslog", "termios",
    "time", "tty",
)  # fmt: skip
"""Modules that differ between systems."""
_OS_NAMES: Final = {"win32": "nt", "darwin": "posix"}
_NOT_INSTALLED: Final = {"win32": (), "darwin": ("nvtx",)}
"""Dependencies of annot that a system lacks, see pyproject.toml."""


def missing_names(module: str, system: str) -> tuple[set[str], bool]:
    """Return the names of a module that Linux has and a system lacks, and whether it lacks the whole module."""
    on_linux, there = (set(_names(_stub(module).body, name)) for name in ("linux", system))
    return on_linux - there, not any(name[0].isalpha() for name in there)


def imitate(system: str) -> None:
    """Take from annot what "darwin" or "win32" lacks, files of Linux, and text files without an encoding.

    EncodingWarning needs ``python -X warn_default_encoding``.
    """
    shown = {"sys": {"platform": system}, "os": {"name": _OS_NAMES[system]}}
    absent = {*_NOT_INSTALLED[system]}
    for name in (*MODULES, "sys"):
        gone, is_absent = missing_names(name, system)
        if is_absent:
            absent.add(name)
        else:
            _replace(importlib.import_module(name), gone, shown.get(name, {}))
    _refuse_imports(absent)
    sys.addaudithook(_refuse_linux_files)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"annot\b")


def _stub(module: str) -> ast.Module:
    spec = importlib.util.find_spec("mypy")
    assert spec is not None
    stubs = Path(str(spec.origin)).parent / "typeshed/stdlib"
    path = next(path for path in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi") if path.exists())
    return ast.parse(path.read_text(encoding="utf-8"))


def _names(statements: list[ast.stmt], system: str) -> Iterator[str]:
    """Yield the names that statements of a stub define on a system."""
    for statement in statements:
        if isinstance(statement, ast.If):
            code = compile(ast.Expression(statement.test), "<stub>", "eval")
            known = eval(code, {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)})
            yield from _names(statement.body if known else statement.orelse, system)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names if alias.asname == alias.name)


def _is_annot(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("annot", "pytest_annot")


def _replace(module: ModuleType, gone: set[str], shown: dict[str, str]) -> None:
    """Hide names of a module from annot, and show it other values."""
    real = {name: vars(module)[name] for name in gone | shown.keys() if name in vars(module)}

    def attribute(name: str) -> Any:  # a module asks it for the names that it does not have
        values = shown if _is_annot(sys._getframe(1)) else real
        if name not in values:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return values[name]

    for name in real:
        delattr(module, name)
    vars(module)["__getattr__"] = attribute


def _refuse_imports(absent: set[str]) -> None:
    original = builtins.__import__

    def imported(name: str, scope: Any = None, *more: Any, **others: Any) -> Any:
        if name.partition(".")[0] in absent and _is_annot(sys._getframe(1)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, scope, *more, **others)

    vars(builtins)["__import__"] = imported


def _refuse_linux_files(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
