"""Changes of the programs of `bench_try.py`, made by hand: for each program and change, lines and what replaces them.

Each text to replace occurs exactly once in its program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

Edits: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a text and its replacement."""

PROGRAMS: Final = Path(__file__).with_name("try_programs")
_SEED, _ZERO = "    torch.manual_seed(0)\n", "        optimizer.zero_grad()\n"
_STEP = "        loss.backward()\n        optimizer.step()\n"
_CLIPPED = (
    "        loss.backward()\n        nn.utils.clip_grad_norm_(model.parameters(), 5.0)\n        optimizer.step()\n"
)


def edited(program: str, change: str) -> str:
    """Return the text of a program with a change.

    Raises:
        ValueError: a text to replace does not occur exactly once.
    """
    text = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    for old, new in EDITS[program][change]:
        if (count := text.count(old)) != 1:
            raise ValueError(f"{program}, {change}: expected one {old!r}, got {count}")
        text = text.replace(old, new)
    return text


def _of_loop(model: str, optimizer: str, forward: str, step: str = _STEP) -> dict[str, Edits]:
    """Return the changes of a program with a training loop of its own.

    Args:
        model: the line that makes the model.
        optimizer: the line that makes the optimizer.
        forward: the lines of the forward and the loss.
        step: the lines of the backward and the optimizer.
    """

    def compiled(options: str = "") -> Edits:
        return ((model, f"{model}    model.compile({options})\n"),)

    def optimized(option: str) -> Edits:
        return ((optimizer, optimizer.replace(")\n", f", {option}=True)\n")),)

    def cast(dtype: str) -> tuple[str, str]:
        indented = "".join(f"    {line}" for line in forward.splitlines(keepends=True))
        return forward, f"        with torch.autocast(device.type, torch.{dtype}):\n{indented}"

    scaler = "    scaler = torch.amp.GradScaler(device.type)\n"
    scaled = step.replace("loss.backward()", "scaler.scale(loss).backward()")
    scaled = scaled.replace("        nn.utils.clip", "        scaler.unscale_(optimizer)\n        nn.utils.clip")
    scaled = scaled.replace("optimizer.step()", "scaler.step(optimizer)\n        scaler.update()")
    return {
        "compile": compiled(),
        "compile-reduce-overhead": compiled('mode="reduce-overhead"'),
        "compile-max-autotune": compiled('mode="max-autotune"'),
        "bf16": (cast("bfloat16"),),
        "fp16": ((optimizer, optimizer + scaler), cast("float16"), (step, scaled)),
        "tf32": ((_SEED, _SEED + '    torch.set_float32_matmul_precision("high")\n'),),
        "cudnn-benchmark": ((_SEED, _SEED + "    torch.backends.cudnn.benchmark = True\n"),),
        "fused": optimized("fused"),
        "foreach": optimized("foreach"),
        "set-to-none": ((_ZERO, _ZERO.replace("()", "(set_to_none=True)")),),
    }


def _of_images(model: str, optimizer: str) -> dict[str, Edits]:
    """Return the changes of a program that classifies images."""
    forward = "        scores = model(images)\n        loss = nn.functional.cross_entropy(scores, labels)\n"
    copied = "        images, labels = images.to(device), labels.to(device)\n"
    converted = "        images = images.to(memory_format=torch.channels_last)\n"
    channels_last = (
        (model, f"{model}    model = model.to(memory_format=torch.channels_last)\n"),
        (copied, copied + converted),
    )
    return _of_loop(model, optimizer, forward) | {"channels-last": channels_last}


def _of_tokens(model: str, optimizer: str, step: str = _STEP) -> dict[str, Edits]:
    """Return the changes of a language model."""
    forward = (
        "        scores = model(tokens[:, :-1])\n"
        "        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())\n"
    )
    return _of_loop(model, optimizer, forward, step)


def _of_argument(line: str, argument: str, *more: tuple[str, str]) -> Edits:
    """Return a change that adds an argument to the call at the end of a line."""
    return ((line, line.replace(")\n", f", {argument})\n")), *more)


