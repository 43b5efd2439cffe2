"""Leader election by a Lease of coordination.k8s.io/v1.

Owns the election. `decide` is pure; `Election` runs it. No wall clock is ever compared: a lease is stale when *this*
process has watched it unchanged for its whole duration by its own monotonic clock. A leader that could not renew for
`renew_s` no longer leads, and that is earlier than anyone can take over.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from areal.errors import InfraError

from areal_operator.kube.errors import AlreadyExistsError, ApiError, ConflictError, ForbiddenError, NotFoundError
from areal_operator.kube.resources import LEASES, Json
from areal_operator.runtime.api import Api
from areal_operator.runtime.events import microtime
from areal_operator.runtime.transport import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseTimes:
    """Durations of an election. A leader stops before anyone may take over: `renew_s` < `duration_s`."""

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0


class LeaseLostError(InfraError):
    """Another operator may act now: this process must change nothing more, and end."""


@dataclass(frozen=True)
class LeaseView:
    """The lease as last read, and since when (monotonic) it has not changed. `record` None: there is none."""

    record: Json | None
    since: float

    @property
    def holder(self) -> str:
        """Who holds it; "" is nobody."""
        return str(_spec(self.record).get("holderIdentity") or "")

    def follow(self, record: Json | None, now: float) -> "LeaseView":
        """After one more look: only a change of the record is a sign of life of its holder."""
        unchanged = _version(record) == _version(self.record)
        return LeaseView(record, self.since if unchanged else now)


def may_write(seen: LeaseView, identity: str, now: float) -> bool:
    """Whether to put one's own name (again) into the lease: it is ours, nobody's, or was left behind."""
    if seen.record is None or seen.holder in ("", identity):
        return True
    return now - seen.since > float(_spec(seen.record).get("leaseDurationSeconds") or 0)


def renewed(seen: LeaseView, lease: Json, identity: str, times: LeaseTimes, wall: datetime) -> Json:
    """The lease to write: renewed when it was ours, acquired otherwise. Times in it are for people."""
    before = _spec(seen.record)
    stamp = microtime(wall)
    ours = seen.holder == identity
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(times.duration_s),
        "acquireTime": before.get("acquireTime", stamp) if ours else stamp,
        "renewTime": stamp,
        "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if ours or seen.record is None else 1),
    }
    return _lease_with(seen, lease, spec)


def released(seen: LeaseView, lease: Json, wall: datetime) -> Json:
    """The lease to write when its holder goes: free at once for anybody."""
    spec = {**_spec(seen.record), "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": microtime(wall)}
    return _lease_with(seen, lease, spec)


def _lease_with(seen: LeaseView, lease: Json, spec: Json) -> Json:
    metadata = {**lease["metadata"]}
    if seen.record is not None:
        metadata["resourceVersion"] = seen.record["metadata"]["resourceVersion"]  # only if nobody wrote meanwhile
    return {**lease, "metadata": metadata, "spec": spec}


def _spec(record: Json | None) -> dict[str, Any]:
    return (record or {}).get("spec") or {}


def _version(record: Json | None) -> str:
    return str(record["metadata"]["resourceVersion"]) if record else ""


class LeaseStore:
    """Where the lease is kept, past the rate limit: a busy operator must not lose its lease. `bare` is one of nobody.

    Both ways raise ApiError; neither repeats a request.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = LEASES.path(namespace, name)
        metadata = {"namespace": namespace, "name": name}
        self.bare: Json = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}

    async def read(self, deadline_s: float) -> Json | None:
        """The lease now."""
        try:
            return await self._api.fetch(Request("GET", self._path), deadline_s=deadline_s)
        except NotFoundError:
            return None

    async def write(self, lease: Json, deadline_s: float) -> Json:
        """Create it, or replace the version that it names."""
        exists = "resourceVersion" in lease["metadata"]
        path = self._path if exists else LEASES.path(self._namespace)
        return await self._api.fetch(Request("PUT" if exists else "POST", path, {}, lease), deadline_s=deadline_s)


CLAIM = "areal-jobs"  # the lease of a namespace in which an operator acts
_FORBIDDEN_S = 600.0  # until rights to a namespace's lease are tried again
_CLAIM_TIMES = LeaseTimes(duration_s=60.0, renew_s=10.0, retry_s=20.0)


