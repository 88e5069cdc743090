"""CSV of Nsight Compute: `ncu_raw_*.csv` is what ncu 2022.3 printed of the reports that `ncu_report_file` writes."""

from __future__ import annotations

import codecs
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ncu_report_file import DEFAULT, texts
from random_inputs import examples
from refusals import refusal
from shared_data import shared

from annot import correlate
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.ncu import csv_export
from annot.read.ncu.csv_export import PUSHED, STARTED, pushed_ranges, started_ranges
from annot.read.text import nanoseconds, number

DATA = Path(__file__).parents[1] / "data"
NAMED = '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream"'
DETAILS = NAMED + ',"Section Name","Metric Name","Metric Unit","Metric Value"'


def read(folder: Path, text: str | bytes) -> Profile:
    path = folder / "profile.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    head = path.read_bytes()[:65536]
    assert csv_export.sniff(path, head)
    return csv_export.read(path)


def detail(number: int, metric: str, unit: str, value: str, *, process: int = 7, name: str = "gemm") -> str:
    return f'"{number}","{process}","python","host","{name}","now","1","7","Sec","{metric}","{unit}","{value}"'


def test_kernels_of_attention_keep_their_order_and_metrics():
    profile = csv_export.read(shared("ncu/leleucas_bert_attention_torch_a100.csv"))
    assert profile.kernels.height == 26
    assert profile.kernels["process"].unique().to_list() == [35412]
    assert profile.kernels["stream"].unique().to_list() == [7]
    assert profile.kernels["name"][22] == "ampere_sgemm_32x32_sliced1x4_tn"
    totals = dict(profile.metrics.group_by("name").agg(pl.col("value").sum()).iter_rows())
    assert totals["sm__sass_thread_inst_executed_op_ffma_pred_on.sum"] == 32_885_760
    assert totals["dram__bytes.sum"] == 2_406_400
    assert "Function Cache Configuration" not in totals
    assert profile.metrics.height == 26 * 59
    assert any("26 kernels" in note for note in profile.meta["notes"])


def test_state_of_nvtx_brings_metrics_to_layers():
    profile = csv_export.read(DATA / "ncu_raw_training.csv")
    layers = correlate(profile).filter(pl.col("layer").str.starts_with("fc") | (pl.col("module") != ""))
    rows = layers.select("layer", "module", "phase", "calls", "gpu_ns").rows()
    assert rows == [
        ("", "Net", "forward", 2, 5004),
        ("fc1", "Linear", "forward", 2, 3002),
        ("act", "ReLU", "forward", 2, 201),
        ("fc2", "Linear", "forward", 2, 1801),
        ("fc2", "Linear", "backward", 2, 1401),
        ("", "SGD", "optimizer", 2, 161),
    ]
    assert profile.meta["host_times"] is False


def test_values_keep_the_units_that_ncu_chose():
    metrics = csv_export.read(DATA / "ncu_raw_training.csv").metrics.filter(pl.col("kernel") == 0)
    assert {("dram__bytes_read.sum", 3.6, "Kbyte"), ("gpu__time_duration.sum", 1.2, "usecond")} <= set(
        metrics.select("name", "value", "unit").rows()
    )


def test_every_range_is_one_row_per_call():
    ranges = csv_export.read(DATA / "ncu_raw_training.csv").ranges
    rows = ranges.filter(pl.col("domain") == "annot").select("thread", "text", "kind", "start", "end").rows()
    assert rows == [
        (7, "Epoch 0 |epoch", "start", 0, 13),
        (7, "Batch 0 |step", "start", 0, 6),
        (7, "Forward Net [2,8]f32 |fwd", "push", 0, 3),
        (7, "fc1 Linear [2,8]f32 |fwd", "push", 0, 1),
        (7, "act ReLU [2,4]f32 |fwd", "push", 2, 2),
        (7, "fc2 Linear [2,4]f32 |fwd", "push", 3, 3),
        (8, "Backward |bwd", "push", 5, 5),
        (8, "fc2 Linear |bwd", "push", 5, 5),
        (7, "Optimizer SGD |opt", "push", 6, 6),
        (7, "Batch 1 |step", "start", 7, 13),
        (7, "Forward Net [2,8]f32 |fwd", "push", 7, 10),
        (7, "fc1 Linear [2,8]f32 |fwd", "push", 7, 8),
        (7, "act ReLU [2,4]f32 |fwd", "push", 9, 9),
        (7, "fc2 Linear [2,4]f32 |fwd", "push", 10, 10),
        (8, "Backward |bwd", "push", 12, 12),
        (8, "fc2 Linear |bwd", "push", 12, 12),
        (7, "Optimizer SGD |opt", "push", 13, 13),
    ]


