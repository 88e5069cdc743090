"""Reports as Markdown: the numbers of files in the words of the terminal, in any number of characters."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_text import MORE, Parsed, check_limit, check_numbers
from ranked import write_ranks
from rich.text import Text
from shared_data import shared, shared_names
from sqlite_profile import training
from tables import Rows

import annot
from annot.analyze.comparison.compare import compare
from annot.analyze.comparison.digest import digest
from annot.cli import output
from annot.cli.main import main
from annot.errors import AnnotError
from annot.report import unknown
from annot.report.columns import Formatted
from annot.report.export import document
from annot.report.export.document import MIN_CHARS, Document, Kind, Texts, prose
from annot.report.export.markdown import markdown
from annot.report.table import Options, Table, process
from annot.report.terminal.compare import comparison_table
from annot.report.terminal.hot_rows import hottest_rows
from annot.report.terminal.layout import Sheet
from annot.report.views import find_view, views
from annot.runs.gather import Ranks
from annot.runs.run import Run

OWN: Final = Path(__file__).parents[1] / "data"
LIMITS: Final = (MIN_CHARS, 777, 1200, 2000, 5000)


def check_table(table: Table, limits: Sequence[int], *, is_answer: bool = False) -> None:
    whole = markdown(table, is_answer=is_answer)
    assert "Left out" not in whole
    for limit in limits:
        text = markdown(table, max_chars=limit, more=MORE, is_answer=is_answer)
        check_limit(whole, text, limit)
        if is_answer and limit > MIN_CHARS:  # with the shortest, a name of 90 characters may not fit beside the verdict
            assert bool(Parsed(text).rows) == bool(Parsed(whole).rows)  # the hottest row stays


def many_layers(longer: int = 13) -> Run:
    """A profile with 60 layers, each with a kernel that takes some ns more than the one before."""
    rows = Rows().range("Forward Net |fwd", 0, 100_000)
    for number in range(60):
        at = 1000 * number
        rows.range(f"block_{number:02}.fc_{'x' * number} Linear [4,8]f32 out=8 |fwd", at, at + 900)
        rows.kernel(at + 10, (at + 20, at + 100 + longer * number), name=f"kernel_{number}<{number}>")
    return Run(rows.build())


@functools.cache
def small_profiles() -> dict[str, Run]:
    """Profiles with a GPU, without, with many layers, without ranges, and without layers for most of the time."""
    outside = Rows().range("fc Linear |fwd", 0, 100).kernel(10, (20, 60)).kernel(200, (210, 270))
    on_cpu = Rows()
    for number in range(5):
        on_cpu.range("fc Linear [4,8]f32 out=8 |fwd", 1000 * number, 1000 * number + 700)
    return {
        "layers": many_layers(),
        "outside": Run(outside.build()),
        "cpu": Run(on_cpu.build()),
        "no ranges": Run(Rows().kernel(10, (20, 60)).build()),
        "empty": Run(Rows().build()),
    }


@functools.cache
def tables(name: str) -> list[tuple[Table, bool]]:
    """The answer of a profile, and all its views."""
    run = small_profiles()[name]
    shown = [run.view(key, brief=True) for key in views()]
    return [(shown[0], True), *((table, False) for table in shown)]


@pytest.mark.parametrize("name", ["layers", "outside", "cpu", "no ranges", "empty"])
def test_every_view_fits_any_limit(name: str) -> None:
    for table, is_answer in tables(name):
        check_table(table, LIMITS, is_answer=is_answer)


def _own_profiles() -> list[str]:
    folders = (("kineto", ".json.gz"), ("nsys", ".sqlite"), ("ncu", ".csv"), ("xplane", ".xplane.pb"))
    return [name for folder, ending in folders for name in shared_names(folder, ending) if (OWN / folder).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("name", _own_profiles())
def test_real_profiles_fit_any_limit(name: str) -> None:
    try:
        run = Run(shared(name))
        answer = run.view(brief=True)
    except AnnotError as error:
        pytest.skip(str(error))
    check_table(answer, LIMITS, is_answer=True)
    for key in ("layer", "kernel", "kind", "module", "layer_roofline", "summary", "advice", "step"):
        check_table(run.view(key, brief=True), (MIN_CHARS, 2000))


KINDS: Final[tuple[Kind, ...]] = ("unknown", "parts", "advice", "totals", "notes")
NAMES: Final = st.text(st.sampled_from("abc|`*é…\n"), min_size=1, max_size=90)
COLUMNS: Final = [
    Formatted("Time", lambda row: f"{row:.1f}", unit="ms"),
    Formatted("Share", lambda row: f"{row / 100:.1%}", least=100),
]


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Documents with random blocks."""
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=4))
    blocks: list[document.Block] = [
        Texts(kind=kind, name="note", texts=draw(st.lists(NAMES.map(prose), max_size=6))) for kind in kinds
    ]
    names = draw(st.lists(NAMES, min_size=draw(st.sampled_from([0, 20])), max_size=40))
    times = draw(st.lists(st.integers(0, 99), min_size=len(names), max_size=len(names)))
    labels = [Text(f"{number}{name}") for number, name in enumerate(names)]
    sheet = Sheet(title="Row", labels=labels, columns=COLUMNS, rows=times, sizes=times, heading="Times")
    blocks.insert(draw(st.integers(0, len(blocks))), document.Rows(sheet=sheet))
    return Document(verdict=draw(st.text(st.sampled_from("ab*<>|` "), max_size=900)).strip(), blocks=blocks)


