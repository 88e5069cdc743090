"""Emission: every range that annot opens goes through this file, the only one that calls the `nvtx` package.

Two clients do the same: `annot.native._fast`, annot's own in C, and the classes below on top of the `nvtx` package
where the C part is not built or is switched off. Which one is decided when this module is loaded. Neither makes an
NVTX call before a tool is there, because an NVTX client library decides at its first call, once and for all,
whether there is one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from typing import Any, Final, Protocol

from annot import native
from annot.tag import COLORS, DOMAIN, NOTE

__all__ = [
    "DOMAIN",
    "MAX_TEXTS",
    "attached",
    "depth",
    "enable",
    "enabled",
    "end",
    "event",
    "mark",
    "pop",
    "pop_to",
    "push",
    "reattach",
    "release",
    "room_for_texts",
    "start",
    "texts",
    "warn_once",
    "wrapper",
]

MAX_TEXTS: Final = 16384
"""How many different texts are ever registered with the tool; a tool keeps each one for the whole run."""

_DEFAULT_COLOR: Final = 0xFF3C78D8


def _switched(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


_disabled = _switched("ANNOT_DISABLE") or _switched("NVTX_DISABLE")
_forced = _switched("ANNOT_ENABLE")
_recording = False
_connected = False
_events: dict[tuple[str, str, str | None, str | int | None], Any] = {}
_texts: set[tuple[str, str]] = set()
_categories: dict[tuple[str, str], int] = {}
_categories_lock = threading.Lock()


class Client(Protocol):
    """What both clients can do; `push` and `pop` nest per thread, `start` and `end` need not."""

    Event: Any

    def attach(self) -> bool:
        """Look for an NVTX tool; True if there is one."""

    def detach(self) -> None:
        """Send nothing to NVTX until the next `attach`."""

    def name_category(self, domain: str, number: int, name: str) -> None:
        """Tell the tool the name of a category."""

    def watch_profiler(self, profiler: Any, range_type: Any) -> None:
        """Open the same ranges in torch.profiler while that runs."""

    def push(self, event: Any) -> None:
        """Open the range of `event` on this thread."""

    def pop(self) -> None:
        """Close the range that this thread opened last."""

    def depth(self) -> int:
        """Return how many ranges this thread has open."""

    def pop_to(self, depth: int) -> None:
        """Close ranges of this thread until `depth` are open."""

    def start(self, event: Any) -> Any:
        """Open a range that need not nest."""

    def end(self, started: Any) -> None:
        """Close a range that `start` opened."""

    def mark(self, event: Any) -> None:
        """Set a mark."""

    def wrapper(self, event: Any) -> Any:
        """Return a wrapt wrapper that calls inside the range of `event`."""


class PackageEvent:
    """What NVTX wants to know of one range, prepared once (the twin of `_fast.Event`)."""

    __slots__ = ("attributes", "category", "color", "domain", "generation", "handle", "payload", "text")

    def __init__(
        self,
        text: str,
        domain: str,
        category: int,
        color: int,
        payload: float | None,
        registered: bool = True,
    ) -> None:
        self.text = text
        self.domain, self.category, self.color, self.payload = domain, category, color, payload
        self.generation = 0
        self.attributes: Any = None
        self.handle: Any = None


class PackageClient:
    """The client on top of the `nvtx` package, 0.2.11 or later."""

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
        """Bind to the `nvtx` package; it finds the tool itself, and cannot look a second time."""
        import nvtx._lib.lib as nvtx_lib

        self._nvtx = nvtx_lib
        self._push_range, self._pop_range = nvtx_lib.push_range, nvtx_lib.pop_range
        self._last_generation += 1
        self._generation = self._last_generation
        return True

    def detach(self) -> None:
        """Send nothing to NVTX until the next `attach`."""
        self._generation = 0

    def name_category(self, domain: str, number: int, name: str) -> None:
        """Take the number that the package gives; annot's own numbers count alike, from 1 per domain."""
        if self._generation:
            self._domain(domain).get_category_id(name)

    def watch_profiler(self, profiler: Any, range_type: Any) -> None:
        """Open the same ranges in torch.profiler while that runs."""
        self._profiler, self._profiler_range = profiler, range_type

    def push(self, event: PackageEvent) -> None:
        """Open the range of `event` on this thread."""
        opened: Any = None
        if self._generation:
            if event.generation != self._generation:
                self._prepare(event)
            self._push_range(event.attributes, event.handle)
            opened = event
        if self._profiler is not None and self._profiler._is_profiler_enabled:
            opened = opened, self._profiler_enter(event)
        try:
            self._thread.open.append(opened)
        except AttributeError:
            self._thread.open = [opened]

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        try:
            opened = self._thread.open.pop()
        except (AttributeError, IndexError):
            # Autograd's pool threads lose what is local to a thread; what they opened is a layer's range.
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
        """Open a range that need not nest."""
        range_id = None
        if self._generation:
            if event.generation != self._generation:
                self._prepare(event)
            range_id = self._nvtx.start_range(event.attributes, event.handle)
        return self._generation, range_id, self._profiler_enter(event)

    def end(self, started: tuple[int, Any, Any]) -> None:
        """Close a range that `start` opened; what identifies it differs between releases of the package."""
        generation, range_id, profiler = started
        if profiler is not None:
            profiler.__exit__(None, None, None)
        if generation and generation == self._generation:
            self._nvtx.end_range(*(range_id if isinstance(range_id, tuple) else (range_id,)))

    def mark(self, event: PackageEvent) -> None:
        """Set a mark."""
        if self._generation:
            if event.generation != self._generation:
                self._prepare(event)
            self._nvtx.mark(event.attributes, event.handle)
        profiler = self._profiler_enter(event)
        if profiler is not None:
            profiler.__exit__(None, None, None)

    def wrapper(self, event: PackageEvent) -> Any:
        """Return a wrapt wrapper that calls inside the range of `event`."""
        push, pop = self.push, self.pop

        def call_traced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            push(event)
            try:
                return wrapped(*args, **kwargs)
            finally:
                pop()

        return call_traced

    def _prepare(self, event: PackageEvent) -> None:
        domain = self._domain(event.domain)
        # Up to 0.2.11 the method keeps every combination it was ever asked for; what it wraps does not.
        method = self._nvtx.Domain.get_event_attributes
        event.attributes = getattr(method, "__wrapped__", method)(
            domain,
            message=event.text.encode("utf-8", "replace").decode(),
            color=event.color,
            category=event.category,
            payload=event.payload,
        )
        event.handle, event.generation = domain.handle, self._generation

    def _domain(self, name: str) -> Any:
        domain = self._domains.get(name)
        if domain is None:
            domain = self._domains[name] = self._open_domain(name or None)
        return domain

    def _open_domain(self, name: str | None) -> Any:
        """Open a domain even if the tool does not implement nvtxDomainIsEnabled, as Nsight Systems 2022.4."""
        domain = self._nvtx.Domain(name)
        if isinstance(domain, getattr(self._nvtx, "DummyDomain", ())):
            domain = object.__new__(self._nvtx.Domain)
            domain.handle = self._nvtx.DomainHandle(name)
            domain.__init__(name)
        return domain

    def _profiler_enter(self, event: PackageEvent) -> Any:
        if self._profiler is None or not self._profiler._is_profiler_enabled:
            return None
        opened = self._profiler_range(event.text)
        opened.__enter__()
        return opened


