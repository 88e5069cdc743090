"""Reader for the traces of torch.profiler, mostly of Kineto: releases since 2021, on CPUs, NVIDIA GPUs and AMD GPUs.

Events are read from Chrome traces (`trace_events`) or Perfetto traces (`pftrace`).

Processes and threads are numbers, or names for rows that are not threads. The "process" of a kernel is its device, so
that the reader uses the process of its launch. Times are microseconds, relative to `baseTimeNanoseconds`.

Operations of autograd have a sequence number. Backward operations also have autograd's id of the forward thread. Some
PyTorch releases add arrows ("fwdbwd") from forward to backward operations. Calls of `nn.Module` are Python functions in
the trace, if the profiler recorded them (``with_stack=True``).
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import NoneType
from typing import Any, Final

import polars as pl

from annot.errors import AnnotError, EmptyProfileError
from annot.labels import tag
from annot.labels.marks import parse_machine
from annot.profile import COPIES, KERNELS, LAUNCHES, ROLES, Profile, Schema, pick, pinned_memory
from annot.read.kineto.columns import ANNOTATION, MIXED, PROCESS, Columns, InexactTimesError
from annot.read.kineto.flows import correlated, link_backward, module_texts, on_operation_threads
from annot.read.kineto.pftrace import FIRST, PftraceFile
from annot.read.kineto.trace_events import GZIP, FileBytes, TraceFile
from annot.read.text import counted, sentences

NAME: Final = "kineto"

_SNIFFED: Final = 1 << 20
_FIRST: Final = 64
_MOST_NAMED: Final = 4
_LONGEST_NAME: Final = 80
_KEYS: Final = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_LARGEST: Final = 3 * 10**18
_BACKWARD: Final = r"^autograd::engine::evaluate_function: |Backward\d*$"
# In PyTorch releases of 2021, ranges of PyTorch ("ProfilerStep#5", "Optimizer.step#SGD.step") and of the user have the
# category of operators. Names of operators do not contain "#" or a space before the first colon.
_ANNOTATION_NAME: Final = r"^[^:]*[# ]"
_WRAPPER: Final = r"^nn\.Module: (?:(?:FullySharded|Distributed)DataParallel|CheckpointWrapper|OptimizedModule)_\d+$"
_COMPACT: Final = ("start", "end", "thread", "name", "external")
_OF_OPERATIONS: Final = ("sequence", "forward", "call")
_CAUSE: Final = ("cause", "origin_thread", "origin_start")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is JSON with trace events or a Perfetto trace, plain or gzip; see `Reader`."""
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _SNIFFED)
        except zlib.error:
            return False
    if FIRST.match(head):
        return True
    head = head.removeprefix(codecs.BOM_UTF8)
    if re.match(rb"\s*\[\s*\{", head):
        return b'"ph"' in head
    return head.lstrip().startswith(b"{") and any(key in head for key in _KEYS)


def read(path: Path) -> Profile:
    """Read a trace; see `annot.read.formats.Reader`."""
    try:
        try:
            return _read(path, exact=False)
        except InexactTimesError:
            return _read(path, exact=True)
    except OverflowError as error:
        raise AnnotError(f"{path} contains a number out of range: {error}") from None


