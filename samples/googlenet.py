"""Train GoogLeNet on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/googlenet.py
"""

import torch
from architectures import INCEPTIONS, POOLED_AFTER
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class ConvRelu(nn.Sequential):
    """Convolution with "same" padding and in-place ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """Inception module: 1×1, 3×3 and 5×5 convolutions and a max pool in parallel."""

    def __init__(self, inputs: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int) -> None:
        super().__init__()
        self.one = ConvRelu(inputs, one, 1)
        self.three = nn.Sequential(ConvRelu(inputs, three_in, 1), ConvRelu(three_in, three, 3))
        self.five = nn.Sequential(ConvRelu(inputs, five_in, 1), ConvRelu(five_in, five, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvRelu(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated channels of all branches."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class GoogLeNet(nn.Module):
    """GoogLeNet (ILSVRC 2014) without its two auxiliary classifiers.

    Args:
        width: channels of the first convolution. 64 is the full network; other layers scale with it.
        classes: number of classes.
    """

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, stride=2, ceil_mode=True)

        self.stem = nn.Sequential(
            ConvRelu(3, width, 7, stride=2), pool(), nn.LocalResponseNorm(5),
            ConvRelu(width, width, 1), ConvRelu(width, 3 * width, 3), nn.LocalResponseNorm(5), pool(),
        )  # fmt: skip
        blocks: list[nn.Module] = []
        inputs = 3 * width
        for number, full in enumerate(INCEPTIONS):
            channels = [max(1, count * width // 64) for count in full]
            blocks.append(Inception(inputs, *channels))
            inputs = channels[0] + channels[2] + channels[4] + channels[5]
            if number in POOLED_AFTER:
                blocks.append(pool())
        self.inceptions = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        features = self.avgpool(self.inceptions(self.stem(images)))
        scores: Tensor = self.fc(self.dropout(features.flatten(1)))
        return scores


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train GoogLeNet on synthetic images.", batch=8)
    parser.add_argument("--image", type=int, default=224, help="image size in pixels (default: %(default)s)")
    options = parser.parse_args()
    run(GoogLeNet, SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
