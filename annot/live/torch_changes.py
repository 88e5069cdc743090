"""Changes of a running PyTorch program. `annot.changes.pytorch` says when each one fits and how it is written by hand.

Each function installs the change of its name: ``compile-blocks`` is `compile_blocks`.
"""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from annot.live.builtin_calls import can_watch, watch_builtins
from annot.live.torch_amp import Autocast, LossScaler
from annot.live.torch_session import TorchSession
from annot.torch.module_paths import OPTIMIZED, inner
from annot.util.cpus import usable_cpus

_PREFETCHED: Final = 2
"""The default of `DataLoader` for batches that each worker prefetches."""
_AMPERE: Final = (8, 0)
"""Compute capability of the first GPUs with TF32, bfloat16 and flash attention."""
_CONVOLUTIONS: Final = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
_CONVOLUTIONS_2D: Final = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
_FUSED_DEVICES: Final = ("cpu", "cuda", "mps", "xpu")
_ATTENTION: Final = "scaled_dot_product_attention"
_FAST_PATHS: Final = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
"""Functions of `torch.nn.MultiheadAttention` and its encoder layer in inference. On a GPU they compute attention as
`scaled_dot_product_attention` does."""
_OURS: Final = "annot_change"
"""Attribute of compiled calls that a change has compiled."""


# ---------------------------------------------------------------- compilation


def compile_(session: TorchSession) -> None:
    """Compile models: ``torch.compile(model)``."""
    _compile_models(session, "compile")


def compile_reduce_overhead(session: TorchSession) -> None:
    """Compile models to CUDA graphs."""
    _compile_models(session, "compile-reduce-overhead", "reduce-overhead")


def compile_max_autotune(session: TorchSession) -> None:
    """Compile models with measured choices of kernels."""
    _compile_models(session, "compile-max-autotune", "max-autotune")


def compile_blocks(session: TorchSession) -> None:
    """Compile the repeated blocks of models, each one alone. Blocks of one class share the compiled code."""
    name = "compile-blocks"

    def change(model: torch.nn.Module) -> None:
        blocks = [] if _refuses_compilation(session, name, model) else list(_repeated_blocks(model))
        for block in blocks:
            _compile(block)
        if blocks:
            classes = dict.fromkeys(type(block).__name__ for block in blocks)
            session.applied(name, f"{len(blocks)} {' and '.join(classes)} of {_name(model)}")
        elif not _is_compiled(model):
            session.skipped(name, f"{_name(model)} has no repeated blocks")

    session.on_model(change)
    _withdraw_without_graphs(session, name)


def _compile_models(session: TorchSession, name: str, mode: str = "default") -> None:
    def change(model: torch.nn.Module) -> None:
        if mode == "reduce-overhead" and _device(model) != "cuda":
            session.skipped(name, "CUDA graphs need a GPU")
        elif not _refuses_compilation(session, name, model):
            _compile(model, mode=mode)
            session.applied(name, _name(model))

    session.on_model(change)
    _withdraw_without_graphs(session, name)


def _withdraw_without_graphs(session: TorchSession, name: str) -> None:
    """Withdraw a compilation that has made no graph by the end of the warm-up, as under `torch.compiler.disable`."""

    def check(steps: int) -> None:
        ends_warmup = name in session.result.applied and steps == max(1, session.warmup)
        if ends_warmup and not session.compiled_graphs() and session.may_end():
            session.withdraw(name, "torch.compile compiled no graph of the model")

    session.after_step(check)


def _refuses_compilation(session: TorchSession, name: str, model: torch.nn.Module) -> bool:
    """Note why a model is not compiled, if that is the case."""
    reason = ""
    if _is_compiled(model):
        reason = f"{_name(model)} is compiled already"
    elif any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        reason = f"{_name(model)} is a script of TorchScript"
    elif isinstance(model, torch.nn.DataParallel):
        reason = "DataParallel copies its model in each step"
    if reason:
        session.skipped(name, reason)
    return bool(reason)


def _is_compiled(model: torch.nn.Module, *, counts_ours: bool = False) -> bool:
    """Return whether the program has compiled a module of a model, or with `counts_ours` a change has."""
    for module in model.modules():
        call = vars(module).get("_compiled_call_impl")
        call = getattr(call, "inner", call)
        compiled = type(module).__name__ == OPTIMIZED or hasattr(call, "_torchdynamo_orig_callable")
        if compiled and (counts_ours or not hasattr(call, _OURS)):
            return True
    return False


