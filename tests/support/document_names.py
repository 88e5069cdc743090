"""Names that the documents use without defining them, because the reader's script has them."""

from __future__ import annotations

import copy
from typing import Any

import annot


def names(framework: str, code: str) -> dict[str, Any]:
    """Return the names for a section with this code. Without a framework, return only annot's names."""
    found: dict[str, Any] = {"__name__": "document", "annot": annot}
    found |= {name: getattr(annot, name) for name in ("batches", "emit_ranges", "epochs", "trace")}
    found |= {"read": lambda: None}
    if framework == "tensorflow":
        found |= _keras()
    elif framework == "torch":
        found |= _torch(code)
    return found


def _torch(code: str) -> dict[str, Any]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attended: torch.Tensor = x + self.attention(x)
            return attended

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.encoder(x))
            return logits

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.nn.CrossEntropyLoss()
    data = TensorDataset(torch.randn(12, 8), torch.randint(3, (12,)))
    loader = DataLoader(data, batch_size=2)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()

    teacher = copy.deepcopy(model)

    def train() -> None:
        for images, labels in annot.batches(loader):
            step(images, labels)

    own = {name: value for name, value in locals().items() if name not in ("Block", "Encoder", "Net", "code", "data")}
    return own | (_trainers(loader) if "lightning" in code else {})


def _trainers(loader: Any) -> dict[str, Any]:
    """Return a module for Lightning, and a network, arguments and data for the Trainer of Hugging Face."""
    import lightning
    import torch
    import transformers

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(8, 3)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.cross_entropy(self.body(x), labels)}

    quick = {
        "max_epochs": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu",
    }  # fmt: skip
    arguments = transformers.TrainingArguments(
        "trained", report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, num_train_epochs=1
    )
    return {
        "lightning": lightning, "transformers": transformers, "module": Module(), "quick": quick,
        "network": Network(), "arguments": arguments,
        "data": [{"x": x, "labels": y} for images, labels in loader for x, y in zip(images, labels, strict=True)],
    }  # fmt: skip


def _keras() -> dict[str, Any]:
    import keras
    import numpy
    import tensorflow as tf

    images = numpy.ones((8, 32), numpy.float32)
    labels = numpy.zeros(8, numpy.int64)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(8, name="block_1"), keras.layers.ReLU()])
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return {"keras": keras, "tf": tf, "images": images, "labels": labels, "model": model}
