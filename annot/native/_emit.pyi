"""NVTX client in C, and the hot path of module calls in PyTorch."""

from collections.abc import Callable
from types import MethodDescriptorType, ModuleType
from typing import Any, Final, Self, final

@final
class Event:
    """NVTX attributes of a range or mark, prepared once per tool."""

    def __new__(
        cls,
        text: str,
        domain: str = "",
        category: int = 0,
        color: int = 0,
        payload: float | None = None,
        registered: bool = True,
    ) -> Self: ...
    @property
    def text(self) -> str:
        """Text of the range."""

    @property
    def domain(self) -> str:
        """Name of the domain; empty for the default domain."""

    @property
    def category(self) -> int:
        """Number of the category in the domain."""

    @property
    def color(self) -> int:
        """Color as 0xAARRGGBB; 0 for the color of the tool."""

@final
class Calls:
    """Module calls and backward runs of the models in `sites`; see `annot.torch.module_calls.Calls`."""

    def __init__(self, sites: Any, *, forward: bool, backward: bool) -> None: ...
    def call(self, original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Call a module inside its range."""

    def begin(self, roots: tuple[Any, ...], *, keep_graph: bool, create_graph: bool, every: bool) -> None:
        """Hook a graph for a backward run on this thread; `finish` ends the run."""

    def current_site(self, backward: bool, /) -> Any:
        """Return the site of the current call or, with `backward`, of the open backward range, or None."""

    def note_switch(self) -> None:
        """Record that this thread continues with another greenlet."""

    def has_lost(self) -> bool:
        """Return whether a node was older than the notes since the last call of this method."""

    def drop_notes(self) -> None:
        """Drop the calls recorded for all threads."""

    def forget(self) -> None:
        """Clear the cache of module sites, after a site was added or removed."""

    def runs(self) -> int:
        """Return the number of unfinished backward runs of this thread."""

    def finish(self, count: int, /) -> None:
        """Finish backward runs of this thread until `count` are left."""

exit_method: Final[MethodDescriptorType]
"""An `__exit__` method that calls ``self._exit(done, kind, error, traceback)`` as `to_the_end` does."""

def bind(functions: dict[str, Any], /) -> None:
    """Set the Python functions of annot/torch that `Calls` uses, by name."""

def attach() -> bool:
    """Look for an NVTX tool, even after an earlier attempt. Return whether one is attached."""

def detach() -> None:
    """Stop sending ranges to NVTX until the next `attach`."""

def name_category(domain: str, number: int, name: str, /) -> None:
    """Name a category of a domain."""

def watch_profiler(profiler: ModuleType, range_type: Any, /) -> None:
    """Send ranges to torch.profiler while it runs: `torch.autograd.profiler` and the type of its ranges."""

def push(event: Event, /) -> None:
    """Open the range of an event on this thread."""

def pop() -> None:
    """Close the innermost open range of this thread."""

def depth() -> int:
    """Return the number of open ranges of this thread."""

def pop_to(depth: int, /) -> None:
    """Close ranges of this thread until `depth` remain open."""

def start(event: Event, /) -> tuple[Event, int, int, Any]:
    """Open a range that may end on another thread or out of order. Return the argument of `end`."""

def end(started: tuple[Event, int, int, Any], /) -> None:
    """Close a range opened by `start`."""

def range_functions() -> tuple[int, int]:
    """Return the addresses of C functions that open and close ranges without the GIL."""

def mark(event: Event, /) -> None:
    """Emit a mark (an instantaneous event)."""

def watch_greenlets(getcurrent: Callable[[], Any], /) -> None:
    """Keep the open calls of each greenlet apart, given ``greenlet.getcurrent``."""

def wrapper(event: Event, /) -> Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return a wrapper function for wrapt that calls inside the range of an event."""

def inside(event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
    """Call ``function(*args, **kwargs)`` inside the range of an event."""

def caught(errors: list[BaseException], work: Callable[..., Any], /, *args: Any) -> Any:
    """Call ``work(*args)``. On an exception, append it to `errors` and return 0."""

def to_the_end(work: Callable[..., Any], /, *args: Any) -> Any:
    """Call ``work(*args)``, and again if it raises. Then raise the first exception."""
