"""Train AlexNet on synthetic images, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/alexnet.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from annot import batches, emit_ranges, epochs


class AlexNet(nn.Module):
    """AlexNet in one tower: 224×224 images give 55×55, 27×27 and 13×13 maps, then 9216 features.

    Args:
        classes: how many outputs.
        image: side of the square images in pixels, at least 63.
    """

    def __init__(self, classes: int = 1000, image: int = 224) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        side = (image - 7) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * side * side, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per image and class."""
        features = self.features(images)
        scores: Tensor = self.classifier(features.flatten(1))
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
    parser = argparse.ArgumentParser(description="Train AlexNet on synthetic images.")
    parser.add_argument("--batch", type=int, default=16, help="images per step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="steps per epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--image", type=int, default=224, help="side of the images (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(options.device)
    model = AlexNet(image=options.image).to(device)
    images = SyntheticImages(options.steps * options.batch, options.image)
    train(model, DataLoader(images, options.batch, shuffle=True), options.epochs, device)


if __name__ == "__main__":
    main()
