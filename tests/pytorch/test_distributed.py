"""Several processes and threads: collectives, ranks, DataLoader workers, replicas, pipelines."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed_worker
import polars as pl
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from captured import Captured, capture
from commands import annot as run_annot
from commands import needs_recorder
from range_tables import ranges_of
from torch.utils.data import DataLoader, IterableDataset

import annot
from annot import load
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.labels.tag import parse
from annot.runs.gather import rank_tables
from annot.runs.selection import Selection
from annot.torch import collectives as collectives_of_torch

pytestmark = [
    needs_recorder,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"),
]

KINDS = ("ddp", "hook", "fsdp")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two processes that torchrun started trained under the recorder; the profile, and a folder with their results."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(distributed_worker.__file__)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["run", "-o", "run.sqlite", "--collector", "recorder", "--no-report", "--", *torchrun]
    done = run_annot(*words, script, ",".join(KINDS), "result", cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder / "run.sqlite", folder


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def collectives(captured: Captured) -> list[str]:
    """What the collective ranges say, without the closing code."""
    texts = [text.removesuffix(" |coll") for text in captured.texts if text.endswith("|coll")]
    return [text.removeprefix("Collective ") for text in texts]


def test_training_on_two_ranks_is_the_same_bits(two_ranks: tuple[Path, Path]) -> None:
    """DDP, DDP with a hook of the user, FSDP2: losses, parameters and gradients after three steps."""
    for rank in range(2):
        results = torch.load(two_ranks[1] / f"result.{rank}.pt")
        for kind in KINDS:
            plain, ranged = results[kind, False], results[kind, True]
            assert len(plain) == 3 + 2 * 6
            assert all(torch.equal(one, other) for one, other in zip(plain, ranged, strict=True)), (rank, kind)


def test_every_rank_has_all_its_layers(two_ranks: tuple[Path, Path]) -> None:
    """Each layer has a forward and a backward range for each step, on both ranks, and all are closed.

    Its path and its class are the same under DDP, under FSDP2 and alone.
    """
    profile = load(two_ranks[0])
    assert profile.meta["notes"] == []
    for process in profile.ranges["process"].unique():
        texts = profile.ranges.filter(pl.col("process") == process, pl.col("kind") == "push")["text"].to_list()
        tags = [tag for tag in map(parse, texts) if tag is not None]
        found = Counter((tag.layer, tag.phase) for tag in tags if tag.phase in ("forward", "backward"))
        layers = {tag.layer for tag in tags if tag.phase in ("forward", "backward")}
        assert layers == {"", "0", "1", "2", "3"}
        for number in range(4):
            for phase in ("forward", "backward"):
                assert found[str(number), phase] == 9, (number, phase)
        classes = {tag.module for tag in tags if tag.phase in ("forward", "backward")}
        assert classes == {"", "DistributedDataParallel", "Sequential", "Linear", "BatchNorm1d", "ReLU"}


def test_rank_and_world_size_are_in_the_profile(two_ranks: tuple[Path, Path]) -> None:
    """Of each process; the profile as a whole is of no rank, and split by process each part is of its own."""
    profile = load(two_ranks[0])
    said = sorted((one["rank"], one["world_size"]) for one in profile.meta["processes"] if "rank" in one)
    assert said == [(0, 2), (1, 2)]
    assert "rank" not in profile.meta
    tables = rank_tables(str(two_ranks[0]), "layer", Selection(by_process=True))
    assert sorted(table.rank for table in tables if table.rank is not None) == [0, 1]


def test_collectives_say_operation_group_and_size(two_ranks: tuple[Path, Path]) -> None:
    """What FSDP2 gathers and scatters, and DDP broadcasts and reduces in a hook, with bytes; inside the layers."""
    profile = load(two_ranks[0])
    rows = profile.ranges.filter(pl.col("text").str.ends_with("|coll"))
    sizes = dict(rows.select("text", "payload").iter_rows())
    assert sizes["Collective all_gather_into_tensor@default_pg:2 [144]f32 |coll"] == "576"
    assert sizes["Collective reduce_scatter_tensor@default_pg:2 [144]f32 |coll"] == "576"
    assert sizes["Collective all_reduce@default_pg:2 [244]f32 |coll"] == "976"
    assert sizes["Collective broadcast_coalesced@default_pg:2 [16]f32 [16]f32 []i64 |coll"] == "136"
    table = by_layer(attribute(profile))
    said = table.filter(pl.col("phase") == "collective", pl.col("module").str.starts_with("all_reduce"))
    assert dict(said.select("module", "calls").rows()) == {
        "all_reduce@default_pg:2": 6, "all_reduce.wait@default_pg:2": 12,
    }  # fmt: skip


def test_waiting_for_the_reducer_is_no_layer(two_ranks: tuple[Path, Path]) -> None:
    """What DDP awaits at the end of a backward on a CPU is a collective behind the layers, and in none of them."""
    profile = load(two_ranks[0])
    ranges = ranges_of(attribute(profile))
    waits = ranges.filter(pl.col("text").str.starts_with("Collective all_reduce.wait"))
    assert waits.height == 12
    around = ranges.select("text", "end").with_row_index("parent").with_columns(pl.col("parent").cast(pl.Int64))
    found = waits.join(around, on="parent", suffix="_around")
    assert found.height == waits.height
    assert set(found["text_around"]) == {"Backward |bwd"}
    layers = ranges.filter(pl.col("phase") == "backward", pl.col("layer") != "")
    beside = layers.join(waits.select("thread", wait="start", until="end"), on="thread")
    assert beside.filter((pl.col("start") < pl.col("until")) & (pl.col("wait") < pl.col("end"))).is_empty()


def test_one_rank_makes_the_profile_that_ranks(alone: None, tmp_path: Path) -> None:
    """A process that has initialized torch.distributed says its rank in every recording."""
    model = torch.nn.Linear(2, 2)
    for name in ("first", "second"):
        with annot.record(tmp_path / name), annot.emit_ranges(model):
            model(torch.ones(1, 2))
        meta = load(tmp_path / name).meta
        assert (meta["rank"], meta["world_size"]) == (0, 1)


def test_the_environment_tells_the_rank_before_the_group_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torchrun sets it; without it nothing is said."""
    assert rank_of(tmp_path / "none") is None
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_of(tmp_path / "some") == 3
    monkeypatch.setenv("RANK", "three")
    assert rank_of(tmp_path / "other") is None


