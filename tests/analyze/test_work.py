"""Expected work by hand counts, and from profiles to tables."""

from __future__ import annotations

import polars as pl
import pytest
from tables import MAIN, Rows

from annot.analyze.work.call import NAMES, UncountableError, Work, item_size
from annot.analyze.work.formulas import LAYERS, expected
from annot.analyze.work.layer_work import by_work, layer_work, not_counted
from annot.attribution.attribute import attribute
from annot.labels.tag import Tag, parse
from annot.runs.run import Run


def said(text: str) -> Tag:
    """The tag of a text that must be annot's."""
    tag = parse(text)
    assert tag is not None, text
    return tag


def work(text: str) -> Work:
    """The work of a text whose class must be known."""
    found = expected(said(text))
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    ("dtypes", "size"),
    [
        ("bool i8 u8 qint8 quint8 float8_e4m3fn float8_e8m0fnu", 1),
        ("f16 bf16 i16 u16", 2),
        ("f32 i32 u32 qint32 c32", 4),
        ("f64 i64 u64 c64", 8),
        ("c128", 16),
    ],
)
def test_elements_have_the_bits_in_their_dtype(dtypes: str, size: int) -> None:
    """The name of a dtype has its bits, except Booleans and dtypes of 8 bits with a format."""
    assert {dtype: item_size(dtype) for dtype in dtypes.split()} == dict.fromkeys(dtypes.split(), size)


@pytest.mark.parametrize("dtype", ["", "str", "i4", "quint4x2", "float4_e2m1fn_x2", "f32x", "bfloat16"])
def test_other_dtypes_have_no_size(dtype: str) -> None:
    """A dtype of parts of bytes, or of an unknown name, has no size."""
    with pytest.raises(UncountableError):
        item_size(dtype)


def test_names_of_operations_have_formulas() -> None:
    """The layers that operations stand for have formulas, and no list of names has one twice."""
    assert {layer for names in NAMES.layer_of.values() for layer in names.values()} <= LAYERS.keys()
    assert all(len(set(names)) == len(names) for names in NAMES.names.values())
    assert set(NAMES.names["in_place"]) <= set(NAMES.names["operators"])


ALEXNET = {
    "Conv2d [1,3,227,227]f32 out=64 kernel=11,11 stride=4,4": 140_553_600,
    "Conv2d [1,64,27,27]f32 out=192 kernel=5,5 padding=same": 447_897_600,
    "Conv2d [1,192,13,13]f32 out=384 kernel=3,3 padding=1,1": 224_280_576,
    "Conv2d [1,384,13,13]f32 out=256 kernel=3,3 padding=1,1": 299_040_768,
    "Conv2d [1,256,13,13]f32 out=256 kernel=3,3 padding=1,1": 199_360_512,
    "Linear [1,9216]f32 out=4096": 75_497_472,
    "Linear [1,4096]f32 out=4096": 33_554_432,
    "Linear [1,4096]f32 out=1000": 8_192_000,
}
"""Expected FLOPs of the table in `seed-facts.md`."""


@pytest.mark.parametrize(("text", "flops"), ALEXNET.items())
def test_the_alexnet_of_the_founding_document(text: str, flops: int) -> None:
    """Every expected number of the table comes out exactly; Keras's names and layout give the same."""
    assert work(f"x {text} |fwd").flops == flops
    assert work(f"x {text.replace('[1,', '[32,')} |fwd").flops == 32 * flops
    assert work(f"x {text} |bwd").flops == 2 * flops
    assert work(f"x {text} grad=weight |bwd").flops == work(f"x {text} grad=input |bwd").flops == flops
    keras = text.replace("Conv2d", "Conv2D").replace("Linear", "Dense").replace("padding=1,1", "padding=same")
    for channels, size in ((3, 227), (64, 27), (192, 13), (384, 13), (256, 13)):
        keras = keras.replace(f"[1,{channels},{size},{size}]", f"[1,{size},{size},{channels}]")
    assert work(f"x {keras} |fwd") == work(f"x {text} |fwd")


