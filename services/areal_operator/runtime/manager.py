"""Manager of an operator process: fills the caches, acquires the lease, runs the workers.

Owns the life of an operator process. It never works with a cache that is not full, never without the lease, and leaves
the lease behind when it is asked to stop. Knows keys and objects, nothing of what they mean.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from areal.net.heartbeat import Backoff

from areal_operator.kube.errors import ApiError, ForbiddenError, NotFoundError
from areal_operator.kube.resources import Json, Key, Resource
from areal_operator.runtime.api import Api
from areal_operator.runtime.cache import Cache
from areal_operator.runtime.events import Recorder
from areal_operator.runtime.lease import Election, LeaseStore, LeaseTimes
from areal_operator.runtime.limiter import Limiter
from areal_operator.runtime.pages import HttpPages, OperatorHealth, OperatorMetrics, page_of
from areal_operator.runtime.queue import Queue
from areal_operator.runtime.reflector import Reflector, WatchTimes
from areal_operator.runtime.transport import Transport

log = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[float | None]]

_REFRESH_S = 5.0  # gauges that are copied, not read at a scrape
_STOP_S = 10.0  # how long a stop waits for reconciles that run; a pod has 30 s by default
_PATIENCE_S = 30.0  # between two lines in the log that say what is waited for


@dataclass(frozen=True)
class WatchSpec:
    """A resource to keep in memory, and the keys that one of its objects concerns."""

    resource: Resource
    keys: Callable[[Json], Iterable[Key]]
    labelled_only: bool = False  # only objects with the job label
    optional: bool = False  # may be forbidden, or unknown to the server
    on_gone: Callable[[Json], None] = lambda obj: None  # sees the last state of each object that went
    index: Callable[[Json], str] = lambda obj: ""  # see `Cache`
    project: Callable[[Json], Json] = lambda obj: obj  # likewise


@dataclass(frozen=True)
class ManagerSettings:
    """What a process is told. No namespaces means all of them; port 0 picks a free one."""

    identity: str
    lease_namespace: str
    lease_name: str = "areal-operator"
    namespaces: tuple[str, ...] = ()
    workers: int = 4
    qps: float = 20.0
    burst: int = 40
    bind: str = "0.0.0.0"
    metrics_port: int = 8080
    health_port: int = 8081
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)


class Manager:
    """One operator process. `api`, `caches`, `recorder` and `metrics` are for the one who reconciles."""

    def __init__(
        self,
        transport: Transport,
        watched: Sequence[WatchSpec],
        settings: ManagerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self.metrics = OperatorMetrics()
        self.queue = Queue(clock=clock, on_done=self.metrics.reconciled)
        self._limiter = Limiter(settings.qps, settings.burst, clock)
        self.caches: dict[Resource, Cache] = {}
        self.api = Api(transport, self._limiter, caches=self.caches, on_answer=self.metrics.answered)
        self.election = Election(
            LeaseStore(self.api, settings.lease_namespace, settings.lease_name),
            settings.identity,
            times=settings.lease_times,
            clock=clock,
        )
        self.api.guard = self.election.guard
        self.recorder = Recorder(self.api, instance=settings.identity, clock=clock)
        self._reflectors: list[Reflector] = []
        self._watched = watched
        for one in watched:
            self._watch(one)
        self.health = OperatorHealth(
            synced=lambda: self.synced, pulses=[reflector.pulse for reflector in self._reflectors], clock=clock
        )
        self.metrics_port = self.health_port = 0
        self._follow_gauges()

    @property
    def synced(self) -> bool:
        """Whether every cache is full."""
        return all(cache.synced for cache in self.caches.values())

    async def run(
        self, reconcile: Reconcile, stop: asyncio.Event, *, while_leading: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Run until `stop`, then end cleanly. Raises LeaseLostError when another process may act.

        `while_leading` runs beside the workers for as long as this process leads, and must not return before.
        """
        bind = self.settings.bind
        probes = {"/healthz": page_of(self.health.ills), "/readyz": page_of(self.health.unready)}
        with (
            HttpPages(bind, self.settings.health_port, probes) as health,
            HttpPages(bind, self.settings.metrics_port, {"/metrics": self.metrics.page}) as metrics,
        ):
            self.health_port, self.metrics_port = health.port, metrics.port
            watching = [asyncio.create_task(one.run(), name=f"watch {one.pulse.resource}") for one in self._reflectors]
            watching += [asyncio.create_task(self.health.beat()), asyncio.create_task(self._refresh())]
            leading = asyncio.create_task(self._lead(reconcile, while_leading), name="lead")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            try:
                done, _ = await asyncio.wait({*watching, leading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what ended it
                await self._finish(leading)
            finally:
                await _cancel(leading, stopping)
                await self.election.release()
                await _cancel(*watching)

    def _watch(self, one: WatchSpec) -> None:
        resource, queue = one.resource, self.queue
        scopes = self._scopes(resource)

        def on_change(obj: Json) -> None:
            for key in one.keys(obj):
                queue.add(key)

        cache = self.caches[resource] = Cache(
            resource,
            on_change,
            on_gone=one.on_gone,
            index=one.index,
            project=one.project,
            scopes=scopes,
            labelled_only=one.labelled_only,
        )
        self._reflectors += [
            Reflector(self.api, cache, scope=scope, optional=one.optional, clock=self._clock) for scope in scopes
        ]

    async def _lead(self, reconcile: Reconcile, while_leading: Callable[[], Awaitable[None]] | None) -> None:
        await self._wait_synced()
        await self.election.acquire()
        holding = asyncio.create_task(self.election.hold(), name="lease")
        beside = [asyncio.ensure_future(while_leading())] if while_leading else []
        try:
            await self._catch_up()
            beside.append(asyncio.create_task(self.queue.run(reconcile, self.settings.workers), name="queue"))
            done, _ = await asyncio.wait({holding, *beside}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(holding, *beside)

    async def _catch_up(self) -> None:
        """See what the last leader wrote in its last moments: a watch may be a little behind."""
        for one in self._watched:
            cache = self.caches[one.resource]
            for scope in self._scopes(one.resource):
                for obj in await self._listed(one, scope, cache.selector):
                    cache.offer(obj)

    async def _listed(self, one: WatchSpec, scope: str, selector: str) -> list[Json]:
        backoff = Backoff(WatchTimes.first_backoff_s, WatchTimes.longest_backoff_s)
        while True:
            try:
                return await self.api.list(one.resource, scope, labels=selector)
            except ApiError as error:
                if one.optional and isinstance(error, ForbiddenError | NotFoundError):
                    return []
                log.warning("%s", error.message)
                await asyncio.sleep(backoff.failed())

    def _scopes(self, resource: Resource) -> tuple[str, ...]:
        return self.settings.namespaces if resource.namespaced and self.settings.namespaces else ("",)

    async def _finish(self, leading: asyncio.Task[None]) -> None:
        """Let reconciles that run come to their end, for a request once sent can't be called back."""
        self.queue.stop()
        if self.election.leads:
            await asyncio.wait({leading}, timeout=_STOP_S)

    async def _wait_synced(self) -> None:
        for resource, cache in self.caches.items():
            while not cache.synced:
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await cache.wait_synced()
                except TimeoutError:
                    log.warning("waiting for the first list of %s", resource.plural)
        log.info("caches are synced", extra={"objects": sum(len(cache) for cache in self.caches.values())})

    def _follow_gauges(self) -> None:
        follow = self.metrics.follow
        follow("areal_operator_leader", lambda: float(self.election.leads))
        follow("areal_operator_queue_depth", lambda: float(self.queue.depth))
        follow("areal_operator_api_waiting", lambda: float(self._limiter.waiting))
        follow("areal_operator_loop_lag_seconds", lambda: self.health.lag_s)

    async def _refresh(self) -> None:
        counter = self.metrics.counter("areal_operator_events_dropped_total")
        told = 0
        while True:
            self.metrics.refresh([one.pulse for one in self._reflectors], self.caches.values())
            counter.inc(self.recorder.dropped - told)
            told = self.recorder.dropped
            await asyncio.sleep(_REFRESH_S)


async def _cancel(*tasks: asyncio.Future[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
