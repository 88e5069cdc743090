"""Threads, processes and sudden deaths under the recorder."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from recorded import client, environment, record_client, rows, run

from annot.read.recording.export import assemble


def test_threads(tmp_path: Path) -> None:
    """Of eight threads at work at once every range is found, each on its own thread and nested right."""
    count = 6_000
    events, recording = record_client(tmp_path, "domain", "d", "ranges", count, "threads", 8)
    ranges = [row for row in events if row.kind == "push"]
    texts = Counter(row.text for row in ranges)
    expected = {f"thread {i}": count for i in range(8)} | {f"inner {i}": count // 2 for i in range(8)}
    assert texts == expected
    assert (recording.ranges, recording.threads, recording.open_ranges, recording.lost) == (12 * count, 8, 0, 0)
    by_thread: dict[int, list] = {}
    for row in ranges:
        by_thread.setdefault(row.thread, []).append(row)
    for own in by_thread.values():
        numbers = {row.text.split()[1] for row in own}
        assert len(numbers) == 1
        outer = [row for row in own if row.text.startswith("thread")]
        assert all(a.end <= b.start for a, b in itertools.pairwise(outer))
        inner = [row for row in own if row.text.startswith("inner")]
        assert all(o.start <= i.start and i.end <= o.end for o, i in zip(outer[1::2], inner, strict=True))


def test_short_threads_share_the_file(tmp_path: Path) -> None:
    """Three hundred threads of two ranges each are told apart and take little room."""
    events, recording = record_client(tmp_path, "domain", "d", "ranges", 2, "short-threads", 300)
    assert Counter(row.text for row in events if row.kind == "push") == {
        **{f"thread {i}": 2 for i in range(300)}, **{f"inner {i}": 1 for i in range(300)},
    }  # fmt: skip
    assert recording.ranges == 900
    assert sum(path.stat().st_size for path in (tmp_path / "parts").iterdir()) < 300_000


@pytest.mark.parametrize("fork", ["fork", "clone"])
def test_fork(tmp_path: Path, fork: str) -> None:
    """A forked child writes its own file; ranges that were open at the fork end in the parent only.

    The system call alone runs no handlers, and is noticed all the same.
    """
    forked = (fork, "push", "child", "pop", "pop", "joined")
    events, recording = record_client(tmp_path, "domain", "d", "push", "both", *forked, "push", "parent", "pop", "pop")
    ranges = {row.text: row for row in events if row.kind == "push"}
    assert ranges.keys() == {"both", "child", "parent"}
    assert ranges["both"].pid == ranges["parent"].pid != ranges["child"].pid
    assert {row.domain for row in ranges.values()} == {"d"}
    assert (recording.processes, recording.open_ranges, recording.unmatched_pops) == (2, 0, 1)


def test_children_of_clone_name_things(tmp_path: Path) -> None:
    """Strings, domains, categories and ends in a child that no handler knows of leave the parent's file as it was."""
    child = ("clone", "domain", "theirs", "name-category", 5, "child's", "push-registered", "in child", "pop", "joined")
    events, recording = record_client(
        tmp_path, "domain", "d", "push-registered", "before", *child, "name-category", 6, "parent's",
        "push-registered", "in parent", "pop", "pop", "domain", "later", "push", "last", "pop",
    )  # fmt: skip
    parent = events[0].pid
    assert {(row.text, row.domain, row.pid == parent) for row in events if row.kind == "push"} == {
        ("before", "d", True), ("in child", "theirs", False), ("in parent", "d", True), ("last", "later", True),
    }  # fmt: skip
    assert {(row.text, row.pid == parent) for row in events if row.kind == "category"} == {
        ("child's", False), ("parent's", True),
    }  # fmt: skip
    assert (recording.processes, recording.open_ranges, recording.unmatched_pops, recording.notes) == (2, 0, 0, [])


