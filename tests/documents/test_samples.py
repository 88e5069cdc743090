"""The samples: their layers have the sizes that are known for them, and they run as a user would run them."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import forked
import pytest
from captured import capture

torch = pytest.importorskip("torch")

from alexnet import AlexNet, ConvnetAlexNet  # noqa: E402
from paradnn import KINDS, RANGES, Convolutional, FullyConnected, Recurrent, count_parameters, generate  # noqa: E402
from ptb_lstm import PtbLstm  # noqa: E402
from published import ALEXNET, SIZES, TRANSFORMER  # noqa: E402
from sample_networks import NETWORKS, work_of_layers  # noqa: E402
from training import infer  # noqa: E402
from transformer import Transformer  # noqa: E402
from vgg import Vgg  # noqa: E402

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.parametrize(("form", "image"), [(AlexNet, 224), (ConvnetAlexNet, 227)])
def test_alexnet_has_the_published_work_per_image(form: Any, image: int) -> None:
    """AlexNet in one tower, in both forms: the operations of each convolution and each fully connected layer."""
    with torch.device("meta"):
        work = work_of_layers(form(), torch.zeros(1, 3, image, image))
    assert work == ALEXNET


@pytest.mark.parametrize(("form", "image"), [(AlexNet, 63), (AlexNet, 100), (ConvnetAlexNet, 67), (Vgg, 63)])
def test_other_image_sizes_fit(form: Any, image: int) -> None:
    """The first linear layer fits what the convolutions leave of the image."""
    with torch.device("meta"):
        assert form(classes=5, image=image)(torch.zeros(2, 3, image, image)).shape == (2, 5)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_size(name: str) -> None:
    """Weights, convolutions with linear layers, and multiply-adds on a 224×224 image."""
    with torch.device("meta"):
        model = NETWORKS[name]().eval()
        work = work_of_layers(model, torch.zeros(1, 3, 224, 224))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (parameters, len(work), sum(work) // 2) == SIZES[name]


def test_lstm_cell_has_the_published_work() -> None:
    """A cell of the PTB benchmark has 8·hidden² weights, so 16·hidden² operations a word, and as many per layer."""
    with torch.device("meta"):
        one, two = PtbLstm(1024, 1), PtbLstm(1024, 2)
        biases = 2 * 4 * 1024
        assert sum(p.numel() for p in one.lstm.parameters()) == 8 * 1024**2 + biases
        assert sum(p.numel() for p in two.lstm.parameters()) == 2 * (8 * 1024**2 + biases)
        assert two(torch.zeros(3, 7, dtype=torch.long)).shape == (3, 7, 10_000)


def test_transformer_has_the_published_size() -> None:
    """The base model: 44 million weights in the layers, besides those of 37,000 tokens in 512 dimensions."""
    with torch.device("meta"):
        model = Transformer()
    assert sum(p.numel() for p in model.parameters()) == TRANSFORMER


def test_transformer_sees_the_source_and_nothing_ahead() -> None:
    """A score depends on all of the source, and on no later token of the target."""
    torch.manual_seed(0)
    model = Transformer(2, 16, 2, 32, 20, 6).eval()
    pairs = torch.randint(20, (1, 2, 6))
    before = model(pairs)
    later, other = pairs.clone(), pairs.clone()
    later[0, 1, 4] = (later[0, 1, 4] + 1) % 20
    other[0, 0, 5] = (other[0, 0, 5] + 1) % 20
    assert torch.equal(model(later)[:, :4], before[:, :4])
    assert not torch.allclose(model(later)[:, 4:], before[:, 4:])
    assert not torch.allclose(model(other)[:, 0], before[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_paradnn_trains_on_every_kind(kind: str) -> None:
    """A generated model takes its own batches, of one sample too, and each weight gets a gradient."""
    small = {"input": 6, "nodes": 5, "image": 32, "filters": 4, "embedding": 6, "length": 3, "output": 3, "batch": 1}
    names = {field.name for field in dataclasses.fields(KINDS[kind])}
    config = dataclasses.replace(KINDS[kind], **{name: size for name, size in small.items() if name in names})
    workload = generate(config)
    inputs, target = workload.make_batch(0)
    workload.model.eval()  # batch norm cannot train on one value
    workload.loss(workload.model(inputs), target).backward()
    assert all(p.grad is not None for p in workload.model.parameters())
    assert torch.equal(workload.make_batch(0)[0], inputs)
    assert not torch.equal(workload.make_batch(7)[0].float(), inputs.float()) or inputs.numel() < 4


def test_paradnn_spans_the_studied_sizes() -> None:
    """Weights as the sizes say, from about 10 thousand to about 1 billion."""
    assert count_parameters(FullyConnected(4, 32)) == 2000 * 32 + 32 + 3 * (32 * 32 + 32) + 32 * 200 + 200
    assert count_parameters(Recurrent("rnn")) == 2 * 100 + 2 * 100**2 + 2 * 100 + 100 * 2 + 2  # 20 thousand
    assert count_parameters(FullyConnected(16, 8192)) == 2000 * 8192 + 15 * 8192**2 + 16 * 8192 + 8192 * 200 + 200
    assert count_parameters(Recurrent("rnn", embedding=64)) < 10_000 < 1e9 < count_parameters(FullyConnected(16, 8192))


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_paradnn_builds_the_ends_of_every_range(kind: str, which: int) -> None:
    """The least and the largest of each size of the study make a model."""
    config = KINDS[kind]
    ends = {name: ends[which] for name, ends in RANGES[type(config)].items()}
    config = dataclasses.replace(config, **ends)
    with torch.device("meta"):
        model = generate(config).model
        if isinstance(config, Convolutional):
            blocks = [m for m in model.modules() if type(m).__name__.lower() == kind]
            assert len(blocks) == 4 * config.blocks
            assert model(torch.zeros(2, 3, config.image, config.image)).shape == (2, config.output)
        elif isinstance(config, Recurrent):
            tokens = torch.zeros(2, config.length, dtype=torch.long)
            assert model(tokens).shape == (2 * config.length, config.vocabulary)
        else:
            assert sum(isinstance(m, torch.nn.Linear) for m in model.modules()) == config.layers + 1
            assert model(torch.zeros(2, config.input)).shape == (2, config.output)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FullyConnected(layers=0), "layers must be a positive integer, got 0"),
        (lambda: FullyConnected(batch=True), "batch must be a positive integer, got True"),
        (lambda: Recurrent("lstn"), "cell must be one of rnn, lstm, gru, got 'lstn'"),
        (lambda: Convolutional("dense"), "block must be one of residual, bottleneck, got 'dense'"),
    ],
)
def test_paradnn_refuses_what_makes_no_model(make: Any, says: str) -> None:
    """A wrong size or kind is refused where it is written."""
    with pytest.raises(ValueError, match=says):
        make()


SCRIPTS = {
    "alexnet": ["--image", "64"],
    "ptb_lstm": ["--hidden", "16", "--length", "4", "--vocabulary", "20"],
    "transformer": ["--dim", "16", "--heads", "2", "--length", "4", "--vocabulary", "20", "--bf16"],
    "paradnn": ["fc", "--nodes", "8", "--input", "10"],
}
"""Options that make a sample quick; the other image samples are alike but for the model."""


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*item, marks=[pytest.mark.slow] * (item[0] in ("alexnet", "ptb_lstm"))) for item in SCRIPTS.items()],
)
def test_sample_trains_and_prints_each_loss(name: str, options: list[str]) -> None:
    """A sample runs as a script, without a profiler, and prints the loss of every step of every epoch."""
    lines = run_script(name, *options, "--batch", "2", "--steps", "2", "--epochs", "2")
    steps = [line.partition(": loss ")[0] for line in lines]
    assert steps == ["epoch 0 step 0", "epoch 0 step 1", "epoch 1 step 0", "epoch 1 step 1"]
    assert all(float(line.rpartition(" ")[2]) > 0 for line in lines)


IMAGE_SCRIPTS = ["googlenet", "mobilenetv2", "resnet152", "resnet50", "vgg"]


def test_no_sample_is_forgotten() -> None:
    """Each script for PyTorch is among those that the tests here run."""
    found = {path.stem for path in SAMPLES.glob("*.py") if "from training import" in path.read_text(encoding="utf-8")}
    assert found == {*SCRIPTS, *IMAGE_SCRIPTS}


@pytest.mark.parametrize("name", IMAGE_SCRIPTS)
def test_image_sample_gives_its_model_and_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script builds a model that takes the images which it loads."""
    module = importlib.import_module(name)
    calls: list[Any] = []
    monkeypatch.setattr(module, "run", lambda *given: calls.append(given))
    monkeypatch.setattr(sys, "argv", [name, "--image", "64", "--batch", "1", "--steps", "3"])
    module.main()
    ((build, data, options),) = calls
    assert (len(data), data[0][0].shape, options.inference) == (3, (3, 64, 64), False)
    with torch.device("meta"):
        assert build().eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_inference_has_forward_ranges_alone(tmp_path: Path) -> None:
    """With --inference a sample only runs forward, and leaves no gradients."""
    options = argparse.Namespace(epochs=1, device="cpu", bf16=False)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    data = [(torch.ones(1, 2), torch.zeros(1))] * 2
    captured = capture(tmp_path, lambda: infer(model, data, options))
    phases = Counter(one.tag.phase for one in captured.ranges if one.tag and one.tag.module)
    assert phases == {"forward": 2 * 2}
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def run_script(name: str, *options: str) -> list[str]:
    """Run a sample as a user would; return the lines that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANNOT_", "NVTX_"))}
    done = forked.python(SAMPLES / f"{name}.py", *options, "--device", "cpu", env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