@pytest.mark.parametrize("hidden", [32, 650, 1024])
def test_a_step_of_lstm_costs_sixteen_times_hidden_squared(hidden: int) -> None:
    """Per sample and step, in cells, in layers, and in one layer more; the slope of the PTB benchmark."""
    assert work(f"x LSTMCell [1,{hidden}]f32 hidden={hidden} |fwd").flops == 16 * hidden**2
    one = work(f"x LSTM [32,128,{hidden}]f32 hidden={hidden} |fwd").flops
    two = work(f"x LSTM [32,128,{hidden}]f32 hidden={hidden} layers=2 |fwd").flops
    assert two - one == one == 32 * 128 * 16 * hidden**2
    assert work(f"x GRU [32,128,{hidden}]f32 hidden={hidden} |fwd").flops * 4 == one * 3
    assert work(f"x LSTM [4096,{hidden}]f32 [32]i64 hidden={hidden} |fwd").flops == one  # packed


@pytest.mark.parametrize(("length", "source", "width", "heads"), [(20, 20, 256, 8), (7, 19, 64, 4)])
def test_attention_has_four_projections_and_two_products(length: int, source: int, width: int, heads: int) -> None:
    """The terms in L·d² and L²·d; how many heads there are does not matter."""
    texts = [f"[{size},2,{width}]f32" for size in (length, source, source)]
    found = work(f"x MultiheadAttention {' '.join(texts)} heads={heads} |fwd")
    projections = 2 * 2 * (2 * length + 2 * source) * width**2
    assert found.flops == projections + 2 * 2 * 2 * length * source * width
    assert found.params == 4 * width**2 + 4 * width
    texts = [f"[2,{size},{width}]f32" for size in (length, source, source)]
    assert work(f"x MultiheadAttention {' '.join(texts)} heads={heads} batch_first=True |fwd") == found


def test_grouped_heads_and_causal_attention() -> None:
    """Key heads that several query heads share save bytes, not products; a causal mask halves the pairs, about."""

    def text(heads: int, more: str = "") -> str:
        return f"a A scaled_dot_product_attention [2,8,10,16]f16 [2,{heads},10,16]f16 [2,{heads},10,16]f16{more} |op"

    full, grouped = work(text(8)), work(text(2, " enable_gqa=True"))
    assert full.flops == grouped.flops == 2 * 2 * 8 * 10 * 10 * (16 + 16)
    assert full.bytes_read - grouped.bytes_read == 2 * 2 * 6 * 10 * 16 * 2
    assert work(text(8, " is_causal=True")).flops == full.flops * 55 // 100
    keras = "x {} [2,10,64]f32 [2,10,64]f32 heads=8 key_dim=16{} |fwd"
    assert work(keras.format("MultiHeadAttention", "")).flops == 2 * 2 * 10 * (4 * 64 * 128) + 4 * 2 * 100 * 128
    assert work(keras.format("GroupQueryAttention", " kv_heads=2")).flops == (
        2 * 2 * 10 * (2 * 64 * 128 + 2 * 64 * 32) + 4 * 2 * 100 * 128
    )


