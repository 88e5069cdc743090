"""Operations that open and close ranges while TensorFlow runs, with their gradients.

In a graph, `begin` and `finish` put operations around a piece of it:

    tensors ─► AnnotStart ─► first tensor ─► …the work… ─► first output ─► AnnotEnd ─► first output
                  └ token ─► AnnotGate ─► others ─►        other outputs ─┘    └ done ─► AnnotGate ─► others
                  └───────────────── token ────────────────────────────► AnnotEnd

No operation passes two tensors through, because TensorFlow makes up zeros for the gradients that are missing at an
operation with several outputs: a gradient that is None in the plain program stays None. The range of the backward
work opens where the first gradient reaches an output, and closes where the gradients of all gated tensors are there;
which of them will come is not known until the last has come, so each is added to what the closing operation waits for.

In eager mode Python itself opens and closes ranges, also from the tape.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from annot.tf import eager, gradients, library, operations, vectorized
from annot.tf.retrace import in_xla, keep_from_xla

__all__ = ["Token", "abandon", "available", "begin", "close_open_ranges", "finish", "gate", "in_xla"]

_groups = itertools.count(1)
gradients.register()
vectorized.register()


@dataclass(slots=True, eq=False)
class Token:
    """What `begin` opened, for `finish`; in a graph it belongs to the place there, else to one range."""

    graph: Any = None
    """The graph that `begin` worked in; None in eager mode, and where there is no range."""
    tensor: Any = None
    """The scalar of type int32 that stands for the range while the graph runs."""
    group: int = 0
    grad_key: str = ""
    eager: eager.Span | None = None


def available() -> str | None:
    """Return None if operations can be used in graphs here, else one sentence why not."""
    loaded = library.load()
    return loaded if isinstance(loaded, str) else None


def begin(
    tensors: Sequence[Any],
    event: Any,
    grad_event: Any | None = None,
    deps: Sequence[Any] = (),
    open_tensors: Sequence[Any] = (),
) -> tuple[list[Any], Token]:
    """Open the range of `event` around what is computed from the tensors that come back.

    Args:
        tensors: any tensors or variables, of any shape and dtype: the inputs of the work, and the weights that it
            reads. Handles of resources and variants come back as they are; the work may start early on them.
        event: of `annot.emit.event`; None for no range.
        grad_event: the range of the backward work; None for none.
        deps: tensors that the range waits for too.
        open_tensors: those that have a ``?`` for a size in the texts of both events, in order; the ranges show the
            sizes that they have when the graph runs.

    Returns:
        The tensors to work with, and what `finish` needs. Under XLA, and where `available` is not None, they are the
        very tensors that came in, and there is no range.
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]  # variables are read
    if tf.executing_eagerly():
        span = eager.Span(event, grad_event)
        return [span.gate_input(tensor) for tensor in tensors], Token(eager=span)
    if in_xla() or available() is not None:
        return list(tensors), Token()
    keep_from_xla()
    place = _first_passed(tensors)
    waited = [*(tensor for i, tensor in enumerate(tensors) if i != place), *deps]
    first = [] if place is None else [tensors[place]]
    grad_key = "" if grad_event is None else operations.key_of(grad_event)
    group = next(_groups) if grad_key else 0
    token, passed = operations.start(
        first, waited, operations.key_of(event), group, shapes=[operations.shape_of(tensor) for tensor in open_tensors]
    )
    made = Token(token.graph, token, group, grad_key)
    return [passed[0] if i == place else gate(tensor, made) for i, tensor in enumerate(tensors)], made


def gate(tensor: Any, token: Token) -> Any:
    """Return `tensor` such that it is ready once the range is open, and its gradient before the backward range closes.

    Args:
        tensor: an input or weight of the work that `begin` was not given.
        token: of `begin`.
    """
    if token.eager is not None:
        return token.eager.gate_input(tensor)
    if token.graph is None or tf.compat.v1.get_default_graph() is not token.graph or operations.is_handle(tensor):
        return tensor
    if not operations.is_passed(tensor):
        with tf.control_dependencies([token.tensor]):
            return tf.identity(tensor)
    return operations.gate(tensor, token.tensor, token.group, operations.IN)


def finish(tensors: Sequence[Any], token: Token) -> list[Any]:
    """Close the range that `begin` opened once all `tensors` are there.

    Args:
        tensors: the outputs of the work.
        token: of `begin`; a second `finish` changes nothing.

    Returns:
        The tensors to go on with.
    """
    if token.eager is not None:
        return token.eager.finish(tensors)
    if token.graph is None:
        return list(tensors)
    graph = tf.compat.v1.get_default_graph()
    group, grad_key = (token.group, token.grad_key) if graph is token.graph else (0, "")
    token.graph = None
    places = [i for i, tensor in enumerate(tensors) if not operations.is_handle(tensor)]
    first = next((i for i in places if operations.is_passed(tensors[i])), places[0] if places else None)
    waited = [tensor for i, tensor in enumerate(tensors) if i != first]
    ended = [] if first is None else [tensors[first]]
    done, passed = operations.end(ended, token.tensor, waited, group, grad_key)
    if first is None:  # nothing that the program needs would run it
        getattr(graph, "control_outputs", []).append(done.op)
    results = list(tensors)
    for i in places:
        results[i] = passed[0] if i == first else operations.gate(tensors[i], done, group, operations.OUT, grad_key)
    return results


def abandon(token: Token) -> None:
    """Give up what `begin` opened, because the work has raised an exception; a graph drops it by itself."""
    if token.eager is not None:
        token.eager.abandon()
    token.graph = None


def close_open_ranges() -> int:
    """Close the ranges that a step which failed left open; return how many.

    Example:
        >>> close_open_ranges()
        0
    """
    return library.close_all() + eager.close_leftovers()


def _first_passed(tensors: Sequence[Any]) -> int | None:
    return next((i for i, tensor in enumerate(tensors) if operations.is_passed(tensor)), None)