@settings(deadline=None)
@given(documents(), st.floats(0, 1.1))
def test_any_document_fits_any_limit(made: Document, part: float) -> None:
    whole = made.text()
    limit = max(MIN_CHARS, round(part * len(whole)))
    text = made.text(limit, MORE)
    assert len(text) <= limit
    assert bool(Parsed(text).left_out) == (text != whole)
    assert (text == whole) == (len(whole) <= limit)
    if re.search(r"^\| `", text, re.M) and "end of the verdict" not in text:
        assert text.startswith(whole.split("\n\n")[0])


def test_small_rows_are_folded_first() -> None:
    """The largest rows stay, and the last row has the sum of the others, so that the table adds up."""
    table, _ = tables("layers")[0]
    whole, text = markdown(table, is_answer=True), markdown(table, is_answer=True, max_chars=1500, more=MORE)
    times = [float(row["Self, µs"]) for row in Parsed(whole).rows]
    assert times == sorted(times, reverse=True)
    shown = [float(row["Self, µs"]) for row in Parsed(text).rows]
    assert 5 <= len(shown) < len(times)
    assert shown == times[: len(shown)]
    others = re.search(r"^\| … \d+ other rows \|(.*)\|$", text, re.M)
    assert others
    rest = sum(row.total_ns for row in hottest_rows(table)[len(shown) :])
    assert f" {rest / 1e3:,.2f} | {rest / table.meta['whole_ns']:.1%} " in others[1]


def test_columns_and_names_give_way_before_rows() -> None:
    """With little room tables have the columns of a narrow terminal, and long names lose their middle."""
    table, _ = tables("layers")[0]
    text = markdown(table, is_answer=True, max_chars=1000, more=MORE)
    row = Parsed(text).rows[0]
    assert "Calls" not in row
    assert "…" in row["label"]
    assert re.search(r"\d columns?, \d parts? of a name", Parsed(text).left_out)


