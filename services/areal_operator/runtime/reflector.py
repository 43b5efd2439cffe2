"""Reflector: keeps a cache equal to the server by list and watch.

Owns the protocol as a state machine, and its promise: whatever the network, the server or a proxy between them does,
the cache reaches the server's state again within a bounded time, and every object that differs is reported.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from areal.net.heartbeat import Backoff

from areal_operator.kube.errors import ApiError, ForbiddenError, GoneError, NotFoundError, UnreachableError
from areal_operator.kube.resources import Json
from areal_operator.runtime.api import DEADLINE_S, PAGE, Api, typed
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.stream import GarbledError, StreamEvent, WatchEvent, identified
from areal_operator.runtime.transport import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchTimes:
    """Durations of list and watch of one resource."""

    shortest_s: float = 240.0  # the server ends each watch after a random time between these two, so that
    longest_s: float = 360.0  # watches of many resources and operators don't all begin anew at once
    margin_s: float = 15.0  # the client hangs up this much after the server should have: the connection is half-open
    relist_s: float = 3600.0  # a full list now and then, whatever the watch says: bounds the harm of a lost change
    page: int = PAGE
    first_backoff_s: float = 0.5
    longest_backoff_s: float = 30.0
    steady_s: float = 10.0  # a watch that lived this long was not a failure: the back-off starts over


@dataclass(frozen=True)
class Empty:
    """Nothing is trusted: next comes the first page of a list, or all of it at once when paging took too long."""

    at_once: bool = False


@dataclass(frozen=True)
class PageCursor:
    """Some pages of a list are here: next comes the page at `token`. They are worth nothing until all are here."""

    items: tuple[Json, ...]
    token: str


@dataclass(frozen=True)
class CacheCurrent:
    """The cache is the server's state at `version`: next comes a watch from there; a list after `relist_at`."""

    version: int
    relist_at: float


@dataclass(frozen=True)
class WatchPause:
    """The last step failed: nothing is asked for `pause_s`, then `then` goes on."""

    pause_s: float
    then: Empty | CacheCurrent


State = Empty | PageCursor | CacheCurrent | WatchPause


@dataclass
class Pulse:
    """Signs of life of one reflector. Plain values, safe to read from any thread."""

    resource: str
    heard_at: float = 0.0  # monotonic: when the server last answered anything
    heard_wall: float = 0.0
    restarts: dict[str, int] = field(default_factory=dict)  # cause → how often the stream began anew

    def restarted(self, cause: str) -> None:
        """The stream begins anew, for this cause."""
        self.restarts[cause] = self.restarts.get(cause, 0) + 1