_LOADER = "    loader = DataLoader(Images(), BATCH)\n"
_CORES, _OS = "len(os.sched_getaffinity(0))", ("import time\n", "import os\nimport time\n")
_GPT, _BERT = "    model = GPT().to(device)\n", "    model = BertForSequenceClassification(config)\n"
_OPTIMIZER_OF_TRAINER = '            optim="adamw_torch",\n'
_ON_CPU = "use_cpu=not torch.cuda.is_available()"  # without it, Trainer refuses lower precision on a CPU
_TRAINED = "        Trainer(model, arguments, train_dataset=Reviews(), callbacks=[Log()]).train()\n"
_POLICY = '    keras.mixed_precision.set_global_policy("{}")\n'
_SEED_OF_KERAS = "    keras.utils.set_random_seed(0)\n"
_COMPILED = '    model.compile(optimizer="adam", loss=loss, jit_compile=False)\n'
_BATCHED = "    dataset = dataset.batch(BATCH, drop_remainder=True)\n"


def _in_trainer(argument: str) -> Edits:
    """Return a change that adds an argument to the options of Hugging Face's Trainer."""
    return ((_OPTIMIZER_OF_TRAINER, f"{_OPTIMIZER_OF_TRAINER}            {argument},\n"),)


def _with_attention(backend: str) -> Edits:
    """Return a change that selects a back end of scaled_dot_product_attention for Hugging Face's Trainer."""
    selected = f"        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{backend}):\n"
    return ((_TRAINED, f"{selected}    {_TRAINED}"),)


EDITS: Final[dict[str, dict[str, Edits]]] = {
    "alexnet_adam": {
        **_of_images(
            "    model = AlexNet().to(device)\n",
            "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)\n",
        ),
        "workers": _of_argument(_LOADER, f"num_workers={_CORES}, persistent_workers=True", _OS),
        "pinned": _of_argument(_LOADER, "pin_memory=True"),
    },
    "resnet20": _of_images(
        "    model = ResNet().to(device)\n",
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n",
    ),
    "eager_gpt": {
        **_of_tokens(_GPT, "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"),
        "compile-blocks": ((_GPT, f"{_GPT}    for block in model.blocks:\n        block.compile()\n"),),
    },
    "lstm": _of_tokens(
        "    model = LanguageModel().to(device)\n",
        "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n",
        _CLIPPED,
    ),
    "keras_cnn": {
        "jit": ((_COMPILED, _COMPILED.replace("False", "True")),),
        "mixed-bf16": ((_SEED_OF_KERAS, _SEED_OF_KERAS + _POLICY.format("mixed_bfloat16")),),
        "mixed-fp16": ((_SEED_OF_KERAS, _SEED_OF_KERAS + _POLICY.format("mixed_float16")),),
        "steps-per-execution": _of_argument(_COMPILED, "steps_per_execution=10"),
        "prefetch": ((_BATCHED, f"{_BATCHED}    dataset = dataset.prefetch(tf.data.AUTOTUNE)\n"),),
        "cache": ((_BATCHED, f"{_BATCHED}    dataset = dataset.cache()\n"),),
    },
    "hf_trainer": {
        "compile": ((_BERT, f"{_BERT}    model.compile()\n"),),
        "compile-blocks": ((_BERT, f"{_BERT}    for layer in model.bert.encoder.layer:\n        layer.compile()\n"),),
        "bf16": _in_trainer(f"bf16=True, {_ON_CPU}"),
        "fp16": _in_trainer(f"fp16=True, {_ON_CPU}"),
        "tf32": _in_trainer("tf32=True"),
        "fused": ((_OPTIMIZER_OF_TRAINER, _OPTIMIZER_OF_TRAINER.replace('torch"', 'torch_fused"')),),
        "workers": (
            *_in_trainer(f"dataloader_num_workers={_CORES}, dataloader_persistent_workers=True"),
            ("import tempfile\n", "import os\nimport tempfile\n"),
        ),
        "sdpa-flash": _with_attention("FLASH_ATTENTION"),
        "sdpa-efficient": _with_attention("EFFICIENT_ATTENTION"),
        "sdpa-math": _with_attention("MATH"),
    },
    "gradient_penalty": {
        "compile": (
            ("    critic = Critic().to(device)\n", "    critic = Critic().to(device)\n    critic.compile()\n"),
        ),
    },
    "prices": _of_loop(
        "    model = Regression().to(device)\n",
        "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)\n",
        "        estimates = model(inputs)\n        loss = nn.functional.l1_loss(estimates, targets)\n",
    ),
    "nan_loss": _of_loop(
        "    model = Classifier().to(device)\n",
        "    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)\n",
        "        scores = model(features)\n        loss = nn.functional.cross_entropy(scores, labels)\n",
    ),
}
"""Replacements by program and change."""
