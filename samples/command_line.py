"""Command-line options of the samples, for both frameworks."""

import argparse


def arguments(description: str, *, batch: int, steps: int = 4) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample. `batch` and `steps` are their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch", type=int, default=batch, help="samples per step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="steps per epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="number of epochs (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 with float32 weights")
    parser.add_argument("--inference", action="store_true", help="run only the forward, without gradients")
    return parser


def text_arguments(description: str, *, batch: int, length: int, vocabulary: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample and those of text models."""
    parser = arguments(description, batch=batch)
    parser.add_argument("--length", type=int, default=length, help="words per sequence (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=vocabulary, help="number of tokens (default: %(default)s)")
    return parser
