"""Event recorder (`kubectl describe`): events.k8s.io/v1, repetitions become a series.

Owns how much is said: a repeated event is one object with a count, written once a minute at most; an object that has
too much to say about itself is cut short.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cachetools import LRUCache

from areal_operator.kube.errors import ApiError, NotFoundError
from areal_operator.kube.resources import EVENTS, Json
from areal_operator.runtime.api import Api
from areal_operator.runtime.limiter import RequestPriority, TokenBucket

log = logging.getLogger(__name__)

CONTROLLER = "areal.dev/operator"
LONGEST_MESSAGE = 1000  # the server's limit is 1024 bytes
_SERIES_S = 360.0  # silence that ends a series
_REFRESH_S = 60.0  # a series is written at most this often
_BUDGET, _REFILL_S = 25, 300.0  # new events about one object at once, and one more each so many seconds
_REMEMBERED = 4096  # series and budgets; the least recently used are forgotten


@dataclass
class _EventSeries:
    namespace: str
    name: str
    count: int
    last: float  # when it was said last
    written: float  # when the server was told last


class Recorder:
    """Writes events about objects. Never raises for what the server answers: an event is not worth a reconcile."""

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._instance = instance[:128]
        self._clock = clock
        self._wall = wall
        self._series: LRUCache[tuple[str, ...], _EventSeries] = LRUCache(_REMEMBERED)
        self._budgets: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED)
        self.dropped = 0

    async def event(self, about: Json, *, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Tell `message` (cut at 1000 bytes) about the object; `reason` is one CamelCase word."""
        note = cut(message)
        uid = str(about["metadata"].get("uid", ""))
        kind = (uid, type, reason, note)
        now = self._clock()
        try:
            series = self._series.get(kind)
            if series is not None and now - series.last <= _SERIES_S:
                await self._repeat(kind, series, now)
            elif self._affords(uid, now):
                await self._begin(kind, about, type, reason, note, now)
            else:
                self.dropped += 1
        except ApiError as error:
            self.dropped += 1
            log.warning("event %s: %s", reason, error.message)

    async def _begin(self, kind: tuple[str, ...], about: Json, type: str, reason: str, note: str, now: float) -> None:
        made = new_event(about, type=type, reason=reason, note=note, instance=self._instance, wall=self._wall())
        # Remembered before it is written: the same thing said by another worker meanwhile is a repetition.
        metadata = made["metadata"]
        self._series[kind] = _EventSeries(metadata["namespace"], metadata["name"], 1, now, now)
        try:
            await self._api.create(EVENTS, made, priority=RequestPriority.EVENT)
        except ApiError:
            self._series.pop(kind, None)
            raise

    async def _repeat(self, kind: tuple[str, ...], series: _EventSeries, now: float) -> None:
        series.count += 1
        series.last = now
        if series.count > 2 and now - series.written < _REFRESH_S:
            return
        series.written = now
        patch = {"series": {"count": series.count, "lastObservedTime": microtime(self._wall())}}
        try:
            await self._api.merge(EVENTS, series.namespace, series.name, patch, priority=RequestPriority.EVENT)
        except NotFoundError:  # events live for an hour
            self._series.pop(kind, None)

    def _affords(self, uid: str, now: float) -> bool:
        bucket = self._budgets.get(uid)
        if bucket is None:
            bucket = self._budgets[uid] = TokenBucket(1 / _REFILL_S, _BUDGET, now)
        return bucket.take(now)


def new_event(about: Json, *, type: str, reason: str, note: str, instance: str, wall: datetime) -> Json:
    """The event object, the first of a possible series."""
    metadata = about["metadata"]
    namespace = metadata.get("namespace") or "default"  # where events about cluster-wide objects are kept
    stamp = f"{int(wall.timestamp() * 1e6):x}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": namespace, "name": f"{metadata['name'][:200]}.{stamp}"},
        "eventTime": microtime(wall),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": "Reconcile",
        "reason": reason[:128],
        "type": type,
        "note": note,
        "regarding": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": metadata.get("namespace", ""),
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        },
    }


def cut(message: str) -> str:
    """At most 1000 bytes of UTF-8, and the end says so when something is missing."""
    encoded = message.encode()
    if len(encoded) <= LONGEST_MESSAGE:
        return message
    return encoded[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"


def microtime(wall: datetime) -> str:
    """A time as Kubernetes' MicroTime has it."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
