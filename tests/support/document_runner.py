"""Run each section of the documents in a child process. Started by `documents.run_all`.

The parent imports slow modules, and opens no range: NVTX loads its tool at the first call of a process, which must
happen in the child, under the child's recorder.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from document_names import names

import annot
from annot.cli.main import main as command_line

# `annot run` and `annot doctor` start other processes.
_IN_PROCESS = re.compile(r"annot (?!(?:run|doctor) )[^*|<>&;]*(?: #.*)?")

# PyTorch imports torch._dynamo with the first optimizer, which takes two seconds in each child.
_FRAMEWORKS = {"torch": ("torch", "torch._dynamo"), "tensorflow": ("tensorflow",)}


def main(framework: str) -> None:
    """Run the jobs from standard input and write the results to the folder of the first job."""
    jobs = json.load(sys.stdin)
    importlib.import_module("annot.cli.report")  # and polars
    if framework and any(block["language"] == "python" for job in jobs for block in job["blocks"]):
        for name in _FRAMEWORKS[framework]:
            importlib.import_module(name)
    for job in jobs:
        child = os.fork()
        if not child:
            _run(job, framework, Path(jobs[0]["folder"]) / "results.jsonl")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


def _run(job: dict[str, Any], framework: str, results: Path) -> None:
    os.chdir(job["folder"])
    os.environ["PATH"] = f"{job['folder']}/bin:{os.environ['PATH']}"
    result: dict[str, Any] = {"name": job["name"], "error": None, "ranges": None, "outputs": []}
    code = "\n".join(block["text"] for block in job["blocks"] if block["language"] == "python")
    try:
        if not code or "record(" in code:
            _run_blocks(job["blocks"], framework, code, result)
        else:
            with annot.record("document.sqlite") as recorder:
                _run_blocks(job["blocks"], framework, code, result)
            result["ranges"] = recorder.recording.ranges if recorder.recording else 0
    except BaseException:
        result["error"] = traceback.format_exc()
    with results.open("a") as file:
        file.write(json.dumps(result) + "\n")


def _run_blocks(blocks: list[dict[str, Any]], framework: str, code: str, result: dict[str, Any]) -> None:
    namespace = names(framework, code) if code else {}
    for block in blocks:
        if block["language"] == "console":
            result["outputs"].append("".join(map(_command, re.findall(r"^\$ (.*)$", block["text"], re.M))))
        elif block["language"] == "python" and block["text"].startswith(">>>"):
            _examples(block["text"], namespace)
        elif block["language"] == "python":
            exec(compile(block["text"], "document", "exec"), namespace)


def _examples(text: str, namespace: dict[str, Any]) -> None:
    failures: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, namespace, "document", None, 0)
    doctest.DocTestRunner().run(test, out=failures.append)
    if failures:
        raise AssertionError("".join(failures))


def _command(line: str) -> str:
    return _in_process(shlex.split(line, comments=True)[1:]) if _IN_PROCESS.fullmatch(line) else _in_shell(line)


def _in_process(words: list[str]) -> str:
    """Run a command of annot in this process and return its output."""
    printed, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        status = command_line(words)
    if status:
        raise AssertionError(f"annot {shlex.join(words)}\nended with {status}:\n{errors.getvalue()}")
    printed.seek(0)
    return printed.read()


def _in_shell(line: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NVTX_INJECTION")}
    done = subprocess.run(["bash", "-c", line], env=environ, text=True, capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"{line}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1])
