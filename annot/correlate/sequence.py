"""Forward and backward: which operation of the backward pass belongs to which of the forward pass.

PyTorch numbers the operations that need a gradient, a count per thread, and the backward operation bears the
number of its forward one. Forward operations that need none bear the number that comes next, so several have
the same: the one that began last before the backward operation is its own, for after it the number goes up.
(`at::sequence_number` in PyTorch; described at `torch.autograd.profiler.emit_nvtx`.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import polars as pl

from annot.correlate import sweep
from annot.correlate.nodes import Keys, Nodes
from annot.correlate.threads import Threads

__all__ = ["backward_keys", "forward_rows", "loops", "paths_of", "twins"]


def paths_of(
    tree: pl.DataFrame, says: pl.DataFrame, keys: Keys, threads: Threads
) -> tuple[pl.Series, Nodes, frozenset[int], dict[int, int]]:
    """Return the chain of layers of each range; that of a backward operation goes on with those of its forward one.

    Args:
        tree: parent and says, and where there are operations also thread, start, sequence and forward_thread.
        says: role and key of each text.
        keys: the layers; backward ones are added.
        threads: the process of each thread.

    Returns:
        The node of each range (Int32), all nodes, the nodes of backward layers found in this way, and of the
        outermost range of each backward operation the row of its forward one.
    """
    key = _own_keys(tree, says)
    if "sequence" not in tree.columns and says["around"].count():
        return *_with_noted(tree, key, says, keys), frozenset(), {}
    path, parent, node_key = sweep.paths(tree["parent"], key)
    nodes = Nodes.of(parent, node_key)
    if "sequence" not in tree.columns:
        return path, nodes, frozenset(), {}
    pairs = _outermost(dict(forward_rows(_operations(tree, says, threads)).iter_rows()), tree, says)
    if not pairs:
        return path, nodes, frozenset(), {}
    rows = pl.DataFrame({"row": list(pairs), "forward": path.gather(list(pairs.values()))})
    return (*_led_back(tree, key, rows.with_columns(tree["says"].gather(rows["row"])), nodes, says, keys), pairs)


def _with_noted(tree: pl.DataFrame, key: pl.Series, says: pl.DataFrame, keys: Keys) -> tuple[pl.Series, Nodes]:
    """Put the layers around the one of an operation, as marks name them, between it and the range around it."""
    chains = [
        (*(keys.number((layer, module, phase)) for layer, module, phase in around or ()), own)
        for around, own in says.select("around", "key").iter_rows()
    ]
    rows = says["around"].is_not_null().gather(tree["says"]).arg_true()
    key = key.scatter(rows, (tree["says"].gather(rows) + _STAND_INS).cast(pl.Int32))
    path, parent, node_key = sweep.paths(tree["parent"], key)
    nodes, final, _ = _expanded(parent, node_key, chains)
    return pl.Series("path", final, pl.Int32).gather(path), nodes


def backward_keys(chain: Iterable[int], keys: Keys, no_layers: Collection[int]) -> list[int]:
    """Return the keys of the backward layers of a chain of forward ones, without epochs and batches."""
    named = [keys.names[key] for key in chain if key not in no_layers]
    return [keys.number((layer, module, "backward")) for layer, module, _ in named]


def twins(tree: pl.DataFrame, says: pl.DataFrame) -> pl.Series:
    """Return which ranges (Boolean) are an operation of the backward pass inside the engine's range for the same."""
    backward = says["role"] == "backward"
    if not backward.any():
        return pl.repeat(False, tree.height, dtype=pl.Boolean, eager=True)
    parent = pl.select(pl.when(tree["parent"] != sweep.NONE).then(tree["parent"])).to_series()
    inner, outer = tree["says"], tree["says"].gather(parent)
    name = says["layer"].rank("dense")
    operation = backward | (says["role"] == "operator")
    same = (name.gather(inner) == name.gather(outer)) & backward.gather(outer)
    return (operation.gather(inner) & same).fill_null(False)


def _own_keys(tree: pl.DataFrame, says: pl.DataFrame) -> pl.Series:
    """What each range adds to the chain of layers: nothing if it is an operation inside some other range."""
    key, folded = (says[name].gather(tree["says"]) for name in ("key", "folded"))
    inside = (folded & (tree["parent"] != sweep.NONE)) | twins(tree, says)
    return pl.select(pl.when(inside).then(sweep.NONE).otherwise(key).cast(pl.Int32).alias("key")).to_series()


def loops(says: pl.DataFrame) -> frozenset[int]:
    """Return the keys of epochs, batches and the wait for data, which have no backward pass."""
    return frozenset(says.filter(pl.col("loop") | (pl.col("phase") == "data"))["key"])


