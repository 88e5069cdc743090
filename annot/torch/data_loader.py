"""Ranges around the wait for each batch of a DataLoader, and around the fetches of its worker processes."""

from __future__ import annotations

from typing import Any, Final

import torch.utils.data as torch_data
from torch.utils.data import _utils

from annot.emit import client, guard
from annot.emit.class_sources import method_source
from annot.labels import tag
from annot.labels.marks import format_loader
from annot.torch.internals import internal
from annot.torch.patches import Patches

_BaseDataLoaderIter: Final[Any] = internal("torch.utils.data.dataloader._BaseDataLoaderIter")
_run_worker: Final[Any] = internal("torch.utils.data._utils.worker._worker_loop")


def install(patches: Patches) -> None:
    """Open a range around the wait for each batch, and ranges in workers that start from now on.

    A loader that starts to iterate emits the mark of `annot.labels.marks.format_loader`. A worker keeps emitting ranges
    until it exits. Inside `annot.batches`, each wait still has only one range.
    """
    waiting = client.event(tag.format(tag.Tag(phase="data")), category="data")
    patches.wrap(torch_data.DataLoader, "__iter__", _marked)
    patches.surround(_BaseDataLoaderIter, "__next__", "data", lambda *_: waiting)
    if _run_worker is not None and _utils.worker._worker_loop is _run_worker:
        patches.replace(_utils.worker, "_worker_loop", run_worker)


def _marked(iterate: Any, loader: Any) -> Any:
    def text() -> str:
        workers, persistent = int(loader.num_workers), bool(loader.persistent_workers)
        dataset, source = _sample_source(loader.dataset)
        return format_loader(
            workers=workers, persistent=persistent, pinned=bool(loader.pin_memory), dataset=dataset, source=source
        )

    guard.mark(text)
    return iterate(loader)


def _sample_source(dataset: Any) -> tuple[str, str]:
    """The class of a dataset, of the one inside a subset, and file and line of its method that loads samples."""
    while isinstance(dataset, torch_data.Subset):
        dataset = dataset.dataset
    stream = isinstance(dataset, torch_data.IterableDataset)
    names = ("__iter__",) if stream else ("__getitems__", "__getitem__")  # as the fetchers of PyTorch
    return type(dataset).__name__, method_source(type(dataset), *names)


def run_worker(*args: Any, **kwargs: Any) -> Any:
    """Run the loop of a worker process, with a range around each batch that it fetches.

    It is a module-level function, because a spawned process imports it by name.
    """
    if client.enabled():
        patches = Patches()
        fetch = _utils.fetch
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patches.surround(fetcher, "fetch", "fetch", _fetching)
    return _run_worker(*args, **kwargs)


def _fetching(*_: Any) -> Any:
    number = getattr(torch_data.get_worker_info(), "id", None)
    return client.event(tag.format(tag.Tag(module=tag.WORKER, phase="data", step=number)), category="data", few=True)
