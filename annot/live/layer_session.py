"""Time layers alone in a measured run: their calls are measured in the warm-up, they are timed when it is over."""

from __future__ import annotations

from pathlib import Path

from annot.errors import AnnotError
from annot.live.layer_alone import time_layer
from annot.live.layer_calls import LayerCalls
from annot.live.layer_extract import write_layer
from annot.live.request import LayerRequest
from annot.live.session import first_line
from annot.live.torch_session import TorchSession


def install(session: TorchSession) -> None:
    """Time the layers of the request of a session, if it has any."""
    if session.request.layer is not None:
        _Layers(session, session.request.layer)


class _Layers:
    """Layers of the models of a session."""

    def __init__(self, session: TorchSession, request: LayerRequest) -> None:
        self._session, self._request = session, request
        self._steps = 0
        self._calls = LayerCalls(request.patterns, request.memory)
        self._calls.start()
        session.on_model(self._calls.add_model)
        session.after_step(self._step_ends)

    def _step_ends(self, steps: int) -> None:
        """Count a step. `steps` is smaller than before when the session starts again."""
        if steps <= self._steps:
            self._calls.forget()
        self._steps = steps
        self._calls.end_step()
        warmup = self._session.request.warmup
        if steps == warmup - 1:
            self._calls.record(self._request.most)
        if steps == warmup and self._session.may_end():
            self._calls.stop()
            with self._session.aside():
                self._time()

    def _time(self) -> None:
        result, request = self._session.result, self._request
        layers = self._calls.layers()
        result.layers = [time_layer(layer, request) for layer in layers[: request.most]]
        if not layers:
            result.layers_problem = self._calls.problem()
        elif request.extract:
            try:
                write_layer(layers[0], Path(request.extract))
            except (AnnotError, RuntimeError) as error:
                result.extract_problem = str(error) if isinstance(error, AnnotError) else first_line(error)
