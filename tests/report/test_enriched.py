"""Findings in a copy of a report: read back from what Nsight Systems says is in it, and from a backend that records."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import annot, needs_nsys
from compiled_once import compiled
from recorded import nvtx_headers
from shared_data import unpacked
from sqlite_profile import SqliteProfile, process, thread, training
from tables import Rows

from annot import load
from annot.analyze.layer_details import spans
from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_layer
from annot.cli.main import main
from annot.doctor import profilers
from annot.doctor.finding import Machine
from annot.read.nsys.sqlite_export import FINDINGS_PROCESS
from annot.report.export.nsys_report import findings
from annot.util.installed_tools import Nsys, find_nsys

REPORT = b"NVIDIA Tegra Profiler Report 1.\n"
WRITER = Path(__file__).parents[1] / "support/writer"
HOSTILE = [
    'say "fc"', '"', "back\\slash\\", "a, b", "# no comment", "ünï 模型", "<b>$(x) %s %1% {}</b>", "line\nbreak\rtab\t",
    "\x00\x1b[31m", "x" * 70_000, "\\\"", "RangeStartEnd, 1, 2", "\u2028",
]  # fmt: skip
TRAIN = """
import annot, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with annot.emit_ranges(model):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).sum().backward()
        optimizer.step()
"""

needs_importer = pytest.mark.skipif(
    getattr(find_nsys(), "nvtxt_importer", lambda: None)() is None, reason="this Nsight Systems has no ImportNvtxt"
)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A training on the CPU, captured by Nsight Systems, with its export beside it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("captured")
    (folder / "train.py").write_text(TRAIN)
    words = ["run", "--collector", "nsys", "--no-report", "-o", "run.sqlite", "--", sys.executable, "train.py"]
    done = annot(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run.nsys-rep"


@pytest.fixture(scope="module")
def backend():
    """The backend that records, compiled; skips the test where that cannot be done."""
    headers = [path for path in nvtx_headers() if (path / "nvtxw3" / "nvtxw3.h").exists()]
    if not shutil.which("gcc") or not headers:
        pytest.skip("needs gcc and the headers of nvidia-nvtx 13.5 or later")
    return compiled(["gcc", "-shared", "-fPIC", f"-I{headers[0]}"], [WRITER / "backend.c"])


@pytest.fixture
def _nsys_writer(monkeypatch, backend):
    """`nsys_writer` of NVIDIA's description, on the real `nvtx.writer` and a backend that records."""
    pytest.importorskip("nvtx.writer", reason="needs nvtx 0.2.16 or later")
    monkeypatch.syspath_prepend(str(WRITER))
    monkeypatch.setenv("NSYS_WRITER_BACKEND", str(backend))
    yield
    sys.modules.pop("nsys_writer", None)


def exported(report: Path, form: str, out: Path) -> Path:
    """What Nsight Systems says is in a report."""
    nsys = find_nsys()
    assert nsys
    command = [str(nsys.path), "export", f"--type={form}", "--quiet=true", "--force-overwrite=true"]
    subprocess.run([*command, f"--output={out}", str(report)], check=True, capture_output=True)
    return out


def imported(report: Path, out: Path) -> list[tuple[int, int, int, str]]:
    """Thread, start, end and text of the imported ranges, in the time of an export; SQLite leaves them out."""
    text = exported(report, "text", out / "all.txt").read_text(encoding="utf-8", errors="replace")
    with sqlite3.connect(exported(report, "sqlite", out / "all.sqlite")) as database:
        (start,) = database.execute("SELECT startTime FROM ANALYSIS_DETAILS").fetchone()
    found = []
    for event in re.findall(r"^NvtxtEvent_ \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = dict(re.findall(r"^    (\w+): (.*)$", event, re.MULTILINE))
        said = ast.literal_eval(f"b{fields['Text']}").decode() if "Text" in fields else ""
        times = (int(fields[name]) + start for name in ("Timestamp", "EndTimestamp"))
        found.append((int(fields["GlobalTid"]), *times, said))
    return sorted(found)


def machine_of(sqlite: Path) -> int:
    """The part of the numbers of processes that is the machine."""
    with sqlite3.connect(sqlite) as database:
        return int(database.execute("SELECT globalPid FROM PROCESSES").fetchone()[0]) >> 48


def expected(profile: Path, machine: int) -> list[tuple[int, int, int, str]]:
    """The ranges that a report should have, as `imported` gives them."""
    found = spans(attribute(load(profile)))
    groups = {track.number: track.group.number for track in found.tracks.all()}
    return sorted(
        ((machine << 48) + (FINDINGS_PROCESS + groups[one.track] << 24) + one.track, one.start, one.end, one.text)
        for one in findings(found)
    )


def rows_of(sqlite: Path) -> dict[str, list[str]]:
    """All rows of an export, but those about the export."""
    with sqlite3.connect(sqlite) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: sorted(map(repr, database.execute(f"SELECT * FROM {name}")))
            for name in names
            if name != "EXPORT_META_DATA"
        }