def test_the_verdict_is_cut_last() -> None:
    text = Document(verdict="word " * 300, blocks=[Texts(kind="unknown", name="thing", texts=["x" * 600])]).text(600)
    assert text.startswith("**word word ")
    assert "…**\n" in text
    assert text.endswith("Left out: 1 thing, 1 end of the verdict. All: without a limit of characters\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("outside", "Layers of 60.0% of the GPU time: launched in no range."),
        ("cpu", "GPU time: the profile has no GPU activity. Times are those of the CPU."),
        ("cpu", "What bounds each layer: the peaks of the device are unknown. `annot calibrate` measures them."),
        ("outside", "FLOPs, bytes and roofs of layers: the profile has no shapes."),
        ("outside", "Time of a step: no steps, because"),
        ("no ranges", "Layers: the profile has no ranges."),
    ],
)
def test_what_a_profile_cannot_say(name: str, expected: str) -> None:
    table, _ = tables(name)[0]
    assert any(line.startswith(f"- {expected}") for line in Parsed(markdown(table, is_answer=True)).unknown)


def test_only_open_questions_are_named() -> None:
    """A profile with a GPU, layers and shapes lacks steps and the peaks of the device."""
    table, _ = tables("layers")[0]
    lines = Parsed(markdown(table, is_answer=True)).unknown
    assert [line.partition(":")[0] for line in lines] == ["- Time of a step", "- What bounds each layer"]


def test_kernels_without_durations_have_no_known_time() -> None:
    """Nsight Compute may record counters without durations: their 0 is unknown, the number of calls is not."""
    table = Run(shared("ncu/leleucas_bert_attention_torch_a100.csv")).view("kernel")
    assert "- GPU time: the profile has no durations" in markdown(table, max_chars=900)
    assert [name for name in table.rows.columns if not table.knows(name)] == ["gpu_ns", "mean_ns", "min_ns", "max_ns"]
    timed, _ = tables("layers")[0]
    assert timed.knows("gpu_ns")
    assert "no durations" not in markdown(timed)


def test_unknown_peaks_are_named_beside_other_bounds() -> None:
    """Layers that wait for launches have a bound also without peaks."""
    table, _ = tables("layers")[0]
    expected = "- Whether computing or memory bounds the other layers: the peaks of the device are unknown."
    for bounds in ({}, {("fc", "Linear", "forward"): "launch"}):
        lines = Parsed(markdown(replace(table, bounds=bounds), is_answer=True)).unknown
        assert lines[-1].startswith(expected) == bool(bounds)
        assert "`annot calibrate` measures them" in lines[-1]
    assert "peaks" not in "".join(Parsed(markdown(replace(table, has_peaks=True), is_answer=True)).unknown)


def test_what_several_ranks_cannot_say(tmp_path: Path) -> None:
    """What all ranks lack comes once, what one lacks with its rank."""
    write_ranks(tmp_path, 2)
    paths = [str(tmp_path / f"run_rank{rank}.sqlite") for rank in range(2)]
    lines = Parsed(markdown(Ranks(paths, workers=1).view())).unknown
    assert lines == ["- FLOPs of 99.5% of the time in layers: shapes, hyperparameters or formulas are unknown."]
    lacks, has = tables("outside")[0][0], tables("layers")[0][0]
    sentences = [*unknown.unknowns_of_ranks({0: has, 1: lacks, 2: lacks})]
    assert any(re.fullmatch(r"FLOPs, bytes .*\(2 ranks, such as rank 1\)", text) for text in sentences)
    assert sentences[0] == next(unknown.unknowns(has))


def test_a_large_profile_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("annot.runs.run", "annot.report.unknown"):
        monkeypatch.setattr(f"{module}.MOST_ACTIVITIES", 10)
    table = Run(small_profiles()["layers"].source).view(brief=True)
    assert any(line.startswith("- Verdict and advice: ") for line in Parsed(markdown(table)).unknown)
    assert unknown.MOST_ACTIVITIES == 10


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("markdown")
    training(device=True).write(folder / "run.sqlite")
    training(device=False).write(folder / "other.sqlite")
    return folder


def printed(capsysbinary: Any, *words: object) -> str:
    """The output of a command."""
    assert main([*map(str, words)]) == 0
    return str(capsysbinary.readouterr().out.decode())


