"""NVTX client on top of the `nvtx` package: the fallback for the C extension."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from annot.errors import warn
from annot.labels.tag import DOMAIN


@dataclass(slots=True, eq=False)
class PackageEvent:
    """NVTX attributes of one range, prepared once. The fallback for `_emit.Event`."""

    text: str
    domain: str
    category: int
    color: int
    payload: float | None
    registered: bool = True  # of `_emit.Event`: the package registers every text
    generation: int = 0
    attributes: Any = None
    handle: Any = None


class PackageClient:
    """NVTX client on top of the `nvtx` package, 0.2.11 or later."""

    Event = PackageEvent

    def __init__(self) -> None:
        self._nvtx: Any = None
        self._push_range: Any = None
        self._pop_range: Any = None
        self._generation = 0
        self._last_generation = 0
        self._domains: dict[str, Any] = {}
        self._profiler: Any = None
        self._profiler_range: Any = None
        self._thread = threading.local()

    def attach(self) -> bool:
        """Bind to the `nvtx` package. The package looks for the tool itself, once per process."""
        nvtx_lib = _nvtx_package()
        if nvtx_lib is None:
            return False
        self._nvtx = nvtx_lib
        self._push_range, self._pop_range = nvtx_lib.push_range, nvtx_lib.pop_range
        self._last_generation += 1
        self._generation = self._last_generation
        return True

    def detach(self) -> None:
        """Send nothing to NVTX until the next `attach`."""
        self._generation = 0

    def name_category(self, domain: str, number: int, name: str) -> None:
        """Register a category. The package numbers categories from 1 per domain, as annot does."""
        if self._generation:
            self._domain(domain).get_category_id(name)

    def watch_profiler(self, profiler: Any, range_type: Any) -> None:
        """Also open each range in torch.profiler while it runs."""
        self._profiler, self._profiler_range = profiler, range_type

    def push(self, event: PackageEvent) -> None:
        """Open the range of `event` on this thread."""
        opened: Any = None
        try:
            if self._generation:
                if event.generation != self._generation:
                    self._prepared(event)
                opened = event
                self._push_range(event.attributes, event.handle)
            if self._profiler is not None and self._profiler._is_profiler_enabled:
                opened = opened, self._profiler_enter(event)
        finally:  # a signal handler may raise after the call
            try:
                self._thread.open.append(opened)
            except AttributeError:
                self._thread.open = [opened]

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        try:
            opened = self._thread.open.pop()
        except (AttributeError, IndexError):
            # Autograd's pool threads lose threading.local values between tasks. Their open range is one of a layer.
            if self._generation:
                self._pop_range(self._domain(DOMAIN).handle)
            return
        if type(opened) is tuple:
            opened, profiler = opened
            if profiler is not None:
                profiler.__exit__(None, None, None)
        if opened is not None and self._generation:
            self._pop_range(opened.handle)

    def depth(self) -> int:
        """Return how many ranges this thread has open."""
        return len(getattr(self._thread, "open", ()))

    def pop_to(self, depth: int) -> None:
        """Close ranges of this thread until `depth` are open."""
        while self.depth() > depth:
            self.pop()

    def start(self, event: PackageEvent) -> tuple[int, Any, Any]:
        """Open a range that may overlap others, and return its handle for `end`."""
        range_id = None
        if self._generation:
            range_id = self._nvtx.start_range(*self._prepared(event))
        return self._generation, range_id, self._profiler_enter(event)

    def end(self, started: tuple[int, Any, Any]) -> None:
        """Close a range that `start` opened. The type of the range id differs between nvtx releases."""
        generation, range_id, profiler = started
        if profiler is not None:
            profiler.__exit__(None, None, None)
        if generation and generation == self._generation:
            self._nvtx.end_range(*(range_id if isinstance(range_id, tuple) else (range_id,)))

    def mark(self, event: PackageEvent) -> None:
        """Emit a mark."""
        if self._generation:
            self._nvtx.mark(*self._prepared(event))
        profiler = self._profiler_enter(event)
        if profiler is not None:
            profiler.__exit__(None, None, None)

    def wrapper(self, event: PackageEvent) -> Any:
        """Return a wrapt wrapper that calls the function inside the range of `event`."""
        push, pop = self.push, self.pop

        def call_traced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            push(event)  # not through `inside`: its frame would count towards the recursion limit
            try:
                return wrapped(*args, **kwargs)
            finally:
                pop()

        return call_traced

    def inside(
        self, event: PackageEvent, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function inside the range of `event`. The range also closes if the call raises."""
        self.push(event)
        try:
            return function(*args, **kwargs)
        finally:
            self.pop()

    def _prepared(self, event: PackageEvent) -> tuple[Any, Any]:
        """Return the attributes and the domain of an event."""
        if event.generation != self._generation:
            domain = self._domain(event.domain)
            # Up to nvtx 0.2.11 the method is an unbounded cache. The function that it wraps caches nothing.
            method = self._nvtx.Domain.get_event_attributes
            event.attributes = getattr(method, "__wrapped__", method)(
                domain,
                message=event.text.encode("utf-8", "replace").decode(),
                color=event.color,
                category=event.category,
                payload=event.payload,
            )
            event.handle, event.generation = domain.handle, self._generation
        return event.attributes, event.handle

    def _domain(self, name: str) -> Any:
        """Return a domain, also for tools without nvtxDomainIsEnabled such as Nsight Systems 2022.4."""
        domain = self._domains.get(name)
        if domain is None:
            domain = self._nvtx.Domain(name or None)
            if isinstance(domain, getattr(self._nvtx, "DummyDomain", ())):
                domain = object.__new__(self._nvtx.Domain)
                domain.handle = self._nvtx.DomainHandle(name or None)
                domain.__init__(name or None)
            self._domains[name] = domain
        return domain

    def _profiler_enter(self, event: PackageEvent) -> Any:
        if self._profiler is None or not self._profiler._is_profiler_enabled:
            return None
        opened = self._profiler_range(event.text)
        opened.__enter__()
        return opened


@functools.cache
def _nvtx_package() -> Any:
    """Return the C module of the `nvtx` package, or None if it cannot be imported, as in sub-interpreters."""
    try:
        import nvtx._lib.lib as nvtx_lib
    except ImportError as error:
        warn(f"annot cannot emit NVTX ranges: {error}", stacklevel=2)
        return None
    return nvtx_lib
