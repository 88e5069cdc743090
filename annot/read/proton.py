"""Reader for the trees of Proton, the profiler of Triton: ``.hatchet`` (JSON) and ``.hatchet_msgpack``.

A file is a list: a tree, and the clocks of the devices. A node has a frame with a name, metrics and children. Proton
adds up all runs of a kernel in the same context. Such a node has the metrics ``time (ns)`` and ``count``, without the
sums of its children. The other nodes are scopes, with metrics of the user, or the Python frames ``FILE:LINE@FUNCTION``.
vLLM's scopes are its steps. Files have no timeline.

A kernel that a CUDA graph replays is below ``<captured_at>``: the scopes outside it launched the graph, the scopes
inside it captured the kernel. The reader leaves this node out, so that the kernel is in the layers of both.

The clock of ranges and launches counts the scopes and kernels in the order of the file.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from annot.errors import AnnotError
from annot.profile import LATEST, Profile
from annot.read.text import counted, integer

NAME: Final = "proton"

_JSON: Final = re.compile(rb'\s*\[\s*\{\s*"(?:frame|metrics|children)"\s*:\s*[\[{]')
_MSGPACK: Final = re.compile(
    rb"(?:[\x91-\x9f]|\xdc..|\xdd....)[\x81-\x8f](?:\xa5frame|\xa7metrics|\xa8children)", re.DOTALL
)
_TIME: Final = "time (ns)"
_COUNT: Final = "count"
_CAPTURE: Final = "<captured_at>"
_PYTHON_FRAME: Final = re.compile(r".+:\d+@.+", re.DOTALL)
_NUMBERED_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.\d+(?:\.\w+)*")
_RANGE: Final = {"process": 0, "thread": 0, "domain": "", "kind": "push"}
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_NVIDIA_ARCH: Final = re.compile(r"[1-9]\d{1,2}")
_MOST_NAMED: Final = 80


class _Frame(msgspec.Struct, gc=False):
    name: str


class _Node(msgspec.Struct):
    frame: _Frame
    metrics: dict[str, Any] = {}
    children: list[_Node] = []

    @property
    def is_kernel(self) -> bool:
        return _TIME in self.metrics and (self.metrics[_TIME] != 0 or self.metrics.get(_COUNT, 0) != 0)


_PLACE: Final = re.compile(r"\$\S{100,}(\S{40})")
"""A place deep in the tree, of which the message has the end."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the head begins with a node of a tree; see `annot.read.formats.Reader`."""
    return bool(_JSON.match(head.removeprefix(codecs.BOM_UTF8)) or _MSGPACK.match(head))


