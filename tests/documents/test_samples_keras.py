"""The Keras samples: they have the sizes of the PyTorch versions, and run as a user would run them."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from alexnet_keras import AlexNet  # noqa: E402
from googlenet_keras import GoogLeNet, LocalResponseNorm  # noqa: E402
from keras_work import parameters, symbolic, without_weights  # noqa: E402
from mobilenetv2_keras import MobileNetV2  # noqa: E402
from paradnn_family import KINDS, RANGES, Convolutional, FullyConnected, Recurrent  # noqa: E402
from paradnn_keras import count_parameters, generate  # noqa: E402
from ptb_lstm_keras import PtbLstm  # noqa: E402
from published import TRANSFORMER  # noqa: E402
from transformer_keras import Transformer  # noqa: E402
from vgg_keras import Vgg  # noqa: E402

from annot import load  # noqa: E402
from annot.attribution.attribute import attribute  # noqa: E402
from annot.attribution.layer_tables import by_layer  # noqa: E402

pytestmark = pytest.mark.slow
SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(autouse=True)
def default_precision() -> Iterator[None]:
    """Samples that compute in bfloat16 set this for the process."""
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("build", [
    lambda: AlexNet(5, 63), lambda: AlexNet(5, 67, convnet=True), lambda: Vgg(16, 8, 63, 5),
    lambda: MobileNetV2(0.5, 33, 5), lambda: GoogLeNet(16, 35, 5),
])  # fmt: skip
def test_other_image_sizes_fit(build: Any) -> None:
    """The first linear layer fits what the convolutions leave of the image."""
    model, _ = symbolic(build)
    assert model.output_shape == (None, 5)


def test_lstm_has_the_published_size() -> None:
    """8·hidden² weights a layer, and one bias for each gate; PyTorch's have two."""
    one, two = symbolic(lambda: PtbLstm(1024, 1))[0], symbolic(lambda: PtbLstm(1024, 2))[0]
    assert parameters(two) - parameters(one) == 8 * 1024**2 + 4 * 1024
    assert two.compute_output_shape((3, 7)) == (3, 7, 10_000)


def test_transformer_has_the_published_size() -> None:
    """The base model, and as many weights as in PyTorch."""

    def build() -> tuple[Any, Any]:
        model = Transformer()
        return model, model(keras.KerasTensor((2, 2, 512), "int32"))

    model, scores = without_weights(build)
    assert (parameters(model), scores.shape) == (TRANSFORMER, (2, 512, 37_000))


def test_transformer_sees_the_source_and_nothing_ahead() -> None:
    """A score depends on all of the source, and on no later token of the target."""
    keras.utils.set_random_seed(0)
    model, pairs = Transformer(2, 16, 2, 32, 20, 6), np.arange(12).reshape(1, 2, 6)
    later, other = pairs.copy(), pairs.copy()
    later[0, 1, 4], other[0, 0, 5] = 19, 19
    before, after_later, after_other = (np.asarray(model(one)) for one in (pairs, later, other))
    np.testing.assert_allclose(after_later[:, :4], before[:, :4], rtol=1e-5, atol=1e-6)
    assert not np.allclose(after_later[:, 4:], before[:, 4:], atol=1e-4)
    assert not np.allclose(after_other[:, 0], before[:, 0], atol=1e-4)


def test_local_response_norm_is_that_of_tensorflow() -> None:
    """With the size, scale and power of GoogLeNet."""
    x = tf.random.stateless_normal((2, 3, 3, 9), (1, 2)) * 30
    wanted = tf.nn.local_response_normalization(x, 2, 1.0, 1e-4 / 5, 0.75)
    np.testing.assert_allclose(LocalResponseNorm(5)(x), wanted, rtol=1e-5)


# ------------------------------------------------------------------ ParaDnn


@pytest.mark.parametrize("kind", KINDS)
def test_paradnn_trains_on_every_kind(kind: str) -> None:
    """A generated model takes its own batches, of one sample too, and each weight gets a gradient."""
    small = {"input": 6, "nodes": 5, "image": 32, "filters": 4, "embedding": 6, "length": 3, "output": 3, "batch": 1}
    names = {field.name for field in dataclasses.fields(KINDS[kind])}
    config = dataclasses.replace(KINDS[kind], **{name: size for name, size in small.items() if name in names})
    workload = generate(config)
    inputs, target = workload.make_batch(0)
    with tf.GradientTape() as tape:
        loss = workload.loss(target, workload.model(inputs))
    gradients = tape.gradient(loss, [variable.value for variable in workload.model.trainable_variables])
    assert None not in gradients
    assert np.array_equal(workload.make_batch(0)[0], inputs)
    assert not np.array_equal(workload.make_batch(7)[0], inputs) or inputs.size < 4