def rank_of(path: Path) -> int | None:
    with annot.record(path), annot.emit_ranges(torch.nn.Identity()):
        torch.nn.Identity()
    rank: int | None = load(path).meta.get("rank")
    return rank


def test_every_collective_has_one_range(alone: None, tmp_path: Path) -> None:
    """Synchronous, asynchronous, between two, coalesced, functional; a wait has its own, in a group of its name."""
    group = dist.new_group([0], group_desc="mine")
    ones = torch.ones(6)

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity()):
            dist.all_reduce(ones)
            work: Any = dist.all_reduce(ones, async_op=True, group=group)
            work.wait()
            dist.all_gather([torch.empty(6)], ones)
            dist.all_gather_into_tensor(torch.empty(6), ones)
            dist.reduce_scatter_tensor(torch.empty(6), ones)
            dist.broadcast(ones, 0)
            dist.barrier()
            functional.all_reduce(ones, "sum", dist.group.WORLD).wait()
            functional.all_gather_tensor(ones, 0, [0]).wait()
        dist.all_reduce(ones)

    before = [vars(owner).get(name) for owner, name in places()]
    captured = capture(tmp_path, body)
    assert [vars(owner).get(name) for owner, name in places()] == before
    said = [text for text in collectives(captured) if "wait" not in text]
    assert said == [
        "all_reduce@default_pg:1 [6]f32",
        "all_reduce@mine:1 [6]f32",
        "all_gather@default_pg:1 [6]f32",
        "all_gather_into_tensor@default_pg:1 [6]f32",
        "reduce_scatter_tensor@default_pg:1 [6]f32",
        "broadcast@default_pg:1 [6]f32",
        "barrier@default_pg:1",
        "all_reduce@default_pg:1 [6]f32",
        "all_gather_into_tensor [6]f32",
    ]
    assert [one.parent for one in captured.ranges if one.text.endswith("|coll")] == [None] * len(collectives(captured))
    assert "all_reduce.wait" in collectives(captured)
    assert "barrier.wait" in collectives(captured)


def places() -> list[tuple[Any, str]]:
    return [
        (dist.ProcessGroup, "allreduce"),
        (dist.Work, "wait"),
        (dist, "_broadcast_coalesced"),
        (functional, "all_reduce"),
    ]