def test_clone_between_recordings(tmp_path: Path) -> None:
    """A child that is cloned while nothing records can be recorded, beside its parent."""
    for name in ("child", "parent"):
        (tmp_path / name).mkdir()
    result = run(
        None, "domain", "d", "push", "unseen", "clone", "record", tmp_path / "child", "push", "in child", "pop", "stop",
        "joined", "pop", "record", tmp_path / "parent", "push", "in parent", "pop", "stop",
    )  # fmt: skip
    assert result.returncode == 0
    for name in ("child", "parent"):
        assert assemble(tmp_path / name, tmp_path / f"{name}.sqlite").ranges == 1
        assert [row.text for row in rows(tmp_path / f"{name}.sqlite", "push")] == [f"in {name}"]


def test_domain_numbers_of_two_processes(tmp_path: Path) -> None:
    """The same domain number in two processes is two domains."""
    run(tmp_path / "parts", "domain", "one", "push", "a", "pop")
    run(tmp_path / "parts", "domain", "two", "push", "b", "pop")
    assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    domains = {row.text: row.domain for row in rows(tmp_path / "out.sqlite", "push")}
    assert domains == {"a": "one", "b": "two"}


def test_exec(tmp_path: Path) -> None:
    """A process that replaces itself keeps its id; the domains of both programs keep their names."""
    events, recording = record_client(
        tmp_path, "domain", "one", "push", "a", "pop", "exec", "domain", "two", "push", "b", "pop", "domain", "one",
        "push", "c", "pop",
    )  # fmt: skip
    ranges = [row for row in events if row.kind == "push"]
    assert {(row.text, row.domain) for row in ranges} == {("a", "one"), ("b", "two"), ("c", "one")}
    assert len({row.pid for row in ranges}) == recording.processes == 1
    assert [row.text for row in events if row.kind == "domain"] == ["one", "two"]


def test_leaving_without_cleanup(tmp_path: Path) -> None:
    """A process that leaves by _exit has lost nothing."""
    result = run(tmp_path / "parts", "push-a", "x", "pop-default", "push-a", "open", "leave")
    assert result.returncode == 7
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert [row.text for row in rows(tmp_path / "out.sqlite")] == ["x", "open"]
    assert recording.open_ranges == 1