_client: Client = native.fast() or PackageClient()
IS_NATIVE: Final = not isinstance(_client, PackageClient)
"""Whether annot's own client in C is in use."""

push = _client.push
pop = _client.pop
depth = _client.depth
pop_to = _client.pop_to
start = _client.start
end = _client.end
mark = _client.mark
wrapper = _client.wrapper


def attached() -> bool:
    """Return whether an NVTX tool is there, without making an NVTX call."""
    return _recording or os.environ.get("NVTX_INJECTION64_PATH", "") not in ("", "./.") or _driver_has_tool()


def enabled() -> bool:
    """Return whether what is decorated or entered now will have ranges.

    True if a tool is attached, a torch.profiler runs, or `enable` was called. Of the environment, as it is when
    annot is imported, ``ANNOT_ENABLE=1`` acts like `enable`; ``ANNOT_DISABLE`` and ``NVTX_DISABLE`` switch off.

    Example:
        >>> import annot
        >>> annot.enabled()
        False
    """
    if _connected:
        return True
    wanted = not _disabled and (_forced or attached() or _profiler_runs())
    if wanted:
        _connect()
    return wanted


def enable(on: bool = True) -> None:
    """Keep ranges ready for a tool that starts later.

    Args:
        on: False goes back to deciding at each decoration and entry whether a tool is there.

    Example:
        >>> import annot
        >>> annot.enable()
        >>> annot.enabled()
        True
        >>> annot.enable(False)
    """
    global _forced
    _forced = on