def _read(path: Path, exact: bool) -> Profile:
    columns = Columns()
    with _open(path, exact) as file:
        for block in file.blocks():
            columns.add(block)
    base = _base(file.top)
    names, grids = _names(columns.names, file.top.get("annot_texts")), columns.grids
    launches, *activities = correlated(*(columns.table(name, base) for name in ("launches", "kernels", "copies")))
    operations = columns.table("ranges", base)
    launches = on_operation_threads(_resolve_texts(_listed(launches, names), grids, names["text"]), operations)
    modules = _listed(columns.table("modules", base), names).filter(~pl.col("text").str.contains(_WRAPPER))
    processes = _Processes(launches, operations)
    kernels, copies = (_listed(table, names) for table in activities)
    kernels = origins(processes.assign(_resolve_texts(kernels, grids)))
    copies = origins(processes.assign(copies))
    counter_ranges = _listed(columns.table("counter_ranges", base), names)
    if not any(table.height for table in (launches, operations, modules, kernels, copies, counter_ranges)):
        why = "".join(f". {note.removesuffix('.')}" for note in _notes(columns, file.invalid, 0))
        what = "is a trace without operations, ranges and GPU activities of torch.profiler"
        raise EmptyProfileError(f"{path} {what}{why}")
    kernels, metrics, notes = with_counters(kernels, counter_ranges, columns.counters, launches)
    ranges = _ranges(operations, modules, names, columns.table("flows", base), columns.calls)
    notes += _notes(columns, file.invalid, processes.ambiguous)
    meta = {"source": str(path), "format": NAME, "producer": "torch.profiler", "notes": notes, **_machine(file.top)}
    others = other_devices(columns.unsupported, columns.runtimes)
    more = {"other_devices": others, "sources": columns.sources.by_class() | meta.get("sources", {})}
    meta |= {name: facts for name, facts in more.items() if facts}
    return Profile.build(
        meta,
        ranges=ranges,
        launches=_named(launches, LAUNCHES),
        kernels=_named(kernels, KERNELS),
        copies=_copies(copies),
        metrics=metrics,
        captured=captured_ranges(columns.layers),
    )


def _open(path: Path, exact: bool) -> TraceFile | PftraceFile:
    with closing(FileBytes(path)) as content:
        perfetto = FIRST.match(content.window(_FIRST))
    return (PftraceFile if perfetto else TraceFile)(path, exact=exact)


def _base(top: dict[str, Any]) -> int:
    base = top.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int) or abs(base) > _LARGEST:
        raise OverflowError(f"baseTimeNanoseconds is {str(base)[:40]!r}")
    return base


def _names(names: pl.Series, annot_texts: Any) -> pl.DataFrame:
    """Return text, domain and category of each span name.

    `annot_texts` has the domains of annot's ranges with custom texts. `annot run` adds them to the trace.
    """
    texts = {text: str(domain) for text, domain in _dictionary(annot_texts).items()}
    domains = [tag.DOMAIN if tag.parse(name) is not None else texts.get(name) for name in names]
    return pl.DataFrame({"text": names, "domain": pl.Series(domains, dtype=pl.String)}).with_columns(
        pl.col("domain").fill_null(""),
        from_annot=pl.col("domain").is_not_null(),
        annotation_name=pl.col("text").str.contains(_ANNOTATION_NAME),
        backward=pl.col("text").str.contains(_BACKWARD),
    )


