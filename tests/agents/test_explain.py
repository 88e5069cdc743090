"""Explanations of layers with everything inside, keys of rows, and cursors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ranked import write_rank
from shared_data import shared, unpacked
from sqlite_profile import training
from tables import Rows

from annot.agents.explain import explain_layer
from annot.agents.folders import Folders
from annot.agents.tools import Tools
from annot.report.views import views
from annot.runs.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    training(device=True).write(folder / "gpu.sqlite")
    write_rank(folder / "rank.sqlite", 1)
    (folder / "cpu.sqlite").write_bytes(gzip.decompress(shared("transformer.sqlite.gz").read_bytes()))
    unpacked("kineto/hta_alexnet_a100_train.json.gz", folder).rename(folder / "alexnet.json")
    return folder


@pytest.fixture(scope="module")
def tools(folder: Path) -> Tools:
    return Tools(Folders([folder], largest=1 << 30))


def explained(tools: Tools, profile: str, layer: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(tools.explain_row(profile, layer, **more))
    return answer


def test_a_block_has_what_is_inside(tools: Tools) -> None:
    """Its own kernels are none; with everything inside it has their time, hottest first, in all phases or in one."""
    found = explained(tools, "gpu.sqlite", "features")
    assert [row["kernels"] for row in found["itself"]] == [0, 0]
    totals = {"gpu_ns": 4_900_000, "kernels": 8, "share": 0.7, "layers": 2, "flops": None}
    assert totals.items() <= found["with_inside"].items()
    assert [(row["layer"], row["module"]) for row in found["inside"]] == [
        ("features.0", "Conv2d"),
        ("features.1", "ReLU"),
    ]
    kernels = found["kernels"]
    assert [row["name"] for row in kernels] == ["conv_bwd", "conv_fwd", "relu_bwd", "relu_fwd"]
    assert sum(row["gpu_ns"] for row in kernels) == 4_900_000
    backward = explained(tools, "gpu.sqlite", "features", phase="backward")
    assert backward["with_inside"]["gpu_ns"] == 3_060_000 == backward["itself"][0]["gpu_ns"]
    assert [row["name"] for row in backward["kernels"]] == ["conv_bwd", "relu_bwd"]


def test_the_whole_has_all_advice(tools: Tools) -> None:
    """The layer "" is the model, its backward pass and the optimizer."""
    found, advice = explained(tools, "rank.sqlite", ""), json.loads(tools.advice("rank.sqlite"))["advice"]
    assert [row["rule"] for row in found["try"]] == [row["rule"] for row in advice] != []
    loop = explained(tools, "rank.sqlite", "(epoch)")
    assert loop["with_inside"]["gpu_ns"] > found["with_inside"]["gpu_ns"] > 0


def test_the_whole_of_a_program_without_a_model(tools: Tools) -> None:
    """Without a layer "" it is the whole profile, with what is outermost."""
    found, meta = explained(tools, "alexnet.json", ""), json.loads(tools.open("alexnet.json"))
    assert found["itself"] == []
    assert found["with_inside"]["gpu_ns"] == meta["gpu_ns"]
    assert found["inside"][0]["layer"] == "[param|cuda]"
    assert len(found["try"]) == 2
    kernels = explained(tools, "alexnet.json", "", part="kernels")["kernels"]
    assert sum(row["gpu_ns"] for row in kernels) == meta["gpu_ns"]


def test_what_is_unknown_is_not_zero(tools: Tools) -> None:
    """A profile without a GPU has no kernels and no GPU time; the source is that of the class around the layer."""
    found = explained(tools, "cpu.sqlite", "encoder.0.norm1")
    assert {found["with_inside"][name] for name in ("gpu_ns", "kernels", "copies")} == {None}
    assert "kernels_total" in found["unknown_columns"]
    assert found["source"] == explained(tools, "cpu.sqlite", "encoder.0")["source"] == "transformer.py:43"
    assert "source" not in found["itself"][0]


@pytest.mark.parametrize("known", [True, False])
def test_flops_of_a_block(known: bool) -> None:
    """They add up if all are known; else the sum of the others is named so, with the share of time without FLOPs."""
    rows = Rows().range("net Sequential |fwd", 0, 1000)
    for number, shape in enumerate(("[4,8]f32", "[4,8]f32" if known else "")):
        rows.range(f"net.{number} Linear {shape} out=8 |fwd".replace("  ", " "), 10 + 100 * number, 90 + 100 * number)
        rows.kernel(20 + 100 * number, (30 + 100 * number, 80 + 100 * number))
    work = explain_layer(Run(rows.build()), "run", "net", {}).facts["with_inside"]
    one = 2 * 4 * 8 * 8
    flops = {name: value for name, value in work.items() if name.startswith("flops")}
    partly = {"flops": None, "flops_of_known_layers": one, "flops_unknown_share": 0.5}
    assert flops == ({"flops": 2 * one} if known else partly)


@pytest.mark.parametrize("profile", ["gpu.sqlite", "alexnet.json", "cpu.sqlite"])
def test_keys_identify_rows(profile: str, tools: Tools) -> None:
    """In every view that has rows, also of executions; a kernel has its name."""
    for view in views():
        page = json.loads(tools.rows(profile, view, columns=[], limit=200))
        keys = [tuple(row.get(name) for name in page["key"]) for row in page["rows"]]
        assert len({*keys}) == len(keys), view
        assert not view.startswith("kernel") or not keys or page["key"][0] == "name"


def test_a_kernel_is_found_by_its_short_name(tools: Tools, folder: Path) -> None:
    """The key is its name; tables show the short one, which selects rows, too."""
    kernels = Run(folder / "alexnet.json").kernels.filter(pl.col("name") != pl.col("short"))
    name, short = kernels.select("name", "short").row(0)
    assert [row["name"] for row in json.loads(tools.rows("alexnet.json", "kernel", contains=short))["rows"]] == [name]
    assert tools.explain_row("alexnet.json", kernel=short) == tools.explain_row("alexnet.json", kernel=name)


def test_a_bar_in_a_name_may_be_escaped(tools: Tools) -> None:
    """Markdown escapes it in tables."""
    label = next(line for line in tools.summary("alexnet.json").splitlines() if line.startswith("| `")).split("`")[1]
    assert label == r"[param\|cuda]"
    assert explained(tools, "alexnet.json", label)["itself"][0]["layer"] == "[param|cuda]"


def test_lists_have_cursors(tools: Tools) -> None:
    """The beginning of a list and the call for the rest give all rows once."""
    found = explained(tools, "cpu.sqlite", "encoder.*")
    assert found["left_out_rows"]["inside"] > 0
    assert "part=" in found["next"]
    cursor = len(found["inside"])
    rest = explained(tools, "cpu.sqlite", "encoder.*", part="inside", cursor=cursor)["inside"]
    assert len(rest) == found["left_out_rows"]["inside"]
    assert found["inside"] + rest == explained(tools, "cpu.sqlite", "encoder.*", part="inside")["inside"]
    with pytest.raises(ValueError, match="part must be all or one of itself, layers"):
        tools.explain_row("gpu.sqlite", kernel="sgd", part="try")


def test_a_folder_has_a_cursor(tmp_path: Path) -> None:
    for number in range(250):
        (tmp_path / f"{number:03}_{'x' * 30}.sqlite").write_bytes(b"SQLite format 3\0")
    tools, names, cursor = Tools(Folders([tmp_path], largest=1)), list[str](), 0
    while cursor is not None:
        page = json.loads(tools.open(cursor=cursor))
        names += [row["profile"] for row in page["profiles"]]
        cursor = page.get("next_cursor")
    assert names == sorted(path.name for path in tmp_path.iterdir())


def test_advice_has_a_cursor(tools: Tools) -> None:
    whole = json.loads(tools.advice("alexnet.json"))["advice"]
    pages = [json.loads(tools.advice("alexnet.json", limit=1, cursor=number))["advice"] for number in range(len(whole))]
    assert [row for page in pages for row in page] == whole
    assert len(whole) > 1
