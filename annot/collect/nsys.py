"""Collector that runs the command under Nsight Systems and exports the report to SQLite."""

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
from pathlib import Path
from typing import IO

from annot.collect import nsys_launcher
from annot.collect.run import SIGNALED, Collected, Job, Relay, environment, nothing_recorded, shell_status
from annot.errors import AnnotError
from annot.util.installed_tools import Nsys, has_gpu_driver, loses_nvtx_package, nvtx_version_of, python_of

_GPU_TRACES = "cuda,nvtx,cudnn,cublas"
_ACTIVITIES = {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")}
# nsys 2022.4 sometimes exits with "End of file" before it starts the command; a retry works.
_STARTS = 3


class NsysCollector:
    """Collector that runs ``nsys profile`` and ``nsys export``; the ``.nsys-rep`` is kept beside the profile."""

    name = "nsys"
    suffix = ".sqlite"

    def __init__(self, nsys: Nsys) -> None:
        self.nsys = nsys

    def run(self, job: Job) -> int:
        """Run the command under ``nsys profile``; see `annot.collect.run.Collector.run`."""
        self._warn_about_lost_ranges(job)
        profile = self.profile_command(job)
        job.say(f"running {shlex.join([*profile, *job.command])}")
        with Relay(shared_group=False) as relay:
            for _ in range(_STARTS):
                status = _run_under(profile, job, relay)
                if status is not None:
                    return status
        raise AnnotError(f"nsys did not start the command: {_last_lines(job, None)}")

    def convert(self, job: Job, status: int) -> Collected:
        """Import the capture if needed, export it, and keep the report; see `Collector.convert`."""
        report, exported = job.parts / "report.nsys-rep", job.parts / "report.sqlite"
        notes = [f"Nsight Systems: {line}" for line in _log_lines(job) if line.upper().startswith("WARNING")]
        if status > SIGNALED:
            # nsys 2022.4 loses up to some thousand ranges of a process that ends by a signal or an uncaught
            # KeyboardInterrupt.
            lost = "Nsight Systems may lose its last ranges; use --collector recorder"
            notes.append(f"signal {status - SIGNALED} ended the command. {lost}")
        if not report.exists():
            self._import(job, report)
        job.say(f"exporting to {job.out}")
        export = [str(self.nsys.path), "export", "--type=sqlite", "--quiet=true", "--force-overwrite=true"]
        _call([*export, f"--output={exported}", str(report)], exported, job)
        ranges, activities = _contents(exported)
        if not ranges and not activities:
            killed = "and Nsight Systems recorded no range of it" if status > SIGNALED else ""
            return nothing_recorded(job, *notes, ending=killed)
        _add_program(exported, job)
        os.replace(report, report_of(job.out))
        os.replace(exported, job.out)
        return Collected(ranges, tuple(notes))

    def profile_command(self, job: Job) -> list[str]:
        """Return the ``nsys profile`` command line, without the profiled command."""
        traces = _GPU_TRACES if has_gpu_driver() else "nvtx"
        output = str(job.parts / "report").replace("%", "%%")
        options = [f"--trace={traces}", "--sample=none", "--cpuctxsw=none", "--wait=primary", "--kill=none"]
        # Workers of a DataLoader are forked and never call exec; without this option their ranges are missing.
        options += ["--trace-fork-before-exec=true", "--force-overwrite=true", f"--output={output}"]
        return [str(self.nsys.path), "profile", *options]

    def _warn_about_lost_ranges(self, job: Job) -> None:
        python = python_of(job.executable)
        version = nvtx_version_of(python) if python and not self.nsys.knows_domain_is_enabled else None
        if loses_nvtx_package(self.nsys, version):
            job.say(
                f"Nsight Systems {self.nsys.version_text} does not record ranges of the nvtx package {version}. "
                "annot's own ranges are recorded. For ranges of other libraries, use "
                f"`{python} -m pip install nvtx==0.2.11` or a newer Nsight Systems"
            )

    def _import(self, job: Job, report: Path) -> None:
        stream, importer = report.with_suffix(".qdstrm"), self.nsys.importer()
        if not stream.exists():
            raise AnnotError(f"Nsight Systems wrote no report: {_last_lines(job, None)}")
        if importer is None:
            raise AnnotError(
                f"Nsight Systems wrote {stream}, but its importer is not installed: install the full package "
                "(Debian: apt install nsight-systems), or run QdstrmImporter on another machine"
            )
        job.say(f"importing with {importer}")
        _call([str(importer), f"--input-file={stream}", f"--output-file={report}"], report, job)


def report_of(out: Path) -> Path:
    """Return the path of the Nsight Systems report of a profile: ``run.nsys-rep`` for ``run.sqlite``."""
    return out.with_suffix(".nsys-rep")


class _Streams:
    """Passes stdout and stderr of this process to the script over a socket.

    The script then writes to the terminal directly. Helpers of Nsight Systems that outlive the script do not keep
    these streams open.
    """

    def __enter__(self) -> _Streams:
        self._parent_end, self._child_end = socket.socketpair()
        self._child_end.set_inheritable(True)
        socket.send_fds(self._parent_end, [b"streams"], [1, 2])
        return self

    def __exit__(self, *error: object) -> None:
        # Streams left in the socket are closed: a helper that inherited it would keep our output open forever.
        self._child_end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for stream in socket.recv_fds(self._child_end, 64, 2)[1]:
                os.close(stream)
        self._parent_end.close()
        self._child_end.close()

    def launcher(self) -> list[str]:
        """Return the command line of the launcher, which executes the script."""
        return [sys.executable, "-I", "-S", str(nsys_launcher.__file__), str(self._child_end.fileno())]

    def script_id(self, nsys: int) -> int | None:
        """Wait for the script and return its process id; None if Nsight Systems exits before it starts."""
        ended = os.pidfd_open(nsys)
        try:
            waiting = select.poll()
            for descriptor in (self._parent_end.fileno(), ended):
                waiting.register(descriptor, select.POLLIN)
            started = self._parent_end.fileno() in dict(waiting.poll())
            return int(self._parent_end.recv(64)) if started else None
        finally:
            os.close(ended)


def _run_under(profile: list[str], job: Job, relay: Relay) -> int | None:
    """Run the command once and return its status; None if Nsight Systems failed before the command started."""
    with _Streams() as streams, _log_of(job) as log:
        command = [*profile, *streams.launcher(), job.executable, *job.command]
        # In a separate process group, because nsys kills the script on Ctrl-C instead of letting it exit.
        nsys = subprocess.Popen(command, stdout=log, stderr=log, close_fds=False, process_group=0, env=environment(job))
        script = streams.script_id(nsys.pid)
        if script is None:
            nsys.wait()
            return None
        relay.to(lambda number: _send(script, number))
        return shell_status(nsys.wait())


def _log_of(job: Job) -> IO[bytes]:
    """Open the log of Nsight Systems."""
    try:
        return open(job.parts / "nsys.log", "wb")
    except OSError as error:
        raise AnnotError(f"{job.out} cannot be written: {job.parts}: {error.strerror}") from None


def _send(script: int, number: int) -> None:
    """Forward a signal. nsys runs the script in a new session, which Ctrl-C in the terminal does not reach."""
    if number in (signal.SIGINT, signal.SIGQUIT):
        os.killpg(script, number)
    else:
        os.kill(script, number)


def _call(command: list[str], result: Path, job: Job) -> None:
    with open(job.parts / "nsys.log", "ab") as log:
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if not result.exists():
        raise AnnotError(f"{shlex.join(command)} failed: {_last_lines(job, status)}")


def _log_lines(job: Job) -> list[str]:
    text = (job.parts / "nsys.log").read_text(encoding="utf-8", errors="replace").replace("\r", "\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _last_lines(job: Job, status: int | None) -> str:
    lines = " / ".join(_log_lines(job)[-3:])
    return lines or (f"exit status {status}" if status is not None else "no output")


def _add_program(exported: Path, job: Job) -> None:
    """Add what ran to an export, as the recorder does. A failure costs only the command in advice."""
    rows = [(f"ANNOT_{name.upper()}", text) for name, text in job.program.facts().items()]
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(exported)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT)")
        database.executemany("INSERT INTO META_DATA_CAPTURE (name, value) VALUES (?, ?)", rows)


def _contents(exported: Path) -> tuple[int, bool]:
    """Return the number of ranges in an export, and whether it has GPU activities."""
    try:
        with contextlib.closing(sqlite3.connect(exported)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            ranges = 0
            if "NVTX_EVENTS" in tables:
                (ranges,) = database.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)").fetchone()
            used = (database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in _ACTIVITIES & tables)
            return int(ranges), any(used)
    except sqlite3.Error as error:
        raise AnnotError(f"the export {exported} is not a readable SQLite file: {error}") from None
