"""Small networks for tests and benchmarks, the same in every run.

A builder returns a `Net`: the model, `make_batch(index) -> (inputs, target)`, and `loss_fn(output, target)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from alexnet import AlexNet
from googlenet import GoogLeNet
from mobilenetv2 import MobileNetV2
from paradnn import Recurrent, generate
from ptb_lstm import PtbLstm
from resnet50 import ResNet
from torch import Tensor, nn
from torch.nn import functional
from transformer import Transformer
from vgg import Vgg

__all__ = [
    "BUILDERS",
    "MATRIX",
    "Net",
    "alexnet",
    "googlenet",
    "gpt",
    "lstm",
    "mobilenetv2",
    "paradnn",
    "ptb_lstm",
    "resnet50",
    "small_resnet",
    "small_vgg16",
    "train",
    "transformer",
    "unet",
    "vgg16",
]


class Net(NamedTuple):
    """Model with its batches and its loss."""

    model: nn.Module
    make_batch: Callable[[int], tuple[Tensor, Tensor]]
    loss_fn: Callable[[Tensor, Tensor], Tensor]

    def loss(self, index: int = 0) -> Tensor:
        """Run forward on batch `index` and return the loss."""
        inputs, target = self.make_batch(index)
        return self.loss_fn(self.model(inputs), target)


def train(net: Net, steps: int = 2, seed: int = 1) -> list[Tensor]:
    """Train with SGD. Return all losses, gradients and parameters, to compare them bit by bit."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(net.model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = net.loss(step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    parameters = list(net.model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    return losses + [t.detach().clone() for t in (*gradients, *parameters)]


# ------------------------------------------------------------------ images


def alexnet(seed: int = 0, batch: int = 2, image: int = 224) -> Net:
    """Return AlexNet of the samples."""
    torch.manual_seed(seed)
    return _classifier(AlexNet(image=image), batch, image, 1000)


def vgg16(seed: int = 0, batch: int = 2, image: int = 32, width: int = 64) -> Net:
    """Return VGG-16 for small images."""
    torch.manual_seed(seed)
    return _classifier(Vgg(16, width, image), batch, image, 1000)


def small_vgg16(seed: int = 0) -> Net:
    """Return VGG-16 with 1/8 of its channels."""
    return vgg16(seed, width=8)


def resnet50(seed: int = 0, batch: int = 2, image: int = 64) -> Net:
    """Return ResNet-50 of the samples for small images."""
    torch.manual_seed(seed)
    return _classifier(ResNet(), batch, image, 1000)


def small_resnet(seed: int = 0, batch: int = 4, image: int = 32) -> Net:
    """Return a ResNet of about 50 modules whose step is mostly overhead."""
    torch.manual_seed(seed)
    return _classifier(ResNet((1, 1, 1, 1), width=16, classes=10), batch, image, 10)


def googlenet(seed: int = 0, batch: int = 2, image: int = 32, width: int = 8) -> Net:
    """Return GoogLeNet with 1/8 of its channels, for small images."""
    torch.manual_seed(seed)
    return _classifier(GoogLeNet(width, classes=10), batch, image, 10)


def mobilenetv2(seed: int = 0, batch: int = 2, image: int = 32, width: float = 0.25) -> Net:
    """Return MobileNetV2 with 1/4 of its channels, for small images."""
    torch.manual_seed(seed)
    return _classifier(MobileNetV2(width, classes=10), batch, image, 10)


