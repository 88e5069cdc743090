"""Train the Transformer (encoder and decoder) on synthetic text, with a range around every layer, batch and epoch.

Run it alone, or profile it:

    annot run -- python samples/transformer.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from training import SyntheticText, run, text_arguments


class Attention(nn.Module):
    """Multi-head attention. In `forward(x, source)`, `x` attends to `source`."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Return the attention output, of the shape of `x`."""
        q, k, v = self.split(self.query(x)), self.split(self.key(source)), self.split(self.value(source))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out

    def split(self, x: Tensor) -> Tensor:
        """Reshape (batch, length, dim) to (batch, heads, length, dim / heads)."""
        batch, length, dim = x.shape
        return x.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Feed-forward network: two linear layers with a ReLU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))


class EncoderLayer(nn.Module):
    """Post-norm encoder layer: self-attention and feed-forward, each with a shortcut."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(dim, heads), nn.LayerNorm(dim)
        self.feed_forward, self.norm2 = FeedForward(dim, hidden), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states."""
        x = self.norm1(x + self.attention(x, x))
        out: Tensor = self.norm2(x + self.feed_forward(x))
        return out


class DecoderLayer(nn.Module):
    """Post-norm decoder layer: causal self-attention, cross-attention and feed-forward, each with a shortcut."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(dim, heads, causal=True), nn.LayerNorm(dim)
        self.cross, self.norm2 = Attention(dim, heads), nn.LayerNorm(dim)
        self.feed_forward, self.norm3 = FeedForward(dim, hidden), nn.LayerNorm(dim)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Return the hidden states."""
        x = self.norm1(x + self.attention(x, x))
        x = self.norm2(x + self.cross(x, source))
        out: Tensor = self.norm3(x + self.feed_forward(x))
        return out


class Transformer(nn.Module):
    """Encoder-decoder Transformer with learned position embeddings. The defaults are the base model.

    Args:
        layers: number of layers in the encoder and in the decoder.
        dim: size of the hidden states.
        heads: number of attention heads.
        hidden: inner size of the feed-forward layers.
        vocabulary: number of tokens, shared by source and target.
        length: maximum tokens per sequence.
    """

    def __init__(
        self,
        layers: int = 6,
        dim: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        vocabulary: int = 37_000,
        length: int = 512,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.encoder = nn.Sequential(*(EncoderLayer(dim, heads, hidden) for _ in range(layers)))
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.scale = dim**0.5
        nn.init.normal_(self.tokens.weight, std=1 / self.scale)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return scores of shape (batch, length, vocabulary). `pairs` holds source and target: (batch, 2, length)."""
        source, x = (self.embed(tokens) for tokens in pairs.unbind(1))
        source = self.encoder(source)
        for layer in self.decoder:
            x = layer(x, source)
        scores: Tensor = self.head(x)
        return scores

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of the first layer."""
        states: Tensor = self.tokens(tokens)
        positions: Tensor = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        embedded: Tensor = self.scale * states + positions
        return embedded


class SyntheticPairs(Dataset[tuple[Tensor, Tensor]]):
    """Copy task: the target is the source."""

    def __init__(self, texts: SyntheticText) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens, following = self.texts[index]
        return torch.stack([following, tokens]), following


def main() -> None:
    """Parse the options and train."""
    parser = text_arguments("Train the Transformer on synthetic text.", batch=4, length=64, vocabulary=4096)
    parser.add_argument("--layers", type=int, default=2, help="default: %(default)s; the base model has 6")
    parser.add_argument("--dim", type=int, default=512, help="size of the hidden states (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=8, help="default: %(default)s")
    options = parser.parse_args()
    texts = SyntheticText(options.steps * options.batch, options.length, options.vocabulary)

    def build() -> Transformer:
        sizes = (options.layers, options.dim, options.heads, 4 * options.dim)
        return Transformer(*sizes, options.vocabulary, options.length)

    run(build, SyntheticPairs(texts), options)


if __name__ == "__main__":
    main()
