"""`@trace` and `with trace(...)`, as a real NVTX tool sees them."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from captured import Captured, capture
from interrupted import IS_NATIVE, Timeout, interrupt_at, where

import annot
from annot import mark, trace


@pytest.fixture
def seen(tmp_path: Path) -> Callable[[Callable[[], object]], Captured]:
    """Run a body while recording; return what was recorded."""
    return lambda body: capture(tmp_path, body)


Seen = Callable[[Callable[[], object]], Captured]


@pytest.fixture
def ready() -> Iterator[None]:
    """Definitions of this test get ranges although no tool is there yet."""
    annot.enable()
    yield
    annot.enable(False)


def test_without_a_tool_the_very_object_comes_back() -> None:
    """Off means free: what is decorated is not even wrapped."""

    def plain() -> None: ...

    class Plain: ...

    getter = property(lambda self: 1)
    assert not annot.enabled()
    assert trace(plain) is plain
    assert trace("name", shapes=True)(plain) is plain
    assert trace(Plain) is Plain
    assert trace(getter) is getter


def test_a_function_has_a_range_named_after_it(seen: Seen) -> None:
    """The default text is the qualified name; arguments, result and exceptions pass through."""

    def body() -> None:
        @trace
        def add(a: int, b: int = 2, *rest: int, **more: int) -> int:
            return a + b + sum(rest) + sum(more.values())

        @trace("divide")
        def divide(a: int, b: int) -> float:
            return a / b

        assert add(1) == 3
        assert add(1, 2, 3, x=4) == 10
        with pytest.raises(ZeroDivisionError):
            divide(1, 0)

    name = "test_a_function_has_a_range_named_after_it.<locals>.body.<locals>.add"
    assert seen(body).texts == [name, name, "divide"]


@pytest.mark.usefixtures("ready")
def test_what_is_decorated_looks_the_same() -> None:
    """Signature, docstring, names, annotations and kind stay as they were."""

    def plain(a: int, *, b: str = "x") -> bytes:
        """Say it."""

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def agen() -> AsyncIterator[int]:
        yield 1

    for function in (plain, coroutine, generator, agen):
        traced = trace(function)
        assert traced is not function
        assert inspect.signature(traced) == inspect.signature(function)
        for name in ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__", "__defaults__"):
            assert getattr(traced, name) == getattr(function, name)
        for check in (inspect.isfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction):
            assert check(traced) == check(function)
        assert inspect.isasyncgenfunction(traced) == inspect.isasyncgenfunction(function)
        assert isinstance(traced, type(function))
        assert inspect.unwrap(traced) is function


annot.enable()


@trace
def module_function(x: int) -> int:
    """Double."""
    return 2 * x


class Counter:
    """A class with every kind of method, each decorated."""

    def __init__(self, start: int) -> None:
        self.start = start

    @trace
    def method(self, x: int) -> int:
        return self.start + x

    @trace("static")
    @staticmethod
    def static(x: int) -> int:
        return x

    @staticmethod
    @trace("static inside")
    def static_inside(x: int) -> int:
        return x

    @trace("class")
    @classmethod
    def of_class(cls, x: int) -> tuple[type, int]:
        return cls, x

    @classmethod
    @trace("class inside")
    def of_class_inside(cls, x: int) -> tuple[type, int]:
        return cls, x

    @trace("property")
    @property
    def value(self) -> int:
        """The value."""
        return self.start

    @property
    @trace("property inside")
    def value_inside(self) -> int:
        return self.start


@trace
class Traced:
    """A class that is decorated itself."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __call__(self) -> int:
        return self.x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]

    def public(self) -> int:
        return self._private()

    def _private(self) -> int:
        return self.x

    @staticmethod
    def static() -> int:
        return 7

    @property
    def prop(self) -> int:
        return self.x


annot.enable(False)


