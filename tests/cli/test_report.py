"""The command `annot report`, and what all commands share."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pytest
from matrices import every_third
from ranked import SLOW, write_ranks
from sqlite_profile import training

from annot.attribution.attribute import Attribution
from annot.cli.main import main, make_parser, with_command
from annot.profile import Profile
from annot.report.table import Table
from annot.report.views import COLUMN_GROUPS, views
from annot.runs.run import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return training(device=True).write(tmp_path / "run.sqlite")


def _annot(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "annot", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, encoding="utf-8"
    )


def test_table_on_standard_output(source: Path) -> None:
    """--all prints the table of layers, without colour where there is no terminal, with nothing on stderr."""
    result = _annot("report", source, "--all", COLUMNS="80")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Step 2.12 ms on one GPU: ")
    assert "\nGPU per step, mean of 2: 3.480 ms = " in result.stdout
    assert "\n\nGPU time by layer, ms per step\nLayer " in result.stdout
    assert "\x1b" not in result.stdout


def test_a_table_takes_the_way_of_the_guide(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The modules in `annot guide architecture` receive the path or a result made of it; other ways are not taken."""
    seen = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "/annot/" in code.co_filename:
            values = [
                frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            ]
            if any(isinstance(value, Run | Profile | Attribution | Table) or _is(value, source) for value in values):
                seen.add(code.co_filename.rpartition("/annot/")[2])

    sys.setprofile(note)
    try:
        assert main([str(source)]) == 0
    finally:
        sys.setprofile(None)
    guide = (ROOT / "annot/guide/architecture.md").read_text(encoding="utf-8")
    text = guide.partition("## The life of a report")[2].partition("`attribute()`")[0]
    way, others = (set(re.findall(r"`(\w+(?:/\w+)+\.py)`", part)) for part in text.split("Other requests"))
    way.remove("report/columns.py")  # the columns of a view
    assert way <= seen
    # The functions behind the answer, the parts of the reader, and their tables.
    below = tuple(f"{room}/" for room in ("analyze", "read", "profile", "util"))
    assert {module for module in seen - way if not module.startswith(below)} == set()
    assert seen & others == set()


def _is(value: object, path: Path) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(str(one) == str(path) for one in values if isinstance(one, str | Path))