HAND = {
    # text: FLOPs, bytes read, bytes written, parameters
    "Linear [2,3]f32 out=4 bias=False |fwd": (48, 4 * (6 + 12), 32, 12),
    "Linear [2,3]f32 out=4 autocast=bf16 |fwd": (48, 2 * (6 + 16), 16, 16),
    "Linear [2,3]f32 out=4 |bwd": (96, 4 * (8 + 16 + 6), 4 * (6 + 16), 16),
    "Linear [2,3]f32 out=4 grad=weight |bwd": (48, 4 * (8 + 6), 4 * 16, 16),
    "Linear [2,3]f32 out=4 grad=input |bwd": (48, 4 * (8 + 16), 4 * 6, 16),
    "Linear [2,3]f32 out=4 |re": (48, 4 * (6 + 16), 32, 16),
    "Conv1d [2,4,9]f16 out=6 kernel=3, stride=2, dilation=2, groups=2 |fwd": (
        2 * 2 * 6 * 3 * 2 * 3, 2 * (72 + 42), 2 * 36, 42,
    ),
    "ConvTranspose1d [2,4,9]f32 out=6 kernel=3, stride=2, bias=False |fwd": (
        2 * 2 * 4 * 9 * 6 * 3, 4 * (72 + 72), 4 * 2 * 6 * 19, 72,
    ),
    "MaxPool2d [1,64,55,55]f32 kernel=3 stride=2 |fwd": (27 * 27 * 64 * 8, 4 * 64 * 55**2, 4 * 46656, 0),
    "AvgPool1d [1,2,9]f32 kernel=2, stride=2, ceil=True |fwd": (2 * 5 * 2, 72, 40, 0),
    "AdaptiveAvgPool2d [2,3,8,8]f32 out=1 |fwd": (2 * 3 * 64, 4 * 384, 24, 0),
    "AdaptiveAvgPool2d [2,3,8,8]f32 out=None,4 |fwd": (192 * 2, 4 * 384, 4 * 192, 0),
    "Embedding [4,5]i64 num=100 dim=8 dtype=bf16 |fwd": (0, 160 + 20 * 8 * 2, 20 * 8 * 2, 800),
    "Embedding [4,5]i64 num=100 dim=8 |bwd": (160, 4 * 160 + 160, 3200, 800),
    "BatchNorm2d [2,3,4,4]f32 affine=False |fwd": (5 * 96, 384, 384, 0),
    "LayerNorm [2,8]bf16 over=8, |fwd": (7 * 16, 2 * (16 + 16), 32, 16),
    "RMSNorm [2,8]f32 over=8, |fwd": (4 * 16, 4 * 24, 64, 8),
    "ReLU [10]f32 |fwd": (10, 40, 40, 0),
    "Softmax [2,5]f32 |fwd": (50, 40, 40, 0),
    "CrossEntropyLoss [4,10]f32 [4]i64 |fwd": (40 * 6, 160 + 32, 4, 0),
    "Upsample [1,2,4,4]f32 scale=2.0 |fwd": (0, 128, 512, 0),
    "Sequential [2,3]f32 |fwd": (0, 0, 0, 0),
    "MyConv [1,4,9]f32 base=Conv1d out=6 kernel=3, |fwd": (2 * 6 * 7 * 4 * 3, 4 * (36 + 78), 4 * 42, 78),
    "DepthwiseConv2D [1,8,8,4]f32 kernel=3,3 padding=same |fwd": (2 * 64 * 4 * 9, 4 * (256 + 40), 1024, 40),
    "SeparableConv2D [1,8,8,4]f32 out=6 kernel=3,3 |fwd": (2 * 36 * (36 + 24), 4 * (256 + 66), 4 * 216, 66),
    "LSTM [2,5,3]f32 units=4 |fwd": (2 * 10 * 4 * 4 * 7, 4 * (30 + 128), 32, 4 * 4 * 7 + 16),
    "LSTM [2,5,3]f32 units=4 sequences=True |fwd": (2 * 10 * 4 * 4 * 7, 4 * (30 + 128), 160, 4 * 4 * 7 + 16),
    "BatchNormalization [2,4,4,3]f32 |fwd": (7 * 96, 4 * (96 + 6), 384, 6),
    "MaxPooling2D [1,5,5,3]f32 kernel=2,2 stride=2,2 |fwd": (12 * 3, 300, 48, 0),
}  # fmt: skip


@pytest.mark.parametrize(("text", "numbers"), HAND.items())
def test_hand_counts(text: str, numbers: tuple[int, int, int, int]) -> None:
    """FLOPs, bytes read and written, and parameters, as counted on paper."""
    assert work(f"x {text}") == Work(*numbers)


