"""Train the language model of the Penn Treebank benchmark on synthetic text, with a range around every layer.

Run it alone, or profile it:

    annot run -- python samples/ptb_lstm.py --layers 4
"""

from torch import Tensor, nn
from training import SyntheticText, run, text_arguments


class PtbLstm(nn.Module):
    """Embedding, LSTM layers of the same size, and a linear layer that scores every word.

    Args:
        hidden: size of the embedding and of each LSTM layer.
        layers: number of LSTM layers.
        vocabulary: number of words.
    """

    def __init__(self, hidden: int = 1024, layers: int = 2, vocabulary: int = 10_000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (batch, length, vocabulary)."""
        states, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.head(states)
        return scores


def main() -> None:
    """Parse the options and train."""
    parser = text_arguments("Train an LSTM language model on synthetic text.", batch=16, length=32, vocabulary=10_000)
    parser.add_argument("--hidden", type=int, default=256, help="default: %(default)s; the benchmark uses 1024")
    parser.add_argument("--layers", type=int, default=2, help="default: %(default)s")
    options = parser.parse_args()
    data = SyntheticText(options.steps * options.batch, options.length, options.vocabulary)
    run(lambda: PtbLstm(options.hidden, options.layers, options.vocabulary), data, options)


if __name__ == "__main__":
    main()
