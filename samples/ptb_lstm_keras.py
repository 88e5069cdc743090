"""Train the language model of the Penn Treebank benchmark in Keras on synthetic text, with a range around every layer.

Run it alone, or profile it:

    annot run -- python samples/ptb_lstm_keras.py --layers 4
"""

import keras
from keras import layers
from keras_training import SyntheticText, run, text_arguments


class PtbLstm(keras.Sequential):
    """Embedding, LSTM layers of the same size, and a linear layer that scores every word.

    Args:
        hidden: size of the embedding and of each LSTM layer.
        depth: number of LSTM layers.
        vocabulary: number of words.
        length: words per sequence. None: any length.
    """

    def __init__(self, hidden: int = 1024, depth: int = 2, vocabulary: int = 10_000, length: int | None = None) -> None:
        cells = [layers.LSTM(hidden, return_sequences=True, name=f"lstm{number}") for number in range(depth)]
        embedding = layers.Embedding(vocabulary, hidden, name="embedding")
        head = layers.Dense(vocabulary, name="head")
        super().__init__([layers.Input((length,), dtype="int32"), embedding, *cells, head], name="ptb_lstm")


def main() -> None:
    """Parse the options and train."""
    parser = text_arguments("Train an LSTM language model on synthetic text.", batch=16, length=32, vocabulary=10_000)
    parser.add_argument("--hidden", type=int, default=256, help="default: %(default)s; the benchmark uses 1024")
    parser.add_argument("--layers", type=int, default=2, help="default: %(default)s")
    options = parser.parse_args()
    data = SyntheticText(options.steps, options.batch, options.length, options.vocabulary)
    run(lambda: PtbLstm(options.hidden, options.layers, options.vocabulary, options.length), data, options)


if __name__ == "__main__":
    main()