@pytest.mark.parametrize(
    "text",
    [
        "x Unheard [2,3]f32 |fwd",
        "x Linear [2,3]f32 |fwd",
        "x Linear out=4 |fwd",
        "x Linear [?,3]f32 out=4 |fwd",
        "x Linear [2,3]odd out=4 |fwd",
        "x Linear []f32 out=many |fwd",
        "x Conv2d [3]f32 out=4 kernel=3,3 |fwd",
        "x Conv2d [1,3,8,8]f32 out=4 kernel=3,3 stride=0,0 |fwd",
        "x Conv2d [1,3,8,8]f32 out=4 kernel=3,3 groups=0 |fwd",
        "x Conv2d [1,3,8,8]f32 out=4 kernel=3,3 stride=1,2,3 |fwd",
        "x LSTM [3]f32 layers=2 |fwd",
        "x MultiheadAttention [3]f32 heads=2 |fwd",
        "x AdaptiveAvgPool2d [3]f32 out=1 |fwd",
        "x BatchNorm2d [3]f32 |fwd",
        "x GlobalAveragePooling2D []f32 |fwd",
        "x Upsample [1,2,4]f32 mode=odd scale=2.0 |fwd",
        "x Upsample [1,2,4]f32 mode=linear scale=inf |fwd",
        "a B matmul [3]f32 |op",
        "a B matmul [3,4]f32 [5,6]f32 |op",
        "a B add [3]f32 [4]f32 |op",
        "a B frobnicate [3]f32 |op",
    ],
)
def test_what_is_not_known_is_not_guessed(text: str) -> None:
    """A class that nobody knows, or a text that says too little or nonsense, has no work."""
    assert expected(said(text)) is None


@pytest.mark.parametrize(
    ("text", "flops", "written"),
    [
        ("a B matmul [2,1,3,4]f32 [1,5,4,6]f32 |op", 2 * 10 * 3 * 6 * 4, 10 * 3 * 6 * 4),
        ("a B matmul [4]f32 [5,4,6]f32 |op", 2 * 5 * 4 * 6, 5 * 6 * 4),
        ("a B matmul [5,4,6]f32 [6]f32 |op", 2 * 5 * 4 * 6, 5 * 4 * 4),
        ("a B add [4,1]f32 [1,5]f32 |op", 20, 80),
        ("a B mul [2,3]f32 []f32 |op", 6, 24),
    ],
)
def test_operations_broadcast(text: str, flops: int, written: int) -> None:
    """What is small on one side is used again for each element of the other."""
    work = expected(said(text))
    assert work is not None
    assert (work.flops, work.bytes_written) == (flops, written)


@pytest.mark.parametrize("call", ["_set_grad_enabled arg0=False", "new_zeros [2,3]f32 arg1=4", "zeros_like [2,3]f32"])
def test_new_tensors_and_modes_are_no_work(call: str) -> None:
    """They leave the work of the layer that calls them known, such as one with `torch.no_grad()`."""
    rows = Rows().range("a B [2,3]f32 |fwd", 0, 50)
    rows.range("a B mul [2,3]f32 []f32 |op", 10, 20).range(f"a B {call} |op", 30, 40)
    assert row(layer_work(attribute(rows.build())), "a", "forward")["flops"] == 6


def row(table: pl.DataFrame, layer: str, phase: str) -> dict[str, object]:
    """The one row of a layer."""
    return table.row(by_predicate=(pl.col("layer") == layer) & (pl.col("phase") == phase), named=True)


def test_layers_add_their_calls_up() -> None:
    """Calls with several shapes add up; the layer around has its own row; an unknown class voids its numbers."""
    rows = Rows().range("Forward Net [2,3]f32 |fwd", 0, 100)
    for start, text in enumerate(("a Linear [2,3]f32 out=4", "a Linear [2,3]f32 out=4", "a Linear [5,3]f32 out=4")):
        rows.range(f"{text} |fwd", 10 + 10 * start, 15 + 10 * start)
    rows.range("b Odd [2,3]f32 |fwd", 50, 60).range("Backward |bwd", 110, 200)
    rows.range("a Linear [2,3]f32 out=4 grad=weight |bwd", 120, 130)
    rows.range("Optimizer SGD params=16 momentum=True |opt", 210, 220).range("Optimizer LBFGS params=16 |opt", 230, 240)
    rows.range("zero_grad SGD |opt", 250, 260)
    table = layer_work(attribute(rows.build()))
    assert table.select("layer", "phase", "flops", "params", "counted").rows() == [
        ("", "forward", None, None, False),
        ("a", "forward", 2 * 48 + 120, 16, True),
        ("b", "forward", None, None, False),
        ("a", "backward", 48, 16, True),
        ("", "optimizer", 4 * 16, 16, True),
        ("", "optimizer", None, None, False),
    ]
    assert not_counted(table) == (["Odd", "LBFGS"], ["Net"])


