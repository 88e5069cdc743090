"""`@trace` on generators, coroutines and asynchronous generators, as a real NVTX tool sees them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from captured import capture

from annot import mark, trace


def test_generators_are_covered_while_they_run(tmp_path: Path) -> None:
    """Every step of a generator is a range; what happens between the steps is outside."""

    def body() -> None:
        closed = []

        @trace("gen")
        def generate() -> Iterator[Any]:
            try:
                got = yield 1
                try:
                    yield got
                except KeyError:
                    yield "caught"
                yield 4
            finally:
                closed.append(True)

        steps = generate()
        assert inspect.isgenerator(steps)
        assert next(steps) == 1
        mark("outside")
        assert steps.send("sent") == "sent"
        assert steps.throw(KeyError()) == "caught"
        steps.close()
        assert closed == [True]
        with pytest.raises(StopIteration):
            next(steps)

        def delegate() -> Iterator[Any]:
            yield from generate()

        assert list(delegate()) == [1, None, 4]

    captured = capture(tmp_path, body)
    assert captured.texts == ["gen"] * 9
    (at, _, thread) = captured.marks[0]
    assert captured.innermost(at, thread) is None


def test_coroutines_are_covered_while_they_run(tmp_path: Path) -> None:
    """Two coroutines that take turns each have a range for each turn; none overlaps the other."""

    def body() -> None:
        order = []

        @trace("co")
        async def work(name: str) -> str:
            for _ in range(2):
                order.append(name)
                await asyncio.sleep(0)
            return name

        async def main() -> list[str]:
            assert await asyncio.create_task(work("alone")) == "alone"
            return await asyncio.gather(work("a"), work("b"))

        assert asyncio.run(main()) == ["a", "b"]
        assert order == ["alone", "alone", "a", "b", "a", "b"]

    captured = capture(tmp_path, body)
    assert captured.texts == ["co"] * 9
    assert all(one.parent is None for one in captured.ranges)


def test_a_coroutine_that_is_cancelled_or_fails(tmp_path: Path) -> None:
    """Cancellation and exceptions go in and come out as without a range."""

    def body() -> None:
        @trace("co")
        async def wait() -> None:
            await asyncio.sleep(3600)

        @trace("fails")
        async def fail() -> None:
            raise LookupError("mine")

        async def main() -> None:
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(LookupError, match="mine"):
                await fail()

        asyncio.run(main())

    assert capture(tmp_path, body).texts == ["co", "co", "fails"]


def test_async_generators_are_covered_while_they_run(tmp_path: Path) -> None:
    """`async for`, `asend` and `aclose` work, each step in a range."""

    def body() -> None:
        closed = []

        @trace("agen")
        async def generate() -> AsyncIterator[Any]:
            try:
                got = yield 1
                yield got
                await asyncio.sleep(0)
                yield 3
            finally:
                closed.append(True)

        async def main() -> None:
            assert [x async for x in generate()] == [1, None, 3]
            steps: Any = generate()
            assert await anext(steps) == 1
            assert await steps.asend("sent") == "sent"
            await steps.aclose()

        asyncio.run(main())
        assert closed == [True, True]

    captured = capture(tmp_path, body)
    assert set(captured.texts) == {"agen"}
    assert len(captured.texts) == 8
