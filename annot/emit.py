"""Emission: every range that annot opens goes through this file.

Two clients do the same: `annot.native._fast`, annot's own in C, and `annot.package_client` on top of the `nvtx` package
where the C part is not built or is switched off. Which one is decided when this module is loaded. Neither makes an
NVTX call before a tool is there, because an NVTX client library decides at its first call, once and for all,
whether there is one.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from annot import native, tag
from annot.errors import warn
from annot.locks import fork_safe
from annot.package_client import PackageClient
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
    "inside",
    "mark",
    "pop",
    "pop_to",
    "push",
    "reattach",
    "release",
    "start",
    "texts",
    "warn_once",
    "wrapper",
]

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
_categories_lock = fork_safe()


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

    def inside(self, event: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``function(*args, **kwargs)`` inside the range of an event, however the call ends."""

    def wrapper(self, event: Any) -> Any:
        """Return a wrapt wrapper that calls inside the range of `event`."""


_client: Client = native.fast() or PackageClient()
IS_NATIVE: Final = not isinstance(_client, PackageClient)
"""Whether annot's own client in C is in use."""

MAX_TEXTS: Final = 1 << 14 if IS_NATIVE else 1 << 17
"""How many different texts are registered with the tool, which keeps each one for the whole run.

annot's own client sends further texts along with each range, which costs about 0.1 µs and 100 bytes of the profile a
range. The `nvtx` package can only register: beyond the bound, ranges show neither shapes nor arguments.
"""

push = _client.push
pop = _client.pop
depth = _client.depth
pop_to = _client.pop_to
start = _client.start
end = _client.end
mark = _client.mark
wrapper = _client.wrapper
inside = _client.inside


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
        few: the number of texts of this kind is small; they are registered beyond `MAX_TEXTS` too.
    """
    if payload is None:
        found = _events.get((text, domain, category, color))
        if found is not None:
            return found
    keep = few or (text, domain) in _texts or (not transient and len(_texts) < MAX_TEXTS)
    if not keep and not IS_NATIVE:
        text, keep = general or _shorter(text), True
    elif keep:
        _texts.add((text, domain))
    # A text that goes with ever new payloads is sent along each time, for the tool would keep each registration.
    made = _make(text, domain, category, color, payload, keep=keep and payload is None)
    if keep and payload is None:
        _events[text, domain, category, color] = made
    return made


def texts() -> dict[str, str]:
    """Return the texts of all ranges that were prepared so far and are kept, each with its domain."""
    return dict(_texts)


@functools.cache
def warn_once(message: str) -> None:
    """Warn, the first time that `message` comes; the report of what is being recorded says it too."""
    said = NOTE + message
    mark(event(said, transient=True, general=said))  # it takes no room from the texts of ranges
    warn(message, stacklevel=3)


def _shorter(text: str) -> str:
    """Return a text that needs no room of its own: that of a layer without shapes and arguments."""
    warn_once(f"over {MAX_TEXTS} different range texts: further ones show no shapes (annot's C part would show them)")
    shown = tag.parse(text)
    if shown is None:
        return "(other)"
    return tag.format(dataclasses.replace(shown, tensors=(), omitted=0, arguments=()))


def _make(
    text: str,
    domain: str,
    category: str | None,
    color: str | int | None,
    payload: float | None,
    *,
    keep: bool,
) -> Any:
    domain = _encodable(domain)
    number = _category(domain, _encodable(category)) if category else 0
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

    try:
        return int(color_to_hex(color))
    except TypeError:  # which names there are depends on whether matplotlib is installed
        warn_once(f"the nvtx package does not know the color {color!r}")
        return _argb(None, category)


def _encodable(name: str) -> str:
    """Return a name as NVTX can have it, in UTF-8: what comes from a path may hold lone surrogates."""
    return name.encode("utf-8", "replace").decode()


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
