"""Ingest of the ranges of a run, block by block, into compact columns with parsed labels.

Range texts repeat thousands of times. Each distinct text is parsed once per block and replaced by a number.

Ranges can belong to a whole process, such as those of a TensorFlow graph. TensorFlow's executor may start such a range
on one thread, end it on another and launch its kernels on a third.

Candidates are the started ranges of a layer or phase in annot's domain or in a domain named after a phase. The
candidates of a process and domain become ranges of the process if one of them ends on another thread or two of them
cross. They stay outside the trees of the threads:

    parent   the shortest range of the process that contains the range, has the same domain and phase, and whose layer
             is an outer layer of its layer (or the whole model). Of equally short ranges, the last in order.
             Otherwise, the innermost range of a thread that contains it and stands for an epoch, a batch or plain
             code.
    order    (start, longest first, shortest path, id)

Concurrent calls of one layer are siblings, because a layer is not an outer layer of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import TEXT_KEY_UNITS, Threads, innermost_around, spans_of
from annot.labels import layer_path, tag
from annot.labels.foreign import (
    BATCH,
    DATA,
    DOMAINS,
    ENGINE,
    Label,
    is_call,
    is_step,
    name_of,
    operation,
    phase_of,
    split_suffix,
    understand,
    unwrapped,
)
from annot.labels.name_scopes import Scopes, is_operation
from annot.labels.tag import DOMAIN

EPOCH: Final = "(epoch)"
TENSORFLOW: Final = "TSL"
"""NVTX domain of TensorFlow's own ranges: operations such as ``model/dense/MatMul:MatMul``, and XLA's activity."""

_OPERATION: Final = re.compile(r"[^:\s]+:_?[A-Z]\w*")
_OF_TORCH: Final = re.compile(r"(?:aten|autograd|c10d|torch)::")
NAMELESS: Final = "(no name)"

_LOOPS: Final = {"epoch": EPOCH, "step": BATCH}
_TEXTS: Final = ("layer", "module", "phase", "shapes", "role")
_FLAGS: Final = ("loop", "layered", "plain")
_COLUMNS: Final = dict.fromkeys(_TEXTS, pl.String) | {"number": pl.Int64} | dict.fromkeys(_FLAGS, pl.Boolean)
_as_row: Final = attrgetter(*_COLUMNS)


def parse_labels(texts: pl.DataFrame, marks: Iterable[str] = ()) -> pl.DataFrame:
    """Return the parsed label of each text.

    Ranges of epochs, batches and waits for data are the layers ``(epoch)``, ``(batch)`` and ``(data)``. A text in an
    unknown format is a layer named by the text, with the phase that its words suggest.

    Args:
        texts: text, role and optionally domain and call, as in `annot.profile.RANGES`. The role can also be
            ``operation``, for an operation whose name shows whether it belongs to the backward pass. It is null for
            any NVTX text.
        marks: texts of the marks of name scopes (see `annot.labels.marks`).

    Returns:
        The columns of `annot.labels.foreign.Label`, and around: layer, module and phase of the outer layers that a
        TensorFlow name contains, outermost first, or null.

    Example:
        >>> texts = pl.DataFrame({"text": ["fc Linear [4,8]f32 |fwd"], "role": [None]})
        >>> parse_labels(texts).row(0)[:4]
        ('fc', 'Linear', 'forward', '[4,8]f32')
    """
    domain = "domain" if "domain" in texts.columns else pl.lit("").alias("domain")
    call = "call" if "call" in texts.columns else pl.lit(None, pl.String).alias("call")
    texts = texts.select("text", "role", domain, call)
    operations = _Operations(marks, texts.filter(pl.col("role").is_null()).drop_nulls("text"))
    rows = [
        _as_row(_parse(text or "", role, domain, call, operations)) for text, role, domain, call in texts.iter_rows()
    ]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row").with_columns(operations.around(texts["text"]))


class _Operations:
    """Labels of TensorFlow's operations. Texts other than names of operations are ignored."""

    def __init__(self, marks: Iterable[str], texts: pl.DataFrame) -> None:
        self._scopes = Scopes(marks)
        rows = texts.select("text", "domain").iter_rows()
        self._names = {text for text, domain in rows if _is_operation(text, domain)}
        for name in self._names:
            self._scopes.add(name)

    def label(self, text: str) -> Label | None:
        """Return the label of an operation, or None for other texts."""
        if text not in self._names:
            return None
        layers = self._scopes.layers(text)
        if not layers:
            name = self._scopes.add(text).name
            return Label(DATA, phase="data") if name.startswith("IteratorGetNext") else Label(name, role="operator")
        layer = layers[-1]
        return Label(layer.layer, layer.module, layer.phase, _shapes(layer), layered=True)

    def around(self, texts: Iterable[str]) -> pl.Series:
        """Return the marked layers around the layer of each text, null for other texts."""
        outer = [self._scopes.layers(text)[:-1] if text in self._names else () for text in texts]
        marked = [
            [[layer.layer, layer.module, layer.phase] for layer in layers if layer.module] or None for layers in outer
        ]
        return pl.Series("around", marked, pl.List(pl.List(pl.String)))


