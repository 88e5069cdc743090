"""Range texts of others: PyTorch, PyProf, FSDP, serving engines, XLA, and the names that programs give to their ranges.

`annot.labels.name_scopes` parses the names of TensorFlow's operations. Each parser takes the text of a range and
returns its label, or None for another format. The formats:

    Lightning            ``[pl][module]torch.nn.modules.linear.Linear: layer.0``
    torch.profiler       ``ProfilerStep#12``, ``Optimizer.step#SGD.step``, ``enumerate(DataLoader)#….__next__``
    emit_nvtx            ``aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]], input_op_ids = [(2,0)]``, each part
                         only if known (`split_suffix` removes them first)
    PyProf and DLProf    ``{'mod': 'torch', 'op': 'conv2d', 'args': […]}``, ``{'mod': 'LSTM', 'strRepr': '4, 8'}``,
                         ``{'traceMarker': […], 'funcStack': '/Net::forward/Linear::forward(2)/linear'}``,
                         ``layer:NAME``
    vLLM and SGLang      ``{'Module': 'model.layers.0', 'Inputs': [[2, 8]], …}``
                         and the ranges of serving engines around a step (below)
    XLA                  ``Thunk:#name=fusion.3,hlo_op=fusion.3#`` (a name, then the metadata of TraceMe between ``#``)

A step of a serving engine:

    vLLM           ``execute_context_1(512)_generation_31(31)``: requests (and tokens) in prefill and in decode
                   ``execute_context_1(888_788544)_generation_0(0)``: further sums, here of squares, follow the tokens
                   ``execute_new_1_cached_3`` (2025): new requests, and requests of earlier steps
                   ``execute_543_context_1(sq512sk512sqsq…sqsk…)_generation_31(sq31sk8192…)``: the same with the sums of
                   query lengths (``sq``) and of key lengths (``sk``), as profiled for TraceLens
    SGLang         ``step[DECODE bs=32]``, ``step[EXTEND bs=2 toks=4096]``, ``step[MIXED bs=2 c=1 g=1 c_sk=8 g_sk=12]``
    TensorRT-LLM   ``[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 31 gen reqs``, without tokens or 7 if older

FSDP2 (`torch.distributed.fsdp.fully_shard`): ``FSDP::pre_forward (X)`` opens the forward pass of layer X,
``FSDP::post_forward (X)`` closes it. ``FSDP::pre_backward (X)`` opens its backward pass, which
``FSDP::post_backward_accumulate (X)``, ``…_reshard (X)``, ``…_rs_wait (X)`` and ``…_reduce (X)`` close. The root module
has no path. (`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` of PyTorch 2.13; earlier versions have fewer of
the closing ranges.) FSDP1 names its ranges without layers: ``FullyShardedDataParallel._pre_forward``.

NVTX ranges of a program or of a training library have no common format. Their names often contain the usual words, and
numbers count steps or layers. The sources of these libraries have ``DeepSpeedEngine.step`` (`instrument_w_nvtx`),
``transformer_engine._Linear.forward.gemm``, ``megatron.core.transformer.transformer_layer._forward_attention.qkv``
(`megatron.core.utils.nvtx_range_push`: function and part), ``[pl][profile][Strategy]DDPStrategy.backward`` (Lightning)
and ``PP:0F1`` (`torch.distributed.pipelining.schedules`: stage, action and micro-batch).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

BATCH: Final = "(batch)"
DATA: Final = "(data)"

DOMAINS: Final = {"Forward": "forward", "Backward": "backward", "Gradient": "backward"}
"""NVTX domains named after the phase of their ranges, as in the examples of nvtx-plugins for TensorFlow."""


@dataclass(frozen=True, slots=True)
class Label:
    """Parsed label of a range.

    Args:
        layer: path of the layer, or another name for the row.
        module: class of the layer or optimizer, empty if unknown.
        phase: forward, backward, optimizer, data or other.
        shapes: shapes of the inputs in the format of `annot.labels.tag`.
        number: number of the epoch or batch.
        loop: whether the range is an epoch or a batch.
        layered: whether the label names a layer of the model. Operations inside are then part of the layer.
        role: one of `annot.profile.ROLES`.
        plain: whether the text has no known format, so that the place of the range names the layer.
    """

    layer: str
    module: str = ""
    phase: str = "other"
    shapes: str | None = None
    number: int | None = None
    loop: bool = False
    layered: bool = False
    role: str = "annotation"
    plain: bool = False


ENGINE: Final = "autograd::engine::evaluate_function: "
"""Prefix of the name of a backward operation in the range that autograd's engine opens around it."""