def read(path: Path) -> Profile:
    """Read a tree; see `annot.read.formats.Reader`."""
    try:
        trees, devices = _decoded(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = _PLACE.sub(r"…\1", str(error))
        raise AnnotError(f"{path} is a damaged profile of Proton: {message}") from None
    except RecursionError:
        raise AnnotError(f"{path} is a profile of Proton whose tree is too deep to read") from None
    try:
        tables = _Tables(_module_roots(trees))
        for tree in trees:
            tables.add(tree)
    except ValueError as error:
        raise AnnotError(f"{path} is a damaged profile of Proton: {error}") from None
    if not (tables.kernels or tables.ranges):
        raise AnnotError(f"{path} is a profile of Proton without scopes and kernels")
    return tables.profile({"source": str(path), "devices": devices})


def _decoded(data: bytes) -> tuple[list[_Node], list[dict[str, Any]]]:
    """Return the trees and the devices of a file."""
    decode: Callable[..., Any] = msgspec.msgpack.decode if _MSGPACK.match(data) else msgspec.json.decode
    trees: list[_Node] = []
    devices: list[dict[str, Any]] = []
    for element in decode(data, type=list[msgspec.Raw]):
        if not trees or "frame" in decode(element, type=dict[str, msgspec.Raw]):
            trees.append(decode(element, type=_Node))
        else:
            by_vendor = decode(element, type=dict[str, dict[str, dict[str, Any]]])
            devices += [_device(vendor, *row) for vendor, rows in by_vendor.items() for row in rows.items()]
    return trees, devices


def _device(vendor: str, number: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device for `Profile.meta`, with those fields of an Nsight Systems export that Proton records.

    Clocks are in kHz in the file. Memory transfers data twice per clock cycle.
    """
    arch = str(row.get("arch", ""))
    device = {"name": f"AMD {arch}"[:_MOST_NAMED] if vendor == "HIP" else "", "id": integer(number)}
    sizes = [row.get(name) for name in ("num_sms", "clock_rate", "memory_clock_rate", "bus_width")]
    if vendor != "CUDA" or not _NVIDIA_ARCH.fullmatch(arch) or not all(type(size) is int for size in sizes):
        return device
    count, clock, memory_clock, width = (int(size or 0) for size in sizes)
    capability = {"computeMajor": int(arch) // 10, "computeMinor": int(arch) % 10}
    speed = {"clockRate": clock * 1000, "memoryBandwidth": 2 * memory_clock * 1000 * width // 8}
    return device | capability | speed | {"smCount": count}


def _module_roots(trees: list[_Node]) -> set[str]:
    """Return the first names of the paths of modules: ``model`` if a scope is named ``model.layers.0``.

    The children of `ModuleList` and `Sequential` have numbers, which names of functions do not have.
    """
    roots: set[str] = set()
    nodes = list(trees)
    while nodes:
        node = nodes.pop()
        if _NUMBERED_PATH.fullmatch(node.frame.name):
            roots.add(node.frame.name.partition(".")[0])
        nodes += node.children
    return roots


class _Tables:
    """Collect rows of the tables of `annot.profile`.

    Args:
        roots: first names of the paths of modules.
    """

    def __init__(self, roots: set[str]) -> None:
        self.kernels: list[dict[str, Any]] = []
        self.ranges: list[dict[str, Any]] = []
        self._launches: list[dict[str, Any]] = []
        self._metrics: list[tuple[int, str, float, str]] = []
        self._roots = roots
        self._clock = self._gpu_clock = 0
        self._runs = 0

    def add(self, tree: _Node) -> None:
        """Add the scopes and kernels of a tree. Its root is a scope around all, which becomes no range."""
        if tree.is_kernel:
            self._add_kernel(tree)
        pending: list[_Node | dict[str, Any]] = [*reversed(tree.children)]
        while pending:
            node = pending.pop()
            if isinstance(node, dict):
                node["end"] = self._tick()
                continue
            inside = list(_inner_nodes(node))
            if inside or not node.is_kernel:
                pending += [opened] if (opened := self._opened(node)) else []
            if node.is_kernel:
                self._add_kernel(node)
            pending += reversed(inside)

    def _opened(self, node: _Node) -> dict[str, Any] | None:
        """Add the range of a scope and return it without an end. Return None for nodes that say nothing."""
        name = node.frame.name
        if name == _CAPTURE or _leads_to_frame(node):
            return None
        is_module = _PATH.fullmatch(name) and name.partition(".")[0] in self._roots
        role = "module" if is_module else None
        row = _RANGE | {"id": len(self.ranges), "text": name, "start": self._tick(), "role": role}
        self.ranges.append(row)
        return row

    def _add_kernel(self, node: _Node) -> None:
        """Add the sum of all runs of a kernel as one row."""
        length, count = _whole(node, _TIME), _whole(node, _COUNT)
        at, start = self._tick(), self._gpu_clock
        self._gpu_clock += length
        if self._gpu_clock >= LATEST:
            raise ValueError(f"its times add up to {self._gpu_clock:,} ns")
        number = len(self.kernels)
        call = {"process": 0, "correlation": number}
        self._launches.append(call | {"thread": 0, "start": at, "end": at})
        device = integer(str(node.metrics.get("device_id", "")))
        self.kernels.append(call | {"device": device, "start": start, "end": self._gpu_clock, "name": node.frame.name})
        self._runs += count
        self._metrics.append((number, "calls", float(count), ""))
        for name, value in node.metrics.items():
            if name not in (_TIME, _COUNT, "device_id") and type(value) in (int, float) and abs(value) < math.inf:
                self._metrics.append((number, name, float(value), ""))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def profile(self, meta: dict[str, Any]) -> Profile:
        """Return the profile."""
        sums = f"{counted(len(self.kernels), 'sum')} of kernels for {counted(self._runs, 'run')}"
        notes = [f"Proton adds up the runs of a kernel in a scope. Each sum and each scope counts as one call: {sums}."]
        if not self.ranges:
            notes.append("The profile has no scopes, so annot cannot attribute GPU time to layers.")
        more = {"format": NAME, "producer": "Proton", "notes": notes, "host_times": False, "totals": True}
        return Profile.build(
            meta | more,
            ranges=self.ranges,
            launches=self._launches,
            kernels=self.kernels,
            metrics=self._metrics,
        )


def _inner_nodes(node: _Node) -> Iterator[_Node]:
    """Yield the scopes and kernels in a node. The other children of a kernel are the source lines of its samples."""
    return (child for child in node.children if not node.is_kernel or child.is_kernel or child.children)


def _leads_to_frame(node: _Node) -> bool:
    """Return whether a node is a Python frame around one other frame. Stacks of servers have dozens of such frames."""
    names = [level.frame.name for level in (node, *node.children)]
    return len(names) == 2 and not node.is_kernel and all(map(_PYTHON_FRAME.fullmatch, names))


def _whole(node: _Node, metric: str) -> int:
    value = node.metrics.get(metric, 0)
    if type(value) is not int or not 0 <= value < LATEST:
        name = ascii(node.frame.name[:_MOST_NAMED])
        raise ValueError(f"{metric} of {name} is {ascii(value)[:_MOST_NAMED]}, not a whole number from 0 to 2^61")
    return value
