"""Trees of the ranges of a run, per thread and per process, with the label and the layer path of each range.

Three kinds of ranges get layers that the ranges around them do not have. The first are the kernels of compiled graphs
(torch.compile). A compiled graph does not call its layers, so that its kernels are the only ranges inside its range::

    (model) GPT › CompiledGraph#0 › h.0.ln_1+h.0.attn.c_attn        the ranges
    (model) GPT › h.0 Block › h.0.ln_1+h.0.attn.c_attn              the layers

A kernel is inside the innermost layer that contains all of its layers, as in eager mode. The graph is a layer beside
these, with its own time only: several graphs can run one layer.

The second are layers that FSDP marks with a range at each end (`annot.labels.foreign`). A pass of a layer lasts from
the start of the first ``pre`` range to the end of the last ``post`` range, on one thread:

    pre_forward (X)   operations of X   post_forward (X)        pre_backward (X)   …   post_backward_reduce (X)
    └──────────────────── X, forward ──────────────────┘        └─────────────── X, backward ──────────────────┘

In the backward pass autograd calls both hooks inside operations. The pass then lasts from the start of the first
operation to the end of the last. A pass that was open when the capture began or ended is cut there.

The third are backward operations, which are matched to their forward operations by autograd's sequence number. PyTorch
counts the operations that need a gradient, per thread, and a backward operation has the number of its forward
operation. A forward operation without a gradient has the number of the next one that needs it, so several operations
share a number. The forward operation of a backward operation is the last one with its number that started before it,
because the count increases afterwards. (`at::sequence_number::peek` in PyTorch; described in the documentation of
`torch.autograd.profiler.emit_nvtx`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.column_ops import CHAIN, NONE, Threads, known
from annot.attribution.ingest import IngestedRanges, are_shared, placed
from annot.attribution.nesting import KEY, Key, Keys, Nodes, contained_keys, in_order, nest
from annot.labels import layer_path, tag
from annot.labels.foreign import ENGINE, hooks_of


def with_layers_around(nodes: Nodes, keys: Keys, texts: pl.Series) -> tuple[Nodes, list[int]] | None:
    """Return nodes in which the kernels of compiled graphs are inside their layers, and the new node of each node.

    Args:
        nodes: the layer paths, as the ranges are nested.
        keys: all keys. Those of layers without a range of their own are added.
        texts: the texts of the ranges.

    Returns:
        None for a profile without compiled graphs.
    """
    graphs = {key for key, (_, module, _) in enumerate(keys.names) if module.startswith(tag.COMPILED)}
    if graphs.isdisjoint(nodes.keys):
        return None
    modules = _modules(keys.names, texts)
    moved, final = Nodes(), list[int]()
    around = {NONE: NONE}  # the new node that the children of each node are inside
    for node, (parent, key) in enumerate(zip(nodes.parents, nodes.keys, strict=True)):
        outer, chain = around[parent], list[Key]()
        if parent != NONE and nodes.keys[parent] in graphs:
            chain = _layers_between([keys.names[number] for number in moved.chain(outer)], keys.names[key], modules)
        final.append(moved.extend(outer, (*map(keys.number, chain), key)))
        around[node] = outer if key in graphs else final[-1]
    return moved, final


def runs_of_graphs(tree: pl.DataFrame, labels: pl.DataFrame) -> pl.Series:
    """Return the run of a compiled graph that each range is or counts towards (row in the tree, Int32; null: none).

    Under torch.profiler the kernels are inside operations of the run, such as ``## Call CompiledFxGraph … ##``.
    """
    row = pl.int_range(tree.height, dtype=pl.Int32, eager=True).alias("row")
    runs = row.filter(labels["module"].str.starts_with(tag.COMPILED).fill_null(False).gather(tree["label"]))
    paths = tree["path"].gather(runs).unique()
    rows = tree.select("path", row).filter(pl.col("path").is_in(paths.implode()))
    run = pl.when(pl.col("row").is_in(runs.implode())).then("row").forward_fill().over("path")
    return pl.repeat(None, tree.height, dtype=pl.Int32, eager=True).scatter(rows["row"], rows.select(run).to_series())


def calls_in_graphs(tree: pl.DataFrame, runs: pl.Series, nodes: Nodes) -> pl.DataFrame:
    """Return node, calls and start (ns, of the first kernel) of the layers in compiled graphs.

    A run of a graph calls a layer once, whatever the number of its kernels.

    Args:
        tree: the tree of `annot.attribution.range_trees.Forest`.
        runs: the runs of `runs_of_graphs`, null for runs that do not count.
        nodes: the nodes of `with_layers_around`.
    """
    kernels = tree.select("path", "start", run=runs.gather(known(tree["parent"]))).drop_nulls("run")
    kernels = kernels.with_columns(graph=tree["path"].gather(kernels["run"]))
    kernels = kernels.filter(pl.col("path") != pl.col("graph"))
    pairs = kernels.select("path", "graph").unique()
    layers = [nodes.up(path, nodes.parents[graph]) for path, graph in pairs.iter_rows()]
    pairs = pairs.with_columns(pl.Series("node", layers, pl.List(pl.Int32))).explode("node")
    called = kernels.group_by("run", "path", "graph").agg(pl.col("start").min())
    called = called.join(pairs, on=["path", "graph"]).group_by("run", "node").agg(pl.col("start").min())
    return called.group_by("node").agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("start").min())


def _layers_between(outer: Sequence[Key], key: Key, modules: Mapping[str, str]) -> list[Key]:
    """Return the layers between the layers around a graph and one of its kernels, outermost first."""
    path, _, phase = key
    present = {path, *(layer for layer, module, _ in outer if layer or module)}
    names = [layer for layer in layer_path.around(path) if layer in modules and layer not in present]
    return [(name, modules[name], phase) for name in reversed(names)]


def _modules(names: Sequence[Key], texts: pl.Series) -> dict[str, str]:
    """Return the class of each layer that can contain kernels; empty: unknown.

    Ranges of kernels name the layers around them. Those of earlier versions of annot do not: a fused kernel is then in
    the layer that its layers share.
    """
    modules = {path: module for path, module, _ in names if path and module and not module.startswith(tag.COMPILED)}
    named = texts.filter(texts.str.contains(f" {tag.AROUND}=", literal=True))
    for text in named:
        parsed = tag.parse(text)
        words = dict(parsed.arguments).get(tag.AROUND) if parsed else None
        if parsed is None or not isinstance(words, tuple):
            continue
        levels = ["", *layer_path.within(layer_path.common(layer_path.layers_of(parsed.layer)))]
        for depth, module in zip(words[::2], words[1::2], strict=False):
            if isinstance(depth, int) and 0 <= depth < len(levels):
                modules[levels[depth]] = str(module)
    if named.is_empty():
        shared = (layer_path.common(layer_path.layers_of(path)) for path, _, _ in names if tag.FUSED in path)
        modules = dict.fromkeys(filter(None, shared), "") | modules
    return modules


_ROOT: Final = "FSDP"
"""Displayed class of the root module, which has no path."""
_COLUMNS: Final = ("id", "thread", "start", "end", "label", "foreign", "started", "ours")


def hooked_labels(labels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the labels with those of the marked layers, and the hook of each label that is one.

    The hooks have label (row of the hook's label), side (pre or post) and pass (row of the layer's label). There are
    none if other ranges of the profile name layers, or if no hook has a layer's path.
    """
    hooks = labels.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("label")).hstack(hooks_of(labels["text"]))
    hooks = hooks.drop_nulls("side")
    if labels["layered"].any() or not (hooks["layer"] != "").any():
        return labels, hooks.clear().select("label", "side", pl.col("label").alias("pass"))
    passes = hooks.select("layer", "phase").unique(maintain_order=True)
    number = pl.int_range(labels.height, labels.height + pl.len(), dtype=pl.Int32).alias("pass")
    hooks = hooks.join(passes.with_columns(number), on=["layer", "phase"], how="left", maintain_order="left")
    module = pl.when(pl.col("layer") == "").then(pl.lit(_ROOT)).otherwise(pl.lit(""))
    others = {"domain": "", "loop": False, "layered": True, "plain": False, "role": "annotation"}
    added = passes.with_columns(pl.lit(value).alias(name) for name, value in others.items())
    added = added.with_columns(text=pl.format("{} (FSDP {})", "layer", "phase"), module=module)
    return pl.concat([labels, added], how="diagonal"), hooks.select("label", "side", "pass")


