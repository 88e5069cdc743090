"""Write a Python file that runs one layer of a PyTorch program with random data, to hand to others.

A layer of `torch.nn` is made from its arguments, which its attributes have. The new layer is compared with the
original. The arguments of other classes are not known, and their code is not copied: `torch.export` saves the graph of
their operators in a file beside the script, with random parameters.
"""

from __future__ import annotations

import inspect
import math
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

import torch

from annot.errors import AnnotError
from annot.live.layer_calls import Layer, RecordedCall
from annot.live.layer_state import kept, random_state
from annot.live.layer_tensors import StoredTensor, restored
from annot.live.session import first_line
from annot.torch.module_paths import class_name
from annot.util.whole_files import write_file

_ABSENT: Final = object()
_PLAIN: Final = (bool, int, float, complex, str, type(None))
_TORCH: Final = (torch.dtype, torch.device, torch.memory_format)


def write_layer(layer: Layer, path: Path) -> None:
    """Write a script that times forward and backward of a layer, and the graph that it loads, if it needs one.

    Args:
        layer: the layer, with a recorded call.
        path: the script. An existing file is replaced.

    Raises:
        AnnotError: the layer cannot be written, with the reason, or a file cannot be written.
    """
    call = layer.call
    if call is None:
        raise AnnotError(layer.problem or "the layer was not called")
    tensors = {id(tensor): tensor for tensor in call.tensors}
    names = {key: (f"x{number}", tensor) for number, (key, tensor) in enumerate(tensors.items())}
    arguments = _source(call.stored, names)
    uniform = _uniform(layer.module, call)
    made = _expression(layer.module) if uniform else None
    graph = path.with_suffix(".pt2")
    if made is None:
        _export(layer.module, call, graph)
    template = (files("annot.live") / "layer_script.txt").read_text(encoding="utf-8")
    script = Template(template).substitute(
        path=layer.path or "the model",
        kind=class_name(layer.module),
        inputs=call.text,
        origin=_origin(layer.module, graph.name if made is None else None),
        version=torch.__version__,
        make=_LOAD.format(graph=graph.name) if made is None else _MAKE.format(made=made, **uniform),
        tensors="".join(f"    {name} = {_random(stored)}\n" for name, stored in names.values()),
        arguments=arguments,
        contexts=_contexts(call),
        reached=sorted(call.gradients) or None,
        changes=call.changes_arguments is not False,
    )
    write_file(path, [script.encode()], force=True)


def _source(value: Any, names: dict[int, tuple[str, StoredTensor]]) -> str:
    """Return the source code of arguments.

    Raises:
        AnnotError: an argument is an object whose source code is unknown.
    """
    kind = type(value)
    if kind is StoredTensor:
        return names[id(value)][0]
    if kind in (tuple, list):
        items = [_source(item, names) for item in value]
        inside = ", ".join(items)
        return f"[{inside}]" if kind is list else f"({inside},)" if len(items) == 1 else f"({inside})"
    if kind is dict:
        return "{" + ", ".join(f"{_source(key, names)}: {_source(item, names)}" for key, item in value.items()) + "}"
    if kind is torch.Size:
        return repr(tuple(value))
    if kind is float and not math.isfinite(value):
        return f'float("{value}")'
    if kind in _PLAIN:
        return repr(value)
    if kind in _TORCH:
        return f"torch.device({str(value)!r})" if kind is torch.device else repr(value)
    raise AnnotError(f"an argument of the layer is a {kind.__qualname__}, whose source code is unknown")


def _random(stored: StoredTensor) -> str:
    """Return the source code of a tensor with random elements."""
    tensor = stored.tensor()
    shape, dtype = tuple(tensor.shape), tensor.dtype
    options = f"dtype={dtype}, device={str(stored.device)!r}"
    if dtype == torch.bool:
        share = float(tensor.double().mean()) if tensor.numel() else 0.0
        code = f"(torch.rand({shape}, device={str(stored.device)!r}) < {share:.6g})"
    elif not tensor.is_floating_point() and not tensor.is_complex():
        low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
        code = f"torch.randint({low}, {high + 1}, {shape}, {options})"
    elif tensor.isfinite().all():
        code = f"torch.randn({shape}, {options})"
    else:  # a mask that is added to scores
        code = f"torch.zeros({shape}, {options})"
    if not tensor.is_contiguous():
        code = f"with_strides({code}, {tensor.stride()})"
    return f"{code}.requires_grad_()" if stored.requires_grad else code


