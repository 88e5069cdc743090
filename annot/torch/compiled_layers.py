"""Layers of the nodes of a graph traced by torch.compile.

The tracer stores with each node the stack of module calls, outermost first: for each module an id, the expression by
which the traced code reached it (``L['self'].blocks.0.fc``), and its class. Nodes of a backward graph have the stack of
their forward node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from annot.torch.compiled_ranges import HERE
from annot.torch.module_paths import inner, join
from annot.torch.module_sites import Site

__all__ = ["being_called", "in_order", "layers", "of_scheduled"]

_CALLING_MODULE: Final = (HERE, "")
_LOCAL = re.compile(r"L\['\w+'\](.*)")
_STEP = re.compile(r"""\.(\w+)|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+)\]""")


def being_called(scheduler: Any) -> list[Any]:
    """Return the scheduler nodes of the generated kernel whose call Inductor's scheduler is writing."""
    node = scheduler.annot_node
    device = node.get_device()
    # The C++ backend collects nodes in a group, and writes the call when the next node cannot join the group.
    group = getattr(scheduler.get_backend(device), "kernel_group", None) if device is not None else None
    return list(getattr(group, "scheduled_nodes", ())) or [node]


def of_scheduled(scheduled: Iterable[Any]) -> set[Any]:
    """Return the graph nodes that these scheduler nodes were lowered from."""
    parts = (part for one in scheduled for part in one.get_nodes() if part.node is not None)
    return {node for part in parts for node in part.node.get_origins() if node.op == "call_function"}


def in_order(nodes: Iterable[Any], graph: Any) -> list[Any]:
    """Return nodes in the order of the graph. Nodes of other graphs come last."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    return sorted(nodes, key=lambda node: order.get(node, len(order)))


def layers(
    nodes: Iterable[Any], by_id: Mapping[int, Any], here: Site | None, *, backward: bool
) -> list[tuple[str, str]]:
    """Return path and class of the layers in which nodes were traced, without duplicates.

    A path that starts with `HERE` is relative to the module whose call runs the graph. Nodes outside any layer belong
    to that module. In a backward graph this holds only if no node has a layer, because nodes that sum gradients do not
    belong to a layer.

    Args:
        nodes: nodes of one graph, in graph order.
        by_id: the sites of modules by ``id(module)``.
        here: the site of the module whose call the graph was traced in, or None.
        backward: whether it is a backward graph.
    """
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        if node.op != "call_function" or not all(_id(key).isdecimal() for key in stack):
            continue
        layer = _innermost(list(stack.items()), by_id, here)
        if layer is not None or here is not None:
            found[layer or _CALLING_MODULE] = None
    if backward and len(found) > 1:
        found.pop(_CALLING_MODULE, None)
    return list(found)


def _innermost(
    stack: list[tuple[str, tuple[str, type]]], by_id: Mapping[int, Any], here: Site | None
) -> tuple[str, str] | None:
    """Return path and class of the innermost module of a stack that has a site."""
    for key, (source, cls) in reversed(stack):
        site = by_id.get(int(_id(key)))
        if site is not None and type(site.of()) is cls:
            return _path(site, source, here) or _path_of_any(site, source, stack[0][1], by_id), site.module
    return None


def _id(key: str) -> str:
    """Return the id of a module. Repeated calls of a module have the keys id, id@1, id@2 and so on."""
    return key.partition("@")[0]


def _path(site: Site, source: str, here: Site | None) -> str | None:
    """Return the path relative to the module whose call runs the graph, or None if the expression is not local."""
    local = _LOCAL.fullmatch(source)
    if local is None or here is None:
        return None
    below = _dotted(local[1])
    if join(here.layer, below) in (site.elsewhere or {site.layer: site}):
        return HERE + below
    if _reached(inner(here.of()), _steps(local[1])) is not site.of():
        return None
    # Reached through a wrapper, as in self.module.fc, or another attribute, as in self.by_name['fc'].
    path = site.near(here.layer).layer
    return HERE + path.removeprefix(f"{here.layer}.") if path.startswith(join(here.layer, "")) else None


def _reached(holder: Any, steps: Sequence[str | int]) -> Any:
    """Return the object that attributes and items lead to, or None. It does not run user code such as properties."""
    for step in steps:
        if isinstance(holder, torch.nn.Module):
            if step != "_modules":
                name = str(step)
                holder = holder._modules[name] if name in holder._modules else vars(holder).get(name)
        elif isinstance(holder, dict):
            holder = holder.get(step)
        elif isinstance(holder, (list, tuple)) and isinstance(step, int) and step < len(holder):
            holder = holder[step]
        else:
            return None
    return holder


def _path_of_any(site: Any, source: str, outermost: tuple[str, type], by_id: Mapping[int, Any]) -> str:
    """Return the path in the model. The class is its prefix if the graph may also run for other modules of it."""
    root, cls = outermost
    alike = sum(other is not None and type(other.of()) is cls for other in list(by_id.values()))
    if alike == 1 or _LOCAL.fullmatch(source) is None:  # a global always leads to the same module
        path: str = site.layer
        return path
    return ".".join(filter(None, (f"({cls.__name__})", _dotted(source.removeprefix(root)))))


def _dotted(source: str) -> str:
    """Return the dotted path of an expression such as ``.blocks[0].fc``. PyTorch 2.9 adds ``._modules['blocks']``."""
    return ".".join(str(step) for step in _steps(source) if step != "_modules")


def _steps(source: str) -> list[str | int]:
    return [name or ast.literal_eval(item) for name, item in _STEP.findall(source)]
