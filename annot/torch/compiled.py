"""torch.compile: a range around every run of a graph that Inductor compiled, and inside it around every kernel.

While a block is open, code that Inductor generates calls `annot.torch.compiled_ranges` before and after each kernel,
with the layers of the graph nodes that the kernel was made from. Neither the graph nor its fusion changes. All that is
patched here is private to PyTorch: what a release does not have stays untouched, and one sentence says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import wrapt

from annot import emit, own, tag
from annot.torch import compiled_ranges, origins
from annot.torch.patches import Patches
from annot.weak import WeakKeys

__all__ = ["Compiled"]

_RUNTIME: Final = compiled_ranges.__name__
_HEADER: Final = f"""
try:
    from {_RUNTIME} import pop as annot_pop, push as annot_push
except ImportError:
    annot_push = annot_pop = lambda *_: None
"""
_NOT_HERE: Final = (
    "PyTorch {} differs from the releases that annot knows: graphs that torch.compile makes show no layers, and "
    "perhaps have no range"
)
_NO_LAYERS: Final = (
    "a graph that torch.compile made shows no layers, for its code was generated before emit_ranges was entered (or "
    "not as Python: cpp_wrapper): compile inside the block, or call torch.compiler.reset() after entering it"
)


class Compiled:
    """The ranges of compiled graphs, from `install` to `remove`.

    Args:
        calls: the `Calls` that know which module a thread is in.
        sites: which module stands where.
        forward: ranges in forward graphs.
        backward: ranges in backward graphs.
    """

    def __init__(self, calls: Any, sites: Any, *, forward: bool, backward: bool) -> None:
        self._calls = calls
        self._sites = sites
        self._wanted = {"forward": forward, "backward": backward, "other": forward}
        self._graphs: WeakKeys[Any, _Graph] = WeakKeys()
        self._names: Counter[tuple[str, bool]] = Counter()
        self._traced_in: WeakKeys[Any, Any] = WeakKeys()
        self._patches = Patches()
        self._extern: list[Any] = []  # the schedulers that are at a call of a kernel that is not generated

    def install(self) -> None:
        """Patch Inductor now if it is loaded, else when it is."""
        global _active
        _active = self
        if _INDUCTOR in sys.modules:
            self.patch()
        else:
            _await_inductor()

    def remove(self) -> None:
        """Put everything back, in reverse order."""
        global _active
        _active = None
        self._patches.undo()

    def patch(self) -> None:
        """Patch what runs graphs, and what generates code: the latter all or not at all."""
        for group in (_RUNS, _GENERATES):
            found = [(place, make) for names, make in group.items() if (place := _find(*names)) is not None]
            if len(found) < len(group):
                emit.warn_once(_NOT_HERE.format(torch.__version__))
                return
            for (cls, name), make in found:
                original = vars(cls)[name]
                self._patches.replace(cls, name, functools.wraps(original)(make(self, original)))

    # ---------------------------------------------------------------- runs

    def layers_of(self, graph: Any) -> compiled_ranges.Layers | None:
        """Return the events for a run of a graph on this thread; None if it is to have no ranges."""
        return own.attempt(self._layers_of, graph, otherwise=None, note="a compiled graph has no range")

    def _layers_of(self, graph: Any) -> compiled_ranges.Layers | None:
        known: _Graph = self._graphs.get(graph) or self._meet(graph)
        site = self._calls.current_site(known.backward)
        return known.layers_for(site) if self._wanted[known.phase_for(site)] else None

    def _meet(self, graph: Any) -> _Graph:
        known = self._graphs[graph] = _Graph(graph, self._names)
        if not known.prepared:
            emit.warn_once(_NO_LAYERS)
        return known

    # ---------------------------------------------------------------- generated code

    def layers(self, nodes: Iterable[Any], *, backward: bool = False) -> list[tuple[str, str]]:
        """Return path and class of the layers that nodes of a graph were traced in."""
        return origins.layers(nodes, self._sites.by_id, self._here(), backward=backward)

    def _here(self) -> Any:
        """Return the site of the module in whose call the graph was traced: a backward graph may be made later."""
        context = torch._guards.TracingContext.try_get()
        here = self._calls.current_site(False)
        return self._traced_in.setdefault(context, here) if context is not None else here

    def around(self, wrapper: Any, find: Callable[[], Iterable[Any]], write_call: Callable[[], Any]) -> Any:
        """Have generated code open the range of a kernel before what `write_call` writes, and close it after.

        Args:
            wrapper: what Inductor writes the code with.
            find: returns the scheduled nodes that the kernel was made from.
            write_call: writes the call of the kernel.
        """
        text = _unless_it_fails(lambda: self._text(find()), "")
        if text:
            wrapper.writeline(f"annot_push({text!r})")
        result = write_call()
        if text:
            wrapper.writeline("annot_pop()")
        return result

    def _text(self, scheduled: Iterable[Any]) -> str:
        graph = _graph_in_work()
        if graph.cpp_wrapper or graph.aot_mode or getattr(graph, "fx_wrapper", False):
            return ""
        nodes = origins.in_order(origins.of_scheduled(scheduled), graph.graph)
        layers = self.layers(nodes, backward=graph.is_backward)
        phase: tag.Phase = "backward" if graph.is_backward else "forward"
        return compiled_ranges.encode(phase, layers) if layers and self._wanted[phase] else ""

    def in_extern(self, scheduler: Any) -> bool:
        """Return whether the scheduler is writing the call of a kernel that is not generated."""
        return bool(self._extern) and self._extern[-1] is scheduler

    def extern_call(self, scheduler: Any, node: Any, write_call: Callable[[], Any]) -> Any:
        """Write the call of a kernel that is not generated, inside its range."""
        self._extern.append(scheduler)
        try:
            if type(node.node).__name__ == "MultiOutput":  # runs nothing: it takes a result out of a tuple
                return write_call()
            return self.around(_graph_in_work().wrapper_code, lambda: [node], write_call)
        finally:
            self._extern.pop()


_active: Compiled | None = None


def _unless_it_fails(find: Callable[[], Any], otherwise: Any) -> Any:
    """Return what `find` does; what goes wrong costs the layers of a kernel, not the user's compilation."""
    return own.attempt(find, otherwise=otherwise, note="a kernel of a compiled graph shows no layers")


