"""Options of `trace`, and the events they define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from annot.emit import client, guard
from annot.emit.shapes import tensor_specs
from annot.labels import tag

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `trace`."""

    message: str | None = None
    domain: str = client.DOMAIN
    category: str | None = None
    color: str | int | None = None
    payload: float | None = None
    shapes: bool = False

    def event(self, text: str) -> Any:
        """Return the event with this text."""
        return client.event(text, domain=self.domain, category=self.category, color=self.color, payload=self.payload)

    def event_of_call(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the event with `text` and the tensor arguments of a call."""
        # Reading the shape of an argument may raise.
        nothing: tuple[tuple[tag.TensorSpec, ...], int] = (), 0
        specs, omitted = guard.attempt(tensor_specs, args, kwargs, otherwise=nothing)
        return self.event(tag.format(tag.Tag(layer=text, tensors=specs, omitted=omitted)))
