"""Expected work of Keras layers, against TensorFlow's own count, the PyTorch versions, weights and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matrices import every_third

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from alexnet_keras import AlexNet  # noqa: E402
from architectures import RESNET_BLOCKS  # noqa: E402
from googlenet_keras import GoogLeNet  # noqa: E402
from keras import layers  # noqa: E402
from keras_work import parameters, profiled, symbolic, work_of  # noqa: E402
from mobilenetv2_keras import MobileNetV2  # noqa: E402
from paradnn_family import KINDS  # noqa: E402
from paradnn_keras import generate  # noqa: E402
from ptb_lstm_keras import PtbLstm  # noqa: E402
from published import ALEXNET, SIZES  # noqa: E402
from resnet_keras import ResNet  # noqa: E402
from tf_recorded import needs_graphs  # noqa: E402
from transformer_keras import Transformer  # noqa: E402
from vgg_keras import Vgg  # noqa: E402

from annot import emit_ranges, load, record  # noqa: E402
from annot.analyze.work.call import Work  # noqa: E402
from annot.analyze.work.layer_work import layer_work, not_counted  # noqa: E402
from annot.attribution.attribute import attribute  # noqa: E402
from annot.emit.shapes import spec_of  # noqa: E402

ONE: dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "dense": (lambda: layers.Dense(4), ((2, 5, 3),)),
    "dense without bias": (lambda: layers.Dense(4, use_bias=False), ((2, 3),)),
    "einsum": (lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 5), bias_axes="de"), ((2, 4, 8),)),
    "conv 1d": (lambda: layers.Conv1D(6, 3, strides=2), ((2, 9, 4),)),
    "conv 2d": (lambda: layers.Conv2D(6, 3, padding="same", strides=2), ((2, 9, 8, 4),)),
    "conv 3d": (lambda: layers.Conv3D(3, 2), ((1, 4, 5, 6, 2),)),
    "depthwise": (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), ((1, 8, 8, 4),)),
    "separable": (lambda: layers.SeparableConv2D(6, 3), ((1, 8, 8, 4),)),
    "attention": (lambda: layers.Attention(), ((2, 6, 8), (2, 5, 8))),
    "dot": (lambda: layers.Dot((2, 1)), ((2, 3, 4), (2, 4, 5))),
    "in time": (lambda: layers.TimeDistributed(layers.Dense(4)), ((2, 5, 3),)),
    "rnn": (lambda: layers.SimpleRNN(5), ((2, 6, 3),)),
    "lstm": (lambda: layers.LSTM(5, return_sequences=True), ((2, 6, 3),)),
    "gru": (lambda: layers.GRU(5), ((2, 6, 3),)),
    "gru of the paper": (lambda: layers.GRU(5, reset_after=False), ((2, 6, 3),)),
    "cells": (lambda: layers.RNN(layers.LSTMCell(5), return_sequences=True), ((2, 6, 3),)),
    "conv 2d dilated": (lambda: layers.Conv2D(6, (3, 2), dilation_rate=2, use_bias=False), ((2, 9, 8, 4),)),
    "transposed 1d": (lambda: layers.Conv1DTranspose(3, 3, strides=2, padding="same"), ((2, 5, 4),)),
    "transposed 2d": (lambda: layers.Conv2DTranspose(3, 3, strides=2), ((2, 5, 6, 4),)),
    "einsum of any rank": (lambda: layers.EinsumDense("...x,xy->...y", 6), ((2, 4, 8),)),
    "conv lstm": (lambda: layers.ConvLSTM2D(3, 3, padding="same"), ((2, 4, 6, 6, 2),)),
    "additive attention": (lambda: layers.AdditiveAttention(), ((2, 6, 8), (2, 5, 8))),
    "max pool": (lambda: layers.MaxPooling2D(3, strides=2, padding="same"), ((2, 9, 9, 3),)),
    "average pool": (lambda: layers.AveragePooling1D(2), ((2, 9, 3),)),
    "global pool": (lambda: layers.GlobalAveragePooling2D(), ((2, 9, 9, 3),)),
    "batch norm": (lambda: layers.BatchNormalization(), ((2, 9, 9, 3),)),
    "layer norm": (lambda: layers.LayerNormalization(), ((2, 9, 8),)),
    "group norm": (lambda: layers.GroupNormalization(2), ((2, 9, 8),)),
    "unit norm": (lambda: layers.UnitNormalization(), ((2, 9),)),
    "padding": (lambda: layers.ZeroPadding2D(((1, 2), (0, 3))), ((1, 5, 5, 3),)),
    "cropping": (lambda: layers.Cropping1D((1, 2)), ((1, 5, 3),)),
    "upsampling": (lambda: layers.UpSampling2D((2, 3)), ((1, 5, 5, 3),)),
    "repeated": (lambda: layers.RepeatVector(3), ((2, 4),)),
    "prelu": (lambda: layers.PReLU(shared_axes=[1]), ((2, 4, 3),)),
    "activation": (lambda: layers.Activation("gelu"), ((2, 4),)),
    "noise": (lambda: layers.GaussianDropout(0.5), ((2, 4),)),
    "rescaled": (lambda: layers.Rescaling(2.0), ((2, 4),)),
    "added": (lambda: layers.Add(), ((2, 4), (2, 4), (2, 4))),
    "joined": (lambda: layers.Concatenate(), ((2, 4), (2, 4))),
}
BY_PROFILER = list(ONE)[: list(ONE).index("rnn")]
"""Matrix products that TensorFlow counts: no steps of loops, transposed or dilated convolutions."""


@pytest.mark.parametrize("name", ONE)
def test_layers_have_the_weights_and_outputs_that_are_said(name: str) -> None:
    """Parameters, bytes of the inputs and weights, and of the outputs; products as TensorFlow counts them."""
    build, shapes = ONE[name]
    layer, tensors = build(), [tf.random.normal(shape) for shape in shapes]

    def call(*given: Any) -> Any:
        return layer(list(given) if len(given) > 1 else given[0])

    out = call(*tensors)
    work = work_of(layer, *map(spec_of, tensors))
    assert work is not None
    assert work.params == parameters(layer)
    assert work.bytes_written == 4 * math.prod(out.shape)
    assert work.bytes_read == 4 * (sum(map(math.prod, shapes)) + work.params)
    if name in BY_PROFILER:
        assert work.flops == profiled(call, *(tf.TensorSpec(shape) for shape in shapes))


def test_hand_counts() -> None:
    """What TensorFlow cannot count: steps of loops, grouped convolutions, windows."""
    counts = {name: flops_of(build(), *shapes) for name, (build, shapes) in ONE.items()}
    assert counts["rnn"] == 2 * 2 * 6 * 5 * (3 + 5)
    assert counts["lstm"] == counts["cells"] == 4 * counts["rnn"]
    assert counts["gru"] == counts["gru of the paper"] == 3 * counts["rnn"]
    assert counts["conv lstm"] == 2 * 2 * 4 * 36 * 9 * (2 + 3) * 4 * 3
    assert counts["transposed 2d"] == 2 * 2 * 30 * 9 * 4 * 3
    assert counts["transposed 1d"] == 2 * 2 * 5 * 3 * 4 * 3
    assert counts["conv 2d dilated"] == 2 * 2 * (5 * 6) * 6 * 4 * 6
    assert counts["additive attention"] == 2 * 6 * 5 * 8 * (4 + 2)
    assert counts["max pool"] == 2 * 25 * 3 * 8
    assert counts["einsum of any rank"] == 2 * 2 * 4 * 8 * 6
    assert counts["added"] == 2 * 8
    assert flops_of(layers.Conv2D(6, 3, groups=2), (2, 9, 8, 4)) == 2 * 2 * 42 * 9 * 2 * 6


def flops_of(layer: Any, *shapes: tuple[int, ...]) -> int:
    """Operations of a call."""
    tensors = [tf.zeros(shape) for shape in shapes]
    layer(tensors if len(shapes) > 1 else tensors[0])
    work = work_of(layer, *map(spec_of, tensors))
    assert work is not None
    return work.flops


@pytest.mark.parametrize("make", [lambda: layers.Lambda(abs), lambda: layers.SpectralNormalization(layers.Dense(2))])
def test_what_nobody_can_count(make: Callable[[], Any]) -> None:
    """A function of the user's and an iteration have no work rather than a guess."""
    layer, x = make(), tf.zeros((2, 3))
    layer(x)
    assert work_of(layer, spec_of(x)) is None


