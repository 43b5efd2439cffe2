"""Client of the API server: dicts in, dicts out, typed errors.

Owns the semantics of each verb (server-side apply with force and strict field validation, preconditions of deletes,
pagination), the rate limit and the patience with a busy server. Every object that comes back from a write is offered to
its cache, so that a cache never lags behind this process's own writes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from areal_operator.kube import errors
from areal_operator.kube.errors import APPLY, apply_query
from areal_operator.kube.resources import Json, Resource, resource_of
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.limiter import Limiter, RequestPriority
from areal_operator.runtime.stream import WatchEvent, events
from areal_operator.runtime.transport import JSON, MERGE, METADATA, Request, Response, Transport

MANAGER = "areal-operator"  # owns every child
STATUS_MANAGER = "areal-operator-status"  # owns status
PAGE = 500  # objects of a list's page: about 5 MB of pods
DEADLINE_S = 30.0  # a dry run of a large object on a loaded server; the server itself gives up at 60 s
_PATIENCE_S = 60.0  # how long one call goes on while the server answers 429
_LONGEST_PAUSE_S = 30.0  # a Retry-After above this is cut: better to fail, and let the key back off


class Api:
    """One API server as one identity. `guard` raises when this process may not write any more (a lost lease)."""

    def __init__(
        self,
        transport: Transport,
        limiter: Limiter | None = None,
        *,
        caches: Mapping[Resource, Cache] | None = None,
        guard: Callable[[], None] = lambda: None,
        on_answer: Callable[[str, int], None] = lambda method, status: None,
        page: int = PAGE,
    ) -> None:
        self._transport = transport
        self._limiter = limiter or Limiter()
        self.caches = caches if caches is not None else {}
        self.guard = guard
        self._on_answer = on_answer
        self._page = page

    async def get(self, resource: Resource, namespace: str, name: str, *, metadata_only: bool = False) -> Json | None:
        """The object now, past any cache; None where there is none. `metadata_only`: nothing else leaves the server."""
        request = Request("GET", resource.path(namespace, name), accept=METADATA if metadata_only else JSON)
        try:
            return await self._json(request, RequestPriority.READ)
        except errors.NotFoundError:
            return None

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[Json]:
        """All objects of a namespace (or of all), page by page, past any cache. `labels` is a label selector."""
        token = ""
        found: list[Json] = []
        while True:
            query = {"limit": str(self._page)} | ({"labelSelector": labels} if labels else {})
            query |= {"continue": token} if token else {}
            try:
                page = await self._json(Request("GET", resource.path(namespace), query), RequestPriority.READ)
            except errors.GoneError:
                if not token:
                    raise
                token, found = "", []  # the list took longer than the server keeps its snapshot: once more
                continue
            found += (typed(item, resource) for item in page.get("items") or ())
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return found

    async def create(
        self, resource: Resource, obj: Json, *, dry_run: bool = False, priority: RequestPriority = RequestPriority.WRITE
    ) -> Json:
        """Create, and return what the server made of it. Raises AlreadyExistsError. A dry run stores nothing."""
        query = {"fieldValidation": "Strict", "fieldManager": MANAGER}
        query |= {"dryRun": "All"} if dry_run else {}
        namespace = obj["metadata"].get("namespace", "")
        made = await self._write(Request("POST", resource.path(namespace), query, obj), priority)
        if not dry_run:
            self._written(resource, made)
        return made

    async def apply(self, obj: Json, *, manager: str, dry_run: bool = False, subresource: str = "") -> Json:
        """Server-side apply, forced, with strict field validation: `manager` owns exactly the fields of `obj`.

        A dry run asks every admission step and stores nothing. With `metadata.uid` in `obj`, an object of that name and
        another uid (or none) is a ConflictError. Raises InvalidError with the server's words where a field is wrong.
        """
        resource = resource_of(obj)
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        query = apply_query(manager, force=True, dry_run=dry_run)
        priority = RequestPriority.STATUS if subresource == "status" else RequestPriority.WRITE
        try:
            applied = await self._write(Request("PATCH", path, query, obj, APPLY), priority)
        except errors.InvalidError as error:
            if any(cause.get("field") == "metadata.uid" for cause in error.details.get("causes") or ()):
                raise errors.ConflictError(error.status, "Conflict", error.message, error.details) from error
            raise
        if not dry_run and applied.get("kind") == resource.kind:  # `/scale` answers with a Scale
            self._written(resource, applied)
        return applied

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Json,
        *,
        subresource: str = "",
        priority: RequestPriority = RequestPriority.WRITE,
    ) -> Json:
        """JSON merge patch; for what has one writer (events), and to take away what another wrote."""
        path = resource.path(namespace, name, subresource)
        merged = await self._write(Request("PATCH", path, {"fieldManager": MANAGER}, patch, MERGE), priority)
        self._written(resource, merged)
        return merged

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
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options["propagationPolicy"] = "Background" if background else "Foreground"
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            answer = await self._write(
                Request("DELETE", resource.path(namespace, name), {}, options), RequestPriority.WRITE
            )
        except errors.NotFoundError:
            if uid is not None:
                self._gone(resource, namespace, name, uid)
            return False
        except errors.ApiError as error:
            if uid is not None and error.status == HTTPStatus.CONFLICT:
                self._gone(resource, namespace, name, uid)
                return False
            raise
        if answer.get("kind") == "Status":  # gone at once; the uid is in the details
            self._gone(resource, namespace, name, uid or answer.get("details", {}).get("uid", ""))
        else:
            self._written(resource, answer)
        return True

    async def fetch(self, request: Request, *, deadline_s: float) -> Json:
        """One request as it is, past the rate limit and never repeated. For leases and for lists of a watch."""
        try:
            response = await self._transport.request(request, deadline_s=deadline_s)
        except errors.UnreachableError:
            self._on_answer(request.method, 0)
            raise
        self._on_answer(request.method, response.status)
        return _object(request, response)

    async def watch(self, request: Request, *, deadline_s: float) -> AsyncGenerator[WatchEvent, None]:
        """The events of a watch until its end, all of it within the deadline. Past the rate limit."""
        async with self._transport.stream(request, deadline_s=deadline_s) as stream:
            if stream.status >= HTTPStatus.BAD_REQUEST:
                body = b"".join([chunk async for chunk in stream.chunks()])
                _object(request, Response(stream.status, stream.headers, body))
            async for event in events(stream.chunks()):
                yield event

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def _write(self, request: Request, priority: RequestPriority) -> Json:
        self.guard()
        return await self._json(request, priority)

    async def _json(self, request: Request, priority: RequestPriority) -> Json:
        """Send when it is our turn, again while the server is busy, within `_PATIENCE_S`."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _PATIENCE_S
        broken = False
        while True:
            await self._limiter.turn(priority)
            try:
                return await self.fetch(request, deadline_s=DEADLINE_S)
            except errors.UnreachableError:
                # A pooled connection that the server closed says so to the next request on it only: once is normal.
                if broken or request.method == "POST":
                    raise
                broken = True
            except errors.BusyError as busy:
                pause_s = min(busy.retry_after_s or 0.0, _LONGEST_PAUSE_S)
                if not pause_s or loop.time() + pause_s > give_up:
                    raise
                self._limiter.hold(pause_s)

    def _written(self, resource: Resource, obj: Json) -> None:
        if (cache := self.caches.get(resource)) is not None:
            cache.offer(obj)

    def _gone(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        if (cache := self.caches.get(resource)) is not None:
            cache.gone((namespace, name), uid)


def typed(item: Json, resource: Resource) -> Json:
    """An item of a list, with the apiVersion and kind that built-in types leave out there."""
    item.setdefault("apiVersion", resource.api_version)
    item.setdefault("kind", resource.kind)
    return item


def _object(request: Request, response: Response) -> Json:
    """The JSON object of a good answer, or the typed error of another."""
    try:
        body: Any = orjson.loads(response.body) if response.body else {}
    except orjson.JSONDecodeError:
        body = {"message": response.body[:300].decode(errors="replace")}
        if response.status < HTTPStatus.BAD_REQUEST:
            raise errors.UnreachableError(f"{request.method} {request.path}: the answer is not JSON") from None
    if response.status < HTTPStatus.BAD_REQUEST:
        return body if isinstance(body, dict) else {}
    status = body if isinstance(body, dict) else {}
    after = response.headers.get("Retry-After", "")
    if after.isdigit():
        status = {**status, "details": {**(status.get("details") or {}), "retryAfterSeconds": int(after)}}
    raise errors.error_of(response.status, status, what=f"{request.method} {request.path}")
