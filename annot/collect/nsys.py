"""The collector that runs the command under Nsight Systems and exports what that wrote."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from annot.collect import launch
from annot.collect.relay import Relay
from annot.collect.run import Collected, Job, shell_status
from annot.collect.tools import Nsys, has_gpu_driver, loses_nvtx_package, nvtx_version_of, python_of
from annot.errors import AnnotError

__all__ = ["NsysCollector", "report_of"]

_GPU_TRACES = "cuda,nvtx,cudnn,cublas"
# Seen with 2022.4: now and then it ends with "End of file" before it starts the command, and works when asked again.
_STARTS = 3


class NsysCollector:
    """Runs ``nsys profile`` and ``nsys export``; the ``.nsys-rep`` stays beside the profile."""

    name = "nsys"
    suffix = ".sqlite"

    def __init__(self, nsys: Nsys) -> None:
        """Use one installed Nsight Systems."""
        self.nsys = nsys

    def run(self, job: Job) -> int:
        """Run the command under ``nsys profile``; see `annot.collect.run.Collector.run`."""
        self._warn_of_lost_ranges(job)
        profile = self.profile_command(job)
        job.say(f"running {shlex.join([*profile, *job.command])}")
        with Relay(shared_group=False) as relay:
            for _ in range(_STARTS):
                status = _run_under(profile, job, relay)
                if status is not None:
                    return status
        raise AnnotError(f"nsys did not start the command: {_last_lines(job, None)}")

    def convert(self, job: Job, status: int) -> Collected:
        """Import if Nsight Systems did not, export, and keep the report; see `Collector.convert`."""
        report, exported = job.parts / "report.nsys-rep", job.parts / "report.sqlite"
        notes = [*_warnings(job), *_lost_by_signal(status)]
        if not report.exists():
            self._import(job, report)
        job.say(f"exporting to {job.out}")
        export = [str(self.nsys.path), "export", "--type=sqlite", "--quiet=true", "--force-overwrite=true"]
        _call([*export, f"--output={exported}", str(report)], exported, job)
        ranges = _count_ranges(exported)
        os.replace(report, report_of(job.out))
        os.replace(exported, job.out)
        return Collected(ranges, tuple(notes))

    def profile_command(self, job: Job) -> list[str]:
        """Return the ``nsys profile`` command, up to the command that it runs."""
        traces = _GPU_TRACES if has_gpu_driver() else "nvtx"
        output = str(job.parts / "report").replace("%", "%%")
        options = [f"--trace={traces}", "--sample=none", "--cpuctxsw=none", "--wait=primary", "--kill=none"]
        return [str(self.nsys.path), "profile", *options, "--force-overwrite=true", f"--output={output}"]

    def _warn_of_lost_ranges(self, job: Job) -> None:
        python = python_of(job.executable)
        version = nvtx_version_of(python) if python and not self.nsys.knows_domain_is_enabled else None
        if loses_nvtx_package(self.nsys, version):
            job.say(
                f"Nsight Systems {self.nsys.version_text} does not see ranges that go through the nvtx "
                f"package {version}: annot's own will be there, those of other libraries need "
                f"`{python} -m pip install nvtx==0.2.11` or a newer Nsight Systems"
            )

    def _import(self, job: Job, report: Path) -> None:
        stream, importer = report.with_suffix(".qdstrm"), self.nsys.importer()
        if not stream.exists():
            raise AnnotError(f"Nsight Systems wrote no report: {_last_lines(job, None)}")
        if importer is None:
            raise AnnotError(
                f"Nsight Systems left {stream} but its importer is not installed: install the whole package "
                "(Debian: apt install nsight-systems), or import it with QdstrmImporter on another machine"
            )
        job.say(f"importing with {importer}")
        _call([str(importer), f"--input-file={stream}", f"--output-file={report}"], report, job)


def report_of(out: Path) -> Path:
    """Return where the report of Nsight Systems is kept for a profile.

    Example:
        >>> report_of(Path("run.sqlite"))
        PosixPath('run.nsys-rep')
    """
    return out.with_suffix(".nsys-rep")


class _Streams:
    """Hands this process's output to the script, past Nsight Systems and its helpers, which may outlive it."""

    def __enter__(self) -> _Streams:
        self._own, self._given = socket.socketpair()
        self._given.set_inheritable(True)
        socket.send_fds(self._own, [b"streams"], [1, 2])
        return self

    def __exit__(self, *error: object) -> None:
        self._take_back()
        self._own.close()
        self._given.close()

    def launcher(self) -> list[str]:
        """Return the start of the command that becomes the script."""
        return [sys.executable, "-I", "-S", str(launch.__file__), str(self._given.fileno())]

    def script_id(self, nsys: int) -> int | None:
        """Wait for the script to start; return its process id, None if Nsight Systems ends without it."""
        ended = os.pidfd_open(nsys)
        try:
            waiting = select.poll()
            for descriptor in (self._own.fileno(), ended):
                waiting.register(descriptor, select.POLLIN)
            started = self._own.fileno() in dict(waiting.poll())
            return int(self._own.recv(64)) if started else None
        finally:
            os.close(ended)

    def _take_back(self) -> None:
        """Leave no stream in the socket: a helper that holds it would keep our output open for ever."""
        self._given.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for stream in socket.recv_fds(self._given, 64, 2)[1]:
                os.close(stream)