def _parse(text: str, role: str | None, domain: str, call: str | None, operations: _Operations) -> Label:
    if role == "operation":
        return operation(text)
    if role in ("operator", "backward"):
        name = text.removeprefix(ENGINE) or NAMELESS
        with_inputs = tag.parse(call) if call else None
        shapes = _shapes(with_inputs) if with_inputs and with_inputs.phase == "op" else None
        return Label(name, phase="backward" if role == "backward" else "other", shapes=shapes, role=role)
    of_tensorflow = operations.label(text) if role is None else None
    label = _parse_tag(text) or of_tensorflow or understand(text)
    if label is None and role is None and domain in DOMAINS:
        label = Label(text or NAMELESS, phase=DOMAINS[domain], layered=True)
    if label is None and role == "module":
        return Label(unwrapped(text) or NAMELESS, layered=True)
    return label or _plain(text)


def _plain(text: str) -> Label:
    """Return the label of a text without a known format. PyTorch's, FSDP's and library calls are operations."""
    if is_call(text) or is_step(text):
        return Label(text, role="operator")
    if _OF_TORCH.match(text):
        return operation(text)
    return Label(name_of(text) or NAMELESS, phase=phase_of(text), plain=True)


def _is_operation(text: str, domain: str) -> bool:
    """Return whether a text names an operation. Outside TensorFlow's domain, only names with a scope count."""
    if domain == TENSORFLOW:
        return _OPERATION.fullmatch(text.partition("#")[0]) is not None
    return "/" in text and is_operation(text)


def _parse_tag(text: str) -> Label | None:
    parsed = tag.parse(text)
    if parsed is None:
        return None
    if parsed.phase == "op":
        return Label(parsed.op, role="operator", shapes=_shapes(parsed))
    number = parsed.step if parsed.step is not None and parsed.step < 2**63 else None
    if parsed.phase in _LOOPS:
        return Label(_LOOPS[parsed.phase], parsed.module, number=number, loop=True)
    layer = DATA if parsed.phase == "data" and not parsed.layer else parsed.layer
    layered = parsed.phase in ("forward", "backward", "recompute") and bool(layer or parsed.module)
    return Label(layer, parsed.module, parsed.phase, _shapes(parsed), number, layered=layered)


def _shapes(parsed: tag.Tag) -> str | None:
    return " ".join([*map(str, parsed.tensors), *([f"+{parsed.omitted}"] if parsed.omitted else [])]) or None


LAYER_PHASES: Final = ("forward", "backward", "recompute", "optimizer", "data")


def are_shared(ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads) -> pl.Series | None:
    """Return which ranges (by id) belong to a process (Boolean), or None if all belong to threads."""
    if not ranges["started"].any():
        return None
    row = ranges["started"].arg_true()
    candidates = ranges.select("thread", "start", "end", "label", "foreign", "ours")[row]
    parsed = labels.select("domain", "phase")[candidates["label"]]
    fits = parsed["phase"].is_in(LAYER_PHASES) & (candidates["ours"] | parsed["domain"].is_in(list(DOMAINS)))
    process = threads.table["process_code"].gather(candidates["thread"])
    candidates = candidates.with_columns(process.alias("process"), parsed["domain"], row.alias("row")).filter(fits)
    if candidates.is_empty():
        return None
    group = ["process", "domain"]
    crossed = candidates.select(*group, (pl.col("foreign") | _crossing(candidates)).alias("crossed"))
    rows = candidates.join(crossed.filter("crossed").unique(), on=group, how="semi")["row"]
    if rows.is_empty():
        return None
    return pl.Series("shared", [False], pl.Boolean).new_from_index(0, ranges.height).scatter(rows, True)