_BACKWARD = re.compile(rf"(?:{ENGINE}.*|\w*Backward\d*)")
_SUFFIX: Final = r"(?s), (?:stashed )?(?:seq|op_id|sizes|input_op_ids) ?= ?.*$"
_SEQUENCE: Final = r", (?:stashed )?seq ?= ?(\d{1,18})(?:,|$)"
_SIZES: Final = r", sizes ?= ?\[((?:\[[\d, ]*\](?:, )?)+)\](?:,|$)"


def split_suffix(texts: pl.Series) -> pl.DataFrame:
    """Split the suffix of `torch.autograd.profiler.emit_nvtx` from the names of operations.

    Args:
        texts: range texts (String).

    Returns:
        text, stem (the text without the suffix), operation (whether the text has a suffix), sequence (sequence number,
        Int64 or null) and sizes (shapes in the format of `annot.labels.tag`, without scalars and other values, or
        null).

    Example:
        >>> split_suffix(pl.Series(["aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [], [3]]"])).row(0)[1:]
        ('aten::mm', True, 12, '[2,3] [3]')
    """
    text = pl.col("text")
    return pl.DataFrame({"text": texts}).with_columns(
        text.str.replace(_SUFFIX, "").alias("stem"),
        text.str.contains(_SUFFIX).alias("operation"),
        text.str.extract(_SEQUENCE).cast(pl.Int64).alias("sequence"),
        _sizes(texts).alias("sizes"),
    )


def _sizes(texts: pl.Series) -> pl.Series:
    """Return the shapes in each text, or null. Each distinct list of shapes is formatted once."""
    if not texts.str.contains(", sizes", literal=True).any():
        return pl.Series([None], dtype=pl.String).new_from_index(0, texts.len())
    raw = texts.str.extract(_SIZES)
    distinct = raw.unique()
    shapes = distinct.str.replace_all(", ", ",").str.replace_all("],[", "] [", literal=True)
    shapes = shapes.str.replace_all(r"\[\] ?", "").str.strip_chars()
    return raw.replace(distinct, pl.select(pl.when(shapes != "").then(shapes)).to_series())


def operation(stem: str) -> Label:
    """Return the label of a framework's operation.

    Example:
        >>> operation("MmBackward0").role, operation("aten::mm").role
        ('backward', 'operator')
    """
    if _BACKWARD.fullmatch(stem):
        return Label(stem.removeprefix(ENGINE), phase="backward", role="backward")
    return Label(stem, role="operator")


_STEP = re.compile(r"ProfilerStep[#*]\s*(\d{1,18})")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(.*)")
_LOADER = re.compile(r"enumerate\(DataLoader\).*")


def _torch_profiler(text: str) -> Label | None:
    if match := _STEP.fullmatch(text):
        return Label(BATCH, number=int(match[1]), loop=True)
    if match := _OPTIMIZER.fullmatch(text):
        return Label("", match[1], "optimizer")
    return Label(DATA, phase="data") if _LOADER.fullmatch(text) else None


_LIGHTNING = re.compile(r"\[pl\]\[module\](?:\w+\.)*(\w+): (.+)")


def _lightning(text: str) -> Label | None:
    match = _LIGHTNING.fullmatch(text)
    return match and Label(unwrapped(match[2]), match[1], "forward", layered=True)


_PYPROF_CALL = re.compile(r"""\{'mod': '([^']*)', '(op|strRepr)': (?:'([^']*)'|"[^"]*")""")
_FUNCTION_STACK = re.compile(r"""'funcStack': ['"]/?([^'"]*)['"]\}$""")
_FORWARD_FRAME = re.compile(r"([^/]*)::forward(\(\d+\))?")


def _pyprof(text: str) -> Label | None:
    if text.startswith("layer:"):
        return Label(text.removeprefix("layer:"), phase="forward", layered=True)
    if match := _PYPROF_CALL.match(text):
        if match[3] == "DataLoader":
            return Label(DATA, phase="data")
        return Label(f"{match[1]}.{match[3]}" if match[2] == "op" else match[1], role="operator")
    if text.startswith("{'traceMarker'"):
        return _function_stack(text) or Label("traceMarker", role="operator")
    return Label("model_config", role="operator") if text.startswith('{"model_config": ') else None


