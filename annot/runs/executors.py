"""Executors that run a task on many files: in this process, in a process pool, or on Dask.

A file that cannot be used gives a `Failure` as its result and does not affect other files. This module imports no
heavy packages, because workers set `POLARS_MAX_THREADS` before they import polars.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

from annot.errors import AnnotError
from annot.util.cpus import usable_cpus
from annot.util.distribution import install_command
from annot.util.progress import tell

if TYPE_CHECKING:
    from distributed import Client

_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_SECONDS: Final = 30
_THREADS: Final = "POLARS_MAX_THREADS"
_KILLED: Final = "its worker process was killed, for example because memory ran out"
_STARTING: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a file gave no result."""

    reason: str


def run_each(
    task: Callable[[str], _Result], paths: Sequence[str], *, workers: int | None = None, dask: str | None = None
) -> list[_Result | Failure]:
    """Return a result or a `Failure` for each file, in order.

    Args:
        task: function, or partial of a function, that other processes can import.
        paths: the files.
        workers: number of processes; 1: this process; None: the number of CPUs. Never more than there are files.
        dask: address of a Dask scheduler, such as ``tcp://host:8786``, whose workers can read the files and import
            annot; or ``local`` for a cluster of `workers` processes; None: without Dask.

    Raises:
        AnnotError: Dask is not installed, or the scheduler cannot be reached, or it has no workers.
    """
    count = min(workers or usable_cpus(), len(paths))
    _log.info("reading %d profiles in %d processes", len(paths), count)
    if dask is not None:
        return [*_counted(_run_on_dask(task, paths, dask, count), len(paths))]
    # fsspec's memory:// files exist in this process only.
    if count <= 1 or any(path.startswith("memory://") for path in paths):
        return [*_counted((_attempt(task, path) for path in paths), len(paths))]
    return _run_in_processes(task, paths, count)


def run_one(task: Callable[[str], _Result], path: str, *, dask: str) -> _Result:
    """Return the result of a single file, computed on Dask; see `run_each`.

    Raises:
        AnnotError: the file cannot be used, or Dask is not available.
    """
    result = run_each(task, [path], dask=dask)[0]
    if isinstance(result, Failure):
        raise AnnotError(result.reason)
    return result


def _counted(results: Iterator[_Item], total: int) -> Iterator[_Item]:
    """Report progress for each result."""
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


def _run_in_processes(task: Callable[[str], _Result], paths: Sequence[str], workers: int) -> list[_Result | Failure]:
    results = dict(_counted(_pooled(task, paths, workers), len(paths)))
    for path in paths:
        if path not in results:  # a dead worker breaks the whole pool: retry each remaining file alone
            results.update(_pooled(task, [path], 1))
    return [results.get(path, Failure(f"{path}: {_KILLED}")) for path in paths]


def _pooled(
    task: Callable[[str], _Result], paths: Sequence[str], workers: int
) -> Iterator[tuple[str, _Result | Failure]]:
    """Yield results; files without a result after a worker died are left out."""
    threads = max(1, usable_cpus() // workers)
    spawn = multiprocessing.get_context("spawn")  # polars can deadlock after a fork (its user guide, multiprocessing)
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=(threads,)) as pool:
        futures: dict[str, Future[_Result | Failure]] = {}
        try:
            with _hide_main():
                for path in paths:
                    futures[path] = pool.submit(_attempt, task, path)
        except BrokenProcessPool:
            pass
        for path, future in futures.items():
            try:
                yield path, future.result()
            except BrokenProcessPool:
                continue


@contextmanager
def _hide_main() -> Iterator[None]:
    """Hide the main module while workers start, because multiprocessing imports it again in each of them.

    A training script would train again (`multiprocessing.spawn.get_preparation_data`).
    """
    with _STARTING:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _start_worker(threads: int) -> None:
    os.environ.setdefault(_THREADS, str(threads))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the worker without a traceback


def _run_on_dask(
    task: Callable[[str], _Result], paths: Sequence[str], address: str, workers: int
) -> Iterator[_Result | Failure]:
    with _client(address, workers) as client:
        futures = [client.submit(_attempt, task, path, pure=False) for path in paths]
        for path, future in zip(paths, futures, strict=True):
            try:
                result: _Result | Failure = future.result()
            except Exception as error:  # a dead worker, a lost scheduler, a worker without annot, ...
                reason = " ".join(str(error).split())
                result = Failure(f"{path}: Dask failed with {type(error).__name__}: {reason}")
            yield result


@contextmanager
def _client(address: str, workers: int) -> Iterator[Client]:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise AnnotError(f"--dask needs the distributed package: {install_command('dask')}") from None
    if address == "local":
        environment = {_THREADS: str(max(1, usable_cpus() // workers))}
        cluster = LocalCluster(
            workers, threads_per_worker=1, dashboard_address=None, env=environment, silence_logs=logging.CRITICAL
        )
        with cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(address, timeout=_SECONDS)
    except (OSError, ValueError) as error:
        raise AnnotError(f"the Dask scheduler at {address} cannot be reached: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_SECONDS)
        except TimeoutError:
            raise AnnotError(f"the Dask scheduler at {address} has no workers: start `dask worker {address}`") from None
        yield client