def _crossing(candidates: pl.DataFrame) -> pl.Series:
    """Return whether each range crosses another range that started on its thread (Boolean)."""
    order = column_ops.order(candidates["thread"], candidates["start"], candidates["end"])
    rows = candidates[order]
    same, none = pl.zeros(rows.height, pl.Int32, eager=True), pl.repeat(False, rows.height, eager=True)
    crossing = column_ops.crossing(rows["thread"], rows["start"], rows["end"], same, none)
    return none.scatter(order.filter(crossing), True)


def placed(shared: pl.DataFrame, thread_ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """Return the ranges of processes in order, with their parents.

    The column parent (Int32) is a row of the ranges of threads, which are in the order of
    `annot.attribution.column_ops.order`, followed by this table, or -1.
    """
    depth = pl.Series("depth", [len(layer_path.within(layer)) for layer in labels["layer"]], pl.Int64)
    shared = shared.with_columns(depth.gather(shared["label"]))
    # In this order, a parent comes before its children.
    shared = shared.sort("start", "end", "depth", "id", descending=[False, True, False, False]).drop("depth")
    process = threads.table["process_code"].gather(shared["thread"])
    rows = shared.select(process, "start", "end", "label")
    parent = _parents(rows, labels)
    outer = _thread_parents(shared, thread_ranges, labels, threads)
    among = pl.when(parent != column_ops.NONE).then(parent + thread_ranges.height).otherwise(outer)
    return shared.select(pl.exclude("foreign", "started", "ours"), among.cast(pl.Int32).alias("parent"))


class _Keys:
    """Numbers of the layers of processes, by domain and phase, with the next outer layer of each."""

    def __init__(self, labels: pl.DataFrame) -> None:
        self._rows = labels.select("domain", "phase", "layer").rows()
        self._numbers: dict[tuple[int, str, str, str], int] = {}
        self.above: list[int] = []

    def number(self, process: int, label: int) -> int:
        """Return the number of a label (row of `labels`) in a process (code)."""
        domain, phase, layer = self._rows[label]
        number = column_ops.NONE
        for path in [*reversed([*layer_path.above(layer)]), layer]:
            key = (process, domain, phase, path)
            if key not in self._numbers:
                self._numbers[key] = len(self.above)
                self.above.append(number)
            number = self._numbers[key]
        return number


def _parents(rows: pl.DataFrame, labels: pl.DataFrame) -> pl.Series:
    """Return the row of the parent of each range among these ranges (Int32), -1 without a parent."""
    keys = _Keys(labels)
    distinct = rows.select("process_code", "label").unique(maintain_order=True)
    numbers = [keys.number(process, label) for process, label in distinct.iter_rows()]
    distinct = distinct.with_columns(pl.Series("key", numbers, pl.Int32))
    key = rows.join(distinct, on=["process_code", "label"], how="left", maintain_order="left")["key"]
    return column_ops.enclosing(rows["start"], rows["end"], key, pl.Series(keys.above, dtype=pl.Int32))


def _thread_parents(
    shared: pl.DataFrame, thread_ranges: pl.DataFrame, labels: pl.DataFrame, threads: Threads
) -> pl.Series:
    """Return the row (Int32) in `thread_ranges` of the innermost loop or plain range around each range, or -1."""
    plain = (labels["phase"] == "other") & ~labels["layered"] & (labels["role"] == "annotation")
    plain &= labels["domain"] != TENSORFLOW
    rows = (plain | labels["loop"]).gather(thread_ranges["label"]).arg_true()
    eligible = thread_ranges.select("thread", "start", "end")[rows]
    parent, _ = column_ops.parents(eligible["thread"], eligible["end"])
    tree = column_ops.Tree(eligible["thread"], eligible["start"], eligible["end"], parent)
    spans = spans_of(eligible)
    processes = threads.table["process_code"].gather(shared["thread"])
    calls = shared.select("start", "end", process=processes).with_row_index("row").sort("start")
    parents = pl.Series("parent", [column_ops.NONE], pl.Int32).new_from_index(0, shared.height)
    for (code,), process_calls in calls.partition_by("process", as_dict=True).items():
        inside = [thread for thread in threads.of_process(code) if thread in spans]
        hit = innermost_around(process_calls, tree, eligible, spans, inside)
        has_range = hit != column_ops.NONE
        parents = parents.scatter(
            process_calls["row"].filter(has_range), rows.cast(pl.Int32).gather(hit.filter(has_range))
        )
    return parents


def overlap(tree: pl.DataFrame, thread_range_count: int) -> pl.DataFrame:
    """Return row (Int32) and overlap_ns of the ranges whose children overlap each other in time.

    The ranges of processes come last, after `thread_range_count` rows. Siblings of one thread never overlap.
    """
    if thread_range_count == tree.height:
        return pl.DataFrame(schema={"row": pl.Int32, "overlap_ns": pl.Int64})
    around = tree["parent"].slice(thread_range_count).unique()
    rows = tree.select("start", "end", row="parent").filter(pl.col("row").is_in(around.implode()))
    rows = rows.filter(pl.col("row") != column_ops.NONE)
    reached = pl.col("end").cum_max().shift(1).over("row")
    again = (pl.min_horizontal("end", pl.coalesce(reached, "start")) - pl.col("start")).clip(lower_bound=0)
    rows = rows.sort("row", "start").with_columns(again.alias("overlap_ns"))
    return rows.group_by("row").agg(pl.col("overlap_ns").sum()).filter(pl.col("overlap_ns") > 0).sort("row")


_PART_ROWS: Final = 1 << 20
_LABEL_COLUMNS: Final = ("domain", "text", "role", "call")


class IngestedRanges:
    """The ranges that were read so far, with the threads of the run if they are already known."""

    def __init__(self, threads: Threads | None = None) -> None:
        self._known_threads = threads
        self._threads: dict[int, int | None] = {}
        self._texts: dict[tuple[str, str, str | None, str | None, str | None], int] = {}
        self._parts: list[pl.DataFrame] = []
        self._recent: list[pl.DataFrame] = []
        self.open_ranges = 0
        """Number of ranges without an end."""

    def add(self, ranges: pl.DataFrame) -> None:
        """Add rows of `annot.profile.RANGES`. Start and thread must not be null."""
        self._threads.update(ranges.select("thread", "process").unique("thread").iter_rows())
        self.open_ranges += ranges["end"].null_count()
        labels, sequence = self._labels_of(ranges)
        foreign = pl.col("end_thread").is_not_null() if "end_thread" in ranges.columns else pl.lit(False)
        packed = ranges.select(
            "id",
            column_ops.codes(ranges["thread"], self._thread_numbers()).alias("thread"),
            "start",
            "end",
            labels.alias("label"),
            foreign.alias("foreign"),
            (pl.col("kind") == "start").fill_null(False).alias("started"),
            (pl.col("domain") == DOMAIN).fill_null(False).alias("ours"),
        )
        if sequence is not None:
            has_thread = "forward_thread" in ranges.columns
            forward = pl.Series(ranges["forward_thread"]) if has_thread else pl.lit(None, pl.Int64)
            packed = packed.with_columns(sequence.alias("sequence"), forward.alias("forward_thread"))
        self._recent.append(packed)
        if sum(block.height for block in self._recent) >= _PART_ROWS:
            self._gather()

    def threads(self) -> Threads:
        """Return the threads with ranges."""
        schema = {"thread": pl.Int64, "process": pl.Int64}
        return self._known_threads or Threads.of(pl.DataFrame([*self._threads.items()], schema=schema, orient="row"))

    def labels(self, marks: Iterable[str] = ()) -> pl.DataFrame:
        """Return domain, text (without the suffix of emit_nvtx), call and the columns of `parse_labels`."""
        texts = pl.DataFrame([*self._texts], schema=dict.fromkeys((*_LABEL_COLUMNS, "sizes"), pl.String), orient="row")
        labels = texts.select("domain", "text", "call").hstack(parse_labels(texts, marks))
        return labels.with_columns(pl.coalesce("shapes", texts["sizes"]).alias("shapes"))

    def pop_ranges(self, last: int) -> pl.DataFrame:
        """Return the ranges by id and release them, so that memory holds a large table only once.

        Open ranges end at `last`, the last known host timestamp (ns). The columns are id, thread (code), start, end,
        label (row of `labels`, Int32), foreign (ended on another thread), started (not pushed), ours (in annot's
        domain), and, if operations have sequence numbers, sequence and forward_thread (code).
        """
        self._gather()
        threads = self.threads()
        code = threads.codes(self._thread_numbers())
        end = pl.max_horizontal(pl.col("end").fill_null(last), "start").alias("end")
        blocks = [
            block.with_columns(end, code.gather(block["thread"]).alias("thread"))
            for block in self._emptied(self._parts)
        ]
        ranges = pl.concat([_EMPTY, *blocks], how="diagonal")
        blocks.clear()
        if "forward_thread" in ranges.columns:
            ranges = ranges.with_columns(threads.codes(ranges["forward_thread"]).alias("forward_thread"))
        return ranges if ranges["id"].is_sorted() else ranges.sort("id")

    def _gather(self) -> None:
        """Copy recent blocks into one table, so that the reader can reuse their memory."""
        if self._recent:
            self._parts.append(pl.concat(self._recent, how="diagonal", rechunk=True))
            self._recent.clear()

    @staticmethod
    def _emptied(blocks: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        blocks.reverse()
        while blocks:
            yield blocks.pop()

    def _thread_numbers(self) -> pl.Series:
        return pl.Series("thread", self._threads.keys(), pl.Int64)

    def _labels_of(self, ranges: pl.DataFrame) -> tuple[pl.Series, pl.Series | None]:
        """Return the label of each range, and its sequence number if any range of the block has one."""
        distinct, code = _distinct(ranges)
        suffixes = split_suffix(distinct["text"])
        # emit_nvtx does not mark backward operations; `parse_labels` recognises them by name.
        role = pl.when(pl.col("operation") & pl.col("role").is_null()).then(pl.lit("operation")).otherwise("role")
        texts = distinct.select("domain", "role", "call").hstack(suffixes).with_columns(role=role)
        columns = ["domain", "stem", "role", "call", "sizes"]
        stems = texts.select(columns).unique(maintain_order=True)
        numbers = [self._texts.setdefault(row, len(self._texts)) for row in stems.iter_rows()]
        stems = stems.with_columns(pl.Series("label", numbers, pl.Int32))
        texts = texts.join(stems, on=columns, how="left", nulls_equal=True, maintain_order="left")
        sequence = ranges["sequence"] if "sequence" in ranges.columns and ranges["sequence"].count() else None
        if texts["sequence"].count():
            sequence = texts["sequence"].gather(code)
        return texts["label"].gather(code), sequence


_EMPTY: Final = pl.DataFrame(
    schema={"id": pl.Int64, "thread": pl.Int32, "start": pl.Int64, "end": pl.Int64, "label": pl.Int32}
    | dict.fromkeys(("foreign", "started", "ours"), pl.Boolean)
)


def _code_of_texts(texts: pl.Series) -> pl.Series:
    """Return a number for each text. polars keeps categories, which takes much memory where each text occurs once."""
    numbers = texts.unique().drop_nulls().alias("text").to_frame().with_row_index("code")
    return texts.alias("text").to_frame().join(numbers, on="text", how="left", maintain_order="left")["code"]


def _distinct(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct domains, texts and roles (String), and the row of each range in that table.

    Ranges are grouped by their text key (see `annot.attribution.column_ops`).
    """
    text = ranges["text"]
    text_code = _code_of_texts(text) if text.dtype == pl.String else text.to_physical()
    key = text_code.cast(pl.Int64).fill_null(-1) + 1
    if "call" in ranges.columns and ranges["call"].count():
        calls = pl.Enum(ranges["call"].unique().drop_nulls().cast(pl.String))
        call_code = ranges["call"].cast(calls).to_physical().cast(pl.Int64).fill_null(-1) + 1
        key = key * (len(calls.categories) + 1) + call_code
    key *= TEXT_KEY_UNITS["text"]
    for name in ("domain", "role"):
        if name in ranges.columns and ranges[name].count():
            enum = pl.Enum(ranges[name].unique().drop_nulls().cast(pl.String).sort())  # few distinct values
            key += (ranges[name].cast(enum).to_physical().cast(pl.Int64).fill_null(-1) + 1) * TEXT_KEY_UNITS[name]
    first = pl.DataFrame({"key": key}).with_row_index("row").unique("key", keep="first", maintain_order=True)
    code = column_ops.codes(key, first["key"])
    rows = ranges.select(name for name in _LABEL_COLUMNS if name in ranges.columns)[first["row"]]
    absent = [pl.lit(None, pl.String).alias(name) for name in _LABEL_COLUMNS if name not in rows.columns]
    distinct = rows.with_columns(pl.all().cast(pl.String)).with_columns(absent).select(_LABEL_COLUMNS)
    return distinct.with_columns(pl.col("domain", "text").fill_null("")), code
