"""Collector that runs a Python command under torch.profiler."""

from __future__ import annotations

import os
from pathlib import Path

from annot.collect.run import Collected, Job, run_child
from annot.errors import AnnotError
from annot.util.installed_tools import python_of

__all__ = ["TorchCollector"]

_SITE = Path(__file__).parent / "site"


class TorchCollector:
    """Collector for the first Python process of the command, from the import of torch to its exit.

    The profile is the Chrome trace of torch.profiler, compressed if its name ends in ``.gz``.
    """

    name = "torch"
    suffix = ".json.gz"

    def run(self, job: Job) -> int:
        """Run the command with torch.profiler set up by `sitecustomize`; see `annot.collect.run.Collector.run`."""
        if python_of(job.executable) is None:
            raise AnnotError(
                f"{job.command[0]} is not a Python command: --collector torch needs `python ...` "
                "or a script with Python in its first line (#!)"
            )
        job.say("running under torch.profiler")
        path = os.pathsep.join(filter(None, [str(_SITE), os.environ.get("PYTHONPATH")]))
        prepared = {"PYTHONPATH": path, "ANNOT_ENABLE": "1", "ANNOT_TORCH_TRACE": str(self._trace(job))}
        if "PYTHONPATH" in os.environ:
            prepared["ANNOT_PYTHONPATH"] = os.environ["PYTHONPATH"]
        return run_child(job, environ={**os.environ, **prepared})

    def convert(self, job: Job, status: int) -> Collected:
        """Check the trace and move it to ``job.out``; see `annot.collect.run.Collector.convert`."""
        from annot.read.formats import load

        trace = self._trace(job)
        if not trace.exists():
            raise AnnotError(
                "torch.profiler wrote no trace: the first Python process of the command did not import torch, "
                "was killed, or ran with -I, -E or -S. For a program without PyTorch, use --collector nsys or "
                "recorder"
            )
        ranges = load(trace).ranges.height
        os.replace(trace, job.out)
        return Collected(ranges)

    def _trace(self, job: Job) -> Path:
        return job.parts / ("trace.json.gz" if job.out.suffix == ".gz" else "trace.json")
