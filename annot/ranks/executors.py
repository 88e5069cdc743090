"""Do the same for many files: in this process, in others, or on Dask.

A file that cannot be used is a `Failure` in the place of its result, whatever became of it, and takes no other
result with it. Nothing heavy is imported here: workers set their environment up before they import polars.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from annot.errors import AnnotError
from annot.progress import tell

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Failure", "run_each", "run_one"]

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_SECONDS: Final = 30
_THREADS: Final = "POLARS_MAX_THREADS"
_KILLED: Final = "its worker process was killed, as happens when memory runs out"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result, in words."""

    reason: str


def run_each(
    task: Callable[[str], _Result], paths: Sequence[str], *, workers: int | None = None, dask: str | None = None
) -> list[_Result | Failure]:
    """Return the result of each file, in their order.

    Args:
        task: what to do; a function, or a partial of one, that other processes can import.
        paths: the files.
        workers: how many processes share the work, this one if it is 1; None: as many as there are CPUs, but
            not more than files.
        dask: where to do it instead: the address of a scheduler of Dask, such as ``tcp://host:8786``, whose
            workers can read the files and import annot; or ``local`` for a cluster of `workers` processes.

    Raises:
        AnnotError: Dask is not installed, or there is no scheduler or worker.
    """
    count = min(workers or _cpus(), len(paths))
    if dask is not None:
        return [*_counted(_on_dask(task, paths, dask, count), len(paths))]
    # What fsspec keeps in the memory of this process is not in that of others.
    if count <= 1 or any(path.startswith("memory://") for path in paths):
        return [*_counted((_attempt(task, path) for path in paths), len(paths))]
    return _in_processes(task, paths, count)


def run_one(task: Callable[[str], _Result], path: str, *, dask: str | None = None) -> _Result:
    """Return the result of a single file, which is worked on here unless Dask is asked for; see `run_each`.

    Raises:
        AnnotError: the file cannot be used, or Dask is not there.
    """
    if dask is None:
        return task(path)
    result = run_each(task, [path], dask=dask)[0]
    if isinstance(result, Failure):
        raise AnnotError(result.reason)
    return result


def _counted(results: Iterator[_Item], total: int) -> Iterator[_Item]:
    """Tell how many there are while they come."""
    tell("reading profiles", 0, total, "profiles")
    for done, result in enumerate(results, 1):
        tell("reading profiles", done, total, "profiles")
        yield result


def _attempt(task: Callable[[str], _Result], path: str) -> _Result | Failure:
    try:
        return task(path)
    except AnnotError as error:
        return Failure(str(error))
    except MemoryError:
        return Failure(f"{path} does not fit in memory")


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _in_processes(task: Callable[[str], _Result], paths: Sequence[str], workers: int) -> list[_Result | Failure]:
    results = dict(_counted(_pooled(task, paths, workers), len(paths)))
    for path in paths:
        if path not in results:  # a worker died, and the pool with it: one of these was the reason
            results.update(_pooled(task, [path], 1))
    return [results.get(path, Failure(f"{path}: {_KILLED}")) for path in paths]


def _pooled(
    task: Callable[[str], _Result], paths: Sequence[str], workers: int
) -> Iterator[tuple[str, _Result | Failure]]:  # fmt: skip
    """Yield the results that there are before a worker dies."""
    threads = max(1, _cpus() // workers)
    spawn = multiprocessing.get_context("spawn")  # polars and a fork do not go together
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=(threads,)) as pool:
        futures: dict[str, Future[_Result | Failure]] = {}
        try:
            for path in paths:
                futures[path] = pool.submit(_attempt, task, path)
        except BrokenProcessPool:
            pass
        for path, future in futures.items():
            try:
                yield path, future.result()
            except BrokenProcessPool:
                continue


def _start_worker(threads: int) -> None:
    os.environ.setdefault(_THREADS, str(threads))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback


def _on_dask(
    task: Callable[[str], _Result], paths: Sequence[str], address: str, workers: int
) -> Iterator[_Result | Failure]:  # fmt: skip
    with _client(address, workers) as client:
        futures = [client.submit(_attempt, task, path, pure=False) for path in paths]
        for path, future in zip(paths, futures, strict=True):
            try:
                result: _Result | Failure = future.result()
            except Exception as error:  # a worker that died, a lost scheduler, a worker without annot, ...
                reason = " ".join(str(error).split())
                result = Failure(f"{path}: Dask gave no result, but {type(error).__name__}: {reason}")
            yield result


@contextmanager
def _client(address: str, workers: int) -> Iterator[Client]:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise AnnotError("--dask needs the package distributed: pip install 'annot[dask]'") from None
    if address == "local":
        environment = {_THREADS: str(max(1, _cpus() // workers))}
        with (
            LocalCluster(workers, threads_per_worker=1, dashboard_address=None, env=environment) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(address, timeout=_SECONDS)
    except (OSError, ValueError) as error:
        raise AnnotError(f"there is no scheduler of Dask at {address}: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_SECONDS)
        except TimeoutError:
            raise AnnotError(f"the scheduler of Dask at {address} has no workers") from None
        yield client