@pytest.mark.parametrize("by", ["layer", "module", "step"])
def test_numbers_are_those_of_json(by: str, written: Path, capsysbinary: Any) -> None:
    """The commands for Markdown and JSON have the same numbers; `tests/agents` has more views and profiles."""
    words = written / "run.sqlite", *(("--by", by) if by != "layer" else ())
    data = json.loads(printed(capsysbinary, *words, "--format", "json", "--per-step"))
    meta, files = data.values()
    assert len(files) > 1
    check_numbers(printed(capsysbinary, *words, "--format", "markdown"), find_view(by), files, meta)


def test_the_command_shows_all(written: Path, capsysbinary: Any) -> None:
    """The command of the last line prints what is left out; the suffix of OUT selects the format."""
    path = written / "run.sqlite"
    out = written / "report.md"
    assert main([str(path), "--by", "kernel", "--max-chars", str(MIN_CHARS), "-o", str(out), "--force"]) == 0
    last = out.read_text(encoding="utf-8").splitlines()[-1]
    command = shlex.split(last.rpartition("All: `")[2].rstrip("`"))
    assert command[0] == "annot"
    text = printed(capsysbinary, *command[1:])
    assert text == printed(capsysbinary, path, "--by", "kernel", "--format", "markdown")
    assert output.MIN_CHARS == MIN_CHARS


def test_the_command_of_the_advice(capsysbinary: Any) -> None:
    """It selects the same ranges, and has no option of the table."""
    path = str(shared("kineto/labelled/gemm_03_compute_misaligned.json.gz"))
    table = ["--top=3", "--depth", "1", "--sort", "time", "--total", "--domain", ""]
    document = printed(capsysbinary, path, *table, "--format", "markdown")
    command = re.search(r"\*\*Advice\*\* \(reasons and code: `(.*)`\)", document)
    assert command is not None
    assert command[1] == f"annot report --by advice {path} --domain ''"
    assert "Why: " in printed(capsysbinary, *shlex.split(command[1])[1:])


def test_ranks_and_comparisons_fit_any_limit(tmp_path: Path, written: Path) -> None:
    write_ranks(tmp_path, 2)
    paths = [str(tmp_path / f"run_rank{rank}.sqlite") for rank in range(2)]
    ranks = Ranks(paths, workers=1)
    sides = [[digest(Run(path).attribution)] for path in (written / "run.sqlite", paths[1])]
    for table in (ranks.view(), ranks.view("step"), comparison_table(compare(*sides), "a", "b")):
        check_table(process(table, Options()), (MIN_CHARS, 900))


def test_all_rows_of_a_comparison_are_there() -> None:
    """The first rows stand above the details; the first row changes most."""
    table = comparison_table(compare(*([digest(many_layers(longer).attribution)] for longer in (13, 11))), "a", "b")
    above, _, details = markdown(table).partition("<details>")
    rows = [*Parsed(above).rows, *Parsed(details).rows]
    changes = [abs(float(row["B − A, µs"])) for row in rows]
    assert len(Parsed(above).rows) == 5
    assert len(rows) == table.shown.filter(pl.col("difference_ns") != 0).height > 50
    assert changes == sorted(changes, reverse=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-chars", "2000"], "--max-chars cannot be combined with --format table: use --format markdown"),
        (["--max-chars", "99", "--format", "markdown"], "must be a whole number, 500 or more, got '99'"),
    ],
)
def test_wrong_limits_are_refused(words: list[str], message: str, written: Path, capsys: Any) -> None:
    try:
        status = main([str(written / "run.sqlite"), *words])
    except SystemExit as done:
        status = int(str(done.code))
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "error"), [(MIN_CHARS - 1, ValueError), (2000.5, TypeError), ("2000", TypeError)])
def test_wrong_arguments_are_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_chars must be"):
        markdown(tables("outside")[0][0], max_chars=limit)


def test_an_open_profile_is_enough(written: Path) -> None:
    """The function takes what `annot.open` returns."""
    text = markdown(annot.open(written / "run.sqlite").view("kernel", brief=True), max_chars=1000)
    assert "**Time by kernel, " in text