def test_texts_that_ncu_does_not_escape_come_back_whole():
    profile = csv_export.read(DATA / "ncu_raw_texts.csv")
    expected = [("" if domain == DEFAULT else domain, text) for domain, _, text in texts()[0].started]
    expected += [
        ("" if domain == DEFAULT else domain, text) for domain, stack in texts()[0].pushed.items() for text in stack
    ]
    expected.append(("annot", texts()[1].pushed["annot"][0]))
    assert profile.ranges.filter(pl.col("kind") == "start").select("start", "end").rows() == [(0, 2), (0, 2)]
    assert profile.ranges.select("domain", "text").rows() == expected
    assert profile.metrics["value"].to_list() == [10, 11, 12]
    assert not any("truncated" in note for note in profile.meta["notes"])


@pytest.mark.parametrize("change", ["bom", "utf16", "crlf", "noise", "pandas"])
def test_what_shells_and_programs_do_to_the_file_changes_nothing(tmp_path: Path, change: str):
    plain = (DATA / "ncu_raw_training.csv").read_bytes()
    changed = {
        "bom": codecs.BOM_UTF8 + plain,
        "utf16": codecs.BOM_UTF16_LE + plain.decode().encode("utf-16-le"),
        "crlf": plain.replace(b"\n", b"\r\n"),
        "noise": b"==PROF== Connected to process 7\nepoch 0, loss 1.5\n" + plain.replace(
            b'\n"3","7"', b'\n==WARNING== slow\n"3","7"') + b"==PROF== Disconnected\n",
        "pandas": pl.read_csv(plain, infer_schema=False).write_csv(quote_style="necessary").encode(),
    }[change]  # fmt: skip
    before, after = csv_export.read(DATA / "ncu_raw_training.csv"), read(tmp_path, changed)
    assert after.ranges.equals(before.ranges)
    assert after.kernels.equals(before.kernels)
    assert after.metrics.equals(before.metrics)


def test_page_of_details_has_a_row_per_metric(tmp_path: Path):
    rows = [
        DETAILS,
        detail(0, "Duration", "usecond", "1,234.56"),
        detail(0, "DRAM Throughput", "%", "12.5"),
        detail(1, "Duration", "ns", "2,016", process=8, name="relu(float, int)"),
        detail(1, "Function Cache Configuration", "", "CachePreferNone", process=8, name="relu(float, int)"),
    ]
    profile = read(tmp_path, "\n".join(rows) + "\n")
    kernels = profile.kernels.select("process", "stream", "start", "end", "name").rows()
    assert kernels == [(7, 7, 0, 1_234_560, "gemm"), (8, 7, 0, 2016, "relu(float, int)")]
    assert profile.metrics.rows() == [
        (0, "Duration", 1234.56, "usecond"), (0, "DRAM Throughput", 12.5, "%"), (1, "Duration", 2016.0, "ns"),
    ]  # fmt: skip


def test_the_most_precise_duration_counts(tmp_path: Path):
    rows = [
        DETAILS, detail(0, "Duration", "usecond", "1.2"), detail(0, "gpu__time_duration.sum", "ns", "1,216"),
        detail(1, "gpu__time_duration.sum", "cycle", "7"), detail(1, "Duration", "usecond", "1.2"),
    ]  # fmt: skip
    kernels = read(tmp_path, "\n".join(rows)).kernels
    assert (kernels["end"] - kernels["start"]).to_list() == [1216, 1200]


