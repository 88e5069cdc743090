"""Digests of runs: times of steps and layers, inputs, kernels, and facts about the run, for comparisons.

A digest is small and independent of the profile, so that runs can be kept and compared later.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from annot.analyze.cpu_parts import STEP_PARTS
from annot.analyze.run_summary import usual_parts
from annot.attribution import column_ops
from annot.attribution.attribute import Attribution, known, self_times
from annot.attribution.column_ops import NONE
from annot.attribution.layer_tables import OPERATIONS
from annot.attribution.nesting import KEY
from annot.attribution.range_trees import Forest, calls_in_graphs, runs_of_graphs
from annot.attribution.steps import steady_steps
from annot.attribution.summary import by_step, missing_events
from annot.labels.tag import COMPILED
from annot.profile import Schema
from annot.util.weak_keys import once_for_each

TABLES: Final[dict[str, Schema]] = {
    "steps": dict.fromkeys(("step", "process"), pl.Int32)
    | dict.fromkeys(("start_ns", "step_ns", "data_ns", "gpu_ns", "kernels"), pl.Int64),
    "nodes": {"parent": pl.Int32} | dict.fromkeys(KEY, pl.String) | {"calls": pl.Int64},
    "times": dict.fromkeys(("node", "step"), pl.Int32)
    | dict.fromkeys(("host_ns", "gpu_ns", "calls", "activities"), pl.Int64),
    "inputs": {"node": pl.Int32, "text": pl.String, "parameters": pl.String, "calls": pl.Int64, "steps": pl.Int64},
    "kernels": {"node": pl.Int32, "name": pl.String, "kernel": pl.Boolean, "calls": pl.Int64, "gpu_ns": pl.Int64},
    "operations": {"node": pl.Int32, "name": pl.String, "calls": pl.Int64, "host_ns": pl.Int64},
    "activities": {"name": pl.String, "step": pl.Int32, "calls": pl.Int64, "gpu_ns": pl.Int64},
}
"""Columns of the tables of a digest."""

_CAN_BE_NULL: Final = {"start_ns", "step_ns", "data_ns", "host_ns", "text", "parameters"}
_FACTS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("source", "format", "producer", "cut", "cpu"), (str,)),
    **dict.fromkeys(("host_times", "on_gpu", "compiled"), (bool,)),
    **dict.fromkeys(("device_count", "step_count"), (int,)),
    **dict.fromkeys(("rank", "world_size"), (int, type(None))),
    **dict.fromkeys(("devices", "autocast", "threads"), (list,)),
    **dict.fromkeys(("step_kind", "steps_found_by"), (str, type(None))),
    "versions": (dict,),
    "parts": (dict, type(None)),
}
_ELEMENTS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("devices", "autocast", "versions"), (str,)),
    "threads": (int,),
    "parts": (int, float),
}
"""Types of the facts in `Digest.meta`, and of their elements."""
_PARAMETERS: Final = r" ([^\W\d]\w*=.*) \|[a-z]+$"
"""Arguments in a text in the format of `annot.labels.tag`."""
_SLICE: Final = 1 << 20
"""Ranges per slice. Slices keep temporary columns small."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Digest:
    """What a comparison needs of one run. A run without steps has one step: the whole profile.

    Args:
        meta: facts as JSON values: source, format, producer, host_times, rank, world_size (null: unknown), devices
            (names), device_count (devices with GPU activity), on_gpu (whether the run has GPU activity), step_count
            (number of selected steps, with the warm-up; 0: a run without steps), step_kind, steps_found_by, autocast
            (dtypes), compiled (whether layers run in compiled graphs), versions (by name), cpu (model), threads (of an
            operation on the CPU), cut (sentences about missing events), parts (see
            `annot.analyze.run_summary.usual_parts`; null: unknown).
        steps: a row per steady step by start: step (from 0), process (code), start_ns, step_ns (wall-clock time; null:
            unknown), data_ns (wait for data; null: unknown), gpu_ns and kernels (launched in the step).
        nodes: a row per node of the layer paths: parent (-1: none; comes before its children), layer, module, phase,
            calls (in steady steps). Nodes of `annot.attribution.gpu_time.UNATTRIBUTED` have unattributed time, and the
            reason as their module.
        times: a row per node with events in a steady step: node (-1: no layer), step, host_ns (null: unknown), gpu_ns
            (self times), calls (outside compiled graphs), activities (number of GPU activities).
        inputs: inputs of calls in steady steps: node, text (shapes and dtypes as in `annot.labels.tag`, of a call of
            the layer, or of its operators where those of the layer are unknown; null: unknown), parameters (of the
            layer, as ``kernel=3,3``; null: none or unknown), calls, steps (number of steps with such a call).
        kernels: GPU activities of each node in steady steps: node, name, kernel (false: copy or memset), calls, gpu_ns.
        operations: recorded operations of each node in steady steps: node, name, calls, host_ns (self time).
        activities: GPU activities of each steady step: name, step, calls, gpu_ns.
    """

    meta: dict[str, Any]
    steps: pl.DataFrame
    nodes: pl.DataFrame
    times: pl.DataFrame
    inputs: pl.DataFrame
    kernels: pl.DataFrame
    operations: pl.DataFrame
    activities: pl.DataFrame


