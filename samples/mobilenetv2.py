"""Train MobileNetV2 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/mobilenetv2.py
"""

from architectures import MOBILENET_BLOCKS, divisible
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class ConvNorm(nn.Sequential):
    """Convolution with "same" padding, batch norm and ReLU6."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """Inverted residual: 1×1 expansion, 3×3 depthwise convolution, 1×1 projection. Has a shortcut if shapes match.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        expansion: factor from input channels to channels of the depthwise convolution.
        stride: stride of the depthwise convolution.
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
        width: width multiplier. Channels are rounded to multiples of 8. The last convolution never shrinks.
        classes: number of classes.
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
        """Return scores of shape (batch, classes)."""
        scores: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return scores


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train MobileNetV2 on synthetic images.", batch=8)
    parser.add_argument("--image", type=int, default=224, help="image size in pixels (default: %(default)s)")
    options = parser.parse_args()
    run(MobileNetV2, SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
