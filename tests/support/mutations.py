"""Mutations of a module's syntax tree, and calls in it that say which of its blocks run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

__all__ = ["NOTE", "Mutation", "mutations", "note_blocks"]

NOTE: Final = "_note_block"
"""Name of the function that a module with notes calls at the beginning of each block."""
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
_CHECKS: Final = ("strict", "check_sortedness")
"""Arguments of functions that check their other arguments."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Change of one place of a module.

    Args:
        line: line of the place in the file.
        change: the change in words.
        guards: whether the place is the condition of a guard: an ``if`` with nothing but a ``raise``.
        block: line of the first statement of the innermost block in a function, 0 outside of functions.
        apply: makes the change in the tree.
    """

    line: int
    change: str
    guards: bool
    block: int
    apply: Callable[[], None]


def mutations(tree: ast.Module) -> list[Mutation]:
    """Return the mutations of a module, in the order of its code; types, decorators and `_CHECKS` stay as they are."""
    return [*_below(tree, guards=False, block=0)]


def note_blocks(tree: ast.Module, module: str) -> None:
    """Call the function `NOTE` at the beginning of each block of functions, with the names of module and block."""
    blocks = [body for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) for body in _blocks(node)]
    for block in {id(block): block for block in blocks}.values():
        first = block[0]
        name = ast.Tuple([ast.Constant(module), ast.Constant(first.lineno)], ast.Load())
        call = ast.Call(ast.Name(NOTE, ast.Load()), [name], [])
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        block.insert(int(is_text), ast.copy_location(ast.Expr(call), first))
    ast.fix_missing_locations(tree)


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a function, except those of classes."""
    for node in ast.walk(function):
        if not isinstance(node, ast.ClassDef):
            yield from (value for field, value in ast.iter_fields(node) if _is_block(field, value))


def _is_block(field: str, value: object) -> bool:
    return field in ("body", "orelse", "finalbody") and isinstance(value, list) and bool(value)


def _below(node: ast.AST, guards: bool, block: int) -> Iterator[Mutation]:
    """The mutations of the nodes in a node."""
    for field, value in ast.iter_fields(node):
        if field in _SILENT_FIELDS or _is_type(node) or (isinstance(node, ast.keyword) and node.arg in _CHECKS):
            continue
        guards_here = guards or (field == "test" and _is_guard(node))
        in_block = _is_block(field, value) and (block or isinstance(node, _FUNCTIONS))
        block_here = value[0].lineno if in_block and not isinstance(node, ast.ClassDef) else block
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                replace = (
                    partial(value.__setitem__, place) if isinstance(value, list) else partial(setattr, node, field)
                )
                line = getattr(child, "lineno", getattr(node, "lineno", 0))
                guard = guards_here or _is_guard(child)
                yield from (
                    Mutation(line, change, guard, block_here, apply) for change, apply in _changes(child, replace)
                )
                yield from _below(child, guards_here, block_here)


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
