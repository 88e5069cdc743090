"""A small BERT with random weights that Hugging Face's Trainer fine-tunes as a classifier."""

import tempfile
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

STEPS, BATCH, LENGTH, VOCABULARY = 30, 16, 48, 2000


class Reviews(Dataset[dict[str, Tensor]]):
    """Tokens and labels."""

    def __init__(self) -> None:
        self.tokens = torch.randint(VOCABULARY, (STEPS * BATCH, LENGTH))
        self.labels = torch.randint(2, (STEPS * BATCH,))

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


class Log(TrainerCallback):
    """Prints the loss and the time of each step."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        """Note the time."""
        self.start = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        """Print a line."""
        if "loss" in logs:
            seconds = time.perf_counter() - self.start
            print(f"step {state.global_step - 1}: loss {float(logs['loss']):.6f} at {seconds:.6f} s", flush=True)


def main() -> None:
    """Train for some steps."""
    set_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=6,
        intermediate_size=768,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            optim="adamw_torch",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=Reviews(), callbacks=[Log()]).train()


if __name__ == "__main__":
    main()
