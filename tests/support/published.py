"""Published sizes of the networks in samples/, for both frameworks."""

from __future__ import annotations

SIZES = {
    "vgg16": (138_357_544, 13 + 3, 15_470_264_320),
    "vgg19": (143_667_240, 16 + 3, 19_632_062_464),
    "googlenet": (6_998_552, 57 + 1, 1_582_671_872),
    "resnet50": (25_557_032, 53 + 1, 4_089_184_256),
    "resnet152": (60_192_808, 155 + 1, 11_513_626_624),
    "mobilenetv2": (3_504_872, 52 + 1, 300_774_272),
}
"""Number of weights, number of convolutions and linear layers, and their multiply-adds for a 224×224 image."""

ALEXNET = [
    140_553_600, 447_897_600, 224_280_576, 299_040_768, 199_360_512, 75_497_472, 33_554_432, 8_192_000,
]  # fmt: skip
"""Operations per image of each convolution and linear layer of single-tower AlexNet."""

_ATTENTION, _FEED_FORWARD, _NORM = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 512 + 2048, 2 * 512
_LAYERS = 6 * (_ATTENTION + _FEED_FORWARD + 2 * _NORM) + 6 * (2 * _ATTENTION + _FEED_FORWARD + 3 * _NORM)
TRANSFORMER = _LAYERS + (37_000 + 512) * 512
"""Weights of the base model: 44 million in the layers, plus the embeddings of 37,000 tokens in 512 dimensions."""
