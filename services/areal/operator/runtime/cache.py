"""What is known of one resource: a read-only copy of the server's objects, with indices.

Owns the rule that it never goes back in time: an object is replaced by a newer version of itself only, our own writes
are in it as soon as the server answered, and objects that vanished between two lists are reported as changes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from areal.operator.runtime.resources import Json, Resource


class Cache:
    """Objects of one resource. Nobody changes an object that is in it; `on_change` sees old and new ones."""

    def __init__(self, resource: Resource, on_change: Callable[[Json], None]) -> None:
        self.resource = resource
        self._on_change = on_change

    @property
    def synced(self) -> bool:
        """Whether every watched namespace has been listed once."""
        raise NotImplementedError

    def get(self, namespace: str, name: str) -> Json | None:
        """The object of this name ("" is the namespace of what has none)."""
        raise NotImplementedError

    def all(self) -> Iterable[Json]:
        """Every object, in no order. Safe from any thread."""
        raise NotImplementedError

    def owned_by(self, uid: str) -> list[Json]:
        """Objects with an ownerReference to `uid`, by name."""
        raise NotImplementedError

    def labelled(self, namespace: str, rljob: str) -> list[Json]:
        """Objects of the namespace that carry the label `areal.dev/rljob=<rljob>`, by name."""
        raise NotImplementedError
