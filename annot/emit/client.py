"""NVTX client: every range that annot opens goes through this module.

There are two implementations: the C extension `annot.native._emit`, and `annot.emit.nvtx_package` on top of the `nvtx`
package. The second is the fallback where the C extension is not built or is switched off. The choice is made when this
module is loaded. Neither makes an NVTX call before a tool is attached: the NVTX client library looks for a tool at its
first call only, and keeps the result for the life of the process.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import sys
from typing import Any, Final

from annot import native
from annot.emit.nvtx_package import PackageClient
from annot.errors import warn
from annot.labels import tag
from annot.labels.tag import COLORS, DOMAIN, NOTE
from annot.util.locks import fork_safe

_DEFAULT_COLOR: Final = 0xFF3C78D8


def _switched(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


_disabled = _switched("ANNOT_DISABLE") or _switched("NVTX_DISABLE")
_forced = _switched("ANNOT_ENABLE")
_recording = False
_connected = False
_events: dict[tuple[str, str, str | None, str | int | None], Any] = {}
_texts: set[tuple[str, str]] = set()
_facts: dict[str, Any] = {}
_categories: dict[tuple[str, str], int] = {}
_categories_lock = fork_safe()


_client: PackageClient = native.emitter() or PackageClient()
IS_NATIVE: Final = not isinstance(_client, PackageClient)
"""Whether the client is the C extension."""

MAX_TEXTS: Final = 1 << 14 if IS_NATIVE else 1 << 17
"""Maximum number of distinct texts registered with the tool, which keeps each one for the whole run.

Beyond it, the C extension sends the text with each range, at about 0.1 µs and 100 bytes of the profile per range. The
`nvtx` package only sends registered texts: beyond the limit, ranges show neither shapes nor arguments.
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
    """Return whether an NVTX tool is attached, without an NVTX call."""
    return _recording or os.environ.get("NVTX_INJECTION64_PATH", "") not in ("", "./.") or _driver_has_tool()


def enabled() -> bool:
    """Return whether a function decorated now, or a block entered now, emits ranges.

    True if an NVTX tool is attached, torch.profiler runs, or `enable` was called. annot reads three environment
    variables at import: ``ANNOT_ENABLE=1`` acts like `enable`; ``ANNOT_DISABLE`` and ``NVTX_DISABLE`` disable emission.

    Example:
        >>> import annot
        >>> annot.enabled()
        False
    """
    if _connected:
        return True
    torch_profiler = sys.modules.get("torch.autograd.profiler")
    profiles = getattr(torch_profiler, "_is_profiler_enabled", False)
    enabled_now = not _disabled and (_forced or attached() or bool(profiles))
    if enabled_now:
        _connect()
    return enabled_now


def enable(on: bool = True) -> None:
    """Emit ranges even if the tool attaches later.

    Args:
        on: False restores the default: `enabled` checks for a tool at each decoration and each entry.

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
    """Look for an NVTX tool again, for a recorder that starts inside this process. Return whether one is attached.

    Only the C extension can look again. The `nvtx` package keeps the result of its first look.
    """
    global _recording, _connected
    if _disabled:
        return False
    _recording = True
    _connected = False
    _connect()
    return _connected


def release() -> None:
    """Undo `reattach` after the recorder of this process has stopped. An external tool stays attached."""
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
        text: message that the tool shows.
        domain: NVTX domain. Empty: the default domain.
        category: name of the NVTX category in that domain.
        color: ``0xAARRGGBB``, or a color name of the `nvtx` package. None: the color of the category.
        payload: integer or float payload.
        transient: the text is unlikely to repeat. It is neither registered with the tool nor cached here.
        general: text shown instead of a transient one by the `nvtx` package, which only sends registered texts.
        few: there are few texts of this kind. They are registered even beyond `MAX_TEXTS`.
    """
    if payload is None:
        cached = _events.get((text, domain, category, color))
        if cached is not None:
            return cached
    keep = few or (text, domain) in _texts or (not transient and len(_texts) < MAX_TEXTS)
    if not keep and not IS_NATIVE:
        text, keep = general or _shorter(text), True
    elif keep:
        _texts.add((text, domain))
    # A text with a payload is sent with each range: a registration per payload would fill the memory of the tool.
    keep = keep and payload is None
    number = _category(_encodable(domain), _encodable(category)) if category else 0
    made = _client.Event(text, _encodable(domain), number, _argb(color, category), payload, keep)
    if keep:
        _events[text, domain, category, color] = made
    return made