@needs_nsys
@needs_importer
def test_a_report_with_its_findings(captured, tmp_path):
    """The copy has each layer with exact times and text; all that was there is unchanged, so is annot's table."""
    report, out = captured, tmp_path / "enriched.nsys-rep"
    before = report.read_bytes()
    assert main(["report", str(report), "--format", "nsys-rep", "-o", str(out)]) == 0
    profile = report.with_suffix(".sqlite")
    ranges = imported(out, tmp_path)
    assert len(ranges) == sum(by_layer(attribute(load(profile)))["calls"]) > 20
    assert ranges == expected(profile, machine_of(profile))
    assert {"0 Linear forward", "1 ReLU backward", "SGD optimizer"} <= {text.split(" · ")[0] for *_, text in ranges}
    assert report.read_bytes() == before
    assert rows_of(tmp_path / "all.sqlite") == rows_of(exported(report, "sqlite", tmp_path / "again.sqlite"))
    assert by_layer(attribute(load(out))).equals(by_layer(attribute(load(report))))
    assert [path.name for path in tmp_path.glob(".annot-*")] == []


@needs_nsys
@needs_importer
def test_spans_of_a_gpu_in_a_report(captured, tmp_path):
    """Of two processes with a GPU each, the spans of every stream are there, also those past the end of the session."""
    profile = unpacked("nsys/ginda_mfu_2gpu_before.2026.2.sqlite.gz", tmp_path)
    shutil.copy(captured, profile.with_suffix(".nsys-rep"))
    profile.touch()
    out = tmp_path / "enriched.nsys-rep"
    assert main(["report", str(profile), "--format", "nsys-rep", "-o", str(out)]) == 0
    assert len(spans(attribute(load(profile))).tracks.all()) > 1
    assert imported(out, tmp_path) == expected(profile, 1)


@needs_nsys
@needs_importer
def test_hostile_names_are_texts(captured, tmp_path):
    """Whatever layers are called, each is one range with its text on one line, and names of tracks do no harm."""
    profile = SqliteProfile()
    for number, name in enumerate(HOSTILE):
        profile.range(name, 1000 * number + 1000, 1000 * number + 1500)
    profile.add("PROCESSES", globalPid=process(1), pid=1, name='py"thon\n\\')
    path = profile.write(tmp_path / "run.sqlite")
    shutil.copy(captured, path.with_suffix(".nsys-rep"))
    path.touch()
    out = tmp_path / "enriched.nsys-rep"
    assert main(["report", str(path), "--format", "nsys-rep", "-o", str(out)]) == 0
    texts = [text for *_, text in imported(out, tmp_path)]
    plain = [text.removesuffix(" ").replace('"', "'") for *_, text in expected(path, 1)]
    assert [text.removesuffix(" ") for text in texts] == plain
    assert len(texts) == len(HOSTILE) == len(set(texts))
    assert {"say 'fc' · host 0.50 µs", "ünï 模型 · host 0.50 µs"} < set(texts)
    assert all(len(text) <= 1001 and text.isprintable() for text in texts)


def test_what_annot_wrote_is_no_layer(tmp_path):
    """Readers leave findings out, whichever way they came into a report; imports of others stay."""
    for_writer, for_importer, plain = (training(device=True) for _ in range(3))
    for profile in (for_writer, for_importer):
        profile.range("by others", 100, 200, kind=70)
    plain.range("by others", 100, 200, kind=70)
    for_writer.range("conv1 forward · GPU 1 ms", 0, 2_000_000, domain="annot findings")
    for kind in (70, 71):
        for_importer.event(kind, 0, 2_000_000, "conv1 forward · GPU 1 ms", thread(7, FINDINGS_PROCESS + 1), domainId=0)
    tables = [
        by_layer(attribute(load(profile.write(tmp_path / f"{number}.sqlite"))))
        for number, profile in enumerate((plain, for_writer, for_importer))
    ]
    assert "by others" in tables[0]["layer"]
    assert tables[1].equals(tables[0])
    assert tables[2].equals(tables[0])


def written(out: Path) -> dict[str, list[list[str]]]:
    """The lines of the recording backend, by their first field."""
    lines: dict[str, list[list[str]]] = {}
    for line in out.read_text().splitlines():
        kind, *fields = line.split("\t")
        lines.setdefault(kind, []).append(fields)
    return lines


