"""Output of nvprof: ``nvprof_{trace,gpu_trace,summary}.csv`` is what nvprof 11.8 printed of `nvprof_file.sample`.

``nvprof_alexnet_flops.csv`` holds the figures of the table that D. Levinthal shows in "Performance analysis of deep
neural networks making the world safe for Skynet" (Microsoft), set as nvprof prints such a table.
"""

from __future__ import annotations

import codecs
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import examples
from refusals import refusal

from annot import correlate
from annot.cli.main import main
from annot.errors import AnnotError
from annot.profile import Profile
from annot.read.nvprof import csv_output

DATA = Path(__file__).parents[1] / "data"
TRACE = (
    '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",'
    '"Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name","Correlation_ID"'
)


def read(folder: Path, text: str | bytes) -> Profile:
    path = folder / "profile.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert csv_output.sniff(path, path.read_bytes()[:65536])
    return csv_output.read(path)


def sums(profile: Profile) -> dict[str, float]:
    return dict(profile.metrics.group_by("name").agg(pl.col("value").sum()).iter_rows())


def test_the_founding_table_gives_its_total_and_the_work_of_an_image():
    profile = csv_output.read(DATA / "nvprof_alexnet_flops.csv")
    assert profile.kernels.height == 17
    assert profile.kernels["process"].unique().to_list() == [115269]
    assert profile.kernels["device"].unique().to_list() == [0]
    total = sums(profile)["flop_count_sp.sum"]
    assert total == 76_202_056_779
    assert round(total / 54) == 1_411_149_200
    values = profile.metrics.pivot("name", index="kernel", values="value")
    product = values["invocations"] * values["flop_count_sp.avg"]
    assert product.equals(values["flop_count_sp.sum"].rename(product.name))
    assert any("totals over all calls" in note for note in profile.meta["notes"])


def test_the_founding_table_with_tabs_and_sums_below_gives_the_same(tmp_path: Path):
    lines = pl.read_csv(DATA / "nvprof_alexnet_flops.csv", skip_rows=3, infer_schema=False)
    table = lines.write_csv(separator="\t", quote_style="never")
    below = "\t\t\t\tTotal flop count\t\t\t\t76,202,056,779\n\t\t\t\tBatch size\t\t\t\t1\n"
    profile = read(tmp_path, "==115269== Metric result:\n```\n\n" + table + below)
    assert profile.metrics.equals(csv_output.read(DATA / "nvprof_alexnet_flops.csv").metrics)


def test_trace_of_work_and_calls_has_ranges_and_layers():
    profile = csv_output.read(DATA / "nvprof_trace.csv")
    assert profile.ranges.select("domain", "text", "start", "end").rows() == [
        ("", "step", 0, 8950),
        ("annot", "Forward Net [4,8]f32 |fwd", 50, 4950),
        ("annot", "fc Linear [4,8]f32 |fwd", 150, 2450),
        ("", 'he said "x", y', 5450, 5550),
        ("", "two\nlines", 5650, 5750),
    ]
    assert profile.marks.select("text", "start").rows() == [("hello", 650)]
    assert profile.kernels.select("device", "stream", "start", "end", "correlation", "name").rows() == [
        (0, 7, 950, 3450, 1, "kernelA(float*, int)"),
        (0, 7, 3950, 4650, 2, "kernelB(float*, int)"),
        (0, 7, 6950, 7250, 3, "kernelA(float*, int)"),
    ]
    assert profile.copies.select("start", "end", "kind", "bytes").rows() == [
        (8150, 8550, "HtoD", 4096), (9250, 9300, "memset", 1024),
    ]  # fmt: skip
    own = dict(correlate(profile).select("layer", "gpu_self_ns").rows())
    assert own["fc"] == 2500
    assert own["step"] == 300 + 400
    assert profile.meta.get("host_times", True)


def test_trace_of_work_alone_knows_no_host_times():
    profile = csv_output.read(DATA / "nvprof_gpu_trace.csv")
    assert profile.kernels["start"].to_list() == [0, 3000, 6000]
    assert profile.launches.is_empty()
    assert profile.meta["host_times"] is False
    assert any("no NVTX ranges" in note for note in profile.meta["notes"])


