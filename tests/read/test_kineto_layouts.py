"""Trace events out of JSON text in any layout, compared with what the standard library reads."""

from __future__ import annotations

import codecs
import gzip
import json
import random
import subprocess
import sys
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_inputs import examples

from annot import AnnotError, load
from annot.read.kineto.trace_events import TraceFile

FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id")
NASTY = st.sampled_from(["},{", '"}, {"', "\\", '\\"', "{[", "]}", "é漢\U0001f600", "\n\t", "traceEvents", "\x7f", ""])
TEXT = st.lists(NASTY | st.text(max_size=6), max_size=4).map("".join)
TIME = st.integers(-(10**12), 10**15) | st.integers(-(10**12), 10**12).map(lambda value: value / 1000)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XisfM")},
    optional={
        "cat": TEXT, "name": TEXT, "pid": st.integers(0, 2**40) | TEXT.filter(lambda text: not is_number(text)),
        "tid": st.integers(-5, 2**63 - 1), "ts": TIME, "dur": TIME, "id": st.integers(0, 99),
        "args": st.dictionaries(TEXT, NESTED, max_size=3), "more": NESTED,
    },
)  # fmt: skip


def is_number(text: str) -> bool:
    """Numbers given as text are read as numbers, which the reference does not."""
    try:
        float(text)
    except ValueError:
        return text.strip().lower() == "null"
    return True


def events_of(path: Path, **options: Any) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    with TraceFile(path, **options) as trace:
        found = [
            (*(as_json(getattr(event, name)) for name in FIELDS), json.loads(bytes(event.args)))
            for block in trace.blocks()
            for event in block
        ]
        return found, trace.top


def as_json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def reference(text: str) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    content = json.loads(text)
    events = content if isinstance(content, list) else content["traceEvents"]
    blank = {"ph": "", "cat": "", "name": ""}
    found = [(*(event.get(name, blank.get(name)) for name in FIELDS), event.get("args", {})) for event in events]
    return found, {} if isinstance(content, list) else {k: v for k, v in content.items() if k != "traceEvents"}


def in_kinetos_layout(content: dict[str, Any]) -> str:
    """Events over several lines, the short arguments on one, as torch writes them."""
    events = ",\n  ".join(
        json.dumps(event, indent=4).replace('"args": {\n', '"args": {') for event in content["traceEvents"]
    )
    others = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key != "traceEvents"]
    return "\n{\n  " + ",\n  ".join([*others[::2], f'"traceEvents": [\n  {events}\n  ]', *others[1::2]]) + "\n}\n"


