"""AlexNet with Adam on images of 64 x 64 pixels, which the training process crops and resizes."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH = 30, 32


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Photographs of 160 x 160 pixels; an item is a resized crop."""

    def __init__(self) -> None:
        self.photographs = torch.randint(256, (256, 3, 160, 160), dtype=torch.uint8)
        self.labels = torch.randint(10, (256,))

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        top, left = index * 7 % 32, index * 13 % 32
        crop = self.photographs[index % 256, :, top : top + 128, left : left + 128].float() / 127.5 - 1
        image = nn.functional.interpolate(crop[None], 64, mode="bicubic", antialias=True)[0]
        return image, self.labels[index % 256]


class AlexNet(nn.Module):
    """Five convolutions and three linear layers."""

    def __init__(self) -> None:
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
        )
        self.classifier = nn.Sequential(
            nn.Linear(256 * 3 * 3, 2048),
            nn.ReLU(inplace=True),
            nn.Linear(2048, 2048),
            nn.ReLU(inplace=True),
            nn.Linear(2048, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = AlexNet().to(device)
    loader = DataLoader(Images(), BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    start = time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f} at {time.perf_counter() - start:.6f} s", flush=True)


if __name__ == "__main__":
    main()