def test_totals_stay_totals():
    profile = csv_output.read(DATA / "nvprof_summary.csv")
    assert profile.kernels.select("start", "end", "name").rows() == [
        (0, 2800, "kernelA(float*, int)"), (2800, 3500, "kernelB(float*, int)"),
    ]  # fmt: skip
    assert profile.copies.select("start", "end", "kind").rows() == [(3500, 3900, "HtoD"), (3900, 3950, "memset")]
    assert profile.metrics.rows() == [
        (0, "calls", 2.0, ""), (0, "duration.avg", 1400.0, "ns"), (0, "duration.min", 300.0, "ns"),
        (0, "duration.max", 2500.0, "ns"),
        (1, "calls", 1.0, ""), (1, "duration.avg", 700.0, "ns"), (1, "duration.min", 700.0, "ns"),
        (1, "duration.max", 700.0, "ns"),
    ]  # fmt: skip
    assert any("the totals by NVTX range" in note for note in profile.meta["notes"])


def test_counters_join_the_times_of_their_kernel(tmp_path: Path):
    text = """==12== NVPROF is profiling process 12, command: ./a
==12== Warning: Some kernel(s) will be replayed on device 0 in order to collect all events/metrics.
==12== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"Tesla V100 (1)","gemm<float, int>(float*)",3,"ipc","Executed IPC",1.250000,1.750000,1.500000
"Tesla V100 (1)","gemm<float, int>(float*)",3,"dram_read_throughput","Throughput",12.5GB/s,20GB/s,"16.000000GB/s"
"Tesla V100 (1)","gemm<float, int>(float*)",3,"sm_efficiency","Multiprocessor Activity",98.10%,99.00%,98.50%
"Tesla V100 (1)","gemm<float, int>(float*)",3,"tensor_utilization","Utilization","Low (1)","Low (3)","Low (2)"

==12== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,us,
"GPU activities",100.0,1.500000,3,500.0,400.0,600.0,"gemm<float, int>(float*)"
"""
    profile = read(tmp_path, text)
    assert profile.kernels.select("process", "end", "name").rows() == [(12, 1_500_000, "gemm<float, int>(float*)")]
    values = {name: (value, unit) for _, name, value, unit in profile.metrics.rows()}
    assert values["ipc.avg"] == (1.5, "")
    assert values["dram_read_throughput.max"] == (20, "GB/s")
    assert values["sm_efficiency.min"] == (98.1, "%")
    assert values["tensor_utilization.avg"] == (2, "level")
    assert values["invocations"] == (3, "")
    assert "ipc.sum" not in values
    assert any(note.startswith("nvprof printed: Warning: Some kernel(s)") for note in profile.meta["notes"])


def test_counters_of_single_kernels(tmp_path: Path):
    text = """==5== Metric result:
"Device","Context","Stream","Kernel","Correlation_ID","flop_count_sp","ipc"
"Tesla P4 (0)","1","7","a(int, int)",11,"1,024",1.5
"Tesla P4 (0)","1","7","a(int, int)",12,2048,0.5
"""
    profile = read(tmp_path, text)
    assert profile.kernels.select("device", "stream", "correlation", "name").rows() == [
        (0, 7, 11, "a(int, int)"), (0, 7, 12, "a(int, int)"),
    ]  # fmt: skip
    assert sums(profile) == {"flop_count_sp": 3072, "ipc": 2}


def test_ranges_of_the_same_text_nest(tmp_path: Path):
    rows = [(0, "start"), (1, "start"), (2, "end"), (3, "end"), (4, "end")]
    lines = [f'{at},,"[Range {what}] block (Domain: d)",' for at, what in rows]
    header = '"Start","Duration","Name","Correlation_ID"\nms,us,,\n'
    profile = read(tmp_path, header + "\n".join(lines) + '\n1.5,2,"cudaLaunch",1\n')
    assert profile.ranges.select("domain", "start", "end").rows() == [("d", 0, 3_000_000), ("d", 1_000_000, 2_000_000)]
    assert "annot skipped 1 range end without a start." in profile.meta["notes"]


def test_what_a_trace_holds_is_not_added_from_totals_again(tmp_path: Path):
    both = (DATA / "nvprof_trace.csv").read_text() + (DATA / "nvprof_summary.csv").read_text()
    profile = read(tmp_path, both)
    assert profile.kernels.equals(csv_output.read(DATA / "nvprof_trace.csv").kernels)
    assert profile.copies.height == 2


