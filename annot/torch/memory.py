"""Memory of each layer: marks inside its range with the change and the peak of the memory in use."""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from annot.emit import client
from annot.labels.marks import MEMORY, RSS, format_memory
from annot.util.locks import fork_safe

_STATM: Final = "/proc/self/statm"


class Counter(NamedTuple):
    """Source of memory figures."""

    source: str
    """Name of the source in `annot.labels.marks`."""
    read: Callable[[], tuple[int, int]]
    """Returns the bytes in use now, and their peak since the last call."""


def _read_cuda(device: int) -> tuple[int, int]:
    """Return the memory allocated by PyTorch's caching allocator on a device, without synchronizing.

    The allocator keeps one peak, and each read resets it. This also resets ``torch.cuda.max_memory_allocated``.
    """
    stats = torch.cuda.memory.memory_stats_as_nested_dict(device)
    torch.cuda.memory.reset_peak_memory_stats(device)
    allocated = stats.get("allocated_bytes", {}).get("all", {})
    return allocated.get("current", 0), allocated.get("peak", 0)


def _read_rss() -> tuple[int, int]:
    """Return the resident memory of this process. Its peak is the maximum over the reads."""
    with open(_STATM, "rb", buffering=0) as file:
        now = int(file.read(128).split()[1]) * mmap.PAGESIZE
    return now, now


def counter_for(model: torch.nn.Module) -> Counter | None:
    """Return the counter for the model's device, or None, with a warning, if memory cannot be measured."""
    tensors = (tensor for group in (model.parameters(), model.buffers()) for tensor in group)
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if not client.attached():
        client.warn_once("memory=True needs an NVTX tool. With torch.profiler, use its profile_memory=True")
    elif device is not None:
        client.warn_once("memory=True resets the peak of torch.cuda.max_memory_allocated at every range")
        index = torch.cuda.current_device() if device.index is None else device.index
        return Counter(f"cuda:{index}", functools.partial(_read_cuda, index))
    elif os.path.exists(_STATM):
        return Counter(RSS, _read_rss)
    else:
        client.warn_once(f"memory=True cannot measure the memory of this process: {_STATM} does not exist")
    return None


@dataclass(slots=True)
class _Open:
    """Open range: its nesting depth, memory at its start, and peak memory since then."""

    depth: int
    start: int
    peak: int


class Meter:
    """Replacement for `client.push` and `client.pop` that emits the memory marks of each range.

    Each read resets the peak of the counter, so every peak is passed on: a read updates the innermost range of every
    thread, because threads share the memory, and a range that closes updates its parent.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._texts = format_memory("change", counter.source), format_memory("peak", counter.source)
        self._lock = fork_safe()
        # By thread id, because pool threads of autograd lose their threading.local between tasks.
        self._open: dict[int, list[_Open]] = {}

    def push(self, event: Any) -> None:
        """Open the range of `event` on this thread."""
        with self._lock:
            opened = self._open.setdefault(threading.get_ident(), [])
            depth = client.depth()
            while opened and opened[-1].depth >= depth:  # other code has closed it
                opened.pop()
            now = self._read()
            opened.append(_Open(depth, now, now))
        client.push(event)

    def pop(self) -> None:
        """Emit the memory marks of the range that this thread opened last, and close it."""
        try:
            self._close()
        finally:
            client.pop()

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
                client.mark(client.event(text, category=MEMORY, payload=value))

    def _read(self) -> int:
        now, peak = self._counter.read()
        for opened in self._open.values():
            if opened:
                opened[-1].peak = max(opened[-1].peak, peak)
        return now
