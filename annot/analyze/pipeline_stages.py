"""Bubbles of a pipeline by stage and micro-batch, from the ranges of ``torch.distributed.pipelining``."""

from __future__ import annotations

from typing import Final

import polars as pl

from annot.analyze.api_calls import calls_of
from annot.analyze.messages import COLLECTIVE
from annot.analyze.overlap import cut, exclusive, merged, without
from annot.attribution.attribute import Attribution, known

__all__ = ["by_stage"]

_ACTION: Final = (
    r"^(?:PP:\(?(\d{1,9})(SEND_|RECV_)?([FBIW]|UNSHARD|RESHARD|REDUCE_GRAD)|(Forward|Backward) )(\d{1,9})?"
    r"(;.*\)OVERLAP_F_B)?$"
)
"""``PP:0F1``, ``PP:0SEND_F1``, ``PP:(0F1;1B0)OVERLAP_F_B``; ``Forward 1`` of schedules with one stage per rank."""
_TRANSFER: Final = r"(?i)send|recv|^Collective wait \|"
_KINDS: Final = {"I": "B", "W": "B", "Forward": "F", "Backward": "B"}
_PHASES: Final = {"F": "forward", "B": "backward"}
_TIMES: Final = ("busy_ns", "bubble_ns", "transfer_ns")
_PART: Final = {"row": pl.Int64, "pass": pl.Int64, "transfer": pl.Boolean, "start": pl.Int64, "end": pl.Int64}


def by_stage(attribution: Attribution) -> pl.DataFrame:
    """Return the time of the actions of a pipeline, a row per process, stage, micro-batch and forward or backward.

    A GPU activity belongs to the action that runs in its process when it is launched. It is busy, or a transfer: in an
    action SEND or RECV, or a kernel of NCCL that sends or receives. Without GPU activities, the ranges of actions are
    busy, without the transfers and their waits inside. Where activities overlap, the time counts to the one that
    started first. A pass, the actions of a step until their names repeat, lasts from the first start to the last end of
    its activities. Its time in which nothing is busy is bubble. It belongs to the action that is busy next, and at the
    end of a pass to the action that ends last.

    Returns:
        process; action, as in PyTorch (``0F1``; B, I and W are ``0B1``); phase; stage, microbatch (null: unknown);
        calls; time_ns: busy_ns + bubble_ns, which adds up to the time of the passes; busy_ns; bubble_ns; bubble_share:
        part of the time of the passes; transfer_ns: transfers for this micro-batch, which overlap the other times.

    Example:
        >>> from annot.attribution import attribute
        >>> from annot.profile import Profile
        >>> by_stage(attribute(Profile.build({}))).height
        0
    """
    actions = _actions(attribution)
    work = _activities(attribution, actions)
    times = [pl.DataFrame(schema={"row": pl.Int64, **dict.fromkeys(_TIMES, pl.Int64)})]
    for own in actions.partition_by("process"):
        ran = work.join(own, on="row", how="semi", maintain_order="left")
        times.append(_times(ran, device=True) if ran.height else _times(_host_actions(attribution, own), device=False))
    sums = pl.concat(times, how="diagonal").group_by("row").agg(pl.col(_TIMES).sum())
    rows = (
        actions.join(sums, on="row", how="left", maintain_order="left")
        .group_by("process", "action", "phase", "stage", "microbatch", maintain_order=True)
        .agg(pl.col(_TIMES).sum(), calls=(~pl.col("transfer")).sum().cast(pl.Int64))
    )
    rows = rows.with_columns(time_ns=pl.col("busy_ns") + pl.col("bubble_ns"))
    whole = pl.col("time_ns").sum().over("process")
    share = pl.when(whole > 0).then(pl.col("bubble_ns") / whole).alias("bubble_share")
    return rows.sort("process", "stage", maintain_order=True).select(
        "process", "action", "phase", "stage", "microbatch", "calls", "time_ns", "busy_ns", "bubble_ns", share,
        "transfer_ns",
    )  # fmt: skip


def _actions(attribution: Attribution) -> pl.DataFrame:
    """The actions of the selected steps by start: the columns of `_PART`, process, thread, and those of `_named`."""
    forest = attribution.forest
    names, ranges = _named(forest.labels["text"]), forest.every_range().drop_nulls()
    if not known(attribution.meta):
        ranges = ranges.clear()
    ranges = ranges.filter(names["action"].is_not_null().gather(ranges["label"])).sort("start", maintain_order=True)
    ids = forest.threads.table.select(pl.col("process").cast(pl.Int64), "process_code")[ranges["thread"]]
    rows = ranges.hstack(ids).hstack(names[ranges["label"]])
    step = pl.lit(0) if (steps := attribution.steps).guessed else steps.at(rows["process_code"], rows["start"])
    rows = rows.with_columns(step.alias("step"))
    repeated = pl.int_range(pl.len()).over("process", "step", "label").alias("repeated")
    rows = rows.with_columns(repeated, row=pl.int_range(pl.len(), dtype=pl.Int64))
    return rows.with_columns(pl.struct("step", "repeated").rank("dense").cast(pl.Int64).alias("pass"))


