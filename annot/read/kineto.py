"""The Chrome trace that torch.profiler (Kineto) writes, on NVIDIA and AMD GPUs and without one, since 2021.

Processes and threads are numbers there, or names for rows that are not threads. A kernel's "process" is its
device, so it gets the process of its launch. Times are microseconds, relative to `baseTimeNanoseconds`.

Operations of autograd bear a sequence number, and those of the backward pass autograd's number of the thread of
the forward pass; some releases also draw arrows ("fwdbwd") from one to the other. Calls of `nn.Module` are among
the Python functions, where they were recorded.
"""

from __future__ import annotations

import codecs
import re
import zlib
from pathlib import Path
from types import NoneType
from typing import Any, Final

import polars as pl

from annot import tag
from annot.errors import AnnotError
from annot.profile import COPIES, KERNELS, LAUNCHES, RANGES, ROLES, Profile, Schema, conform, pick
from annot.read.kineto_columns import ANNOTATION, MIXED, Coarse, Columns
from annot.read.kineto_counters import with_counters
from annot.read.kineto_links import link_backward, module_texts
from annot.read.trace_events import GZIP, TraceFile

__all__ = ["NAME", "read", "sniff"]

NAME: Final = "kineto"

_SNIFFED: Final = 1 << 20
_MOST_NAMED: Final = 4
_LONGEST_NAME: Final = 80
_KEYS: Final = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_LARGEST: Final = 3 * 10**18
_BACKWARD: Final = r"^autograd::engine::evaluate_function: |Backward\d*$"
# In 2021 the ranges of torch itself, such as "ProfilerStep#5" and "Optimizer.step#SGD.step", and of the user
# were operators; the names of those have neither of these characters.
_NO_OPERATOR: Final = r"^[^:]*[# ]"
_PROCESS: Final = pl.col("thread") & pl.lit(~0xFFFFFF, pl.Int64)
_COMPACT: Final = ("start", "end", "thread", "name", "external")
_CAUSE: Final = ("cause", "origin_thread", "origin_start")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is JSON with trace events, plain or compressed; see `annot.read.Reader`."""
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _SNIFFED)
        except zlib.error:
            return False
    head = head.removeprefix(codecs.BOM_UTF8)
    if re.match(rb"\s*\[\s*\{", head):
        return b'"ph"' in head
    return head.lstrip().startswith(b"{") and any(key in head for key in _KEYS)


def read(path: Path) -> Profile:
    """Read a trace; see `annot.read.Reader`.

    Raises:
        AnnotError: the file is cut or damaged, or holds no event of torch.profiler.
    """
    try:
        try:
            return _read(path, exact=False)
        except Coarse:
            return _read(path, exact=True)
    except OverflowError as error:
        raise AnnotError(f"{path} holds a number out of range: {error}") from None


def _read(path: Path, exact: bool) -> Profile:
    columns = Columns()
    with TraceFile(path, exact=exact) as file:
        for block in file.blocks():
            columns.add(block)
    base = _base(file.top)
    names = _names(columns.names, _texts(file.top))
    launches = _listed(columns.launches(), base, names)
    operations = _placed(columns.ranges(), base)
    modules = _listed(columns.modules(), base, names)
    owners = _Owners(launches, operations)
    kernels = owners.given(_listed(columns.kernels(), base, names))
    copies = owners.given(_listed(columns.copies(), base, names))
    counted = _listed(columns.counted(), base, names)
    if not any(table.height for table in (launches, operations, modules, kernels, copies, counted)):
        found = "; ".join(_notes(columns, file.odd, 0))
        raise AnnotError(
            f"{path} is a trace without operations, ranges and device work of torch.profiler"
            + (f": {found}" if found else "")
        )
    kernels, metrics, notes = with_counters(kernels, counted, columns.counters, launches)
    ranges = _ranges(
        operations,
        modules,
        names,
        columns.flows().with_columns(pl.col("start") + base, process=_PROCESS),
    )
    notes += _notes(columns, file.odd, owners.ambiguous)
    return Profile.build(
        {"source": str(path), "format": NAME, "producer": "torch.profiler", "notes": notes, **_machine(file.top)},
        ranges=ranges,
        launches=_named(launches, LAUNCHES),
        kernels=_named(kernels, KERNELS),
        copies=_copies(copies),
        metrics=metrics,
    )


def _base(top: dict[str, Any]) -> int:
    base = top.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int) or abs(base) > _LARGEST:
        raise OverflowError(f"baseTimeNanoseconds is {str(base)[:40]!r}")
    return base


def _texts(top: dict[str, Any]) -> dict[str, str]:
    """Domains of the ranges that annot opened with a text of the user's, as `annot run` adds them."""
    texts = top.get("annot_texts")
    return {text: str(domain) for text, domain in texts.items()} if isinstance(texts, dict) else {}