def test_one_call_that_says_nothing_voids_the_sum() -> None:
    """A sum of which a part is missing is no sum."""
    rows = Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 5).range("a Linear |fwd", 10, 15)
    assert row(layer_work(attribute(rows.build())), "a", "forward")["counted"] is False


def test_operations_tell_the_work_of_an_unknown_class() -> None:
    """Without operations it is unknown; with them the layer has what it calls itself, and so has its backward."""

    def build(*, ops: bool, odd: bool = False) -> pl.DataFrame:
        rows = Rows().range("a Mix [2,3]f32 |fwd", 0, 100).range("a.fc Linear [2,3]f32 out=4 |fwd", 10, 30)
        if ops:
            rows.range("a.fc Linear linear [2,3]f32 [4,3]f32 [4]f32 |op", 15, 20)
            rows.range("a Mix matmul [2,3]f32 [3,5]f32 |op", 40, 50).range("a Mix relu [2,5]f32 |op", 60, 70)
            rows.range("a Mix view [2,5]f32 |op", 75, 76)
        if odd:
            rows.range("a Mix frobnicate [2,5]f32 |op", 80, 90)
        return layer_work(attribute(rows.range("a Mix [2,3]f32 |bwd", 200, 300).build()))

    assert row(build(ops=False), "a", "forward")["flops"] is None
    table = build(ops=True)
    assert row(table, "a", "forward")["flops"] == 60 + 10
    assert row(table, "a", "backward")["flops"] == 120 + 10
    assert row(table, "a.fc", "forward")["flops"] == 48  # its own operation is not counted again
    assert row(build(ops=True, odd=True), "a", "forward")["flops"] is None


def test_an_encoder_layer_counts_its_layers_only_if_they_did_not_run() -> None:
    """PyTorch's fast path of inference calls none of them."""
    text = "e TransformerEncoderLayer [2,5,8]f32 heads=2 feed=16 batch_first=True |fwd"
    alone = row(layer_work(attribute(Rows().range(text, 0, 9).build())), "e", "forward")
    assert alone["params"] == 4 * 64 + 32 + 2 * 8 * 16 + 16 + 8 + 32
    products = 2 * 10 * 4 * 64 + 4 * 2 * 25 * 8 + 2 * 10 * 2 * 8 * 16
    assert alone["flops"] == products + 10 * (16 + 16) + 2 * 7 * 80
    inner = Rows().range(text, 0, 90).range("e.linear1 Linear [2,5,8]f32 out=16 |fwd", 10, 20)
    assert row(layer_work(attribute(inner.build())), "e", "forward")["flops"] == 10 * (16 + 16)


def test_speed_is_that_of_the_device_or_of_the_host() -> None:
    """FLOP/s is the work over the layer's own time on devices; where there are none, on the host."""

    def build(*, device: bool) -> pl.DataFrame:
        rows = Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 100)
        if device:
            rows.kernel(50, (200, 216), MAIN)
        return by_work(attribute(rows.build()))

    assert build(device=False)["flops_per_s"].to_list() == [48 / 100e-9]
    assert build(device=True)["flops_per_s"].to_list() == [48 / 16e-9]


def test_layer_reports_carry_the_work() -> None:
    """Rows of layers have flops, bytes and params; those that are no layer have null."""
    rows = Rows().range("a Linear [2,3]f32 out=4 |fwd", 0, 100).range("mine", 110, 120)
    report = Run(rows.build()).view(total=True)
    assert report.rows.select("layer", "flops", "bytes", "params").rows() == [
        ("a", 48, 4 * (6 + 16) + 32, 16),
        ("mine", None, None, None),
        ("(unattributed)", None, None, None),
    ]


def test_damage_does_not_overflow() -> None:
    """Sizes that no memory holds are not counted, nor does counting take long."""
    endless = f"x LSTM [2,{10**15},3]f32 hidden=4 layers={10**15} |fwd"
    assert work(endless).flops > 10**30
    query = f"[1,{10**15},8]f32"
    assert work(f"a A scaled_dot_product_attention {query} {query} {query} is_causal=True |op").flops > 10**30
    rows = Rows().range(f"a Linear [{10**12},{10**12}]f32 out=4 |fwd", 0, 100)
    assert row(layer_work(attribute(rows.build())), "a", "forward")["counted"] is False
