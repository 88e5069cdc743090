from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import annot, last_line

from annot import load

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

TRAIN = """
import os, sys
import torch
import annot
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
with annot.emit_ranges(model), annot.trace("my part"):
    model(torch.ones(2, 3)).sum().backward()
"""


def run(script: Path, *arguments: str, options: tuple[str, ...] = (), **environ: str):
    words = ["run", "--collector", "torch", "--no-report", "-o", "out.json", *options, "--", sys.executable, script]
    return annot(*words, *arguments, cwd=script.parent, **environ)


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    script = folder / name
    script.write_text(text)
    return script


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        pytest.param("", 0, marks=pytest.mark.slow),
        ("raise ValueError('broken')", 1),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
        pytest.param("import signal; signal.raise_signal(signal.SIGINT)", 130, marks=pytest.mark.slow),
    ],
)
def test_trace_is_there_however_the_script_ends(ending, status, tmp_path):
    """Layer ranges, forward and backward, and the user's own are in the trace; status and output are the script's."""
    script = written(tmp_path, f"{TRAIN}\nprint('done', sys.argv[1:], flush=True)\n{ending}")
    done = run(script, "a b")
    assert done.returncode == status, done.stderr
    assert done.stdout == b"done ['a b']\n"
    texts = load(tmp_path / "out.json").ranges["text"].to_list()
    assert {"0 Linear [2,3]f32 out=4 |fwd", "0 Linear [2,3]f32 out=4 grad=weight |bwd", "my part"} <= set(texts)
    assert last_line(done.stderr) == "annot: next: annot report out.json --by advice"


_WARNS = """
import warnings, wrapt
def warn_at_start(module):
    prepare = module._KinetoProfile.prepare_trace
    def prepare_trace(profiler):
        warnings.warn("Profiler clears events at the end of each cycle.", stacklevel=2)
        prepare(profiler)
    module._KinetoProfile.prepare_trace = prepare_trace
wrapt.register_post_import_hook(warn_at_start, "torch.profiler.profiler")
"""


def test_warnings_of_the_profiler_stay_out_of_the_run(tmp_path):
    """PyTorch 2.10 and 2.11 warn whenever a profiler starts. The script's own warnings are printed."""
    script = written(tmp_path, f"{_WARNS}{TRAIN}warnings.warn('mine')")
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert b"UserWarning: mine" in done.stderr
    assert b"clears events" not in done.stderr


@pytest.mark.slow
def test_trace_is_compressed_by_name_and_by_default(tmp_path):
    """Without -o the trace is annot1.json.gz, compressed; torch's own viewers read both."""
    script = written(tmp_path, TRAIN)
    done = annot("run", "--collector", "torch", "--", sys.executable, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "annot1.json.gz").read_bytes().startswith(b"\x1f\x8b")
    run(script)
    assert json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]


@pytest.mark.slow
def test_every_thread_is_profiled(tmp_path):
    """Ranges of a thread of the user's are in the trace."""
    thread = "import threading\ndef work():\n    with annot.trace('in a thread'): pass\n"
    start = "worker = threading.Thread(target=work); worker.start(); worker.join()"
    run(written(tmp_path, TRAIN + thread + start))
    assert "in a thread" in load(tmp_path / "out.json").ranges["text"].to_list()


@pytest.mark.slow
def test_children_of_the_script_are_left_alone(tmp_path):
    """A child process, started or forked, neither profiles nor writes, and ends as it would."""
    written(tmp_path, "import torch, annot\nwith annot.trace('child'): torch.ones(1)\n", "child.py")
    script = written(
        tmp_path,
        TRAIN + "import subprocess\nsubprocess.run([sys.executable, 'child.py'], check=True)\n"
        "child = os.fork()\nif not child: sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
    )
    done = run(script)
    assert (done.returncode, done.stdout) == (0, b"7\n"), done.stderr
    assert "child" not in load(tmp_path / "out.json").ranges["text"].to_list()
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "child.py", "out.json"}


@pytest.mark.slow
def test_module_path_and_environment_are_the_users(tmp_path):
    """The script finds its own PYTHONPATH, module path and sitecustomize."""
    site = tmp_path / "site"
    site.mkdir()
    written(site, "import sys; sys.own_site = 'own site'", "sitecustomize.py")
    names = "[name for name in os.environ if 'ANNOT' in name and name != 'ANNOT_FUZZ']"
    ask = f"print(sys.own_site, os.environ['PYTHONPATH'], sys.path, {names})"
    script = written(tmp_path, f"import os, sys; {ask}")
    environ = {**os.environ, "PYTHONPATH": str(site)}
    without = subprocess.run([sys.executable, script], cwd=tmp_path, env=environ, capture_output=True, check=True)
    done = run(script, PYTHONPATH=str(site))
    assert done.stdout.startswith(b"own site ")
    assert done.stdout == without.stdout.replace(b"[]\n", b"['ANNOT_ENABLE']\n")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-I", "-E"])
def test_script_that_was_not_profiled_keeps_its_status(option, tmp_path):
    """Where Python was told to ignore its environment the script runs, and one sentence says why there is no trace."""
    script = written(tmp_path, "import sys; sys.exit(5)")
    words = ["run", "--collector", "torch", "-o", "out.json", "--", sys.executable, option, script]
    done = annot(*words, cwd=tmp_path)
    assert done.returncode == 5
    assert "wrote no trace" in last_line(done.stderr)
    assert not (tmp_path / "out.json").exists()


def test_command_that_is_not_python_is_refused(tmp_path):
    """--collector torch with another program is one sentence, and nothing runs."""
    done = annot("run", "--collector", "torch", "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 1
    assert "touch is not a Python command" in last_line(done.stderr)
    assert list(tmp_path.iterdir()) == []