LAYOUTS = {
    "kineto": in_kinetos_layout,
    "one line": json.dumps,
    "no space": lambda content: json.dumps(content, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda content: json.dumps(content, indent=3, ensure_ascii=False),
    "odd space": lambda content: json.dumps(content, separators=(" ,\r\n\t", " :\n ")),
    "bare": lambda content: json.dumps(content["traceEvents"], indent=1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(EVENT, max_size=12),
    top=st.dictionaries(TEXT.filter(lambda key: key != "traceEvents"), NESTED, max_size=4),
    block=st.integers(1, 700),
    order=st.randoms(use_true_random=False),
)
def test_any_layout_is_what_json_load_reads(layout, events, top, block, order, tmp_path):
    """Whatever the layout, the order of keys and the size of blocks: the same events and the same keys beside them."""
    content = {"traceEvents": [shuffled(event, order) for event in events], **top}
    text = LAYOUTS[layout](shuffled(content, order))
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode())
    assert events_of(path, block=block) == reference(text)


def shuffled(content: dict[str, Any], order: random.Random) -> dict[str, Any]:
    keys = list(content)
    order.shuffle(keys)
    return {key: content[key] for key in keys}


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENT, min_size=1, max_size=6), block=st.integers(1, 300), data=st.data())
def test_every_cut_is_told(events, block, data, tmp_path):
    """A trace without its last bytes, wherever it is cut, is an error in one sentence."""
    text = json.dumps({"traceEvents": events, "schemaVersion": 1}).encode()
    path = tmp_path / "cut.json"
    path.write_bytes(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(AnnotError, match=r"cut\.json is not a complete trace") as caught:
        events_of(path, block=block)
    assert "\n" not in str(caught.value)


def test_what_json_load_accepts_beyond_json(tmp_path):
    """NaN, infinities and control characters, which some releases wrote, cost only the events whose times they are."""
    path = tmp_path / "trace.json"
    path.write_bytes(
        b'{"traceEvents": [{"ph": "X", "name": "a\tb", "cat": "kernel", "ts": 1.5, "dur": 2, "args": {"bandwidth": NaN,'
        b' "stream": 7}}, {"ph": "X", "name": "\\ud800", "cat": "cpu_op", "ts": 3, "dur": Infinity}]}'
    )
    assert load(path).meta["notes"] == ["annot skipped 1 event without valid start and end times."]
    path.write_bytes(path.read_bytes().replace(b"Infinity", b"0.001"))
    profile = load(path)
    assert profile.kernels.select("name", "start", "end", "stream").rows() == [("a\tb", 1500, 3500, 7)]
    assert profile.ranges.select("start", "end").rows() == [(3000, 3001)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param('{"traceEvents": [{"ph": "X"}]} {}', "unexpected data after the end", id="two values"),
        pytest.param('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "expected ,", id="no comma"),
        pytest.param(
            '{"traceEvents": [{"ph": "X", "ts": [1]}]}', "annot skipped 1 invalid event", id="time that is a list"
        ),
        pytest.param('{"traceEvents": [' + "[" * 100_000 + "]}", "an incomplete event", id="deep"),
        pytest.param('{"schemaVersion": 1, "a": ' + "[" * 100_000, "an incomplete value", id="deep beside"),
        pytest.param('{"traceEvents": [{"name": "' + "x" * (1 << 25), "an incomplete event", id="endless text"),
        pytest.param(
            '{"traceEvents": [{"ph": "X", "ts": 1e999999999, "dur": 1}]}',
            "1 event without valid start and end times",
            id="huge",
        ),
        pytest.param(
            '{"traceEvents": [{"ph": "X", "ts": NaN, "dur": 1}]}', "1 event without valid start and end times", id="NaN"
        ),
        pytest.param('{"schemaVersion": 1, "traceEvents": []}', "without operations, ranges", id="nothing"),
        pytest.param(
            '{"traceEvents": [{"ph": "X", "ts": 1, "dur": 2}], "traceEvents": [{"ph": "X", "ts": 1, "dur": 2}]}',
            "a second list traceEvents",
            id="two lists",
        ),
        pytest.param('{"traceEvents": [], "baseTimeNanoseconds": 1e300}', "number", id="huge base"),
    ],
)
def test_what_is_no_trace_is_one_sentence(text, what, tmp_path):
    """What is not a list of events in whole JSON ends in a sentence that says where, at no great cost."""
    path = tmp_path / "bad.json"
    path.write_text(text.replace('"ph": "X",', '"ph": "X", "cat": "kernel",'))
    with pytest.raises(AnnotError, match=rf"bad\.json .*{what}"):
        load(path)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param('{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 2}', id="NaN"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": "NaN", "dur": 2}', id="NaN as text"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1e300}', id="longer than a clock shows"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": -9e18, "dur": 1}', id="earlier than a clock shows"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": 1, "dur": -3}', id="ends before it begins"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": 123456789012345678901234567890, "dur": 1}', id="128 bits"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": [1], "dur": 1}', id="list"),
        pytest.param('{"ph": "X", "cat": "kernel", "ts": "x", "dur": 1}', id="text"),
        pytest.param('{"ph": "X", "cat": "kernel", "pid": {}, "ts": 1, "dur": 1}', id="process"),
        pytest.param("7", id="number"),
        pytest.param("null", id="nothing"),
    ],
)
@pytest.mark.parametrize("times", ["5", "5.25", "1682725898000005", "1682725898000005.25", '"1682725898000005.25"'])
def test_one_odd_event_costs_itself_alone(odd, times, tmp_path):
    """Whatever is wrong with one event, it is left out with a note, and all others keep their exact times."""
    good = f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {times}, "dur": 2}}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{good}, {odd}, {good}]}}')
    profile = load(path)
    start = round(Decimal(times.strip('"')) * 1000)
    assert profile.kernels.select("start", "end").rows() == [(start, start + 2000)] * 2
    assert [note for note in profile.meta["notes"] if note.startswith("annot skipped 1 ")] == profile.meta["notes"]
    assert len(profile.meta["notes"]) == 1


def test_a_byte_order_mark_is_no_text(tmp_path):
    """What an editor of Windows puts in front of a trace says how it is encoded, and nothing else."""
    text = b'[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}]'
    for content in (text, b'{"traceEvents": ' + text + b"}"):
        for packed in (bytes, gzip.compress):
            path = tmp_path / "trace"
            path.write_bytes(packed(codecs.BOM_UTF8 + content))
            assert load(path).kernels["start"].to_list() == [1000]


def test_what_is_of_others_is_said(tmp_path):
    """Work of devices that annot does not know is a note; a trace of something else is no profile at all."""
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "%s", "name": "x", "ts": 1, "dur": 2}'
    path.write_text(f"[{event % 'RunTask'}, {event % 'viz'}, {event % 'viz'}]")
    with pytest.raises(
        AnnotError, match=r"trace\.json is a trace without .* 3 events of unsupported categories \(viz, RunTask\)$"
    ):
        load(path)
    path.write_text(
        f"[{event % 'cpu_op'}, {event % 'mtia_ccp_events'}, {event % 'Trace'}, {event % 'python_function'}]"
    )
    assert load(path).meta["notes"] == ["annot skipped 1 event of unsupported categories (mtia_ccp_events)."]


def test_gzip_of_several_members(tmp_path):
    """A compressed file may be several one after the other."""
    text = json.dumps({"traceEvents": [{"ph": "X", "ts": time} for time in range(9)]}).encode()
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(text[:70]) + gzip.compress(text[70:]))
    assert [event[5] for event in events_of(path)[0]] == list(range(9))


@pytest.mark.slow
def test_gzip_bomb_is_refused_in_constant_memory(tmp_path):
    """A small file that unpacks to gigabytes of spaces or of events ends in one sentence, in half a gigabyte."""
    path = tmp_path / "bomb.json.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(b'{"traceEvents": [{"ph": "X"}'))
        for _ in range(1 << 10):
            file.write(packer.compress(b" " * (1 << 19) + b',{"ph": "i"}' * (1 << 15)))
        file.write(packer.flush())
    limit = (  # the kernel counts the parent's memory into ru_maxrss, not into VmHWM
        "import sys; from annot import AnnotError, load\n"
        "try: load(sys.argv[1])\nexcept AnnotError as error: print(error)\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", limit, path], capture_output=True, text=True, check=True)
    sentence, memory = done.stdout.splitlines()
    assert "bomb.json.gz decompresses to more than" in sentence
    assert int(memory) < 512 << 10
