"""ResNet-20 for images of 32 x 32 pixels (He et al. 2016, section 4.2) with SGD."""

import time

import torch
from torch import Tensor, nn

STEPS, BATCH = 30, 32


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps."""
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        sizes = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)]
        sizes += [(32, 64, 2), (64, 64, 1), (64, 64, 1)]
        self.blocks = nn.ModuleList(Block(*size) for size in sizes)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = ResNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = [(torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))) for _ in range(STEPS)]
    start = time.perf_counter()
    for step, (images, labels) in enumerate(data):
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