def test_a_collective_that_fails_closes_its_range(alone: None, tmp_path: Path) -> None:
    """The exception is the user's; a group written in Python that lacks the operation fails as without annot."""

    class Bare(dist.ProcessGroup):
        def __init__(self) -> None:
            super().__init__(0, 1)

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity()):
            with pytest.raises(RuntimeError, match="tensor size"):
                dist.all_gather_into_tensor(torch.empty(5), torch.ones(6))
            with pytest.raises(RuntimeError, match=r"[Bb]ackend"):
                Bare().allreduce([torch.ones(2)])
            dist.all_reduce(torch.ones(1))

    said = collectives(capture(tmp_path, body))
    assert said[-2:] == ["all_reduce@default_pg:1 [1]f32", "all_reduce.wait"]


def test_kept_events_of_collectives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose messages have ever other sizes fills no memory; each message has its size."""
    monkeypatch.setattr(collectives_of_torch, "_MAX_EVENTS", 10)
    events = collectives_of_torch._Events()
    made = [events._event("all_reduce", None, [torch.ones(size)]).text for size in range(1, 100)]
    assert [text for size, text in enumerate(made, 1) if f"[{size}]f32" not in text] == []
    assert len(events._cache) <= 10


def test_collectives_can_be_left_out(alone: None, tmp_path: Path) -> None:
    """``collectives=False`` touches nothing of torch.distributed."""

    def body() -> None:
        original = dist.ProcessGroup.allreduce
        with annot.emit_ranges(torch.nn.Identity(), collectives=False):
            assert dist.ProcessGroup.allreduce is original
            dist.all_reduce(torch.ones(1))

    assert collectives(capture(tmp_path, body)) == []


class Counted(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(6.0).unbind())


def data_ranges(captured: Captured) -> Counter[str]:
    """How often each range about data came."""
    return Counter(one.text for one in captured.ranges if one.text.endswith("|data"))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_say_what_they_fetch(method: str, tmp_path: Path) -> None:
    """Each fetch is a range of its worker, in a process of its own; each wait is one of the loop."""
    seen: list[torch.Tensor] = []

    def body() -> None:
        loader = DataLoader(distributed_worker.Numbers(), 2, num_workers=2, multiprocessing_context=method)
        with annot.emit_ranges(torch.nn.Identity()):
            seen.extend(loader)

    captured = capture(tmp_path, body)
    assert torch.equal(torch.cat(seen), torch.cat(list(DataLoader(distributed_worker.Numbers(), 2))))
    assert data_ranges(captured) == {"Data |data": 5, "Data Worker 0 |data": 2, "Data Worker 1 |data": 2}
    processes = {one.text: one.thread >> 24 for one in captured.ranges}
    assert len(set(processes.values())) == 3
    assert processes["Data |data"] & 0xFFFFFF == os.getpid()


def test_waits_are_ranges_in_every_mode_of_the_loader(tmp_path: Path) -> None:
    """One per batch and one for the end: no workers, an iterable, persistent workers twice, and inside `batches`."""

    def waits(loader: DataLoader[Any], rounds: int = 1, *, ranged: bool = False) -> int:
        def body() -> None:
            with annot.emit_ranges(torch.nn.Identity()):
                for _ in range(rounds):
                    for _ in annot.batches(loader) if ranged else loader:
                        pass
            list(DataLoader(distributed_worker.Numbers(), 4))

        return data_ranges(capture(tmp_path, body))["Data |data"]

    numbers = distributed_worker.Numbers()
    assert waits(DataLoader(numbers, 4)) == 3
    assert waits(DataLoader(numbers, 4), ranged=True) == 3
    assert waits(DataLoader(Counted(), 3)) == 3
    assert waits(DataLoader(numbers, 4, num_workers=1, persistent_workers=True), 2) == 6


def test_a_loader_says_how_many_workers_it_has(tmp_path: Path) -> None:
    """A mark for each loader that starts to iterate, also inside `batches`, with a dataset of the user."""
    numbers = torch.utils.data.Subset(distributed_worker.Numbers(), range(8))
    line = distributed_worker.Numbers.__getitem__.__code__.co_firstlineno

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity()):
            for loader in (DataLoader(numbers, 4), DataLoader(numbers, 4, num_workers=1, persistent_workers=True)):
                assert len(list(annot.batches(loader))) == 2
                assert len(list(loader)) == 2

    recorded = capture(tmp_path, body)
    path = next(tmp_path.rglob("*.sqlite"))
    loaders = [one["loaders"] for one in annot.load(path).meta["processes"] if "loaders" in one]
    facts = {"workers": 0, "persistent": 0, "pinned": 0, "dataset": "Numbers", "source": loaders[0][0]["source"]}
    assert loaders == [[facts, facts | {"workers": 1, "persistent": 1}]]
    assert facts["source"].endswith(f"distributed_worker.py:{line}")
    assert data_ranges(recorded)["Data |data"] == 12


def test_a_fetch_that_fails_closes_its_ranges(tmp_path: Path) -> None:
    """In the worker and in the loop; the exception arrives as without annot."""

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity()):
            batches: Any = iter(DataLoader(distributed_worker.Broken(), 2, num_workers=1))
            with pytest.raises(ValueError, match="no such item"):
                list(batches)
            batches._shutdown_workers()  # else they go with the exception, which takes 5 s

    found = data_ranges(capture(tmp_path, body))
    assert found["Data |data"] == 2
    assert found["Data Worker 0 |data"] >= 2  # it may have gone on with what was asked for ahead


def test_data_can_be_left_out(tmp_path: Path) -> None:
    """``data=False`` touches no loader."""

    def body() -> None:
        with annot.emit_ranges(torch.nn.Identity(), data=False):
            list(DataLoader(distributed_worker.Numbers(), 4, num_workers=1))

    assert data_ranges(capture(tmp_path, body)) == {}


def replicas(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """What DataParallel makes of a model for each forward; on one device, the parameters can be shared."""
    made = []
    for _ in range(count):
        modules = dict(model.named_modules())
        copies = {path: one._replicate_for_data_parallel() for path, one in modules.items()}
        for path, copy in copies.items():
            for name in list(copy._modules):
                copy._modules[name] = copies[f"{path}.{name}" if path else name]
            for name, parameter in modules[path]._parameters.items():
                setattr(copy, name, parameter)
        made.append(copies[""])
    return made


def test_replicas_have_the_ranges_of_their_model(tmp_path: Path) -> None:
    """As DataParallel makes and calls them, in threads, forward and backward, and they are forgotten with the step."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    x = torch.randn(4, 3)

    def step() -> torch.Tensor:
        model.zero_grad()
        copies, outputs = replicas(model, 2), {}
        threads = [
            threading.Thread(target=lambda place=place: outputs.update({place: copies[place](x[2 * place :][:2])}))
            for place in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cat([outputs[0], outputs[1]]).sum().backward()
        return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])

    expected = step()

    def body() -> None:
        with annot.emit_ranges(model):
            assert torch.equal(step(), expected)
            assert torch.equal(step(), expected)

    captured = capture(tmp_path, body)
    found = Counter(captured.names)
    for layer in ("Sequential", "0", "1", "2"):
        assert found[f"{layer}>"] == 4
    assert min(found["0<"], found["1<"], found["2<"]) >= 4  # nodes of both replicas take turns
    assert not hasattr(torch.nn.Module._replicate_for_data_parallel, "__wrapped__")