def test_processes_have_clocks_of_their_own(tmp_path: Path):
    rows = [DETAILS, *(detail(index, "Duration", "ns", "10", process=7 + index % 2) for index in range(4))]
    kernels = read(tmp_path, "\n".join(rows)).kernels
    assert kernels.select("process", "start", "end").rows() == [(7, 0, 10), (8, 0, 10), (7, 10, 20), (8, 10, 20)]


def test_cut_rows_are_counted(tmp_path: Path):
    rows = [DETAILS, detail(0, "Duration", "ns", "10"), '"0","7","python","ho']
    profile = read(tmp_path, "\n".join(rows))
    assert profile.metrics.height == 1
    assert "annot skipped 1 row, truncated or mixed with other output." in profile.meta["notes"]


@pytest.mark.parametrize("rows", [[], ['"0","7"'], ['"","","","","","","","","","","",""']])
def test_a_file_without_kernels_is_one_sentence(tmp_path: Path, rows: list[str]):
    with pytest.raises(AnnotError, match=r"profile\.csv is CSV output of Nsight Compute without kernels"):
        read(tmp_path, "\n".join([DETAILS, *rows]))


def test_bytes_that_are_no_text_are_survived(tmp_path: Path):
    text = "\n".join([DETAILS, detail(0, "Duration", "ns", "10", name="gemm")]).encode()
    assert read(tmp_path, text.replace(b"gemm", b"ge\xff\x00mm")).kernels["name"].to_list() == ["ge��mm"]


def test_huge_fields_are_read_at_once(tmp_path: Path):
    huge = "x" * 2_000_000
    quoted = detail(0, "Duration", "ns", "10", name=huge)
    assert read(tmp_path, f"{DETAILS}\n{quoted}").kernels["name"].to_list() == [huge]


def test_other_tables_are_not_taken():
    assert not csv_export.sniff(Path("x"), b'"ID","Name"\n1,"Kernel Name"\n')
    assert not csv_export.sniff(Path("x"), b'{"Kernel Name": "Process ID"}')


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 999_999))
def test_numbers_are_read_in_every_grouping(whole: int, millionths: int):
    value = float(f"{whole}.{millionths:06d}")
    english = f"{whole:,}.{millionths:06d}"
    assert number(english) == value
    assert number(english.translate(str.maketrans(",.", ".,"))) == value
    assert number(english.replace(",", "\u202f")) == value
    assert nanoseconds(english, "msecond") == whole * 10**6 + millionths


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).filter(lambda text: ":none:" not in text)


@example(['quoted "twice"  "over"', "b"], 1)
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_TEXT), st.integers(0, 2**32 - 1))
def test_entries_are_found_by_their_middle(stack: list[str], thread: int):
    entries = [f'"annot:{text}:Uint64:12:RGB:0xff00ff00:ASCII:{text}"' for text in stack]
    found, domains = pushed_ranges(f"{thread}  " + "  ".join(entries) + " ")
    assert found == thread
    assert [opened.text for opened in domains.get("annot", [])] == stack
    assert {(opened.payload, opened.color) for opened in domains.get("annot", [])} <= {("12", 0xFF00FF00)}
    started = started_ranges(" " + "  ".join(f'"{index}:{entry[1:]}' for index, entry in enumerate(entries)) + " ")
    assert [(opened.number, opened.text) for opened in started] == list(enumerate(stack))


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=300))
def test_any_text_in_the_columns_is_survived(text: str):
    pushed_ranges(text)
    assert all(opened.text in text for opened in started_ranges(text))


def test_hostile_columns_take_no_time():
    for part in ('":Json:', '"  "', '"a:b:none:none:none:none:ASCII:', ":none" * 9, ":Uint64:" + "9" * 60):
        field = part * (400_000 // len(part))
        assert len(pushed_ranges(field)[1]) < 400_000
        assert len(started_ranges(field)) < 400_000


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_profile_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    header = f'"ID","Process ID","{PUSHED}","{STARTED}","Kernel Name","m.sum"\n"0","7",'.encode()
    path.write_bytes(header + data)
    assert str(path) in refusal(csv_export, path)