def _function_stack(text: str) -> Label | None:
    """Return the label of the modules in the function stack that DLProf records for an operation."""
    match = _FUNCTION_STACK.search(text)
    frames = match[1].split("/")[:-1] if match else []
    modules = [frame_match for frame in frames if (frame_match := _FORWARD_FRAME.fullmatch(frame))]
    if not modules:
        return None
    path = "/".join(f"{name}{number or ''}" for name, number in (module.groups() for module in modules))
    return Label(path, modules[-1][1], "forward", layered=True)


_MODULE_DICT = re.compile(r"\{'Module': '([^']*)'")
_MODULE_INPUTS = re.compile(r"'Inputs': \[((?:\[[\d, ]*\](?:, )?)+)\]")


def _layerwise(text: str) -> Label | None:
    match = _MODULE_DICT.match(text)
    if match is None:
        return None
    inputs = _MODULE_INPUTS.search(text)
    shapes = inputs[1].replace("], [", "] [").replace(", ", ",") if inputs else None
    return Label(match[1], phase="forward", shapes=shapes, layered=True)


def _serving(text: str) -> Label | None:
    """Return the label of a step of a serving engine. Its text contains sizes, so each step has another text."""
    step = serving_step(text)
    return None if step is None else Label(f"{step.kind} step")


_TRACE_ME = re.compile(r"([^#]+)#(\w+=.*)#")
_TRACE_ME_NAME = re.compile(r"(?:^|,)(?:tf_op|hlo_op|name|hlo_module)=([^,#]+)")


def _trace_me(text: str) -> Label | None:
    match = _TRACE_ME.fullmatch(text)
    if match is None:
        return None
    name = _TRACE_ME_NAME.search(match[2])
    label = match[1].rstrip(":")
    return Label(f"{label} {name[1]}" if name else label)


def understand(text: str) -> Label | None:
    """Return the label of a text in a foreign label format, or None for an unknown format.

    Example:
        >>> understand("ProfilerStep#12").number
        12
        >>> understand("attention.linear_qkv") is None
        True
    """
    parsers = (_torch_profiler, _lightning, _pyprof, _layerwise, _serving, _trace_me)
    return next((label for parser in parsers if (label := parser(text)) is not None), None)


@dataclass(frozen=True, slots=True)
class ServingStep:
    """Kind and size of a step of a serving engine.

    Args:
        kind: prefill, decode, mixed, idle, or the engine's name of another kind in lower case.
        requests: number of requests, the batch size.
        tokens: number of tokens that the step computes, or None if unknown.
        context: number of tokens in the keys and values of all requests, or None if unknown.
    """

    kind: str
    requests: int
    tokens: int | None = None
    context: int | None = None


_VLLM_SIZES: Final = r"(\d{1,9})\((?:(\d{1,15})(?:_\d{1,30})*|sq(\d{1,15})sk(\d{1,15})\w*)\)"
_VLLM: Final = re.compile(rf"execute_(?:\d+_)?context_{_VLLM_SIZES}_generation_{_VLLM_SIZES}")
_VLLM_2025: Final = re.compile(r"execute_new_(\d{1,9})_cached_(\d{1,9})")
_SGLANG: Final = re.compile(r"step\[([A-Z][A-Z_]*) bs=(\d{1,9})((?: \w+=\d{1,15})*)\]")
_SGLANG_KINDS: Final[Mapping[str, str]] = {"EXTEND": "prefill", "SPLIT_PREFILL": "prefill"}
"""Other names of SGLang's modes; ``DECODE``, ``MIXED`` and ``IDLE`` are those of `ServingStep` in upper case."""
_TENSORRT_LLM: Final = re.compile(
    r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:(\d{1,15}) ctx tokens, )?(\d{1,9}) gen reqs"
)
_CONTEXTS: Final = ("sk", "c_sk", "g_sk")


def serving_step(text: str) -> ServingStep | None:
    """Return kind and size of the step that a range text names, or None for other texts.

    Example:
        >>> serving_step("step[DECODE bs=32]")
        ServingStep(kind='decode', requests=32, tokens=32, context=None)
        >>> serving_step("execute_context_1(512)_generation_0(0)").kind
        'prefill'
    """
    return next((step for parsed in _ENGINES.values() if (step := parsed(text)) is not None), None)


