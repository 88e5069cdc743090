"""Texts of annot's marks: ranks, machine, threads, loaders, memory, sources, name scopes, work of operators.

``Rank 3 of 8``: rank of the process and number of ranks.

``CPU threads=2 cores=4 ranks=1 backend=gloo``: threads that an operation of the framework uses, cores that the process
may use, ranks that share them, and the backend of the default process group. Unknown facts are left out.

``Loader workers=2 persistent=1 pinned=0 dataset=Photos source=data.py:12``: worker processes of a DataLoader of
PyTorch that starts to iterate, whether they live on between epochs, whether it copies batches to pinned memory, and the
class of a dataset that the user defines, with file and line of the method that loads samples.

``Machine PyTorch=2.9.0+cpu Python=3.11.2 annot=0.1.0 CPU=AMD EPYC 7763``: versions in the process, and its CPU.

``memory change |rss``, ``memory peak |cuda:0``: the payload is the number of bytes. A memory mark precedes the end of
the range it belongs to. `change` is the difference between the memory in use at the end and at the start of the range.
`peak` is the maximum in use during the range. ``rss`` is the resident memory of the process, ``cuda:N`` the memory
allocated by PyTorch's caching allocator on that device.

``Source Block = model.py:12``: file and line of a module class that the user defines.

``Scope sequential_1/conv_1 = sequential/conv Conv2D [8,32,32,3]f32 kernel_size=3,3 |fwd``: the text after the equals
sign is the label of the layer's forward range, in the format of `annot.labels.tag`. Operation names start with their
scope. The scope of a layer can differ from its path, because TensorFlow appends a number to a scope that exists.

``Work flops=48 read=24 written=24 = 0 Net mylib::scale [2,3]f32 |op``: FLOPs of a call of an operator by the formula in
`torch.utils.flop_counter`, the bytes of the tensors that it reads and writes, and after the equals sign the text of its
range. The first of equal calls emits the mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from annot.labels import tag

CPU: Final = "CPU "
"""Prefix of marks about the threads of a process."""

LOADER: Final = "Loader "
"""Prefix of marks about loaders."""

MACHINE: Final = "Machine "
"""Prefix of marks about the software and the CPU."""

MEMORY: Final = "memory"
"""NVTX category of memory marks."""

RSS: Final = "rss"
"""Source of the memory of the whole process."""

SCOPE: Final = "Scope "
"""Prefix of scope marks."""

SOURCE: Final = "Source "
"""Prefix of source marks."""

WORK: Final = "Work "
"""Prefix of marks about the work of operators."""

SCOPES_FILE: Final = "annot_scopes.txt"
"""File with a scope mark per line, for profiles without NVTX marks. It is in the folder of the profile or a parent."""

_FACTS: Final = {"threads": r"\d{1,6}", "cores": r"\d{1,6}", "ranks": r"\d{1,6}", "backend": r"\w{1,32}"}
_CPU: Final = re.compile(CPU.rstrip() + "".join(f"(?: {name}=({value}))?" for name, value in _FACTS.items()))
_LOADER: Final = re.compile(
    rf"{LOADER}workers=(\d{{1,6}}) persistent=([01]) pinned=([01])(?: dataset=(\S+) source=(.+:\d+))?"
)
_VERSIONS: Final = ("PyTorch", "TensorFlow", "Python", "annot")
_LONGEST: Final = 100
"""Maximum length of the model of a CPU."""
_MACHINE: Final = re.compile(
    MACHINE.rstrip() + "".join(rf"(?: {name}=([\w.+!-]{{1,40}}))?" for name in _VERSIONS) + "(?: CPU=(.+))?", re.DOTALL
)
_RANK: Final = re.compile(r"Rank (\d{1,9}) of (\d{1,9})")
_MEMORY: Final = re.compile(r"memory (change|peak) \|(rss|cuda:[0-9]+)")
_SOURCE: Final = re.compile(rf"{SOURCE}(\S+) = (.+:\d+)")
_WORK: Final = re.compile(rf"{WORK}flops=(\d{{1,18}}) read=(\d{{1,18}}) written=(\d{{1,18}}) = (.+)", re.DOTALL)
_SCOPE: Final = re.compile(rf"{SCOPE}(\S+) = (.+)", re.DOTALL)


def format_rank(rank: int, world_size: int) -> str:
    """Return the text of a rank mark. Ranks are from 0 to `world_size` - 1.

    Example:
        >>> format_rank(3, 8)
        'Rank 3 of 8'
    """
    return f"Rank {rank} of {world_size}"


def parse_rank(text: str) -> tuple[int, int] | None:
    """Return rank and world size of a rank mark, or None for other texts.

    Example:
        >>> parse_rank("Rank 3 of 8"), parse_rank("Rank 8 of 8")
        ((3, 8), None)
    """
    match = _RANK.fullmatch(text)
    if match is None:
        return None
    rank, world_size = int(match[1]), int(match[2])
    return (rank, world_size) if rank < world_size and text == format_rank(rank, world_size) else None


def format_cpu(facts: Mapping[str, int | str]) -> str:
    """Return the text of a mark about the threads of a process. The facts are threads, cores, ranks and backend.

    Example:
        >>> format_cpu({"threads": 2, "cores": 4})
        'CPU threads=2 cores=4'
    """
    return CPU.rstrip() + "".join(f" {name}={facts[name]}" for name in _FACTS if name in facts)


def parse_cpu(text: str) -> dict[str, int | str] | None:
    """Return the facts of a mark about the threads of a process, or None for other texts.

    Example:
        >>> parse_cpu("CPU threads=2 cores=4 backend=gloo"), parse_cpu("CPU cores=many")
        ({'threads': 2, 'cores': 4, 'backend': 'gloo'}, None)
    """
    match = _CPU.fullmatch(text)
    if match is None:
        return None
    facts = {name: value for name, value in zip(_FACTS, match.groups(), strict=True) if value is not None}
    return {name: value if name == "backend" else int(value) for name, value in facts.items()}


def format_loader(*, workers: int, persistent: bool, pinned: bool, dataset: str = "", source: str = "") -> str:
    """Return the text of a mark about a DataLoader. The class of its dataset is there if the source is known.

    Example:
        >>> format_loader(workers=2, persistent=True, pinned=False)
        'Loader workers=2 persistent=1 pinned=0'
    """
    where = f" dataset={dataset} source={source}" if source and dataset.split() == [dataset] else ""
    return f"{LOADER}workers={workers} persistent={persistent:d} pinned={pinned:d}{where}"


def parse_loader(text: str) -> dict[str, int | str] | None:
    """Return the facts of a mark about a DataLoader (0 is false, 1 is true), or None for other texts.

    Example:
        >>> parse_loader("Loader workers=2 persistent=1 pinned=0"), parse_loader("Loader workers=many")
        ({'workers': 2, 'persistent': 1, 'pinned': 0}, None)
    """
    match = _LOADER.fullmatch(text)
    if match is None:
        return None
    facts: dict[str, int | str] = dict(
        zip(("workers", "persistent", "pinned"), map(int, match.groups()[:3]), strict=True)
    )
    return facts | ({"dataset": match[4], "source": match[5]} if match[5] else {})


def format_machine(facts: Mapping[str, str]) -> str:
    """Return the text of a mark about the machine: versions of PyTorch, TensorFlow, Python and annot, and the CPU.

    Example:
        >>> format_machine({"PyTorch": "2.9.0+cpu", "Python": "3.11.2", "CPU": "AMD EPYC"})
        'Machine PyTorch=2.9.0+cpu Python=3.11.2 CPU=AMD EPYC'
    """
    fields = {name: facts.get(name, "") for name in _VERSIONS} | {"CPU": cpu_model(facts.get("CPU", ""))}
    return MACHINE.rstrip() + "".join(f" {name}={fact}" for name, fact in fields.items() if fact)


def parse_machine(text: str) -> dict[str, str] | None:
    """Return the facts of a mark about the machine, or None for other texts.

    Example:
        >>> parse_machine("Machine Python=3.11.2 CPU=AMD EPYC"), parse_machine("Machine learning")
        ({'Python': '3.11.2', 'CPU': 'AMD EPYC'}, None)
    """
    match = _MACHINE.fullmatch(text)
    if match is None:
        return None
    facts = dict(zip((*_VERSIONS, "CPU"), match.groups(), strict=True))
    return {name: cpu_model(fact) if name == "CPU" else fact for name, fact in facts.items() if fact is not None}


def cpu_model(text: str) -> str:
    """Return the model of a CPU with single spaces and at most 100 characters.

    Example:
        >>> cpu_model("AMD EPYC\\t7763  ")
        'AMD EPYC 7763'
    """
    return " ".join(text[: 4 * _LONGEST].split())[:_LONGEST]


def format_memory(figure: Literal["change", "peak"], source: str) -> str:
    """Return the text of a memory mark. `source` is ``rss`` or ``cuda:N``.

    Raises:
        ValueError: the figure or the source is unknown.

    Example:
        >>> format_memory("peak", "cuda:0")
        'memory peak |cuda:0'
    """
    text = f"memory {figure} |{source}"
    if parse_memory(text) is None:
        raise ValueError(f"memory marks do not support {figure!r} of {source!r}")
    return text


def parse_memory(text: str) -> tuple[str, str] | None:
    """Return figure and source of a memory mark, or None for other texts.

    Example:
        >>> parse_memory("memory change |rss"), parse_memory("fc Linear |fwd")
        (('change', 'rss'), None)
    """
    match = _MEMORY.fullmatch(text)
    return (match[1], match[2]) if match else None


def format_source(module: str, source: str) -> str:
    """Return the text of a source mark.

    Args:
        module: class name of a module.
        source: file and line of its class.

    Raises:
        ValueError: the class name contains white space, or the source has no line.

    Example:
        >>> format_source("Block", "model.py:12")
        'Source Block = model.py:12'
    """
    text = f"{SOURCE}{module} = {source}"
    if parse_source(text) is None:
        raise ValueError(f"source marks do not support {module!r} in {source!r}")
    return text


def parse_source(text: str) -> tuple[str, str] | None:
    """Return class name and source of a source mark, or None for other texts.

    Example:
        >>> parse_source("Source Block = model.py:12"), parse_source("Source of truth")
        (('Block', 'model.py:12'), None)
    """
    match = _SOURCE.fullmatch(text)
    return (match[1], match[2]) if match else None


def format_scope(scope: str, layer: tag.Tag) -> str:
    """Return the text of a scope mark. The phase of the layer is ignored.

    Raises:
        ValueError: the scope is empty or contains white space.

    Example:
        >>> format_scope("net_1/fc", tag.Tag("net/fc", "Dense"))
        'Scope net_1/fc = net/fc Dense |fwd'
    """
    text = f"{SCOPE}{scope} = {tag.format(replace(layer, phase='forward'))}"
    if parse_scope(text) is None:
        raise ValueError(f"{scope!r} is not a name scope: it is empty or contains white space")
    return text


def parse_scope(text: str) -> tuple[str, tag.Tag] | None:
    """Return scope and layer of a scope mark, or None for other texts.

    Example:
        >>> parse_scope("Scope net_1/fc = net/fc Dense |fwd")[1].module
        'Dense'
    """
    match = _SCOPE.fullmatch(text)
    layer = match and tag.parse(match[2])
    return (match[1], layer) if match and layer else None


def format_work(text: str, flops: int, read: int, written: int) -> str:
    """Return the text of a mark about the work of an operator.

    Args:
        text: text of the range of the call.
        flops: floating-point operations of the call.
        read: bytes of the tensors that it reads.
        written: bytes of the tensors that it writes.

    Raises:
        ValueError: the text is not that of an operation, or a number is negative or has more than 18 digits.

    Example:
        >>> format_work("0 Net mylib::scale [2,3]f32 |op", 48, 24, 24)
        'Work flops=48 read=24 written=24 = 0 Net mylib::scale [2,3]f32 |op'
    """
    mark = f"{WORK}flops={flops} read={read} written={written} = {text}"
    if parse_work(mark) is None:
        raise ValueError(f"work marks do not support {flops} FLOPs and {read} and {written} bytes of {text!r}")
    return mark


def parse_work(text: str) -> tuple[str, int, int, int] | None:
    """Return the text of the range, FLOPs, bytes read and bytes written of a work mark, or None for other texts.

    Example:
        >>> parse_work("Work flops=48 read=24 written=24 = 0 Net mylib::scale [2,3]f32 |op")
        ('0 Net mylib::scale [2,3]f32 |op', 48, 24, 24)
        >>> parse_work("Work in progress") is None
        True
    """
    match = _WORK.fullmatch(text)
    label = match and tag.parse(match[4])
    if match is None or label is None or label.phase != "op":
        return None
    return match[4], int(match[1]), int(match[2]), int(match[3])
