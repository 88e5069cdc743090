"""Train the Transformer (encoder and decoder) in Keras on synthetic text, with a range around every layer and batch.

Run it alone, or profile it:

    annot run -- python samples/transformer_keras.py
"""

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops
from keras_training import SyntheticText, run, text_arguments


class Layer(layers.Layer):
    """Post-norm layer of the encoder or decoder: self-attention, cross-attention (decoder only) and feed-forward.

    Args:
        dim: size of the hidden states.
        heads: number of attention heads.
        hidden: inner size of the feed-forward layers.
        decodes: build a decoder layer, with causal self-attention and cross-attention.
        name: layer name.
    """

    def __init__(self, dim: int, heads: int, hidden: int, *, decodes: bool, name: str) -> None:
        super().__init__(name=name)
        self.decodes = decodes
        self.attention = layers.MultiHeadAttention(heads, dim // heads, name="attention")
        self.norm1 = layers.LayerNormalization(epsilon=1e-5, name="norm1")
        if decodes:
            self.cross = layers.MultiHeadAttention(heads, dim // heads, name="cross")
            self.norm2 = layers.LayerNormalization(epsilon=1e-5, name="norm2")
        self.feed1 = layers.Dense(hidden, activation="relu", name="feed1")
        self.feed2 = layers.Dense(dim, name="feed2")
        self.norm3 = layers.LayerNormalization(epsilon=1e-5, name="norm3")

    def call(self, x: Any, source: Any = None) -> Any:
        """Return the hidden states. A decoder layer attends to `source`."""
        x = self.norm1(x + self.attention(x, x, use_causal_mask=self.decodes))
        if self.decodes:
            x = self.norm2(x + self.cross(x, source))
        return self.norm3(x + self.feed2(self.feed1(x)))


class Embedded(layers.Layer):
    """Token and position embeddings. `scores` projects hidden states onto the same token table (weight tying).

    Args:
        vocabulary: number of tokens.
        length: maximum tokens per sequence.
        dim: size of the hidden states.
        name: layer name.
    """

    def __init__(self, vocabulary: int, length: int, dim: int, *, name: str) -> None:
        super().__init__(name=name)
        self.dim, normal = dim, initializers.RandomNormal(stddev=dim**-0.5)
        self.tokens = layers.ReversibleEmbedding(vocabulary, dim, embeddings_initializer=normal, name="tokens")
        self.positions = layers.Embedding(length, dim, embeddings_initializer="normal", name="positions")

    def call(self, tokens: Any) -> Any:
        """Return the input of the first layer."""
        return self.dim**0.5 * self.tokens(tokens) + self.positions(ops.arange(tokens.shape[1]))

    def scores(self, states: Any) -> Any:
        """Return scores of shape (batch, length, vocabulary)."""
        return self.tokens(states, reverse=True)


class Transformer(keras.Model):
    """Encoder-decoder Transformer with learned position embeddings. The defaults are the base model.

    Args:
        depth: number of layers in the encoder and in the decoder.
        dim: size of the hidden states.
        heads: number of attention heads.
        hidden: inner size of the feed-forward layers.
        vocabulary: number of tokens, shared by source and target.
        length: maximum tokens per sequence.
    """

    def __init__(
        self,
        depth: int = 6,
        dim: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        vocabulary: int = 37_000,
        length: int = 512,
    ) -> None:
        super().__init__(name="transformer")
        sizes = (dim, heads, hidden)
        self.embedded = Embedded(vocabulary, length, dim, name="embedded")
        self.encoder = [Layer(*sizes, decodes=False, name=f"encoder{number + 1}") for number in range(depth)]
        self.decoder = [Layer(*sizes, decodes=True, name=f"decoder{number + 1}") for number in range(depth)]

    def call(self, pairs: Any) -> Any:
        """Return scores of shape (batch, length, vocabulary). `pairs` holds source and target: (batch, 2, length)."""
        source, x = self.embedded(pairs[:, 0]), self.embedded(pairs[:, 1])
        for layer in self.encoder:
            source = layer(source)
        for layer in self.decoder:
            x = layer(x, source)
        return self.embedded.scores(x)


class SyntheticPairs(SyntheticText):
    """Copy task: the target is the source."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        tokens, following = super().__getitem__(index)
        return np.stack([following, tokens], axis=1), following


def main() -> None:
    """Parse the options and train."""
    parser = text_arguments("Train the Transformer on synthetic text.", batch=4, length=64, vocabulary=4096)
    parser.add_argument("--layers", type=int, default=2, help="default: %(default)s; the base model has 6")
    parser.add_argument("--dim", type=int, default=512, help="size of the hidden states (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=8, help="default: %(default)s")
    options = parser.parse_args()
    data = SyntheticPairs(options.steps, options.batch, options.length, options.vocabulary)

    def build() -> Transformer:
        sizes = (options.layers, options.dim, options.heads, 4 * options.dim)
        return Transformer(*sizes, options.vocabulary, options.length)

    run(build, data, options)


if __name__ == "__main__":
    main()