class Reflector:
    """One resource in one scope ("" is everywhere), selected as the cache says.

    An `optional` resource may be forbidden or unknown to the server: it then counts as empty until that changes.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        *,
        scope: str = "",
        optional: bool = False,
        times: WatchTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.cache = cache
        self.scope = scope
        self._api = api
        self._path = cache.resource.path(scope)
        self._selector = {"labelSelector": cache.selector} if cache.selector else {}
        self._optional = optional
        self._times = times or WatchTimes()
        self._clock = clock
        self._uniform = uniform
        self._backoff = Backoff(self._times.first_backoff_s, self._times.longest_backoff_s, uniform)
        self._newest = 0  # the newest version that the server itself ever spoke of
        self.state: State = Empty()
        self.pulse = Pulse(cache.resource.plural, clock(), time.time())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.state = await self.step(self.state)

    async def step(self, state: State) -> State:
        """One request of the protocol (or one rest), and the state after it."""
        match state:
            case WatchPause(pause_s=pause_s, then=then):
                await asyncio.sleep(pause_s)
                return then
            case CacheCurrent(relist_at=relist_at) if self._clock() >= relist_at:
                self.pulse.restarted("hourly")
                return Empty()
            case CacheCurrent():
                return await self._watch(state)
            case Empty() | PageCursor():
                return await self._list(state)

    async def _list(self, state: Empty | PageCursor) -> State:
        query = dict(self._selector)
        match state:
            case Empty(at_once=False):
                query["limit"] = str(self._times.page)
            case PageCursor(token=token):
                query |= {"limit": str(self._times.page), "continue": token}
        try:
            page = await self._api.fetch(Request("GET", self._path, query), deadline_s=DEADLINE_S)
            self._heard()
            items = tuple(typed(item, self.cache.resource) for item in page.get("items") or ())
            version, token = int(page["metadata"]["resourceVersion"]), page["metadata"].get("continue", "")
            for item in items:
                identified(item)
        except GoneError as error:
            return self._failed("expired", error, Empty(at_once=isinstance(state, PageCursor)))
        except ApiError as error:
            return self._refused(error)
        except (KeyError, TypeError, ValueError):
            return self._failed("garbled", GarbledError("not a list"), Empty())
        items = (*state.items, *items) if isinstance(state, PageCursor) else items
        if token:
            return PageCursor(items, token)
        self.cache.denied = ""
        self.cache.replace(self.scope, items, version, rewound=version < self._newest)
        self._newest = version
        return CacheCurrent(version, self._clock() + self._times.relist_s)

    async def _watch(self, state: CacheCurrent) -> State:
        """Follow the stream to its end. What it brought stays good however it ends, unless it was garbled."""
        seconds = round(self._uniform(self._times.shortest_s, self._times.longest_s))
        query = self._selector | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(state.version),
            "timeoutSeconds": str(seconds),
        }
        began = self._clock()
        version = state.version
        cause: str = "ended"
        error: ApiError | None = None
        try:
            request, deadline_s = Request("GET", self._path, query), seconds + self._times.margin_s
            async with contextlib.aclosing(self._api.watch(request, deadline_s=deadline_s)) as stream:
                async for event in stream:
                    version = self._take(event)
        except UnreachableError as broken:
            cause, error = "broken", broken
        except (GoneError, GarbledError) as lost:
            return self._failed("expired" if isinstance(lost, GoneError) else "garbled", lost, Empty())
        except ApiError as refused:
            return self._failed("refused", refused, Empty())
        self.pulse.restarted(cause)
        then = CacheCurrent(version, state.relist_at)
        if version > state.version or self._clock() - began >= self._times.steady_s:
            self._backoff.succeeded()
        if error is None:
            self._heard()
            if self._backoff.failures == 0 and self._clock() - began >= self._times.first_backoff_s:
                return then
        return self._failed("", error, then)

    def _take(self, event: WatchEvent) -> int:
        self._heard()
        version = int(event.obj["metadata"]["resourceVersion"])
        self._newest = max(self._newest, version)
        match event.change:
            case StreamEvent.ADDED | StreamEvent.MODIFIED:
                self.cache.offer(event.obj)
            case StreamEvent.DELETED:
                self.cache.removed(event.obj)
        return version

    def _refused(self, error: ApiError) -> State:
        """A list was refused."""
        if isinstance(error, UnreachableError):
            return self._failed("broken", error, Empty())
        self._heard()
        if self._optional and isinstance(error, ForbiddenError | NotFoundError):
            self.cache.denied = error.message
            self.cache.replace(self.scope, (), 0)
            log.debug("%s is not to be had and counts as empty: %s", self._path, error.message)
            return WatchPause(self._times.longest_backoff_s, Empty())
        return self._failed("refused", error, Empty())

    def _failed(self, cause: str, error: ApiError | None, then: Empty | CacheCurrent) -> WatchPause:
        if cause:
            self.pulse.restarted(cause)
        pause_s = self._backoff.failed()
        if error is not None:
            log.warning("watch of %s: %s; again in %.1f s", self._path, error.message, pause_s)
        return WatchPause(pause_s, then)

    def _heard(self) -> None:
        self.pulse.heard_at = self._clock()
        self.pulse.heard_wall = time.time()
