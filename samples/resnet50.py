"""Train ResNet-50 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/resnet50.py
"""

from architectures import RESNET_BLOCKS
from torch import Tensor, nn
from training import SyntheticImages, arguments, run


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; `width` is that of the 3×3 one.

    Args:
        inputs: channels that come in.
        width: channels of the 3×3 convolution; four times as many go out.
        stride: of the 3×3 convolution and the shortcut.
    """

    expansion = 4
    """How many channels go out for each of `width`."""

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
    """Two 3×3 convolutions beside a shortcut, as in ResNet-18 and 34; arguments as those of `Bottleneck`."""

    expansion = 1
    """How many channels go out for each of `width`."""

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
    """A residual network; the defaults are ResNet-50.

    Args:
        blocks: how many blocks stand in each of the four stages.
        width: width of the first stage; it doubles from stage to stage.
        classes: how many outputs.
        block: what a stage is made of.
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
        """Return a score per image and class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return what makes the input of a block fit its output; None if it does."""
    if stride == 1 and inputs == outputs:
        return None
    conv = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def stage(block: type[Bottleneck] | type[Residual], inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    """Return `count` blocks, of which the first takes `inputs` channels with a stride."""
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(block.expansion * width, width, 1) for _ in range(count - 1)))


def main() -> None:
    """Read the options, then train."""
    parser = arguments("Train ResNet-50 on synthetic images.", batch=8)
    parser.add_argument("--image", type=int, default=64, help="side of the images (default: %(default)s)")
    options = parser.parse_args()
    run(ResNet, SyntheticImages(options.steps * options.batch, options.image), options)


if __name__ == "__main__":
    main()