def test_paradnn_spans_the_studied_sizes() -> None:
    """Weights as the sizes say, from about 10 thousand to about 1 billion, without making them."""
    assert count_parameters(FullyConnected(4, 32)) == 2000 * 32 + 32 + 3 * (32 * 32 + 32) + 32 * 200 + 200
    assert count_parameters(Recurrent("rnn")) == 2 * 100 + 2 * 100**2 + 100 + 100 * 2 + 2  # PyTorch: 100 more
    assert count_parameters(FullyConnected(16, 8192)) == 2000 * 8192 + 15 * 8192**2 + 16 * 8192 + 8192 * 200 + 200
    assert count_parameters(Recurrent("rnn", embedding=64)) < 10_000 < 1e9 < count_parameters(FullyConnected(16, 8192))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["fc", "residual", "lstm"])
def test_paradnn_builds_the_ends_of_every_range(kind: str, which: int) -> None:
    """The least and the largest of each size of the study make a model."""
    config = KINDS[kind]
    config = dataclasses.replace(config, **{name: ends[which] for name, ends in RANGES[type(config)].items()})
    model, _ = symbolic(lambda: generate(config).model)
    if isinstance(config, Convolutional):
        assert sum(type(layer).__name__.lower() == kind for layer in model.layers) == 4 * config.blocks
        assert model.output_shape == (None, config.output)
    elif isinstance(config, Recurrent):
        assert model.output_shape == (None, config.length, config.vocabulary)
    else:
        assert len(model.layers) == config.layers + 1
        assert (model.input_shape, model.output_shape) == ((None, config.input), (None, config.output))


# ------------------------------------------------------------------ scripts

SCRIPTS = {
    "alexnet_keras": ["--image", "67", "--convnet", "--eager"],
    "ptb_lstm_keras": ["--hidden", "16", "--length", "4", "--vocabulary", "20"],
    "transformer_keras": [
        "--dim",
        "16",
        "--heads",
        "2",
        "--layers",
        "1",
        "--length",
        "4",
        "--vocabulary",
        "20",
        "--bf16",
    ],
    "paradnn_keras": ["gru", "--embedding", "8", "--inference"],
}
"""Options that make a sample quick; the other image samples are alike but for the model."""
IMAGE_SCRIPTS = ["googlenet_keras", "mobilenetv2_keras", "resnet_keras", "vgg_keras"]


def test_no_sample_is_forgotten() -> None:
    """Each script for Keras is among those that the tests here run."""
    assert {path.stem for path in SAMPLES.glob("*_keras.py")} == {*SCRIPTS, *IMAGE_SCRIPTS}


@pytest.mark.parametrize(("name", "options"), SCRIPTS.items())
def test_sample_runs(
    name: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample trains, or is used, and prints a line for each epoch."""
    monkeypatch.setattr(sys, "argv", [name, *options, "--batch", "2", "--steps", "2", "--epochs", "2"])
    importlib.import_module(name).main()
    lines = [line for line in capsys.readouterr().out.splitlines() if ("loss: " in line) or ("mean " in line)]
    assert len(lines) == 2
    assert all(np.isfinite(float(line.rpartition(" ")[2])) for line in lines)


@pytest.mark.parametrize("name", IMAGE_SCRIPTS)
def test_image_sample_gives_its_model_and_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script builds a model that takes the images which it loads."""
    module, calls = importlib.import_module(name), []
    monkeypatch.setattr(module, "run", lambda *given: calls.append(given))
    monkeypatch.setattr(sys, "argv", [name, "--image", "64", "--batch", "1", "--steps", "3"])
    module.main()
    ((build, data, options),) = calls
    assert (len(data), data[0][0].shape, options.inference) == (3, (1, 64, 64, 3), False)
    model, _ = symbolic(build)
    assert (model.input_shape, model.output_shape) == ((None, 64, 64, 3), (None, 1000))


def test_a_profile_has_forward_and_gradient_of_each_layer(tmp_path: Path) -> None:
    """``annot run`` on the language model, as a user would call it, ends in a table of layers, both ways."""
    path = tmp_path / "r.annot"
    options = ["--hidden", "16", "--length", "4", "--vocabulary", "20", "--batch", "2", "--steps", "3"]
    command = [sys.executable, "-m", "annot", "run", "--collector", "recorder", "-o", str(path), "--", sys.executable]
    done = subprocess.run(
        [*command, SAMPLES / "ptb_lstm_keras.py", *options], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = by_layer(attribute(load(path))).select("layer", "phase", "calls").rows()
    for layer in ("lstm0", "lstm1", "head"):
        assert {(f"ptb_lstm/{layer}", phase, 3) for phase in ("forward", "backward")} <= {*rows}
    assert "ptb_lstm/lstm" in done.stderr  # the rows with the most time, of which a busy machine has others
