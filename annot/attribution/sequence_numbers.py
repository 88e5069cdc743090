"""Matching of backward operations to their forward operations by autograd's sequence number.

PyTorch counts the operations that need a gradient, per thread, and a backward operation has the number of its forward
operation. A forward operation without a gradient has the number of the next one that needs it, so several operations
share a number. The forward operation of a backward operation is the last one with its number that started before it,
because the count increases afterwards. (`at::sequence_number::peek` in PyTorch; described in the documentation of
`torch.autograd.profiler.emit_nvtx`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from annot.attribution import column_ops
from annot.attribution.bit_layout import CHAIN
from annot.attribution.containment import contained_keys
from annot.attribution.dense_ids import Threads
from annot.attribution.layer_chains import Keys, Nodes

__all__ = ["forward_rows", "inside_engine_range", "loops", "paths_of"]

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
    pairs = _outermost(dict(forward.iter_rows()), tree, labels)
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


def _outermost(forward: dict[int, int], tree: pl.DataFrame, labels: pl.DataFrame) -> dict[int, int]:
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
