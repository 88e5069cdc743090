"""The samples: their layers have the sizes that are known for them, and they run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from alexnet import AlexNet  # noqa: E402
from resnet50 import ResNet  # noqa: E402

SAMPLES = Path(__file__).parents[1] / "samples"


def work_of_layers(model: Any, images: Any) -> list[int]:
    """Return two operations per multiply-add of each convolution and linear layer, in order of their calls."""
    work: list[int] = []

    def count(layer: Any, inputs: Any, output: Any) -> None:
        work.append(2 * layer.weight[0].numel() * output[0].numel())

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count)
    model(images)
    return work


def test_alexnet_has_the_published_work_per_image() -> None:
    """AlexNet in one tower, 224×224: the operations of each convolution and each fully connected layer."""
    assert work_of_layers(AlexNet(), torch.zeros(1, 3, 224, 224)) == [
        140_553_600,
        447_897_600,
        224_280_576,
        299_040_768,
        199_360_512,
        75_497_472,
        33_554_432,
        8_192_000,
    ]


@pytest.mark.parametrize("image", [63, 100, 127])
def test_alexnet_takes_other_image_sizes(image: int) -> None:
    """The first linear layer fits what the convolutions leave of the image."""
    assert AlexNet(classes=5, image=image)(torch.zeros(2, 3, image, image)).shape == (2, 5)


def test_resnet50_has_the_published_size() -> None:
    """ResNet-50: 25,557,032 parameters, 53 convolutions, 4.09 billion multiply-adds on a 224×224 image."""
    model = ResNet().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    work = work_of_layers(model, torch.zeros(1, 3, 224, 224))
    assert len(work) == 53 + 1
    assert sum(work) // 2 == 4_089_184_256


@pytest.mark.parametrize("name", ["alexnet", "resnet50"])
def test_sample_trains_and_prints_each_loss(name: str) -> None:
    """A sample runs as a script, without a profiler, and prints the loss of every step of every epoch."""
    options = ["--image", "64", "--batch", "2", "--steps", "2", "--epochs", "2", "--device", "cpu"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANNOT_", "NVTX_"))}
    done = subprocess.run(
        [sys.executable, SAMPLES / f"{name}.py", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = [line.partition(": loss ")[0] for line in done.stdout.splitlines()]
    assert steps == ["epoch 0 step 0", "epoch 0 step 1", "epoch 1 step 0", "epoch 1 step 1"]
    assert all(float(line.rpartition(" ")[2]) > 0 for line in done.stdout.splitlines())
