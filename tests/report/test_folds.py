"""Repeated layers as one line: which layers fold, their sums, `--expand`, and the column ``group`` of files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from rich.cells import cell_len
from shared_data import shared
from tables import Rows

from annot.profile import Profile
from annot.report.table import Options, Table, keep_share, process, sort
from annot.report.terminal.layout import plain_text
from annot.report.terminal.table import print_table
from annot.report.tree import Line, layer_lines, spread_of, with_groups
from annot.runs.run import Run

NORM = "[4,16]f32"
SUMS = ("calls", "host_ns", "host_self_ns", "gpu_ns", "gpu_self_ns", "kernels", "kernels_total", "copies")
REAL = {
    "kineto/graph_pairs/sglang_decode/execution.json.gz": ("Qwen3DecoderLayer_*", 36),
    "xplane/tf_bert_gpu8_multi_worker.xplane.pb": ("layer_*", 24),
}

SELECTED = ("kineto/tracelens_mi300_resnet18_train_nnmodule_seq.json.gz", "kineto/hta_cpu_only.json.gz",
            "kineto/graph_pairs/sglang_decode/execution.json.gz")  # fmt: skip


def _profile(*layers: str) -> Profile:
    """A profile with a range per layer, each around those whose paths it begins: 1 µs longer than its place."""
    rows, clock = Rows(), iter(range(0, 10**9, 1000))
    opened: list[tuple[str, str, int]] = []

    def close(path: str) -> None:
        while opened and not (path + ".").startswith(opened[-1][0] + "."):
            _, text, start = opened.pop()
            rows.range(f"{text} |fwd", start, next(clock) + len(opened))

    for text in layers:
        path = text.split()[0]
        close(path)
        opened.append((path, text, next(clock)))
    close("\0")
    return rows.build()


def _shown(profile: Profile, *expand: str, **options: Any) -> list[str]:
    """The labels of the layer table, with indentation, classes and counts."""
    lines = Run(profile).view(expand=expand, total=True, **options).tree
    return [f"{'  ' * line.depth}{' '.join(filter(None, (line.label, line.module, line.count)))}" for line in lines]


def _blocks(number: int, *inside: str, name: str = "layers.{} Block") -> list[str]:
    path = name.split()[0]
    return [
        text for index in range(number)
        for text in (name.format(index), *(f"{path.format(index)}.{one}" for one in inside))
    ]  # fmt: skip


def test_blocks_are_one_line() -> None:
    """What is inside them is there once; `layers` itself has no range."""
    profile = _profile(*_blocks(200, "attn Attention", "mlp.0 Linear", "mlp.1 Linear"), "head Linear")
    assert _shown(profile) == [
        "layers.* Block ×200",
        "  attn Attention",
        "  mlp.0 Linear",
        "  mlp.1 Linear",
        "head Linear",
    ]


@pytest.mark.parametrize(
    ("layers", "lines"),
    [
        (_blocks(4, "conv Conv2d"), 8),  # the four stages of an image model
        (_blocks(5, "conv Conv2d"), 2),
        ([f"features.{n} Conv2d [4,{n},9]f32" for n in range(16)], 16),  # VGG: each convolution has its own input
        ([f"features.{n} Conv2d" for n in range(16)], 16),  # inputs are unknown
        ([f"blocks.{n}" for n in range(5)], 1),  # classes, too
        ([f"blocks.{n}" for n in range(4)], 4),
        ([f"blocks.{n} [4,{n},9]f32" for n in range(8)], 8),
        ([f"blocks.{n} {'[4,16]f32' if n == 3 else ''}" for n in range(8)], 8),  # of one, the input is known
        (
            ["net.0 Linear [4,784]f32", *(f"net.{n} Linear {NORM}" for n in range(1, 9))],
            2,
        ),  # all but the first are equal
        ([f"layers.{n}.fc Linear" for n in range(9)], 1),  # the blocks have no ranges
        ([f"net.{n} {'Linear' if n % 2 else 'ReLU'} {NORM}" for n in range(12)], 2),
        (_blocks(6, "conv Conv2d", name="layer{} Sequential"), 12),
        (_blocks(6, "conv Conv2d", name="denselayer{} DenseLayer"), 2),
        (["block Block", "block.fc Dense", *_blocks(6, "fc Dense", name="block_{} Block")[2:]], 2),  # Keras
    ],
)
def test_what_folds(layers: list[str], lines: int) -> None:
    """Blocks fold by their class, single layers where most have the same input or nothing tells them apart."""
    assert len(_shown(_profile(*layers))) == lines


def test_blocks_with_different_layers_inside() -> None:
    """A layer that some blocks have says how many; its time is in no other line."""
    layers = _blocks(6, "conv1 Conv2d", "conv2 Conv2d", name="layer3.{} Bottleneck")
    layers[3:3] = ["layer3.0.downsample Sequential", "layer3.0.downsample.0 Conv2d"]
    profile = _profile("layer3 Sequential", *layers)
    assert _shown(profile) == [
        "layer3 Sequential", "  * Bottleneck ×6", "    conv1 Conv2d", "    conv2 Conv2d",
        "    downsample Sequential ×1", "      0 Conv2d",
    ]  # fmt: skip


def test_folds_inside_folds() -> None:
    """Experts of all blocks are one line, and the index of the slowest names its block and itself."""
    layers = [text for block in range(5) for text in (
        f"layers.{block} Block", *(f"layers.{block}.experts.{n} Expert {NORM}" for n in range(8)),
    )]  # fmt: skip
    profile = _profile(*layers)
    assert _shown(profile) == ["layers.* Block ×5", "  experts.* Expert ×40"]
    assert _shown(profile, "layers.3") == [
        "layers.* Block ×4", "  experts.* Expert ×32", "layers.3 Block", *(f"  experts.{n} Expert" for n in range(8)),
    ]  # fmt: skip
    experts = Run(profile).view(total=True).tree[1]
    slow = max(experts.members, key=lambda line: line.get("host_ns"))
    spread = spread_of(experts, "host_ns")
    assert spread is not None
    assert f"layers.{spread.index.replace('.', '.experts.')}" == slow.key[0]


def test_layers_that_are_numbered_over_the_model() -> None:
    """torch.profiler counts the layers of a class: what comes first in a block is compared with what comes first."""
    layers = [text for n in range(6) for text in (
        f"Block_{n} Block", f"Block_{n}.Linear_{2 * n} Linear", f"Block_{n}.Linear_{2 * n + 1} Linear",
        f"Block_{n}.Norm_{n} Norm",
    )]  # fmt: skip
    profile = _profile(*layers)
    assert _shown(profile) == ["Block_* Block ×6", "  Linear_0 Linear", "  Linear_1 Linear", "  Norm_0 Norm"]
    groups = Run(profile).view(total=True).rows.select("layer", "group").rows()
    assert dict(groups)["Block_3.Linear_7"] == "Block_*.Linear_1"


@pytest.mark.parametrize(
    ("expand", "lines"),
    [((), 3), (("",), 21), (("layers",), 21), (("layers.*",), 21), (("layers.7",), 5), (("layers.7.fc",), 5),
     (("layers.7", "layers.8"), 7), (("head",), 3), (("layers.1",), 5)],
)  # fmt: skip
def test_expanded_layers_leave_the_fold(expand: tuple[str, ...], lines: int) -> None:
    """By the path of what contains them, of themselves or of what is inside; the fold has the sum of the others."""
    profile = _profile(*_blocks(10, "fc Linear"), "head Linear")
    assert len(_shown(profile, *expand)) == lines
    found = Run(profile).view(expand=expand, total=True).tree
    assert sum(line.get("host_self_ns") for line in found) == Run(profile).meta["host_ns"]
    assert {line.key[0] for line in found if not line.members} >= {"head"}


def test_expand_needs_a_layer() -> None:
    """A wrong path is an error that lists the folds; so is a table without layers."""
    run = Run(_profile(*_blocks(10, "fc Linear")))
    with pytest.raises(ValueError, match=r"got 'laers'; repeated layers: layers\.\*, layers\.\*\.fc$"):
        run.view(expand=["laers"])
    with pytest.raises(ValueError, match="expand needs the times of layers, got by kernel"):
        run.view("kernel", expand=["layers"])


@st.composite
def _trees(draw: st.DrawFn) -> pl.DataFrame:
    """Rows of layers in any order: paths of few names, so that siblings repeat, and missing parents."""
    names = st.sampled_from(["a", "layers", "0", "1", "2", "3", "4", "5", "6", "block_1", "block_2", "conv7"])
    paths = draw(st.lists(st.lists(names, min_size=1, max_size=4).map(tuple), min_size=1, max_size=60, unique=True))
    repeat = draw(st.integers(0, 8))
    paths += [("layers", str(number), *path) for number in range(repeat) for path in paths[:4]]
    classes = st.sampled_from(draw(st.sampled_from([["Block"], ["Block", "Block", "Linear"], ["", "Block", "Linear"]])))
    rows = [
        {"layer": ".".join(path), "module": draw(classes), "phase": phase}
        | {name: draw(st.integers(0, 10**12)) for name in SUMS}
        | {"shapes": [draw(st.sampled_from([NORM, "[8]f16"]))] if draw(st.booleans()) else []}
        for path in dict.fromkeys(paths)
        for phase in draw(st.sampled_from([("forward",), ("forward", "backward"), ("backward",)]))
    ]  # fmt: skip
    schema = dict.fromkeys(("layer", "module", "phase"), pl.String()) | dict.fromkeys(SUMS, pl.Int64())
    table = pl.DataFrame(rows, schema=schema | {"shapes": pl.List(pl.String)}).with_columns(gpu_busy_ns=0, flops=0)
    keys = table.select("layer", "module").unique(maintain_order=True).with_columns(line=pl.int_range(pl.len()))
    first = dict(reversed([(path, line) for path, _, line in keys.iter_rows()]))
    above = {path: [path.rsplit(".", size)[0] for size in range(1, path.count(".") + 1)] for path in first}
    parents = {path: next((first[one] for one in above[path] if one in first), -1) for path in first}
    line = table.select("layer", "module").join(keys, on=["layer", "module"], maintain_order="left")["line"]
    parent = table["layer"].replace_strict(parents, return_dtype=pl.Int64)
    added = table.select(line=line.cast(pl.Int64), parent=parent, is_layer=pl.lit(value=True), level=pl.lit(0))
    return added.hstack(table)


def _report(rows: pl.DataFrame) -> Table:
    from annot.report.views import find_view

    whole = int(rows["gpu_self_ns"].sum())
    meta = {"kernels": 1, "copies": 0, "gpu_ns": whole, "whole_ns": whole, "host_ns": 1, "notes": []}
    files = rows.drop("line", "parent", "is_layer", "level", "shown")
    return Table(find_view("layer"), files, meta, lines=rows, drawn=rows)


def _filled(path: str, index: str) -> str:
    """A path with the parts of an index for its stars."""
    stars = iter(index.split("."))
    return re.sub(r"\*", lambda _: next(stars), path)


def _of(rows: pl.DataFrame, line: Line) -> pl.DataFrame:
    """The rows of a line: those of its group, or of itself."""
    path, module = line.key
    name = pl.col("group") if line.members else pl.when(pl.col("group").is_null()).then("layer")
    return rows.filter(name == path, pl.col("module") == module)


@settings(max_examples=examples(200), deadline=None)
@given(_trees())
def test_sums_of_folds_are_those_of_their_rows(table: pl.DataFrame) -> None:
    """Each row is in exactly one line, and each sum, median and maximum is that of the rows, to the nanosecond."""
    rows = with_groups(table, table)
    assert rows.drop("group", "shown").equals(table)
    lines = _report(rows).tree
    for line in lines:
        mine = _of(rows, line)
        for column in SUMS:
            assert line.get(column) == mine[column].sum()
            for phase in ("forward", "backward"):
                assert (line.get(column, phase) or 0) == mine.filter(phase=phase)[column].sum()
        assert {member.key[1] for member in line.members} <= {line.key[1]}
        each = mine.group_by("layer").agg(pl.col("gpu_ns").sum())
        assert not line.members or len(line.members) == each.height
        if spread := spread_of(line, "gpu_ns"):
            times = dict(each.iter_rows())
            assert spread.median == median(times.values())
            assert spread.slowest == max(times.values())
            gpu = pl.col("gpu_ns")
            first, third = each.select(low=gpu.quantile(0.25, "linear"), high=gpu.quantile(0.75, "linear")).row(0)
            assert spread.iqr == pytest.approx(third - first)
            assert times[_filled(line.key[0], spread.index)] == spread.slowest
    for column in SUMS:
        assert sum(line.get(column) for line in lines) == rows[column].sum()


def _numbers(report: Table) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """What each line of the layer table prints: its sums, all phases, and the spread of a fold."""
    columns = [name for name in SUMS if name in report.shown.columns]
    return {
        (*line.key, kind): (
            tuple(line.get(column, *phases) for column in columns for phases in ((), ("forward",), ("backward",))),
            line.phases.keys(), line.input, len(line.members), spread_of(line, report.time),
        )
        for kind, lines in (
            ("", report.tree), ("other", report.others),
        )
        for line in lines
    }  # fmt: skip


def _selected(report: Table, top: int, share: float, expand: Sequence[str] = ()) -> None:
    """Check that selections drop or keep whole lines: `keep_share` by their total times, `top` by their self times."""
    every = _numbers(report)
    totals, own = (
        {key: sum(time or 0 for time in numbers[0][3 * SUMS.index(name) : 3 * SUMS.index(name) + 1])
         for key, numbers in every.items()}
        for name in (report.time, report.time.replace("_ns", "_self_ns"))
    )  # fmt: skip
    kept = _numbers(keep_share(report, Options(min_share=share)))
    assert kept == {key: every[key] for key in every if totals[key] >= share * (report.whole or 0)}
    longest = _numbers(process(report, Options(top=top, expand=expand)))
    assert longest.items() <= every.items()
    assert sorted(own[key] for key in longest) == sorted(own.values())[-top:]
    assert _numbers(sort(report, Options(sort="time"))) == every


@settings(max_examples=examples(100), deadline=None)
@given(_trees(), st.integers(1, 12), st.floats(0, 0.3))
def test_selections_keep_lines_whole(table: pl.DataFrame, top: int, share: float) -> None:
    """Numbers of a line are the same with and without `--top` or `--min-share`; files keep whole layers."""
    report = _report(with_groups(table, table))
    _selected(report, top, share)
    rows, time = report.rows, pl.col("gpu_self_ns")
    sums = rows.group_by("layer", "module").agg(time.sum()).sort("gpu_self_ns", descending=True).head(top)
    written = process(report, Options(top=top)).rows
    assert (
        written.group_by("layer", "module")
        .agg(time.sum())["gpu_self_ns"]
        .sort(descending=True)
        .equals(sums["gpu_self_ns"])
    )
    whole = rows.join(written.select("layer", "module").unique(), on=["layer", "module"], how="semi")
    assert whole.height == written.height


@pytest.mark.parametrize("top", [1, 4, 12])
@pytest.mark.parametrize("name", SELECTED)
def test_selections_of_real_profiles(name: str, top: int) -> None:
    """The same for a ResNet, ranges of a program, and a decoder; and with layers as parts of others."""
    shared("kineto/graph_pairs/sglang_decode/capture_bs32_rank0.json.gz")  # it lies beside its trace, with more layers
    run = Run(str(shared(name)))
    for options in ({}, {"depth": 1}, {"expand": [""]}):
        _selected(run.view(**options), top, 0.03, options.get("expand", ()))


@pytest.mark.parametrize("columns", ["work", "roofline", "tensor", "memory", "communication", "all"])
def test_tables_with_a_line_per_phase_fold(columns: str) -> None:
    """A fold and phase is one row, with sums, rates of sums, and one value where all agree; files keep all rows."""
    layers = _blocks(30, f"fc Linear {NORM} out=16", f"norm LayerNorm {NORM}")
    run = Run(_profile(*layers, f"head Linear {NORM} out=4"))
    report = run.view("layer", columns, total=True)
    if report.rows.is_empty():  # no memory, no collectives
        return
    assert report.rows["layer"].n_unique() > 30
    shown = report.shown.rows(named=True)
    assert [(row["layer"], row["folded"]) for row in shown] == [
        ("layers.*", 30), ("layers.*.fc", 30), ("layers.*.norm", 30), ("head", None), ("(unattributed)", None),
    ]  # fmt: skip
    for row in shown:
        rows = report.rows.filter(pl.coalesce("group", "layer") == row["layer"])
        for name in ("calls", "flops", "host_ns", "host_self_ns", "time_ns"):
            assert name not in rows.columns or (row[name] or 0) == rows[name].sum()
        if row.get("flops"):
            time = rows["time_ns" if "time_ns" in rows.columns else "host_self_ns"].sum()
            assert columns == "all" or row["flops_per_s"] == pytest.approx(rows["flops"].sum() / time * 1e9)
    text = plain_text(lambda console: print_table(report, console))
    assert "layers.*.fc Linear ×30" in text
    assert len(text.splitlines()) < 20
    assert "layers.*.fc Linear ×30" in report._repr_html_().replace(' <span class="annot-class">', " ")
    opened = run.view("layer", columns, total=True, expand=["layers.7"]).shown
    assert opened["layer"].to_list().count("layers.7.fc") == 1
    assert 29 in opened["folded"]
    assert run.view("layer", columns, total=True, top=2).shown.height == 2


def test_all_rows_below_a_share() -> None:
    """The table says so, rather than that the profile has no layers."""
    report = Run(_profile(*_blocks(6, "fc Linear"), "head Linear")).view(total=True)
    text = plain_text(lambda console: print_table(keep_share(report, Options(min_share=0.99)), console))
    assert "No row has 99 % of the total time." in text
    assert "No layers were recorded" in plain_text(lambda console: print_table(Run(Rows().build()).view(), console))
    assert "layers.* Block ×6" in plain_text(
        lambda console: print_table(keep_share(report, Options(min_share=0.5)), console)
    )


@settings(max_examples=examples(100), deadline=None)
@given(_trees())
def test_all_expanded_is_the_tree_without_folds(table: pl.DataFrame) -> None:
    """`--expand` shows each layer as the tree has it."""
    rows = with_groups(table, table, ("",))
    assert rows["group"].null_count() == rows.height
    names = [(line.label, line.depth, line.key) for line in layer_lines(table)]
    assert [(line.label, line.depth, line.key) for line in _report(rows).tree] == names


@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str) -> None:
    """The decoder layers of Qwen3 under SGLang, and the layers of BERT in TensorFlow."""
    label, number = REAL[name]
    if "graph_pairs" in name:
        shared("kineto/graph_pairs/sglang_decode/capture_bs32_rank0.json.gz")  # it lies beside the trace
    run = Run(str(shared(name)))
    report = run.view(total=True)
    lines = report.tree
    fold = next(line for line in lines if line.label.endswith(label))
    assert fold.count == f"×{number}"
    assert len(lines) < report.rows["layer"].n_unique() / 4
    for line in lines:
        if line.members:
            rows = report.rows.filter(group=line.key[0])
            assert (line.get("gpu_ns"), line.get("gpu_self_ns")) == (rows["gpu_ns"].sum(), rows["gpu_self_ns"].sum())
    assert report.rows.drop("group").equals(run.view(total=True, expand=[""]).rows.drop("group"))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_deep_model_fits_a_screen(width: int) -> None:
    """200 blocks: under 40 lines, none too wide; from 80 columns on with total, median, slowest and its index."""
    layers = _blocks(200, "norm1 LayerNorm", "attn MultiheadAttention", "mlp Sequential", "mlp.0 Linear")
    report = Run(_profile(*layers)).view(total=True)
    text = plain_text(lambda console: print_table(report, console), width)
    assert len(text.splitlines()) < 40
    assert max(map(cell_len, text.splitlines())) <= width
    head = next(line for line in text.splitlines() if line.startswith("Layer"))
    for title in ("Total", "Median", "Slowest", "Index") if width >= 80 else ("Forward",):
        assert title in head
