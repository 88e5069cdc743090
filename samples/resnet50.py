"""Train ResNet-50 on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/resnet50.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from annot import batches, emit_ranges, epochs


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; `width` is that of the 3×3 one.

    Args:
        inputs: channels that come in.
        width: channels of the 3×3 convolution; four times as many go out.
        stride: of the 3×3 convolution and the shortcut.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations of the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += shortcut
        out: Tensor = self.relu(y)
        return out


class ResNet(nn.Module):
    """A residual network of bottlenecks; the defaults are ResNet-50.

    Args:
        blocks: how many blocks stand in each of the four stages.
        width: width of the first stage; it doubles from stage to stage.
        classes: how many outputs.
    """

    def __init__(self, blocks: tuple[int, int, int, int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(width, width, blocks[0], stride=1)
        self.layer2 = self._stage(4 * width, 2 * width, blocks[1], stride=2)
        self.layer3 = self._stage(8 * width, 4 * width, blocks[2], stride=2)
        self.layer4 = self._stage(16 * width, 8 * width, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32 * width, classes)

    @staticmethod
    def _stage(inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
        first = Bottleneck(inputs, width, stride)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(count - 1)))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per image and class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Noise whose brightness depends on the class, so that there is something to learn."""

    def __init__(self, count: int, image: int, classes: int = 10) -> None:
        self.count, self.image, self.classes = count, image, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % self.classes
        noise = torch.randn(3, self.image, self.image, generator=torch.Generator().manual_seed(index))
        return noise + label / self.classes, label


def train(model: nn.Module, loader: DataLoader[tuple[Tensor, int]], count: int, device: torch.device) -> None:
    """Train for `count` epochs and print the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    with emit_ranges(model):
        for epoch in epochs(count):
            for step, (images, labels) in enumerate(batches(loader)):
                scores = model(images.to(device))
                loss = loss_of(scores, labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Read the options, then train."""
    parser = argparse.ArgumentParser(description="Train ResNet-50 on synthetic images.")
    parser.add_argument("--batch", type=int, default=8, help="images per step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="steps per epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--image", type=int, default=64, help="side of the images (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(options.device)
    model = ResNet().to(device)
    images = SyntheticImages(options.steps * options.batch, options.image)
    train(model, DataLoader(images, options.batch, shuffle=True), options.epochs, device)


if __name__ == "__main__":
    main()