def _run_under(profile: list[str], job: Job, relay: Relay) -> int | None:
    """Run the command once; return its status, None if Nsight Systems failed before it began."""
    with _Streams() as streams, open(job.parts / "nsys.log", "wb") as log:
        command = [*profile, *streams.launcher(), job.executable, *job.command]
        # In a group of its own: at Ctrl-C Nsight Systems would kill the script, not let it end.
        nsys = subprocess.Popen(command, stdout=log, stderr=log, close_fds=False, process_group=0)
        script = streams.script_id(nsys.pid)
        if script is None:
            nsys.wait()
            return None
        relay.to(lambda number: _send(script, number))
        return shell_status(nsys.wait())


def _send(script: int, number: int) -> None:
    """Pass a signal on: Nsight Systems starts a session for the script, which Ctrl-C does not reach."""
    if number in (signal.SIGINT, signal.SIGQUIT):
        os.killpg(script, number)
    else:
        os.kill(script, number)


def _call(command: list[str], product: Path, job: Job) -> None:
    with open(job.parts / "nsys.log", "ab") as log:
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if not product.exists():
        raise AnnotError(f"{shlex.join(command)} failed: {_last_lines(job, status)}")


def _log_lines(job: Job) -> list[str]:
    text = (job.parts / "nsys.log").read_text(encoding="utf-8", errors="replace").replace("\r", "\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _last_lines(job: Job, status: int | None) -> str:
    said = " / ".join(_log_lines(job)[-3:])
    return said or (f"it ended with status {status}" if status is not None else "it said nothing")


def _warnings(job: Job) -> list[str]:
    return [f"Nsight Systems: {line}" for line in _log_lines(job) if line.upper().startswith("WARNING")]


def _lost_by_signal(status: int) -> list[str]:
    # Measured with 2022.4: of a process that a signal ends, also by an uncaught KeyboardInterrupt, up to some
    # thousand ranges never arrive.
    if status <= 128:
        return []
    return [f"signal {status - 128} ended the command: Nsight Systems may miss its last ranges, the recorder not"]


def _count_ranges(exported: Path) -> int:
    with _open(exported) as database:
        tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchall()
        if not tables:
            return 0
        (count,) = database.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)").fetchone()
        return int(count)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            yield database
    except sqlite3.Error as error:
        raise AnnotError(f"the export {path} is not a readable SQLite file: {error}") from None