def with_layers(ranges: pl.DataFrame, tree: pl.DataFrame, hooks: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of threads with a range for each pass of a marked layer.

    Args:
        ranges: input of `annot.attribution.nesting.nest`.
        tree: the tree of these ranges.
        hooks: the hooks of `hooked_labels`.

    Returns:
        The passes by id, and the rows of `ranges`. The id of a pass is -1 minus that of its first hook.
    """
    called = tree["label"].is_in(hooks["label"].implode()).arg_true().alias("row")
    passes = _passes(tree.select("id", "thread", "label")[called].with_columns(called).join(hooks, on="label"))
    first = _outermost_ranges(passes["first"], passes["last"], tree)
    last = _outermost_ranges(passes["last"], passes["first"], tree)
    spans = passes.select("id", "thread", label="pass").with_columns(_bounds(passes, tree, first, last))
    flags = (pl.lit(value).alias(name) for name, value in (("foreign", False), ("started", True), ("ours", False)))
    rows = spans.with_columns((-1 - pl.col("id")).alias("id"), *flags)
    return pl.concat([rows.select(_COLUMNS).sort("id"), ranges], how="diagonal")  # the ids of recorded ranges are >= 0


def _passes(called: pl.DataFrame) -> pl.DataFrame:
    """Return thread, pass, id, and first and last (rows in the tree, null if cut) of each pass.

    A pass begins with the first of successive calls of ``pre`` and ends with the last of successive calls of ``post``:
    a group of modules and a module with several outputs repeat them. A lone side counts only where the capture cut the
    pass: a ``post`` before any ``pre`` of the thread, a ``pre`` after any ``post``.
    """
    opens, row = pl.col("side") == "pre", pl.col("row")
    first, last = row.filter(opens).min(), row.filter(~opens).max()
    begins = (opens & ~opens.shift(1, fill_value=False)).cum_sum().over("thread", "pass").alias("call")
    rows = called.sort("row").with_columns(begins)
    edges = rows.group_by("thread").agg(first.alias("open"), last.alias("close"))
    calls = rows.group_by("thread", "pass", "call", maintain_order=True)
    passes = calls.agg(pl.col("id").first(), first.alias("first"), last.alias("last"))
    cut_at_start = pl.col("first").is_null() & (pl.col("last") < pl.col("open")).fill_null(True)
    cut_at_end = pl.col("last").is_null() & (pl.col("first") > pl.col("close")).fill_null(True)
    whole = pl.col("first").is_not_null() & pl.col("last").is_not_null()
    return passes.join(edges, on="thread", how="left").filter(whole | cut_at_start | cut_at_end)


def _outermost_ranges(row: pl.Series, other: pl.Series, tree: pl.DataFrame) -> pl.Series:
    """Return the outermost range around each row that does not contain the other row of the pass."""
    row, parent = row.cast(pl.Int32), tree["parent"]
    start, end = tree["start"].gather(other), tree["end"].gather(other)
    while True:
        above = column_ops.known(parent.gather(row))
        outside = (tree["start"].gather(above) > start) | (tree["end"].gather(above) < end)
        outside = outside.fill_null(False)
        if not outside.any():
            return row
        row = pl.select(pl.when(outside).then(above).otherwise(row)).to_series()


def _bounds(passes: pl.DataFrame, tree: pl.DataFrame, first: pl.Series, last: pl.Series) -> pl.DataFrame:
    """Return start and end of each pass. A cut pass starts or ends with the ranges of its thread."""
    threads = tree.group_by("thread").agg(begin=pl.col("start").min(), until=pl.col("end").max())
    edges = passes.select("thread").join(threads, on="thread", how="left", maintain_order="left")
    bounds = edges.with_columns(start=tree["start"].gather(first), end=tree["end"].gather(last))
    return bounds.select(start=pl.coalesce("start", "begin"), end=pl.coalesce("end", "until"))


_PART: Final = 1 << 20


def paths_of(
    tree: pl.DataFrame, labels: pl.DataFrame, keys: Keys, threads: Threads
) -> tuple[pl.Series, Nodes, frozenset[int], dict[int, int]]:
    """Return the layer path of each range. Backward operations get the layers of their forward operations.

    The result is the node of each range (Int32), all nodes, the nodes of backward layers found by sequence number, and
    a mapping from the row of the outermost range of each backward operation to the row of its forward operation.
    Backward layers are added to the keys.
    """
    key = contained_keys(tree["parent"], _own_keys(tree, labels), labels, keys)
    if "sequence" not in tree.columns and labels["around"].count():
        return *_add_marked_layers(tree, key, labels, keys), frozenset(), {}
    path, parent, node_key = column_ops.paths(tree["parent"], key)
    nodes = Nodes.of(parent, node_key)
    if "sequence" not in tree.columns:
        return path, nodes, frozenset(), {}
    forward = pl.concat(forward_rows(operations) for operations in _operations(tree, labels, threads))
    pairs = _outermost_pairs(dict(forward.iter_rows()), tree, labels)
    if (backward := (tree["id"] < 0) & (labels["phase"] == "backward").gather(tree["label"])).any():
        named = column_ops.inside(backward, tree["parent"])  # by the hooks of FSDP
        pairs = {row: forward for row, forward in pairs.items() if not named[row]}
    if not pairs:
        return path, nodes, frozenset(), {}
    rows = pl.DataFrame({"row": list(pairs), "forward": path.gather(list(pairs.values()))})
    return (
        *_add_backward_layers(tree, key, rows.with_columns(tree["label"].gather(rows["row"])), nodes, labels, keys),
        pairs,
    )


def _add_marked_layers(tree: pl.DataFrame, key: pl.Series, labels: pl.DataFrame, keys: Keys) -> tuple[pl.Series, Nodes]:
    """Insert the outer layers that marks name for an operation's layer between it and the range around it."""
    chains = [
        (*(keys.number((layer, module, phase)) for layer, module, phase in around or ()), own)
        for around, own in labels.select("around", "key").iter_rows()
    ]
    rows = labels["around"].is_not_null().gather(tree["label"]).arg_true()
    key = key.scatter(rows, (tree["label"].gather(rows) + CHAIN).cast(pl.Int32))
    path, parent, node_key = column_ops.paths(tree["parent"], key)
    nodes, final, _ = _expanded(parent, node_key, chains)
    return pl.Series("path", final, pl.Int32).gather(path), nodes


def inside_engine_range(tree: pl.DataFrame, labels: pl.DataFrame) -> pl.Series:
    """Return which ranges are an operation inside the backward range of the same operation (Boolean).

    autograd's engine opens a range named ``autograd::engine::evaluate_function: X`` around each backward operation X.
    """
    backward = labels["role"] == "backward"
    if not backward.any():
        return pl.repeat(False, tree.height, dtype=pl.Boolean, eager=True)
    inner, outer = tree["label"], tree["label"].gather(column_ops.known(tree["parent"]))
    name = labels["layer"].rank("dense")
    operation = backward | (labels["role"] == "operator")
    same = (name.gather(inner) == name.gather(outer)) & backward.gather(outer)
    return (operation.gather(inner) & same).fill_null(False)


def _own_keys(tree: pl.DataFrame, labels: pl.DataFrame) -> pl.Series:
    """Return the key that each range adds to its path: none for a folded operation inside another range."""
    key, folded = (labels[name].gather(tree["label"]) for name in ("key", "folded"))
    inside = (folded & (tree["parent"] != column_ops.NONE)) | inside_engine_range(tree, labels)
    return pl.select(pl.when(inside).then(column_ops.NONE).otherwise(key).cast(pl.Int32).alias("key")).to_series()


def loops(labels: pl.DataFrame) -> frozenset[int]:
    """Return the keys of epochs, batches and waits for data. These have no backward pass."""
    return frozenset(labels.filter(pl.col("loop") | (pl.col("phase") == "data"))["key"])


def _operations(tree: pl.DataFrame, labels: pl.DataFrame, threads: Threads) -> Iterator[pl.DataFrame]:
    """Yield the operations with the sequence number of a backward operation, all those of a number together.

    Each part has about `_PART` of them, because copies of all columns of all ranges take much memory.
    """
    role, number = labels["role"].cast(pl.Categorical), tree["sequence"]
    needed = number.filter((role == "backward").gather(tree["label"])).unique().drop_nulls()
    counts = role.is_in(["operator", "backward"]).gather(tree["label"]) & number.is_in(needed.implode())
    block_count = -(-int(counts.sum()) // _PART)
    for block in range(max(block_count, 1)):
        row = (counts & (number % max(block_count, 1) == block)).arg_true().alias("row")
        rows = tree.select("thread", "start", "label", "sequence", "forward_thread")[row]
        process = threads.table["process_code"].gather(rows["thread"]).alias("process")
        forward = pl.when(pl.col("forward_thread") != column_ops.NONE).then("forward_thread")
        yield rows.with_columns(row, role.gather(rows["label"]), process, forward.alias("forward_thread"))


def _outermost_pairs(forward: dict[int, int], tree: pl.DataFrame, labels: pl.DataFrame) -> dict[int, int]:
    """Map the outermost range of each backward operation, which may be the engine's, to the forward operation.

    A backward range without a match takes the forward operation of the backward ranges directly inside it, if they
    agree.
    """
    backward_rows = (labels["role"] == "backward").gather(tree["label"]).arg_true()
    rows = backward_rows.to_list()
    parent = dict(zip(rows, tree["parent"].gather(backward_rows).to_list(), strict=True))
    matches = dict[int, int]()
    for row in reversed(rows):
        match = forward.get(row, matches.get(row))  # children come after their parent, so they are already matched
        if match is None:
            continue
        matches[row] = match
        if (above := parent[row]) in parent:
            matches[above] = match if matches.get(above, match) == match else column_ops.NONE
    return {row: match for row, match in matches.items() if match not in (column_ops.NONE, matches.get(parent[row]))}


def _add_backward_layers(
    tree: pl.DataFrame, key: pl.Series, rows: pl.DataFrame, nodes: Nodes, labels: pl.DataFrame, keys: Keys
) -> tuple[pl.Series, Nodes, frozenset[int]]:
    """Rebuild the paths with the backward layers of the forward operation instead of each backward operation.

    `nodes` are the current paths; `rows` has row of each backward operation, forward (node of its forward operation)
    and label. For the rest see `paths_of`.
    """
    # The forward operation may itself run inside the backward pass, as with torch.utils.checkpoint.
    no_layers = loops(labels).union(labels.filter(pl.col("folded") & (pl.col("role") == "backward"))["key"])
    chains: list[tuple[int, ...]] = []
    distinct = rows.select("forward", "label").unique(maintain_order=True)
    for node, label in distinct.iter_rows():
        named = [keys.names[number] for number in nodes.chain(node) if number not in no_layers]
        layers = [keys.number((layer, module, "backward")) for layer, module, _ in named]
        chains.append((*layers, *([labels["key"][label]] if not layers or not labels["folded"][label] else [])))
    chain_keys = distinct.with_columns(key=pl.int_range(CHAIN, CHAIN + pl.len(), dtype=pl.Int32))
    rows = rows.join(chain_keys, on=["forward", "label"], how="left", maintain_order="left")
    path, parent, node_key = column_ops.paths(tree["parent"], key.scatter(rows["row"], rows["key"]))
    full, final, matched = _expanded(parent, node_key, chains)
    return pl.Series("path", final, pl.Int32).gather(path), full, matched


def _expanded(
    parent: pl.Series, key: pl.Series, chains: Sequence[tuple[int, ...]]
) -> tuple[Nodes, list[int], frozenset[int]]:
    """Replace chain keys with their chains. Return the new nodes, the new node of each old one, and nodes of chains."""
    nodes, matched = Nodes(), set[int]()
    final: list[int] = []
    for above, mine in zip(parent.to_list(), key.to_list(), strict=True):
        around = final[above] if above != column_ops.NONE else column_ops.NONE
        is_chain = mine >= CHAIN
        before = len(nodes)
        final.append(nodes.extend(around, chains[mine - CHAIN] if is_chain else (mine,)))
        if is_chain or around in matched:
            matched.update(range(before, len(nodes)))
    return nodes, final, frozenset(matched)


def forward_rows(operations: pl.DataFrame) -> pl.DataFrame:
    """Return row and forward (row of the forward operation) of the backward operations.

    A backward operation is left out if the thread of its forward operation is unknown and several threads of the
    process used its sequence number. The operations have row (number of the range), process, thread, start, role
    (operator or backward), sequence (not null), forward_thread (null if unknown).
    """
    forward = operations.filter(pl.col("role") == "operator").sort("start", maintain_order=True)
    backward = operations.filter(pl.col("role") == "backward").sort("start", maintain_order=True)
    has_thread = pl.col("forward_thread").is_not_null()
    by_thread = backward.filter(has_thread).with_columns(thread=pl.col("forward_thread"))
    users = forward.group_by("process", "sequence").agg(pl.col("thread").n_unique().alias("threads"))
    unambiguous = forward.join(users.filter(pl.col("threads") == 1), on=["process", "sequence"], how="semi")
    sides = (
        (by_thread, forward, ["thread", "sequence"]),
        (backward.filter(~has_thread), unambiguous.sort("start"), ["process", "sequence"]),
    )
    matches = [
        calls.join_asof(earlier.select(*by, "start", forward="row"), on="start", by=by, check_sortedness=False)
        for calls, earlier, by in sides
    ]
    return pl.concat(joined.select("row", "forward") for joined in matches).drop_nulls().sort("row")


_OPERATIONS: Final = ("operator", "backward")


@dataclass(frozen=True, slots=True)
class Forest:
    """The tree of nested ranges, and the crossing ranges outside it.

    Args:
        tree: id, thread (code, Int32), start, end (ns), label (row in `labels`, Int32), parent (row in this table or
            -1, Int32), path (node in `nodes` or -1, Int32). The ranges of threads come first, in the order of
            `annot.attribution.column_ops.order`. The ranges of processes follow by start (see
            `annot.attribution.ingest`). A parent comes before its children.
        thread_range_count: number of rows of `tree` that are ranges of threads.
        crossing: id, thread, start, end, label, foreign (ended on another thread).
        threads: the threads with ranges.
        labels: domain, text (without the suffix of emit_nvtx), call (as in `annot.profile.RANGES`), the columns of
            `annot.labels.foreign.Label`, key (Int32, number in `keys`) and folded (whether the label is an operation
            that counts towards the range around it).
        keys: layer, module and phase of each key. Attribution adds backward layers.
        nodes: the layer paths. Attribution adds the paths of GPU activity in CUDA graphs.
        matched: nodes of backward layers that were found by sequence number, and the nodes below them.
        pairs: maps the row in `tree` of the outermost range of each backward operation to the row of its forward
            operation.
        open_ranges: number of ranges without an end. They end with the capture.
    """

    tree: pl.DataFrame
    thread_range_count: int
    crossing: pl.DataFrame
    threads: Threads
    labels: pl.DataFrame
    keys: Keys
    nodes: Nodes
    matched: frozenset[int]
    pairs: dict[int, int]
    open_ranges: int

    def of_threads(self) -> column_ops.Tree:
        """Return a lookup of the innermost range of its thread around a call."""
        tree = self.tree.head(self.thread_range_count)
        return column_ops.Tree(tree["thread"], tree["start"], tree["end"], tree["parent"])

    def every_range(self) -> pl.DataFrame:
        """Return thread, start, end and label of the ranges of the tree and of the crossing ranges."""
        columns = ["thread", "start", "end", "label"]
        return pl.concat([self.tree.select(columns), self.crossing.select(columns)])

    def label_counts(self) -> pl.DataFrame:
        """Return label (row in `labels`, Int32) and count of the labels with ranges."""
        return pl.concat([self.tree["label"], self.crossing["label"]]).value_counts(name="count")

    def layers(self) -> pl.DataFrame:
        """Return layer, module and phase of each key."""
        return pl.DataFrame(self.keys.names, schema=dict.fromkeys(KEY, pl.String), orient="row")

    def layers_of_nodes(self) -> pl.DataFrame:
        """Return layer, module and phase that each node adds to its path."""
        return self.layers()[pl.Series(self.nodes.keys, dtype=pl.Int64)]


def grow(ingested: IngestedRanges, last: int, marks: Iterable[str] = ()) -> Forest:
    """Nest ranges, parse their labels and put backward operations into the layers of their forward operations.

    The ingested ranges are empty afterwards. Open ranges end at `last`, the last known host timestamp (ns). `marks` are
    the texts of the marks of name scopes (see `annot.labels.marks`).
    """
    labels, hooks = hooked_labels(ingested.labels(marks))
    keys = Keys()
    numbers = [keys.number(key) for key in labels.select(KEY).iter_rows()]
    folded = labels["role"].is_in(_OPERATIONS)
    labels = labels.with_columns(pl.Series("key", numbers, pl.Int32), folded.alias("folded"))
    threads = ingested.threads()
    tables = [ingested.pop_ranges(last)]
    if (shared := are_shared(tables[0], labels, threads)) is not None:
        tables = [tables[0].filter(shared), tables[0].filter(~shared)]
    if hooks.height:
        tables.append(in_order(tables.pop()))  # the tree shares its columns
        marked = nest(tables[-1].drop("sequence", "forward_thread", strict=False))[0]
        tables.append(with_layers(tables.pop(), marked, hooks))
        del marked
    tree, crossing = nest(tables.pop())
    thread_range_count = tree.height
    if tables:
        tree = pl.concat([tree, placed(tables.pop(), tree, labels, threads)], how="diagonal")
    path, nodes, matched, pairs = paths_of(tree, labels, keys, threads)
    if (moved := with_layers_around(nodes, keys, labels["text"])) is not None:
        nodes, final = moved
        path, matched = pl.Series("path", final, pl.Int32).gather(path), frozenset(final[node] for node in matched)
    columns = ["id", "thread", "start", "end", "label"]
    tree = tree.select(*columns, "parent", path)
    # Hooks of backward operations open and close ranges inside the engine's ranges, which then cross these.
    engine = labels["text"].str.starts_with(ENGINE).gather(crossing["label"])
    crossing = crossing.select(*columns, "foreign").filter(~engine)
    open_ranges = ingested.open_ranges
    return Forest(
        tree=tree,
        thread_range_count=thread_range_count,
        crossing=crossing,
        threads=threads,
        labels=labels,
        keys=keys,
        nodes=nodes,
        matched=matched,
        pairs=pairs,
        open_ranges=open_ranges,
    )
