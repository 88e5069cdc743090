"""Parser for operation names of TensorFlow, Keras, JAX and XLA: name scope, operation, phase.

TensorFlow names an operation by its node and type, ``model/dense/MatMul:MatMul``. JAX names it by the stack of the
tracer, ``jit(step)/transpose(jvp(MLP))/Dense_0/dot_general``. XLA keeps either as the ``op_name`` of an instruction.

Name scopes become layers. Functions and replicas around them are removed, so that a layer has the same name in every
step and on every device. The levels are separated by ``/``, as in the frameworks. Gradients are the backward phase of
their layer. Optimizers are recognized by the names that Keras gives them and by operations such as
``ResourceApplyAdam``. All other operations are forward.

If annot recorded the name scopes of layers while TensorFlow traced them (`annot.labels.marks`), an operation
belongs to the layer of the longest recorded scope anywhere in its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from annot.labels import tag
from annot.labels.marks import parse_scope

# Limits for corrupt names: the total length of all levels grows with the square of the length of a name.
_LONGEST: Final = 4096
_DEEPEST: Final = 32

_NODE: Final = re.compile(r"[A-Za-z0-9.][\w.\\/>-]*:_?[A-Z]\w*")
_CALL: Final = re.compile(r"(?:StatefulPartitionedCall|PartitionedCall)(?:_\d+)?|ConstantFolding")
_TRANSFER: Final = re.compile(r"_(?:send|recv)_")
_REPLICA: Final = re.compile(r"replica_\d+")
_INLINED: Final = re.compile(r"_\d+")  # "cond_17/then/_256/": an inlined function
_GRADIENTS: Final = re.compile(r"gradient_tape|gradients(?:_\d+)?")
_COUNTED: Final = re.compile(r"_\d+$")
_READ: Final = re.compile(r"ReadVariableOp(?:_\d+)?")
_TYPED: Final = re.compile(r"(?:[A-Z][a-z0-9]*)+(?:_\d+)?")
_UPDATE: Final = re.compile(r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*")
_OPTIMIZER: Final = re.compile(
    r"(?:sgd|adam\w*|adagrad|adadelta|adafactor|nadam|rmsprop|ftrl|lion|lamb|muon|loss_scale_optimizer|optimizer)(?:_\d+)?",
    re.IGNORECASE,
)

_WRAPPED: Final = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_FUNCTIONS: Final = frozenset({"jit", "pjit", "pmap", "xla_call", "core_call", "xla_pmap"})
_TRANSFORMS: Final = frozenset(
    {"jvp", "transpose", "vmap", "remat", "checkpoint", "custom_jvp", "custom_vjp", "linearize"}
)
_CONTROL: Final = frozenset(
    {
        "while",
        "body",
        "cond",
        "scan",
        "closed_call",
        "core_call",
        "pjit",
        "shard_map",
        "custom_partitioning",
        "checkpoint",
        "remat",
        "remat2",
        "rematted_computation",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
    }
)
_BRANCH: Final = re.compile(r"branch_\d+_fun")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a model.

    Args:
        scope: name scope, a string per level.
        name: type of the operation, such as ``MatMul`` or ``dot_general``.
        phase: forward, backward or optimizer.
        named: whether the last level may be the name of the forward operation, as in TensorFlow's gradients.
    """

    scope: tuple[str, ...]
    name: str
    phase: tag.Phase
    named: bool = False


def is_operation(event: str) -> bool:
    """Return whether the name of a host event is the name of a TensorFlow operation.

    Example:
        >>> is_operation("model/dense/MatMul:MatMul"), is_operation("ExecutorState::Process")
        (True, False)
    """
    return len(event) <= _LONGEST and ":" in event and _NODE.fullmatch(event) is not None


def operation(name: str) -> Operation:
    """Return the operation with a name.

    Example:
        >>> operation("gradient_tape/model/dense/MatMul/MatMul_1:MatMul")
        Operation(scope=('model', 'dense', 'MatMul'), name='MatMul', phase='backward', named=True)
        >>> operation("jit(step)/transpose(jvp(MLP))/Dense_0/dot_general")
        Operation(scope=('MLP', 'Dense_0'), name='dot_general', phase='backward', named=False)
        >>> operation("replica_4/transformer/layer_5/Cast:Cast#shape=(int32[3])#").scope
        ('transformer', 'layer_5')
    """
    name = name[:_LONGEST].partition(";")[0]  # a fused XLA instruction belongs to its first operation
    segments = name.split("/")
    heads = {head for head, bracket, _ in (segment.partition("(") for segment in segments) if bracket}
    if heads & (_FUNCTIONS | _TRANSFORMS):
        return _jax(segments)
    return _tensorflow(name.partition("#")[0].partition("::")[0])