def test_depth_0_prints_a_table(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number 0 is an option for the table too, so that the answer is left out."""
    printed = []
    for options in (["--depth", "0"], ["--depth", "0", "--by", "layer"]):
        assert main([str(source), *options]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_json_on_standard_output(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON goes to standard output and nothing else does."""
    assert main(["report", str(source), "--format", "json", "--by", "kernel"]) == 0
    output = capsys.readouterr()
    assert {"name", "gpu_ns"} <= set(json.loads(output.out)["kernels"][0])
    assert output.err == ""


@pytest.mark.parametrize("form", ["table", "csv", "json", "parquet"])
def test_output_file(source: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """-o writes the file and prints nothing."""
    out = tmp_path / "out"
    assert main(["report", str(source), "--format", form, "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    assert (b"PAR1" if form == "parquet" else b"features.0" if form != "table" else b"0 Conv2d") in out.read_bytes()


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("out.csv", b"layer,module,"),
        ("OUT.JSON", b'{\n  "meta"'),
        ("out.jsonl", b'{"layer":'),
        ("out.parquet", b"PAR1"),
        ("out.html", b"<!doctype html>"),
        ("out.json.gz", b"\x1f\x8b"),
        ("out.txt", b"Step 2.12 ms"),
        ("csv", b"Step 2.12 ms"),
    ],
)
def test_format_is_what_the_name_ends_in(source: Path, tmp_path: Path, name: str, begins: bytes) -> None:
    """Who names a file says with its ending what is to be in it; --format says otherwise."""
    assert main(["report", str(source), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().lower().startswith(begins.lower())
    assert main(["report", str(source), "-o", str(tmp_path / name), "--format", "csv", "--force"]) == 0
    assert (tmp_path / name).read_bytes().startswith(b"layer,")


def test_existing_output_is_kept(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is only replaced with --force."""
    out = tmp_path / "out"
    out.write_text("precious")
    assert main(["report", str(source), "--format", "csv", "-o", str(out)]) == 1
    assert (
        capsys.readouterr().err == f"annot: error: {out} exists: use another name with -o, or replace it with --force\n"
    )
    assert out.read_text() == "precious"
    assert main(["report", str(source), "--format", "parquet", "-o", str(out), "--force"]) == 0
    assert pl.read_parquet(out).height > 10


def test_profile_is_not_its_own_report(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --force, too, no command writes over the profile that it reads."""
    before = source.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(source)
    for words in (["report"], ["compare", str(source)], ["roofline"]):
        for out in (source, link):
            assert main([*words, str(source), "-o", str(out), "--format", "csv", "--force"]) == 1
            assert capsys.readouterr().err == f"annot: error: {out} is an input profile: use another name with -o\n"
    assert source.read_bytes() == before


def test_output_that_cannot_be_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist is one sentence."""
    out = tmp_path / "no" / "out"
    assert main(["report", str(source), "--format", "csv", "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"annot: error: {out} cannot be written: No such file or directory\n"


def test_parquet_needs_a_file(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet on the terminal is wrong usage."""
    assert main(["report", str(source), "--format", "parquet"]) == 2
    assert "needs -o" in capsys.readouterr().err


def test_bad_profile_is_one_sentence(tmp_path: Path) -> None:
    """A file that is no profile ends in one line on stderr, nothing on stdout, and status 1."""
    (tmp_path / "x").write_text("hello")
    result = _annot("report", tmp_path / "x")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"annot: error: {tmp_path}/x is not a profile")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["report"], ["report", "x", "--by", "color"], ["fly"], ["--nonsense"], []])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is status 2, with what is possible."""
    assert main(words) == 2
    output = capsys.readouterr()
    assert "usage: annot" in output.out + output.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--steps 3-20", "argument --steps: steps must be like 3:20, 3:, :20 or 7, got '3-20'"),
        ("--rank -1", "argument --rank: must be a whole number, 0 or more, got '-1'"),
        ("--workers 0", "argument --workers: must be a whole number, 1 or more, got '0'"),
        ("--dask tcp://x:1 --workers 2", "--workers cannot be combined with a Dask scheduler"),
    ],
)
def test_options_that_do_not_fit(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong values, and options that have no meaning together, are wrong usage in one sentence, before any reading."""
    assert main(["report", "x", *words.split()]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["run", "--help"], ["doctor", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help is status 0 on standard output."""
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: annot")


def test_help_names_rows_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, and those by which ranks are compared."""
    assert main(["report", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    rows, columns = (
        re.search(rf" {start} (.*?)default: ", text)[1] for start in ("rows of the table:", "columns of the table:")
    )  # type: ignore[index]
    known = list(views().values())
    assert all(re.search(rf"\b{view.by}\b", rows) for view in known)
    assert all(re.search(rf"\b{group}\b", columns) for group in COLUMN_GROUPS)
    compared, also = re.search(r"or processes (.*?), and --by layer also with --columns (.*?)\. ", text).groups()  # type: ignore[union-attr]
    named = {view.by for view in known if view.keys}
    assert set(re.findall(r"[a-z]+", compared)) - {"by", "or"} == named
    assert set(also.split()) - {"or"} == {view.group for view in known if view.keys and view.group != "time"}


def test_help_shows_verbs_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that a person sees names every verb and shows commands to type."""
    main(["--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("run", "report", "doctor", "annot run -- python train.py"))


@pytest.mark.parametrize(
    "verb", ["", "run", "report", "compare", "roofline", "calibrate", "sweep", "doctor", "guide", "completion"]
)
def test_examples_of_help_are_right_usage(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb's help has examples, and each of them is a command line that the parser takes."""
    assert main([*verb.split(), "--help"]) == 0
    examples = capsys.readouterr().out.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    commands = [re.split(" > |   ", line.strip())[0] for line in examples]
    assert len(commands) >= 2
    for command in commands:
        words = with_command(shlex.split(command)[1:])
        assert make_parser(words[0]).parse_args(words).verb == (verb or words[0])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and number."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "annot"


def test_help_does_not_load_the_heavy_libraries() -> None:
    """Help comes without polars, torch, rich or Dask, neither for annot nor for its verb report."""
    code = (
        "import sys; from annot.cli.main import main; main(['report', '--help']); "
        "sys.exit(sum(name in sys.modules for name in ('polars', 'torch', 'rich', 'fsspec', 'distributed')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_reader_that_has_had_enough(source: Path) -> None:
    """A pipe that closes early ends the command without a word."""
    command = [sys.executable, "-m", "annot", "report", str(source), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_on_standard_output(source: Path) -> None:
    """Output that cannot be written is an error, not a traceback."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "annot", "report", str(source)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "annot: error: [Errno 28] No space left on device\n"


def test_ascii_terminal(source: Path) -> None:
    """In a locale without Unicode the report is printed with replacements rather than not at all."""
    result = _annot("report", source, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (result.returncode, result.stderr) == (0, "")
    assert "0 Conv2d" in result.stdout


def _json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What `annot report` prints with ``--format json``."""
    status = main(["report", *map(str, words), "--format", "json"])
    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    return json.loads(output.out)


def test_steps(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chosen steps are all that counts: one of two has half of what both have."""
    both, one = _json(capsys, source), _json(capsys, source, "--steps", "1")
    assert (both["meta"]["steps"], one["meta"]["steps"]) == (2, 1)
    assert (both["meta"]["attributed_gpu_ns"], one["meta"]["attributed_gpu_ns"]) == (6_970_000, 3_480_000)
    conv = [next(row for row in data["layers"] if row["layer"] == "features.0") for data in (both, one)]
    assert [row["gpu_ns"] for row in conv] == [1_800_000, 900_000]


def test_step_range(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any ranges can be the steps, # stands for any number."""
    meta = _json(capsys, source, "--step-range", "features.# Conv#d [#,3,224,224]f32 |fwd")["meta"]
    assert (meta["steps"], meta["step_ns"]["median"]) == (2, 550_000)
    assert meta["steps_found_by"] == "the ranges 'features.# Conv#d [#,3,224,224]f32 |fwd'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "2:"], "has no such steps, only 0 to 1"),
        (["--steps", "1", "--step-range", "nothing"], "has no range 'nothing'"),
        (["--domain", "nope"], "has no range in the domain 'nope', only in '', 'annot'"),
        (["--domain", "nope", "--by", "advice"], "has no range in the domain 'nope', only in '', 'annot'"),
        (["--domain", "nope", "--by-process"], "has no range in the domain 'nope', only in '', 'annot'"),
    ],
)
def test_steps_that_are_not_there(
    source: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Steps that the profile does not have are one sentence and status 1."""
    assert main(["report", str(source), *words]) == 1
    assert capsys.readouterr() == ("", f"annot: error: {source} {said}\n")


def test_by_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Operations that emit_nvtx recorded are rows, with what they launched themselves."""
    profile = training(device=True)
    profile.range("aten::conv2d, seq = 7, op_id = 3", 221_000, 601_000)
    profile.range("aten::cudnn_convolution, seq = 7, op_id = 4", 225_000, 300_000)
    path = profile.write(tmp_path / "x")
    rows = _json(capsys, path, "--by", "op", "--sort", "time")["ops"]
    times = [(row["op"], row["gpu_self_ns"], row["host_self_ns"]) for row in rows if "aten" in row["op"]]
    assert [time[1:] for time in times] == [(900_000, 75_000), (0, 305_000)]
    assert times[0][0].startswith("aten::cudnn_convolution")


def test_kernels_by_time_without_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to sort is no error."""
    path = training(device=False).write(tmp_path / "x")
    assert _json(capsys, path, "--by", "kernel", "--sort", "time")["kernels"] == []


def test_many_ranks(tmp_path: Path) -> None:
    """A quoted pattern is the ranks of a run: who is slow in which layer, who waits, which profile is damaged."""
    paths = write_ranks(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    result = _annot("report", tmp_path / "run_rank*.sqlite", "--sort", "time", "--total", COLUMNS="200")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    # The all-reduce is hidden.
    assert lines[0] == "Step 2.12 ms on 7 GPUs: no rank is more than 5% slower than the others."
    assert lines[2] == "GPU time by layer over 7 ranks, ms"
    assert lines[3].split()[-7:] == ["r0", "r1", "r3", "r4", "r5", "r6", "r7"]
    conv = next(line for line in lines if line.lstrip("> ").startswith("features.0 Conv2d") and "forward" in line)
    # name, phase, median, slowest, rank, spread, spread %, (no collective,) then the ranks
    assert conv.split()[2:8] == ["forward", "1.808", "2.410", str(SLOW), "0.610", "33.7%"]
    assert conv.split()[8:] == ["1.800", "1.802", "1.806", "1.808", "2.410", "1.812", "1.814"]
    assert "Ranks: 7, read from 7 of 8 profiles" in lines
    assert any(line.endswith(f"the others wait for rank {SLOW}, the last to arrive") for line in lines)
    assert any(line.startswith(f"Note: rank 2 is missing: {paths[2]} ") for line in lines)


@pytest.mark.parametrize("form", every_third(["csv", "jsonl", "json"]))
def test_missing_rank_is_named_beside_rows(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What programs get has no line for a rank that cannot be read: standard error has it, and rows stay clean."""
    paths = write_ranks(tmp_path, 2)
    assert main(["report", *map(str, paths), str(tmp_path / "run_rank7.sqlite"), "--format", form]) == 0
    output = capsys.readouterr()
    assert output.err == f"annot: rank 7 is missing: {tmp_path}/run_rank7.sqlite does not exist\n"
    assert "missing" not in output.out or form == "json"


@pytest.mark.parametrize("form", ["folded", "speedscope", "pytest-benchmark"])
def test_formats_of_one_profile_count_files(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pattern may match one file; of several, wrong usage says their number."""
    training(device=True).write(tmp_path / "run_rank0.sqlite")
    words = ["report", f"{tmp_path}/run_rank*.sqlite", "--format", form]
    assert main(words) == 0
    assert capsys.readouterr().out
    (tmp_path / "run_rank1.sqlite").touch()
    assert main(words) == 2
    assert capsys.readouterr().err == f"annot: error: --format {form} needs exactly one PROFILE, got 2\n"


def test_one_of_many_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--rank gives the report that the rank's profile alone gives; a rank that is not there is one sentence.

    Only advice is looked for in one profile.
    """
    paths = list(map(str, write_ranks(tmp_path, 3)))
    alone, chosen = _json(capsys, paths[1]), _json(capsys, *paths, "--rank", "1", "--workers", "1")
    assert alone["meta"].pop("advice") == 1
    assert {key: chosen["meta"][key] for key in alone["meta"]} == alone["meta"]
    assert [row | {"collective_ns": None} for row in alone["layers"]] == [
        row | {"collective_ns": None} for row in chosen["layers"]
    ]
    assert main(["report", *paths, "--rank", "7", "--workers", "1"]) == 1
    assert capsys.readouterr().err == "annot: error: rank 7 does not exist: choose from 0, 1, 2\n"


def test_many_ranks_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One table with rank, and beside each row what its layer is over the ranks, in every format."""
    paths = write_ranks(tmp_path, 3)
    data = _json(capsys, *paths, "--workers", "2")
    assert [rank["rank"] for rank in data["meta"]["ranks"]] == [0, 1, 2]
    assert set(data["meta"]) >= {
        "source", "gpu_ns", "attributed_gpu_ns", "unattributed_gpu_ns", "host_ns", "steps", "notes",
    }  # fmt: skip
    assert sum(row["gpu_self_ns"] for row in data["layers"]) == data["meta"]["gpu_ns"]
    conv = [row for row in data["layers"] if row["layer"] == "features.0" and row["phase"] == "forward"]
    assert [(row["rank"], row["work_ns"], row["median_ns"], row["slowest"], row["spread_ns"]) for row in conv] == [
        (rank, 1_800_000 + 2000 * rank, 1_802_000, 2, 4000) for rank in range(3)
    ]
    for form in ("csv", "parquet"):
        out = tmp_path / form
        assert main(["report", *map(str, paths), "--format", form, "-o", str(out), "--workers", "1"]) == 0
        table = pl.read_csv(out) if form == "csv" else pl.read_parquet(out)
        assert table.columns == list(data["layers"][0])
        assert table["median_ns"].to_list() == [row["median_ns"] for row in data["layers"]]


def test_ranks_at_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A URL of fsspec with a pattern, and of a single file, are read as local files are."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    paths = write_ranks(tmp_path, 2)
    for rank, path in enumerate(paths):
        memory.pipe(f"/ranks/run_rank{rank}.sqlite", path.read_bytes())
    url = "memory://ranks/run_rank*.sqlite"
    there, here = _json(capsys, url), _json(capsys, *paths)
    assert there["layers"] == here["layers"]
    single = _json(capsys, "memory://ranks/run_rank1.sqlite")
    assert single["meta"]["source"] == "memory://ranks/run_rank1.sqlite"
    memory.pipe("/ranks/run_rank0.sqlite", b"hello")
    assert main(["report", "memory://ranks/run_rank0.sqlite"]) == 1
    assert capsys.readouterr().err.startswith("annot: error: memory://ranks/run_rank0.sqlite is not a profile")
    memory.rm("/ranks", recursive=True)


@pytest.mark.slow
def test_a_single_profile_on_dask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler that is not there is told of one profile too, for a table and for a page."""
    pytest.importorskip("distributed")
    path = write_ranks(tmp_path, 1)[0]
    for more in ([], ["--format", "html", "-o", str(tmp_path / "page.html")]):
        assert main(["report", str(path), "--dask", "nope", *more]) == 1
        assert capsys.readouterr().err.startswith("annot: error: the Dask scheduler at nope cannot be reached: ")


@pytest.mark.slow
def test_ranks_on_a_local_dask_cluster(tmp_path: Path) -> None:
    """--dask local starts a cluster of Dask for the time of the report, and says nothing of it."""
    pytest.importorskip("distributed")
    paths = write_ranks(tmp_path, 2)
    result = _annot("report", *paths, "--dask", "local", "--format", "csv")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == _annot("report", *paths, "--workers", "1", "--format", "csv").stdout
