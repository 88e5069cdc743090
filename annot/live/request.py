"""The request of `annot try` to a process, and the result with which the process answers."""

from __future__ import annotations

from typing import Final

import msgspec

from annot.live.environment import VARIABLE

LAYER_CHANGES: Final = (
    "compile", "compile-blocks", "compile-reduce-overhead", "compile-max-autotune", "bf16", "fp16", "tf32",
    "channels-last", "cudnn-benchmark", "sdpa-flash", "sdpa-efficient", "sdpa-math",
)  # fmt: skip
"""Names of the changes that act on a single layer, of `annot.live.layer_alternatives`, which imports PyTorch."""


class LayerRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers of a PyTorch model to time alone, between two steps, in the process of the training."""

    patterns: list[str]
    """Patterns of dotted paths, as in `annot.emit_ranges`."""
    alternatives: list[str] = []
    """Names of changes, of `LAYER_CHANGES`."""
    rounds: int = 10
    """Blocks of calls that are timed under each alternative."""
    block_ms: float = 20.0
    """Shortest duration (ms) of a block. A block has at least one call."""
    seconds: float = 60.0
    """Time (s) for the rounds of one layer. They end earlier only after the first `rounds` / 2 rounds."""
    most: int = 3
    """Largest number of layers that are timed, those that take the most time of a step."""
    memory: int = 2**30
    """Most bytes of recorded arguments, in the memory of the host. A layer with larger ones is skipped."""
    extract: str = ""
    """Absolute path of a Python file to write, with the first layer and random data; empty: none."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured run of a program."""

    result: str
    """Absolute path of the file for the `Result`. The process writes it once, atomically, when it ends."""
    changes: dict[str, str] = {}
    """The changes to apply, in this order: name, and ``module:function`` of `annot.changes.change.Change.live`."""
    framework: str = ""
    """The framework whose session applies the changes, "torch" or "keras"; empty: each one that is imported."""
    warmup: int = 3
    """Steps before the measured ones."""
    steps: int = 30
    """Measured steps. After them the program ends as after ``sys.exit(0)``, unless `keep_going`."""
    keep_going: bool = False
    """Whether the program runs to its own end after the measured steps."""
    losses: int = 0
    """Number of first steps whose losses are kept; 0: losses are not read. Reading a loss waits for the device."""
    parameters: bool = False
    """Whether the parameters after the last of these steps are hashed."""
    seed: int | None = None
    """Seed for `random`, NumPy and the framework when the framework is imported; None: no seed is set."""
    layer: LayerRequest | None = None
    """Layers that are timed alone after the warm-up; None: none."""


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """Difference of several tensors from reference tensors."""

    largest: float | None
    """Largest absolute difference of an element; None: NaN or infinite."""
    relative: float | None
    """Norm of all differences over the norm of all reference tensors; None: NaN or infinite."""
    same_bits: bool
    """Whether all bits are equal."""


class AlternativeTimes(msgspec.Struct, kw_only=True):
    """Measurements of one layer under one change."""

    name: str
    """Name of the change."""
    times_ns: list[float] = []
    """Time (ns) of forward and backward in each block of calls: on a CPU the median, else the mean. Block i is in the
    same round as that of the layer without a change."""
    first_ns: int = 0
    """Wall-clock time (ns) of the first call, which includes the time to compile."""
    outputs: Difference | None = None
    """Difference of the outputs from those without a change; None: they were not compared."""
    gradients: Difference | None = None
    """Difference of the gradients of inputs and parameters; None: they were not compared."""
    numbers: str = ""
    """"same bits"; "rounding": the norms agree in at least half the digits of the least precise dtype; or "differ"."""
    skipped: str = ""
    """Why the layer was not timed under the change, a clause; empty: it was."""


class LayerTimes(msgspec.Struct, kw_only=True):
    """Measurements of one layer alone."""

    path: str
    """Dotted path in the model."""
    kind: str
    """Name of its class."""
    layers: int = 1
    """Number of layers of the same class with the same parameters and inputs, with this one."""
    calls: float = 1.0
    """Calls of all these layers in a step."""
    inputs: str = ""
    """Shapes and dtypes of the tensors among the arguments, such as ``[16,128,256]f32``."""
    backward: bool = False
    """Whether times include a backward pass."""
    calls_per_block: int = 1
    """Calls in each timed block."""
    times_ns: list[float] = []
    """Time (ns) of forward and backward in each block, without a change."""
    repeats: bool = True
    """Whether two calls without a change give the same bits."""
    alternatives: list[AlternativeTimes] = []
    """Measurements under each change."""
    notes: list[str] = []
    """What differs from a call in the training, sentences."""
    skipped: str = ""
    """Why the layer was not timed, a clause; empty: it was."""


def variables(request: Request) -> dict[str, str]:
    """Return the environment variable with a request.

    Example:
        >>> variables(Request(result="run1.result"))["ANNOT_TRY"][:23]
        '{"result":"run1.result"'
    """
    return {VARIABLE: msgspec.json.encode(request).decode()}


class Result(msgspec.Struct, kw_only=True):
    """Measurements of a run."""

    framework: str = ""
    """"torch" or "keras"; empty: no step was seen."""
    applied: dict[str, str] = {}
    """Where each change was applied, such as ``{"fused": "AdamW"}``."""
    skipped: dict[str, str] = {}
    """Why a change was not applied, a clause."""
    trains: bool = False
    """Whether the steps are those of a training; False: calls of a model in inference, or there are none."""
    warmup: int = 0
    """Steps before the measured ones."""
    step_ns: list[int] = []
    """Wall-clock time (ns) of each step, those of the warm-up first. The first one starts where its model is called."""
    window_ns: int | None = None
    """Wall-clock time (ns) of all measured steps, between two waits for the device; None: the program ended before."""
    losses: list[float | None] = []
    """Losses of the first steps; None: a loss is NaN or infinite."""
    parameters: str = ""
    """SHA-256 of all parameters and buffers after `hashed_steps` steps."""
    hashed_steps: int = 0
    """Number of steps before the hash: that of losses, or a few more if steps run together; 0: no hash."""
    draws: bool = False
    """Whether the steps whose losses are kept draw random numbers, such as the masks of dropout."""
    peak_bytes: int = 0
    """Most memory in use: that of the device of the model if it is a GPU, else the resident memory of the process."""
    device: str = ""
    """``cpu`` or ``cuda``."""
    recompiled: int = 0
    """Graphs that were compiled in the measured steps."""
    ended: str = ""
    """"steps": annot ended the program after the measured steps; "process": the program went on, and annot ended its
    process; "program": it ended itself."""
    error: str = ""
    """Type and first line of the exception that ended the program; empty: none did."""
    layers: list[LayerTimes] = []
    """Layers that were timed alone, the one that takes the most time first."""
    layers_problem: str = ""
    """Why no layer was timed alone, a clause; empty: some were, or none was requested."""
    extract_problem: str = ""
    """Why the file of `LayerRequest.extract` was not written, a clause; empty: it was, or none was requested."""
