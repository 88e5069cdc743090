"""The report on the terminal, whole texts at given widths."""

from __future__ import annotations

import io
import re
from pathlib import Path
from textwrap import dedent

import pytest
from operator_traces import H100
from planted_traces import Planted
from ranked import ordered_only
from rich.cells import cell_len
from rich.console import Console
from sqlite_profile import SqliteProfile, in_float32, training
from tables import Rows

from annot.attribution.attribute import attribute
from annot.attribution.layer_tables import by_line
from annot.read.formats import load
from annot.report.terminal.table import print_table
from annot.report.tree import layer_lines
from annot.report.views import views
from annot.runs.run import Run

COMPARED = [name for name, view in views().items() if view.keys]


def _printed(path: Path, width: int, by: str = "layer", **options: str) -> str:
    text = io.StringIO()
    report = Run(load(path)).view(by, **options, total=True, brief=True)  # type: ignore[arg-type]
    print_table(report, Console(file=text, width=width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(path: Path, width: int, by: str = "layer", **options: str) -> list[str]:
    """Return the lines of the table, without the lines above and below."""
    return _printed(path, width, by, **options).partition("\n\n")[2].splitlines()


@pytest.fixture
def with_device(tmp_path: Path) -> Path:
    """Two steps of a small network with kernels."""
    return in_float32(training(device=True)).write(tmp_path / "run.sqlite")


@pytest.fixture
def host_only(tmp_path: Path) -> Path:
    """The same without kernels."""
    return training(device=False).write(tmp_path / "run.sqlite")


GOLDEN = {
    "device 60": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes
        to float32 matrix multiplications outside Tensor Cores, most
        of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs
             unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR
               0, 2.120 to 2.120 ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9%
                   exposed copies, 0.5% waiting for launches, 0.2%
                   waiting for the CPU

        GPU time by layer in total, ms
        Layer                           Forward Backward Share Calls
          Epoch                           2.440    4.260 99.6%     1
            Data wait                                     0.0%     2
            Batch                         2.440    4.260 99.4%     2
              (model) AlexNet             2.440    4.260 95.7%     2
                features Sequential       1.840    3.060 70.0%     2
        >         features.0 Conv2d       1.800    3.000 68.6%     2
                  features.1 ReLU         0.040    0.060  1.4%     2
                classifier.1 Linear       0.600    1.200 25.7%     2
              augment                                     0.0%     2
              Backward (all)                       0.000  0.0%     2
              Optimizer SGD                               2.3%     2

          (unattributed…launch recorded                   0.4%     0

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use
                bfloat16, or at least TF32. Saves at most 94.6% of
                the step.
        Reasons and code: annot report … --by advice
    """,
    "device 80": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix
        multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5%
                   waiting for launches, 0.2% waiting for the CPU

        GPU time by layer in total, ms
        Layer                            Forward  Backward  Total  Share  Calls  Host ms
          Epoch                            2.440     4.260  6.970  99.6%      1    4.400
            Data wait                                       0.000   0.0%      2    0.300
            Batch                          2.440     4.260  6.960  99.4%      2    3.940
              (model) AlexNet              2.440     4.260  6.700  95.7%      2    3.040
                features Sequential        1.840     3.060  4.900  70.0%      2    2.180
        >         features.0 Conv2d        1.800     3.000  4.800  68.6%      2    1.840
                  features.1 ReLU          0.040     0.060  0.100   1.4%      2    0.220
                classifier.1 Linear        0.600     1.200  1.800  25.7%      2    0.740
              augment                                       0.000   0.0%      2    0.080
              Backward (all)                         0.000  0.000   0.0%      2    0.060
              Optimizer SGD                                 0.160   2.3%      2    0.400

          (unattributed…launch recorded                     0.030   0.4%      0    0.000

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least
                TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,
    "device 200": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120 ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5% waiting for launches, 0.2% waiting for the CPU

        GPU time by layer in total, ms
        Layer                                Forward  Backward  Total   Self  Share  Calls   Busy  Kernels  Host ms  Input
          Epoch                                2.440     4.260  6.970  0.010  99.6%      1  4.860        2    4.400
            Data wait                                           0.000  0.000   0.0%      2  0.000             0.300
            Batch                              2.440     4.260  6.960  0.100  99.4%      2  4.860             3.940
              (model) AlexNet                  2.440     4.260  6.700  0.000  95.7%      2  5.420             3.040  [16,3,224,224]f32 (+1)
                features Sequential            1.840     3.060  4.900  0.000  70.0%      2  4.860             2.180  [16,3,224,224]f32 (+1)
        >         features.0 Conv2d            1.800     3.000  4.800  4.800  68.6%      2  4.800        4    1.840  [16,3,224,224]f32 (+1)
                  features.1 ReLU              0.040     0.060  0.100  0.100   1.4%      2  0.100        4    0.220  [16,64,55,55]f32 (+1)
                classifier.1 Linear            0.600     1.200  1.800  1.800  25.7%      2  1.800        4    0.740  [16,9216]f32 (+1)
              augment                                           0.000  0.000   0.0%      2  0.000             0.080
              Backward (all)                             0.000  0.000  0.000   0.0%      2                    0.060
              Optimizer SGD                                     0.160  0.160   2.3%      2  0.160        2    0.400

          (unattributed) no launch recorded                     0.030  0.030   0.4%      0  0.030        1    0.000

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,  # noqa: E501
    "host 80": """\
        Step 2.12 ms on CPU: 40% backward, and 43% in features.0 Conv2d (forward and
        backward).
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 40.1% backward, 33.0% forward, 9.4% optimizer, 8.5% outside ranges,
                   7.1% waiting for data, 1.9% other ranges

        Host time by layer in total, ms
        Layer                        Forward  Backward  Total   Share  Calls
          Epoch                        1.400     1.700  4.400  100.0%      1
            Data wait                                   0.300    6.8%      2
            Batch                      1.400     1.700  3.940   89.5%      2
              (model) AlexNet          1.400     1.640  3.040   69.1%      2
                features Sequential    1.000     1.180  2.180   49.5%      2
        >         features.0 Conv2d    0.800     1.040  1.840   41.8%      2
                  features.1 ReLU      0.140     0.080  0.220    5.0%      2
                classifier.1 Linear    0.340     0.400  0.740   16.8%      2
              augment                                   0.080    1.8%      2
              Backward (all)                     0.060  0.060    1.4%      2
              Optimizer SGD                             0.400    9.1%      2

    """,
    "host 200": """\
        Step 2.12 ms on CPU: 40% backward, and 43% in features.0 Conv2d (forward and backward).
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120 ms
        Step time: 40.1% backward, 33.0% forward, 9.4% optimizer, 8.5% outside ranges, 7.1% waiting for data, 1.9% other ranges

        Host time by layer in total, ms
        Layer                        Forward  Backward  Total   Self   Share  Calls  Input
          Epoch                        1.400     1.700  4.400  0.160  100.0%      1
            Data wait                                   0.300  0.300    6.8%      2
            Batch                      1.400     1.700  3.940  0.360   89.5%      2
              (model) AlexNet          1.400     1.640  3.040  0.120   69.1%      2  [16,3,224,224]f32 (+1)
                features Sequential    1.000     1.180  2.180  0.120   49.5%      2  [16,3,224,224]f32 (+1)
        >         features.0 Conv2d    0.800     1.040  1.840  1.840   41.8%      2  [16,3,224,224]f32 (+1)
                  features.1 ReLU      0.140     0.080  0.220  0.220    5.0%      2  [16,64,55,55]f32 (+1)
                classifier.1 Linear    0.340     0.400  0.740  0.740   16.8%      2  [16,9216]f32 (+1)
              augment                                   0.080  0.080    1.8%      2
              Backward (all)                     0.060  0.060  0.060    1.4%      2
              Optimizer SGD                             0.400  0.400    9.1%      2

    """,  # noqa: E501
    "module": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix
        multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5%
                   waiting for launches, 0.2% waiting for the CPU

        Time by module in total, ms
        Module                     Phase  Layers  Calls    GPU  GPU self  Share  Host ms
          AlexNet                forward       1      2  2.440     0.000  34.9%    1.400
          Sequential             forward       1      2  1.840     0.000  26.3%    1.000
          Conv2d                 forward       1      2  1.800     1.800  25.7%    0.800
          ReLU                   forward       1      2  0.040     0.040   0.6%    0.140
          Linear                 forward       1      2  0.600     0.600   8.6%    0.340
          AlexNet               backward       1      2  4.260     0.000  60.9%    1.640
          Linear                backward       1      2  1.200     1.200  17.1%    0.400
          Sequential            backward       1      2  3.060     0.000  43.7%    1.180
          ReLU                  backward       1      2  0.060     0.060   0.9%    0.080
        > Conv2d                backward       1      2  3.000     3.000  42.9%    1.040
          SGD                  optimizer       1      2  0.160     0.160   2.3%    0.400
          (no module)              other       3      5  0.110     0.110   1.6%    0.600
          (no module)               data       1      2  0.000     0.000   0.0%    0.300
          (no module)           backward       1      2  0.000     0.000   0.0%    0.060
          (unattributed)  (unattributed)       1      0  0.030     0.030   0.4%    0.000

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least
                TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,
    "phase": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix
        multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5%
                   waiting for launches, 0.2% waiting for the CPU

        Time by phase in total, ms
        Phase             Calls    GPU  Share  Host ms
          other               1  0.110   1.6%    0.600
          data                2  0.000   0.0%    0.300
          forward             2  2.440  34.9%    1.400
        > backward            2  4.260  60.9%    1.700
          optimizer           2  0.160   2.3%    0.400
          (unattributed)      0  0.030   0.4%    0.000

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least
                TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,
    "kernel": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix
        multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5%
                   waiting for launches, 0.2% waiting for the CPU

        Time by kernel in total, ms
        Kernel                         Calls  Total  Share  Mean ms  Layers
        > ampere_scudnn_128x64_nt          2  3.000  42.9%    1.500       1
          ampere_scudnn_128x64_nn          2  1.800  25.7%    0.900       1
          ampere_sgemm_128x64_tn           4  1.800  25.7%    0.450       1
          sgd                              2  0.160   2.3%    0.080       1
          (copy HtoD)                      2  0.100   1.4%    0.050       1
          relu_bwd                         2  0.060   0.9%    0.030       1
          relu_fwd                         2  0.040   0.6%    0.020       1
          launched before the capture      1  0.030   0.4%    0.030       0
          stray                            2  0.010   0.1%    0.005       1

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least
                TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,
    "step": """\
        Step 2.12 ms on one GPU: the GPU is busy 96%, and 95% goes to float32 matrix
        multiplications outside Tensor Cores, most of it in features.0 Conv2d (71%).
        GPU: 7.000 ms = 6.970 ms in ranges (99.6%) + 30.00 µs unattributed (0.4%)
        Host: 4.400 ms in 31 ranges on 1 thread
        Steps: 2 (batch ranges), mean 2.120 ms, median 2.120 ms, IQR 0, 2.120 to 2.120
               ms
        Step time: 94.8% other kernels, 3.5% waiting for data, 0.9% exposed copies, 0.5%
                   waiting for launches, 0.2% waiting for the CPU

        Time by step, ms
        Step           Time   Data  Forward  Backward  Optimizer    GPU
        0             2.120  0.150    0.700     0.850      0.200  3.480
        1             2.120  0.150    0.700     0.850      0.200  3.480

        Note: 1 kernel or copy with no launch recorded
        Advice: Run matrix multiplications on Tensor Cores: use bfloat16, or at least
                TF32. Saves at most 94.6% of the step.
        Reasons and code: annot report … --by advice
    """,
}


@pytest.mark.parametrize("width", [60, 80, 200])
def test_layers_with_device(with_device: Path, width: int) -> None:
    """The table of a profile with kernels shows device time, and loses only the less important columns."""
    assert _printed(with_device, width) == dedent(GOLDEN[f"device {width}"])


@pytest.mark.parametrize("width", [80, 200])
def test_layers_on_the_host(host_only: Path, width: int) -> None:
    """The table of a profile without kernels shows host time."""
    assert _printed(host_only, width) == dedent(GOLDEN[f"host {width}"])


@pytest.mark.parametrize("by", ["module", "phase", "kernel", "step"])
def test_other_groupings(with_device: Path, by: str) -> None:
    """The other groupings are flat tables with the same lines below."""
    assert _printed(with_device, 80, by) == dedent(GOLDEN[by])


def test_sorted_by_time(with_device: Path) -> None:
    """Sorted by time, siblings stand with the longest first, and children stay below their parent."""
    lines = _table(with_device, 80, sort="time")
    labels = [re.split(r"(?<=\S)  ", line[2:])[0] for line in lines[2:9]]
    assert labels == [
        "Epoch", "  Batch", "    (model) AlexNet", "      features Sequential", "        features.0 Conv2d",
        "        features.1 ReLU",
        "      classifier.1 Linear",
    ]  # fmt: skip


def test_layers_without_a_model_and_two_models(tmp_path: Path) -> None:
    """Paths nest below each other also without a root; with two roots they stand below neither."""
    profile = SqliteProfile()
    profile.layer("Forward Generator |fwd", 0, 10)
    profile.layer("Forward Critic |fwd", 20, 30)
    profile.layer("block Block |fwd", 40, 60)
    profile.layer("block.attention.query Linear |fwd", 42, 50)
    profile.layer("blocks Mlp |fwd", 70, 80)
    lines = _table(profile.write(tmp_path / "x"), 80)[2:7]
    assert [line[:26].rstrip() for line in lines] == [
        "  (model) Generator", "  (model) Critic", "  block Block", "    attention.query Linear", "  blocks Mlp",
    ]  # fmt: skip


def _lines_of(*ranges: tuple[str, int, int]) -> list[tuple[str, str, int]]:
    """Label, module and depth of the lines of ranges on one thread."""
    rows = Rows()
    for text, start, end in ranges:
        rows.range(text, start, end)
    return [(line.label, line.module, line.depth) for line in layer_lines(by_line(attribute(rows.build())))]


def test_fused_kernels_are_inside_the_layer_that_contains_their_layers() -> None:
    """A fused kernel is a line of the innermost layer that contains its layers, beside the compiled graph."""
    assert _lines_of(
        ("Forward Net |fwd", 0, 100), ("Forward CompiledGraph#0 |fwd", 1, 99), ("a Block |fwd", 2, 50),
        ("a CompiledGraph#1 |fwd", 3, 49), ("a.x+a.y Linear+ReLU |fwd", 4, 10), ("a.y+b ReLU+Block |fwd", 60, 70),
    ) == [
        ("(model)", "Net", 0), ("(graph)", "CompiledGraph#0", 1), ("a", "Block", 1), ("(graph)", "CompiledGraph#1", 2),
        ("x+y", "Linear+ReLU", 2), ("a.y+b", "ReLU+Block", 1),
    ]  # fmt: skip


def test_wrapped_model_stands_below_its_wrapper() -> None:
    """Its layers are below the model, in a step too."""
    wrapped = ("Forward DistributedDataParallel |fwd", 10, 90), ("Forward Net |fwd", 20, 80), ("a Linear |fwd", 30, 40)
    assert _lines_of(("Batch 0 |step", 0, 100), *wrapped) == [
        ("Batch", "", 0), ("(model)", "DistributedDataParallel", 1), ("module", "Net", 2), ("a", "Linear", 3),
    ]  # fmt: skip


def test_names_do_nothing_but_appear(tmp_path: Path) -> None:
    """Escape sequences and markup in a name are shown, not obeyed."""
    profile = SqliteProfile()
    profile.range("\x1b[2J[red]x[/red]\nsecond line", 0, 10)
    printed = _printed(profile.write(tmp_path / "x"), 80)
    assert r"\x1b[2J[red]x[/red]\nsecond line" in printed
    assert "\x1b" not in printed


def test_long_names_are_shortened_not_the_numbers(tmp_path: Path) -> None:
    """A name longer than its column loses its middle, which is least telling, and every number stays whole."""
    profile = SqliteProfile()
    profile.layer(f"{'encoder.layers.' * 9}0 Linear [1,2]f32 |fwd", 0, 123_456_789)
    line = _table(profile.write(tmp_path / "x"), 80)[2]
    assert line == "> encoder.layers.encode….encoder.layers.0 Linear   123.46  123.46  100.0%      1"


def test_names_of_wide_characters_are_cut_to_their_width(tmp_path: Path) -> None:
    """A character that takes two columns counts as two, and half of one is not shown."""
    profile = SqliteProfile()
    profile.range("層" * 90, 0, 123_456_789)
    for width in (60, 61, 62, 63):
        line = _table(profile.write(tmp_path / f"{width}"), width)[2]
        assert "層…層" in line.replace(" ", "")
        assert cell_len(line) <= width
        assert line.split()[-1] == "1"


def test_kernels_lose_their_arguments(tmp_path: Path) -> None:
    """A kernel shows what it does, not the namespaces of PyTorch and not its types."""
    profile = SqliteProfile()
    profile.call(10, 20, 1)
    profile.kernel(30, 90, 1, f"void at::native::(anonymous namespace)::max_pool<c10::Half, {'int, ' * 30}>(x)")
    line = _table(profile.write(tmp_path / "x"), 60, "kernel")[2]
    assert line.startswith("> max_pool  ")


def test_columns_of_which_nothing_is_known_are_left_out(tmp_path: Path) -> None:
    """A column without any number takes no room; one with a 0 does."""
    profile = SqliteProfile()
    for start in (0, 200, 400):
        profile.range("step", start, start + 100)
    heads = _table(profile.write(tmp_path / "x"), 200, "step")[1].split()
    assert heads == ["Step", "Time", "Data", "Forward", "Backward", "Optimizer"]


def test_times_of_0_leave_their_room_to_others(tmp_path: Path) -> None:
    """If the columns do not fit, those of times that are 0 in every row go first. A wide table has them."""
    profile = SqliteProfile()
    for number in range(3):
        start = 1_000_000_000 * number
        profile.range(
            f"execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk{number + 32_785}sqsq32sqsk32785)",
            start,
            start + 500_000_000,
        )
        profile.call(start + 1000, start + 2000, number + 1)
        profile.kernel(start + 3000, start + 9_000_000, number + 1)
    path = profile.write(tmp_path / "x")
    narrow, wide = (_table(path, width, "step")[1].split() for width in (80, 120))
    assert narrow == ["Step", "Kind", "Requests", "Tokens", "Context", "Time", "GPU"]
    assert wide == [*narrow[:-1], "Data", "Forward", "Backward", "Optimizer", "GPU"]


def test_time_that_only_the_clock_attributes(tmp_path: Path) -> None:
    """Work launched by a thread without ranges has a column of its own, which is there only if there is such work."""
    profile = SqliteProfile()
    profile.layer("fc Linear [4,8]f32 |fwd", 0, 100_000)
    profile.call(10_000, 20_000, 1, number=2)
    profile.kernel(30_000, 55_000, 1)
    lines = _table(profile.write(tmp_path / "x"), 100)
    assert " ".join(lines[1].split()) == "Layer Forward Total Self Share Calls Busy Kernels By time Host µs"
    assert " ".join(lines[2].split()) == "> fc Linear 25.00 25.00 25.00 100.0% 1 25.00 1 25.00 100.00"


def test_steps_of_warm_up_are_told_apart(tmp_path: Path) -> None:
    """The first, longer step is marked, and the line above the table leaves it out of median and IQR."""
    profile = SqliteProfile()
    start = 0
    for number, length in enumerate([900, 100, 104, 102, 101]):
        profile.layer(f"Batch {number} |step", start, start + length * 1000)
        start += length * 1000 + 5000
    path = profile.write(tmp_path / "x")
    lines = _table(path, 80, "step")
    assert [line.split()[:2] for line in lines[2:5]] == [["0", "warm-up"], ["1", "100.00"], ["2", "104.00"]]
    assert _printed(path, 80, "step").splitlines()[2:4] == [
        "Steps: 5 (batch ranges), mean 101.75 µs, median 101.50 µs, IQR 3.00 µs, 100.00",
        "       to 104.00 µs, excluding 1 warm-up step",
    ]


@pytest.mark.parametrize("by", COMPARED)
def test_unknown_host_times_are_not_shown(by: str) -> None:
    """A profile that knows only an order of things on the host has no host column and says why."""
    text = io.StringIO()
    print_table(Run(ordered_only()).view(by, total=True), Console(file=text, width=140))
    totals, _, table = text.getvalue().partition("\n\n")
    assert "Host" not in table
    assert "Host: times unknown, 1 range on 1 thread" in totals


@pytest.mark.parametrize(
    ("by", "hint"),
    [
        ("module", "emit_ranges(model)"),
        ("kernel", "Kernels need a profile with GPU activity"),
        ("step", "batches(loader)"),
    ],
)
def test_nothing_to_show(tmp_path: Path, by: str, hint: str) -> None:
    """Where there are no rows, the report says what would make some."""
    profile = SqliteProfile()
    profile.range("r", 0, 10)
    assert hint in _printed(profile.write(tmp_path / "x"), 80, by)


def test_arguments_are_checked(host_only: Path) -> None:
    """A grouping or order that does not exist is a ValueError that lists what does."""
    profile = load(host_only)
    with pytest.raises(
        ValueError, match=r"by must be one of layer, module, phase, kernel, kind, op, step, .*, got 'color'"
    ):
        Run(profile).view("color", total=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sort must be one of order, time, got 'name'"):
        Run(profile).view(sort="name", total=True)  # type: ignore[arg-type]


def test_loops_say_what_they_are_for(tmp_path: Path) -> None:
    """Epochs and batches of validation stand apart from those of training, by name too."""
    profile = SqliteProfile()
    for begin, word in ((0, ""), (100, "validate ")):
        profile.layer(f"Epoch {word}0 |epoch", begin, begin + 90)
        profile.layer(f"Batch {word}0 |step", begin + 5, begin + 50)
    lines = _table(profile.write(tmp_path / "run.sqlite"), 60)
    assert [re.split(r"(?<=\S)  ", line)[0] for line in lines if "%" in line] == [
        "> Epoch", "    Batch", "  Epoch validate", "    Batch validate", "  (unattributed) outside ranges",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_a_roofline_by_shape_shows_the_shapes(width: int, tmp_path: Path) -> None:
    """Rows of one operator differ only in their inputs, so that the last columns of numbers are hidden first."""
    kernels = (("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 900),)
    trace = Planted(H100).op("aten::mm", [4096, 4096], [4096, 64], kernels=kernels)
    path = trace.op("aten::mm", [4096, 4096], [4096, 8192], kernels=kernels).save(tmp_path)
    lines = _printed(path, width, "op", columns="roofline").splitlines()
    rows = [line for line in lines if re.match(r"[> ] aten::mm .*%", line)]
    assert sorted(row.rpartition(",")[2] for row in rows) == ["64]bf16", "8192]bf16"]
    assert any("Share" in line and line.endswith("Inputs") for line in lines)
