"""The call forms for a piece of a TensorFlow program: `trace` around a function, `start` and `end` around the rest."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api

from annot import emit
from annot.tag import Phase, Tag
from annot.tf import library, noting, owners

__all__ = ["Context", "end", "start", "trace"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_SYMBOLIC = (
    "start and trace of a KerasTensor have no ranges, since the model runs later and without them: put the layers "
    "annot.tf.NVTXStart and annot.tf.NVTXEnd into a functional model"
)
_NO_OPERATIONS = "TensorFlow compiles this for XLA, where annot's operations cannot run: no ranges of trace and start"


@dataclass(frozen=True)
class Options:
    """What the caller of `trace` or `start` chose."""

    message: str
    domain_name: str | None
    grad_message: str | None
    grad_domain_name: str | None

    @functools.cached_property
    def event(self) -> Any:
        """The range of the forward work."""
        return _event(self.message, self.domain_name, "forward")

    @functools.cached_property
    def grad_event(self) -> Any:
        """The range of the backward work."""
        return _event(self.grad_message or self.message, self.grad_domain_name, "backward")

    def owner(self) -> owners.Owner:
        """Return the owner of the operations of one call."""
        return owners.Owner(self.event, self.grad_event, owners.current())


class Context:
    """What `start` opened, for `end`; a range of eager mode that nothing ends, ends with its context."""

    __slots__ = ("_end", "_message", "_owner", "_started")

    def __init__(self, options: Options | None) -> None:
        self._message = options.message if options else ""
        self._owner = options.owner() if options else None
        self._started: Any = None
        self._end: Callable[[], None] | None = None
        if self._owner is not None:
            self._started = emit.start(self._owner.event) if tf.executing_eagerly() else None
            self._end = owners.start(self._owner)

    def name_backward(self, message: str | None, domain_name: str | None) -> None:
        """Set the text and the NVTX domain of the range of the gradient."""
        if self._owner is not None:
            self._owner.grad_event = _event(message or self._message, domain_name, "backward")

    def close(self) -> None:
        """Close the range, once."""
        end, self._end = self._end, None
        if end is not None:
            end()
        started, self._started = self._started, None
        if started is not None:
            emit.end(started)

    def __del__(self) -> None:
        self.close()


def _unconverted(function: Callable[P, R]) -> Callable[P, R]:
    """Have AutoGraph leave a function as it is."""
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


def trace(
    message: Any = None,
    domain_name: str | None = None,
    grad_message: str | None = None,
    grad_domain_name: str | None = None,
    trainable: bool = False,
    enabled: bool = True,
    name: str | None = None,
) -> Any:
    """Put a range around what a function of tensors computes, and one around the work for its gradients.

    Works on functions and methods (the `call` of a layer too), in eager mode, in `tf.function` and in graphs of
    `tf.compat.v1`. The ranges of a graph open and close while the graph runs: around the operations that the function
    creates, and around those that compute their gradients. Tensors, operations and gradients are those of the plain
    program. Under XLA there are no ranges, and a warning says so. If `annot.enabled` is false when the function is
    decorated, the very function comes back.

    Args:
        message: text of the range; by default the qualified name of the function.
        domain_name: NVTX domain, in which the message stands as it is; by default annot's own, where the text is
            one that reports read as the forward work of a layer of that name.
        grad_message: text of the range of the gradient; by default `message`.
        grad_domain_name: NVTX domain of the range of the gradient, as `domain_name`.
        trainable: has no effect; nvtx-plugins needs it where a range comes first in a graph.
        enabled: False gives the very function back.
        name: has no effect; in nvtx-plugins the name of its operations.

    Raises:
        TypeError: what is decorated is no function, or `message` is no text.

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
        if not enabled or not emit.enabled():
            return target
        shown = text if text is not None else getattr(function, "__qualname__", type(function).__name__)
        call = _traced(function, Options(shown, domain_name, grad_message, grad_domain_name))
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
    """Open a range around the operations that run, or in a graph are created, up to `end` on the same thread.

    A second range is around the operations that compute their gradients.

    Args:
        inputs: a tensor, or any nest of tensors; the very inputs come back.
        message: text of the range.
        domain_name: as for `trace`, like the rest.
        grad_message: text of the range of the gradient.
        grad_domain_name: NVTX domain of the range of the gradient.
        trainable: has no effect.
        enabled: False opens nothing.
        name: has no effect.

    Returns:
        The inputs to go on with, and what `end` needs.

    Raises:
        TypeError: `message` is no text.

    Example:
        >>> import tensorflow as tf
        >>> x, ctx = start(tf.constant([1.0, 1.0]), message="logits-softmax")
        >>> end(tf.nn.softmax(x), ctx).numpy().tolist()
        [0.5, 0.5]
    """
    if not isinstance(message, str):
        raise TypeError(f"message must be a string, got {message!r}")
    if not enabled or not _works_here(inputs):
        return inputs, Context(None)
    options = Options(message, domain_name, grad_message, grad_domain_name)
    return inputs, Context(options)


@_unconverted
def end(outputs: Any, context: Context) -> Any:
    """Close the range that `start` opened.

    Args:
        outputs: what was computed: a tensor, or any nest of tensors; the very outputs come back.
        context: of `start`; of several `end` with the same one, the first closes the range.

    Returns:
        The outputs.

    Raises:
        TypeError: `context` is not one of `start`.
    """
    if not isinstance(context, Context):
        raise TypeError(f"end expects the context that start returned, got {context!r}")
    context.close()
    return outputs


def _traced(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        body = function if tf.executing_eagerly() else _converted(function)
        if not _works_here((args, kwargs)):
            return body(*args, **kwargs)
        if tf.executing_eagerly() and not owners.may_be_taped():
            return emit.inside(options.event, function, args, kwargs)
        return owners.call(options.owner(), body, args, kwargs)

    # `tf.function` takes what a function that is its argument wraps in that one's place, and the range would be lost.
    with contextlib.suppress(TypeError, ValueError):
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del call.__wrapped__
    return _unconverted(call)  # the user's function is to be converted, as if it had been called directly


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what AutoGraph makes of the user's function, if it is at work."""
    # Not by tf_convert, which turns exceptions into others on their way out.
    if ag_ctx.control_status_ctx().status != ag_ctx.Status.ENABLED:
        return function
    options = converter.ConversionOptions(recursive=True, user_requested=True, optional_features=())
    return lambda *args, **kwargs: api.converted_call(function, args, kwargs, options=options)


def _works_here(inputs: Any) -> bool:
    """Whether a range can be opened here; says so where the user would expect one."""
    if not emit.enabled():
        return False
    _keep_noting()
    if _has_symbolic(inputs):
        emit.warn_once(_SYMBOLIC)
        return False
    if tf.executing_eagerly():
        return True
    if owners.in_xla():
        emit.warn_once(_NO_OPERATIONS)
        return False
    obstacle = library.available()
    if obstacle:
        emit.warn_once(obstacle)
    return obstacle is None


def _has_symbolic(value: Any) -> bool:
    """Whether a symbolic tensor of Keras is among the inputs."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbolic, value))
    if isinstance(value, dict):
        return any(map(_has_symbolic, value.values()))
    return type(value).__name__ == "KerasTensor"


@functools.cache
def _keep_noting() -> None:
    """Note owners from now on: a gradient may be asked for whenever a tape is still there."""
    noting.install(_keep_noting)
    library.switch(_keep_noting, on=True)


def _event(text: str, domain: str | None, phase: Phase) -> Any:
    if domain is None:
        return emit.event(str(Tag(text, phase=phase)), category=phase)
    return emit.event(text, domain=domain, category=phase)
