"""Layer sizes of the sample models, shared by the PyTorch and the Keras versions."""

from typing import Final

VGG_CONVOLUTIONS: Final = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each of VGG's five stages, by depth."""

INCEPTIONS: Final = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Channels of each inception module of GoogLeNet: 1×1, 3×3 reduction, 3×3, 5×5 reduction, 5×5, pool projection."""
POOLED_AFTER: Final = (1, 6)
"""Indices of the inception modules that a max pool follows."""

RESNET_BLOCKS: Final = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}
"""Bottleneck blocks in each stage of a ResNet, by depth."""

MOBILENET_BLOCKS: Final = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Stages of MobileNetV2: expansion factor, output channels, number of blocks, stride of the first block."""


def divisible(channels: float) -> int:
    """Round `channels` to the nearest multiple of 8, at least 8 and at least 90% of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
