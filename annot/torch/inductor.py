"""Graphs, stacks and code of Inductor, the default backend of torch.compile, in each release of PyTorch.

All of it is private to PyTorch. The functions here hide what differs between releases. They run while a graph is
compiled, or before its first run, and not in the steps of a training.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from annot.torch.internals import tracing_context

_AOT_ID: Final = re.compile(r"# AOT ID: \['(\d+)_(\w+)'\]")
"""Comment with number and kind of a graph in its code."""


def find(module: str, path: str, *needed: str) -> tuple[Any, str] | None:
    """Return the module or class that has a function, and the function's name, or None if this release lacks it.

    Args:
        module: name of the module.
        path: ``function`` or ``Class.method``. ``Old|New.method`` is for a class that a release has renamed.
        needed: parameters of the function, or fields of its class, that it must have.
    """
    classes, _, name = path.rpartition(".")
    with contextlib.suppress(ImportError):
        owner: Any = importlib.import_module(module)
        if classes:
            owner = next((vars(owner)[alias] for alias in classes.split("|") if alias in vars(owner)), None)
        original = vars(owner).get(name) if owner is not None else None
        if original is not None:
            names = {*inspect.signature(original).parameters, *vars(owner).get("__annotations__", ())}
            return (owner, name) if names.issuperset(needed) else None
    return None


def current_graph() -> Any:
    """Return the graph that Inductor is generating code for."""
    return sys.modules["torch._inductor.virtualized"].V.graph


def is_backward(graph: Any) -> bool:
    """Return whether Inductor is generating code for a backward. Since PyTorch 2.6, the graph knows."""
    backward: bool | None = getattr(graph, "is_backward", None)
    if backward is None:
        name = getattr(tracing_context(), "aot_graph_name", None) or [""]
        return str(name[0]).endswith("_backward")
    return backward


def graph_id(compiled: Any) -> tuple[int | None, bool]:
    """Return the number of a compiled graph, and whether it is a backward. Since PyTorch 2.5, the graph has both."""
    options = getattr(compiled, "fx_kwargs", None)
    if options is not None:
        return options.get("graph_id"), bool(options.get("is_backward"))
    comment = _AOT_ID.search(compiled.source_code or "")
    return (int(comment[1]), comment[2] == "backward") if comment else (None, False)


def being_called(scheduler: Any) -> list[Any]:
    """Return the scheduler nodes of the generated kernel whose call Inductor's scheduler is writing."""
    node = scheduler.annot_node
    device = node.get_device()
    # The C++ backend collects nodes in a group, and writes the call when the next node cannot join the group.
    group = getattr(scheduler.get_backend(device), "kernel_group", None) if device is not None else None
    return list(getattr(group, "scheduled_nodes", ())) or [node]


def nodes_of(scheduled: Iterable[Any], graph: Any) -> list[Any]:
    """Return the nodes that scheduler nodes were lowered from, in the order of the graph.

    Nodes of a branch of `torch.cond` come with nodes of the graph around it, which are left out.
    """
    snodes = (snode for entry in scheduled for snode in entry.get_nodes() if snode.node is not None)
    nodes = {node for snode in snodes for node in snode.node.origins if node.op == "call_function"}
    order = {node: index for index, node in enumerate(graph.nodes)}
    return sorted(nodes & order.keys(), key=order.__getitem__) or list(nodes)


# ---------------------------------------------------------------- stacks of module calls


def modules_by_key(context: Any) -> Mapping[str, int]:
    """Return the ids of modules by their keys in stacks, for keys without an id.

    PyTorch 2.4 compiles a frame for the very modules that it calls, and names them. Later releases have ids as keys.
    """
    modules = getattr(getattr(context, "module_context", None), "nn_modules", {})
    return {key: id(module) for key, module in modules.items()}


def copies_stacks() -> bool:
    """Return whether this release copies the stacks of forward nodes to the nodes of their backward, as since 2.5."""
    return find("torch._functorch._aot_autograd.utils", "copy_fwd_metadata_to_bw_nodes") is not None


def copy_stacks(nodes: Iterable[Any]) -> None:
    """Copy the stacks of forward nodes to the nodes of their backward: both have the sequence number of autograd.

    The nodes of a backward come last, and the first of them reads a gradient of an output. Several forward nodes may
    have the same number. The first created the node of autograd.
    """
    stacks: dict[int, Any] = {}
    backward = False
    for node in nodes:
        stack, number = node.meta.get("nn_module_stack"), node.meta.get("seq_nr")
        backward = backward or any(str(read.target).startswith("tangents") for read in node.all_input_nodes)
        if not backward:
            stacks.setdefault(number, stack)
        elif not stack and stacks.get(number):
            node.meta["fwd_nn_module_stack"] = stacks[number]
