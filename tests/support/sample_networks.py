"""Networks of samples/ with a published size, and the work of their layers."""

from __future__ import annotations

from typing import Any

import torch
from architectures import RESNET_BLOCKS
from googlenet import GoogLeNet
from mobilenetv2 import MobileNetV2
from resnet50 import ResNet
from vgg import Vgg

NETWORKS = {
    "vgg16": Vgg,
    "vgg19": lambda: Vgg(19),
    "googlenet": GoogLeNet,
    "resnet50": ResNet,
    "resnet152": lambda: ResNet(RESNET_BLOCKS[152]),
    "mobilenetv2": MobileNetV2,
}


def work_of_layers(model: Any, images: Any) -> list[int]:
    """Return the operations of each convolution and linear layer in call order, two per multiply-add."""
    work: list[int] = []

    def count(layer: Any, inputs: Any, output: Any) -> None:
        work.append(2 * layer.weight[0].numel() * output[0].numel())

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count)
    model(images)
    return work