def _operations(tree: pl.DataFrame, says: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    rows = tree.select("thread", "start", "says", "sequence", "forward_thread").with_row_index("row")
    rows = rows.with_columns(says["role"].gather(rows["says"]).alias("role"))
    rows = rows.filter(pl.col("role").is_in(["operator", "backward"]) & pl.col("sequence").is_not_null())
    process = threads.table["process_code"].gather(rows["thread"]).alias("process")
    forward = pl.when(pl.col("forward_thread") != sweep.NONE).then("forward_thread")
    return rows.with_columns(process, forward.alias("forward_thread"))


def _outermost(forward: dict[int, int], tree: pl.DataFrame, says: pl.DataFrame) -> dict[int, int]:
    """Lead the outermost range of each backward operation, which may be the engine's, to the forward one.

    A backward range without a forward operation goes where all backward ranges right inside it go, if they agree.
    """
    parent = tree["parent"].to_list()
    rows = (says["role"] == "backward").gather(tree["says"]).arg_true().to_list()
    backward, leads = set(rows), dict[int, int]()
    for row in reversed(rows):
        of = forward.get(row, leads.get(row))  # what lies in the range was seen before
        if of is None:
            continue
        leads[row] = of
        if (above := parent[row]) in backward:
            leads[above] = of if leads.get(above, of) == of else sweep.NONE
    return {row: of for row, of in leads.items() if of not in (sweep.NONE, leads.get(parent[row]))}


def _led_back(
    tree: pl.DataFrame, key: pl.Series, rows: pl.DataFrame, nodes: Nodes, says: pl.DataFrame, keys: Keys
) -> tuple[pl.Series, Nodes, frozenset[int]]:
    """Build the chains anew, with the forward operation's layers in the place of each backward operation.

    Args:
        tree, key, nodes, says, keys: as above; `nodes` is of the chains as they were.
        rows: row of each backward operation, forward: node of its forward operation, and says.
    """
    # The forward operation may itself have run inside the backward pass, as those of a checkpoint do.
    no_layers = loops(says).union(says.filter(pl.col("folded") & (pl.col("role") == "backward"))["key"])
    chains: list[tuple[int, ...]] = []
    distinct = rows.select("forward", "says").unique(maintain_order=True)
    for node, said in distinct.iter_rows():
        steps = backward_keys(nodes.chain(node), keys, no_layers)
        chains.append((*steps, *([says["key"][said]] if not steps or not says["folded"][said] else [])))
    stand_ins = distinct.with_columns(key=pl.int_range(_STAND_INS, _STAND_INS + pl.len(), dtype=pl.Int32))
    rows = rows.join(stand_ins, on=["forward", "says"], how="left", maintain_order="left")
    path, parent, node_key = sweep.paths(tree["parent"], key.scatter(rows["row"], rows["key"]))
    full, final, matched = _expanded(parent, node_key, chains)
    return pl.Series("path", final, pl.Int32).gather(path), full, matched


_STAND_INS: Final = 2**30
"""Keys from here on stand for a chain of keys."""


def _expanded(
    parent: pl.Series, key: pl.Series, chains: Sequence[tuple[int, ...]]
) -> tuple[Nodes, list[int], frozenset[int]]:
    """Put chains in the place of the nodes that stand for them; return which node became which."""
    nodes, matched = Nodes(), set[int]()
    final: list[int] = []
    for above, mine in zip(parent.to_list(), key.to_list(), strict=True):
        around = final[above] if above != sweep.NONE else sweep.NONE
        stands_in = mine >= _STAND_INS
        before = len(nodes)
        final.append(nodes.extend(around, chains[mine - _STAND_INS] if stands_in else (mine,)))
        if stands_in or around in matched:
            matched.update(range(before, len(nodes)))
    return nodes, final, frozenset(matched)


def forward_rows(operations: pl.DataFrame) -> pl.DataFrame:
    """Return for each backward operation its forward operation.

    Where it is not known on which thread the forward operation ran, and several threads of the process used
    the number, there is no telling, and none is returned.

    Args:
        operations: columns row (number of the range), process, thread, start, role (operator or backward),
            sequence (not null), forward_thread (null: not known).

    Returns:
        row, and forward: the row of the forward operation.
    """
    forward = operations.filter(pl.col("role") == "operator").sort("start", maintain_order=True)
    backward = operations.filter(pl.col("role") == "backward").sort("start", maintain_order=True)
    known = pl.col("forward_thread").is_not_null()
    by_thread = backward.filter(known).with_columns(thread=pl.col("forward_thread"))
    places = forward.group_by("process", "sequence").agg(pl.col("thread").n_unique().alias("threads"))
    unambiguous = forward.join(places.filter(pl.col("threads") == 1), on=["process", "sequence"], how="semi")
    found = (
        _last_before(by_thread, forward, ["thread", "sequence"]),
        _last_before(backward.filter(~known), unambiguous.sort("start"), ["process", "sequence"]),
    )
    return pl.concat(found).sort("row")


def _last_before(backward: pl.DataFrame, forward: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    forward = forward.select(*by, "start", forward="row")
    found = backward.join_asof(forward, on="start", by=by, strategy="backward", check_sortedness=False)
    return found.select("row", "forward").drop_nulls()