def test_stages_of_a_pipeline_in_threads(tmp_path: Path) -> None:
    """Each stage runs forward and backward in its thread; the ranges are of that thread and closed there."""
    stages = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(2)]
    model = torch.nn.ModuleList(stages)
    x = torch.randn(2, 3)

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        ready, back = threading.Event(), threading.Event()
        passed: dict[str, torch.Tensor] = {}

        def first() -> None:
            passed["out"] = stages[0](x)
            ready.set()
            back.wait()
            passed["out"].backward(passed["grad"])

        def second() -> None:
            ready.wait()
            received = passed["out"].detach().requires_grad_()
            stages[1](received).sum().backward()
            assert received.grad is not None
            passed["grad"] = received.grad
            back.set()

        threads = [threading.Thread(target=first), threading.Thread(target=second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None]

    expected = step()

    def body() -> None:
        with annot.emit_ranges(model):
            assert all(map(torch.equal, step(), expected))

    captured = capture(tmp_path, body)
    threads_of: dict[str, set[int]] = {}
    for one in captured.ranges:
        if one.tag is not None and one.tag.layer:
            threads_of.setdefault(one.tag.layer.split(".")[0], set()).add(one.thread)
    assert [len(threads_of[stage]) for stage in "01"] == [1, 1]
    assert threads_of["0"] != threads_of["1"]
    assert captured.names.count("0.0<") == captured.names.count("1.1<") == 1
