"""Program that prints its observable behaviour. `test_behaviour` compares the output with and without tools.

Add every behaviour that a tool must not change. Each line is one fact that is the same in every run.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import hashlib
import inspect
import os
import pickle
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import torch

from annot import batches, emit_ranges, epochs, mark, trace

warnings.simplefilter("error")
signal.signal(signal.SIGALRM, lambda number, frame: say("handler", number))


def say(*facts: object) -> None:
    """Print one fact."""
    print(*facts, flush=True)


def attempt(name: str, call: Callable[[], Any]) -> None:
    """Print what a call returns or raises."""
    try:
        say(name, "returns", call())
    except BaseException as error:
        say(name, "raises", type(error).__name__, error, repr(error.__context__), repr(error.__cause__))


@trace
def fails(number: int, *, text: str = "a") -> None:
    """Raise an exception while handling another one."""
    try:
        raise KeyError(number)
    except KeyError as error:
        raise ValueError(text) from error


@trace("numbers")
def numbers(count: int) -> Iterator[int]:
    """Yield numbers and catch exceptions thrown into the generator."""
    for number in range(count):
        try:
            yield number
        except LookupError as error:
            say("thrown in", error)
    return


@trace
async def asynchronous(count: int) -> AsyncIterator[int]:
    """Yield after a task switch."""
    for number in range(count):
        await asyncio.sleep(0)
        yield number


@trace
class Traced:
    """A class whose methods have ranges."""

    def __init__(self, value: int) -> None:
        self.value = value

    @property
    def double(self) -> int:
        """A property."""
        return 2 * self.value

    @classmethod
    def make(cls) -> Traced:
        """A class method."""
        return cls(21)


def functions() -> None:
    """Check that decorated callables keep their behaviour."""
    attempt("fails", lambda: fails(1))
    attempt("wrong arguments", lambda: fails(1, 2, 3))  # type: ignore[call-arg,arg-type]
    say(inspect.signature(fails), fails.__name__, fails.__doc__, inspect.isgeneratorfunction(numbers))
    say(inspect.isasyncgenfunction(asynchronous), Traced.make().double, pickle.loads(pickle.dumps(Traced(3))).value)
    generator: Any = numbers(3)
    say(next(generator), generator.throw(LookupError("x")), list(generator))
    attempt("exhausted", lambda: next(generator))

    async def collect() -> list[int]:
        return [number async for number in asynchronous(3)]

    say(asyncio.run(collect()))
    for number in epochs(2):
        say("epoch", number, list(batches(range(2))))
    mark("here")


def training() -> weakref.ref[torch.nn.Module]:
    """Print the bits of a trained model, its hooks, and exceptions of its layers. Return a weak reference to it."""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    seen: list[str] = []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[2].register_full_backward_hook(lambda *_: seen.append("backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with emit_ranges(model):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
        attempt("wrong shape", lambda: model(torch.randn(4, 9)))
        attempt("interrupt", lambda: fails_in(model, KeyboardInterrupt("mine")))
    say(seen, hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
    say(sorted(vars(model[0])), len(model[0]._forward_hooks), model[0].forward.__func__ is torch.nn.Linear.forward)
    return weakref.ref(model)


def fails_in(model: Any, error: BaseException) -> None:
    """Raise an exception in the middle of a forward."""

    def hook(*_: object) -> None:
        raise error

    with contextlib.ExitStack() as stack:
        stack.callback(model[1].register_forward_hook(hook).remove)
        model(torch.randn(4, 8))


def processes() -> None:
    """Use signals, threads, child processes and exit handlers."""
    signal.raise_signal(signal.SIGALRM)
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(sum(numbers(n)))) for n in range(5)]
    for thread in threads:
        thread.start()
        thread.join()
    say(results, threading.active_count())
    for status in (0, 7):
        child = os.fork()
        if not child:
            with trace("child"):
                os._exit(status)
        say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    say(sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), sys.flags.utf8_mode, os.getcwd() == sys.argv[1])


functions()
model = training()
gc.collect()
say("freed", model() is None)
processes()
atexit.register(say, "at exit")
sys.exit(3)
