"""Modules that the expressions of torch.compile lead to when a compiled graph runs.

The tracer stores with a module the expression by which the traced code reached it, as in ``L['model'].blocks[0].fc``
with a local and ``G['model'].fc`` with a global variable. A compiled graph runs from a frame with these variables. A
later call may give them other modules, and torch.compile uses the same graph if their classes are the same.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import torch

Step: TypeAlias = str | int
"""Name of an attribute, or item of a container."""

_STEP: Final = r"""\.(\w+)|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+)\]"""
_EXPRESSION: Final = re.compile(rf"(?:([LG])\['(\w+)'\])?((?:{_STEP})*)")
_GRAPH: Final = "__compiled_fn_"
"""Prefix of the global variable by which the code that torch.compile generates for a frame calls a graph."""
_BUILT_IN: Final = (types.FunctionType, types.MethodType, types.CellType, functools.partial)
"""Classes whose attributes run no user code."""


@functools.lru_cache(4096)
def parse(expression: str) -> tuple[str, str, tuple[Step, ...]] | None:
    """Return ``L`` or ``G``, the name of the variable, and the steps from there. None: another kind of expression.

    Kind and name are empty for steps alone, as in ``.blocks[0].fc``.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return None
    kind, name, below = match.group(1, 2, 3)
    steps = tuple(attribute or ast.literal_eval(item) for attribute, item in re.findall(_STEP, below))
    return kind or "", name or "", steps


def dotted(steps: Iterable[Step]) -> str:
    """Return the dotted path of steps. PyTorch 2.9 writes ``._modules['blocks']`` for ``.blocks``."""
    return ".".join(str(step) for step in steps if step != "_modules")


def reached(holder: Any, steps: Sequence[Step]) -> Any:
    """Return the object that attributes and items lead to, or None. It does not run user code such as properties."""
    for step in steps:
        holder = _next(holder, step)
    return holder


def _next(holder: Any, step: Step) -> Any:
    if isinstance(holder, torch.nn.Module):
        name = str(step)
        if step == "_modules":
            return holder
        return holder._modules[name] if name in holder._modules else vars(holder).get(name)
    if isinstance(holder, dict):
        return dict.get(holder, step)
    if isinstance(step, int):
        return holder[step] if isinstance(holder, (list, tuple)) and step < len(holder) else None
    if isinstance(holder, _BUILT_IN):
        return getattr(holder, step, None)
    value = inspect.getattr_static(holder, step, None)
    return value.__get__(holder) if isinstance(value, types.MemberDescriptorType) else value


def modules_in_frame(expressions: Iterable[str]) -> tuple[dict[str, torch.nn.Module], Any]:
    """Return the modules that expressions lead to in the frame that runs a graph, and the graph's autograd context.

    The frame is the innermost one above the caller that torch.compile has compiled. The context is the node of the
    graph's backward, or None. Expressions that lead to no module are left out.
    """
    frame: types.FrameType | None = sys._getframe(1)
    context = None
    while frame is not None and not any(name.startswith(_GRAPH) for name in frame.f_code.co_names):
        if context is None and "ctx" in frame.f_code.co_varnames:
            value = frame.f_locals.get("ctx")
            context = value if isinstance(value, torch.autograd.function.FunctionCtx) else None
        frame = frame.f_back
    if frame is None:
        return {}, context
    variables = {"L": frame.f_locals, "G": frame.f_globals}
    modules = {}
    for expression in expressions:
        parsed = parse(expression)
        if parsed is not None and parsed[0]:
            kind, name, steps = parsed
            module = reached(variables[kind].get(name), steps)
            if isinstance(module, torch.nn.Module):
                modules[expression] = module
    return modules, context
