"""A classifier whose dataset decodes each sample in a loop of Python, in the process of the training."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, WIDTH = 8, 32, 256


class Decoded(Dataset[tuple[Tensor, int]]):  # planted
    """Samples in a packed text."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, number: int) -> tuple[Tensor, int]:  # planted
        text = ",".join([str((number * place) % 97) for place in range(16 * WIDTH)])  # planted
        values = [float(word) / 97 for word in text.split(",")]  # planted
        return torch.tensor(values[:WIDTH]), number % 10  # planted


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in DataLoader(Decoded(), batch_size=BATCH):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


if __name__ == "__main__":
    main()