def _graph_in_work() -> Any:
    """Return the graph that Inductor generates code for."""
    return sys.modules["torch._inductor.virtualized"].V.graph


class _Graph:
    """A compiled graph: its name, and its events for each module that it has run for.

    Args:
        graph: Inductor's.
        names: how many graphs have had each name; numbers of graphs from a cache may come twice.
    """

    def __init__(self, graph: Any, names: Counter[tuple[str, bool]]) -> None:
        number, code = graph.fx_kwargs.get("graph_id"), graph.source_code or ""
        self.backward = bool(graph.fx_kwargs.get("is_backward"))
        self.prepared = _RUNTIME in code
        self._in_model = "annot_push(" in code
        name = tag.COMPILED if number is None else f"{tag.COMPILED}#{number}"
        before = names[name, self.backward]
        names[name, self.backward] += 1
        self._name = f"{name}.{before}" if before else name
        self._layers: dict[tuple[str, str] | None, compiled_ranges.Layers] = {}

    def phase_for(self, site: Any) -> tag.Phase:
        """Return the phase of a run: forward only if the graph is known to belong to a model."""
        if self.backward:
            return "backward"
        return "forward" if site is not None or self._in_model else "other"

    def layers_for(self, site: Any) -> compiled_ranges.Layers:
        """Return the events of a run in the call of a module."""
        key = (site.layer, site.module) if site is not None else None
        found = self._layers.get(key)
        if found is None:
            phase = self.phase_for(site)
            text = tag.format(tag.Tag(site.layer if site is not None else "", self._name, phase))
            event = emit.event(text, category=None if phase == "other" else phase, few=True)
            found = self._layers[key] = compiled_ranges.Layers(site, event)
        return found


@functools.cache
def _await_inductor() -> None:
    def loaded(_: Any) -> None:
        if _active is not None:
            _active.patch()

    wrapt.register_post_import_hook(loaded, _INDUCTOR)


# ---------------------------------------------------------------- what stands in for Inductor's own


def _run(compiled: Compiled, original: Any) -> Any:
    def __call__(graph: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        layers = compiled.layers_of(graph)
        if layers is None:
            return original(graph, *args, **kwargs)
        return compiled_ranges.run(graph, original, layers, args, kwargs)

    return __call__


def _write_header(compiled: Compiled, original: Any) -> Any:
    def write_header(wrapper: Any) -> None:
        original(wrapper)
        wrapper.imports.splice(_HEADER, strip=True)

    return write_header


def _generate_kernel_call(compiled: Compiled, original: Any) -> Any:
    def generate_kernel_call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        scheduler = getattr(_graph_in_work(), "scheduler", None)
        if compiled.in_extern(scheduler):
            return original(wrapper, *args, **kwargs)
        return compiled.around(
            wrapper, lambda: origins.being_called(scheduler), lambda: original(wrapper, *args, **kwargs)
        )

    return generate_kernel_call


def _enter_context(compiled: Compiled, original: Any) -> Any:
    def enter_context(scheduler: Any, node: Any) -> Any:
        scheduler.annot_node = node  # before PyTorch 2.8 the scheduler itself does not say which one it is at
        return original(scheduler, node)

    return enter_context


def _codegen_extern_call(compiled: Compiled, original: Any) -> Any:
    def codegen_extern_call(scheduler: Any, scheduler_node: Any) -> Any:
        return compiled.extern_call(scheduler, scheduler_node, lambda: original(scheduler, scheduler_node))

    return codegen_extern_call


def _key_of_cache(compiled: Compiled, original: Any) -> Any:
    # A graph's key does not say which modules its nodes come from, and code in the cache names them.
    def __init__(details: Any, gm: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(details, gm, *args, **kwargs)
        nodes = gm.graph.nodes if gm is not None else ()
        named = _unless_it_fails(lambda: [tuple(compiled.layers([node])) for node in nodes], [])
        details.annot_layers = (compiled_ranges.FORMAT, *named)

    return __init__


def _find(module: str, path: str, *needed: str) -> tuple[Any, str] | None:
    """Return a class of Inductor and the name of its method, None if this release has no such method or field."""
    owner, _, name = path.partition(".")
    with contextlib.suppress(ImportError):
        cls = getattr(importlib.import_module(module), owner, None)
        original = vars(cls).get(name) if cls is not None else None
        if original is not None:
            known = {*inspect.signature(original).parameters, *vars(cls).get("__annotations__", ())}
            return (cls, name) if known.issuperset(needed) else None
    return None


_INDUCTOR: Final = "torch._inductor.compile_fx"
_RUNS: Final = {
    ("torch._inductor.output_code", "CompiledFxGraph.__call__", "fx_kwargs", "source_code"): _run,
}
_GENERATES: Final = {
    ("torch._inductor.codecache", "FxGraphHashDetails.__init__", "gm"): _key_of_cache,
    ("torch._inductor.scheduler", "Scheduler.enter_context", "node"): _enter_context,
    ("torch._inductor.scheduler", "Scheduler.codegen_extern_call", "scheduler_node"): _codegen_extern_call,
    ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.write_header", "self"): _write_header,
    ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.generate_kernel_call", "kernel_name"): (
        _generate_kernel_call
    ),
}
