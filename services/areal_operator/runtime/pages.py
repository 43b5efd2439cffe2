"""HTTP pages of the operator's process: `/healthz` (kill me), `/readyz` (my caches are full) and its metrics.

A thread of its own answers while the event loop is stuck, which is one of the things the pages have to tell: what they
say must be safe to read from any thread.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from areal import __version__
from areal.observe.catalog import Scope
from areal.observe.metrics import Metrics
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from areal_operator.runtime.cache import Cache
from areal_operator.runtime.queue import WorkResult
from areal_operator.runtime.reflector import Pulse, WatchTimes

_POLL_S = 0.05  # how long an end may take
_SILENCE_S = 3 * WatchTimes.longest_s  # a watch had no bookmark, no end, no list in all this time
_LOOP_LAG_S = 30.0
_BEAT_S = 1.0


@dataclass(frozen=True)
class Page:
    """One answer."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


class HttpPages:
    """Serves pages by path for the time of the block. Port 0 picks a free one."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        missing = Page(f"there are {', '.join(sorted(pages))}\n".encode(), HTTPStatus.NOT_FOUND)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0], lambda: missing)()
                self.send_response(page.status)
                self.send_header("Content-Type", page.content_type)
                self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="pages", daemon=True)

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> "HttpPages":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class OperatorHealth:
    """What is wrong, as sentences; nothing is good. Safe from any thread."""

    def __init__(
        self, *, synced: Callable[[], bool], pulses: Sequence[Pulse], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._synced = synced
        self._pulses = pulses
        self._clock = clock
        self._beat_at = clock()
        self.lag_s = 0.0

    async def beat(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(_BEAT_S)
            self._beat_at = self._clock()
            self.lag_s = max(0.0, self._beat_at - before - _BEAT_S)

    def ills(self) -> list[str]:
        """Why this process should be restarted."""
        now = self._clock()
        ills = []
        stuck_s = now - self._beat_at
        if max(stuck_s - _BEAT_S, self.lag_s) > _LOOP_LAG_S:
            ills.append(f"the event loop is {max(stuck_s, self.lag_s):.0f} s behind")
        silent = ((pulse.resource, now - pulse.heard_at) for pulse in self._pulses)
        return ills + [f"nothing was heard of {name} for {s:.0f} s" for name, s in silent if s > _SILENCE_S]

    def unready(self) -> list[str]:
        """Why this process can't do its work yet."""
        return [] if self._synced() else ["caches are not synced"]


def page_of(ills: Callable[[], list[str]]) -> Callable[[], Page]:
    """A probe's page: 200 when nothing is wrong."""

    def page() -> Page:
        wrong = ills()
        text = "\n".join(wrong or ["ok"]) + "\n"
        return Page(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)

    return page


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
        restarts: Counter[tuple[str, str]] = Counter()
        for pulse in pulses:
            heard[pulse.resource] = min(pulse.heard_wall, heard.get(pulse.resource, pulse.heard_wall))
            restarts.update({(pulse.resource, cause): times for cause, times in list(pulse.restarts.items())})
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
