"""How much memory each layer's range takes: its change and its peak, as marks inside the range."""

from __future__ import annotations

import os
import threading
from typing import Any, Final, Protocol

import torch

from annot import emit, memory_text
from annot.locks import fork_safe

__all__ = ["Counter", "CudaCounter", "Meter", "RssCounter", "counter_for"]

_STATM: Final = "/proc/self/statm"


class Counter(Protocol):
    """Where the figures come from."""

    source: str
    """As `annot.memory_text` names it."""

    def read(self) -> tuple[int, int]:
        """Return the bytes in use now, and the most since the last call."""


class CudaCounter:
    """What PyTorch's allocator has given out on one device; asking it waits for nothing.

    It keeps one peak for all, which begins anew at each call: ``torch.cuda.max_memory_allocated`` does so, too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self.source = f"cuda:{self._device}"

    def read(self) -> tuple[int, int]:
        """Return the bytes in use now, and the most since the last call."""
        stats = torch.cuda.memory.memory_stats_as_nested_dict(self._device)
        torch.cuda.memory.reset_peak_memory_stats(self._device)
        of_all = stats.get("allocated_bytes", {}).get("all", {})
        return of_all.get("current", 0), of_all.get("peak", 0)


class RssCounter:
    """The resident memory of this process; it knows no peak but what it sees when it is read."""

    source = memory_text.RSS
    _page = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> tuple[int, int]:
        """Return the bytes in use now, twice."""
        with open(_STATM, "rb", buffering=0) as file:
            now = int(file.read(128).split()[1]) * self._page
        return now, now


def counter_for(model: torch.nn.Module) -> Counter | None:
    """Return the counter for where the model is now; None, with a warning, if its figures cannot be had."""
    tensors = (tensor for group in (model.parameters(), model.buffers()) for tensor in group)
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if not emit.attached():
        emit.warn_once("memory=True needs an NVTX tool; for torch.profiler alone there is its profile_memory=True")
    elif device is not None:
        emit.warn_once("memory=True starts the peak of torch.cuda.max_memory_allocated anew at every range")
        return CudaCounter(device)
    elif os.path.exists(_STATM):
        return RssCounter()
    else:
        emit.warn_once("memory=True: this system does not say how much memory a process has")
    return None


class _Open:
    """A range that is open: the memory at its start, the most since, and how many ranges lie around it."""

    __slots__ = ("depth", "peak", "start")

    def __init__(self, start: int, depth: int) -> None:
        self.start = self.peak = start
        self.depth = depth


class Meter:
    """Opens and closes ranges in the place of `emit.push` and `emit.pop`, and says what each took.

    The counter's peak starts anew at every boundary, so what was read there is handed on: to the innermost range
    of every thread, for memory is common to all, and from each range to the one around it when it closes.

    Args:
        counter: where the figures come from.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._texts = memory_text.text_of("change", counter.source), memory_text.text_of("peak", counter.source)
        self._lock = fork_safe()
        self._open: dict[int, list[_Open]] = {}  # by thread; autograd's pool threads lose what is local to them

    def push(self, event: Any) -> None:
        """Open the range of `event` on this thread."""
        with self._lock:
            opened = self._open.setdefault(threading.get_ident(), [])
            depth = emit.depth()
            while opened and opened[-1].depth >= depth:  # somebody else has closed it
                opened.pop()
            opened.append(_Open(self._read(), depth))
        emit.push(event)

    def pop(self) -> None:
        """Say what the range that this thread opened last took, and close it."""
        try:
            self._close()
        finally:
            emit.pop()

    def _close(self) -> None:
        with self._lock:
            ident = threading.get_ident()
            opened = self._open.get(ident)
            now = self._read()
            closed = opened.pop() if opened else None
            if closed is not None and opened:
                opened[-1].peak = max(opened[-1].peak, closed.peak)
            elif not opened:
                self._open.pop(ident, None)
        if closed is not None:
            for text, value in zip(self._texts, (now - closed.start, closed.peak), strict=True):
                emit.mark(emit.event(text, category=memory_text.CATEGORY, payload=value))

    def _read(self) -> int:
        now, peak = self._counter.read()
        for opened in self._open.values():
            if opened:
                opened[-1].peak = max(opened[-1].peak, peak)
        return now