def run_writer(folder: Path, **tables: dict[str, Any]) -> tuple[Path, dict[str, list[list[str]]]]:
    """Enrich a profile with two streams; return the export and what the backend got."""
    profile = training(device=True)
    profile.call(240_000, 245_000, 900)
    profile.kernel(300_000, 400_000, 900, streamId=9)
    profile.add("PROCESSES", globalPid=process(1), pid=77, name="/usr/bin/python[3]")
    for table, row in tables.items():
        profile.add(table, **row)
    path = profile.write(folder / "run.sqlite")
    path.with_suffix(".nsys-rep").write_bytes(REPORT)
    path.touch()
    assert main(["report", str(path), "--format", "nsys-rep", "-o", str(folder / "out.nsys-rep")]) == 0
    return path, written(folder / "out.nsys-rep")


@pytest.mark.usefixtures("_nsys_writer")
def test_through_the_writer(tmp_path):
    """nsys_writer gets a stream and a scope per stream of the device, and each span relative to the start."""
    start = {"ANALYSIS_DETAILS": {"globalVid": 1 << 48, "startTime": 50_000, "stopTime": 9_000_000}}
    path, got = run_writer(tmp_path, **start)
    assert got["session"] == [[f"report_merge={path.with_suffix('.nsys-rep')}; time_base=relative"]]
    assert got["end"] == [[]]
    assert [name for _, name in got["domain"]] == ["annot findings"]
    scopes = {number: place for number, _, place in got["scope"]}
    where = {number: scopes[scope] for number, _, scope, _ in got["stream"]}
    found = spans(attribute(load(path)))
    names = {track.number: f"GPU 0 of \\/usr\\/bin\\/python\\[3\\] 77/{track.name}" for track in found.tracks.all()}
    assert set(scopes.values()) == set(names.values())
    assert {place.rpartition("/")[2] for place in scopes.values()} >= {"stream 7", "stream 9"}
    assert [(where[stream], *rest) for stream, *rest in got["range"]] == [
        (names[one.track], str(one.start - 50_000), str(one.end - 50_000), f"{one.color:x}", one.text)
        for one in findings(found)
    ]


@pytest.mark.usefixtures("_nsys_writer")
def test_through_the_writer_by_the_clock(tmp_path):
    """Where an export does not say when the collection began, times are those since 1970."""
    utc = 1_795_310_563_887_099_494
    path, got = run_writer(tmp_path, TARGET_INFO_SESSION_START_TIME={"utcEpochNs": utc})
    assert got["session"][0][0].endswith("; time_base=utc")
    starts = [one.start + utc for one in findings(spans(attribute(load(path))))]
    assert [int(begin) for _, begin, *_ in got["range"]] == starts


@pytest.mark.usefixtures("_nsys_writer")
def test_what_the_writer_cannot_do_is_one_sentence(tmp_path, capsys, monkeypatch):
    """No start of the profile, and a backend that is missing, are errors that leave nothing behind."""
    with pytest.raises(AssertionError):
        run_writer(tmp_path)
    assert "lacks a start time" in capsys.readouterr().err
    monkeypatch.setenv("NSYS_WRITER_BACKEND", str(tmp_path / "none.so"))
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(AssertionError):
        run_writer(other, TARGET_INFO_SESSION_START_TIME={"utcEpochNs": 1})
    assert "cannot be enriched by nsys_writer" in capsys.readouterr().err
    assert {path.name for path in other.iterdir()} == {"run.sqlite", "run.nsys-rep"}