def _named(texts: pl.Series) -> pl.DataFrame:
    """Stage, micro-batch, action, phase and transfer (it sends or receives) of each text; null: no action."""
    group = pl.col("text").str.extract_groups(_ACTION).struct
    kind = pl.coalesce(group[2], group[3]).replace(_KINDS)
    name = pl.concat_str(group[0].fill_null(""), kind, group[4].fill_null(""))
    both, overlaps, other = pl.col("text").str.extract(r"\((.*)\)"), group[5].is_not_null(), pl.lit("other")
    phase = kind.replace_strict(_PHASES, default=other, return_dtype=pl.String)
    return texts.to_frame("text").select(
        stage=group[0].cast(pl.Int64), microbatch=group[4].cast(pl.Int64), transfer=group[1].is_not_null(),
        action=pl.when(overlaps).then(both).otherwise(name), phase=pl.when(overlaps).then(other).otherwise(phase),
    )  # fmt: skip


def _activities(attribution: Attribution, actions: pl.DataFrame) -> pl.DataFrame:
    """The GPU activities launched in actions (`_PART`)."""
    tables = [pl.DataFrame(schema=_PART)]
    if attribution.source is None or actions.is_empty():
        return tables[0]
    calls, sends = calls_of(attribution), pl.col("name").cast(pl.String).str.contains(r"(?i)nccl\w*(?:send|recv)")
    for block in attribution.source.work_blocks():
        if not {"process", "correlation"} <= {*block.columns}:
            continue
        rows = block.select(pl.col("process", "start", "end").cast(pl.Int64), sends.fill_null(False).alias("sends"))
        launched = calls.start.gather(calls.rows(block["process"], block["correlation"])).alias("launched")
        rows = rows.with_columns(launched).drop_nulls().sort("launched", maintain_order=True)
        running = actions.select("row", "pass", "transfer", "process", since="start", until="end")
        placed = rows.join_asof(
            running, left_on="launched", right_on="since", by="process", strategy="backward", check_sortedness=False
        ).filter(pl.col("launched") < pl.col("until"))
        tables.append(placed.with_columns(pl.col("transfer") | pl.col("sends")).select(list(_PART)))
    return pl.concat(tables)


def _host_actions(attribution: Attribution, actions: pl.DataFrame) -> pl.DataFrame:
    """The ranges of actions, and send and receive inside them (`_PART`).

    PyTorch's range of a transfer can last from its start in one action to the end of the wait for it in another one. It
    counts in the action in which it ends.
    """
    forest = attribution.whole  # a receive can start before the selected steps
    sends = forest.labels.select(COLLECTIVE & pl.col("text").str.contains(_TRANSFER)).to_series()
    ranges = forest.every_range()
    ranges = ranges.filter(sends.gather(ranges["label"])).select("thread", "end", began="start").sort("end")
    inside = ranges.join_asof(
        actions.select("row", "pass", "thread", "start", until="end"), left_on="end", right_on="start", by="thread",
        strategy="backward", allow_exact_matches=False, check_sortedness=False,
    ).filter(pl.col("end") <= pl.col("until"))  # fmt: skip
    waits = inside.with_columns(pl.max_horizontal("start", "began").alias("start"), transfer=pl.lit(True))
    return pl.concat([actions.select(list(_PART)), waits.select(list(_PART))])


def _times(activities: pl.DataFrame, *, device: bool) -> pl.DataFrame:
    """Row and `_TIMES` of the actions of a process; an action has several rows. On the host, transfers are not busy."""
    window = merged(activities.group_by("pass").agg(pl.col("start").min(), pl.col("end").max()))
    busy = exclusive(activities.filter(~pl.col("transfer")), window).filter(pl.col("until") > pl.col("begin"))
    busy = busy.select("row", start="begin", end="until")
    transfers = exclusive(activities.filter("transfer"), window)
    if not device:
        free = without(merged(busy), merged(transfers))
        busy = cut(free, busy["start"]).join_asof(busy.select("row", "start"), on="start")
    ends = pl.concat([busy.select("row", end="start"), activities.select("row", "end")])
    gaps = without(window, merged(busy)).join(ends.unique("end", keep="first", maintain_order=True), on="end")
    ns = pl.col("end") - pl.col("start")
    sent = transfers.select("row", transfer_ns="wall_ns")
    return pl.concat([busy.select("row", busy_ns=ns), gaps.select("row", bubble_ns=ns), sent], how="diagonal")