def test_methods_of_every_kind(seen: Seen) -> None:
    """Descriptors bind as they did, through instance, class and subclass."""

    class Child(Counter): ...

    def body() -> None:
        counter = Child(10)
        assert counter.method(1) == Counter.method(counter, 1) == 11
        assert counter.static(1) == Child.static(1) == 1
        assert counter.static_inside(1) == 1
        assert counter.of_class(1) == Child.of_class(1) == (Child, 1)
        assert counter.of_class_inside(1) == (Child, 1)
        assert counter.value == counter.value_inside == 10
        assert Counter.value.__doc__ == "The value."

    assert seen(body).texts == [
        "Counter.method",
        "Counter.method",
        "static",
        "static",
        "static inside",
        "class",
        "class",
        "class inside",
        "property",
        "property inside",
    ]


def test_a_decorated_class_stays_the_same_class(seen: Seen) -> None:
    """A class has ranges for its public functions, `__init__` and `__call__`, and is still itself."""

    class Child(Traced):
        def own(self) -> int:
            return super().public()

    def body() -> None:
        one = Traced(3)
        assert (one(), one.public(), one.static(), one.prop) == (3, 3, 7, 3)
        assert pickle.loads(pickle.dumps(one)) == one
        assert Child(4).own() == 4
        assert isinstance(Child(1), Traced)

    made = [f"Traced.{name}" for name in ("__init__", "__call__", "public", "static", "prop")]
    assert seen(body).texts == [*made, "Traced.__init__", "Traced.public", "Traced.__init__"]


def test_pickles_and_copies() -> None:
    """Functions and bound methods pickle by name and copy to themselves, as undecorated ones do."""
    assert pickle.loads(pickle.dumps(module_function)) is module_function
    assert copy.copy(module_function) is module_function
    assert copy.deepcopy(module_function) is module_function
    method = pickle.loads(pickle.dumps(Counter(5).method))
    assert method(1) == 6


def test_works_with_functools(seen: Seen) -> None:
    """partial, wraps, cache and partialmethod take a traced function like any other."""

    def body() -> None:
        assert functools.partial(module_function, 2)() == 4
        assert functools.lru_cache(module_function)(3) == 6
        assert list(map(module_function, [1, 2])) == [2, 4]

    assert seen(body).texts == ["module_function"] * 4


def test_a_block_is_covered_and_nests(seen: Seen) -> None:
    """`with trace` covers its block, also when it is left by an exception, and one object may nest in itself."""

    def body() -> None:
        with trace("outer"), trace("inner"):
            mark("here")
        with pytest.raises(ZeroDivisionError), trace("fails"):
            _ = 1 / 0
        again = trace("again")
        with again, again:
            pass

    captured = seen(body)
    assert captured.trees == [("outer", "inner"), "fails", ("again", "again")]
    (at, text, thread) = captured.marks[0]
    assert text == "here"
    inside = captured.innermost(at, thread)
    assert inside is not None
    assert inside.text == "inner"


def test_one_object_in_several_threads(seen: Seen) -> None:
    """A shared `trace` object opens and closes per thread."""
    shared = trace("shared")
    barrier = threading.Barrier(3)

    def work() -> None:
        for _ in range(50):
            with shared:
                pass
        barrier.wait()

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert seen(body).trees == ["shared"] * 150


def test_shapes_of_the_arguments(seen: Seen) -> None:
    """`shapes=True` says the tensors of each call, of any framework."""
    numpy = pytest.importorskip("numpy")

    def body() -> None:
        @trace("my layer", shapes=True)
        def layer(x: Any, *, mask: Any = None) -> None: ...

        layer(numpy.zeros((2, 3), "float32"), mask=[numpy.ones(4, bool)])
        layer(None)

    assert seen(body).texts == ['"my layer" [2,3]f32 [4]bool |other', '"my layer" |other']


def test_decorated_later_than_the_start(seen: Seen) -> None:
    """With `enable` before the definition, a recorder that starts later sees the ranges."""
    annot.enable()
    try:

        @trace("early")
        def early() -> None: ...
    finally:
        annot.enable(False)
    early()
    assert seen(early).texts == ["early"]
    early()
    assert seen(early).texts == ["early"]