def _listed(spans: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Return spans in the order of their start, with their names."""
    ordered = spans if spans["start"].is_sorted() else spans.sort("start", maintain_order=True)
    return ordered.with_columns(names["text"].gather(ordered["name"]).alias("text"))


def _resolve_texts(spans: pl.DataFrame, grids: pl.Series, names: pl.Series | None = None) -> pl.DataFrame:
    """Replace the indices in `grid`, and with `names` in `kernel`, by their texts. Drop columns that are null."""
    texts = {"grid": grids} if names is None else {"grid": grids, "kernel": names}
    columns = [text.gather(spans[name]).alias(name) for name, text in texts.items() if spans[name].count()]
    return spans.drop(texts).with_columns(columns)


class _Processes:
    """Find the processes of GPU activities from their launches, or from the operations that caused them."""

    def __init__(self, launches: pl.DataFrame, operations: pl.DataFrame) -> None:
        owners = launches.select("correlation", owner="process").drop_nulls("correlation")
        self._owners = owners.unique("correlation", keep="first")
        self.ambiguous = owners.n_unique() - self._owners.height if launches["process"].n_unique() > 1 else 0
        self._operations = operations
        # Launches before the start of the trace are assigned to the process of the first launch.
        processes = launches["process"] if launches.height else operations["process"]
        self._default = processes[0] if len(processes) else 0

    def assign(self, activities: pl.DataFrame) -> pl.DataFrame:
        """Add `process` to kernels or copies, and for those without a launch `origin_thread` and `origin_start`."""
        owned = activities.join(self._owners, on="correlation", how="left", maintain_order="left")
        if owned["owner"].null_count():
            causes = self._operations.drop_nulls("external").unique("external", keep="first")
            causes = causes.select("external", cause="process", origin_thread="thread", origin_start="start")
            owned = owned.join(causes, on="external", how="left", maintain_order="left")
        else:
            owned = owned.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _CAUSE)
        # PyTorch releases of 2022 and 2023 repeat the correlation id as the external id.
        caused = pl.col("owner").is_null() & pl.col("external").ne_missing(pl.col("correlation"))
        cause = {name: pl.when(caused).then(name) for name in _CAUSE}
        process = pl.coalesce("owner", cause.pop("cause"), pl.lit(self._default, pl.Int64))
        return owned.with_columns(process=process, **cause)


def _ranges(
    operations: pl.DataFrame, modules: pl.DataFrame, names: pl.DataFrame, flows: pl.DataFrame, calls: pl.Series
) -> pl.DataFrame:
    categories = names.select("from_annot", "annotation_name", "backward")[operations["name"]]
    annotation = (
        (pl.col("kind") == ANNOTATION) | pl.col("from_annot") | ((pl.col("kind") == MIXED) & pl.col("annotation_name"))
    )
    operations = operations.hstack(categories).select(
        *_COMPACT,
        "process",
        *_OF_OPERATIONS,
        annotation=annotation,
        backward=pl.col("backward") | (pl.col("forward") > 0).fill_null(False),
    )
    annotations = operations.filter("annotation").select(*_COMPACT, role=_role("annotation"))
    operations = link_backward(operations.filter(~pl.col("annotation")).drop("annotation"), flows)
    role = pl.when("backward").then(_role("backward")).otherwise(_role("operator"))
    operations = operations.select(*_COMPACT, "sequence", "forward_thread", "call", role=role)
    passed = operations.filter(pl.col("role") == ROLES.index("backward"))
    layers = pl.Series(module_texts(modules, passed), dtype=pl.String)
    distinct = layers.unique(maintain_order=True)
    numbers = {text: names.height + number for number, text in enumerate(distinct)}
    name = pl.Series([numbers[text] for text in layers], dtype=pl.Int32)
    modules = modules.with_columns(external=pl.lit(None, pl.Int64), role=_role("module"), name=name)
    modules = modules.select(*_COMPACT, "role")
    # Ranges with equal times nest in the order of their ids.
    ranges = pl.concat([modules, annotations, operations], how="diagonal")
    ranges = ranges.sort("start", "end", "external", descending=[False, True, False], maintain_order=True)
    texts = pl.concat([names["text"], distinct])
    domains = pl.concat([names["domain"], pl.repeat("", len(distinct), eager=True)])
    return ranges.select(
        pl.col("start", "end", "thread", "sequence", "forward_thread"),
        id=pl.int_range(pl.len(), dtype=pl.Int64),
        process=PROCESS,
        category=pl.lit(""),
        kind=pl.lit("push"),
        text=texts.gather(ranges["name"]),
        domain=domains.gather(ranges["name"]),
        role=pl.Series(ROLES).gather(ranges["role"]),
        call=calls.gather(ranges["call"]),
    )


def _role(role: str) -> pl.Expr:
    return pl.lit(ROLES.index(role), pl.Int8)


def _copies(copies: pl.DataFrame) -> pl.DataFrame:
    """Return copies and memsets. The kind of "Memcpy HtoD (Pageable -> Device)" is HtoD.

    Kineto writes "Host" for host memory of an unknown kind, as on AMD GPUs.
    """
    text = pl.col("text")
    memset = pl.when(text.str.contains("(?i)^memset")).then(pl.lit("memset"))
    kind = pl.coalesce(text.str.extract(r"(?i)^memcpy\s+(\w+)"), memset, pl.lit("unknown"))
    memory = (text.str.contains(rf"(?i)\({name}\b|\b{name}\)") for name in ("pageable", "pinned"))
    return pick(copies.with_columns(pinned_memory(*memory), kind=kind), COPIES)


def _named(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    return pick(frame.with_columns(name="text"), schema)


def _machine(top: dict[str, Any]) -> dict[str, Any]:
    """Return devices, software, sources of classes, rank and world size from the trace, for `Profile.meta`."""
    devices, distributed = top.get("deviceProperties"), _dictionary(top.get("distributedInfo"))
    machine = parse_machine(str(top.get("annot_machine", ""))) or {}  # `annot run` adds it to the trace
    facts = {
        "devices": [
            {name: value for name, value in device.items() if isinstance(value, (str, int, float, bool, NoneType))}
            for device in (devices if isinstance(devices, list) else ())
            if isinstance(device, dict)
        ],
        "sources": {module: str(source) for module, source in _dictionary(top.get("annot_sources")).items()},
        "cpu": machine.pop("CPU", ""),
        "program": _dictionary(top.get("annot_program")),  # `annot run` adds it, too
        "software": machine | _software(top, distributed.get("nccl_version")),
    }
    numbers = {name: distributed[name] for name in ("rank", "world_size") if type(distributed.get(name)) is int}
    return {name: fact for name, fact in facts.items() if fact} | numbers


def _dictionary(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _software(top: dict[str, Any], nccl: Any) -> dict[str, str]:
    """Return the versions of CUDA, HIP and NCCL from the trace."""
    hip = top.get("hip_runtime_version")
    versions = {
        "CUDA": _cuda(top.get("cuda_runtime_version")),
        "CUDA driver": _cuda(top.get("cuda_driver_version")),
        "HIP": f"{hip // 10**7}.{hip // 10**5 % 100}.{hip % 10**5}" if type(hip) is int and 0 < hip < 10**10 else "",
        "NCCL": nccl[:_LONGEST_NAME] if isinstance(nccl, str) else "",
    }
    return {name: version for name, version in versions.items() if version}


def _cuda(version: Any) -> str:
    """Return 12.4 for 12040, the version in the format of CUDA."""
    return f"{version // 1000}.{version % 1000 // 10}" if type(version) is int and 0 < version < 10**6 else ""


def _notes(columns: Columns, invalid: int, ambiguous: int) -> list[str]:
    counts = {
        "The layers of {GPU activity} come from cuda_graph_annotations.": columns.annotated,
        "annot skipped {event} without valid start and end times.": columns.incomplete,
        "annot skipped {invalid event}.": invalid,
        "annot ignored arguments of unexpected types in {event}.": columns.invalid_args,
        f"annot skipped {{event}} of unsupported categories{_others(columns)}.": columns.unsupported.total(),
        "annot found {correlation id} in several processes and uses the first process.": ambiguous,
    }
    return sentences(Counter(counts))


def _others(columns: Columns) -> str:
    """Return the most frequent unsupported categories, in parentheses."""
    named = [category[:_LONGEST_NAME] or "none" for category, _ in columns.unsupported.most_common(_MOST_NAMED)]
    return f" ({', '.join(named)}{', ...' if len(columns.unsupported) > _MOST_NAMED else ''})" if named else ""


_LAUNCH: Final = r"^(cuda|cu|hip)\w*Launch\w*Kernel"


def with_counters(
    kernels: pl.DataFrame, ranges: pl.DataFrame, counters: pl.DataFrame, launches: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame | None, list[str]]:
    """Return kernels, their metrics, and notes. Without kernels, the ranges of the counters become kernels.

    All tables are in the order of their start. `counters` has the row of `ranges`, name and value of each counter.
    """
    notes: list[str] = []
    if ranges.is_empty():
        return kernels, None, notes
    if kernels.is_empty():
        kernels, notes = _untimed(ranges, launches)
    elif kernels.height != ranges.height:
        notes.append(
            f"The trace contains hardware counters of {counted(ranges.height, 'kernel')}, but times of "
            f"{kernels.height:,}. annot skipped the counters, because it cannot match them."
        )
        return kernels, None, notes
    rows = ranges.select("row", kernel=pl.int_range(pl.len(), dtype=pl.Int64))
    metrics = rows.join(counters, on="row", how="inner", maintain_order="left_right")
    return kernels, metrics.select("kernel", "name", "value"), notes


def _untimed(ranges: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    notes = [
        f"The trace contains hardware counters, but no times of its {counted(ranges.height, 'kernel')}. "
        "The GPU time counts as 0 ns."
    ]
    kernels = ranges.select("device", "start", "text", end="start")
    calls = launches.filter(pl.col("text").str.contains(_LAUNCH))
    if calls.height == ranges.height:
        return kernels.hstack(calls.select("process", "correlation")), notes
    notes.append(
        f"The trace contains {counted(calls.height, 'kernel launch')} for {counted(ranges.height, 'kernel')}. annot "
        "cannot match them."
    )
    return kernels, notes


# The ranges are before all events of a trace, on a thread that other captures do not use.
_THREAD: Final = pl.lit(-(1 << 62), pl.Int64)
_BEGIN: Final = -2 * pl.col("layer").cast(pl.Int64) - 2


def captured_ranges(layers: pl.DataFrame) -> pl.DataFrame:
    """Return the range of each annotation of graph nodes, as if another profile captured the graph there.

    `layers` has text and role.
    """
    return layers.with_row_index("layer").select(
        "text", "role", id=_BEGIN, process=_THREAD, thread=_THREAD, start=_BEGIN, end=_BEGIN + 1, kind=pl.lit("push")
    )


def origins(activities: pl.DataFrame) -> pl.DataFrame:
    """Return GPU activities with the ranges of their annotations as origins. `layer` is the row of an annotation."""
    annotated, origin = pl.when(pl.col("layer") >= 0), (("origin_thread", _THREAD), ("origin_start", _BEGIN))
    return activities.with_columns(annotated.then(value).otherwise(name).alias(name) for name, value in origin)


# Kineto names categories after devices: ``mtia_runtime``, ``mtia_ccp_events``, ``hpu_op``, ``privateuse1_driver``
# (libkineto's ActivityType). Kernels and copies of any device that are in the general categories ``kernel``,
# ``gpu_memcpy`` and ``gpu_memset`` are GPU activities.
_RUNTIME: Final = re.compile(r"(\w+)_(?:runtime|driver)")
_SUPPORTED: Final = frozenset({"cuda", "cu", "hip", "roctracer"})
_KNOWN: Final = frozenset({"gcu", "hpu", "ipu", "mlu", "mtia", "musa", "npu", "xla", "xpu"})
_NAMES: Final = {"privateuse1": "PrivateUse1", "glow": "Glow"}


def other_devices(unsupported: Mapping[str, int], runtimes: Iterable[str]) -> dict[str, int]:
    """Return the number of events that annot skipped of each device, most first.

    Args:
        unsupported: number of events of the categories that annot skipped.
        runtimes: categories of the calls of runtimes and drivers. They name devices, too.

    Example:
        >>> other_devices({"mtia_ccp_events": 7, "hpu_op": 2, "my_category": 1}, ["mtia_runtime", "cuda_runtime"])
        {'MTIA': 7, 'HPU': 2}
    """
    named = {match[1] for category in runtimes if (match := _RUNTIME.fullmatch(category.lower()))}
    devices = (named | _KNOWN) - _SUPPORTED
    counts: Counter[str] = Counter()
    for category, count in unsupported.items():
        device = category.lower().partition("_")[0]
        if device in devices:
            counts[_NAMES.get(device, device.upper())] += count
    return dict(counts.most_common())