def test_killed(tmp_path: Path) -> None:
    """What was pushed before kill -9 is in the profile, ended or not, with its names."""
    words = ["domain", "d", "ranges", "5000", "here", "push-registered", "open", "mark", "seen", "wait"]
    with subprocess.Popen(
        [client(), *words], env=environment(tmp_path / "parts"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while b"ready" not in process.stdout.readline():
            pass
        process.kill()
    assert process.returncode == -signal.SIGKILL
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    texts = Counter(row.text for row in rows(tmp_path / "out.sqlite", "push", "mark"))
    assert texts == {"thread 0": 5000, "inner 0": 2500, "open": 1, "seen": 1}
    assert (recording.open_ranges, recording.lost) == (1, 0)


def test_two_recordings_in_one_process(tmp_path: Path) -> None:
    """Each recording has what happened while it was on; names given before or between hold in both."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    result = run(
        None, "domain", "d", "name-category", 2, "early", "push-registered", "before", "pop",
        "record", tmp_path / "one", "push-registered", "first", "pop", "record", tmp_path / "two", "stop",
        "push-registered", "between", "pop", "push-registered", "left open",
        "record", tmp_path / "two", "push-registered", "second", "pop", "pop", "stop",
        "push-registered", "after", "pop",
    )  # fmt: skip
    assert result.returncode == 0
    found = {}
    for name in ("one", "two"):
        recording = assemble(tmp_path / name, tmp_path / f"{name}.sqlite")
        found[name] = [(row.kind, row.text, row.domain) for row in rows(tmp_path / f"{name}.sqlite")]
        assert (recording.unmatched_pops, recording.open_ranges) == (int(name == "two"), 0)
    names = [("domain", "d", "d"), ("category", "early", "d")]
    assert found == {"one": [*names, ("push", "first", "d")], "two": [*names, ("push", "second", "d")]}


def test_names_are_kept_once(tmp_path: Path) -> None:
    """What is registered again for each recording is in each file once; of names of one thing, the last."""
    words: list[object] = ["domain", "d"]
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        words += ["record", tmp_path / str(number), "domain", "d", "name-category", 1, f"{number // 10}"]
        words += [word for i in range(400) for word in ("push-registered", f"text {i}", "pop")]
        words += ["name-thread", f"thread {number}", "stop"]
    assert run(None, *words).returncode == 0
    sizes = {path.stat().st_size for number in range(20) for path in (tmp_path / str(number)).iterdir()}
    assert max(sizes) - min(sizes) <= 2 * 4096
    assemble(tmp_path / "19", tmp_path / "out.sqlite")
    named = [(row.kind, row.text) for row in rows(tmp_path / "out.sqlite") if row.kind != "push"]
    assert named == [("domain", "d"), ("category", "1"), ("thread", "thread 18"), ("thread", "thread 19")]
    assert [row.text for row in rows(tmp_path / "out.sqlite", "push")] == [f"text {i}" for i in range(400)]


def test_renaming_is_recorded_in_order(tmp_path: Path) -> None:
    """A category that changes its name, and changes it back, has a row for each change and none for a repetition."""
    names = ["a", "b", "b", "a"]
    words = [word for name in names for word in ("name-category", 1, name)]
    events, _ = record_client(tmp_path, "domain", "d", *words, "domain", "e", *words[:3], "name-category", 2, "a")
    assert [(row.domain, row.category, row.text) for row in events if row.kind == "category"] == [
        ("d", 1, "a"), ("d", 1, "b"), ("d", 1, "a"), ("e", 1, "a"), ("e", 2, "a"),
    ]  # fmt: skip


def test_many_names(tmp_path: Path) -> None:
    """Thousands of strings and renamings keep their texts, with and without a recording."""
    texts = [f"{i:x} " + "x" * (i % 40) for i in range(3000)]
    words = [word for text in texts for word in ("push-registered", text, "pop", "name-category", len(text), text)]
    (tmp_path / "parts").mkdir()
    script = ["domain", "d", *words, "record", tmp_path / "parts", "domain", "e", *words, *words, "stop"]
    assert run(None, *script).returncode == 0
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    found = rows(tmp_path / "out.sqlite", "push", "category")
    assert [row.text for row in found if row.kind == "push"] == 2 * texts
    last = {(row.domain, row.category): row.text for row in found if row.kind == "category"}
    assert last == {(domain, len(text)): text for domain in "de" for text in texts}
    assert recording.notes == []


@pytest.mark.slow
def test_stopping_while_threads_record(tmp_path: Path) -> None:
    """Starting and stopping forty times under threads at full speed crashes nothing and mixes nothing up."""
    folder = tmp_path / "parts"
    folder.mkdir()
    result = run(None, "domain", "d", "ranges", 10, "flap", folder, 40)
    assert (result.returncode, set(result.stdout.split())) == (0, {"0"})
    recording = assemble(folder, tmp_path / "out.sqlite")
    assert (len(list(folder.iterdir())), recording.lost, recording.threads) == (40, 0, 4)
    owners: dict[str, set[int]] = {}
    for row in rows(tmp_path / "out.sqlite", "push"):
        owners.setdefault(row.text, set()).add(row.thread)
    assert owners.keys() == {f"{what} {i}" for what in ("thread", "inner") for i in range(4)}
    assert all(len(threads) == 1 for threads in owners.values())


def test_starting_twice_or_nowhere_is_refused(tmp_path: Path) -> None:
    """Starting while a recording is on, or into a folder that is not there, fails and changes nothing."""
    (tmp_path / "one").mkdir()
    result = run(
        None, "record", tmp_path / "none", "record", tmp_path / "one", "record", tmp_path / "one", "push-a", "x"
    )
    codes = [os.strerror(int(line)) for line in result.stdout.split()[:3]]
    assert codes == ["No such file or directory", "Success", "Operation already in progress"]
    assert assemble(tmp_path / "one", tmp_path / "out.sqlite").ranges == 1


def test_process_without_calls_leaves_nothing(tmp_path: Path) -> None:
    """A recording in which no NVTX call was made is an empty profile."""
    assert run(tmp_path / "parts").returncode == 0
    recording = assemble(tmp_path / "parts", tmp_path / "out.sqlite")
    assert (recording.events, recording.processes, rows(tmp_path / "out.sqlite")) == (0, 0, [])
