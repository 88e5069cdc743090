"""Options that the samples of both frameworks have."""

import argparse


def arguments(description: str, *, batch: int, steps: int = 4) -> argparse.ArgumentParser:
    """Return a parser with the options of every sample; `batch` and `steps` are its defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch", type=int, default=batch, help="samples per step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="steps per epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, with weights in float32")
    parser.add_argument("--inference", action="store_true", help="forward alone, without gradients")
    return parser


def text_arguments(description: str, *, batch: int, length: int, vocabulary: int) -> argparse.ArgumentParser:
    """Return the same for models of text."""
    parser = arguments(description, batch=batch)
    parser.add_argument("--length", type=int, default=length, help="words in a sequence (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=vocabulary, help="default: %(default)s")
    return parser
