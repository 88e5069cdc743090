"""Child processes that start with PyTorch imported: a server imports it once, and forks for each program.

A program runs as with ``python -c PROGRAM`` or ``python SCRIPT``, in a process of its own that ends as usual. Use
`subprocess` for programs that check what is imported, that replace the allocator, or that need a fresh interpreter.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PRELOADED = ("torch", "torch._dynamo", "numpy", "polars")


def python(
    program: str | Path, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None,
    timeout: int = 300,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a program and wait for it.

    Args:
        program: source code, or the path of a script.
        arguments: ``sys.argv[1:]`` of the program.
        cwd: folder to run in, by default the current one.
        env: its environment variables, by default those of this process.
        timeout: seconds until the program is killed.
    """
    words = [str(program), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        job = {
            "words": words, "script": isinstance(program, Path), "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env), "timeout": timeout, "outputs": list(map(str, outputs)),
        }  # fmt: skip
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, status, *[path.read_text() for path in outputs])


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the server of this process."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ANNOT_", "NVTX_"))}
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    """Fork for each job, and print the exit status of the child."""
    for name in _PRELOADED:
        __import__(name)
    gc.freeze()  # otherwise each child copies, at its end, all memory that the garbage collector visits
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _become(job)
            return
        print(_wait(child, job["timeout"]), flush=True)


def _wait(child: int, timeout: int) -> int:
    """Return the exit status of a child, which is negative after a signal."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(timeout)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(0)
    return status


def _become(job: dict[str, Any]) -> None:
    """Turn this process into the program."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, path in enumerate(("/dev/null", *job["outputs"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    program, *arguments = job["words"]
    sys.argv = [program if job["script"] else "-c", *arguments]
    first = str(Path(program).parent) if job["script"] else ""
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if job["script"]:
        runpy.run_path(program, run_name="__main__")
    else:
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    _serve()