def test_a_range_that_is_open_when_recording_starts(seen: Seen, tmp_path: Path) -> None:
    """A range from before the recording is neither shown nor closed twice."""
    annot.enable()
    try:

        @trace("around")
        def around() -> list[str]:
            return seen(lambda: None).texts

        assert around() == []
    finally:
        annot.enable(False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: trace(3),
            "trace decorates a function, method, class or property, or takes a message, got int",
        ),
        (lambda: trace("x", domain=3), "domain must be str, got 3"),
        (lambda: trace("x", color=1.5), "color must be str or int or None, got 1.5"),
        (lambda: trace("x", payload="y"), "payload must be an int or a float, got 'y'"),
        (lambda: mark(5), "the message must be a str, got 5"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], message: str) -> None:
    """A wrong argument is named, with what was expected and what came."""
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_only_the_outermost_callable_decides_what_it_is(seen: Seen) -> None:
    """A plain function that wraps a generator or a coroutine is a plain function."""

    def body() -> None:
        def generate() -> Iterator[int]:
            yield from (1, 2)

        @trace("list")
        @functools.wraps(generate)
        def listed() -> list[int]:
            return list(generate())

        @trace("manager")
        @contextlib.contextmanager
        def manage() -> Iterator[int]:
            yield 5

        assert listed() == [1, 2]
        with manage() as five:
            assert five == 5

        @manage()
        def managed() -> int:
            return 6

        assert managed() == 6

    assert seen(body).texts == ["list", "manager", "manager"]


@pytest.mark.parametrize("name", ["method", "static", "of_class", "static_inside", "of_class_inside"])
def test_methods_taken_from_the_class_pickle(name: str) -> None:
    """What spawned workers are sent, `Class.method`, arrives as the same function."""
    function = getattr(Counter, name)
    again = pickle.loads(pickle.dumps(function))
    arguments = (Counter(1), 2) if name == "method" else (2,)
    assert again(*arguments) == function(*arguments)


def test_bound_methods_are_copied_with_their_instance() -> None:
    """`deepcopy` of a bound method binds it to a copy, as Python does."""
    counter = Counter(1)
    again = copy.deepcopy({"f": counter.method})["f"]
    counter.start = 100
    assert again(1) == 2


def test_left_on_another_thread(tmp_path: Path) -> None:
    """A block that a generator leaves on another thread, as when it is collected there, raises nothing."""

    def generate() -> Iterator[int]:
        with trace("in generator"):
            yield 1

    failures: list[BaseException] = []

    def close(generator: Any) -> None:
        try:
            generator.close()
        except BaseException as error:
            failures.append(error)

    with annot.record(tmp_path / "x.sqlite"):
        generator = generate()
        next(generator)
        thread = threading.Thread(target=close, args=(generator,))
        thread.start()
        thread.join()
    assert failures == []


def test_many_payloads_of_one_text(seen: Seen) -> None:
    """A payload that changes with every call needs no room of its own, and arrives."""
    before = len(annot.emit.client.texts())

    def body() -> None:
        for step in range(50):
            with trace("step", payload=step):
                pass

    assert seen(body).texts == ["step"] * 50
    assert len(annot.emit.client.texts()) <= before + 1


@pytest.mark.skipif(not IS_NATIVE, reason="a function of Python can be interrupted before its first line")
def test_an_interrupt_anywhere_leaves_no_range_open(tmp_path: Path) -> None:
    """At the edges of blocks, calls and steps of generators."""
    block = trace("block")

    def work() -> None:
        @trace("steps")
        def steps() -> Iterator[int]:
            yield 1

        with block, block:
            list(steps())
            trace("shapes", shapes=True)(len)([])

    annot.emit.client.pop_to(0)  # what other tests have left
    with annot.record(tmp_path / "interrupted.sqlite"):
        number = 0
        while interrupt_at(number, work, Timeout):
            assert (annot.emit.client.depth(), any(block._open.values())) == (0, False), f"point {number}, {where}"
            number += 1
    assert number > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"payload": 2**63}, "payload must fit into 64 bits"),
        ({"color": 2**32}, "color must be 0xAARRGGBB"),
        ({"color": "typo"}, "color must be 0xAARRGGBB or a name such as 'red'.*got 'typo'"),
        ({"domain": "a\0b"}, "must not contain NUL"),
    ],
)
def test_values_that_nvtx_cannot_hold(options: dict[str, Any], message: str) -> None:
    """They are refused where they are given."""
    with pytest.raises(ValueError, match=message):
        trace("x", **options)