def serving_engine(text: str) -> str:
    """Return the name of the engine whose step a range text names; empty for other texts.

    Example:
        >>> serving_engine("step[DECODE bs=32]"), serving_engine("execute_new_1_cached_3"), serving_engine("train")
        ('SGLang', 'vLLM', '')
    """
    engine = next((engine for engine, parsed in _ENGINES.items() if parsed(text) is not None), "")
    return "vLLM or SGLang" if engine == "vLLM" and "(sq" in text else engine  # TraceLens profiles both in this format


def _vllm(text: str) -> ServingStep | None:
    """Return the step of vLLM. A request of an earlier step counts as decode, although its prompt may continue."""
    if (match := _VLLM_2025.fullmatch(text)) is not None:
        new, cached = int(match[1]), int(match[2])
        return ServingStep(_kind(new, cached), new + cached)
    if (match := _VLLM.fullmatch(text)) is None:
        return None
    prefills, decodes = int(match[1]), int(match[5])
    tokens = sum(int(match[plain] or match[summed]) for plain, summed in ((2, 3), (6, 7)))
    keys = [int(match[group]) for group in (4, 8) if match[group]]
    return ServingStep(_kind(prefills, decodes), prefills + decodes, tokens, sum(keys) if len(keys) == 2 else None)


def _sglang(text: str) -> ServingStep | None:
    if (match := _SGLANG.fullmatch(text)) is None:
        return None
    sizes = {name: int(size) for name, size in (item.split("=") for item in match[3].split())}
    kind, requests = _SGLANG_KINDS.get(match[1], match[1].lower()), int(match[2])
    contexts = [sizes[name] for name in _CONTEXTS if name in sizes]
    tokens = sizes.get("toks", requests if kind == "decode" else None)
    return ServingStep(kind, requests, tokens, sum(contexts) if contexts else None)


def _tensorrt_llm(text: str) -> ServingStep | None:
    """Return the step of TensorRT-LLM. As in SGLang, a request in decode computes one token."""
    if (match := _TENSORRT_LLM.fullmatch(text)) is None:
        return None
    prefills, decodes = int(match[1]), int(match[3])
    tokens = int(match[2]) + decodes if match[2] else None if prefills else decodes
    return ServingStep(_kind(prefills, decodes), prefills + decodes, tokens)


def _kind(prefills: int, decodes: int) -> str:
    return "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else "idle"


_ENGINES: Final[Mapping[str, Callable[[str], ServingStep | None]]] = {
    "vLLM": _vllm,
    "SGLang": _sglang,
    "TensorRT-LLM": _tensorrt_llm,
}


_HOOK: Final = (
    r"^FSDP::(?P<side>pre|post)_(?P<phase>forward|backward)(?:_accumulate|_reshard|_rs_wait|_reduce)?"
    r"(?: \((?P<layer>.*)\))?(?: \[pg=\d+\])?$"
)
_WRAPPERS: Final = r"(?:^|\.)(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\b|^module\b"
"""Segments of FSDP1, checkpoint_wrapper, torch.compile and DDP."""


def is_step(name: str) -> bool:
    """Return whether a name is that of a step of FSDP, such as a hook or an all-gather.

    Example:
        >>> is_step("FSDP::all_gather (layers.0)"), is_step("FullyShardedDataParallel.forward")
        (True, False)
    """
    return name.startswith(("FSDP::", "FullyShardedDataParallel.")) and not name.endswith(".forward")


def unwrapped(path: str) -> str:
    """Return the path of a layer without the segments of wrappers: ``layers.0`` for ``module.layers.0._orig_mod``."""
    return re.sub(_WRAPPERS, "", path).removeprefix(".")


def hooks_of(names: pl.Series) -> pl.DataFrame:
    """Return the hook that each name belongs to.

    Args:
        names: range texts without the suffix of emit_nvtx (String).

    Returns:
        side (pre or post), phase (forward or backward) and layer (path without wrappers, empty for the root module);
        null for other names.

    Example:
        >>> hooks_of(pl.Series(["FSDP::pre_forward (blocks.2._checkpoint_wrapped_module)"])).row(0)
        ('pre', 'forward', 'blocks.2')
    """
    hooks = names.str.extract_groups(_HOOK).struct.unnest()
    layer = pl.col("layer").fill_null("").str.replace_all(_WRAPPERS, "").str.strip_prefix(".")
    return hooks.with_columns(pl.when(pl.col("side").is_not_null()).then(layer).alias("layer"))