def test_totals_per_device_name_it_once(tmp_path: Path):
    table = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n'
    table += '"GPU activities",100,5,1,5,5,5,"k"\n'
    heads = [
        '==9== Profiling result:\n\n==9== Device "Tesla P4 (0)"',
        '==9== Device "Tesla P4 (1)"',
        "==9== Profiling result:",
    ]
    kernels = read(tmp_path, "\n".join(f"{head}\n{table}" for head in heads)).kernels
    assert kernels.select("device", "start", "end").rows() == [(0, 0, 5000), (1, 5000, 10000), (None, 10000, 15000)]


def test_processes_stay_apart(tmp_path: Path):
    row = '1.0,2.0,,,,,,,,,,,,,,"P4 (0)","1","7","k",{}'
    parts = [f"=={pid}== Profiling result:\n{TRACE}\nms,us,,,,,,,,,,,,,,,,,,\n{row.format(pid)}\n" for pid in (3, 4)]
    kernels = read(tmp_path, "\n".join(parts)).kernels
    assert kernels.select("process", "start", "end", "correlation").rows() == [
        (3, 1_000_000, 1_002_000, 3), (4, 1_000_000, 1_002_000, 4),
    ]  # fmt: skip


def test_older_traces_number_the_names(tmp_path: Path):
    text = '"Start","Duration","Device","Stream","Name"\nms,us,,,\n0,1.5,"K20c (0)","7","k(int, float) [212]"\n'
    assert read(tmp_path, text).kernels.select("correlation", "name").rows() == [(212, "k(int, float)")]


@pytest.mark.parametrize("change", ["bom", "utf16", "crlf", "noise"])
def test_what_shells_and_programs_do_to_the_file_changes_nothing(tmp_path: Path, change: str):
    plain = (DATA / "nvprof_trace.csv").read_bytes()
    changed = {
        "bom": codecs.BOM_UTF8 + plain,
        "utf16": codecs.BOM_UTF16_BE + plain.decode().encode("utf-16-be"),
        "crlf": plain.replace(b"\n", b"\r\n"),
        "noise": b"loss, 1.0\n" + plain.replace(b"\n2.950000,", b"\nepoch 1, loss 0.5\n2.950000,"),
    }[change]
    before, after = csv_output.read(DATA / "nvprof_trace.csv"), read(tmp_path, changed)
    for table in ("ranges", "marks", "launches", "kernels", "copies"):
        assert getattr(after, table).equals(getattr(before, table))


def test_cut_rows_and_rows_without_times_are_counted(tmp_path: Path):
    text = f'{TRACE}\nms,us,,,,,,,,,,,,,,,,,,\n0,1,,,,,,,,,,,,,,"P4 (0)","1","7","k",1\n0,1,,"P4'
    odd = '\n,,,,,,,,,,,,,,,"P4 (0)","1","7","k",2'
    notes = read(tmp_path, text.replace("\n0,1,,,", odd + "\n0,1,,,", 1)).meta["notes"]
    assert "annot skipped 1 line, truncated or from another program." in notes
    assert "annot skipped 1 row without a valid time or GPU activity." in notes


def test_output_without_tables_is_one_sentence(tmp_path: Path):
    with pytest.raises(AnnotError, match=r"profile\.csv is nvprof output without"):
        read(tmp_path, "==7== NVPROF is profiling process 7, command: ./a\n==7== Warning: No kernels were profiled.\n")


def test_other_tables_are_not_taken():
    assert not csv_output.sniff(Path("x"), b'"Time (%)","Total Time (ns)","Name"\n')
    assert not csv_output.sniff(Path("x"), b"Name,Start\n")


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=300), st.sampled_from(["nvprof_trace.csv", "nvprof_summary.csv", "nvprof_alexnet_flops.csv"]))
def test_any_text_ends_in_a_profile_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str, name: str):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    whole = (DATA / name).read_text()
    cut = len(text) * 7 % len(whole)
    path.write_bytes((whole[:cut] + text + whole[cut:]).encode("utf-8", "replace"))
    assert str(path) in refusal(csv_output, path)


@pytest.mark.parametrize("name", ["nvprof_summary.csv", "nvprof_gpu_trace.csv"])
def test_a_summary_shows_no_idle_time(name: str, capsys: pytest.CaptureFixture[str]):
    """The verdict on a trace says how long the GPU was idle. The totals of a summary do not show that."""
    assert main([str(DATA / name)]) == 0
    verdict = capsys.readouterr().out.partition("\n")[0]
    assert ("the GPU idles" in verdict or "the GPU is busy" in verdict) == (name == "nvprof_gpu_trace.csv")
