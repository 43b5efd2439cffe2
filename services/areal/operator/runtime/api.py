"""Requests to the API server: dicts in, dicts out, typed errors.

Owns the semantics of each verb (server-side apply with force and strict field validation, preconditions of deletes,
pagination), the rate limit and the patience with a busy server. Every object that comes back from a write is shown to
`on_write`, so that a cache never lags behind this process's own writes.
"""

from __future__ import annotations

from areal.operator.runtime.resources import Json, Resource

MANAGER = "areal-operator"  # owns every child
STATUS_MANAGER = "areal-operator-status"  # owns status


class Api:
    """One API server as one identity."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object now, past any cache; None where there is none."""
        raise NotImplementedError

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[Json]:
        """All objects of a namespace (or of all), page by page, past any cache. `labels` is a label selector."""
        raise NotImplementedError

    async def create(self, resource: Resource, obj: Json) -> Json:
        """Create, and return what the server made of it. Raises AlreadyExistsError."""
        raise NotImplementedError

    async def apply(self, obj: Json, *, manager: str, dry_run: bool = False, subresource: str = "") -> Json:
        """Server-side apply, forced, with strict field validation: `manager` owns exactly the fields of `obj`.

        A dry run asks every admission step and stores nothing. With `metadata.uid` in `obj`, an object of that name and
        another uid is a ConflictError. Raises InvalidError with the server's words where a field is wrong.
        """
        raise NotImplementedError

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
        background: bool = True,
    ) -> bool:
        """Delete; False when it was gone already, or is another object than `uid`. Foreground unless `background`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all connections."""
        raise NotImplementedError