def _uniform(module: torch.nn.Module, call: RecordedCall) -> dict[str, Any]:
    """Return what holds for the whole layer: dtype, device, training, requires_grad; empty: it differs inside."""
    parameters = [*module.parameters()]
    tensors = [tensor for tensor in (*parameters, *module.buffers()) if tensor.is_floating_point()]
    of_all = (
        {tensor.dtype for tensor in tensors} or {torch.get_default_dtype()},
        {str(tensor.device) for tensor in tensors} or {"cpu"},
        set(call.training),
        {parameter.requires_grad for parameter in parameters} or {True},
    )
    if any(len(values) > 1 for values in of_all):
        return {}
    return dict(zip(("dtype", "device", "training", "gradients"), (min(v, key=str) for v in of_all), strict=True))


def _expression(module: torch.nn.Module) -> str | None:
    """Return the source code that makes a layer of `torch.nn`; None: its class or its arguments are not known."""
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if kind is torch.nn.Sequential:
        children = [_expression(child) for child in module.children()]
        numbered = [name for name, _ in module.named_children()] == [str(number) for number in range(len(children))]
        inside = [child for child in children if child is not None]
        return f"torch.nn.Sequential({', '.join(inside)})" if numbered and len(inside) == len(children) else None
    arguments = _arguments(module)
    if arguments is None or not _makes(module, arguments):
        return None
    return f"torch.nn.{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _arguments(module: torch.nn.Module) -> dict[str, Any] | None:
    """Return the arguments with which a layer was made, from attributes of the same names; None: some are missing."""
    arguments = {}
    for name, parameter in _parameters(type(module)).items():
        if name in ("self", "mode", "device", "dtype") or name.startswith("_"):
            continue
        value = getattr(module, name, _ABSENT)
        if isinstance(parameter.default, bool) and (value is None or isinstance(value, torch.Tensor)):
            value = value is not None  # `bias` of a convolution
        if not _is_plain(value):
            return None
        if type(value) is not type(parameter.default) or value != parameter.default:
            arguments[name] = value
    return arguments


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of `__init__`; recurrent layers pass theirs on to their base class."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = dict(inspect.signature(vars(base)["__init__"]).parameters)
            if not any(value.kind is inspect.Parameter.VAR_POSITIONAL for value in parameters.values()):
                return parameters
    return {}


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _makes(module: torch.nn.Module, arguments: dict[str, Any]) -> bool:
    """Return whether the arguments make a layer with the same attributes, and parameters of the same shapes."""
    try:
        with torch.device("meta"):
            made = type(module)(**arguments)
    except (TypeError, ValueError, RuntimeError):
        return False
    return _attributes(made) == _attributes(module)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    plain = {name: value for name, value in vars(module).items() if _is_plain(value) and name != "training"}
    return {**plain, **shapes, "": [name for name, _ in module.named_children()]}


def _export(module: torch.nn.Module, call: RecordedCall, path: Path) -> None:
    """Save the graph of a layer with random parameters."""
    with kept(module), random_state():
        call.set_training(module)
        args, kwargs = restored(call.stored, lambda stored: _randomized(stored.tensor()))
        try:
            program = torch.export.export(module, args, kwargs, strict=False)
            for name in program.graph_signature.parameters:
                program.state_dict[name] = _randomized(program.state_dict[name])
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.export.save(program, path)
        except Exception as error:
            raise AnnotError(f"torch.export cannot save it: {first_line(error)}") from None


def _randomized(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with random elements of the same mean and deviation; integers are those of the training."""
    copy = tensor.detach().clone()
    if copy.is_floating_point() and copy.numel() > 1 and copy.isfinite().all():
        copy.normal_(float(copy.double().mean()), float(copy.double().std()))
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def _origin(module: torch.nn.Module, graph: str | None) -> str:
    kind = type(module)
    if graph is None:
        return f"It is made from torch.nn.{kind.__name__} with the arguments that its attributes have."
    where = f"{kind.__module__}.{kind.__qualname__}"
    return (
        f"{graph} beside this file has the graph of its operators from torch.export, with random parameters.\n"
        f"The class {where} is not used: its constructor arguments are not known, so that it cannot be made again."
    )


def _contexts(call: RecordedCall) -> str:
    lines = [f"stack.enter_context(torch.autocast({device!r}, {dtype}))" for device, dtype in call.autocast.items()]
    lines += [] if call.has_gradients else ["stack.enter_context(torch.no_grad())"]
    return "".join(f"        {line}\n" for line in lines) or "        pass\n"


_MAKE: Final = """layer = {made}
    return layer.to({device!r}, {dtype}).train({training}).requires_grad_({gradients})"""
_LOAD: Final = """return torch.export.load(Path(__file__).with_name({graph!r})).module()"""