WARM_UP: Final = r"(?i)(?:^(?:[^.]*\.)?|[^a-z.])warm[-_ ]?up(?:[^a-z]|$)"
"""Names of warm-up ranges: ``warmup``, ``Warm-up Step 1``; not ``megatron.core.….warmup``, part of each step."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PHASES: Final = {
    phase: re.compile(rf"(?:{pattern})")
    for phase, pattern in {
        "backward": r"(?!.*\b(?:forward|fwd)\b)(?:.* )?(?:backward|bwd|backprop|back propagation)(?: pass| step)?"
        r"|pp [biw]",
        "forward": r"(?!.*\b(?:backward|bwd)\b)(?:.* )?(?:(?:forward|fwd)(?: pass| step)?|(?:loss|criterion)(?: fn)?)"
        r"|pp f",
        "optimizer": r"(?:.* )?(?:optimizer|optim|opt)(?:(?: stage)? step| update)?|(?:.* )?zero grad(?:s|ients?)?"
        r"|(?:.* )?engine step",
        "data": r"data(?: ?load(?:er|ing)?)?(?: next| wait| fetch)?"
        r"|.* (?:train dataloader|val|test|predict) next"
        r"|(?:load|fetch|get|next|prepare|wait for)(?: the| next)? (?:data|batch|inputs?)",
    }.items()
}
_FUNCTION: Final = re.compile(r"(?:^|\.)_?(forward|backward)(?!\w*(?:forward|backward))(?:_\w+)?(?=\.|$)")
_PIPELINE: Final = re.compile(r"^(PP:\d+[A-Z_]+)(\d+)$")
_CALL: Final = re.compile(r"(?:nccl|cublas|MPI_)[A-Z]\w*")
_NUMBER: Final = re.compile(r"(?<![^\W_])\d+(?![^\W_])")


def phase_of(name: str) -> str:
    """Return the phase that the words of a name suggest: forward, backward, optimizer, data, or other.

    The loss is part of the forward pass.

    Example:
        >>> [phase_of(name) for name in ("Forward pass", "loss.backward", "zero_grad", "load_batch", "benchmark")]
        ['forward', 'backward', 'optimizer', 'data', 'other']
    """
    words = " ".join(_WORDS.findall(name)).lower()
    inside = _FUNCTION.search(name)
    phases = (phase for phase, pattern in _PHASES.items() if pattern.fullmatch(words))
    return next(phases, inside[1] if inside and "." in name else "other")


def name_of(text: str) -> str:
    """Return the name of a range without Lightning's prefix, and with the micro-batch as a word: ``PP:0F 12``."""
    return _PIPELINE.sub(r"\1 \2", text.removeprefix("[pl][profile]"))


def is_call(name: str) -> bool:
    """Return whether a name is that of a library call, which the library itself records.

    Calls of NCCL, cuBLAS and MPI are known from profiles of Nsight Systems.

    Example:
        >>> is_call("ncclGroupEnd"), is_call("MPI_Send"), is_call("attention")
        (True, True, False)
    """
    return _CALL.fullmatch(name) is not None


def folded(names: Collection[str]) -> dict[str, str]:
    """Return a name with ``#`` instead of numbers for those names that count: equal except for consecutive numbers.

    Example:
        >>> folded(["Step 1", "Step 2", "seq 128", "seq 256", "conv1"])
        {'Step 1': 'Step #', 'Step 2': 'Step #'}
    """
    alike: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for name in names:
        if numbers := _NUMBER.findall(name):
            alike.setdefault(tuple(_NUMBER.split(name)), []).append((name, numbers))
    result: dict[str, str] = {}
    for members in alike.values():
        columns = [set(column) for column in zip(*(numbers for _, numbers in members), strict=True)]
        varies = [len(column) > 1 for column in columns]
        if any(varies) and all(_counts(column) for column in columns):
            result |= {name: _mark_numbers(name, varies) for name, _ in members}
    return result


def _counts(numbers: Collection[str]) -> bool:
    """Return whether numbers have no gap between the least and the greatest."""
    values = {int(number[:18]) for number in numbers}
    return max(values) - min(values) < len(values)


def _mark_numbers(name: str, varies: list[bool]) -> str:
    """Replace the numbers of a name that vary by ``#``."""
    which = iter(varies)
    return _NUMBER.sub(lambda number: "#" if next(which) else number[0], name)