# ------------------------------------------------------------------ samples

NETWORKS: dict[str, Callable[[], Any]] = {
    "vgg16": Vgg,
    "vgg19": lambda: Vgg(19),
    "googlenet": GoogLeNet,
    "resnet50": ResNet,
    "resnet152": lambda: ResNet(RESNET_BLOCKS[152]),
    "mobilenetv2": MobileNetV2,
}


def products(works: list[tuple[Any, Work | None]]) -> list[int]:
    """Operations of each layer with a matrix, in no order."""
    return sorted(
        work.flops for layer, work in works
        if work is not None and any(word in type(layer).__name__ for word in ("Conv", "Dense"))
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("resnet152", "mobilenetv2"))) for name in NETWORKS]
)
def test_networks_have_the_published_size(name: str) -> None:
    """Weights, convolutions with linear layers, and multiply-adds on a 224×224 image, as the PyTorch versions."""
    model, works = symbolic(NETWORKS[name])
    work = products(works)
    assert (parameters(model), len(work), sum(work) // 2) == SIZES[name]
    unknown = {type(layer).__name__ for layer, one in works if one is None}
    assert unknown <= {"Concatenate"}  # whose inputs are several


@pytest.mark.parametrize(("image", "convnet"), [(224, False), (227, True)])
def test_alexnet_has_the_published_work_per_image(image: int, convnet: bool) -> None:
    """AlexNet in one tower, in both forms."""
    _, works = symbolic(lambda: AlexNet(image=image, convnet=convnet))
    assert products(works) == sorted(ALEXNET)


@pytest.mark.parametrize("name", [*NETWORKS, "residual", "bottleneck", "fc"])
def test_each_layer_does_what_its_twin_in_pytorch_does(name: str) -> None:
    """The operations of each convolution and linear layer."""
    pytest.importorskip("torch")
    import paradnn
    import torch
    from sample_networks import NETWORKS as TORCH_NETWORKS
    from sample_networks import work_of_layers as torch_work

    with torch.device("meta"):
        config = KINDS.get(name)
        other = TORCH_NETWORKS[name]() if config is None else paradnn.generate(config).model
        shape = (1, config.input) if name == "fc" else (1, 3, *[224 if config is None else config.image] * 2)
        wanted = torch_work(other.eval(), torch.zeros(shape))
    _, works = symbolic(NETWORKS[name] if config is None else lambda: generate(config).model)
    assert products(works) == sorted(wanted)


SMALL: dict[str, tuple[Callable[[], Any], tuple[int, ...], int, int]] = {
    "resnet": (lambda: ResNet((1, 1, 1, 1), 4, 32, 5), (2, 32, 32, 3), 0, 2 * 2 * 256 * 147 * 4),
    "ptb_lstm": (lambda: PtbLstm(8, 2, 20, 4), (2, 4), 2 * (2 * 8 * 4 * 8 * 16 - 2 * 2 * 8 * 4 * 8), 0),
    "transformer": (lambda: Transformer(1, 16, 2, 32, 20, 4), (2, 2, 4), 3 * 2 * 2 * (2 * 4 * 4 * 16), -2 * 2 * 4 * 16),
}
"""Models, their inputs, and numbers of operations.

The first is what TensorFlow's profiler leaves out of the forward: of LSTMs all but one product of one step, of
attention the products of tensors with each other. The second is what the backward needs less than twice the forward:
the gradient of images, or, with a minus, more, as sums of the gradients of tokens.
"""


@pytest.mark.parametrize("name", every_third(SMALL))
def test_a_step_of_training_counts(name: str, tmp_path: Path) -> None:
    """In a graph: each layer with a matrix costs twice as much backward; nothing is left uncounted."""
    build, shape, missed, spared = SMALL[name]
    model, tokens = build(), len(shape) < 4
    inputs = np.zeros(shape, np.int32 if tokens else np.float32)
    labels = np.zeros((2, 4) if tokens else 2, np.int32)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    data = tf.data.Dataset.from_tensors((inputs, labels))
    with record(tmp_path / "r.annot"), emit_ranges(model):
        model.fit(data, verbose=0)
    work = layer_work(attribute(load(tmp_path / "r.annot")))
    composed = {path.rpartition("/")[0] for path in work["layer"]}
    uncounted = work.filter(~pl.col("counted") & ~pl.col("layer").is_in(list(composed)))
    assert uncounted.filter(pl.col("phase") != "optimizer")["layer"].to_list() == []
    assert not_counted(work.filter(pl.col("phase") != "optimizer"))[0] == []
    rows = work.filter(pl.col("module").str.contains("Conv|Dense|LSTM|Attention|Reversible"))
    sums = dict(rows.group_by("phase").agg(pl.col("flops").sum()).iter_rows())
    forward = profiled(lambda x: model(x, training=False), tf.TensorSpec(inputs.shape, inputs.dtype))
    assert sums["forward"] == forward + missed
    assert sums["backward"] == 2 * sums["forward"] - spared


@needs_graphs
def test_layers_that_are_one_kernel_are_counted(tmp_path: Path) -> None:
    """A range of joined layers has the work of the first, beside which that of an activation is nothing."""

    def flops(*stacked: Any, name: str) -> dict[str, int]:
        model = keras.Sequential([keras.Input((8, 8, 3)), *stacked], name="net")
        with record(tmp_path / name), emit_ranges(model):
            model.predict(np.zeros((2, 8, 8, 3), np.float32), verbose=0)
        rows = layer_work(attribute(load(tmp_path / name))).filter(pl.col("phase") == "forward")
        return {row["layer"]: row["flops"] for row in rows.iter_rows(named=True)}

    conv, relu = layers.Conv2D(4, 3, name="conv"), layers.ReLU(name="relu")
    joined = flops(conv, relu, name="joined.annot")
    apart = flops(conv, layers.Flatten(name="flat"), relu, name="apart.annot")
    assert joined["net/conv+net/relu"] == apart["net/conv"]
