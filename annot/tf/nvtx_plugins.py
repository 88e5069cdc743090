"""Counterparts of the layers and the session hook of NVIDIA's nvtx-plugins, with the same names and arguments."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from annot.emit import client
from annot.tf import call_ranges
from annot.tf.session import SessionHook

_CONTEXT = "_annot_context"


@keras.saving.register_keras_serializable("annot")
class NVTXStart(keras.layers.Layer):  # type: ignore[misc]
    """A layer that opens a range. The `NVTXEnd` that takes its markers as inputs closes the range.

    The range covers the layers that the model calls in between. A second range covers their backward.

    Args:
        message: text of the range.
        domain_name: NVTX domain; by default annot's own.
        trainable: ignored; nvtx-plugins needs it for the first layer of a model.
        options: those of `keras.layers.Layer`.

    Returns:
        A call with a tensor returns that tensor and two scalar int64 markers for `NVTXEnd`.

    Example:
        >>> import keras
        >>> inputs = keras.Input((8,))
        >>> x, marker_id, domain_id = NVTXStart("Dense", domain_name="forward")(inputs)
        >>> x = keras.layers.Dense(4)(x)
        >>> x = NVTXEnd(grad_message="Dense grad", grad_domain_name="backward")([x, marker_id, domain_id])
        >>> model = keras.Model(inputs, x)
    """

    def __init__(self, message: str, domain_name: str | None = None, trainable: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.message, self.domain_name = message, domain_name

    def call(self, inputs: Any) -> list[Any]:
        """Open the range; `inputs` is a tensor, or any nest of tensors."""
        _, context = call_ranges.start(inputs, self.message, self.domain_name)
        markers = [tf.constant(0, tf.int64), tf.constant(0, tf.int64)]
        setattr(markers[0], _CONTEXT, context)
        return [inputs, *markers]


@keras.saving.register_keras_serializable("annot")
class NVTXEnd(keras.layers.Layer):  # type: ignore[misc]
    """A layer that closes the range of an `NVTXStart`.

    Args:
        grad_message: text of the backward range; by default the message of `NVTXStart`.
        grad_domain_name: NVTX domain of the backward range; by default annot's own.
        options: those of `keras.layers.Layer`.

    Returns:
        A call with a list of a tensor and the two markers returns that tensor.
    """

    def __init__(self, grad_message: str | None = None, grad_domain_name: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.grad_message, self.grad_domain_name = grad_message, grad_domain_name

    def call(self, inputs: Any) -> Any:
        """Close the range; `inputs` is a tensor, and the two markers of `NVTXStart`."""
        tensor, marker, _ = inputs
        context = getattr(marker, _CONTEXT, None)
        if context is None:  # Keras is inferring shapes, or the marker is not from NVTXStart
            return tensor
        context.name_backward(self.grad_message, self.grad_domain_name)
        return call_ranges.end(tensor, context)


class NVTXHook(SessionHook):
    """A range around each run of a monitored session, and one around the whole session.

    Args:
        skip_n_steps: number of runs at the start without a range.
        name: text of the range around the session; None: no range around the session.
    """

    def __init__(self, skip_n_steps: int = 0, name: str | None = None) -> None:
        super().__init__(skip=skip_n_steps)
        self._name = name
        self._whole: Any = None

    def begin(self) -> None:
        """Begin the range around the session. TensorFlow calls this once before it uses the session."""
        if self._name and client.enabled():
            self._whole = client.start(client.event(self._name))

    def end(self, session: Any) -> None:
        """End all open ranges."""
        super().end(session)
        whole, self._whole = self._whole, None
        if whole is not None:
            client.end(whole)