def mark_fact(text: str, *, category: str | None = None, few: bool = True) -> None:
    """Emit a mark that describes the run. Windows of a collector that open later get it, too (`repeat_facts`).

    Args:
        text: text of the mark.
        category: as in `event`.
        few: as in `event`.
    """
    made = event(text, category=category, few=few)
    _facts.pop(text, None)  # the last of several facts counts
    if few or len(_facts) < MAX_TEXTS:
        _facts[text] = made
    mark(made)


def repeat_facts() -> None:
    """Emit the marks of `mark_fact` again, in the same order, for a collector that starts now."""
    for made in _facts.copy().values():
        mark(made)


def texts() -> dict[str, str]:
    """Return the cached texts of the ranges prepared so far, each with its domain."""
    return dict(_texts)


@functools.cache
def warn_once(message: str) -> None:
    """Warn once per `message`. The report of the recorded profile repeats the warning."""
    text = NOTE + message
    mark(event(text, transient=True, general=text))  # transient: does not count towards MAX_TEXTS
    warn(message, stacklevel=3)


def _shorter(text: str) -> str:
    """Return the text without shapes and arguments. All calls of a layer share it."""
    warn_once(
        f"more than {MAX_TEXTS} different range texts: later ranges show no shapes. The C extension would show them"
    )
    parsed = tag.parse(text)
    if parsed is None:
        return "(other)"
    return tag.format(dataclasses.replace(parsed, tensors=(), omitted=0, arguments=()))


def _category(domain: str, name: str) -> int:
    with _categories_lock:
        number = _categories.get((domain, name))
        if number is None:
            number = 1 + sum(other == domain for other, _ in _categories)
            _categories[domain, name] = number
            _client.name_category(domain, number, name)
        return number


def _argb(color: str | int | None, category: str | None) -> int:
    if color is None:
        return COLORS.get(category or "", _DEFAULT_COLOR)
    return color if isinstance(color, int) else color_number(color)


def color_number(name: str) -> int:
    """Return ``0xAARRGGBB`` of a color name. ValueError: the `nvtx` package does not know the color."""
    from nvtx.colors import color_to_hex

    try:
        return int(color_to_hex(name))
    except (TypeError, ValueError):  # nvtx supports more color names if matplotlib is installed
        raise ValueError(
            f"color must be 0xAARRGGBB or a name such as 'red', or one of matplotlib if that is installed, got {name!r}"
        ) from None


def _encodable(name: str) -> str:
    """Return a name that encodes as UTF-8, as NVTX requires. A name from a file path may contain lone surrogates."""
    return name.encode("utf-8", "replace").decode()


def _connect() -> None:
    global _connected
    _follow_torch_profiler()
    if not _connected and attached():
        _connected = _client.attach()
        for (domain, name), number in _categories.items():
            _client.name_category(domain, number, name)
        folder = os.environ.get("ANNOT_RECORD_DIR")
        error = native.recorder_error() if folder else 0
        if error and error != errno.ENOENT:  # the folder is gone: the recording ended before this process
            warn(f"annot's recorder cannot write to {folder}: {os.strerror(error)}. This process is not recorded")


@functools.cache
def _follow_torch_profiler() -> None:
    import wrapt

    def watch(profiler: Any) -> None:
        import torch

        range_type = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        if range_type is not None:
            _client.watch_profiler(profiler, range_type)

    wrapt.register_post_import_hook(watch, "torch.autograd.profiler")


@functools.cache
def _driver_has_tool() -> bool:
    """Return whether a tool requests injection through the CUDA driver, as newer NVTX headers support it."""
    root = "/run/nvidia/nvtx/"
    user = root + "user.0" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", root) + "/nvidia/nvtx"
    return any(os.path.exists(f"{folder}/nvtx-cuda.yaml") for folder in (root.rstrip("/"), user))
