"""Events for people (`kubectl describe`): events.k8s.io/v1, the same thing said again becomes a series."""

from __future__ import annotations

from typing import Literal

from areal.operator.runtime.resources import Json


class Recorder:
    """Writes events about objects. Never raises for what the server answers: an event is not worth a reconcile."""

    async def event(self, about: Json, *, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Tell `message` (cut at 1000 characters) about the object; `reason` is one CamelCase word."""
        raise NotImplementedError