def refused(capsys, *words: object) -> str:
    """What is said of a command that cannot be done."""
    assert main(["report", *map(str, words)]) != 0
    said: str = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_is_no_report(tmp_path, capsys):
    """An input that is no report and has none beside it, or a newer one, is refused, and so is writing onto it."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    ask = (path, "--format", "nsys-rep", "-o", tmp_path / "out.nsys-rep")
    assert "neither an Nsight Systems report nor a SQLite export" in refused(capsys, *ask)
    report = path.with_suffix(".nsys-rep")
    report.write_bytes(REPORT)
    os.utime(path, ns=(0, 0))
    assert "run.sqlite is older than" in refused(capsys, *ask)
    for here in (path, report):
        os.utime(report, ns=(0, 0))
        said = refused(capsys, path, "--format", "nsys-rep", "--force", "-o", here)
        assert "use another name with -o" in said
    assert report.read_bytes() == REPORT
    assert "needs -o OUT" in refused(capsys, path, "--format", "nsys-rep")
    (tmp_path / "out.nsys-rep").touch()
    assert "replace it with --force" in refused(capsys, *ask)
    assert "cannot be read" in refused(capsys, tmp_path / "none", "--format", "nsys-rep", "-o", tmp_path / "o")


def test_without_anything_that_writes(tmp_path, capsys, monkeypatch):
    """Without an installed backend, the error names both backends and annot doctor."""
    monkeypatch.setenv("ANNOT_NSYS", "/nonexistent/nsys")
    path = training(device=True).write(tmp_path / "run.sqlite")
    path.with_suffix(".nsys-rep").write_bytes(REPORT)
    path.touch()
    said = refused(capsys, path, "--format", "nsys-rep", "-o", tmp_path / "out.nsys-rep")
    assert "see annot doctor" in said


@needs_nsys
@needs_importer
def test_a_damaged_report(tmp_path, capsys):
    """What ImportNvtxt says of a report that it cannot read is handed on, and nothing is left behind."""
    path = training(device=True).write(tmp_path / "run.sqlite")
    path.with_suffix(".nsys-rep").write_bytes(REPORT)
    path.touch()
    said = refused(capsys, path, "--format", "nsys-rep", "-o", tmp_path / "out.nsys-rep")
    assert "cannot be enriched by" in said
    assert {one.name for one in tmp_path.iterdir()} == {"run.sqlite", "run.nsys-rep"}


def test_a_profile_without_layers(tmp_path, capsys, monkeypatch):
    """There must be something to write."""
    monkeypatch.setattr("annot.report.export.nsys_report._backend_for", lambda attribution: None)
    profile = SqliteProfile()
    profile.kernel(0, 10, 1)
    path = profile.write(tmp_path / "run.sqlite")
    path.with_suffix(".nsys-rep").write_bytes(REPORT)
    path.touch()
    assert "no layers or phases" in refused(capsys, path, "--format", "nsys-rep", "-o", tmp_path / "out.nsys-rep")


def test_texts_of_findings():
    """A text says layer, class, phase, shapes, time, operations and limit, each where it is known."""
    rows = Rows().range("ProfilerStep#3", 0, 9000).range("Forward Net [8,8]f32 |fwd", 0, 900, domain="annot")
    rows.range("fc Linear [8,8]f32 out=8 |fwd", 10, 90, domain="annot").kernel(20, (100, 20_100))
    rows.range("free", 200, 300).kernel(250, (30_000, 30_500))
    rows.range("Optimizer SGD |opt", 1000, 1100, domain="annot").kernel(1050, (40_000, 41_000))
    a100 = {
        "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "smCount": 108,
        "clockRate": 1_410_000_000, "memoryBandwidth": 2_039_000_000_000, "cuDevice": 0,
    }  # fmt: skip
    found = list(findings(spans(attribute(rows.build(devices=[a100])))))
    assert [one.text for one in found] == [
        "(batch) 3 · GPU 21.50 µs", "(model) Net forward · [8,8]f32 · GPU 20.50 µs",
        "fc Linear forward · [8,8]f32 · GPU 20.00 µs · 1.02 kFLOP · memory-bound, 0.0% of the roof",
        "free · GPU 0.50 µs", "SGD optimizer · GPU 1.00 µs",
    ]  # fmt: skip
    assert len({one.color for one in found}) == 3


def checks(nsys: Nsys | None) -> dict[str, tuple[str, str | None]]:
    """State and mending command of what the doctor says of the profilers."""
    found = profilers.examine(Machine(environ={"PATH": ""}), nsys)
    return {check.name: (check.state, check.mend) for check in found}


def test_the_doctor_says_what_writes(tmp_path, monkeypatch):
    """It names what is there, else how to install what the release brings."""
    name, root = "writing into reports", tmp_path / "2026.4"
    program = root / "target-linux-x64" / "nsys"
    package = root / "target-linux-x64" / "python" / "packages" / "nsys_writer"
    package.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(Path, "glob", _without_packages(Path.glob))
    nsys = Nsys(program, (2026, 4))
    state, mend = checks(nsys)[name]
    assert state == "note"
    assert mend == f"{sys.executable} -m pip install {package}"
    importer = root / "host-linux-x64" / "ImportNvtxt"
    importer.parent.mkdir()
    importer.touch(mode=0o755)
    assert checks(nsys)[name] == ("ok", None)
    assert nsys.nvtxt_importer() == importer
    assert name not in checks(None)


def _without_packages(glob):
    """Path.glob on a machine where Debian has installed no Nsight Systems."""
    return lambda path, pattern, **more: (
        iter(()) if path == Path("/usr/lib/nsight-systems") else glob(path, pattern, **more)
    )


def test_the_json_of_a_report_is_as_before(tmp_path, capsys):
    """The new entry of what a profile says of itself is in no report of layers."""
    profile = training(device=True)
    profile.add("ANALYSIS_DETAILS", globalVid=1, startTime=5, stopTime=6)
    path = profile.write(tmp_path / "run.sqlite")
    assert load(path).meta["analysis_start_ns"] == 5
    assert main(["report", str(path), "--format", "json"]) == 0
    assert "analysis_start_ns" not in json.dumps(json.loads(capsys.readouterr().out))