def _compile(module: torch.nn.Module, **options: Any) -> None:
    """Compile a module in place.

    torch.compile skips the frame of a `forward` of torch.nn, such as that of `Sequential`, so that it would compile
    each submodule alone. For such modules it wraps the call in a function, as here.
    """
    if type(module).forward.__module__.startswith("torch.nn."):
        call: Any = module._call_impl

        def forward(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        vars(module)["_compiled_call_impl"] = torch.compile(forward, **options)
    else:
        module.compile(**options)
    setattr(vars(module)["_compiled_call_impl"], _OURS, True)


def _repeated_blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost modules with submodules that share their class with others in a list or Sequential."""
    pending: list[Any] = [model]
    while pending:
        module = pending.pop()
        children = [child for child in module.children() if child is not module]
        by_class: defaultdict[type, list[torch.nn.Module]] = defaultdict(list)
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            for child in children:
                if next(child.children(), None) is not None and not isinstance(child, torch.nn.ModuleList):
                    by_class[type(child)].append(child)
        blocks = [child for same in by_class.values() if len(same) > 1 for child in same]
        yield from blocks
        pending.extend(child for child in reversed(children) if not any(child is block for block in blocks))


# ---------------------------------------------------------------- precision


def bf16(session: TorchSession) -> None:
    """Run models and losses in autocast to bfloat16."""
    _autocast(session, "bf16", torch.bfloat16)


def fp16(session: TorchSession) -> None:
    """Run models and losses in autocast to float16, and scale losses."""
    LossScaler(session, _autocast(session, "fp16", torch.float16))


def _autocast(session: TorchSession, name: str, dtype: torch.dtype) -> Autocast:
    autocast = Autocast(session, dtype)

    def change(model: torch.nn.Module) -> None:
        reason = _why_no_autocast(model, dtype, is_open=autocast.is_open)
        if reason:
            session.skipped(name, reason)
        else:
            autocast.on = True
            session.applied(name, _name(model))

    session.on_model(change)
    return autocast


def _why_no_autocast(model: torch.nn.Module, dtype: torch.dtype, *, is_open: bool) -> str:
    """Return why a model does not run in autocast. `is_open` tells that the change itself has enabled it."""
    device = _device(model)
    if torch.is_autocast_enabled(device) and not is_open:
        return "autocast is on already"
    if all(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return f"{_name(model)} has no float32 parameters"
    if device == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "the GPU does not multiply in bfloat16"
    return ""


def tf32(session: TorchSession) -> None:
    """Let float32 matrix multiplications and convolutions use TF32."""

    def change(model: torch.nn.Module) -> None:
        if _device(model) != "cuda":
            session.skipped("tf32", "the model runs on no GPU")
        elif _capability(model) < _AMPERE:
            session.skipped("tf32", "the GPU does not multiply in TF32")
        elif torch.get_float32_matmul_precision() != "highest":
            session.skipped("tf32", "TF32 is on already")
        else:
            torch.set_float32_matmul_precision("high")
            session.applied("tf32", "matrix multiplications")

    session.on_model(change)


# ---------------------------------------------------------------- kernels


def channels_last(session: TorchSession) -> None:
    """Keep the weights of 2d convolutions and the 4d inputs of their models in the channels-last format."""
    name = "channels-last"
    changed: list[torch.nn.Module] = []

    def change(model: torch.nn.Module) -> None:
        weights = [module.weight for module in model.modules() if isinstance(module, _CONVOLUTIONS_2D)]
        if not weights:
            session.skipped(name, f"{_name(model)} has no 2d convolution")
        elif all(map(_is_channels_last, weights)):
            session.skipped(name, f"the weights of {_name(model)} have this format already")
        else:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            changed.append(model)
            session.applied(name, _name(model))

    def change_inputs(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not any(model is other for other in changed):
            return args, kwargs
        return tuple(map(_to_channels_last, args)), {key: _to_channels_last(value) for key, value in kwargs.items()}

    session.on_model(change)
    session.on_inputs(change_inputs)
    if session.request.losses:
        session.patches.wrap(torch.nn.functional, "dropout", _drop_in_order)


def _drop_in_order(
    original: Callable[..., Any],
    input: torch.Tensor,  # noqa: A002 (the name of PyTorch)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Draw the mask of a channels-last tensor in the order of a contiguous one, so that losses can be compared."""
    if not training or input.dim() != 4 or input.is_contiguous() or not _is_channels_last(input):
        return original(input, p, training, inplace)  # type: ignore[no-any-return]
    mask = original(torch.ones_like(input, memory_format=torch.contiguous_format), p)
    return input.mul_(mask) if inplace else input * mask


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _to_channels_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


def cudnn_benchmark(session: TorchSession) -> None:
    """Let cuDNN measure its algorithms for each shape of a convolution."""
    name = "cudnn-benchmark"

    def change(model: torch.nn.Module) -> None:
        if _device(model) != "cuda":
            session.skipped(name, "the model runs on no GPU")
        elif torch.backends.cudnn.benchmark:
            session.skipped(name, "it is on already")
        elif not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
            session.skipped(name, f"{_name(model)} has no convolution")
        else:
            torch.backends.cudnn.benchmark = True
            session.applied(name, "convolutions")

    session.on_model(change)


def sdpa_flash(session: TorchSession) -> None:
    """Compute attention with FlashAttention."""
    _attention(session, "sdpa-flash", SDPBackend.FLASH_ATTENTION)


def sdpa_efficient(session: TorchSession) -> None:
    """Compute attention with the memory-efficient kernel."""
    _attention(session, "sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION)


def sdpa_math(session: TorchSession) -> None:
    """Compute attention with separate operations."""
    _attention(session, "sdpa-math", SDPBackend.MATH)


def _attention(session: TorchSession, name: str, backend: Any) -> None:
    on: list[bool] = []
    uncalled: set[int] = set()

    def change(model: torch.nn.Module) -> None:
        reason = _why_no_attention(session, model, backend)
        if reason:
            session.skipped(name, reason)
            return
        on.append(True)
        if _hides_calls(model):
            session.applied(name, _name(model))
        else:
            uncalled.add(id(model))

    @contextmanager
    def enter(model: torch.nn.Module) -> Iterator[None]:
        with sdpa_kernel(backend) if on else nullcontext(), ExitStack() as first_call:
            if id(model) in uncalled:
                uncalled.discard(id(model))
                session.skipped(name, f"the model calls no {_ATTENTION}")
                functions = {_ATTENTION, *(_FAST_PATHS if _device(model) == "cuda" else ())}
                note = partial(session.applied, name, _name(model))
                first_call.enter_context(watch_builtins(functions, note))
            yield

    session.on_model(change)
    session.around_calls(enter)


def _hides_calls(model: torch.nn.Module) -> bool:
    """Return whether a call of a model does not show which functions the model calls."""
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    return scripted or isinstance(model, torch.nn.DataParallel) or not can_watch()


def _why_no_attention(session: TorchSession, model: torch.nn.Module, backend: Any) -> str:
    """Return why an implementation of attention is not available. The one for CPUs is a flash attention."""
    device = _device(model)
    if backend == SDPBackend.MATH:
        return ""
    if device != "cuda":
        return "" if backend == SDPBackend.FLASH_ATTENTION else "it needs a GPU"
    if backend != SDPBackend.FLASH_ATTENTION:
        return ""
    if _capability(model) < _AMPERE:
        return "the GPU has no flash attention"
    autocasts = torch.is_autocast_enabled(device) or session.request.changes.keys() & {"bf16", "fp16"}
    if not autocasts and all(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return "flash attention on a GPU needs float16 or bfloat16"
    return ""


def cuda_graphs(session: TorchSession) -> None:
    """Capture the forward and the backward of models in CUDA graphs at the first call."""
    name = "cuda-graphs"
    tried: list[torch.nn.Module] = []

    def capture(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not any(model is other for other in tried):
            tried.append(model)
            reason = _why_no_graphs(model, args, kwargs)
            if reason:
                session.skipped(name, reason)
            else:
                _capture(model, args)
                session.applied(name, _name(model))
        return args, kwargs

    session.on_inputs(capture)


def _why_no_graphs(model: torch.nn.Module, args: Any, kwargs: Any) -> str:
    hooks = ("_backward_hooks", "_forward_hooks", "_forward_pre_hooks")
    if _device(model) != "cuda":
        return "CUDA graphs need a GPU"
    if kwargs or not all(isinstance(value, torch.Tensor) and value.is_cuda for value in args):
        return f"{_name(model)} has arguments other than tensors on the GPU"
    if any(getattr(model, hook) for hook in hooks):
        return f"{_name(model)} has hooks"
    return f"{_name(model)} is compiled already" if _is_compiled(model, counts_ours=True) else ""


def _capture(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    """Replace `forward` of a model by graphs. The calls for the capture change neither buffers nor random numbers."""
    device = next(model.parameters()).device
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    random = torch.cuda.get_rng_state(device)
    try:
        samples = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in args)
        torch.cuda.make_graphed_callables(model, samples, allow_unused_input=True)
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.cuda.set_rng_state(random, device)


# ---------------------------------------------------------------- optimizers


def fused(session: TorchSession) -> None:
    """Switch optimizers to their fused implementation."""

    def change(optimizer: Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if _has_argument(session, optimizer, "fused"):
            if not all(value.is_floating_point() and value.device.type in _FUSED_DEVICES for value in parameters):
                session.skipped("fused", f"{_name(optimizer)} updates parameters for which it is not implemented")
                return
            _set(optimizer, fused=True, foreach=False)
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
            for parameter in parameters:  # the state of a checkpoint
                step = optimizer.state[parameter].get("step") if parameter in optimizer.state else None
                if isinstance(step, torch.Tensor):
                    optimizer.state[parameter]["step"] = step.to(parameter.device, torch.float32)
            session.applied("fused", _name(optimizer))

    session.on_optimizer(change)


def foreach(session: TorchSession) -> None:
    """Switch optimizers to their implementation for lists of tensors."""

    def change(optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        if _has_argument(session, optimizer, "foreach"):
            if any(group.get("fused") for group in groups):
                session.skipped("foreach", f"{_name(optimizer)} is fused")
            elif all(group["foreach"] is None and _on_gpu(group["params"]) for group in groups):
                session.skipped("foreach", f"{_name(optimizer)} uses it already: it is the default on a GPU")
            else:
                _set(optimizer, foreach=True)
                session.applied("foreach", _name(optimizer))

    session.on_optimizer(change)


def set_to_none(session: TorchSession) -> None:
    """Let `zero_grad` drop gradients."""
    name = "set-to-none"
    session.skipped(name, "no call of zero_grad keeps the gradients")

    def zero_grad(original: Callable[..., Any], owner: Any, set_to_none: bool = True) -> Any:
        if not set_to_none:
            session.applied(name, _name(owner))
        return original(owner, set_to_none=True)

    for owner in (Optimizer, torch.nn.Module):
        session.patches.wrap(owner, "zero_grad", zero_grad)


def _has_argument(session: TorchSession, optimizer: Optimizer, argument: str) -> bool:
    """Return whether an optimizer of PyTorch has an argument that is not True. If not, note why."""
    step = inspect.unwrap(type(optimizer).step)
    if argument not in optimizer.defaults or not step.__module__.startswith("torch.optim."):
        reason = f"{_name(optimizer)} has no argument {argument}"
    elif all(group.get(argument) for group in optimizer.param_groups):
        reason = f"{_name(optimizer)} uses it already"
    elif any(group.get("differentiable") for group in optimizer.param_groups):
        reason = f"{_name(optimizer)} is differentiable"
    else:
        return True
    session.skipped(argument, reason)
    return False


def _set(optimizer: Optimizer, **arguments: bool) -> None:
    """Set arguments for all groups of parameters, also for those that are added later."""
    optimizer.defaults.update(arguments)
    for group in optimizer.param_groups:
        group.update(arguments)


def _on_gpu(parameters: Iterable[torch.Tensor]) -> bool:
    return all(parameter.is_cuda for parameter in parameters)


# ---------------------------------------------------------------- data loading


def workers(session: TorchSession) -> None:
    """Load data with a worker process per core."""

    def change(loader: DataLoader[Any]) -> None:
        count = usable_cpus()
        reason = _why_no_workers(loader, count)
        if reason:
            session.skipped("workers", reason)
            return
        prefetched = loader.prefetch_factor or _PREFETCHED
        _set_loader(loader, num_workers=count, persistent_workers=True, prefetch_factor=prefetched)
        session.applied("workers", f"{_name(loader)}: {count} workers")

    session.on_loader(change)


def _why_no_workers(loader: DataLoader[Any], count: int) -> str:
    if loader.num_workers >= count:
        return f"{_name(loader)} has {loader.num_workers} workers"
    if isinstance(loader.dataset, IterableDataset) and not loader.num_workers:
        return "each worker would load the whole IterableDataset"
    if _has_gpu_tensors(loader):
        return "the data are on the GPU"
    context = loader.multiprocessing_context
    # Without allow_none, the call would set the start method, and the program could not any more.
    method = context.get_start_method() if context else multiprocessing.get_start_method(allow_none=True)
    if (method or multiprocessing.get_all_start_methods()[0]) != "fork":
        try:
            pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))
        except Exception as error:
            return f"the dataset cannot be pickled: {type(error).__name__}"
    return ""


def pinned(session: TorchSession) -> None:
    """Put batches into pinned memory."""

    def change(loader: DataLoader[Any]) -> None:
        if not torch.cuda.is_available():
            session.skipped("pinned", "the process has no GPU")
        elif loader.pin_memory:
            session.skipped("pinned", f"{_name(loader)} uses it already")
        elif _has_gpu_tensors(loader):
            session.skipped("pinned", "the data are on the GPU")
        else:
            _set_loader(loader, pin_memory=True)
            session.applied("pinned", _name(loader))

    session.on_loader(change)


def persistent(session: TorchSession) -> None:
    """Keep the worker processes from one epoch to the next."""

    def change(loader: DataLoader[Any]) -> None:
        if not loader.num_workers:
            session.skipped("persistent", f"{_name(loader)} has no workers")
        elif loader.persistent_workers:
            session.skipped("persistent", f"{_name(loader)} uses it already")
        else:
            _set_loader(loader, persistent_workers=True)
            session.applied("persistent", _name(loader))

    session.on_loader(change)


def _set_loader(loader: DataLoader[Any], **attributes: Any) -> None:
    """Set attributes of a loader, also those that `DataLoader.__setattr__` protects after its construction."""
    for name, value in attributes.items():
        object.__setattr__(loader, name, value)


def _has_gpu_tensors(loader: DataLoader[Any]) -> bool:
    """Return whether attributes of the dataset are tensors on a GPU, which worker processes cannot use."""
    values = list(getattr(loader.dataset, "__dict__", {}).values())
    tensors = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    return any(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors)


def threads(session: TorchSession) -> None:
    """Compute with a thread per core."""

    def change(model: torch.nn.Module) -> None:
        count, before = usable_cpus(), torch.get_num_threads()
        if _device(model) != "cpu":
            session.skipped("threads", "a GPU computes")
        elif before == count:
            session.skipped("threads", f"{count} threads compute already")
        else:
            torch.set_num_threads(count)
            session.applied("threads", f"{count} instead of {before}")

    session.on_model(change)


# ---------------------------------------------------------------- rounding


def rounding(session: TorchSession) -> None:
    """Change parameters in their last bit, to see in the losses how far rounding grows."""

    def change(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.is_floating_point():  # `data`: another model of the step may have used the parameter already
                parameter.data.mul_(1 + torch.finfo(parameter.dtype).eps)
        session.applied("rounding", _name(model))

    session.on_model(change)


# ---------------------------------------------------------------- all


def _name(instance: Any) -> str:
    """Return the class of a model, optimizer or loader for messages."""
    if isinstance(instance, DataLoader):
        return f"the {type(instance).__name__} of {type(instance.dataset).__name__}"
    return type(inner(instance) if isinstance(instance, torch.nn.Module) else instance).__name__


def _device(model: torch.nn.Module) -> str:
    return next(model.parameters()).device.type


def _capability(model: torch.nn.Module) -> tuple[int, int]:
    return torch.cuda.get_device_capability(next(model.parameters()).device)
