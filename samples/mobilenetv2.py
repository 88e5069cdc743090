"""Train MobileNetV2 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/mobilenetv2.py
"""

from architectures import MOBILENET_BLOCKS, divisible
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class ConvNorm(nn.Sequential):
    """A convolution that keeps the size, unless it has a stride, batch norm, and ReLU6."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow; beside a shortcut where the sizes allow one.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        expansion: how many times as wide it is inside.
        stride: of the convolution of each channel.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [ConvNorm(inputs, hidden)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            ConvNorm(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, kernel_size=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations of the block."""
        y: Tensor = self.conv(x)
        return x + y if self.shortcut else y


class MobileNetV2(nn.Module):
    """MobileNetV2.

    Args:
        width: factor of all numbers of channels but the last, which are made multiples of 8.
        classes: how many outputs.
    """

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        inputs, last = divisible(32 * width), divisible(1280 * max(width, 1.0))
        layers: list[nn.Module] = [ConvNorm(3, inputs, 3, stride=2)]
        for expansion, channels, count, stride in MOBILENET_BLOCKS:
            for number in range(count):
                outputs = divisible(channels * width)
                layers.append(InvertedResidual(inputs, outputs, expansion, 1 if number else stride))
                inputs = outputs
        self.features = nn.Sequential(*layers, ConvNorm(inputs, last))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per image and class."""
        scores: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return scores


def main() -> None:
    """Read the options, then train."""
    parser = arguments("Train MobileNetV2 on synthetic images.", batch=8)
    parser.add_argument("--image", type=int, default=224, help="side of the images (default: %(default)s)")
    options = parser.parse_args()
    run(MobileNetV2, SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
