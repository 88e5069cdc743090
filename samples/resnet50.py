"""Train ResNet-50 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/resnet50.py
"""

from architectures import RESNET_BLOCKS
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class Bottleneck(nn.Module):
    """Bottleneck block: 1×1, 3×3 and 1×1 convolutions with a shortcut.

    Args:
        inputs: number of input channels.
        width: channels of the 3×3 convolution. The block has four times as many output channels.
        stride: stride of the 3×3 convolution and of the shortcut.
    """

    expansion = 4
    """Ratio of output channels to `width`."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations of the block."""
        around = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += around
        out: Tensor = self.relu(y)
        return out


class Residual(nn.Module):
    """Basic block of ResNet-18 and ResNet-34: two 3×3 convolutions with a shortcut. Same arguments as `Bottleneck`."""

    expansion = 1
    """Ratio of output channels to `width`."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations of the block."""
        around = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += around
        out: Tensor = self.relu(y)
        return out


class ResNet(nn.Module):
    """ResNet. The defaults are ResNet-50.

    Args:
        blocks: number of blocks in each of the four stages.
        width: width of the first stage. It doubles from stage to stage.
        classes: number of classes.
        block: type of the blocks.
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int] = RESNET_BLOCKS[50],
        width: int = 64,
        classes: int = 1000,
        block: type[Bottleneck] | type[Residual] = Bottleneck,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        out = block.expansion * width
        self.layer1 = stage(block, width, width, blocks[0], stride=1)
        self.layer2 = stage(block, out, 2 * width, blocks[1], stride=2)
        self.layer3 = stage(block, 2 * out, 4 * width, blocks[2], stride=2)
        self.layer4 = stage(block, 4 * out, 8 * width, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * out, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return the projection from the input of a block to the shape of its output, or None for an identity shortcut."""
    if stride == 1 and inputs == outputs:
        return None
    conv = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def stage(block: type[Bottleneck] | type[Residual], inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    """Return a stage of `count` blocks. The first block has `inputs` input channels and the stride."""
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(block.expansion * width, width, 1) for _ in range(count - 1)))


def main() -> None:
    """Parse the options and train."""
    parser = arguments("Train ResNet-50 on synthetic images.", batch=8)
    parser.add_argument("--image", type=int, default=64, help="image size in pixels (default: %(default)s)")
    options = parser.parse_args()
    run(ResNet, SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