def as_row(run: Digest) -> pl.DataFrame:
    """Return one row: meta as JSON text, and a column with the rows of each table.

    Example:
        >>> from annot.attribution.attribute import attribute
        >>> from annot.profile import Profile
        >>> run = digest(attribute(Profile.build({"producer": "by hand"})))
        >>> from_row(as_row(run)).meta["producer"]
        'by hand'
    """
    tables = [getattr(run, name).to_struct(name).implode() for name in TABLES]
    return pl.DataFrame([pl.Series("meta", [json.dumps(run.meta)]), *tables])


def from_row(row: pl.DataFrame) -> Digest:
    """Return the digest of a row of `as_row`. Other columns are ignored.

    Raises:
        ValueError: the frame has several rows, a column is missing or has another type, or a value is impossible.
    """
    if row.height != 1:
        raise ValueError(f"a digest is one row, got {row.height:,} rows")
    columns = {"meta": pl.String()} | {name: pl.List(pl.Struct(dict(schema))) for name, schema in TABLES.items()}
    for name, dtype in columns.items():
        if row.schema.get(name) != dtype or row[name].null_count():
            raise ValueError(f"column {name} of a digest must be {dtype}, got {row.schema.get(name)}")
    try:
        meta = json.loads(row["meta"][0])
    except (json.JSONDecodeError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise ValueError("column meta of a digest must be a JSON object")
    for name, types in _FACTS.items():
        value = meta.get(name)
        elements = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if type(value) not in types or any(type(element) not in _ELEMENTS[name] for element in elements):
            of = f" of {_ELEMENTS[name][-1].__name__}" if name in _ELEMENTS else ""
            raise ValueError(f"{name} in meta of a digest must be {types[0].__name__}{of}, got {str(value)[:100]}")
    run = Digest(meta=meta, **{name: row[name][0].struct.unnest() for name in TABLES})
    _check_values(run)
    return run


def _check_values(run: Digest) -> None:
    """Raise ValueError if a value is impossible: a file can contain anything."""
    for name, schema in TABLES.items():
        table = getattr(run, name)
        for column in schema:
            if column not in _CAN_BE_NULL and table[column].null_count():
                raise ValueError(f"{column} in {name} of a digest must have a value in each row")
        steps = run.steps.height
        limits = {"node": (NONE, run.nodes.height - 1), "step": (0, steps - 1), "steps": (1, steps)}
        for column in limits.keys() & schema.keys():
            least, most = limits[column]
            if not table[column].is_between(least, most).all():
                raise ValueError(f"{column} in {name} of a digest must be from {least} to {most}")
    row = pl.int_range(pl.len())
    if not run.nodes.select(pl.col("parent").is_between(NONE, row - 1).all()).item():
        raise ValueError("parent in nodes of a digest must be a row above")
    if not run.steps.select((pl.col("step") == row).all()).item():
        raise ValueError("step in steps of a digest must be the row")
    parts: dict[str, float] = run.meta.get("parts") or {}
    if not all(name in STEP_PARTS and 0 <= ns < math.inf for name, ns in parts.items()):
        raise ValueError(f"parts in meta of a digest must be times of parts of a step, got {str(parts)[:100]}")


@once_for_each
def digest(attribution: Attribution) -> Digest:
    """Return what a comparison needs of a run."""
    steady = _Steady.of(attribution)
    work, ranges = _work(attribution, steady), _ranges(attribution, steady)
    tables = {
        "steps": steady.table,
        "nodes": _nodes(attribution, ranges, steady),
        "times": _times(attribution, ranges, work),
        "inputs": _inputs(attribution.forest, ranges),
        "kernels": work.group_by("node", "name", "kernel").agg(pl.col("calls", "gpu_ns").sum()),
        "operations": _operations(attribution, ranges),
        "activities": work.group_by("name", "step").agg(pl.col("calls", "gpu_ns").sum()),
    }
    for name, schema in TABLES.items():
        tables[name] = tables[name].select(pl.col(column).cast(dtype) for column, dtype in schema.items())
    return Digest(meta=_facts(attribution), **tables)


def _facts(attribution: Attribution) -> dict[str, Any]:
    meta, forest, steps = attribution.meta, attribution.forest, attribution.steps
    threads = {process.get("cpu", {}).get("threads") for process in meta.get("processes", ())} - {None}
    return {
        **{name: str(meta.get(name, "")) for name in ("source", "format", "producer")},
        "cut": missing_events(attribution),
        "cpu": meta.get("cpu") or "",
        "host_times": known(meta),
        "rank": meta.get("rank"),
        "world_size": meta.get("world_size"),
        "devices": device_names(attribution),
        "device_count": attribution.device_busy.filter(pl.col("busy_ns") > 0).height,
        "on_gpu": bool(attribution.nodes["gpu_self_ns"].sum() > 0),
        "step_count": steps.table.height,
        "step_kind": next(iter(steps.steady()["kind"]), None),
        "steps_found_by": steps.found_by,
        "autocast": sorted(set(forest.labels["text"].str.extract(r" autocast=(\w+)").drop_nulls())),
        "compiled": bool(forest.labels["module"].str.starts_with(COMPILED).any()),
        "versions": {str(name): str(version) for name, version in (meta.get("software") or {}).items()},
        "threads": sorted(threads),
        "parts": usual_parts(attribution),
    }


def device_names(attribution: Attribution) -> list[str]:
    """Return the distinct names of the devices that the run used, or of all devices if the used ones are unknown."""
    devices: list[dict[str, Any]] = list(attribution.meta.get("devices", ()))
    numbered = {device.get("cuDevice", device.get("id")): device for device in devices}
    used = [numbered[number] for number in attribution.device_busy["device"].unique().sort() if number in numbered]
    return list(dict.fromkeys(str(device["name"]) for device in used or devices if device.get("name")))


@dataclass(frozen=True, slots=True)
class _Steady:
    """The steady steps of a run.

    Args:
        table: the columns of `Digest.steps`.
        numbers: the number of each step of each process, process by process; null: it is not steady. None: the whole
            profile is one step.
        width: how many numbers a process has.
    """

    table: pl.DataFrame
    numbers: pl.Series | None
    width: int

    @classmethod
    def of(cls, attribution: Attribution) -> _Steady:
        if attribution.steps.table.is_empty():
            work = attribution.step_work.select(pl.col("gpu_ns", "kernels").sum())
            unknown = (pl.lit(None, pl.Int64).alias(name) for name in ("start_ns", "step_ns", "data_ns"))
            return cls(work.with_columns(*unknown, step=pl.lit(0), process=pl.lit(0)), None, 0)
        codes = attribution.forest.threads.table.select("process", "process_code").unique()
        rows = steady_steps(by_step(attribution)).join(codes, on="process", how="left", maintain_order="left")
        number = pl.int_range(rows.height, dtype=pl.Int32, eager=True)
        width, processes = (int(column.max() or 0) + 1 for column in (rows["step"], codes["process_code"]))  # type: ignore[arg-type]
        places = rows.select(pl.col("process_code") * width + pl.col("step")).to_series()
        numbers = pl.repeat(None, width * processes, dtype=pl.Int32, eager=True).scatter(places, number)
        return cls(rows.with_columns(step=number, process="process_code"), numbers, width)

    def number_of(self, process: pl.Series, step: pl.Series) -> pl.Series:
        """Return the number of the step of each event (Int32), null outside steady steps."""
        if self.numbers is None:
            return pl.repeat(0, len(step), dtype=pl.Int32, eager=True)
        place = pl.select(pl.when(step.is_between(0, self.width - 1)).then(process * self.width + step)).to_series()
        return self.numbers.gather(place)


def _work(attribution: Attribution, steady: _Steady) -> pl.DataFrame:
    """Return node, step, name, kernel, calls and gpu_ns of GPU activities in steady steps; keys may repeat."""
    keys = {"node": pl.Int32, "step": pl.Int32, "name": pl.Categorical, "kernel": pl.Boolean}
    sums = [pl.DataFrame(schema=keys | {"calls": pl.Int64, "gpu_ns": pl.Int64})]
    for block in attribution.activity_blocks():
        step = steady.number_of(block["process_code"], block["step"]).alias("step")
        rows = block.select("node", step, pl.col("name").cast(pl.Categorical), "kernel", "gpu_ns").drop_nulls("step")
        calls = pl.len().cast(pl.Int64).alias("calls")
        sums.append(rows.group_by(list(keys)).agg(calls, pl.col("gpu_ns").sum()))
    return pl.concat(sums)


_COUNTS: Final = ("host_ns", "calls", "operators", "ranges")


def _ranges(attribution: Attribution, steady: _Steady) -> pl.DataFrame:
    """Return node, step, label, host_ns (self time) and counts of the ranges in steady steps; keys may repeat.

    The counts are calls, those of `annot.attribution.attribute.Attribution.nodes` outside compiled graphs; operators,
    those with recorded inputs that a layer calls itself; and ranges.
    """
    forest, tree, labels = attribution.forest, attribution.forest.tree, attribution.forest.labels
    process, runs = forest.threads.table["process_code"], runs_of_graphs(tree, labels)
    is_operator = labels["role"] == "operator"
    has_inputs = labels["call"].is_not_null() & labels["shapes"].str.contains(r"\[\d").fill_null(False)
    keys = dict.fromkeys(("node", "step", "label"), pl.Int32)
    sums = [pl.DataFrame(schema=keys | dict.fromkeys(_COUNTS, pl.Int64))]
    ranges = tree.select("thread", "start", "label", "parent", node="path", host_ns=self_times(forest))
    for block in ranges.iter_slices(_SLICE):
        codes, parent = process.gather(block["thread"]), column_ops.known(block["parent"])
        around, outer = tree["path"].gather(parent), tree["label"].gather(parent)
        calls = block["node"].ne_missing(around) & runs.gather(parent).is_null()
        operators = has_inputs.gather(block["label"]) & ~is_operator.gather(outer).fill_null(False)
        step = steady.number_of(codes, attribution.steps.at(codes, block["start"]))
        rows = block.select("node", step.alias("step"), "label", "host_ns", calls=calls, operators=operators)
        rows = rows.with_columns(ranges=pl.lit(1))
        sums.append(rows.drop_nulls("step").group_by(list(keys)).agg(pl.col(_COUNTS).sum().cast(pl.Int64)))
    return pl.concat(sums)


def _operations(attribution: Attribution, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return node, name, calls and host_ns of the operations in ranges; none if CPU times are unknown."""
    row, is_operation = pl.int_range(pl.len(), dtype=pl.Int32), pl.col("role").is_in(OPERATIONS)
    names = attribution.forest.labels.select(is_operation.alias("is_operation"), label=row, name="layer")
    names = names.filter(pl.col("is_operation") & pl.lit(known(attribution.meta)))
    rows = ranges.join(names, on="label")
    return rows.group_by("node", "name").agg(pl.col("ranges").sum().alias("calls"), pl.col("host_ns").sum())


def _times(attribution: Attribution, ranges: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    sums = ("host_ns", "gpu_ns", "calls", "activities")
    work = work.select("node", "step", "gpu_ns", activities="calls")
    rows = pl.concat([ranges.select("node", "step", "host_ns", "calls"), work], how="diagonal")
    place = column_ops.pair(pl.col("node"), pl.col("step")).alias("place")  # faster than two columns
    times = rows.select(place, *sums).group_by("place").agg(pl.col(sums).sum())
    times = times.filter(pl.any_horizontal(pl.col(sums) != 0)).sort("place")
    node, step = column_ops.high_of(times["place"]), column_ops.low_of(times["place"])
    times = times.with_columns(node.alias("node"), step.alias("step"))
    return times if known(attribution.meta) else times.with_columns(host_ns=pl.lit(None, pl.Int64))


def _nodes(attribution: Attribution, ranges: pl.DataFrame, steady: _Steady) -> pl.DataFrame:
    forest, tree = attribution.forest, attribution.forest.tree
    runs = runs_of_graphs(tree, forest.labels)
    if runs.count():
        codes = forest.threads.table["process_code"].gather(tree["thread"].gather(runs))
        step = steady.number_of(codes, attribution.steps.at(codes, tree["start"].gather(runs)))
        runs = pl.select(pl.when(step.is_not_null()).then(runs)).to_series()
    in_graphs = calls_in_graphs(tree, runs, forest.nodes).select("node", "calls")
    called = pl.concat([ranges.select("node", "calls"), in_graphs]).filter(pl.col("node") != NONE)
    calls = column_ops.Sums(len(forest.nodes))
    calls.add(*called.get_columns())
    parent = pl.Series("parent", forest.nodes.parents, pl.Int32)
    return forest.layers_of_nodes().with_columns(parent, calls.result().alias("calls"))


def _inputs(forest: Forest, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs of the calls of each node, or of its operators where those of the calls are unknown."""
    row = pl.int_range(pl.len(), dtype=pl.Int32)
    labels = forest.labels.select("key", label=row, text="shapes", parameters=pl.col("text").str.extract(_PARAMETERS))
    nodes = pl.DataFrame([pl.Series("of_node", forest.nodes.keys, pl.Int32)]).with_columns(node=row)
    ranges = ranges.join(nodes, on="node").join(labels, on="label")
    is_known = pl.col("text").is_not_null() | pl.col("parameters").is_not_null()
    own = ranges.filter(pl.col("key") == pl.col("of_node"), is_known, pl.col("calls") > 0)
    operators = ranges.filter(pl.col("operators") > 0).with_columns(calls="operators", parameters=None)
    operators = operators.join(own.drop_nulls("text"), on="of_node", how="anti")
    rows = pl.concat([own, operators], how="vertical_relaxed")
    keys, steps = ("node", "text", "parameters"), pl.col("step").n_unique().cast(pl.Int64).alias("steps")
    return rows.group_by(keys).agg(pl.col("calls").sum(), steps).sort(keys)
