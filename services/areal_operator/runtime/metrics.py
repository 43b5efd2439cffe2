"""Metrics of the operator itself, under the names of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from areal import __version__
from areal.observe.catalog import Scope
from areal.observe.metrics import Metrics
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from areal_operator.runtime.cache import Cache
from areal_operator.runtime.pages import Page
from areal_operator.runtime.queue import WorkResult
from areal_operator.runtime.reflector import Pulse


class OperatorMetrics(Metrics):
    """Counters that parts report to (`reconciled`, `answered`), and gauges read from them at each `refresh`."""

    def __init__(self) -> None:
        super().__init__(Scope.OPERATOR, {})
        self.gauge("areal_operator_info", version=__version__).set(1)
        self.gauge("areal_operator_leader").set(0)
        self._told: dict[tuple[str, str], int] = {}

    def reconciled(self, done: WorkResult) -> None:
        """A worker is through with a key."""
        self.counter("areal_operator_reconcile_total", result=done.result).inc()
        self.histogram("areal_operator_reconcile_duration_seconds").observe(done.took_s)
        self.histogram("areal_operator_queue_latency_seconds").observe(max(0.0, done.waited_s))

    def answered(self, method: str, status: int) -> None:
        """The API server answered, or (0) did not."""
        self.counter("areal_operator_api_requests_total", method=method, code=str(status)).inc()

    def follow(self, name: str, value: Callable[[], float]) -> None:
        """Read a gauge without labels at each scrape."""
        self.gauge(name).set_function(value)

    def refresh(self, pulses: Iterable[Pulse], caches: Iterable[Cache]) -> None:
        """Take over what reflectors and caches know. Several scopes of one resource count together."""
        heard: dict[str, float] = {}
        restarts: dict[tuple[str, str], int] = {}
        for pulse in pulses:
            heard[pulse.resource] = min(pulse.heard_wall, heard.get(pulse.resource, pulse.heard_wall))
            for cause, times in list(pulse.restarts.items()):
                restarts[pulse.resource, cause] = restarts.get((pulse.resource, cause), 0) + times
        for resource, at in heard.items():
            self.gauge("areal_operator_watch_last_event_timestamp_seconds", resource=resource).set(at)
        for (resource, cause), times in restarts.items():
            counter = self.counter("areal_operator_watch_restarts_total", resource=resource, cause=cause)
            counter.inc(times - self._told.get((resource, cause), 0))
            self._told[resource, cause] = times
        for cache in caches:
            self.gauge("areal_operator_cached_objects", resource=cache.resource.plural).set(len(cache))

    def page(self) -> Page:
        """`/metrics`."""
        return Page(generate_latest(self.registry), content_type=CONTENT_TYPE_LATEST)