class NamespaceClaims:
    """Which of a cluster's operators acts in a namespace: the release that holds the lease there.

    Two releases that watch one namespace would undo each other's work. The lease is the release's, not a process', so
    a new leader goes on at once; it is left behind when its release hasn't renewed it for a minute.
    """

    def __init__(
        self,
        api: Api,
        release: str,
        *,
        times: LeaseTimes = _CLAIM_TIMES,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._release, self._times, self._clock, self._wall = api, release, times, clock, wall
        self._seen: dict[str, LeaseView] = {}
        self._held_until: dict[str, float] = {}  # no look is needed before
        self._one = asyncio.Lock()  # workers of one process don't race for a lease

    async def other(self, namespace: str) -> str:
        """Who else acts in a namespace; "" when this release does, which claims it. Raises ApiError.

        Without the right to leases there, which an older release's roles lack, it acts, and the log says so.
        """
        if self._clock() < self._held_until.get(namespace, 0.0):
            return ""
        async with self._one:
            return await self._claim(namespace)

    async def _claim(self, namespace: str) -> str:
        began = self._clock()
        if began < self._held_until.get(namespace, 0.0):
            return ""
        store = LeaseStore(self._api, namespace, CLAIM)
        try:
            seen = self._seen.get(namespace, LeaseView(None, began))
            seen = self._seen[namespace] = seen.follow(await store.read(self._times.renew_s), self._clock())
            if not may_write(seen, self._release, self._clock()):
                return seen.holder
            written = renewed(seen, store.bare, self._release, self._times, self._wall())
            self._seen[namespace] = seen.follow(await store.write(written, self._times.renew_s), self._clock())
        except (AlreadyExistsError, ConflictError):
            return "another operator"
        except ForbiddenError as error:
            log.warning("namespace %s isn't claimed, another operator may act there: %s", namespace, error.message)
            self._held_until[namespace] = began + _FORBIDDEN_S  # or the namespace is being deleted, and may come again
            return ""
        self._held_until[namespace] = began + self._times.retry_s
        return ""

    async def keep(self) -> None:
        """Renew what is held, until cancelled."""
        while True:
            await asyncio.sleep(self._times.retry_s)
            for namespace in list(self._held_until):
                try:
                    await self.other(namespace)
                except ApiError as error:  # the namespace may be gone; a job in it claims it again
                    log.warning("lease of namespace %s: %s", namespace, error.message)
                    self._held_until.pop(namespace, None)

    async def release(self) -> None:
        """Let another release begin at once."""
        for namespace in self._held_until:
            seen = self._seen.get(namespace, LeaseView(None, 0.0))
            if seen.holder != self._release:
                continue
            try:
                store = LeaseStore(self._api, namespace, CLAIM)
                await store.write(released(seen, seen.record or {}, self._wall()), self._times.renew_s)
            except ApiError as error:
                log.warning("the lease of %s could not be released, and runs out: %s", namespace, error.message)


class Election:
    """One contender."""

    def __init__(
        self,
        store: LeaseStore,
        identity: str,
        *,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self.identity = identity
        self._times = times or LeaseTimes()
        self._clock = clock
        self._wall = wall
        self._seen = LeaseView(None, clock())
        self._leads_until: float | None = None

    @property
    def leads(self) -> bool:
        """Whether this process may act now; false as soon as the last renewal is too old, whoever is running."""
        return self._leads_until is not None and self._clock() < self._leads_until

    @property
    def holder(self) -> str:
        """Who held the lease when last seen."""
        return self._seen.holder

    def guard(self) -> None:
        """Raise LeaseLostError unless this process leads."""
        if not self.leads:
            raise LeaseLostError(f"{self.identity} does not hold the lease", fix="another operator acts; this one ends")

    async def acquire(self) -> None:
        """Return when this process leads."""
        told = ""
        while not await self._try(self._times.renew_s):
            if self.holder not in ("", told):
                told = self.holder
                log.info("waiting for the lease, held by %s", told)
            await asyncio.sleep(self._times.retry_s)
        log.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renew until the lease is lost; then raise LeaseLostError."""
        while True:
            await asyncio.sleep(self._times.retry_s)
            left_s = (self._leads_until or 0.0) - self._clock()
            if left_s <= 0:
                break
            if not await self._try(left_s) and (not self.leads or self.holder not in ("", self.identity)):
                break
        self._leads_until = None
        raise LeaseLostError(f"{self.identity} lost the lease to {self.holder or 'nobody'}", fix="restart the operator")

    async def release(self) -> None:
        """Stop leading, and let another operator begin at once."""
        if self._leads_until is None:
            return
        self._leads_until = None
        if self._seen.holder != self.identity:
            return
        try:
            await self._store.write(released(self._seen, self._store.bare, self._wall()), self._times.retry_s)
        except ApiError as error:
            log.warning("the lease could not be released, and runs out by itself: %s", error.message)

    async def _try(self, deadline_s: float) -> bool:
        """One look and, where allowed, one write. True when the lease is ours by it."""
        deadline_s = min(deadline_s, self._times.renew_s / 2)  # a request that hangs leaves time for another
        began = self._clock()  # what we promise counts from before the write, what we wait for from after the read
        try:
            # A leader's own last write is what it knows: one request a renewal, and a conflict tells of anything else.
            if not (self.leads and self._seen.holder == self.identity):
                self._seen = self._seen.follow(await self._store.read(deadline_s), self._clock())
            if not may_write(self._seen, self.identity, self._clock()):
                return False
            lease = renewed(self._seen, self._store.bare, self.identity, self._times, self._wall())
            deadline_s = max(0.01, deadline_s - (self._clock() - began))
            began = self._clock()
            self._seen = self._seen.follow(await self._store.write(lease, deadline_s), self._clock())
        except ApiError as error:
            log.warning("lease: %s", error.message)
            if self.leads:
                await self._look(deadline_s)
            return False
        self._leads_until = began + self._times.renew_s
        return True

    async def _look(self, deadline_s: float) -> None:
        """A renewal failed: read what is there, for the write may have arrived, or somebody else's."""
        try:
            left_s = min(deadline_s, max(0.01, (self._leads_until or 0.0) - self._clock()))
            self._seen = self._seen.follow(await self._store.read(left_s), self._clock())
        except ApiError as error:
            log.warning("lease: %s", error.message)
