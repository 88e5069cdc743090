"""Mutations of a module's syntax tree, and a pytest plugin that imports one module of annot with one mutation.

The files stay as they are: the plugin (``-p mutations``) compiles the module from the mutated tree when tests import
it. The environment variable `MUTANT` names the module and the number of the mutation, as in ``annot.labels.tag:12``.
"""

from __future__ import annotations

import ast
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

import hypothesis

__all__ = ["MUTANT", "Mutation", "mutations"]

MUTANT: Final = "ANNOT_MUTANT"
_MEMORY: Final = 32 << 30
"""Address space of the tests of a mutant (bytes): a loop that grows a list fails before the machine is full."""
_NEAR: Final = 0.1
"""Relative change of a float. Tests just below and just above a threshold show it."""

_SWAPS: Final[dict[type[ast.AST], tuple[type[ast.AST], str]]] = {
    before: (after, f"{old} becomes {new}")
    for before, after, old, new in (
        (ast.Lt, ast.LtE, "<", "<="),
        (ast.LtE, ast.Lt, "<=", "<"),
        (ast.Gt, ast.GtE, ">", ">="),
        (ast.GtE, ast.Gt, ">=", ">"),
        (ast.Eq, ast.NotEq, "==", "!="),
        (ast.NotEq, ast.Eq, "!=", "=="),
        (ast.In, ast.NotIn, "in", "not in"),
        (ast.NotIn, ast.In, "not in", "in"),
        (ast.Is, ast.IsNot, "is", "is not"),
        (ast.IsNot, ast.Is, "is not", "is"),
        (ast.And, ast.Or, "and", "or"),
        (ast.Or, ast.And, "or", "and"),
        (ast.BitAnd, ast.BitOr, "&", "|"),
        (ast.BitOr, ast.BitAnd, "|", "&"),
        (ast.Add, ast.Sub, "+", "-"),
        (ast.Sub, ast.Add, "-", "+"),
        (ast.Mult, ast.Div, "*", "/"),
        (ast.Div, ast.Mult, "/", "*"),
        (ast.FloorDiv, ast.Mult, "//", "*"),
    )
}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT_FIELDS: Final = ("annotation", "returns", "decorator_list")
"""Parts of the tree that do not show at run time, or only in what nobody does, such as to change a frozen object."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Change of one place of a module.

    Args:
        line: line of the place in the file.
        change: the change in words.
        guards: whether the place is the condition of a guard: an ``if`` with nothing but a ``raise``.
        apply: makes the change in the tree.
    """

    line: int
    change: str
    guards: bool
    apply: Callable[[], None]


def mutations(tree: ast.Module) -> list[Mutation]:
    """Return the mutations of a module, in the order of its code; types, decorators and `strict=` stay as they are."""
    return [*_below(tree, guards=False)]


def _below(node: ast.AST, guards: bool) -> Iterator[Mutation]:
    """The mutations of the nodes in a node."""
    for field, value in ast.iter_fields(node):
        if field in _SILENT_FIELDS or _is_type(node) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            continue
        guards_here = guards or (field == "test" and _is_guard(node))
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                replace = (
                    partial(value.__setitem__, place) if isinstance(value, list) else partial(setattr, node, field)
                )
                line = getattr(child, "lineno", getattr(node, "lineno", 0))
                guard = guards_here or _is_guard(child)
                yield from (Mutation(line, change, guard, apply) for change, apply in _changes(child, replace))
                yield from _below(child, guards_here)


def _is_type(node: ast.AST) -> bool:
    """Whether a statement defines a type or imports names for types only."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)


def _changes(node: ast.AST, replace: Callable[[ast.AST], None]) -> Iterator[tuple[str, Callable[[], None]]]:
    """The changes of a node; `replace` puts another node at its place."""
    match node:
        case ast.cmpop() | ast.boolop() | ast.operator() if type(node) in _SWAPS:
            after, change = _SWAPS[type(node)]
            yield change, partial(replace, after())
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield "negation dropped", partial(replace, operand)
        case ast.Constant(value=bool() as value):
            yield f"{value} becomes {not value}", partial(setattr, node, "value", not value)
        case ast.Constant(value=int() as number):
            for new in (number - 1, number + 1):
                yield f"{number} becomes {new}", partial(setattr, node, "value", new)
        case ast.Constant(value=float() as number):
            for factor in (1 - _NEAR, 1 + _NEAR):
                yield f"{number:g} becomes {number * factor:g}", partial(setattr, node, "value", number * factor)
        case ast.Attribute(attr=name) if name in _NAMES:
            yield f"{name} becomes {_NAMES[name]}", partial(setattr, node, "attr", _NAMES[name])
        case ast.Name(id=name) if name in _NAMES:
            yield f"{name} becomes {_NAMES[name]}", partial(setattr, node, "id", _NAMES[name])
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "returns None", partial(setattr, node, "value", None)
        case ast.If() if _is_guard(node):
            yield "guard dropped", partial(setattr, node, "test", ast.Constant(value=False))


class _Mutant(SourceFileLoader):
    """Loader that compiles a module with one mutation."""

    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        mutations(tree)[self._number].apply()
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finder of the module with the mutation."""

    def __init__(self, name: str, number: int) -> None:
        self._name, self._number = name, number

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Mutant(fullname, spec.origin, self._number)
        return spec


def pytest_configure() -> None:
    """Install the mutation; hypothesis reports the first failure as it is, and stores none."""
    if mutant := os.environ.get(MUTANT):
        name, _, number = mutant.rpartition(":")
        if name in sys.modules:
            raise RuntimeError(f"{name} was imported before its mutation")
        sys.meta_path.insert(0, _Finder(name, int(number)))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    hypothesis.settings.register_profile(
        "mutants", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), database=None, derandomize=True
    )
    hypothesis.settings.load_profile("mutants")