def _tensorflow(name: str) -> Operation:
    node, _, kind = _TRANSFER.sub("", name, count=1).partition(":")
    segments = [segment for segment in node.split("/") if segment]
    gradients = [level for level, segment in enumerate(segments) if _GRADIENTS.fullmatch(segment)]
    if gradients:
        segments = [segment.removesuffix("_grad") for segment in segments[gradients[-1] + 1 :]]
    inlined = [level for level, segment in enumerate(segments[:-1]) if _INLINED.fullmatch(segment)]
    if inlined:
        segments = segments[inlined[-1] + 1 :]
    while segments and (_CALL.fullmatch(segments[0]) or _REPLICA.fullmatch(segments[0])):
        del segments[0]
    last = segments.pop() if segments else ""
    if segments and _READ.fullmatch(last) and _TYPED.fullmatch(segments[-1]):
        segments.pop()  # "dense/MatMul/ReadVariableOp": the last scope is an operation
    return _operation(segments, kind or _COUNTED.sub("", last), backward=bool(gradients), named=bool(gradients))


def _jax(segments: list[str]) -> Operation:
    backward, scope = False, []
    for segment in segments:
        while (wrapped := _WRAPPED.fullmatch(segment)) and wrapped[1] in _TRANSFORMS:
            backward |= wrapped[1] == "transpose"
            segment = wrapped[2]
        if segment and not (wrapped and wrapped[1] in _FUNCTIONS):
            scope.append(segment)
    last = scope.pop() if scope else ""
    scope = [segment for segment in scope if segment not in _CONTROL and not _BRANCH.fullmatch(segment)]
    return _operation(scope, last, backward=backward)


def _operation(scope: list[str], name: str, *, backward: bool, named: bool = False) -> Operation:
    phase: tag.Phase = "backward" if backward else "forward"
    if not backward and (_UPDATE.fullmatch(name) or any(map(_OPTIMIZER.fullmatch, scope))):
        phase = "optimizer"
    return Operation(tuple(scope[:_DEEPEST]), name, phase, named)


class Scopes:
    """The operations of a file and the layers of their scopes.

    TensorFlow may append the name of the forward operation to the scope of a gradient. That level is removed if no
    forward operation of the file has the full scope, but one has the scope without it.

    Args:
        marks: texts of marks. Scope marks name the layers of scopes, other marks are ignored.
    """

    def __init__(self, marks: Iterable[str] = ()) -> None:
        self._layers = dict(filter(None, map(parse_scope, marks)))
        self._operations: dict[str, Operation] = {}
        self._forward: set[tuple[str, ...]] = set()
        self._levels: dict[str, tuple[str, ...]] = {}
        self._texts: dict[tag.Tag, str] = {}

    def add(self, name: str) -> Operation:
        """Add an operation by its name in the file, and return it."""
        parsed = self._operations.get(name)
        if parsed is None:
            parsed = self._operations[name] = operation(name)
            if parsed.phase != "backward":
                self._forward.update(parsed.scope[:depth] for depth in range(1, len(parsed.scope) + 1))
        return parsed

    def levels(self, name: str) -> tuple[str, ...]:
        """Return the range texts of the scopes of an operation, outermost first. Call `add` for all operations first.

        Example:
            >>> scopes = Scopes()
            >>> for name in ("model/dense/MatMul:MatMul", "gradient_tape/model/dense/MatMul/MatMul:MatMul"):
            ...     _ = scopes.add(name)
            >>> scopes.levels(name)
            ('model |bwd', 'model/dense |bwd')
        """
        if name not in self._levels:
            self._levels[name] = tuple(map(self._text, self.layers(name)))
        return self._levels[name]

    def layers(self, name: str) -> list[tag.Tag]:
        """Return the layers of an operation, outermost first. Call `add` for all operations first.

        Example:
            >>> scopes = Scopes(["Scope net_1/fc = net/fc Dense [2,3]f32 |fwd"])
            >>> scopes.layers("StatefulPartitionedCall/gradient_tape/net_1/fc/MatMul/MatMul_1:MatMul")[-1].layer
            'net/fc'
        """
        parsed = self.add(name)
        marked = [] if parsed.phase == "optimizer" else self._marked(name)
        if marked:
            phase: tag.Phase = "backward" if parsed.phase == "backward" else "forward"
            return [replace(layer, phase=phase) for layer in marked]
        scope = parsed.scope
        if parsed.phase == "optimizer":  # the scopes inside the optimizer repeat for every weight
            levels = (level for level, segment in enumerate(scope, 1) if _OPTIMIZER.fullmatch(segment))
            scope = scope[: next(levels, len(scope))]
        if parsed.named and scope not in self._forward and scope[:-1] in self._forward:
            scope = scope[:-1]
        return [tag.Tag("/".join(scope[:depth]), phase=parsed.phase) for depth in range(1, len(scope) + 1)]

    def _marked(self, name: str) -> list[tag.Tag]:
        """Return the layers of the longest marked scope in a name and of the marked scopes that it begins with."""
        if not self._layers:
            return []
        segments = name[:_LONGEST].partition(":")[0].split("/")[: 2 * _DEEPEST]
        spans = ((end - begin, begin) for begin in range(len(segments)) for end in range(begin + 1, len(segments) + 1))
        marked = (
            (length, begin) for length, begin in spans if "/".join(segments[begin : begin + length]) in self._layers
        )
        length, begin = max(marked, default=(0, 0))
        around = ("/".join(segments[begin : begin + depth]) for depth in range(1, length + 1))
        return [self._layers[scope] for scope in around if scope in self._layers]

    def _text(self, layer: tag.Tag) -> str:
        if layer not in self._texts:
            self._texts[layer] = tag.format(layer)
        return self._texts[layer]
