"""Ranges around parts of a TensorFlow program: `trace` around a function, `start` and `end` around any operations."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api

from annot.emit import client
from annot.labels.tag import Phase, Tag
from annot.tf import library, operation_owners, owners

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_KERAS_TENSOR = (
    "start and trace have no effect on a KerasTensor, because the functional model runs without them: "
    "add the layers annot.tf.NVTXStart and annot.tf.NVTXEnd to the model"
)
_XLA = "trace and start have no ranges in functions that XLA compiles, because XLA cannot run annot's operations"


class Context:
    """The range that `start` opened. In eager mode, the range also ends when its context is deleted."""

    def __init__(self, message: str = "", owner: owners.Owner | None = None) -> None:
        self._message, self._owner = message, owner
        self._ends: list[Callable[[], object]] = []
        if owner is not None:
            if tf.executing_eagerly():
                self._ends.append(functools.partial(client.end, client.start(owner.event)))
            self._ends.append(owners.start(owner))

    def name_backward(self, message: str | None, domain_name: str | None) -> None:
        """Set the text of the backward range (None: that of the forward range) and its domain (None: annot's own)."""
        if self._owner is not None:
            self._owner.grad_event = _event(message or self._message, domain_name, "backward")

    def close(self) -> None:
        """Close the range, once."""
        while self._ends:
            self._ends.pop()()

    def __del__(self) -> None:
        self.close()


def _unconverted(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function so that AutoGraph does not convert it."""
    function.autograph_info__ = {"do_not_convert": True}  # type: ignore[attr-defined]
    return function


@overload
def trace(message: F, /) -> F: ...


@overload
def trace(
    message: str | None = None,
    domain_name: str | None = None,
    grad_message: str | None = None,
    grad_domain_name: str | None = None,
    trainable: bool = False,
    enabled: bool = True,
    name: str | None = None,
) -> Callable[[F], F]: ...


@_unconverted
def trace(
    message: Any = None,
    domain_name: str | None = None,
    grad_message: str | None = None,
    grad_domain_name: str | None = None,
    trainable: bool = False,
    enabled: bool = True,
    name: str | None = None,
) -> Any:
    """Decorate a function of tensors with a range around its operations and one around their gradients.

    Works on functions and methods, including the `call` of a layer, in eager mode, in `tf.function` and in graphs of
    `tf.compat.v1`. In a graph, the ranges open and close while the graph runs: one around the operations that the
    function creates, one around the operations that compute their gradients. Tensors, operations and gradients do not
    change. Functions under XLA run without ranges, with a warning.

    Args:
        message: text of the range; None: the qualified name of the function.
        domain_name: NVTX domain of the range, where its text is `message`. None: annot's own domain, where the text is
            a label that reports attribute as the forward of a layer named `message`.
        grad_message: text of the backward range; None: `message`.
        grad_domain_name: NVTX domain of the backward range, as `domain_name`.
        trainable: ignored; nvtx-plugins needs it for a range at the start of a graph.
        enabled: False: return the function unchanged.
        name: ignored; in nvtx-plugins the name of its operations.

    Returns:
        The decorated function, or a decorator. The function itself if `annot.enabled` is false at decoration.

    Raises:
        TypeError: the decorated object is not a function, or `message` is not a string.

    Example:
        >>> import tensorflow as tf
        >>> @trace(message="Dense Block", domain_name="Forward", grad_domain_name="Gradient")
        ... def dense_block(net):
        ...     return tf.nn.relu(net + 1.0)
        >>> dense_block(tf.constant([-3.0, 2.0])).numpy().tolist()
        [0.0, 3.0]
    """
    text = message if isinstance(message, str) else None

    def decorate(target: Any) -> Any:
        function = target.__func__ if isinstance(target, (staticmethod, classmethod)) else target
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"trace expects a function or a message, got {target!r}")
        if not enabled or not client.enabled():
            return target
        shown = text if text is not None else getattr(function, "__qualname__", type(function).__name__)
        call = _traced(function, _events(shown, domain_name, grad_message, grad_domain_name))
        return type(target)(call) if function is not target else call

    return decorate if message is None or text is not None else decorate(message)


@_unconverted
def start(
    inputs: Any,
    message: str,
    domain_name: str | None = None,
    grad_message: str | None = None,
    grad_domain_name: str | None = None,
    trainable: bool = False,
    enabled: bool = True,
    name: str | None = None,
) -> tuple[Any, Context]:
    """Open a range around the operations up to `end` on the same thread, and one around their gradients.

    In eager mode the range covers the operations that run, in a graph those that are created.

    Args:
        inputs: a tensor, or any nest of tensors.
        message: text of the range.
        domain_name: NVTX domain of the range, as for `trace`.
        grad_message: text of the backward range; None: `message`.
        grad_domain_name: NVTX domain of the backward range.
        trainable: ignored.
        enabled: False: open no range.
        name: ignored.

    Returns:
        The same inputs, and the context for `end`.

    Raises:
        TypeError: `message` is not a string.

    Example:
        >>> import tensorflow as tf
        >>> x, ctx = start(tf.constant([1.0, 1.0]), message="logits-softmax")
        >>> end(tf.nn.softmax(x), ctx).numpy().tolist()
        [0.5, 0.5]
    """
    if not isinstance(message, str):
        raise TypeError(f"message must be a string, got {message!r}")
    if not enabled or not _can_open(inputs):
        return inputs, Context()
    events = _events(message, domain_name, grad_message, grad_domain_name)
    return inputs, Context(message, owners.Owner(*events, owners.current()))


@_unconverted
def end(outputs: Any, context: Context) -> Any:
    """Close the range that `start` opened.

    Args:
        outputs: the results: a tensor, or any nest of tensors.
        context: the context that `start` returned. The first `end` with it closes the range.

    Returns:
        The same outputs.

    Raises:
        TypeError: `context` is not a context that `start` returned.
    """
    if not isinstance(context, Context):
        raise TypeError(f"end expects the context that start returned, got {context!r}")
    context.close()
    return outputs


def _traced(function: Callable[..., Any], events: tuple[Any, Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        body = function if tf.executing_eagerly() else _converted(function)
        if not _can_open((args, kwargs)):
            return body(*args, **kwargs)
        if tf.executing_eagerly() and not owners.may_be_taped():
            return client.inside(events[0], function, args, kwargs)
        return owners.call(owners.Owner(*events, owners.current()), body, args, kwargs)

    # tf.function replaces a function that it gets as an argument by its `__wrapped__`, and the range would be lost.
    with contextlib.suppress(TypeError, ValueError):
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del call.__wrapped__
    return _unconverted(call)  # AutoGraph converts the user's function only, in `_converted`


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of the user's function that AutoGraph converts, if AutoGraph is on."""
    # tf_convert is not used, because it replaces the exceptions of the function by others.
    if ag_ctx.control_status_ctx().status != ag_ctx.Status.ENABLED:
        return function
    options = converter.ConversionOptions(recursive=True, user_requested=True, optional_features=())
    return lambda *args, **kwargs: api.converted_call(function, args, kwargs, options=options)


def _can_open(inputs: Any) -> bool:
    """Return whether a range can be opened here; warn if the user would expect one."""
    if not client.enabled():
        return False
    _keep_recording_owners()
    if _has_symbolic(inputs):
        client.warn_once(_KERAS_TENSOR)
        return False
    if tf.executing_eagerly():
        return True
    reason = _XLA if owners.in_xla() else library.available()
    if reason:
        client.warn_once(reason)
    return reason is None


def _has_symbolic(value: Any) -> bool:
    """Return whether the inputs contain a symbolic tensor of Keras."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbolic, value))
    if isinstance(value, dict):
        return any(map(_has_symbolic, value.values()))
    return type(value).__name__ == "KerasTensor"


@functools.cache
def _keep_recording_owners() -> None:
    """Record the owners of operations until the process ends, since a tape may compute gradients at any time."""
    operation_owners.install(_keep_recording_owners)
    library.switch(_keep_recording_owners, on=True)


def _events(
    message: str, domain_name: str | None, grad_message: str | None, grad_domain_name: str | None
) -> tuple[Any, Any]:
    """Return the events of the forward and the backward range."""
    forward = _event(message, domain_name, "forward")
    return forward, _event(grad_message or message, grad_domain_name, "backward")


def _event(text: str, domain: str | None, phase: Phase) -> Any:
    if domain is None:
        return client.event(str(Tag(text, phase=phase)), category=phase)
    return client.event(text, domain=domain, category=phase)
