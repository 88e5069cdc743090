"""Layers around the kernels of compiled graphs (torch.compile).

A compiled graph does not call its layers, so that its kernels are the only ranges inside its range::

    (model) GPT › CompiledGraph#0 › h.0.ln_1+h.0.attn.c_attn        the ranges
    (model) GPT › h.0 Block › h.0.ln_1+h.0.attn.c_attn              the layers

A kernel is inside the innermost layer that contains all of its layers, as in eager mode. The graph is a layer beside
these, with its own time only: several graphs can run one layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from annot.attribution.column_ops import NONE, known
from annot.attribution.layer_chains import Key, Keys, Nodes
from annot.labels import layer_path, tag

__all__ = ["calls_in_graphs", "with_layers_around"]


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


def calls_in_graphs(tree: pl.DataFrame, graphs: pl.Series, nodes: Nodes) -> pl.DataFrame:
    """Return node, calls and start (ns, of the first kernel) of the layers in compiled graphs.

    A run of a graph calls a layer once, whatever the number of its kernels.

    Args:
        tree: the tree of `annot.attribution.range_trees.Forest`.
        graphs: which ranges of the tree are runs of graphs (Boolean).
        nodes: the nodes of `with_layers_around`.
    """
    kernels = tree.filter(graphs.gather(known(tree["parent"])).fill_null(False)).select("parent", "path", "start")
    kernels = kernels.with_columns(graph=tree["path"].gather(kernels["parent"]))
    kernels = kernels.filter(pl.col("path") != pl.col("graph"))
    pairs = kernels.select("path", "graph").unique()
    layers = [nodes.up(path, nodes.parents[graph]) for path, graph in pairs.iter_rows()]
    pairs = pairs.with_columns(pl.Series("node", layers, pl.List(pl.Int32))).explode("node")
    runs = kernels.group_by("parent", "path", "graph").agg(pl.col("start").min())
    runs = runs.join(pairs, on=["path", "graph"]).group_by("parent", "node").agg(pl.col("start").min())
    return runs.group_by("node").agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("start").min())


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