def _names(names: pl.Series, texts: dict[str, str]) -> pl.DataFrame:
    """What a name says about its span: a row per name with text, domain and the category it belongs to."""
    ours = [tag.parse(name) is not None for name in names]
    domains = [tag.DOMAIN if mine else texts.get(name, "") for name, mine in zip(names, ours, strict=True)]
    annot = [mine or name in texts for name, mine in zip(names, ours, strict=True)]
    return pl.DataFrame({
        "text": names,
        "domain": pl.Series(domains, dtype=pl.String),
        "ours": pl.Series(annot, dtype=pl.Boolean),
        "no_operator": names.str.contains(_NO_OPERATOR),
        "backward": names.str.contains(_BACKWARD),
    })  # fmt: skip


def _placed(spans: pl.DataFrame, base: int) -> pl.DataFrame:
    """Spans on the clock of the profile, with their processes."""
    columns = [pl.col("start", "end") + base]
    if "thread" in spans.columns:
        columns.append(_PROCESS.alias("process"))
    return spans.with_columns(columns)


def _listed(spans: pl.DataFrame, base: int, names: pl.DataFrame) -> pl.DataFrame:
    """Placed spans in the order of their start, with their names spelt out."""
    placed = _placed(spans if spans["start"].is_sorted() else spans.sort("start", maintain_order=True), base)
    return placed.with_columns(names["text"].gather(placed["name"]).alias("text"))


class _Owners:
    """Knows the process of each launch, and the operations that a file names as the causes of work."""

    def __init__(self, launches: pl.DataFrame, operations: pl.DataFrame) -> None:
        owners = launches.select("correlation", owner="process").drop_nulls("correlation")
        self._owners = owners.unique("correlation", keep="first")
        self.ambiguous = owners.n_unique() - self._owners.height if launches["process"].n_unique() > 1 else 0
        self._operations = operations
        # What was launched before the trace began belongs to the process that launched the rest.
        processes = launches["process"] if launches.height else operations["process"]
        self._default = processes[0] if len(processes) else 0

    def given(self, work: pl.DataFrame) -> pl.DataFrame:
        """Return kernels or copies with `process`, and without a launch, `origin_thread` and `origin_start`."""
        owned = work.join(self._owners, on="correlation", how="left", maintain_order="left")
        if owned["owner"].null_count():
            owned = owned.join(self._causes(), on="external", how="left", maintain_order="left")
        else:
            owned = owned.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _CAUSE)
        # Releases of 2022 and 2023 repeat the correlation as the id of the operation.
        caused = pl.col("owner").is_null() & pl.col("external").ne_missing(pl.col("correlation"))
        cause = {name: pl.when(caused).then(name) for name in _CAUSE}
        process = pl.coalesce("owner", cause.pop("cause"), pl.lit(self._default, pl.Int64))
        return owned.with_columns(process=process, **cause)

    def _causes(self) -> pl.DataFrame:
        causes = self._operations.drop_nulls("external").unique("external", keep="first")
        return causes.select("external", cause="process", origin_thread="thread", origin_start="start")


