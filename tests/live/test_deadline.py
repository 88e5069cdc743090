"""Programs that do not end after their measured steps: the process ends anyway, with its result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from measured import measured

NET = """
import atexit, multiprocessing, queue, signal, threading, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(print, "atexit")
def step():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
def train():
    while True:
        step()
"""
FULL_QUEUE = """
batches = queue.Queue(1)
def load():
    while True:
        batches.put(torch.randn(8, 4))
threading.Thread(target=load, name="loader").start()
try:
    while True:
        batches.get()
        step()
finally:
    print("finally")
"""
CAUGHT = """
while True:
    try:
        train()
    except BaseException:
        pass
"""
UNINTERRUPTIBLE = """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
threading.Thread(target=train).start()
threading.Event().wait()
"""
WAITING_AT_EXIT = """
atexit.register(threading.Event().wait)
train()
"""


NO_SECONDS = "import annot.live.deadline; annot.live.deadline.{} = 0\n"


@pytest.mark.parametrize("program", [CAUGHT, UNINTERRUPTIBLE, WAITING_AT_EXIT])
def test_a_process_ends_with_its_result(program: str) -> None:
    """A process without an end runs into the timeout of `forked.python`."""
    result, process = measured(NO_SECONDS.format("PROFILED_SECONDS") + NET + program, losses=2)
    assert process.returncode == 0
    assert (result.ended, result.error, len(result.step_ns), len(result.losses)) == ("process", "", 4, 2)
    assert "the program has not ended 0 s after its measured steps, so annot ends it" in process.stderr


def test_the_program_cleans_up_if_only_other_threads_wait() -> None:
    result, process = measured(NO_SECONDS.format("THREAD_SECONDS") + NET + FULL_QUEUE, losses=2)
    assert process.returncode == 0
    assert (result.ended, result.error, len(result.step_ns), len(result.losses)) == ("process", "", 4, 2)
    assert process.stdout == "finally\natexit\n"
    assert "the program has not ended 0 s after the end of its main thread: the thread loader" in process.stderr


def test_child_processes_do_not_outlive_it() -> None:
    child = "multiprocessing.get_context('fork').Process(target=signal.pause)"
    program = f"{NET}\nchild = {child}\nchild.start()\nprint('child', child.pid, flush=True)\ntrain()"
    result, process = measured(NO_SECONDS.format("PROGRAM_SECONDS") + program)
    assert (process.returncode, result.ended) == (0, "process")
    number = int(process.stdout.split()[1])
    while _lives(number):
        os.sched_yield()


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