def reattach() -> bool:
    """Look for an NVTX tool again, for a recorder that starts inside this process; True if there is one.

    annot's own client in C starts afresh; the `nvtx` package cannot, once it has decided that no tool is there.
    """
    global _recording, _connected
    if _disabled:
        return False
    _recording = True
    _connected = False
    _connect()
    return _connected


def release() -> None:
    """Undo `reattach` when the recorder of this process has stopped; a tool from outside stays attached."""
    global _recording, _connected
    _recording = False
    _connected = False
    _client.detach()
    if attached():
        _connect()


def event(
    text: str,
    *,
    domain: str = DOMAIN,
    category: str | None = None,
    color: str | int | None = None,
    payload: float | None = None,
    transient: bool = False,
    general: str | None = None,
    few: bool = False,
) -> Any:
    """Return the prepared event of a range, for `push`, `start` and `mark`.

    Args:
        text: what the tool shows.
        domain: NVTX domain; empty for the default one.
        category: name of the NVTX category in that domain.
        color: ``0xAARRGGBB``, or a name that the `nvtx` package knows; None for the category's own.
        payload: an integer or float that goes along.
        transient: the text will hardly come again, so it is neither registered with the tool nor kept here.
        general: what the `nvtx` package, which can only send registered texts, shows for a transient one.
        few: there are so few texts of this kind that they need no room within `MAX_TEXTS`.
    """
    if payload is None:
        found = _events.get((text, domain, category, color))
        if found is not None:
            return found
    keep = few or (text, domain) in _texts or (not transient and room_for_texts())
    if not keep and not IS_NATIVE:
        text, keep = general or _too_many(), True
    elif keep:
        _texts.add((text, domain))
    # A text that goes with ever new payloads is sent along each time, for the tool would keep each registration.
    made = _make(text, domain, category, color, payload, keep=keep and payload is None)
    if keep and payload is None:
        _events[text, domain, category, color] = made
    return made


def room_for_texts(count: int = 1) -> bool:
    """Return whether that many further texts may still be registered."""
    return len(_texts) + count <= MAX_TEXTS


def texts() -> dict[str, str]:
    """Return the texts of all ranges that were prepared so far and are kept, each with its domain."""
    return dict(_texts)


@functools.cache
def warn_once(message: str) -> None:
    """Warn, the first time that `message` comes; the report of what is being recorded says it too."""
    said = NOTE + message
    mark(event(said, transient=True, general=said))  # it takes no room from the texts of ranges
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _too_many() -> str:
    warn_once(f"over {MAX_TEXTS} different range texts: further ones show as '(other)'")
    return "(other)"


def _make(
    text: str,
    domain: str,
    category: str | None,
    color: str | int | None,
    payload: float | None,
    *,
    keep: bool,
) -> Any:
    number = _category(domain, category) if category else 0
    return _client.Event(text, domain, number, _argb(color, category), payload, keep)


def _category(domain: str, name: str) -> int:
    with _categories_lock:
        number = _categories.get((domain, name))
        if number is None:
            number = 1 + sum(known == domain for known, _ in _categories)
            _categories[domain, name] = number
            _client.name_category(domain, number, name)
        return number


def _argb(color: str | int | None, category: str | None) -> int:
    if color is None:
        return COLORS.get(category or "", _DEFAULT_COLOR)
    if isinstance(color, int):
        return color
    from nvtx.colors import color_to_hex

    return int(color_to_hex(color))


def _connect() -> None:
    global _connected
    _follow_torch_profiler()
    if not _connected and attached():
        _connected = _client.attach()
        for (domain, name), number in _categories.items():
            _client.name_category(domain, number, name)


@functools.cache
def _follow_torch_profiler() -> None:
    import wrapt

    def watch(profiler: Any) -> None:
        import torch

        _client.watch_profiler(profiler, torch._C._profiler._RecordFunctionFast)

    wrapt.register_post_import_hook(watch, "torch.autograd.profiler")


def _profiler_runs() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(profiler, "_is_profiler_enabled", False))


@functools.cache
def _driver_has_tool() -> bool:
    """Whether a tool asks for injection by the CUDA driver, which newer NVTX headers look for."""
    root = "/run/nvidia/nvtx/"
    user = root + "user.0" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", root) + "/nvidia/nvtx"
    return any(os.path.exists(f"{folder}/nvtx-cuda.yaml") for folder in (root.rstrip("/"), user))