class ConvPair(nn.Sequential):
    """Two 3×3 convolutions with batch norm and in-place ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """U-Net: encoder and decoder with skip connections, and a score per pixel and class."""

    def __init__(self, width: int = 8, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(map(ConvPair, [3, *widths[:-2]], widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.bottom = ConvPair(widths[-2], widths[-1])
        narrowing = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, slim, 2, stride=2) for wide, slim in narrowing)
        self.up = nn.ModuleList(ConvPair(wide, slim) for wide, slim in narrowing)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (batch, classes, height, width)."""
        x, skips = images, []
        for pair in self.down:
            x = pair(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for grow, pair in zip(self.grow, self.up, strict=True):
            x = pair(torch.cat([skips.pop(), grow(x)], dim=1))
        scores: Tensor = self.head(x)
        return scores


def unet(seed: int = 0, batch: int = 2, image: int = 32) -> Net:
    """Return a U-Net with two levels."""
    torch.manual_seed(seed)

    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(index)
        images = torch.randn(batch, 3, image, image, generator=source)
        return images, torch.randint(3, (batch, image, image), generator=source)

    return Net(UNet(), make_batch, functional.cross_entropy)


def _classifier(model: nn.Module, batch: int, image: int, classes: int) -> Net:
    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(index)
        images = torch.randn(batch, 3, image, image, generator=source)
        return images, torch.randint(classes, (batch,), generator=source)

    return Net(model, make_batch, functional.cross_entropy)


# ------------------------------------------------------------------ sequences


class LstmClassifier(nn.Module):
    """Embedding, LSTM layers, and a linear layer on the last step."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=0.1)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch, classes)."""
        states, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.head(states[:, -1])
        return scores


def lstm(seed: int = 0, batch: int = 4, length: int = 12) -> Net:
    """Return a classifier of token sequences with two LSTM layers."""
    torch.manual_seed(seed)

    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(index)
        tokens = torch.randint(50, (batch, length), generator=source)
        return tokens, torch.randint(5, (batch,), generator=source)

    return Net(LstmClassifier(50, 32, 2, 5), make_batch, functional.cross_entropy)


def ptb_lstm(seed: int = 0, batch: int = 4, length: int = 12) -> Net:
    """Return the language model of the samples with small LSTM layers."""
    torch.manual_seed(seed)

    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(50, (batch, length + 1), generator=torch.Generator().manual_seed(index))
        return tokens[:, :-1], tokens[:, 1:]

    return Net(PtbLstm(32, 2, 50), make_batch, _loss_of_tokens)


def transformer(seed: int = 0, batch: int = 2, length: int = 8) -> Net:
    """Return the Transformer of the samples with two small layers in encoder and decoder."""
    torch.manual_seed(seed)

    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        pairs = torch.randint(50, (batch, 2, length), generator=torch.Generator().manual_seed(index))
        return pairs, pairs[:, 0]

    return Net(Transformer(2, 32, 4, 64, 50, length), make_batch, _loss_of_tokens)


def paradnn(seed: int = 0) -> Net:
    """Return a small recurrent ParaDnn model."""
    torch.manual_seed(seed)
    return Net(*generate(Recurrent("gru", layers=2, embedding=16, vocabulary=8, batch=2)))


def _loss_of_tokens(scores: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output, of the shape of `x`."""
        batch, length, dim = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, dim))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states."""
        x = x + self.attn(self.ln1(x))
        return x + torch.as_tensor(self.mlp(self.ln2(x)))


class Gpt(nn.Module):
    """GPT: token and position embeddings, transformer blocks, and a linear layer that scores every token."""

    def __init__(self, vocabulary: int, dim: int, heads: int, blocks: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(blocks)))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch * length, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        scores: Tensor = self.head(self.ln(self.blocks(x)))
        return scores.flatten(0, 1)


def gpt(seed: int = 0, batch: int = 4, length: int = 16) -> Net:
    """Return a transformer of 46 modules whose step is mostly overhead."""
    torch.manual_seed(seed)

    def make_batch(index: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(64, (batch, length + 1), generator=torch.Generator().manual_seed(index))
        return tokens[:, :-1], tokens[:, 1:].flatten()

    return Net(Gpt(64, 64, 4, 4, length), make_batch, functional.cross_entropy)


BUILDERS: dict[str, Callable[[], Net]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "unet": unet,
    "lstm": lstm,
    "gpt": gpt,
}
"""Six networks whose results must stay bit-identical with annot."""

MATRIX: dict[str, Callable[[], Net]] = {
    "alexnet": partial(alexnet, image=63),
    "resnet50": partial(resnet50, image=32),
    "vgg": small_vgg16,
    "googlenet": googlenet,
    "mobilenetv2": mobilenetv2,
    "ptb_lstm": ptb_lstm,
    "transformer": transformer,
    "paradnn": paradnn,
    "unet": unet,
    "lstm": lstm,
    "gpt": gpt,
}
"""Networks of tests/pytorch/test_matrix.py: each model of samples/, by file name, and others."""