def _ranges(operations: pl.DataFrame, modules: pl.DataFrame, names: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    says = names.select("ours", "no_operator", "backward")[operations["name"]]
    annotation = (pl.col("kind") == ANNOTATION) | pl.col("ours") | ((pl.col("kind") == MIXED) & pl.col("no_operator"))
    operations = operations.hstack(says).select(
        *_COMPACT, "process", "sequence", "forward", annotation=annotation,
        backward=pl.col("backward") | (pl.col("forward") > 0).fill_null(False),
    )  # fmt: skip
    annotations = operations.filter("annotation").select(*_COMPACT, role=_role("annotation"))
    operations = link_backward(operations.filter(~pl.col("annotation")).drop("annotation"), flows)
    role = pl.when("backward").then(_role("backward")).otherwise(_role("operator"))
    operations = operations.select(*_COMPACT, "sequence", "forward_thread", role=role)
    passed = operations.filter(pl.col("role") == ROLES.index("backward"))
    layers = pl.Series(module_texts(modules, passed), dtype=pl.String)
    known = layers.unique(maintain_order=True)
    numbers = {text: names.height + number for number, text in enumerate(known)}
    modules = modules.select(
        "start", "end", "thread", external=pl.lit(None, pl.Int64), role=_role("module"),
        name=pl.Series([numbers[text] for text in layers], dtype=pl.Int32),
    ).select(*_COMPACT, "role")  # fmt: skip
    # What begins and ends together nests in the order of the ids.
    ranges = pl.concat([modules, annotations, operations], how="diagonal")
    ranges = ranges.sort("start", "end", "external", descending=[False, True, False], maintain_order=True)
    texts = pl.concat([names["text"], known])
    domains = pl.concat([names["domain"], pl.repeat("", len(known), eager=True)])
    return conform(ranges.select(
        "start", "end", "thread", "sequence", "forward_thread",
        id=pl.int_range(pl.len(), dtype=pl.Int64),
        process=_PROCESS,
        category=pl.lit(""),
        kind=pl.lit("push"),
        text=texts.gather(ranges["name"]),
        domain=domains.gather(ranges["name"]),
        role=pl.Series(ROLES).gather(ranges["role"]),
    ), RANGES)  # fmt: skip


def _role(role: str) -> pl.Expr:
    return pl.lit(ROLES.index(role), pl.Int8)


def _copies(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies and sets; "Memcpy HtoD (Pageable -> Device)" is of the kind HtoD."""
    text = pl.col("text")
    memset = pl.when(text.str.contains("(?i)^memset")).then(pl.lit("memset"))
    kind = pl.coalesce(text.str.extract(r"(?i)^memcpy\s+(\w+)"), memset, pl.lit("unknown"))
    return pick(copies.with_columns(kind=kind), COPIES)


def _named(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    return pick(frame.with_columns(name="text"), schema)


def _machine(top: dict[str, Any]) -> dict[str, Any]:
    """What the file says about the devices and about the place among the processes that train together."""
    found: dict[str, Any] = {}
    devices = top.get("deviceProperties")
    if isinstance(devices, list) and devices:
        found["devices"] = [
            {name: value for name, value in device.items() if isinstance(value, (str, int, float, bool, NoneType))}
            for device in devices
            if isinstance(device, dict)
        ]
    distributed = top.get("distributedInfo")
    if isinstance(distributed, dict):
        found |= {name: distributed[name] for name in ("rank", "world_size") if type(distributed.get(name)) is int}
    return found


def _notes(columns: Columns, odd: int, ambiguous: int) -> list[str]:
    counts = {
        "events without a usable beginning or end, which are left out": columns.incomplete,
        "events that are none or have a field of an impossible type, which are left out": odd,
        "events whose arguments are not all of the usual types": columns.misunderstood,
        f"events of categories that annot does not read{_others(columns)}": columns.unread.total(),
        "correlation ids that occur in several processes, whose kernels went to the first": ambiguous,
    }
    return [f"{what}: {count:,}" for what, count in counts.items() if count]


def _others(columns: Columns) -> str:
    """The most frequent categories that are not read, in parentheses."""
    named = [category[:_LONGEST_NAME] or "none" for category, _ in columns.unread.most_common(_MOST_NAMED)]
    return f" ({', '.join(named)}{', ...' if len(columns.unread) > _MOST_NAMED else ''})" if named else ""
